//! The driver of a split ring.
use super::{Buffer, Driver, Heap, descriptor, need_event};
use std::sync::atomic::{Ordering, fence};
use virtqueue::{Features, Layout};
use window::{Span, Window};

#[derive(Debug)]
pub struct SplitDriver {
    layout: Layout,
    features: Features,
    window: Window,
    table: Span,
    available: Span,
    used: Span,
    free: Vec<u16>,
    /// By heads: the descriptors of the chain.
    chains: Vec<Vec<u16>>,
    index: u16,
    kicked: u16,
    seen: u16,
}

impl SplitDriver {
    pub fn new(heap: &mut Heap, size: u16, features: Features, start: u16) -> SplitDriver {
        let elements = u64::from(size);
        let (descriptors, table) = heap.area(16 * elements, 16);
        let (driver, available) = heap.area(6 + 2 * elements, 2);
        let (device, used) = heap.area(6 + 8 * elements, 4);
        available.store_u16(2, start).unwrap();
        used.store_u16(2, start).unwrap();
        SplitDriver {
            layout: Layout { size, descriptors, driver, device },
            features,
            window: heap.window,
            table,
            available,
            used,
            free: (0..size).rev().collect(),
            chains: vec![Vec::new(); size.into()],
            index: start,
            kicked: start,
            seen: start,
        }
    }

    fn size(&self) -> u64 {
        self.layout.size.into()
    }

    fn offer(&mut self, head: u16) {
        let place = u64::from(self.index) % self.size();
        self.available.store_u16(4 + 2 * place, head).unwrap();
        self.index = self.index.wrapping_add(1);
        self.available.store_u16_release(2, self.index).unwrap();
    }

    fn flags(buffer: &Buffer, last: bool) -> u16 {
        u16::from(!last) | u16::from(buffer.writable) << 1
    }
}

impl Driver for SplitDriver {
    fn layout(&self) -> Layout {
        self.layout
    }

    fn add(&mut self, buffers: &[Buffer]) -> Option<u16> {
        if buffers.is_empty() || buffers.len() > self.free.len() {
            return None;
        }
        let chain = self.free.split_off(self.free.len() - buffers.len());
        for (i, buffer) in buffers.iter().enumerate() {
            let next = chain.get(i + 1).copied();
            let last = [Self::flags(buffer, next.is_none()), next.unwrap_or(0)];
            let bytes = descriptor(buffer.address, buffer.len, last);
            self.table.write(16 * u64::from(chain[i]), &bytes).unwrap();
        }
        let head = chain[0];
        self.chains[usize::from(head)] = chain;
        self.offer(head);
        Some(head)
    }

    fn add_indirect(&mut self, table: u64, buffers: &[Buffer]) -> Option<u16> {
        let head = self.free.pop()?;
        for (i, buffer) in buffers.iter().enumerate() {
            let last = i + 1 == buffers.len();
            let last = [Self::flags(buffer, last), if last { 0 } else { i as u16 + 1 }];
            let bytes = descriptor(buffer.address, buffer.len, last);
            self.window.write(table + 16 * i as u64, &bytes).unwrap();
        }
        let bytes = descriptor(table, 16 * buffers.len() as u32, [4, 0]);
        self.table.write(16 * u64::from(head), &bytes).unwrap();
        self.chains[usize::from(head)] = vec![head];
        self.offer(head);
        Some(head)
    }

    fn kick(&mut self) -> bool {
        fence(Ordering::SeqCst);
        let old = std::mem::replace(&mut self.kicked, self.index);
        if self.features.event_index {
            let event = self.used.load_u16(4 + 8 * self.size()).unwrap();
            need_event(event, self.index, old)
        } else {
            old != self.index && self.used.load_u16(0).unwrap() & 1 == 0
        }
    }

    fn used(&mut self) -> Option<(u16, u32)> {
        if self.used.load_u16_acquire(2).unwrap() == self.seen {
            return None;
        }
        let at = 4 + 8 * (u64::from(self.seen) % self.size());
        let id = self.used.load_u32(at).unwrap();
        let len = self.used.load_u32(at + 4).unwrap();
        self.seen = self.seen.wrapping_add(1);
        let chain = std::mem::take(&mut self.chains[id as usize]);
        assert!(!chain.is_empty(), "{id} is used, and wasn't offered");
        self.free.extend(chain);
        Some((id as u16, len))
    }

    fn enable_calls(&mut self) -> bool {
        if self.features.event_index {
            self.available.store_u16(4 + 2 * self.size(), self.seen).unwrap();
        } else {
            self.available.store_u16(0, 0).unwrap();
        }
        fence(Ordering::SeqCst);
        self.used.load_u16_acquire(2).unwrap() == self.seen
    }

    fn disable_calls(&mut self) {
        if self.features.event_index {
            // As far away as can be: it will be passed once in 2^16.
            self.available.store_u16(4 + 2 * self.size(), self.seen.wrapping_sub(1)).unwrap();
        } else {
            self.available.store_u16(0, 1).unwrap();
        }
    }
}
