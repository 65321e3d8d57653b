//! What windows cost that a test kernel opens for the counting plugin.
//!
//! Guarantees: a window is judged only if one vCPU opened and closed it, and every one that
//! was expected was counted. They are in the order of the cores, and of time on each.

use crate::bench::Edge;

/// Two windows in which the same is done differ by fewer instructions.
const NOISE: u64 = 2;

/// A window that a test kernel opens and closes on a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// What is done in it, for sentences.
    pub what: &'static str,
    /// How often.
    pub times: u64,
    /// Host instructions that each may take on that vCPU's core.
    pub host_each: u64,
    /// And beside another window.
    pub than: Than,
}

/// What a window costs beside another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Than {
    /// Whatever it does.
    Any,
    /// No more than the one before.
    NotMoreThanBefore,
    /// More than this one, which comes before it.
    Above(usize),
}

impl Budget {
    /// Of a window that is compared with none.
    pub const fn new(what: &'static str, times: u64, host_each: u64) -> Self {
        Budget { what, times, host_each, than: Than::Any }
    }
}

/// What the windows cost: a line each, or what is wrong with them.
pub fn of(budgets: &[Budget], edges: &[Edge]) -> Result<Vec<String>, String> {
    if edges.len() != 2 * budgets.len() {
        return Err(format!("{} edges of {} windows were counted", edges.len(), budgets.len()));
    }
    let mut lines = Vec::new();
    let mut dear = Vec::new();
    let mut edges: Vec<&Edge> = edges.iter().collect();
    edges.sort_by_key(|edge| edge.vcpu);
    let mut all: Vec<u64> = Vec::new();
    for (budget, pair) in budgets.iter().zip(edges.chunks_exact(2)) {
        let &[open, close] = pair else { continue };
        if !open.opens || close.opens || open.vcpu != close.vcpu {
            return Err(format!("the window of {} isn't one of one vCPU", budget.what));
        }
        let host = close.host.wrapping_sub(open.host);
        let exits = close.host_entries.wrapping_sub(open.host_entries);
        let Budget { what, times, host_each, than } = budget;
        let line = format!(
            "{what}: {:.1} host instructions and {:.3} exits each, of {times}",
            host as f64 / *times as f64,
            exits as f64 / *times as f64
        );
        if host > times * host_each || exits == 0 {
            dear.push(format!("{line}; {host_each} instructions at most, and exits, wanted"));
        }
        // Each costs the same to an instruction, or there is a difference.
        let each = (host + times / 2) / times;
        match than {
            Than::Any => {}
            Than::NotMoreThanBefore => {
                let before = all.last().copied().unwrap_or(u64::MAX);
                if each > before {
                    dear.push(format!("{line}; no more than {before} wanted, as without"));
                }
            }
            Than::Above(other) => {
                let with = all.get(*other).copied().unwrap_or(u64::MAX);
                if each <= with.saturating_add(NOISE) {
                    dear.push(format!("{line}; more than the {with} with it wanted"));
                }
            }
        }
        all.push(each);
        lines.push(line);
    }
    if dear.is_empty() { Ok(lines) } else { Err(dear.join("; ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_have_a_budget() {
        let budget = Budget::new("x", 10, 5);
        let on = |vcpu, opens, host, vmruns| Edge {
            opens,
            vcpu,
            host,
            vmruns,
            host_entries: vmruns,
            ..Edge::default()
        };
        let edge = |opens, host, vmruns| on(1, opens, host, vmruns);
        let window =
            |host: u64, vmruns: u64| [edge(true, 100, 7), edge(false, 100 + host, 7 + vmruns)];
        let lines = of(&[budget], &window(50, 10)).unwrap();
        assert!(lines[0].contains("5.0 host") && lines[0].contains("1.000 exits"), "{lines:?}");
        assert!(of(&[budget], &window(51, 10)).is_err());
        assert!(of(&[budget], &window(0, 0)).is_err());
        assert!(of(&[budget], &[]).is_err());
        assert!(of(&[budget], &[edge(true, 0, 0), edge(true, 1, 1)]).is_err());
        assert_eq!(of(&[], &[]), Ok(Vec::new()));
        // Two at a time, the second on core 2.
        let two = [budget, Budget { than: Than::NotMoreThanBefore, ..budget }];
        let both = |first: u64, second: u64| {
            let [begun, ended] = [on(2, true, 0, 0), on(2, false, second, 10)];
            let [open, close] = window(first, 10);
            of(&two, &[begun, open, ended, close])
        };
        assert!(both(40, 44).is_ok());
        assert!(both(40, 46).is_err());
        assert!(both(40, 30).is_ok());
        // The second is to be dearer.
        let dearer = |other, second: u64| {
            let two = [budget, Budget { host_each: 9, than: Than::Above(other), ..budget }];
            let [open, close] = window(20, 10);
            of(&two, &[open, close, on(1, true, 0, 0), on(1, false, second, 10)])
        };
        assert!(dearer(0, 50).is_ok());
        assert!(dearer(0, 40).is_err());
        assert!(dearer(1, 50).is_err());
    }
}
