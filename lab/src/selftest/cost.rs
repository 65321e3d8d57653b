//! What windows cost that a test kernel opens for the counting plugin.
//!
//! Guarantees: a window is judged only if one vCPU opened and closed it, and every one that
//! was expected was counted. They are in the order of the cores, and of time on each.

use super::case::Budget;
use crate::bench::Edge;

/// What the windows cost: a line each, or what is wrong with them.
pub fn of(budgets: &[Budget], edges: &[Edge]) -> Result<Vec<String>, String> {
    if edges.len() != 2 * budgets.len() {
        return Err(format!("{} edges of {} windows were counted", edges.len(), budgets.len()));
    }
    let mut lines = Vec::new();
    let mut dear = Vec::new();
    let mut edges: Vec<&Edge> = edges.iter().collect();
    edges.sort_by_key(|edge| edge.vcpu);
    let mut before = u64::MAX;
    for (budget, pair) in budgets.iter().zip(edges.chunks_exact(2)) {
        let &[open, close] = pair else { continue };
        if !open.opens || close.opens || open.vcpu != close.vcpu {
            return Err(format!("the window of {} isn't one of one vCPU", budget.what));
        }
        let host = close.host.wrapping_sub(open.host);
        let exits = close.host_entries.wrapping_sub(open.host_entries);
        let Budget { what, times, host_each, like_before } = budget;
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
        if *like_before && each > before {
            dear.push(format!("{line}; no more than {before} wanted, as without"));
        }
        before = each;
        lines.push(line);
    }
    if dear.is_empty() { Ok(lines) } else { Err(dear.join("; ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_have_a_budget() {
        let budget = Budget { what: "x", times: 10, host_each: 5, like_before: false };
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
        let two = [budget, Budget { like_before: true, ..budget }];
        let both = |first: u64, second: u64| {
            let [begun, ended] = [on(2, true, 0, 0), on(2, false, second, 10)];
            let [open, close] = window(first, 10);
            of(&two, &[begun, open, ended, close])
        };
        assert!(both(40, 44).is_ok());
        assert!(both(40, 46).is_err());
        assert!(both(40, 30).is_ok());
    }
}
