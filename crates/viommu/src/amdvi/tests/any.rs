//! What a guest may do in any order: what devices reach is what the model says, and nothing leads
//! out of the guest's memory.

use super::super::at::{COMMAND_HEAD, COMMAND_TAIL};
use super::super::*;
use super::machine::*;
use crate::tests::model::{HIGH, LOW};
use crate::{PAGE, Reach, Region};
use proptest::prelude::*;

/// Modes of the three domains' tables, and the rights of their devices' entries.
const MODES: [u64; 3] = [3, 4, 6];
const RIGHTS: [u64; 3] = [3, 3, READ];

/// What a guest does that keeps to the manual.
#[derive(Clone, Debug)]
enum Do {
    /// Domain, page, where to, rights.
    Map(usize, u64, u64, u64),
    /// Of level 2, by its level or by its size.
    Large(usize, u64, u64, bool),
    /// Several pages by entries that are the same: domain, place of 16 pages, order, where to.
    Run(usize, u64, u32, u64),
    /// A table of level 1 in an entry of level 3: of one of the domain's, or a new one.
    Skip(usize, u64, bool),
    /// An entry above: of this level, its rights.
    Above(usize, u64, u32, u64),
    Unmap(usize, u64),
    Domain(usize),
    All,
    Move(usize, usize),
}

fn dos() -> impl Strategy<Value = Do> {
    let page = || prop_oneof![0..24_u64, 500..524_u64, 1 << 26..(1 << 26) + 8_u64];
    let domain = || 0..3_usize;
    prop_oneof![
        4 => (domain(), page(), 0..2060_u64, 1..4_u64).prop_map(|(d, p, t, r)| Do::Map(d, p, t, r)),
        1 => (domain(), 0..3_u64, 0..6_u64, any::<bool>())
            .prop_map(|(d, p, t, s)| Do::Large(d, p, t, s)),
        1 => (domain(), 0..3_u64, 1..5_u32, 0..6_u64).prop_map(|(d, p, o, t)| Do::Run(d, p, o, t)),
        1 => (domain(), 0..3_u64, any::<bool>()).prop_map(|(d, p, new)| Do::Skip(d, p, new)),
        1 => (domain(), page(), 2..4_u32, 0..4_u64).prop_map(|(d, p, l, r)| Do::Above(d, p, l, r)),
        3 => (domain(), page()).prop_map(|(d, p)| Do::Unmap(d, p)),
        1 => domain().prop_map(Do::Domain),
        1 => Just(Do::All),
        1 => (0..3_usize, domain()).prop_map(|(e, d)| Do::Move(e, d)),
    ]
}

/// The entry of a page at a level, and what is to be invalidated when it was written, if no table
/// is in two places.
fn entry(machine: &mut Machine, root: u64, d: usize, page: u64, level: u32) -> (u64, [u64; 2]) {
    let before = machine.next_table;
    let entry = machine.entry_of(root, MODES[d] as u32, page * PAGE, level);
    let id = d as u64 + 1;
    // Where there was no table, more is another.
    let new = machine.next_table != before;
    (entry, if new { domain(id) } else { pages(id, page * PAGE, 9 * (level - 1)) })
}

fn act(machine: &mut Machine, roots: [u64; 3], of: &mut [usize; 3], what: Do) {
    match what {
        Do::Map(d, page, to, rights) => {
            let (entry, command) = entry(machine, roots[d], d, page, 1);
            machine.put(entry, leaf(to * PAGE, 0, rights));
            machine.ask(&[command]);
        }
        Do::Large(d, at, to, by_size) => {
            let (entry, command) = entry(machine, roots[d], d, at << 9, 2);
            let word = if by_size { leaf(to << 21 | 0xF_F000, 7, 3) } else { leaf(to << 21, 0, 3) };
            machine.put(entry, word);
            machine.ask(&[command]);
        }
        Do::Run(d, at, order, to) => {
            let mut commands = Vec::new();
            for n in 0..1 << order {
                let (entry, command) = entry(machine, roots[d], d, at * 16 + n, 1);
                let size = ((1 << (order - 1)) - 1) * PAGE;
                machine.put(entry, leaf(to << 20 | size, 7, 3));
                commands.push(command);
            }
            commands.push(pages(d as u64 + 1, at * 16 * PAGE, order));
            machine.ask(&commands);
        }
        Do::Skip(d, at, new) => {
            let (entry, _) = entry(machine, roots[d], d, at << 18, 3);
            let to = match new {
                true => machine.table(),
                false => machine.entry_of(roots[d], MODES[d] as u32, 0, 1) & !0xFFF,
            };
            machine.put(entry, table(to, 1, 3));
            machine.ask(&[domain(d as u64 + 1)]);
        }
        Do::Above(d, page, level, rights) => {
            let (entry, _) = entry(machine, roots[d], d, page, level);
            let word = machine.get(entry);
            machine.put(entry, word & !(3 << 61) | rights << 61);
            machine.ask(&[domain(d as u64 + 1)]);
        }
        Do::Unmap(d, page) => {
            let (entry, command) = entry(machine, roots[d], d, page, 1);
            machine.put(entry, 0);
            machine.ask(&[command]);
        }
        Do::Domain(d) => {
            machine.ask(&[domain(d as u64 + 1)]);
        }
        Do::All => {
            machine.ask(&[ALL]);
        }
        Do::Move(endpoint, d) => {
            of[endpoint] = d;
            set(machine, roots, endpoint, d);
            machine.ask(&[device(endpoint)]);
        }
    }
}

fn set(machine: &Machine, roots: [u64; 3], endpoint: usize, d: usize) {
    let [low, high] = translated(roots[d], MODES[d], d as u64 + 1);
    machine.set_device(endpoint, [low & !(3 << 61) | RIGHTS[d] << 61, high]);
}

proptest! {
    // The model looks at each word of each table, each time.
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn devices_reach_what_the_tables_map(all in prop::collection::vec(dos(), 1..30)) {
        let (mut machine, roots) = Machine::on(1 << 20);
        let mut of = [0, 1, 2];
        (0..3).for_each(|endpoint| set(&machine, roots, endpoint, endpoint));
        machine.ask(&[ALL]);
        let mut shares = false;
        for what in all {
            shares |= matches!(what, Do::Skip(_, _, false));
            act(&mut machine, roots, &mut of, what);
            if shares {
                machine.ask(&[ALL]);
            }
            for (endpoint, d) in of.into_iter().enumerate() {
                let model = machine.model(roots[d], MODES[d] as u32, RIGHTS[d]);
                prop_assert_eq!(machine.mapped(endpoint), model);
            }
        }
    }

    /// Any words anywhere: all that is mapped is the guest's, and it stays within bounds.
    #[test]
    fn nothing_leads_out_whatever_is_written(
        all in prop::collection::vec((0..16_usize, any::<u64>(), 0..8_u8), 1..100),
        words in prop::collection::vec((0..0x1000_u64, any::<u64>()), 0..200),
    ) {
        const AT: [usize; 16] = [
            0, 4, 8, 12, 0x10, 0x14, 0x18, 0x1C, 0x30, 0x170, 0x174,
            COMMAND_HEAD, COMMAND_TAIL, 0x2010, 0x2018, 0x2020,
        ];
        let (mut machine, [root, ..]) = Machine::on(2000);
        for (at, word) in &words {
            // Entries that may be some.
            machine.put(root + 8 * at % 0x6000, word & 0xE000_0000_007F_FFFF | 1);
        }
        for (at, value, how) in all {
            match how {
                0 => machine.write64(AT[at], value),
                1 => machine.store(AT[at], value as u32),
                2 => machine.put(8 * (value % 0x1000), value),
                3 => machine.store(COMMAND_TAIL, value as u32 & 0xFF0),
                4 => machine.set_device(at % 3, [value & !0xF00 | value >> 8 & 0x700 | 3, value]),
                5 => machine.tries(at % 4, value & 1 != 0, value),
                6 => {
                    let (by, window) = (machine.unit.remapping(), machine.window());
                    let _ = by.of_msi(&window, value as u16 & 0xFF, (0xFEE0_0000, at as u32));
                    let _ = by.of_redirection(&window, value);
                }
                _ => {
                    let kind = [1, 2, 3, 5, 8][at % 5] << 60;
                    machine.tail = u64::from(machine.read(COMMAND_HEAD)) & 0xFF0;
                    machine.push([kind | value & 0xF_0000_0030, value & !0xFFC]);
                    machine.store(COMMAND_TAIL, machine.tail as u32);
                }
            }
            for _ in 0..10 {
                if machine.step() == Step::Reroute {
                    machine.unit.rerouted();
                }
                prop_assert!(machine.unit.take_words() < 4096);
            }
            for pages in &machine.real.places {
                for (page, (frame, _)) in pages {
                    let own = |run: &Region| (run.host..run.host + run.len).contains(frame);
                    prop_assert!(own(&LOW) || own(&HIGH), "{page:#x} {frame:#x}");
                }
            }
        }
        // Switched off, whatever stands there, devices reach memory again.
        machine.write64(at::CONTROL, 0);
        for _ in 0..10_000 {
            match machine.step() {
                Step::Idle => break,
                Step::Worked => {}
                Step::Reroute => machine.unit.rerouted(),
            }
        }
        prop_assert!(!machine.registers().is_news() && !machine.registers().translates());
        prop_assert_eq!(&machine.real.reach[..3], &[Reach::Memory; 3]);
    }
}
