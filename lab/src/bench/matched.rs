//! The matched control: what an operation costs the bare machine when it is as slow as a column.
//!
//! The emulated core is slower in a VM, and slower still when it exits, while network, disk and
//! load generator run in real time. So fewer or more operations share an interrupt and a packet,
//! and the guest's own work per operation changes with the pace, whatever it runs on. The bare
//! machine is therefore also measured slowed, by the counting plugin, at several paces; between
//! these its cost is read off at the pace of each of a column's windows.
//!
//! Guarantees: pure arithmetic on counts; nothing is extrapolated: beyond the slowest and the
//! fastest pace the nearest one counts, and [`Agreement`] says how far off that is.

use super::figures::{
    Figures, Kind, Point, Spread, Window, median, pairs, relative_half_range, tick,
};

/// Rounds of the plugin's loop before each translated block at which the bare machine is measured,
/// besides unslowed. From a few per cent to a tenth of its speed, by what a VM under `trap` needs.
pub const ROUNDS: [u64; 5] = [30, 80, 160, 320, 640];
/// Pairs of windows at each of them.
pub const PAIRS: u32 = 2;

/// The fields of a point, one by one.
const FIELDS: [fn(&mut Point) -> &mut f64; 5] = [
    |p| &mut p.pace,
    |p| &mut p.interrupts,
    |p| &mut p.packets,
    |p| &mut p.cost,
    |p| &mut p.cost_ticks_out,
];

/// A point of which each field is made of the same field of these.
fn each(of: &[&Point], f: impl Fn(&[f64]) -> f64) -> Point {
    let mut made = Point::default();
    for field in FIELDS {
        let values: Vec<_> = of.iter().map(|p| *field(&mut (*p).clone())).collect();
        *field(&mut made) = f(&values);
    }
    made
}

/// What stays the same between a column and its control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Operations in real time.
    Pace,
    /// Device interrupts per operation.
    Interrupts,
}

impl By {
    fn of(self, point: &Point) -> f64 {
        match self {
            By::Pace => point.pace,
            By::Interrupts => point.interrupts,
        }
    }
}

/// The bare machine at several paces.
#[derive(Clone, Debug, PartialEq)]
pub struct Control {
    /// Medians at each pace, as it is slowed more and more.
    levels: Vec<Point>,
    /// By how much cost varies at one pace: half the range, relative; the middle one of all paces.
    noise: f64,
}

impl Control {
    /// From the windows of each boot: `own` pairs unslowed, then [`PAIRS`] for each of [`ROUNDS`].
    /// None when a guest reported fewer, or pairs without a slope leave a level without a point.
    pub fn of(boots: &[Vec<Window>], own: u32) -> Option<Control> {
        let mut levels = vec![Vec::new(); 1 + ROUNDS.len()];
        for windows in boots {
            let tick = tick(windows).ok()?;
            let points: Vec<_> = pairs(windows).map(|(s, l)| Point::of(s, l, &tick)).collect();
            let (unslowed, slowed) = points.split_at_checked(own as usize)?;
            let parts = std::iter::once(unslowed).chain(slowed.chunks(PAIRS as usize));
            for (level, points) in levels.iter_mut().zip(parts) {
                level.extend(points.iter().flatten());
            }
        }
        Control::from_levels(levels)
    }

    /// From what was measured at each pace.
    pub fn from_levels(levels: Vec<Vec<Point>>) -> Option<Control> {
        if levels.iter().any(Vec::is_empty) {
            return None;
        }
        let spread = |level: &Vec<Point>| {
            relative_half_range(&level.iter().map(|p| p.cost_ticks_out).collect::<Vec<_>>())
        };
        let noise = median(&levels.iter().map(spread).collect::<Vec<_>>());
        let middle = |level: &Vec<Point>| each(&level.iter().collect::<Vec<_>>(), median);
        Some(Control { levels: levels.iter().map(middle).collect(), noise })
    }

    /// What the bare machine does where it is like this: between the two levels on either side.
    pub fn at(&self, by: By, like: f64) -> Point {
        let mut sorted = self.levels.clone();
        sorted.sort_by(|a, b| by.of(a).total_cmp(&by.of(b)));
        let above = sorted.partition_point(|p| by.of(p) < like);
        let (Some(low), Some(high)) = (sorted.get(above.wrapping_sub(1)), sorted.get(above)) else {
            return if above == 0 { sorted[0] } else { sorted[sorted.len() - 1] };
        };
        // The upper one is at `like` or above it, and the lower one isn't.
        let part = (like - by.of(low)) / (by.of(high) - by.of(low));
        each(&[low, high], |v| v[0] + part * (v[1] - v[0]))
    }
}

/// The control's figures / the column's: 1 where they agree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Agreement {
    /// Operations in real time.
    pub rate: f64,
    /// Interrupts per operation.
    pub interrupts: f64,
    /// Packets per operation; none without a network.
    pub packets: Option<f64>,
}

/// A column beside its control.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Matched {
    /// Cost of the control / cost here, ticks in.
    pub fraction: Spread,
    /// The same with ticks taken out of both.
    pub ticks_out: Spread,
    /// How much the two are alike.
    pub agreement: Agreement,
}

impl Matched {
    /// Each pair of windows of a column beside the bare machine that is alike; medians.
    pub fn of(column: &[Point], control: &Control, by: By) -> Option<Matched> {
        let beside: Vec<(Point, Point)> =
            column.iter().map(|p| (control.at(by, by.of(p)), *p)).collect();
        if beside.is_empty() {
            return None;
        }
        let ratios = |of: fn(&Point) -> f64| -> Vec<f64> {
            beside.iter().map(|(control, here)| of(control) / of(here)).collect()
        };
        let spread = |ratios: Vec<f64>| {
            let value = median(&ratios);
            Spread { value, spread: value * (relative_half_range(&ratios) + control.noise) }
        };
        // As many ticks for an operation as the control would have at the column's pace.
        let with_ticks = |(control, here): &(Point, Point)| {
            let ticks = (control.cost - control.cost_ticks_out) / control.pace;
            (control.cost_ticks_out + ticks * here.pace) / here.cost
        };
        let network = column.iter().all(|p| p.packets > 0.0);
        Some(Matched {
            fraction: spread(beside.iter().map(with_ticks).collect()),
            ticks_out: spread(ratios(|p| p.cost_ticks_out)),
            agreement: Agreement {
                rate: 1.0 / median(&ratios(|p| p.pace)),
                interrupts: median(&ratios(|p| p.interrupts)),
                packets: network.then(|| median(&ratios(|p| p.packets))),
            },
        })
    }
}

impl Figures {
    /// Beside the bare machine slowed as it is here.
    pub fn matched(&self, control: Option<&Control>, by: By) -> Option<Matched> {
        Matched::of(&self.points, control?, by)
    }
}

/// A run's windows without those in which it was slowed, and all of them.
pub fn unslowed(windows: &[Window], own: u32) -> Vec<Window> {
    let mut own = 2 * own as usize;
    let mine = |w: &&Window| {
        w.kind == Kind::Spin || {
            let keep = own > 0;
            own = own.saturating_sub(1);
            keep
        }
    };
    windows.iter().filter(mine).cloned().collect()
}

#[cfg(test)]
#[path = "matched_tests.rs"]
mod tests;
