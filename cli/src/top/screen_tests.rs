//! Keys in, and what a terminal of a size shows.

use super::*;
use crate::top::{
    rates::{VcpuRates, VmRates},
    served::{QueueRates, SidecoreRates, Sidecores},
    state::{QueueState, VcpuState, VmState},
};
use ledger::{Counters, Reason};
use proptest::prelude::*;
use proto::{Served, ServedDevice};
use ratatui::{Terminal, backend::TestBackend};

/// A VM that traps and one that doesn't.
fn screen() -> Screen {
    let tally = |exits: f64, host_share, reasons: Vec<(Reason, f64)>| {
        let mut total = Counters { exits: vec![0; Reason::COUNT], ..Counters::default() };
        for (reason, n) in &reasons {
            total.exits[*reason as usize] = *n as u64 * 1000;
        }
        Tally { exits, injected: exits / 2.0, host_share, reasons, total, ..Tally::default() }
    };
    let vm = |name: &str, policy: &str, vcpus| VmRates {
        name: name.to_owned(),
        policy: Some(policy.to_owned()),
        state: "running".to_owned(),
        vcpus,
    };
    let quiet = VcpuRates { core: 1, rates: tally(1.5, 0.0001, vec![(Reason::Cpuid, 1.5)]) };
    let reasons = vec![(Reason::DeviceInterrupt, 1200.0), (Reason::DeviceEoi, 300.0)];
    let busy = VcpuRates { core: 2, rates: tally(1500.0, 0.1234, reasons) };
    let vms = vec![vm("web", "direct", vec![quiet]), vm("database", "trap", vec![busy])];
    Screen { rates: Rates { seconds: 1.0, vms, ..Rates::default() }, ..Screen::new(4242) }
}

fn shown(screen: &Screen, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    let buffer = terminal.backend().buffer();
    let lines = buffer.content().chunks(width.into());
    lines
        .map(|cells| {
            let line: String = cells.iter().map(|c| c.symbol()).collect();
            line.trim_end().to_owned() + "\n"
        })
        .collect()
}

fn press(screen: &mut Screen, code: KeyCode) -> Wish {
    screen.key(KeyEvent::new(code, KeyModifiers::NONE))
}

#[test]
fn eighty_columns() {
    let expected = "\
exitless 4242 · 2 VMs · 2 vCPUs · over 1.00 s of the machine's clock
VM                        CORE POLICY STATE         EXITS/S INJECTED/S HOST TIME
database                     2 trap   running         1,500        750   12.34 %
web                          1 direct running           1.5        0.8    0.01 %

EXITS OF all BY REASON                         EXITS/S     SHARE          IN ALL
device-interrupt                                 1,200   79.92 %       1,200,000
device-eoi                                         300   19.98 %         300,000
cpuid                                              1.5    0.10 %           1,000

q quit  ↑↓ whose exits  ←→ sort: host share  space hold
";
    assert_eq!(shown(&screen(), 80, 11), expected);
}

/// The same with a sidecore.
fn with_sidecore() -> Screen {
    let mut screen = screen();
    let core = SidecoreRates { core: 3, passes: 5e5, found: 0.5, busy: 0.25, ..Default::default() };
    let queue = QueueRates {
        vm: (1, "database".to_owned()),
        completed: 1_000.0,
        bytes: 4_096_000.0,
        calls: 500.0,
        kicks: 0.0,
        held: 0.5,
        total: QueueState {
            device: ServedDevice::Disk(0),
            queue: 0,
            core: 2,
            features: 1 << 32,
            served: Served::default(),
        },
    };
    screen.rates.sidecores = Sidecores { cores: vec![core], queues: vec![queue] };
    screen
}

#[test]
fn sidecores_stand_between_the_vcpus_and_the_reasons() {
    let expected = "\
exitless 4242 · 2 VMs · 2 vCPUs · over 1.00 s of the machine's clock
VM                        CORE POLICY STATE         EXITS/S INJECTED/S HOST TIME
database                     2 trap   running         1,500        750   12.34 %
web                          1 direct running           1.5        0.8    0.01 %

  sidecore     busy  passes/s  found work
         3  25.00 %   500,000     50.00 %

  VM        served  queue  core  done/s  MiB/s  calls/op  kicks/s  waited  limit
  database  disk0       0     2   1,000    3.9     0.500        0       0   50 %

EXITS OF all BY REASON                         EXITS/S     SHARE          IN ALL
device-interrupt                                 1,200   79.92 %       1,200,000
device-eoi                                         300   19.98 %         300,000
cpuid                                              1.5    0.10 %           1,000
q quit  ↑↓ whose exits  ←→ sort: host share  space hold
";
    assert_eq!(shown(&with_sidecore(), 80, 16), expected);
    // Where there is no room for them, the rest stays as it is.
    assert_eq!(shown(&with_sidecore(), 80, 11), shown(&screen(), 80, 11));
}

#[test]
fn forty_columns() {
    let expected = "\
exitless 4242 · 2 VMs · 2 vCPUs
VM             CORE    EXITS/S HOST TIME
database          2      1,500   12.34 %
web               1        1.5    0.01 %

EXITS OF all BY REASON           EXITS/S
";
    let text = shown(&screen(), 40, 10);
    assert!(text.starts_with(expected), "{text}");
}

#[test]
fn a_low_terminal_keeps_what_hurts_most() {
    let text = shown(&screen(), 80, 5);
    assert!(text.contains("database") && !text.contains("web"), "{text}");
}

#[test]
fn keys_choose_whose_exits_are_shown() {
    let mut s = screen();
    let mut after = |code| {
        press(&mut s, code);
        let text = shown(&s, 80, 12);
        text.lines().find(|l| l.contains("REASON")).unwrap().split(' ').nth(2).unwrap().to_owned()
    };
    assert_eq!(after(KeyCode::Up), "all");
    assert_eq!(after(KeyCode::Down), "database");
    assert_eq!(after(KeyCode::Down), "web");
    assert_eq!(after(KeyCode::Down), "web");
    // The choice is of a vCPU, not of a line.
    assert_eq!(after(KeyCode::Right), "web");
    assert_eq!(after(KeyCode::Home), "all");
    assert_eq!(after(KeyCode::End), "database");
}

#[test]
fn keys_sort_and_leave() {
    let mut s = screen();
    let order = |s: &Screen| rows(&s.rates, s.sort).iter().map(Row::name).collect::<Vec<_>>();
    assert_eq!((s.sort, order(&s)), (Sort::HostShare, vec!["database".into(), "web".to_owned()]));
    press(&mut s, KeyCode::Right);
    assert_eq!((s.sort, order(&s)), (Sort::Plan, vec!["web".into(), "database".to_owned()]));
    press(&mut s, KeyCode::Left);
    assert_eq!(s.sort, Sort::HostShare);
    assert_eq!(press(&mut s, KeyCode::Char('x')), Wish::Stay);
    assert_eq!(press(&mut s, KeyCode::Char('c')), Wish::Stay);
    assert_eq!(press(&mut s, KeyCode::Char('q')), Wish::Quit);
    assert_eq!(s.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), Wish::Quit);
}

/// A state in which the one VM had so many exits so far, a second later each time.
fn snapshot(seconds: u64, exits: u64) -> Snapshot {
    let counters = Counters { exits: vec![exits], ..Counters::default() };
    let vcpus = vec![VcpuState { core: 1, now: seconds * 1000, counters }];
    let vm = VmState { name: "a".into(), vcpus, ..VmState::default() };
    Snapshot { tsc_hz: 1000, vms: vec![vm], ..Snapshot::default() }
}

#[test]
fn states_become_rates_unless_the_screen_is_held() {
    let mut s = Screen::new(1);
    s.hear(snapshot(1, 100));
    assert_eq!((s.rates.seconds, s.rates.sum().exits), (0.0, 0.0));
    s.hear(snapshot(2, 130));
    assert_eq!(s.rates.sum().exits, 30.0);
    press(&mut s, KeyCode::Char(' '));
    s.hear(snapshot(3, 500));
    assert_eq!(s.rates.sum().exits, 30.0);
    assert!(shown(&s, 80, 8).contains("held"));
    press(&mut s, KeyCode::Char(' '));
    s.hear(snapshot(4, 507));
    assert_eq!(s.rates.sum().exits, 7.0);
}

#[test]
fn silence_is_shown_until_the_next_answer() {
    let mut s = screen();
    assert!(s.silent(Some(5)) && !s.silent(Some(5)));
    assert!(shown(&s, 60, 8).contains("no answer for 5 s"));
    s.hear(snapshot(1, 1));
    assert!(!shown(&s, 60, 8).contains("no answer"));
}

proptest! {
    #[test]
    fn any_size_and_any_keys_will_do(
        width in 1u16..200, height in 1u16..60, keys in prop::collection::vec(0usize..8, 0..6),
    ) {
        let codes = [
            KeyCode::Up, KeyCode::Down, KeyCode::Left, KeyCode::Right, KeyCode::Home, KeyCode::End,
            KeyCode::Char(' '), KeyCode::F(1),
        ];
        let mut s = with_sidecore();
        for key in keys {
            press(&mut s, codes[key]);
        }
        shown(&s, width, height);
        shown(&Screen::new(1), width, height);
    }
}
