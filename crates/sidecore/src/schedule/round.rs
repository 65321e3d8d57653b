//! Turns that one scan finds: of queues that wait, in the order of their turns.
//!
//! Guarantees: each is the one that another scan would find, whatever came meanwhile to queues that
//! are polled. Virtual times only grow, and who has had its turn is the last of its VM: so a key
//! that was seen is the least that it can be, and whoever isn't here comes behind. Who changes
//! anything else ends the round: a kick, a queue that comes or goes, another share, a turn that
//! leaves something. There is none while one that was kicked waits for its turn out of order, be it
//! that its VM is at a limit.

use super::Key;

/// So many at most, a power of two; who comes behind them is for the next scan.
const ROOM: usize = 16;
/// Behind every other, of no VM.
const NOBODY: Waiting = Waiting { key: Key::MAX, vm: usize::MAX, queue: 0 };

/// A queue with the key that it had.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    pub key: Key,
    pub vm: usize,
    pub queue: usize,
}

#[derive(Clone, Debug)]
pub struct Round {
    queues: [Waiting; ROOM],
    /// Those from `next` on to this one are left.
    len: usize,
    next: usize,
    /// Those up to here had their turns, and are counted among those that aren't here.
    had: usize,
    /// Those up to here are of one VM.
    same: usize,
    /// VMs of which one fell behind, by bits; others may have the same one.
    fell: u64,
    /// The key of the first of those that aren't here, and its VM; the key of the first of another
    /// VM's.
    first: Key,
    vm: usize,
    second: Key,
}

impl Round {
    /// With none.
    pub const EMPTY: Round = Round {
        queues: [NOBODY; ROOM],
        len: 0,
        next: 0,
        had: 0,
        same: 0,
        fell: 0,
        first: Key::MAX,
        vm: usize::MAX,
        second: Key::MAX,
    };

    /// None is left.
    #[inline]
    pub const fn end(&mut self) {
        (self.len, self.next, self.had, self.same, self.fell) = (0, 0, 0, 0, 0);
    }

    /// A scan begins.
    #[inline]
    pub const fn begin(&mut self) {
        self.end();
        (self.first, self.vm, self.second) = (Key::MAX, usize::MAX, Key::MAX);
    }

    /// This one is polled, and isn't to have a turn of this round.
    #[inline]
    pub fn pass_over(&mut self, other: Waiting) {
        if other.key < self.first {
            if other.vm != self.vm {
                self.second = self.first;
            }
            (self.first, self.vm) = (other.key, other.vm);
        } else if other.vm != self.vm && other.key < self.second {
            self.second = other.key;
        }
    }

    /// The key of the first of those.
    #[inline]
    pub const fn first_of_others(&self) -> Key {
        self.first
    }

    /// This one waits. Who is found first comes first among equals.
    #[inline(always)]
    pub fn add(&mut self, key: Key, vm: usize, queue: usize) {
        let len = self.len;
        // They come in their order, mostly.
        if len == 0 || (len < ROOM && self.queues[len - 1].key <= key) {
            self.queues[len % ROOM] = Waiting { key, vm, queue };
            self.len = len + 1;
        } else {
            self.add_amid(key, vm, queue);
        }
    }

    #[inline(never)]
    fn add_amid(&mut self, key: Key, vm: usize, queue: usize) {
        let one = Waiting { key, vm, queue };
        let last = self.queues[ROOM - 1];
        if self.len < ROOM {
            self.len += 1;
        } else if last.key > one.key {
            self.pass_over(last);
        } else {
            return self.pass_over(one);
        }
        let mut at = self.len - 1;
        while at > 0 && self.queues[at - 1].key > one.key {
            self.queues[at] = self.queues[at - 1];
            at -= 1;
        }
        self.queues[at] = one;
    }

    /// The first one of those that a scan found. It has its turn.
    #[inline]
    pub fn first(&mut self) -> Option<Waiting> {
        self.next = 1;
        self.queues.first().filter(|_| self.len > 0).copied()
    }

    /// May there be another one?
    #[inline]
    pub const fn is_left(&self) -> bool {
        self.next < self.len
    }

    /// The next one, with the key that it had, if none of those that aren't here comes before that.
    /// Those that had their turns don't, as who gives them sees to.
    #[inline(always)]
    pub fn in_order(&self) -> Option<Waiting> {
        let one = self.queues[self.next % ROOM];
        (self.next < self.len && one.key < self.first).then_some(one)
    }

    /// That one has its turn.
    #[inline(always)]
    pub const fn has_its_turn(&mut self) {
        self.next += 1;
    }

    /// The next one, with its key of now, which `now` tells.
    #[inline(never)]
    pub fn next(&mut self, now: impl Fn(&Waiting) -> Key) -> Option<Waiting> {
        if self.next >= self.len {
            return None;
        }
        while self.had < self.next {
            let one = self.queues[self.had % ROOM];
            self.pass_over(Waiting { key: now(&one), ..one });
            self.had += 1;
        }
        while self.next < self.len {
            let one = *self.queues.get(self.next)?;
            if one.key >= self.first {
                return None;
            }
            self.next += 1;
            while self.same < self.len && (self.same < self.next || self.is_of(self.same, one.vm)) {
                self.same += 1;
            }
            let behind =
                self.queues.get(self.same).filter(|_| self.same < self.len).unwrap_or(&NOBODY);
            // Its VM's others come behind it if they did before, but for those that fell.
            let others = if self.vm == one.vm { self.second } else { self.first };
            let one = Waiting { key: now(&one), ..one };
            let bit = 1 << (one.vm % 64);
            if self.fell & bit == 0 && one.key < others && one.key < behind.key {
                return Some(one);
            }
            self.fell |= bit;
            self.pass_over(one);
        }
        None
    }

    fn is_of(&self, at: usize, vm: usize) -> bool {
        self.queues.get(at).is_some_and(|one| one.vm == vm)
    }
}
