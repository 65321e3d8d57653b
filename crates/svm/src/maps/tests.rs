//! The exact lists of what is open, written down once more.

use super::*;
use delivery::Mode;
use std::collections::BTreeMap;

/// SPEC_CTRL and PRED_CMD, SYSENTER, FLUSH_CMD, PAT, STAR to SFMASK, FS to TSC_AUX: the first of
/// each row, and how many.
const STATE: [(u32, u32); 6] =
    [(0x48, 2), (0x174, 3), (0x10B, 1), (0x277, 1), (0xC000_0081, 4), (0xC000_0100, 4)];

/// What is open in a map besides: reads, writes.
fn apic(map: Map, completions_exit: bool, shared: bool) -> BTreeMap<u32, (bool, bool)> {
    let (r, w, rw) = ((true, false), (false, true), (true, true));
    let mut open = BTreeMap::new();
    if map == Map::EliTimer || !shared && !matches!(map, Map::Hidden | Map::Posted) {
        open.insert(0x839, r);
    }
    match map {
        Map::Injection | Map::Hidden => {}
        Map::Eli | Map::EliTimer => {
            open.insert(0x808, rw);
            if map == Map::EliTimer {
                open.insert(0x838, w);
            }
            if !completions_exit {
                open.insert(0x80B, w);
            }
        }
        Map::Passthrough | Map::Periodic | Map::Posted => {
            open.extend([(0x808, rw), (0x80A, r), (0x80B, w), (0x83F, w)]);
            open.extend((0x810..=0x827).map(|msr| (msr, r)));
            let timer = if map == Map::Passthrough { rw } else { r };
            if map != Map::Posted {
                open.extend([(0x838, timer), (0x83E, timer)]);
            }
        }
    }
    open
}

/// The bits of a map by registers, as the manual lays them out (APM vol. 2, table 15-9).
fn told(map: &[u8; MSR_BYTES]) -> BTreeMap<u32, (bool, bool)> {
    let mut open = BTreeMap::new();
    for (base, first) in [(0, 0), (0x800, 0xC000_0000), (0x1000, 0xC001_0000u32)] {
        for n in 0..0x2000 {
            let two = map[base + n / 4] >> (2 * (n % 4)) & 3;
            if two != 3 {
                open.insert(first + n as u32, (two & 1 == 0, two & 2 == 0));
            }
        }
    }
    assert!(map[0x1800..].iter().all(|b| *b == 0xFF), "reserved");
    open
}

#[test]
fn exactly_these_msrs_are_open() {
    // That of posted mode is VMX's, and the list is the same crate's.
    for map in Map::OF_VMX {
        for (completions_exit, shared) in
            [(false, false), (false, true), (true, false), (true, true)]
        {
            let mut expected = apic(map, completions_exit, shared);
            let state = STATE.into_iter().flat_map(|(first, n)| first..first + n);
            expected.extend(state.map(|msr| (msr, (true, true))));
            expected.insert(0x1D9, (true, false));
            let mut bits = [0; MSR_BYTES];
            fill_msrs(&mut bits, map.open(completions_exit, shared));
            assert_eq!(told(&bits), expected, "{map:?} {completions_exit} {shared}");
            let listed: Vec<_> = map.open(completions_exit, shared).collect();
            assert_eq!(listed.len(), expected.len(), "each once");
        }
    }
}

/// The count of the core's timer: where the core's timer is the guest's, and it has such a
/// register.
#[test]
fn the_timers_count_is_read_without_an_exit_where_it_is_the_guests() {
    for map in Map::ALL {
        for (completions_exit, shared) in
            [(false, false), (false, true), (true, false), (true, true)]
        {
            let open = map.open(completions_exit, shared).find(|open| open.msr == 0x839);
            let read = Open { msr: 0x839, read: true, write: false };
            let guests = map == Map::EliTimer || !shared && map != Map::Hidden;
            assert_eq!(open, guests.then_some(read));
        }
    }
}

#[test]
fn exactly_the_pm_timer_is_open() {
    let open = |pm_timer| {
        let mut map = [0; PORT_BYTES];
        fill_ports(&mut map, pm_timer);
        (0..PORT_BYTES * 8).filter(|n| map[n / 8] >> (n % 8) & 1 == 0).collect::<Vec<_>>()
    };
    assert_eq!(open(Some(0x608)), [0x608, 0x609, 0x60A, 0x60B]);
    assert_eq!(open(None), []);
    assert_eq!(open(Some(0xFFFE)), [0xFFFE]);
}

#[test]
fn each_situation_has_its_map() {
    let of = |mode, timer_open| Map::of(mode, timer_open, false, true);
    assert_eq!(of(Mode::Injection, true), Map::Injection);
    assert_eq!(of(Mode::Eli, true), Map::Eli);
    assert_eq!(of(Mode::Passthrough, true), Map::Passthrough);
    assert_eq!(of(Mode::Passthrough, false), Map::Periodic);
    assert_eq!(of(Mode::Eli, false), Map::Eli);
    assert_eq!(Map::of(Mode::Eli, true, true, true), Map::EliTimer);
    assert_eq!(Map::of(Mode::Injection, true, true, true), Map::Injection);
    assert_eq!(Map::of(Mode::Passthrough, false, true, true), Map::Periodic);
    for mode in [Mode::Injection, Mode::Eli, Mode::Passthrough] {
        for timer_open in [false, true] {
            assert_eq!(Map::of(mode, timer_open, true, false), Map::Hidden);
        }
    }
    assert_eq!(Map::ALL.map(|m| m as usize), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn what_has_no_bit_exits() {
    assert_eq!(msr_bit(0x2000), None);
    assert_eq!(msr_bit(0x4000_0000), None);
    assert_eq!(msr_bit(0xC000_2000), None);
    assert_eq!(msr_bit(0xC001_2000), None);
    assert_eq!(msr_bit(0xC001_1FFF), Some(0x1800 * 8 - 2));
}
