//! The model: measured figures carried to the ELI paper's rates of interrupts and
//! ticks, with a stated charge for each exit. Nothing here is measured.

use super::figures::{Figures, Spread, median, share};

/// At which rates the model asks, and what it charges.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// Device interrupts per second.
    pub interrupts: f64,
    /// Timer ticks per second.
    pub ticks: f64,
    /// Cycles that an exit costs in hardware besides its handler.
    pub cycles: f64,
}

/// What the model gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Modelled {
    /// Exits per second by [`Reason`] index.
    pub exits: Vec<f64>,
    /// Operations per second at the model's interrupt rate.
    pub operations: f64,
    /// Guest instructions per operation, ticks at the model's rate.
    pub guest_per_operation: f64,
    /// Host instructions per operation, likewise; the charge isn't in it.
    pub host_per_operation: f64,
    /// Guest instructions / (all instructions + charge), an instruction a cycle.
    pub guest_share: f64,
    /// Cost on the bare machine / (cost here + charge), an instruction a cycle; spread as measured.
    pub fraction_of_bare: Option<Spread>,
}

impl Model {
    /// Memcached's interrupt rate in the ELI paper, to the order; a 250 Hz kernel; the direct
    /// cost of a world switch on the paper's generation of processors.
    pub const PAPER: Model = Model { interrupts: 150_000.0, ticks: 250.0, cycles: 2_000.0 };
    /// What an exit cost the paper's machine in all, the host's work and what it does to the
    /// caches included: the time outside the guest divided by the exits.
    pub const TOTAL_CYCLES: f64 = 9_500.0;
    /// Clock of the paper's processors, in cycles per microsecond.
    pub const MEGAHERTZ: f64 = 2_930.0;

    /// A measured policy carried to the model's rates.
    pub fn of(&self, f: &Figures, bare: Option<&Figures>) -> Modelled {
        let load = f.exits_of_load();
        let per_tick = |r: usize| f.tick.exits.get(r).copied().unwrap_or(0.0);
        let exits = (0..load.len().max(f.tick.exits.len()))
            .map(|r| load.get(r).unwrap_or(&0.0) * self.interrupts + per_tick(r) * self.ticks)
            .collect::<Vec<_>>();
        let operations = self.interrupts * f.operations as f64 / f.interrupts as f64;
        let ticks = self.ticks / operations;
        let measured_ticks = f.ticks as f64 / f.operations as f64;
        let per = |all: u64, tick: f64| {
            all as f64 / f.operations as f64 + (ticks - measured_ticks) * tick
        };
        let guest = per(f.guest, f.tick.guest);
        let host = per(f.host, f.tick.host).max(0.0);
        let charge = self.cycles * exits.iter().sum::<f64>() / operations;
        let of_median =
            |f: &Figures| median(&f.cost_ticks_out) + ticks * (f.tick.guest + f.tick.host);
        Modelled {
            exits,
            operations,
            guest_per_operation: guest,
            host_per_operation: host,
            guest_share: share(guest, host + charge),
            fraction_of_bare: bare.map(|b| {
                let value = of_median(b) / (of_median(f) + charge);
                let measured = f.fraction_of(b, true);
                Spread { value, spread: value * measured.spread / measured.value }
            }),
        }
    }
}
