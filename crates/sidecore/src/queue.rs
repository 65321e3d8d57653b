//! A queue as the schedule knows it.

use crate::patience::Patience;
use crate::settings::Settings;
use crate::turn::{Wait, elapsed};

/// Whether it is there, and looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Absent,
    /// Its kicks are on; it isn't looked at.
    Notifies,
    Polled,
}

/// A place.
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    pub state: State,
    pub vm: usize,
    /// When it was kicked, if it hasn't been served since.
    pub kicked: Option<u64>,
    /// When it last had something.
    pub busy: u64,
    /// It waits, and was first seen to at this pass, when so much had been served.
    pub waits: Option<Wait>,
    pub worst_wait: Wait,
    /// When it was seen to first, and for how long it waited before its last turn, in ticks.
    pub since: u64,
    pub last_wait: u64,
    /// For how long, in ticks, its VM was at a limit by what this queue was served; since it was
    /// last asked.
    pub held: u64,
    /// The number of its last turn.
    pub turn: u64,
    /// What it had when another queue's turn looked at it, and since when.
    pub backlog: (u16, u64),
    /// For how long it is polled without having something; [`Queue::patience`].
    pub patience: Patience,
}

impl Queue {
    /// Nobody's.
    pub const ABSENT: Queue = Queue {
        state: State::Absent,
        vm: 0,
        kicked: None,
        busy: 0,
        waits: None,
        worst_wait: Wait { passes: 0, cost: 0 },
        since: 0,
        last_wait: 0,
        held: 0,
        turn: 0,
        backlog: (0, 0),
        patience: Patience::new(0),
    };

    /// After how many ticks it is to sleep, if it has nothing until then. `None`: now.
    pub fn sleeps_after(&self, now: u64, yields: bool) -> Option<u64> {
        let left = self.patience(yields).checked_sub(elapsed(self.busy, now));
        left.filter(|left| *left > 0)
    }

    /// For how long it is polled without having something, in ticks.
    pub const fn patience(&self, yields: bool) -> u64 {
        if yields { 0 } else { self.patience.ticks() }
    }

    /// A request came that wasn't waited for any more.
    pub fn missed(&mut self, now: u64, settings: &Settings) {
        if settings.adapts {
            self.patience.missed(elapsed(self.busy, now), settings.idle);
        }
        self.busy = now;
    }

    /// Its VM is at a limit: it waits for time to pass, not for others. It is polled on, as what it
    /// is.
    pub const fn is_held(&mut self, now: u64) {
        (self.waits, self.busy) = (None, now);
    }
}
