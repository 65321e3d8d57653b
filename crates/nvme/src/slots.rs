//! The commands under way, the operations that they are of, and how many each disk may have.
//!
//! A command's identifier is its slot and a number that grows each time the slot is used: a
//! completion that comes twice, or is of no command, is told apart from one that is waited for, but
//! for one in 256 that comes just that many uses late.
//!
//! Guarantees: each operation ends once, when all its commands have; a disk always gets its
//! guarantee of slots, whatever the others ask for; beyond it, the slots are whose they come.

use alloc::boxed::Box;
use blk::{Failure, Token};

use crate::prp::MOST_CUTS;

/// Commands under way at most: one entry of a ring stays free, so that a full one isn't taken for
/// an empty one (3.3.1.3), and no identifier is FFFFh, which means none.
pub const SLOTS: usize = 255;
/// Disks of one controller at most.
pub const MOST_DISKS: usize = 16;
/// No bounce buffer.
pub const NO_BOUNCE: u8 = u8::MAX;

const _: () = assert!(MOST_DISKS * MOST_CUTS <= SLOTS && SLOTS < 256);

/// What an operation is, as its first command's slot keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Whose.
    pub disk: u16,
    /// Which.
    pub token: Token,
    /// How it ended.
    pub result: Result<(), Failure>,
    /// The buffer that its data was copied to or comes from; [`NO_BOUNCE`].
    pub bounce: u8,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Of its identifier.
    uses: u8,
    /// A command is under way.
    waits: bool,
    /// The slot of the operation's first command.
    first: u8,
    /// In the first: commands that aren't over. Its own may be over before.
    left: u8,
    /// When it takes too long.
    until: u64,
    operation: Ended,
}

/// All slots.
#[derive(Debug)]
pub struct Slots {
    slots: Box<[Slot]>,
    free: Box<[u8]>,
    free_count: usize,
    /// Slots of each disk, and the sum of what is missing to their guarantees.
    used: [u16; MOST_DISKS],
    disks: usize,
    /// Slots that each disk has for itself.
    guarantee: usize,
    reserved: usize,
}

/// Slots for commands of one operation, handed out.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    first: u8,
    given: bool,
}

impl Slots {
    /// All free.
    pub fn new() -> Self {
        let token = Token::from_bits(0);
        let operation = Ended { disk: 0, token, result: Ok(()), bounce: NO_BOUNCE };
        let slot = Slot { uses: 0, waits: false, first: 0, left: 0, until: 0, operation };
        Self {
            slots: (0..SLOTS).map(|_| slot).collect(),
            free: (0..SLOTS as u8).rev().collect(),
            free_count: SLOTS,
            used: [0; MOST_DISKS],
            disks: 0,
            guarantee: 0,
            reserved: 0,
        }
    }

    /// One more disk. Boot only: nothing is under way.
    pub fn add_disk(&mut self) -> Option<u16> {
        if self.disks == MOST_DISKS {
            return None;
        }
        self.disks += 1;
        // Half of all are shared out so, and an operation always fits.
        self.guarantee = (SLOTS / (2 * self.disks)).max(MOST_CUTS);
        self.reserved = self.disks * self.guarantee;
        Some((self.disks - 1) as u16)
    }

    /// Commands under way, or whose operation isn't reported.
    pub fn used(&self) -> usize {
        SLOTS - self.free_count
    }

    /// Whether this disk may have so many more.
    #[inline]
    pub fn has_room(&self, disk: u16, count: usize) -> bool {
        let Some(used) = self.used.get(usize::from(disk)) else { return false };
        let own = self.guarantee.saturating_sub((*used).into());
        count <= self.free_count && count.saturating_sub(own) <= self.free_count - self.reserved
    }

    /// An operation of so many commands, for which there is room. Nothing if there isn't.
    #[inline]
    pub fn begin(&mut self, operation: Ended, count: usize) -> Option<Operation> {
        if count == 0 || !self.has_room(operation.disk, count) {
            return None;
        }
        let first = self.next_slot()?;
        let slot = self.slots.get_mut(usize::from(first))?;
        slot.operation = operation;
        slot.left = count as u8;
        Some(Operation { first, given: false })
    }

    /// The slot that is taken next.
    #[inline]
    pub fn next_slot(&self) -> Option<u8> {
        self.free.get(self.free_count.checked_sub(1)?).copied()
    }

    /// The identifier of the operation's next command, in the slot that is next.
    #[inline]
    pub fn next(&mut self, operation: &mut Operation, disk: u16, until: u64) -> Option<u16> {
        let place = self.next_slot()?;
        debug_assert!(operation.given || place == operation.first);
        let slot = self.slots.get_mut(usize::from(place))?;
        self.free_count -= 1;
        operation.given = true;
        slot.first = operation.first;
        slot.waits = true;
        slot.uses = slot.uses.wrapping_add(1);
        slot.until = until;
        let id = u16::from(slot.uses) << 8 | u16::from(place);
        if let Some(used) = self.used.get_mut(usize::from(disk)) {
            self.reserved -= usize::from(usize::from(*used) < self.guarantee);
            *used += 1;
        }
        Some(id)
    }

    /// Of its commands so many won't come after all, which fails it: it ends when the others do.
    /// False: none of them was handed out, and there is no operation.
    #[cold]
    pub fn give_up(&mut self, operation: &Operation, count: usize) -> bool {
        if operation.given
            && let Some(slot) = self.slots.get_mut(usize::from(operation.first))
        {
            slot.left = slot.left.saturating_sub(count as u8);
            slot.operation.result = Err(Failure::Io);
        }
        operation.given
    }

    /// A command's completion. `Err`: nobody waits for it. `Ok(Some)`: its operation is over.
    #[inline]
    pub fn complete(
        &mut self,
        id: u16,
        result: Result<(), Failure>,
    ) -> Result<Option<Ended>, Unknown> {
        let place = id as u8;
        let slot = self.slots.get(usize::from(place)).ok_or(Unknown)?;
        if !slot.waits || slot.uses != (id >> 8) as u8 {
            return Err(Unknown);
        }
        Ok(self.end(place, result))
    }

    /// Ends any command that is under way, with a failure: only when the controller has let go of
    /// all. True if there was one.
    pub fn fail_at(&mut self, place: u8) -> (bool, Option<Ended>) {
        match self.slots.get(usize::from(place)) {
            Some(slot) if slot.waits => (true, self.end(place, Err(Failure::Io))),
            _ => (false, None),
        }
    }

    #[inline]
    fn end(&mut self, place: u8, result: Result<(), Failure>) -> Option<Ended> {
        let slot = self.slots.get_mut(usize::from(place))?;
        slot.waits = false;
        let leader = slot.first;
        let first = self.slots.get_mut(usize::from(leader))?;
        first.operation.result = first.operation.result.and(result);
        first.left = first.left.saturating_sub(1);
        let over = first.left == 0;
        let ended = first.operation;
        // The first one's slot holds the operation, so it is given back last.
        if place != leader {
            self.give_back(place, ended.disk);
        }
        if over {
            self.give_back(leader, ended.disk);
        }
        over.then_some(ended)
    }

    #[inline]
    fn give_back(&mut self, place: u8, disk: u16) {
        if let Some(free) = self.free.get_mut(self.free_count) {
            *free = place;
            self.free_count += 1;
        }
        if let Some(used) = self.used.get_mut(usize::from(disk)) {
            *used = used.saturating_sub(1);
            self.reserved += usize::from(usize::from(*used) < self.guarantee);
        }
    }

    /// Whether a command has been under way for too long.
    pub fn is_late(&self, now: u64) -> bool {
        self.slots.iter().any(|slot| slot.waits && (now.wrapping_sub(slot.until) as i64) >= 0)
    }
}

/// A completion of no command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unknown;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn operation(disk: u16, bits: u64) -> Ended {
        Ended { disk, token: Token::from_bits(bits), result: Ok(()), bounce: NO_BOUNCE }
    }

    fn ask(slots: &mut Slots, disk: u16, bits: u64, count: usize) -> Option<Vec<u16>> {
        let mut begun = slots.begin(operation(disk, bits), count)?;
        Some((0..count).map(|_| slots.next(&mut begun, disk, 0).unwrap()).collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

        /// Whatever the disks ask for: each operation ends once, completions that are nobody's are
        /// told, and a disk below its guarantee gets what it asks for.
        #[test]
        fn operations_end_once(
            disks in 1usize..=MOST_DISKS,
            steps in proptest::collection::vec(
                (any::<bool>(), 0u16..16, 1usize..=MOST_CUTS, any::<u16>(), any::<bool>()), 1..300),
        ) {
            let mut slots = Slots::new();
            for disk in 0..disks {
                prop_assert_eq!(Some(disk as u16), slots.add_disk());
            }
            let mut left: Vec<(u16, u64)> = Vec::new();
            let mut used = [0; MOST_DISKS];
            let mut over: Vec<u16> = Vec::new();
            for (number, (asks, disk, count, pick, fails)) in steps.into_iter().enumerate() {
                let disk = disk % disks as u16;
                let bits = number as u64;
                if asks {
                    let guaranteed = used[usize::from(disk)] + count <= slots.guarantee;
                    match ask(&mut slots, disk, bits, count) {
                        Some(ids) => {
                            used[usize::from(disk)] += count;
                            left.extend(ids.into_iter().map(|id| (id, bits)));
                        }
                        None => prop_assert!(!guaranteed, "disk {} has {:?}", disk, used),
                    }
                } else if !left.is_empty() {
                    let (id, bits) = left.swap_remove(usize::from(pick) % left.len());
                    let result = if fails { Err(Failure::Io) } else { Ok(()) };
                    let ended = slots.complete(id, result).unwrap();
                    let last = !left.iter().any(|(_, other)| *other == bits);
                    prop_assert_eq!(ended.map(|ended| ended.token.bits()), last.then_some(bits));
                    if let Some(ended) = ended {
                        prop_assert!(!fails || ended.result.is_err());
                        // All its slots, the first one's too, are back now.
                        used[usize::from(ended.disk)] =
                            usize::from(slots.used[usize::from(ended.disk)]);
                    }
                    over.push(id);
                }
                for id in over.iter().rev().take(20) {
                    if !left.iter().any(|(other, _)| other == id) {
                        prop_assert_eq!(Err(Unknown), slots.complete(*id, Ok(())));
                    }
                }
                let sum: usize = (0..disks)
                    .map(|d| slots.guarantee.saturating_sub(slots.used[d].into())).sum();
                prop_assert_eq!(sum, slots.reserved);
                prop_assert!(slots.reserved <= slots.free_count);
            }
            for place in 0..SLOTS as u8 {
                slots.fail_at(place);
            }
            prop_assert_eq!(0, slots.used());
        }
    }

    #[test]
    fn what_is_given_up_ends_with_the_commands_that_it_has() {
        let mut slots = Slots::new();
        slots.add_disk();
        let mut begun = slots.begin(operation(0, 7), 4).unwrap();
        assert!(!slots.give_up(&begun, 4));
        assert_eq!(0, slots.used());
        let mut begun_again = slots.begin(operation(0, 8), 4).unwrap();
        let [first, second] = [(); 2].map(|()| slots.next(&mut begun_again, 0, 0).unwrap());
        assert!(slots.give_up(&begun_again, 2));
        assert_eq!(Ok(None), slots.complete(second, Ok(())));
        let ended = Ended { result: Err(Failure::Io), ..operation(0, 8) };
        assert_eq!(Ok(Some(ended)), slots.complete(first, Ok(())));
        assert_eq!(0, slots.used());
        // The first one's place isn't marked by what never began.
        begun = slots.begin(operation(0, 9), 1).unwrap();
        let id = slots.next(&mut begun, 0, 0).unwrap();
        assert_eq!(Ok(Some(operation(0, 9))), slots.complete(id, Ok(())));
    }

    #[test]
    fn one_disk_may_have_nearly_all() {
        let mut slots = Slots::new();
        slots.add_disk();
        let mut count = 0;
        while ask(&mut slots, 0, 1, 1).is_some() {
            count += 1;
        }
        assert_eq!(SLOTS, count);
    }

    #[test]
    fn late_is_what_waits_too_long() {
        let mut slots = Slots::new();
        slots.add_disk();
        let mut begun = slots.begin(operation(0, 1), 1).unwrap();
        let id = slots.next(&mut begun, 0, 100).unwrap();
        assert!(!slots.is_late(99) && slots.is_late(100));
        slots.complete(id, Ok(())).unwrap().unwrap();
        assert!(!slots.is_late(100));
    }
}
