//! Whose an exit is.

use super::*;
use crate::control::Control;
use crate::owner::{Owner, PermissionMaps};
use svm::vmcb::{exit, misc1};

/// Maps that are closed where it says so.
struct Closed {
    port: Option<u32>,
    msr: Option<usize>,
}

impl PermissionMaps for Closed {
    fn ports(&self, at: u32) -> u16 {
        let bit = |n: u32| u16::from(self.port == Some(at * 8 + n)) << n;
        (0..16).map(bit).fold(0, |bits, bit| bits | bit)
    }

    fn msrs(&self, at: u32) -> u8 {
        let bit = |n: u32| u8::from(self.msr == Some((at * 8 + n) as usize)) << n;
        (0..8).map(bit).fold(0, |bits, bit| bits | bit)
    }
}

const OPEN: Closed = Closed { port: None, msr: None };

fn left(code: u32) -> Box<Vmcb> {
    let mut v = zeroed();
    v.exit_code = code.into();
    v
}

fn all() -> Control {
    let mut v = taken();
    v.as_mut_bytes()[..0x18].fill(0xFF);
    let mut control = Control::default();
    control.copy(&InMemory::of(&v), 0, &offer());
    control
}

#[test]
fn what_l1_asked_for_is_its_own() {
    let (all, none) = (all(), Control::default());
    for code in (0..0xC0).filter(|code| ![exit::NMI, 0x52, exit::MSR, exit::IOIO].contains(code)) {
        let seen = if code == exit::CR0_SELECTIVE { 0x10 } else { code };
        assert_eq!(all.owner(&left(code), 0, &OPEN, || false), Owner::L1(seen), "{code:#x}");
        assert_eq!(none.owner(&left(code), 0, &OPEN, || false), Owner::Host, "{code:#x}");
    }
    assert_eq!(all.owner(&left(exit::NMI), 0, &OPEN, || false), Owner::Host, "the host's kick");
    assert_eq!(all.owner(&left(0x52), 0, &OPEN, || false), Owner::Host, "a machine check");
    let shutdown = left(exit::SHUTDOWN);
    assert_eq!(all.owner(&shutdown, 0, &OPEN, || true), Owner::Host, "one that shut L2 down");
    assert_eq!(none.owner(&left(exit::INVALID), 0, &OPEN, || false), Owner::L1(exit::INVALID));
    assert_eq!(all.owner(&left(0xC0), 0, &OPEN, || false), Owner::Host);
    assert_eq!(all.owner(&left(exit::NPF), 0, &OPEN, || false), Owner::Tables);
    assert_eq!(none.owner(&left(exit::NPF), 0, &OPEN, || false), Owner::Host);
}

/// Each bit has its code, and no other.
#[test]
fn bits_and_codes_go_together() {
    for bit in 0..0xC0_usize {
        let mut v = zeroed();
        v.as_mut_bytes()[bit / 8] = 1 << (bit % 8);
        let mut control = Control::default();
        control.copy(&InMemory::of(&v), 0, &offer());
        // Reads of DRs stand between writes of CRs and of DRs, in the block as in the codes.
        for code in 0..0xC0 {
            assert_eq!(control.has(code), code as usize == bit, "bit {bit}, code {code:#x}");
        }
    }
}

#[test]
fn a_write_to_cr0_may_be_selective() {
    let mut control = Control::default();
    control.intercepts[1] = u64::from(misc1::CR0_SELECTIVE) << 32;
    let exit = left(exit::CR0_SELECTIVE);
    assert_eq!(control.owner(&exit, 0, &OPEN, || false), Owner::L1(exit::CR0_SELECTIVE));
    control.intercepts[0] = 1 << 16;
    assert_eq!(control.owner(&exit, 0, &OPEN, || false), Owner::L1(0x10));
}

proptest! {
    /// Any port of the access that is closed makes it L1's: those beyond the last one, too.
    #[test]
    fn ports_are_l1s_by_its_map(port: u16, size in prop_oneof![Just(1_u32), Just(2), Just(4)],
                                off in -4_i32..8) {
        let mut v = left(exit::IOIO);
        v.exit_info1 = u64::from(port) << 16 | u64::from(size) << 4;
        let closed = (i32::from(port) + off).max(0) as u32;
        let maps = Closed { port: Some(closed), msr: None };
        let hit = (u32::from(port)..u32::from(port) + size).contains(&closed);
        let expected = if hit { Owner::L1(exit::IOIO) } else { Owner::Host };
        prop_assert_eq!(all().owner(&v, 0, &maps, || false), expected);
        prop_assert_eq!(Control::default().owner(&v, 0, &maps, || false), Owner::Host);
    }

    #[test]
    fn msrs_are_l1s_by_its_map(range in 0_usize..3, n in 0_u32..0x2000, write: bool, off in 0_usize..2) {
        let msr = [0, 0xC000_0000, 0xC001_0000][range] + n;
        let mut v = left(exit::MSR);
        v.exit_info1 = write.into();
        let bit = range * 0x4000 + n as usize * 2 + off;
        let maps = Closed { port: None, msr: Some(bit) };
        let hit = off == usize::from(write);
        let expected = if hit { Owner::L1(exit::MSR) } else { Owner::Host };
        prop_assert_eq!(all().owner(&v, msr, &maps, || false), expected);
    }

    #[test]
    fn msrs_without_a_bit_are_closed(msr: u32) {
        let has = [0, 0xC000_0000, 0xC001_0000].into_iter().any(|first: u32| msr.wrapping_sub(first) < 0x2000);
        let owner = all().owner(&left(exit::MSR), msr, &OPEN, || false);
        prop_assert_eq!(owner, if has { Owner::Host } else { Owner::L1(exit::MSR) });
    }
}
