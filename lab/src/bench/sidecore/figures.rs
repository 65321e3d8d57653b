//! From the windows of guests that a sidecore serves to figures; `docs/figures.md` defines each.
//!
//! Guarantees: pure arithmetic on counts.

use super::{boot::Ran, way::Way};
use crate::bench::{
    figures::{Error, Exits, Figures, Kind, Spread, Tick, Window, median, relative_half_range},
    lines::{self, Edge},
    matched::{Control, unslowed},
};
use anyhow::Result;
use ledger::Reason;
use proto::Served;

/// What sidecores did, as a difference of two edges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Passes that found work.
    pub passes: u64,
    /// Passes that found none.
    pub empty: u64,
    /// Instructions of those that found work.
    pub served: u64,
    /// Instructions of the others.
    pub polled: u64,
    /// Instructions of all cores but the guest's, sidecores' among them.
    pub others: u64,
}

impl Work {
    fn between(open: &Edge, close: &Edge) -> Work {
        let more = |of: fn(&Edge) -> u64| of(close).saturating_sub(of(open));
        Work {
            passes: more(|e| e.passes),
            empty: more(|e| e.empty),
            served: more(|e| e.served),
            polled: more(|e| e.polled),
            others: more(|e| e.others),
        }
    }

    /// Instructions of cores that are neither the guest's nor sidecores.
    pub fn elsewhere(self) -> u64 {
        self.others.saturating_sub(self.served.saturating_add(self.polled))
    }

    fn add(&mut self, other: Work) {
        self.passes += other.passes;
        self.empty += other.empty;
        self.served += other.served;
        self.polled += other.polled;
        self.others += other.others;
    }

    fn less(self, other: Work) -> Work {
        Work {
            passes: self.passes.saturating_sub(other.passes),
            empty: self.empty.saturating_sub(other.empty),
            served: self.served.saturating_sub(other.served),
            polled: self.polled.saturating_sub(other.polled),
            others: self.others.saturating_sub(other.others),
        }
    }
}

/// One guest alone, on something.
#[derive(Clone, Debug)]
pub struct Alone {
    /// On what.
    pub way: Way,
    /// As in every experiment: slopes of long windows less short ones.
    pub figures: Figures,
    /// The same of the sidecore's work.
    pub work: Work,
    /// The guest's own instructions for an I/O, ticks taken out, of each pair of windows.
    pub guest_ticks_out: Vec<f64>,
    /// What the sidecore did for it from its start to its end.
    pub served: Served,
    /// The bare machine at several paces, where it was slowed.
    pub control: Option<Control>,
}

impl Alone {
    /// What a run gave; `own`: its pairs of windows that weren't slowed.
    pub fn of(way: Way, ran: Ran, own: u32) -> Result<Alone> {
        let Ran { guest, edges, served } = ran;
        let of_edges: Vec<_> =
            edges.chunks_exact(2).map(|pair| Work::between(&pair[0], &pair[1])).collect();
        let plugin = lines::Plugin { edges, ..Default::default() };
        let all = lines::join(guest, &plugin)?;
        let windows = unslowed(&all, own);
        let figures = Figures::of(&windows)?;
        let mut work = Work::default();
        for (pair, works) in all.windows(2).zip(of_edges.windows(2)).take(2 * own as usize) {
            if is_slope(&pair[0], &pair[1]) {
                work.add(works[1].less(works[0]));
            }
        }
        let guest_ticks_out = guest_ticks_out(&windows, &figures.tick);
        let slowed = all.len() > windows.len();
        let control = if slowed { Control::of(&[all], own) } else { None };
        Ok(Alone { way, figures, work, guest_ticks_out, served, control })
    }

    /// A count for each I/O.
    pub fn per_io(&self, count: u64) -> f64 {
        count as f64 / self.figures.operations as f64
    }

    /// A count of the whole run for each request that was completed.
    pub fn per_request(&self, count: u64) -> f64 {
        count as f64 / self.served.completed.max(1) as f64
    }

    /// Exits for a reason, for each I/O.
    pub fn exits(&self, reason: Reason) -> f64 {
        self.per_io(self.figures.exits.get(reason as usize).copied().unwrap_or(0))
    }

    /// The guest's own instructions for an I/O / those on the other, ticks out of both; medians.
    pub fn guest_against(&self, other: &Alone) -> Spread {
        let value = median(&self.guest_ticks_out) / median(&other.guest_ticks_out);
        let noise = [&self.guest_ticks_out, &other.guest_ticks_out].map(|v| relative_half_range(v));
        Spread { value, spread: value * noise.iter().sum::<f64>() }
    }
}

fn is_slope(short: &Window, long: &Window) -> bool {
    (short.kind, long.kind) == (Kind::Short, Kind::Long) && long.operations > short.operations
}

fn guest_ticks_out(windows: &[Window], tick: &Tick) -> Vec<f64> {
    let slopes = windows.windows(2).filter(|pair| is_slope(&pair[0], &pair[1]));
    slopes
        .map(|pair| {
            let more = |of: fn(&Window) -> u64| of(&pair[1]).saturating_sub(of(&pair[0])) as f64;
            (more(|w| w.guest) - more(|w| w.ticks) * tick.guest) / more(|w| w.operations)
        })
        .collect()
}

/// One of several guests, in all its windows together: each of them has all the others' loads
/// beside it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Member {
    /// I/Os it completed.
    pub operations: u64,
    /// Device interrupts its kernel took.
    pub interrupts: u64,
    /// Exits by [`Reason`] index.
    pub exits: Vec<u64>,
    /// Its instructions.
    pub guest: u64,
    /// The host's on its core.
    pub host: u64,
    /// The sidecore's work meanwhile, for all guests.
    pub work: Work,
    /// What the sidecore did for it from its start to its end.
    pub served: Served,
}

impl Member {
    /// What a run gave of it.
    pub fn of(ran: Ran) -> Result<Member> {
        let Ran { guest, edges, served } = ran;
        let mut member = Member { served, ..Member::default() };
        let works: Vec<_> =
            edges.chunks_exact(2).map(|pair| Work::between(&pair[0], &pair[1])).collect();
        let plugin = lines::Plugin { edges, ..Default::default() };
        for (window, work) in lines::join(guest, &plugin)?.into_iter().zip(works) {
            // One alone has one without a load.
            if window.kind == Kind::Spin {
                continue;
            }
            member.work.add(work);
            member.operations += window.operations;
            member.interrupts += window.interrupts;
            member.guest += window.guest;
            member.host += window.host;
            let Exits { by_reason, .. } = window.exits.unwrap_or_default();
            member.exits.resize(member.exits.len().max(by_reason.len()), 0);
            member.exits.iter_mut().zip(by_reason).for_each(|(sum, n)| *sum += n);
        }
        if member.operations == 0 {
            return Err(Error::Unpaired.into());
        }
        Ok(member)
    }

    /// Its I/Os for a million instructions of the sidecore's work, whoever that was for.
    pub fn rate(&self) -> f64 {
        self.operations as f64 * 1e6 / self.work.served.max(1) as f64
    }
}

/// Several guests that one sidecore serves.
#[derive(Clone, Debug)]
pub struct Together {
    /// Those under bulk load.
    pub bulk: Vec<Member>,
    /// The one that asks for one block at a time, if there is one.
    pub latency: Option<Member>,
}

impl Together {
    /// All of them.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.bulk.iter().chain(&self.latency)
    }

    /// A sum over all of them.
    pub fn sum(&self, of: impl Fn(&Member) -> u64) -> u64 {
        self.members().map(of).sum()
    }

    /// A count for each I/O.
    pub fn per_io(&self, of: impl Fn(&Member) -> u64) -> f64 {
        self.sum(of) as f64 / self.sum(|m| m.operations).max(1) as f64
    }

    /// The largest share of those under bulk load / the smallest.
    pub fn shares(&self) -> f64 {
        let rates: Vec<_> = self.bulk.iter().map(Member::rate).collect();
        let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
        rates.iter().copied().fold(0.0, f64::max) / least
    }

    /// What each under bulk load got, in their order; 1 is an equal share of what they got.
    pub fn each_share(&self) -> Vec<f64> {
        let rates: Vec<_> = self.bulk.iter().map(Member::rate).collect();
        let equal = rates.iter().sum::<f64>() / rates.len() as f64;
        rates.into_iter().map(|rate| rate / equal).collect()
    }

    /// The sidecore's instructions for an I/O of any of them.
    pub fn work_each(&self) -> f64 {
        // Each one's windows see the work for all.
        1e6 / self.members().map(Member::rate).sum::<f64>()
    }

    /// The sidecore's instructions of a pass that finds work.
    pub fn pass(&self) -> f64 {
        self.sum(|m| m.work.served) as f64 / self.sum(|m| m.work.passes).max(1) as f64
    }

    /// The part of the sidecore's passes that find none.
    pub fn idle_passes(&self) -> f64 {
        let (found, none) = (self.sum(|m| m.work.passes), self.sum(|m| m.work.empty));
        none as f64 / (found + none).max(1) as f64
    }

    /// The part of the sidecore's instructions that found work.
    pub fn busy(&self) -> f64 {
        let (served, polled) = (self.sum(|m| m.work.served), self.sum(|m| m.work.polled));
        served as f64 / (served + polled).max(1) as f64
    }
}

#[cfg(test)]
#[path = "figures_tests.rs"]
mod tests;
