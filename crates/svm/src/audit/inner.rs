//! The control block by which the guests of a guest run, and its maps: made anew at each of the
//! guest's VMRUNs, so that they can only be bounded.

use super::{instructions, opened};
use crate::maps::{self, Map};
use crate::vcpu::{ALWAYS_EXCEPTIONS, ALWAYS_MISC1};
use crate::vmcb::{VIRTUAL_LOADS, Vmcb, int_ctl};
use core::mem::offset_of;
use paging::Nested;
use paging::audit::Outline;
use vendor::audit::{Finding, InnerTables};

const WORD: usize = 8;

/// Where they are, and by what they may run.
#[derive(Clone, Copy, Debug)]
pub struct Inner {
    /// Physical address of the control block.
    pub vmcb: u64,
    /// Its address space.
    pub asid: u32,
    /// Physical addresses of its maps of MSRs and ports.
    pub maps: (u64, u64),
    /// Physical addresses, first and behind the last, of the frames of its nested tables.
    pub frames: (u64, u64),
    /// Physical address of the guest's own nested tables.
    pub nested_root: u64,
}

impl Inner {
    /// How many parts there are.
    pub const PARTS: u32 = 3;

    /// The tables by which it runs now, if they are the host's for it.
    pub(super) fn tables(&self, word: impl Fn(u64) -> u64) -> Option<InnerTables> {
        let root = word(self.vmcb + offset_of!(Vmcb, nested_cr3) as u64);
        let is_frame = (self.frames.0..self.frames.1).contains(&root);
        is_frame.then(|| InnerTables { outline: Outline::new(Nested, root), frames: self.frames })
    }

    /// Looks at one. `open`: whether a bit of a map of MSRs is open in any of the guest's;
    /// `pm_timer`: as in [`maps::fill_ports`], of the guest's.
    pub(super) fn audit(
        &self,
        part: u32,
        open: impl Fn(usize) -> bool,
        pm_timer: Option<u16>,
        word: impl Fn(u64) -> u64,
    ) -> Result<(), Finding> {
        match part {
            0 => self.audit_block(word),
            1 => self.audit_msrs(open, word),
            _ => self.audit_ports(pm_timer, word),
        }
    }

    fn audit_block(&self, word: impl Fn(u64) -> u64) -> Result<(), Finding> {
        let read = |at: usize| word(self.vmcb + at as u64);
        let events = u64::from(ALWAYS_EXCEPTIONS) | u64::from(ALWAYS_MISC1) << 32;
        // As the guest wants it for its own.
        let kept = offset_of!(Vmcb, int_ctl);
        let kept = opened(&word, self.vmcb, true, kept, int_ctl::V_GIF_ENABLE);
        let loads = offset_of!(Vmcb, other_virtualization);
        let loads = opened(&word, self.vmcb, true, loads, VIRTUAL_LOADS);
        let instructions = instructions(kept, loads);
        for (at, bits, right) in [
            (offset_of!(Vmcb, intercept_exceptions), events, events),
            (offset_of!(Vmcb, intercept_misc2), instructions, instructions),
            (offset_of!(Vmcb, int_ctl), int_ctl::VIRTUALIZED & !kept, 0),
            (offset_of!(Vmcb, msrpm_base), u64::MAX, self.maps.0),
            (offset_of!(Vmcb, iopm_base), u64::MAX, self.maps.1),
            (offset_of!(Vmcb, asid), 0xFFFF_FFFF, u64::from(self.asid)),
            (offset_of!(Vmcb, nested_control), u64::MAX, 1),
            (offset_of!(Vmcb, other_virtualization), u64::MAX, loads),
        ] {
            let found = read(at);
            if found & bits != right {
                return Err(Finding::Control { at: at as u16, found, bits, right });
            }
        }
        let at = offset_of!(Vmcb, nested_cr3);
        let found = read(at);
        if found != self.nested_root && !(self.frames.0..self.frames.1).contains(&found) {
            let right = self.nested_root;
            return Err(Finding::Control { at: at as u16, found, bits: u64::MAX, right });
        }
        Ok(())
    }

    fn audit_msrs(
        &self,
        open: impl Fn(usize) -> bool,
        word: impl Fn(u64) -> u64,
    ) -> Result<(), Finding> {
        let map = self.maps.0;
        match first_open(map, maps::MSR_BYTES, word, open) {
            None => Ok(()),
            Some(bit) => {
                let (msr, write) = maps::msr_of(bit);
                Err(Finding::Msr { map, msr, write, open: true })
            }
        }
    }

    fn audit_ports(&self, pm_timer: Option<u16>, word: impl Fn(u64) -> u64) -> Result<(), Finding> {
        let map = self.maps.1;
        let open = |bit| maps::open_ports(pm_timer).any(|port| usize::from(port) == bit);
        match first_open(map, maps::PORT_BYTES, word, open) {
            None => Ok(()),
            Some(bit) => Err(Finding::Port { map, port: bit as u32, open: true }),
        }
    }
}

/// The first bit of a map that is open and mustn't be.
fn first_open(
    map: u64,
    bytes: usize,
    word: impl Fn(u64) -> u64,
    may: impl Fn(usize) -> bool,
) -> Option<usize> {
    (0..bytes / WORD).find_map(|index| {
        let mut passes = !word(map + (index * WORD) as u64);
        while passes != 0 {
            let bit = index * WORD * 8 + passes.trailing_zeros() as usize;
            if !may(bit) {
                return Some(bit);
            }
            passes &= passes - 1;
        }
        None
    })
}

/// Is this bit of a map of MSRs open in any map of a vCPU that has its core to itself?
pub(super) fn in_any(bit: usize, completions_exit: bool, shared: bool) -> bool {
    let (msr, write) = maps::msr_of(bit);
    let opens = |map: &Map| {
        map.open(completions_exit, shared)
            .any(|open| open.msr == msr && if write { open.write } else { open.read })
    };
    Map::ALL.iter().any(opens)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vcpu::ALWAYS_MISC2;
    use std::collections::BTreeMap;

    const INNER: Inner = Inner {
        vmcb: 0x10_0000,
        asid: 2,
        maps: (0x20_0000, 0x30_0000),
        frames: (0x40_0000, 0x60_0000),
        nested_root: 0x70_0000,
    };
    const EOI: usize = 0x80B * 2 + 1;

    /// The block as it may run; both maps closed.
    fn right() -> BTreeMap<u64, u64> {
        let events = u64::from(ALWAYS_EXCEPTIONS) | u64::from(ALWAYS_MISC1) << 32;
        let block = [
            (0x08, events),
            (0x10, u64::from(ALWAYS_MISC2)),
            (0x40, INNER.maps.1),
            (0x48, INNER.maps.0),
            (0x58, 2),
            (0x90, 1),
            (0xB0, 0x41_0000),
        ];
        block.into_iter().map(|(at, value)| (INNER.vmcb + at, value)).collect()
    }

    fn look(part: u32, words: &BTreeMap<u64, u64>) -> Result<(), Finding> {
        let closed = |at: &u64| *at >= INNER.maps.0;
        let word = |at| words.get(&at).copied().unwrap_or(if closed(&at) { u64::MAX } else { 0 });
        INNER.audit(part, |bit| in_any(bit, false, false), Some(0x608), word)
    }

    #[test]
    fn a_block_that_may_run_is_right() {
        let mut own = right();
        (0..Inner::PARTS).for_each(|part| assert_eq!(look(part, &own), Ok(())));
        own.insert(INNER.vmcb + 0xB0, INNER.nested_root);
        assert_eq!(look(0, &own), Ok(()), "without nested tables of the guest's");
    }

    #[test]
    fn what_the_cpu_keeps_for_it_needs_no_exit() {
        let open = |at: u64, bit: u64, misc2: u64| {
            let mut words = right();
            words.insert(INNER.vmcb + at, bit);
            *words.get_mut(&(INNER.vmcb + 0x10)).unwrap() &= !misc2;
            look(0, &words)
        };
        assert_eq!(open(0x60, 1 << 25 | 1 << 9, 3 << 4), Ok(()), "the virtual GIF");
        assert_eq!(open(0xB8, 2, 3 << 2), Ok(()), "VMLOAD and VMSAVE");
        assert!(open(0x60, 1 << 9, 3 << 4).is_err(), "the flag isn't virtual");
        assert!(open(0x60, 1 << 25, 3 << 2).is_err());
        assert!(open(0xB8, 2, 3 << 4).is_err());
        assert!(open(0xB8, 3, 3 << 2).is_err());
        assert!(open(0xB8, 2, 1 << 13).is_err(), "XSETBV");
    }

    #[test]
    fn the_tables_are_those_that_begin_in_its_frames() {
        let tables = |root| INNER.tables(|at| if at == INNER.vmcb + 0xB0 { root } else { 0 });
        assert!(tables(INNER.nested_root).is_none(), "its own");
        assert!(tables(INNER.frames.1).is_none());
        assert_eq!(tables(INNER.frames.0).map(|tables| tables.frames), Some(INNER.frames));
    }

    #[test]
    fn each_word_matters() {
        for (at, wrong) in [
            (0x08, u64::from(ALWAYS_EXCEPTIONS)),
            (0x10, 0),
            (0x40, INNER.maps.0),
            (0x48, 0x1000),
            (0x58, 1),
            (0x60, 1 << 31),
            (0x90, 3),
            (0xB0, 0x60_0000),
            (0xB0, 0x3F_F000),
            (0xB8, 1),
        ] {
            let mut words = right();
            words.insert(INNER.vmcb + at, wrong);
            let found = look(0, &words);
            assert!(
                matches!(found, Err(Finding::Control { at: told, .. }) if u64::from(told) == at),
                "{at:#x}: {found:?}"
            );
        }
    }

    #[test]
    fn maps_open_what_the_guest_itself_may_have() {
        let open = |map: u64, bit: usize| {
            let mut words = right();
            words.insert(map + (bit / 64 * 8) as u64, !(1 << (bit % 64)));
            words
        };
        assert_eq!(look(1, &open(INNER.maps.0, EOI)), Ok(()), "EOI");
        let icr = Finding::Msr { map: INNER.maps.0, msr: 0x830, write: true, open: true };
        assert_eq!(look(1, &open(INNER.maps.0, 0x830 * 2 + 1)), Err(icr));
        (0x608..0x60C).for_each(|port| assert_eq!(look(2, &open(INNER.maps.1, port)), Ok(())));
        for port in [0x80, 0x607, 0x60C] {
            let found = Finding::Port { map: INNER.maps.1, port: port as u32, open: true };
            assert_eq!(look(2, &open(INNER.maps.1, port)), Err(found));
        }
    }
}
