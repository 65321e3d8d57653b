//! The paper's figures one by one, and a transcription of its listings.

mod adapted;
mod guarantees;

use super::*;
use Verdict::{Deliver, Withhold};

/// 1 tick is 1 ns.
const SECOND: u64 = 1_000_000_000;
const PAPER: Settings = Settings::paper(SECOND);

/// Algorithms 1 and 2 as they are printed, with the reset of epochStart that they omit.
struct Listing {
    count_up: u64,
    skip_up: u64,
    counter: u64,
    epoch_start: u64,
    completions: u64,
    t: u64,
}

impl Listing {
    fn new(t: u64, now: u64) -> Self {
        Listing { count_up: 1, skip_up: 1, counter: 1, epoch_start: now, completions: 0, t }
    }

    fn recalc(&mut self, cif: u64, iops: f64) {
        let t = self.t;
        if iops < 2000.0 || cif < t {
            (self.count_up, self.skip_up) = (1, 1);
        } else if cif < 2 * t {
            (self.count_up, self.skip_up) = (4, 5);
        } else if cif < 3 * t {
            (self.count_up, self.skip_up) = (3, 4);
        } else if cif < 4 * t {
            (self.count_up, self.skip_up) = (2, 3);
        } else {
            (self.count_up, self.skip_up) = (1, cif / (2 * t));
        }
    }

    fn completed(&mut self, now: u64, cif: u64) -> Verdict {
        self.completions += 1;
        let diff = now - self.epoch_start;
        if diff > PAPER.epoch {
            self.recalc(cif, self.completions as f64 * SECOND as f64 / diff as f64);
            self.epoch_start = now;
            self.completions = 0;
        }
        if cif < self.t {
            self.counter = 1;
            Deliver
        } else if self.counter < self.count_up {
            self.counter += 1;
            Deliver
        } else if self.counter >= self.skip_up {
            self.counter = 1;
            Deliver
        } else {
            self.counter += 1;
            Withhold
        }
    }
}

/// A guest that keeps so many commands in flight, completed at this distance.
struct Guest {
    coalescer: Coalescer,
    now: u64,
    /// When what is withheld was completed.
    withheld: Vec<u64>,
    /// For how long each completion told since it settled had been withheld.
    delays: Vec<u64>,
    interrupts: usize,
}

impl Guest {
    fn new(settings: Settings) -> Self {
        let coalescer = Coalescer::new(settings, 0);
        Guest { coalescer, now: 0, withheld: vec![], delays: vec![], interrupts: 0 }
    }

    fn interrupt(&mut self) {
        self.coalescer.delivered(self.now);
        self.interrupts += 1;
        let now = self.now;
        self.delays.extend(self.withheld.drain(..).map(|then| now - then));
    }

    /// Time passes; a polling core looks at the deadline all along.
    fn pass(&mut self, ticks: u64) {
        let end = self.now + ticks;
        if let Some(deadline) = self.coalescer.deadline()
            && deadline <= end
        {
            assert!(deadline == self.now || !self.coalescer.due(deadline - 1));
            self.now = deadline;
            assert!(self.coalescer.due(self.now));
            self.interrupt();
            assert_eq!(self.coalescer.deadline(), None);
        }
        self.now = end;
    }

    fn complete(&mut self, in_flight: u32) -> Verdict {
        self.withheld.push(self.now);
        let verdict = self.coalescer.completed(self.now, in_flight);
        match verdict {
            Deliver => self.interrupt(),
            Withhold => assert!(self.coalescer.deadline().is_some()),
        }
        verdict
    }

    fn run(&mut self, completions: u32, distance: u64, in_flight: u32) {
        for _ in 0..completions {
            self.pass(distance);
            self.complete(in_flight);
        }
    }

    /// Until an epoch has set the ratio; a run of it begins.
    fn settle(&mut self, distance: u64, in_flight: u32) {
        self.run((2 * PAPER.epoch / distance) as u32 + 2, distance, in_flight);
        self.interrupt();
        self.coalescer.counter = 1;
        self.delays.clear();
        self.interrupts = 0;
    }
}

/// The verdicts of a ratio, from the beginning of a run.
fn verdicts(count_up: u32, skip_up: u32, completions: usize) -> Vec<Verdict> {
    let mut coalescer = Coalescer::new(PAPER, 0);
    coalescer.ratio = Ratio { count_up, skip_up };
    (0..completions).map(|_| coalescer.completed(0, 1_000)).collect()
}

#[test]
fn the_papers_check_vectors() {
    assert_eq!(verdicts(3, 4, 4), [Deliver, Deliver, Withhold, Deliver]);
    assert_eq!(verdicts(1, 5, 5), [Withhold, Withhold, Withhold, Withhold, Deliver]);
}

#[test]
fn a_ratio_is_what_it_says() {
    for (count_up, skip_up) in [(1, 1), (4, 5), (3, 4), (2, 3), (1, 2), (1, 8), (1, 16)] {
        let verdicts = verdicts(count_up, skip_up, 10 * skip_up as usize);
        let delivered = verdicts.iter().filter(|verdict| **verdict == Deliver).count();
        assert_eq!(delivered, 10 * count_up as usize, "{count_up}/{skip_up}");
    }
}

#[test]
fn the_papers_table_of_ratios() {
    let ratio = |in_flight, threshold| {
        let Ratio { count_up, skip_up } = Ratio::of(in_flight, threshold);
        (count_up, skip_up)
    };
    let table = [(0, 1, 1), (3, 1, 1), (4, 4, 5), (7, 4, 5), (8, 3, 4), (11, 3, 4), (12, 2, 3)];
    for (in_flight, count_up, skip_up) in table {
        assert_eq!(ratio(in_flight, 4), (count_up, skip_up), "{in_flight}");
    }
    for (in_flight, skip_up) in [(15, 3), (16, 2), (23, 2), (24, 3), (32, 4), (64, 8), (128, 16)] {
        assert_eq!(ratio(in_flight, 4).1, skip_up, "{in_flight}");
    }
    assert_eq!((ratio(8, 2), ratio(64, 2)), ((1, 2), (1, 16)));
    assert_eq!(ratio(u32::MAX, 1), (1, u32::MAX / 2));
    assert_eq!(ratio(u32::MAX, u16::MAX.into()), (1, u32::MAX / (2 * u32::from(u16::MAX))));
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn sixty_four_in_flight_take_an_eighth_of_the_interrupts() {
    let mut guest = Guest::new(PAPER);
    guest.settle(20_000, 64);
    assert_eq!(guest.coalescer.ratio(), Ratio { count_up: 1, skip_up: 8 });
    guest.run(8_000, 20_000, 64);
    assert_eq!(guest.interrupts, 1_000);
    // Counted after the completion, the guest's 64 are 63.
    let mut guest = Guest::new(PAPER);
    guest.settle(20_000, 63);
    guest.run(7_000, 20_000, 63);
    assert_eq!(guest.interrupts, 1_000);
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn one_command_at_a_time_is_never_withheld() {
    let mut guest = Guest::new(PAPER);
    guest.settle(10_000, 64);
    guest.run(1, 10_000, 64);
    assert_eq!(guest.withheld.len(), 1);
    // The 64 are gone: from the next completion on every one is told.
    for in_flight in [3, 2, 1, 0, 0, 0] {
        guest.pass(10_000);
        assert_eq!(guest.complete(in_flight), Deliver);
    }
}

#[test]
fn few_completions_a_second_are_never_withheld() {
    let mut guest = Guest::new(PAPER);
    guest.settle(SECOND / 1_999, 64);
    guest.run(1_000, SECOND / 1_999, 64);
    assert_eq!(guest.interrupts, 1_000);
    let mut guest = Guest::new(PAPER);
    guest.settle(SECOND / 2_001, 16);
    guest.run(1_000, SECOND / 2_001, 16);
    assert!(guest.interrupts < 1_000);
}

/// (1/R - 1)/IOPS at worst, and half of that on average. The paper's 200 us at R = 1/3 and 10,000
/// I/Os a second, which it calls the mean, are the worst.
#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn the_delay_is_what_the_formula_says() {
    for (in_flight, skip_up, distance) in [(24, 3, 100_000), (64, 8, 20_000), (128, 16, 5_000)] {
        let mut guest = Guest::new(PAPER);
        guest.settle(distance, in_flight);
        guest.run(100 * skip_up as u32, distance, in_flight);
        let worst = (skip_up - 1) * distance;
        assert_eq!(guest.delays.iter().max(), Some(&worst));
        assert_eq!(guest.delays.iter().sum::<u64>() / guest.delays.len() as u64, worst / 2);
    }
}

/// By the formula it would be 3.5 ms at 2,000 I/Os a second, though the rate is what it was.
#[test]
fn the_bound_holds_where_the_ratio_alone_would_break_it() {
    let mut guest = Guest::new(PAPER);
    let distance = SECOND / 2_500;
    guest.settle(distance, 64);
    assert_eq!(guest.coalescer.ratio().skip_up, 8);
    guest.run(8_000, distance, 64);
    guest.pass(SECOND);
    assert_eq!(guest.delays.iter().max(), Some(&PAPER.longest()));
    assert_eq!(guest.interrupts, 4_000, "two by two");
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn io_that_stops_within_an_epoch_is_told_by_the_deadline() {
    let mut guest = Guest::new(PAPER);
    guest.settle(10_000, 64);
    guest.run(3, 10_000, 64);
    let first = guest.withheld[0];
    assert_eq!((guest.withheld.len(), guest.interrupts), (3, 0));
    assert_eq!(guest.coalescer.deadline(), Some(first + 500_000));
    guest.pass(10 * SECOND);
    assert_eq!((guest.withheld.len(), guest.interrupts), (0, 1));
    assert_eq!(guest.delays.iter().max(), Some(&500_000));
    // The epoch is long over: the next one is told at once, and so is the rest at this rate.
    guest.run(100, SECOND / 10, 64);
    assert_eq!(guest.interrupts, 101);
}

#[test]
fn a_completion_that_comes_when_it_is_due_delivers_and_begins_a_run() {
    let mut coalescer = Coalescer::new(PAPER, 0);
    coalescer.ratio = Ratio { count_up: 1, skip_up: 4 };
    assert_eq!(coalescer.completed(0, 64), Withhold);
    assert_eq!(coalescer.completed(499_999, 64), Withhold);
    assert_eq!(coalescer.completed(500_000, 64), Deliver);
    coalescer.delivered(500_000);
    let next: Vec<_> = (0..4).map(|_| coalescer.completed(600_000, 64)).collect();
    assert_eq!(next, [Withhold, Withhold, Withhold, Deliver]);
}

#[test]
fn a_run_goes_on_after_an_interrupt_of_its_own() {
    let mut coalescer = Coalescer::new(PAPER, 0);
    coalescer.ratio = Ratio { count_up: 3, skip_up: 4 };
    for verdict in [Deliver, Deliver, Withhold, Deliver, Deliver, Deliver, Withhold, Deliver] {
        assert_eq!(coalescer.completed(7, 64), verdict);
        if verdict == Deliver {
            coalescer.delivered(7);
        }
    }
}

#[test]
fn what_the_driver_does_not_want_is_not_owed() {
    let mut coalescer = Coalescer::new(PAPER, 0);
    coalescer.ratio = Ratio { count_up: 1, skip_up: 4 };
    assert_eq!(coalescer.completed(0, 64), Withhold);
    coalescer.settled();
    assert!(coalescer.deadline().is_none() && !coalescer.due(SECOND));
    assert!(!coalescer.defer_ipi(SECOND), "no interrupt was sent yet");
}

#[test]
fn an_ipi_is_left_out_for_a_tenth_of_a_millisecond() {
    let mut coalescer = Coalescer::new(PAPER, 0);
    assert!(!coalescer.defer_ipi(0), "there was none before");
    coalescer.delivered(1_000);
    assert!(coalescer.defer_ipi(1_000) && coalescer.defer_ipi(51_000));
    assert_eq!(coalescer.deadline(), Some(101_000));
    assert!(!coalescer.due(100_999) && coalescer.due(101_000));
    assert!(!coalescer.defer_ipi(101_000), "it is due");
    coalescer.delivered(101_000);
    assert_eq!(coalescer.deadline(), None);
    assert!(!coalescer.defer_ipi(201_000), "the last one is long ago");
}

/// Half a turn of the counter after an instant it is neither before it nor behind it: what waits
/// is due.
#[test]
fn a_clock_that_jumps_by_half_a_turn_prolongs_nothing() {
    const JUMP: u64 = 1 << 63;
    let settings = Settings { iops_threshold: u64::MAX, ipi_deferral: u64::MAX, ..PAPER };
    assert_eq!(settings.longest(), 0);
    let mut coalescer = Coalescer::new(settings, 0);
    coalescer.delivered(0);
    assert!(coalescer.defer_ipi(0) && coalescer.due(0));
    for now in [JUMP - 1, JUMP, JUMP + 1] {
        let mut later = coalescer.clone();
        if later.defer_ipi(now) {
            let rest = later.deadline().map(|deadline| deadline.wrapping_sub(now));
            assert_eq!(rest, Some(0), "{now:#x}");
        } else {
            assert!(later.due(now), "{now:#x}");
        }
    }
}

#[test]
fn an_ipi_that_is_left_out_moves_no_deadline() {
    let mut coalescer = Coalescer::new(Settings { ipi_deferral: SECOND, ..PAPER }, 0);
    coalescer.delivered(0);
    coalescer.ratio = Ratio { count_up: 1, skip_up: 2 };
    assert_eq!(coalescer.completed(10, 64), Withhold);
    assert_eq!(coalescer.completed(20, 64), Deliver);
    assert!(coalescer.defer_ipi(20));
    assert_eq!(coalescer.deadline(), Some(10 + PAPER.longest()));
}

#[test]
fn nothing_is_withheld_where_all_is_told() {
    let mut coalescer = Coalescer::new(Settings::all_told(SECOND), 0);
    // All that the longest ring and a device may have, for many epochs.
    for now in (0..4_000).map(|n| n * SECOND / 1000) {
        assert_eq!(coalescer.completed(now, 32_768 + 256), Deliver);
        assert_eq!(coalescer.completed_together(64, now, 32_768), (true, 0));
    }
}

#[test]
fn the_settings_are_the_papers() {
    let Settings { iops_threshold, cif_threshold, epoch, ipi_deferral, .. } = PAPER;
    assert_eq!((iops_threshold, cif_threshold), (2_000, 4));
    assert_eq!((epoch, ipi_deferral), (SECOND / 5, SECOND / 10_000));
    assert_eq!(PAPER.longest(), SECOND / 2_000);
    assert_eq!(Settings { iops_threshold: 0, ..PAPER }.longest(), SECOND);
}
