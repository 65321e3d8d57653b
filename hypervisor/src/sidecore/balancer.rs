//! The first sidecore's part in moving devices by load: once in an epoch it looks at what all did.
//!
//! Guarantees: an epoch costs it a bounded time, a load or two for each device that can move and
//! each sidecore, and nobody else's. While a device moves nothing is decided.

use crate::sidecore::counts::CoreCounts;
use crate::sidecore::movable::Moves;
use ::sidecore::balance::{Balance, CoreLoad, DeviceLoad};
use alloc::vec::Vec;

/// Epochs in a second.
const EPOCHS: u64 = 100;

/// What it knows from one epoch to the next.
pub struct Balancer {
    balance: Balance,
    /// Ticks of an epoch, and when this one began.
    epoch: u64,
    began: Option<u64>,
    cores: Vec<Core>,
    devices: Vec<DeviceLoad>,
    loads: Vec<CoreLoad>,
    /// What devices had done when the epoch began: ticks, and late turns.
    before: Vec<(u64, u64)>,
}

/// A sidecore.
struct Core {
    counts: &'static CoreCounts,
    /// When the epoch began.
    busy: u64,
}

impl Balancer {
    /// Boot only: of these sidecores, and whether they serve what can't move; and so many devices
    /// that can.
    pub fn new(
        ticks_per_second: u64,
        cores: impl Iterator<Item = (&'static CoreCounts, bool)>,
        devices: usize,
    ) -> Self {
        let (mut own, mut loads) = (Vec::new(), Vec::new());
        for (counts, keeps) in cores {
            own.push(Core { counts, busy: 0 });
            loads.push(CoreLoad { busy: 0, keeps });
        }
        Balancer {
            balance: Balance::new(devices),
            epoch: ticks_per_second / EPOCHS,
            began: None,
            cores: own,
            loads,
            devices: (0..devices).map(|_| DeviceLoad::default()).collect(),
            before: (0..devices).map(|_| (0, 0)).collect(),
        }
    }

    /// In each pass.
    #[inline]
    pub fn look(&mut self, now: u64, moves: &Moves) {
        let began = *self.began.get_or_insert(now);
        let ticks = now.wrapping_sub(began);
        if ticks >= self.epoch {
            self.began = Some(now);
            self.decide(ticks, moves);
        }
    }

    #[cold]
    fn decide(&mut self, ticks: u64, moves: &Moves) {
        for (core, load) in self.cores.iter_mut().zip(&mut self.loads) {
            let before = core::mem::replace(&mut core.busy, core.counts.busy());
            load.busy = core.busy.wrapping_sub(before);
        }
        let mut all_are_somewhere = true;
        let before = self.devices.iter_mut().zip(&mut self.before);
        for (movable, (load, before)) in moves.all.iter().zip(before) {
            let counts = movable.counts();
            let (busy, late) = core::mem::replace(before, counts);
            let at = movable.at();
            all_are_somewhere &= at.is_some();
            *load = DeviceLoad {
                at: at.unwrap_or_default(),
                busy: counts.0.wrapping_sub(busy),
                late: counts.1.wrapping_sub(late),
            };
        }
        if !all_are_somewhere {
            return;
        }
        let Some(go) = self.balance.next(ticks, &self.loads, &self.devices) else { return };
        if let Some(movable) = moves.all.get(go.device)
            && let Some(from) = movable.at().and_then(|at| moves.listeners.get(at))
        {
            movable.go_to(go.to);
            from.ring();
        }
    }
}
