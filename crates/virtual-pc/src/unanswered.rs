//! Accesses to memory and ports that nothing answers: harmless one by one, but a guest that loops
//! on one of them hangs, and nobody would know at what.
//!
//! Guarantees constant work and constant memory however a guest goes about it: a few places are
//! counted (by Misra and Gries), so that one that makes up a fifth of all accesses is found, and a
//! sweep over many places, as kernels do it at their start, is not. A count told is at most the
//! true one.

/// Places counted at a time.
const PLACES: usize = 4;
/// Accesses to one place in a second that are a loop.
const LOOP: u64 = 1000;
/// Written by firmware to show how far it is, and by kernels to pass a microsecond: nobody waits
/// for an answer.
const DELAY: Place = Place::Port(0x80);

/// Where nothing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A guest-physical address.
    Memory(u64),
    /// An I/O port.
    Port(u16),
}

/// One vCPU's accesses of about a second.
#[derive(Clone, Debug, Default)]
pub struct Unanswered {
    counted: [Option<Looped>; PLACES],
    /// TSC of the first of them.
    since: u64,
}

/// A place that was used again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Looped {
    /// Where.
    pub place: Place,
    /// By writes, else by reads.
    pub write: bool,
    /// At least so often.
    pub times: u64,
}

impl Unanswered {
    /// Counts an access at `now`, a TSC that has `second` ticks a second. When a second is over,
    /// gives what was looped on in it.
    pub fn note(&mut self, place: Place, write: bool, now: u64, second: u64) -> Option<Looped> {
        if place == DELAY {
            return None;
        }
        let first = self.counted.iter().all(Option::is_none);
        if first {
            self.since = now;
        }
        self.count(place, write);
        if now.wrapping_sub(self.since) < second {
            return None;
        }
        let counted = core::mem::take(&mut self.counted);
        let most = counted.into_iter().flatten().max_by_key(|looped| looped.times);
        most.filter(|looped| looped.times >= LOOP)
    }

    fn count(&mut self, place: Place, write: bool) {
        let same = |looped: &&mut Looped| looped.place == place && looped.write == write;
        if let Some(looped) = self.counted.iter_mut().flatten().find(same) {
            looped.times += 1;
        } else if let Some(free) = self.counted.iter_mut().find(|slot| slot.is_none()) {
            *free = Some(Looped { place, write, times: 1 });
        } else {
            for slot in &mut self.counted {
                *slot = slot
                    .map(|looped| Looped { times: looped.times - 1, ..looped })
                    .filter(|looped| looped.times > 0);
            }
        }
    }
}

impl core::fmt::Display for Looped {
    /// As in "150,000 reads at port 0x64, nothing there".
    fn fmt(&self, f: &mut core::fmt::Formatter) -> core::fmt::Result {
        let mut left = 1;
        while self.times / left >= 1000 {
            left *= 1000;
        }
        write!(f, "{}", self.times / left)?;
        while left > 1 {
            left /= 1000;
            write!(f, ",{:03}", self.times / left % 1000)?;
        }
        f.write_str(if self.write { " writes at " } else { " reads at " })?;
        match self.place {
            Place::Memory(address) => write!(f, "{address:#x}")?,
            Place::Port(port) => write!(f, "port {port:#x}")?,
        }
        f.write_str(", nothing there")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000;
    const POLLED: Place = Place::Port(0x64);

    #[test]
    fn a_loop_is_told_once_a_second_with_its_count() {
        let mut unanswered = Unanswered::default();
        let mut told = Vec::new();
        for access in 0..4_000_u64 {
            // The TSC may be about to wrap.
            let now = (access * 500).wrapping_sub(700_000);
            told.extend(unanswered.note(POLLED, false, now, SECOND).map(|looped| (access, looped)));
        }
        let looped = |times| Looped { place: POLLED, write: false, times };
        assert_eq!(told, [(2_000, looped(2_001))]);
        let told = unanswered.note(POLLED, false, 4_000 * 500 - 700_000 + 10, SECOND);
        assert_eq!(told, None, "the next second began at 2,001");
        let told = unanswered.note(POLLED, false, 4_001 * 500 - 700_000, SECOND);
        assert_eq!(told, Some(looped(2_001)));
    }

    #[test]
    fn what_is_no_loop_is_not_told() {
        // Written to pass the time.
        let mut unanswered = Unanswered::default();
        for access in 0..10_000_u64 {
            assert_eq!(unanswered.note(Place::Port(0x80), true, access * 500, SECOND), None);
        }
        // A sweep over all ports, three times each, in a little over a second.
        let mut unanswered = Unanswered::default();
        for access in 0..3 * 65_536_u64 {
            let place = Place::Port((access / 3) as u16);
            assert_eq!(unanswered.note(place, false, access * 6, SECOND), None);
        }
        // Too few a second.
        let mut unanswered = Unanswered::default();
        for access in 0..10_000_u64 {
            assert_eq!(unanswered.note(POLLED, true, access * 1_004, SECOND), None);
        }
        let mut unanswered = Unanswered::default();
        let told = (0..=1_000_u64)
            .filter_map(|access| unanswered.note(POLLED, true, access * 1_000, SECOND))
            .collect::<Vec<_>>();
        assert_eq!(told, [Looped { place: POLLED, write: true, times: 1_001 }]);
    }

    /// Each access to a place that isn't counted takes one from all that are.
    #[test]
    fn what_was_counted_before_the_loop_makes_room_for_it() {
        let mut unanswered = Unanswered::default();
        for place in (0..4).flat_map(|port| [Place::Port(port); 3]) {
            assert_eq!(unanswered.note(place, false, 0, SECOND), None);
        }
        for _ in 0..1_002 {
            assert_eq!(unanswered.note(POLLED, false, 0, SECOND), None);
        }
        // Three made room.
        let told = unanswered.note(POLLED, false, SECOND, SECOND);
        assert_eq!(told, Some(Looped { place: POLLED, write: false, times: 1_000 }));
    }

    #[test]
    fn reads_and_writes_ports_and_addresses_are_places_of_their_own() {
        let mut unanswered = Unanswered::default();
        for _ in 0..2_000 {
            for (place, write) in [
                (Place::Port(0x81), true),
                (Place::Memory(0x80), false),
                (Place::Port(0x81), false),
                (Place::Port(0x81), false),
            ] {
                assert_eq!(unanswered.note(place, write, 0, SECOND), None);
            }
        }
        let told = unanswered.note(Place::Memory(0x80), false, SECOND, SECOND);
        assert_eq!(told, Some(Looped { place: Place::Port(0x81), write: false, times: 4_000 }));
    }

    #[test]
    fn sentences_have_their_thousands_apart() {
        let text = |place, write, times| Looped { place, write, times }.to_string();
        let memory = Place::Memory(0xFED0_0000);
        assert_eq!(text(memory, false, 150_000), "150,000 reads at 0xfed00000, nothing there");
        assert_eq!(text(POLLED, true, 1_002_003), "1,002,003 writes at port 0x64, nothing there");
        assert_eq!(text(POLLED, true, 1_000), "1,000 writes at port 0x64, nothing there");
        assert_eq!(text(POLLED, true, 999), "999 writes at port 0x64, nothing there");
    }

    proptest! {
        #[test]
        fn more_than_a_fifth_is_found_and_never_told_too_often(
            others in proptest::collection::vec(0_u16..40, 0..3_000),
        ) {
            // Between any four others the place comes once more, and 1,000 times at the end.
            let mut unanswered = Unanswered::default();
            let mut true_count = 0;
            for (index, port) in others.iter().enumerate() {
                if index % 4 == 0 {
                    unanswered.note(POLLED, false, 0, SECOND);
                    true_count += 1;
                }
                unanswered.note(Place::Port(0x1000 + port), false, 0, SECOND);
            }
            for _ in 0..LOOP {
                unanswered.note(POLLED, false, 0, SECOND);
                true_count += 1;
            }
            let told = unanswered.note(POLLED, false, SECOND, SECOND).unwrap();
            prop_assert!(told.place == POLLED && told.times >= LOOP);
            prop_assert!(told.times <= true_count + 1);
        }
    }
}
