//! A watchdog of a chipset as a model: it runs, counts, can be stopped unless it is locked, and
//! bites who lets it.

use super::*;
use proptest::prelude::*;

const CONTROL: WatchdogRegister =
    WatchdogRegister { place: Place::Port(0x668), width: 2, shift: 11 };
const RELOAD: WatchdogRegister = WatchdogRegister { place: Place::Port(0x660), width: 2, shift: 0 };
const COUNT: WatchdogRegister =
    WatchdogRegister { place: Place::Memory(0x1000), width: 4, shift: 4 };
/// In the control register: halted.
const HALTED: u32 = 1 << 11;

#[derive(Debug)]
struct Chip {
    control: u32,
    /// It can't be halted.
    locked: bool,
    /// Configured, in the count's register.
    count: u32,
    fed: u32,
    accesses: usize,
}

impl Chip {
    fn new(halted: bool, locked: bool) -> Chip {
        let control = if halted { HALTED | 0x201 } else { 0x201 };
        Chip { control, locked, count: 0xF000_0405, fed: 0, accesses: 0 }
    }
}

impl WatchdogRegisters for Chip {
    fn read(&mut self, register: WatchdogRegister) -> u32 {
        self.accesses += 1;
        match register {
            CONTROL => self.control,
            COUNT => self.count,
            _ => panic!("{register:?} isn't to be read"),
        }
    }

    fn write(&mut self, register: WatchdogRegister, value: u32) {
        self.accesses += 1;
        match register {
            CONTROL if self.locked => self.control = value & !HALTED | self.control & HALTED,
            CONTROL => self.control = value,
            RELOAD => self.fed += 1,
            _ => panic!("{register:?} isn't to be written"),
        }
    }
}

fn step(action: u8, operation: Operation, register: WatchdogRegister, value: u32) -> Instruction {
    let mask = if register == CONTROL { 1 } else { 0xFF };
    Instruction { action, operation: Some((operation, register)), value, mask }
}

fn is_running() -> Instruction {
    step(IS_RUNNING, Operation::Compare, CONTROL, 0)
}

fn stop() -> Instruction {
    step(STOP, Operation::Write { preserve: true }, CONTROL, 1)
}

fn feed() -> Instruction {
    step(FEED, Operation::Write { preserve: false }, RELOAD, 1)
}

fn watchdog(instructions: &[Instruction]) -> Watchdog {
    let instructions = instructions.to_vec();
    Watchdog { period_ms: 600, least_count: 2, most_count: 0x20, instructions }
}

#[test]
fn one_that_is_halted_is_left() {
    let mut chip = Chip::new(true, false);
    assert_eq!(watchdog(&[is_running(), stop(), feed()]).quiet(&mut chip), Quieted::Idle);
    assert_eq!((chip.control, chip.fed), (HALTED | 0x201, 0));
}

#[test]
fn one_that_runs_is_stopped_and_asked() {
    let mut chip = Chip::new(false, false);
    assert_eq!(watchdog(&[stop(), is_running(), feed()]).quiet(&mut chip), Quieted::Stopped);
    assert_eq!((chip.control, chip.fed), (HALTED | 0x201, 0), "its other bits stay");
    // The other question.
    let is_stopped = step(IS_STOPPED, Operation::Compare, CONTROL, 1);
    let other = watchdog(&[stop(), is_stopped, feed()]);
    assert_eq!(other.quiet(&mut Chip::new(false, false)), Quieted::Stopped);
    assert_eq!(other.quiet(&mut Chip::new(true, false)), Quieted::Idle);
}

#[test]
fn one_that_goes_on_is_fed() {
    let configured = step(CONFIGURED_COUNT, Operation::Count, COUNT, 0);
    // 0x40 counts are configured, 0x20 are the most: 19.2 s, a quarter of them.
    let fed = Quieted::Fed { every_ms: 4_800 };
    for (instructions, locked) in [
        (vec![is_running(), stop(), feed(), configured], true),
        (vec![is_running(), feed(), configured], false),
        (vec![feed(), configured], false),
        (vec![stop(), feed(), configured], false),
    ] {
        let mut chip = Chip::new(false, locked);
        assert_eq!(watchdog(&instructions).quiet(&mut chip), fed, "{instructions:?}");
        assert_eq!(chip.fed, 1);
    }
    // As configured.
    let mut chip = Chip { count: 0x105, ..Chip::new(false, true) };
    let table = watchdog(&[feed(), configured]);
    assert_eq!(table.quiet(&mut chip), Quieted::Fed { every_ms: 2_400 });
    // Nobody says: the shortest.
    let mut chip = Chip { count: 5, ..Chip::new(false, true) };
    let shortest = Quieted::Fed { every_ms: 300 };
    assert_eq!(
        (table.quiet(&mut chip), watchdog(&[feed()]).quiet(&mut chip)),
        (shortest, shortest)
    );
}

#[test]
fn an_action_with_a_gap_is_not_begun() {
    let gap = |action| Instruction { operation: None, ..step(action, Operation::Count, COUNT, 0) };
    let mut chip = Chip::new(false, false);
    let table = watchdog(&[feed(), gap(FEED), stop(), gap(STOP), is_running()]);
    assert_eq!(table.quiet(&mut chip), Quieted::Running);
    assert_eq!((chip.control, chip.fed), (0x201, 0));
    assert_eq!(watchdog(&[]).quiet(&mut chip), Quieted::Running);
}

fn any_step() -> impl Strategy<Value = Instruction> {
    let operations = prop_oneof![
        Just(Some((Operation::Compare, CONTROL))),
        Just(Some((Operation::Count, COUNT))),
        any::<bool>().prop_map(|preserve| Some((Operation::Write { preserve }, CONTROL))),
        Just(Some((Operation::Write { preserve: false }, RELOAD))),
        Just(None),
    ];
    (0u8..14, operations, any::<u32>(), any::<u32>())
        .prop_map(|(action, operation, value, mask)| Instruction { action, operation, value, mask })
}

proptest! {
    /// Whatever the table says, what is told is so, after few accesses.
    #[test]
    fn what_is_told_is_so(
        steps in proptest::collection::vec(any_step(), 0..40),
        halted: bool, locked: bool, counts: (u32, u32), period in 1..u32::MAX,
    ) {
        let (least_count, most_count) = (counts.0.min(counts.1), counts.0.max(counts.1));
        let table = Watchdog { period_ms: period, least_count, most_count, instructions: steps };
        let mut chip = Chip::new(halted, locked);
        let quieted = table.quiet(&mut chip);
        prop_assert!(chip.accesses <= 8 * table.instructions.len());
        match quieted {
            Quieted::Idle | Quieted::Stopped => prop_assert_eq!(table.runs(&mut chip), Some(false)),
            Quieted::Fed { every_ms } => {
                prop_assert!(every_ms >= 1 && table.feed(&mut chip));
            }
            Quieted::Running => prop_assert!(!table.feed(&mut chip)),
        }
    }
}
