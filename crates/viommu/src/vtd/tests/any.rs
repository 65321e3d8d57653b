//! What a guest may do in any order: what devices reach is what the model says, and nothing leads
//! out of the guest's memory.

use super::super::at::QUEUE_TAIL;
use super::super::*;
use super::machine::*;
use crate::PAGE;
use crate::tests::model::{HIGH, LOW};
use proptest::prelude::*;

/// What a guest does that keeps to the manual.
#[derive(Clone, Debug)]
enum Do {
    Map(usize, u64, u64, u64),
    Large(usize, u64, u64),
    Unmap(usize, u64),
    Domain(usize),
    All,
    Move(usize, usize),
}

fn dos() -> impl Strategy<Value = Do> {
    let page = || prop_oneof![0..24_u64, 500..524_u64, 1 << 27..(1 << 27) + 8_u64];
    prop_oneof![
        4 => (0..3_usize, page(), 0..2060_u64, 1..4_u64).prop_map(|(d, p, t, r)| Do::Map(d, p, t, r)),
        1 => (0..3_usize, 0..3_u64, 0..6_u64).prop_map(|(d, p, t)| Do::Large(d, p, t)),
        3 => (0..3_usize, page()).prop_map(|(d, p)| Do::Unmap(d, p)),
        1 => (0..3_usize).prop_map(Do::Domain),
        1 => Just(Do::All),
        1 => (0..3_usize, 0..3_usize).prop_map(|(e, d)| Do::Move(e, d)),
    ]
}

proptest! {
    // The model looks at each word of each table, each time.
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn devices_reach_what_the_tables_map(all in prop::collection::vec(dos(), 1..30)) {
        let (mut machine, roots) = Machine::on(1 << 20);
        let mut of = [0, 1, 2];
        for what in all {
            match what {
                Do::Map(d, page, to, rights) => {
                    let at = page * PAGE;
                    let leaf = machine.entry(roots[d], at, 1);
                    if machine.get(leaf) & 1 << 7 != 0 {
                        machine.put(leaf, 0);
                    }
                    machine.map(roots[d], at, (to * PAGE) | rights);
                    machine.ask(&[pages(d as u16 + 1, at & !(512 * PAGE - 1), 9)]);
                }
                Do::Large(d, at, to) => {
                    let leaf = machine.entry(roots[d], at << 21, 1);
                    machine.put(leaf, to << 21 | 1 << 7 | 3);
                    machine.ask(&[pages(d as u16 + 1, at << 21, 9)]);
                }
                Do::Unmap(d, page) => {
                    let leaf = machine.entry(roots[d], page * PAGE, 1);
                    if machine.get(leaf) & 1 << 7 == 0 {
                        machine.map(roots[d], page * PAGE, 0);
                        machine.ask(&[pages(d as u16 + 1, page * PAGE, 0)]);
                    }
                }
                Do::Domain(d) => {
                    machine.ask(&[domain(d as u16 + 1)]);
                }
                Do::All => {
                    machine.ask(&[ALL]);
                }
                Do::Move(endpoint, d) => {
                    of[endpoint] = d;
                    machine.set_context(endpoint, roots[d] | 1, (d as u64 + 1) << 8 | 2);
                    machine.ask(&[CONTEXTS]);
                }
            }
            for endpoint in 0..3 {
                prop_assert_eq!(machine.mapped(endpoint), machine.model(roots[of[endpoint]]));
            }
        }
    }

    /// Any words anywhere: all that is mapped is the guest's, and it stays within bounds.
    #[test]
    fn nothing_leads_out_whatever_is_written(
        all in prop::collection::vec((0..64_usize, any::<u64>(), 0..4_u8), 1..100),
        words in prop::collection::vec((0..0xC00_u64, any::<u64>()), 0..200),
    ) {
        let (mut machine, [root, ..]) = Machine::on(2000);
        for (at, word) in &words {
            machine.put(root + 8 * at % 0x6000, word & 0x8000_0000_007F_FFFF);
        }
        for (at, value, how) in all {
            match how {
                0 => machine.registers().write(4 * at as u64, 8, value),
                1 => machine.page[at].store(value as u32, std::sync::atomic::Ordering::Relaxed),
                2 => machine.put(8 * (value % 0x1000), value),
                _ => machine.registers().write(QUEUE_TAIL as u64, 4, value & 0xFF0),
            }
            for _ in 0..10 {
                if machine.step() == Step::Reroute {
                    machine.vtd.rerouted();
                }
            }
            for pages in &machine.unit.places {
                for (page, (frame, _)) in pages {
                    let own = |run: &crate::Region| (run.host..run.host + run.len).contains(frame);
                    prop_assert!(own(&LOW) || own(&HIGH), "{page:#x} {frame:#x}");
                }
            }
        }
    }
}
