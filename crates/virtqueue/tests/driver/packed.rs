//! The driver of a packed ring.
use super::{Buffer, Driver, Heap, descriptor, need_event};
use std::sync::atomic::{Ordering, fence};
use virtqueue::{Features, Layout, Position};
use window::{Span, Window};

const AVAILABLE: u16 = 1 << 7;
const USED: u16 = 1 << 15;

#[derive(Debug)]
pub struct PackedDriver {
    layout: Layout,
    features: Features,
    window: Window,
    ring: Span,
    driver_events: Span,
    device_events: Span,
    free: Vec<u16>,
    room: u16,
    /// By IDs: the descriptors in the ring.
    chains: Vec<u16>,
    next: Position,
    /// Descriptors since the last kick was thought about.
    added: u16,
    seen: Position,
}

fn step(place: &mut Position, count: u16, size: u16) {
    place.index += count;
    if place.index >= size {
        *place = Position { index: place.index - size, wrap: !place.wrap };
    }
}

impl PackedDriver {
    pub fn new(heap: &mut Heap, size: u16, features: Features, start: Position) -> PackedDriver {
        let (descriptors, ring) = heap.area(16 * u64::from(size), 16);
        let (driver, driver_events) = heap.area(4, 4);
        let (device, device_events) = heap.area(4, 4);
        // What is behind `start` was used in the round before; in the first one all is zero.
        for index in 0..size {
            let wrap = if index < start.index { start.wrap } else { !start.wrap };
            let flags = if wrap { AVAILABLE | USED } else { 0 };
            ring.write(16 * u64::from(index), &descriptor(0, 0, [0, flags])).unwrap();
        }
        PackedDriver {
            layout: Layout { size, descriptors, driver, device },
            features,
            window: heap.window,
            ring,
            driver_events,
            device_events,
            free: (0..size).rev().collect(),
            room: size,
            chains: vec![0; size.into()],
            next: start,
            added: 0,
            seen: start,
        }
    }

    fn put(&mut self, descriptors: &[(u64, u32, u16)], id: u16) {
        let start = self.next;
        let mut first = [0; 16];
        for (i, (address, len, flags)) in descriptors.iter().enumerate() {
            let wrap = if self.next.wrap { AVAILABLE } else { USED };
            let bytes = descriptor(*address, *len, [id, flags | wrap]);
            if i == 0 {
                first = bytes;
            } else {
                self.ring.write(16 * u64::from(self.next.index), &bytes).unwrap();
            }
            step(&mut self.next, 1, self.layout.size);
        }
        // The flags of the first one are stored last.
        let at = 16 * u64::from(start.index);
        let word = |at: usize| u64::from_le_bytes(first[at..at + 8].try_into().unwrap());
        self.ring.store_u64(at, word(0)).unwrap();
        self.ring.store_u64_release(at + 8, word(8)).unwrap();
        let count = descriptors.len() as u16;
        self.chains[usize::from(id)] = count;
        self.room -= count;
        self.added += count;
    }

    fn flags_at(&self, place: Position) -> u64 {
        16 * u64::from(place.index) + 8
    }

    fn next_is_used(&self) -> Option<u64> {
        let word = self.ring.load_u64_acquire(self.flags_at(self.seen)).unwrap();
        let flags = (word >> 48) as u16 & (AVAILABLE | USED);
        (flags == if self.seen.wrap { AVAILABLE | USED } else { 0 }).then_some(word)
    }

    fn set_events(&self, place: u16, flags: u16) {
        self.driver_events.store_u32(0, u32::from(place) | u32::from(flags) << 16).unwrap();
    }
}

impl Driver for PackedDriver {
    fn layout(&self) -> Layout {
        self.layout
    }

    fn add(&mut self, buffers: &[Buffer]) -> Option<u16> {
        if buffers.is_empty() || buffers.len() > self.room.into() {
            return None;
        }
        let id = self.free.pop()?;
        let descriptors: Vec<_> = buffers
            .iter()
            .enumerate()
            .map(|(i, buffer)| {
                let next = u16::from(i + 1 != buffers.len());
                (buffer.address, buffer.len, next | u16::from(buffer.writable) << 1)
            })
            .collect();
        self.put(&descriptors, id);
        Some(id)
    }

    fn add_indirect(&mut self, table: u64, buffers: &[Buffer]) -> Option<u16> {
        if self.room == 0 {
            return None;
        }
        let id = self.free.pop()?;
        for (i, buffer) in buffers.iter().enumerate() {
            let last = [0, u16::from(buffer.writable) << 1];
            let bytes = descriptor(buffer.address, buffer.len, last);
            self.window.write(table + 16 * i as u64, &bytes).unwrap();
        }
        self.put(&[(table, 16 * buffers.len() as u32, 4)], id);
        Some(id)
    }

    fn kick(&mut self) -> bool {
        fence(Ordering::SeqCst);
        let added = std::mem::take(&mut self.added);
        let word = self.device_events.load_u32(0).unwrap();
        let (place, flags) = (word as u16, word >> 16 & 3);
        match flags {
            1 => false,
            2 if self.features.event_index => {
                let mut event = place & 0x7FFF;
                if (place >> 15 != 0) != self.next.wrap {
                    event = event.wrapping_sub(self.layout.size);
                }
                let new = self.next.index;
                need_event(event, new, new.wrapping_sub(added))
            }
            _ => added != 0,
        }
    }

    fn used(&mut self) -> Option<(u16, u32)> {
        let word = self.next_is_used()?;
        let (len, id) = (word as u32, (word >> 32) as u16);
        let count = std::mem::take(&mut self.chains[usize::from(id)]);
        assert!(count != 0, "{id} is used, and wasn't offered");
        step(&mut self.seen, count, self.layout.size);
        self.free.push(id);
        self.room += count;
        Some((id, len))
    }

    fn enable_calls(&mut self) -> bool {
        if self.features.event_index {
            self.set_events(self.seen.index | u16::from(self.seen.wrap) << 15, 2);
        } else {
            self.set_events(0, 0);
        }
        fence(Ordering::SeqCst);
        self.next_is_used().is_none()
    }

    fn disable_calls(&mut self) {
        self.set_events(0, 1);
    }
}
