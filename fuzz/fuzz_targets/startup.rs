//! INIT, start-up and stop of a vCPU by any sender at any moment, its owner slow or quick: one
//! wake-up for each sleep, a start-up right behind an INIT is kept, one that finds the vCPU running
//! is ignored.
#![no_main]

use arbitrary::Arbitrary;
use delivery::{Found, Signal, Startup};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Step {
    Init,
    StartUp(u8),
    Stop,
    /// The owner looks: asleep at its wake-up alone, else at any time.
    Look,
    /// Its VM ended, and it left.
    Leave,
}

/// What a processor of a PC would do.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Processor {
    Waiting,
    Running,
    /// It has had a start-up that it doesn't know of yet.
    Starting(u8),
}

fuzz_target!(|input: (bool, Vec<Step>)| {
    let (first, steps) = input;
    let mut word = if first { Startup::RUNNING } else { Startup::WAITING };
    let mut real = if first { Processor::Running } else { Processor::Waiting };
    let (mut asleep, mut wakes, mut left, mut stopped) = (!first, 0, false, false);
    for step in steps {
        word = Startup::from_bits(word.bits());
        let (next, signal) = match step {
            Step::Init => {
                if !left {
                    real = Processor::Waiting;
                }
                word.init()
            }
            Step::StartUp(page) => {
                if real == Processor::Waiting && !left {
                    real = Processor::Starting(page);
                }
                word.start_up(page)
            }
            Step::Stop => {
                stopped = true;
                word.stop()
            }
            Step::Look if left => (word, Signal::None),
            Step::Look => {
                if asleep && wakes == 0 {
                    assert_eq!(word.woken().acknowledge().1, Found::Waiting);
                    (word, Signal::None)
                } else {
                    if asleep {
                        wakes -= 1;
                        word = word.woken();
                    }
                    let (next, found) = word.acknowledge();
                    match found {
                        Found::StartUp(page) => {
                            assert_eq!(real, Processor::Starting(page));
                            real = Processor::Running;
                        }
                        Found::Waiting => assert_eq!(real, Processor::Waiting),
                        // Woken for the end of its VM, and not started.
                        Found::Running => {
                            assert!(real == Processor::Running || stopped, "{real:?}");
                            real = Processor::Running;
                        }
                    }
                    asleep = found == Found::Waiting;
                    assert!(next.running() != asleep && !next.init_pending());
                    (next, Signal::None)
                }
            }
            Step::Leave => {
                left |= !asleep;
                (if asleep { word } else { word.left() }, Signal::None)
            }
        };
        word = next;
        match signal {
            Signal::Wake => {
                assert!(asleep && !left, "woken while it runs");
                wakes += 1;
            }
            Signal::Kick => assert!(!asleep && !left),
            Signal::None => {}
        }
        assert!(wakes <= usize::from(asleep), "a wake-up is left over");
        assert!(!left || !word.running());
    }
});
