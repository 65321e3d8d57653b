//! A polling core's schedule under queues that come, go, lie and fill up at any time, any settings,
//! and clocks that misbehave.
//!
//! Only polled queues of VMs below their limits have turns, and only where something waits; one
//! that waits isn't passed over for ever, looks are bounded, and what comes while kicks are
//! re-armed is seen.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use sidecore::{
    BATCH, BATCH_COST, BYTES_PER_LOOK, LOOKS, Look, Next, Piece, Schedule, Settings, Share, Turn,
};

const QUEUES: usize = 6;

#[derive(Arbitrary, Debug)]
struct Input {
    usual: bool,
    settings: [u64; 8],
    calls: Vec<Call>,
}

#[derive(Arbitrary, Debug)]
enum Call {
    Share {
        vm: u8,
        weight: u32,
        requests: Option<u64>,
        bytes: Option<u64>,
    },
    Join {
        queue: u8,
        vm: u8,
    },
    Leave {
        queue: u8,
    },
    Kick {
        queue: u8,
    },
    Fill {
        queue: u8,
        chains: u16,
    },
    /// Turns, each of some pieces of this size.
    Run {
        turns: u8,
        pieces: u8,
        bytes: u64,
        requests: u8,
        ticks: u32,
    },
    Rest,
    Stray {
        queue: u8,
        bytes: u64,
    },
    Clock {
        now: u64,
    },
    Preempted,
}

struct Rings {
    waiting: [u16; QUEUES],
    joined: [bool; QUEUES],
    looks: u64,
}

impl Look for Rings {
    fn waiting(&mut self, queue: usize) -> u16 {
        assert!(self.joined[queue]);
        self.looks += 1;
        self.waiting[queue]
    }
}

fuzz_target!(|input: Input| {
    let [ticks_per_second, min_bytes, max_bytes, work_stuck, queue_stuck, idle, burst, credit] =
        input.settings;
    let settings = Settings {
        ticks_per_second,
        min_bytes,
        max_bytes,
        work_stuck,
        queue_stuck,
        idle,
        burst,
        credit,
        whole_turns: idle % 2 == 1,
        adapts: burst % 2 == 1,
    };
    let settings = if input.usual { Settings::usual(2_500_000_000) } else { settings };
    let mut schedule = Schedule::new(settings, QUEUES, QUEUES);
    let mut rings = Rings { waiting: [0; QUEUES], joined: [false; QUEUES], looks: 0 };
    let mut now = 0_u64;
    for call in input.calls {
        match call {
            Call::Share { vm, weight, requests, bytes } => {
                schedule.set_share(vm.into(), Share { weight, requests, bytes });
            }
            Call::Join { queue, vm } => {
                let (queue, vm) = (usize::from(queue), usize::from(vm));
                let joins = schedule.join(queue, vm);
                assert_eq!(joins, queue < QUEUES && vm < QUEUES);
                if let Some(joined) = rings.joined.get_mut(queue) {
                    *joined = joins;
                }
                assert!(!schedule.is_polled(queue));
            }
            Call::Leave { queue } => {
                schedule.leave(queue.into());
                if let Some(joined) = rings.joined.get_mut(usize::from(queue)) {
                    *joined = false;
                }
            }
            Call::Kick { queue } => {
                let queue = usize::from(queue);
                let was_polled = schedule.is_polled(queue);
                let joined = rings.joined.get(queue) == Some(&true);
                assert_eq!(schedule.kicked(queue, now), joined && !was_polled);
                assert_eq!(schedule.is_polled(queue), joined);
            }
            Call::Fill { queue, chains } => rings.waiting[usize::from(queue) % QUEUES] = chains,
            Call::Run { turns, pieces, bytes, requests, ticks } => {
                for _ in 0..turns {
                    now = now.wrapping_add(ticks.into());
                    rings.looks = 0;
                    let turn = schedule.next(now, &mut rings);
                    assert!(rings.looks <= QUEUES as u64);
                    match turn {
                        Turn::Serve(queue) => {
                            assert!(schedule.is_polled(queue));
                            for _ in 0..pieces {
                                let batch = schedule.batch();
                                assert!((1..=BATCH).contains(&batch.requests));
                                assert!((1..=BATCH_COST).contains(&batch.cost));
                                let waiting = &mut rings.waiting[queue];
                                *waiting = waiting.saturating_sub(requests.into());
                                rings.looks = 0;
                                now = now.wrapping_add(ticks.into());
                                let next = {
                                    let piece =
                                        Piece { cost: bytes, bytes, requests: requests.into() };
                                    schedule.served(queue, piece, now, &mut rings)
                                };
                                let cost = bytes.max(512 * u64::from(requests.max(1)));
                                let looks = LOOKS * u64::from(requests.max(1));
                                let most = looks + cost / BYTES_PER_LOOK + 1;
                                assert!(rings.looks <= most.min(QUEUES as u64));
                                if next == Next::Switch {
                                    break;
                                }
                                assert!(rings.waiting[queue] > 0);
                            }
                        }
                        Turn::Sleep(queue) => {
                            assert!(rings.waiting[queue] == 0);
                            // A request comes, or doesn't.
                            rings.waiting[queue] = u16::from(requests % 2);
                            let sleeps = schedule.sleep(queue, now, &mut rings);
                            assert_eq!(sleeps, rings.waiting[queue] == 0);
                            assert_eq!(schedule.is_polled(queue), !sleeps);
                        }
                        Turn::Nothing => {}
                    }
                }
            }
            Call::Rest => {
                if let Turn::Serve(queue) = schedule.next(now, &mut rings) {
                    schedule.rest(queue);
                    let again = schedule.next(now, &mut rings);
                    assert_ne!(again, Turn::Serve(queue), "others come first");
                }
            }
            Call::Stray { queue, bytes } => {
                schedule.next(now, &mut rings);
                let queue = usize::from(queue);
                if rings.joined.get(queue) != Some(&true) {
                    assert_eq!(
                        schedule.served(
                            queue,
                            Piece { cost: bytes, bytes, requests: 1 },
                            now,
                            &mut rings
                        ),
                        Next::Switch
                    );
                    schedule.rest(queue);
                    assert!(schedule.sleep(queue, now, &mut rings));
                }
            }
            Call::Preempted => schedule.preempted(now),
            Call::Clock { now: then } => now = then,
        }
    }
    // Whatever was: a queue that waits, in a VM without limits, has a turn, and so has every other.
    for queue in 0..QUEUES {
        schedule.set_share(queue, Share::default());
        rings.joined[queue] = schedule.join(queue, queue);
        assert!(schedule.kicked(queue, now));
        rings.waiting[queue] = 1;
    }
    let mut served = [0; QUEUES];
    for _ in 0..20 * QUEUES {
        let Turn::Serve(queue) = schedule.next(now, &mut rings) else { panic!("all wait") };
        schedule.served(queue, Piece { cost: 4096, bytes: 4096, requests: 1 }, now, &mut rings);
        served[queue] += 1;
    }
    assert!(served.iter().all(|turns| (18..=22).contains(turns)), "{served:?}");
});
