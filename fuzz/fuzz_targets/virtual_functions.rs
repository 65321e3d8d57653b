//! Virtual functions of a device whose configuration space may say anything: the capability is
//! found or not, in bounded work; what is switched on lies where there is room, each function on
//! its own routing id; when it fails, the functions are off. And the room for BARs, against every
//! place there is.
#![no_main]

use arbitrary::Arbitrary;
use fuzz::one_line;
use libfuzzer_sys::fuzz_target;
use machine_pci::nearest;
use sriov::{Above, Capability, Config};
use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

#[derive(Arbitrary, Debug)]
struct Input {
    /// Registers, and which of their bits can be written.
    registers: Vec<(u16, u32, u32)>,
    capability: Option<u8>,
    /// Sizes of BARs, as powers of two, with their low bits.
    bars: [(u8, u8); 6],
    initial: u32,
    placing: u32,
    device: u16,
    above: u8,
    count: u16,
    window: (u32, u32),
    taken: Vec<(u32, u16)>,
    near: u32,
}

struct Space {
    words: BTreeMap<u16, (u32, u32)>,
    accesses: Cell<usize>,
}

impl Config for Space {
    fn read(&self, offset: u16) -> u32 {
        assert!(offset.is_multiple_of(4) && offset < 0x1000, "{offset:#x}");
        self.accesses.set(self.accesses.get() + 1);
        self.words.get(&offset).map_or(0, |word| word.0)
    }

    fn write(&mut self, offset: u16, value: u32) {
        assert!(offset.is_multiple_of(4) && offset < 0x1000, "{offset:#x}");
        self.accesses.set(self.accesses.get() + 1);
        if let Some((word, mask)) = self.words.get_mut(&offset) {
            *word = *word & !*mask | value & *mask;
        }
    }
}

impl Input {
    fn space(&self) -> Space {
        let mut words = BTreeMap::new();
        if let Some(place) = self.capability {
            // Behind another one, so that the list is followed.
            let at = 0x100 + 4 * (u16::from(place) % 0x3A0);
            words.insert(0x100, (1 | u32::from(at) << 20, 0));
            let fixed = [(0, 0x10), (0x0C, self.initial), (0x14, self.placing), (0x1C, 0x553)];
            words.extend(fixed.map(|(offset, value)| (at + offset, (value, 0))));
            words.extend([0x08, 0x10, 0x20].map(|offset| (at + offset, (0, u32::MAX))));
            for (i, (size, flags)) in self.bars.iter().enumerate() {
                let mask = u32::MAX.checked_shl((size % 40).into()).unwrap_or(0) & !0xF;
                words.insert(at + 0x24 + 4 * i as u16, (u32::from(flags & 0xF), mask));
            }
        }
        for (offset, value, mask) in &self.registers {
            words.insert((offset & 0x3FF) << 2, (*value, *mask));
        }
        Space { words, accesses: Cell::new(0) }
    }
}

fn room(window: &Range<u64>, taken: &[Range<u64>], near: u64) {
    // Small enough to try every place.
    let small = |n: u64| n % 97;
    let taken: Vec<_> = taken
        .iter()
        .take(8)
        .map(|t| small(t.start)..small(t.start) + (t.end - t.start) % 9)
        .collect();
    let (window, near) = (small(window.start)..small(window.end), small(near));
    let (size, align) = (1 + near % 7, 1 << (window.start % 4));
    let free = |at: &u64| {
        window.start <= *at
            && at + size <= window.end
            && taken.iter().all(|t| t.is_empty() || *at >= t.end || at + size <= t.start)
    };
    let best = (0..100).filter(|at| at % align == 0).filter(free).map(|at| at.abs_diff(near)).min();
    let found = nearest(window.clone(), &taken, near, size, align);
    assert_eq!(found.map(|at| at.abs_diff(near)), best);
    assert!(found.is_none_or(|at| at % align == 0 && free(&at)));
}

fuzz_target!(|input: Input| {
    let window = u64::from(input.window.0)..u64::from(input.window.1);
    let mut taken: Vec<_> = input
        .taken
        .iter()
        .map(|(at, size)| u64::from(*at)..u64::from(*at) + u64::from(*size))
        .collect();
    room(&window, &taken, input.near.into());

    let mut space = input.space();
    let found = Capability::find(&space);
    assert!(space.accesses.get() <= 0x400);
    let Some(capability) = found else { return };
    let above = [Above::Root, Above::Port, Above::AriPort][usize::from(input.above) % 3];
    let count = if input.count & 1 == 0 { input.count % 9 } else { input.count };
    let before = taken.len();
    let place = |bytes, align: u64| {
        let at = nearest(window.clone(), &taken, input.near.into(), bytes, align)?;
        taken.push(at..at.checked_add(bytes)?);
        Some(at)
    };
    let waited = Cell::new(false);
    let result =
        capability.enable(&mut space, input.device, above, count, place, || waited.set(true));
    assert!(space.accesses.get() < 2000);
    let enabled = match result {
        Ok(enabled) => enabled,
        Err(refusal) => {
            assert!(!waited.get(), "nothing was switched on");
            return one_line(&refusal);
        }
    };
    let functions: BTreeSet<_> = enabled.functions.iter().collect();
    assert!(
        waited.get() && functions.len() == usize::from(count) && !functions.contains(&input.device)
    );
    assert!(enabled.functions.iter().all(|id| id >> 8 == input.device >> 8));
    assert!(above != Above::Port || enabled.functions.iter().all(|id| id & 0xFF < 8));
    let mut ends: Vec<_> = taken[before..].to_vec();
    assert_eq!(ends.len(), enabled.bars.len());
    for bar in &enabled.bars {
        assert!(bar.size.is_power_of_two() && bar.size >= 4096 && bar.address % bar.size == 0);
        let end = bar.address + bar.size * u64::from(count);
        assert!(window.start <= bar.address && end <= window.end && end <= 1 << 32);
    }
    ends.sort_by_key(|range| range.start);
    assert!(ends.windows(2).all(|pair| pair[0].end <= pair[1].start), "on each other");
});
