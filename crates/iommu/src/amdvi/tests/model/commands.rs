//! What the model does with commands: nothing before it must, and then in the opposite order.

use super::{Done, State, remaps_by, tag};
use crate::amdvi::registers::*;

impl State {
    /// Each time it is asked, the unit comes a little nearer to looking at its commands.
    pub(super) fn work(&mut self) {
        if self.runs & COMMAND_RUN == 0 || self.queue_deaf {
            return;
        }
        self.delay += 1;
        if !self.delay.is_multiple_of(3) {
            return;
        }
        while self.command_head != self.command_tail && self.runs & COMMAND_RUN != 0 {
            let at = (self.command_base & !(LENGTH_256 | 0xFFF)) + self.command_head;
            let (low, high) = self.pair(at);
            if let Some(code) = self.refuses.filter(|_| low >> 60 != 1) {
                self.refuses = None;
                self.log(u64::from(code) << 60, at);
                if !self.goes_on {
                    self.runs &= !COMMAND_RUN;
                    return;
                }
            } else if low >> 60 == 1 {
                assert_eq!(
                    low & !(0xF << 60 | 0x000F_FFFF_FFFF_FFF9),
                    0,
                    "reserved bits or I or F"
                );
                let place = low & 0x000F_FFFF_FFFF_FFF8;
                assert_ne!(place & !0xFFF, at & !0xFFF, "its place is among commands");
                for (low, high) in std::mem::take(&mut self.fetched).into_iter().rev() {
                    self.carry_out(low, high);
                }
                self.put(place, high);
            } else {
                self.fetched.push((low, high));
            }
            self.command_head = (self.command_head + 16) % 0x1000;
        }
    }

    fn carry_out(&mut self, low: u64, high: u64) {
        let none = |bits: u64| assert_eq!(bits, 0, "reserved bits in {low:#x} {high:#x}");
        let (id, domain) = (low as u16, (low >> 32) as u16);
        let done = match low >> 60 {
            2 => {
                none(low & !(0xF << 60 | 0xFFFF) | high);
                self.forget(id);
                // Through whatever is cached of others.
                self.cache_entry(id);
                Done::Device(id)
            }
            3 => {
                none(low & !(0xF << 60 | 0xFFFF << 32) | high & 0xFFC);
                assert_ne!(high & 2, 0, "tables that are gone stay cached");
                self.pages(domain, high)
            }
            5 => {
                none(low & !(0xF << 60 | 0xFFFF) | high);
                self.irtes.retain(|(of, _), _| *of != id);
                let entries = self.entries.get(&id).into_iter().flatten();
                for table in entries.filter_map(remaps_by).collect::<Vec<_>>() {
                    // Those that tests use; others when they change.
                    for index in 0..8 {
                        self.cache_irte(id, index, self.pair(table + u64::from(index) * 16));
                    }
                }
                Done::Interrupts(id)
            }
            8 => {
                none(low & !(0xF << 60) | high);
                assert!(self.efr & EFR_INVALIDATE_ALL != 0, "a command that it doesn't have");
                self.entries.clear();
                self.translating.clear();
                self.remapping.clear();
                self.irtes.clear();
                self.domains.clear();
                self.pages.clear();
                Done::All
            }
            _ => panic!("no such command: {low:#x} {high:#x}"),
        };
        // What entries are cached may be translated by at any moment.
        let cached = self.translating.iter().filter_map(|id| self.entries.get(id)).flatten();
        self.domains.extend(cached.copied().filter_map(tag));
        self.done.push(done);
    }

    /// S: the lowest bit from 12 on that is clear says how many, and lies below the address.
    fn pages(&mut self, domain: u16, high: u64) -> Done {
        let address = high & !0xFFF;
        if high & 1 != 0 && address == 0x7FFF_FFFF_FFFF_F000 {
            self.domains.remove(&domain);
            self.pages.retain(|(of, _)| *of != domain);
            return Done::AllPages(domain);
        }
        let order = if high & 1 == 0 { 0 } else { (address >> 12).trailing_ones() + 1 };
        let (first, count) = (address >> 12 >> order << order, 1 << order);
        self.pages.retain(|(of, page)| *of != domain || !(first..first + count).contains(page));
        Done::Pages(domain, first, count)
    }
}
