//! What the hypervisor tells the command line, as records in a byte stream:
//! postcard, COBS-framed, each ended by a zero byte, so that a reader that joins
//! late or loses bytes finds the next record.

use crate::{Policy, Served, ServedDevice, offer::Offer};
use alloc::{string::String, vec::Vec};
use core::fmt;
use ledger::Counters;
use serde::{Deserialize, Serialize};

/// The longest record a decoder collects; longer ones are dropped whole.
const MAX_RECORD: usize = 4096;

/// How a VM ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// The guest powered itself off.
    PowerOff,
    /// The guest asked for a reset.
    Reset,
    /// The guest wrote this value to the debug-exit port.
    DebugExit(u32),
    /// The guest did what no guest may; the text says what, and where it was.
    Fault(String),
}

/// What happened to the VM, as the rest of a sentence that begins with its name.
impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::PowerOff => f.write_str("powered off"),
            End::Reset => f.write_str("reset itself, which ends it, as the plan says"),
            End::DebugExit(value) => {
                write!(f, "wrote {value:#x} to the debug-exit port, which ends it")
            }
            End::Fault(what) => write!(f, "stopped: {what}"),
        }
    }
}

/// One thing the hypervisor reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    /// The hypervisor can't start; one sentence why.
    Refused {
        /// Names the thing, what was found, what is needed.
        reason: String,
    },
    /// The machine as probed.
    Machine {
        /// CPUs brought up.
        cpus: u32,
        /// Bytes of usable memory.
        memory: u64,
        /// TSC ticks per second, as measured against the PM timer.
        tsc_hz: u64,
        /// Bytes of memory the hypervisor keeps for itself.
        host_memory: u64,
    },
    /// A VM enters its guest for the first time.
    Started {
        /// Index of the VM in the plan.
        vm: u32,
        /// Its name.
        name: String,
        /// The policy in force.
        policy: Policy,
        /// Why this policy.
        why: String,
        /// Bytes of guest memory.
        memory: u64,
        /// Bytes of host memory spent on this VM (page tables, state).
        overhead: u64,
        /// The host core's TSC.
        now: u64,
    },
    /// The counters of a vCPU.
    Counters {
        /// Index of the VM.
        vm: u32,
        /// Index of the vCPU in the VM.
        vcpu: u32,
        /// What was counted since the VM started.
        counters: Counters,
        /// TSC cycles since the VM started.
        cycles: u64,
    },
    /// A VM ended.
    Ended {
        /// Index of the VM.
        vm: u32,
        /// How.
        end: End,
    },
    /// Something a guest did was refused, and the VM goes on.
    Incident {
        /// Index of the VM.
        vm: u32,
        /// One sentence.
        what: String,
    },
    /// The counters of a vCPU that may be running: one of the records that answer [`ASK_LIVE`].
    Live {
        /// Index of the VM.
        vm: u32,
        /// Index of the vCPU in the VM.
        vcpu: u32,
        /// Index of the core that runs it.
        core: u32,
        /// What was counted since the VM started. Each number is exact, but they are read one
        /// after the other while the vCPU goes on.
        counters: Counters,
        /// The host core's TSC when they were read.
        now: u64,
        /// How many records of this answer are still to come.
        left: u32,
    },
    /// How often the host looked over all that confines the guests, from the start on. Sent when
    /// that is something new, at most once a second, and at the end.
    Audit {
        /// Whole passes.
        passes: u64,
        /// Interrupt entries that were present and judged.
        interrupts: u64,
        /// Things that must not be; each is in the log, too.
        findings: u64,
    },
    /// The host's own core did nothing for some fifty milliseconds or more, though its timer should
    /// have come a hundred times a second: the machine stood still.
    Paused {
        /// Its TSC when it last ran before that.
        from: u64,
        /// Its TSC when it ran again.
        to: u64,
    },
    /// Every VM ended and was reported, and the machine is about to be reset or switched off, as
    /// the plan asks.
    Leaving,
    /// A part of what the machine offers: there was no plan.
    Offer(Offer),
    /// What a sidecore did for a queue of a VM's paravirtual device. Sent for each queue before the
    /// VM's [`Record::Ended`], and before the records that answer [`ASK_LIVE`].
    Paravirtual {
        /// Index of the VM.
        vm: u32,
        /// Which of its devices.
        device: ServedDevice,
        /// Which of the device's queues, counted from 0.
        queue: u32,
        /// The core that serves it now.
        core: u32,
        /// What the driver accepted of the device's features, as in the transport's words; 0 while
        /// it drives none.
        features: u64,
        /// What was done.
        served: Served,
    },
    /// What a sidecore did since it began. Sent before the records that answer [`ASK_LIVE`].
    Sidecore {
        /// The core's index.
        core: u32,
        /// Looks at all its queues.
        passes: u64,
        /// Those that found a queue to serve.
        found: u64,
        /// TSC ticks for which it served them; the rest of the time it only looked, or slept.
        busy: u64,
        /// Times that it fell asleep, for want of devices.
        sleeps: u64,
        /// It sleeps.
        asleep: bool,
        /// The host core's TSC when this was read.
        now: u64,
    },
}

/// What the command line sends on the records' channel to be sent a [`Record::Live`] for each
/// vCPU, once, and before them what sidecores did. Without it none is sent.
pub const ASK_LIVE: u8 = b'L';

/// Encodes a record for the stream. Not inlined: this crate is made small, and its callers aren't.
#[inline(never)]
pub fn encode(record: &Record) -> Vec<u8> {
    // Encoding to a growing vector can't run out of room; an empty frame would be skipped by the
    // reader.
    postcard::to_allocvec_cobs(record).unwrap_or_default()
}

/// Collects bytes, from the start of a stream, and gives the records among them.
#[derive(Default)]
pub struct RecordDecoder {
    frame: Vec<u8>,
    overlong: bool,
}

impl RecordDecoder {
    /// Takes one byte; gives a record when it completes one. Damaged frames are dropped.
    pub fn push(&mut self, byte: u8) -> Option<Record> {
        if byte != 0 {
            if self.frame.len() < MAX_RECORD {
                self.frame.push(byte);
            } else {
                self.overlong = true;
            }
            return None;
        }
        let mut frame = core::mem::take(&mut self.frame);
        if core::mem::take(&mut self.overlong) || frame.is_empty() {
            return None;
        }
        frame.push(0);
        postcard::from_bytes_cobs(&mut frame).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn feed(d: &mut RecordDecoder, bytes: &[u8]) -> Vec<Record> {
        bytes.iter().filter_map(|b| d.push(*b)).collect()
    }

    #[test]
    fn records_survive_the_stream_and_damage_costs_one_record() {
        let a = Record::Ended { vm: 1, end: End::Fault("triple fault at 0x0".into()) };
        let b = Record::Counters {
            vm: 0,
            vcpu: 0,
            counters: Counters { entries: 7, exits: alloc::vec![0, 3], ..Counters::default() },
            cycles: 99,
        };
        let served = Served { completed: u64::MAX, kicks: 1, ..Served::default() };
        let c = Record::Paravirtual {
            vm: 2,
            device: ServedDevice::Network(3),
            queue: 15,
            core: 4,
            features: u64::MAX,
            served,
        };
        let mut d = RecordDecoder::default();
        let mut bytes = encode(&a);
        bytes.extend(encode(&b));
        bytes.extend(encode(&c));
        assert_eq!(feed(&mut d, &bytes), [a.clone(), b.clone(), c]);

        let cut = encode(&a)[3..].to_vec();
        let mut d = RecordDecoder::default();
        let mut got = feed(&mut d, &cut);
        got.extend(feed(&mut d, &encode(&b)));
        assert_eq!(got.last(), Some(&b));
    }

    /// The longest there can be: as many VMs as one likes, every number at its largest.
    #[test]
    fn the_longest_live_record_fits_a_frame() {
        let most = u64::MAX;
        let counters = Counters {
            entries: most,
            host_cycles: most,
            injected: most,
            device_injected: most,
            timer_injected: most,
            slices: most,
            exits: alloc::vec![most; ledger::Reason::COUNT],
        };
        let (vm, vcpu, core, left) = (u32::MAX, u32::MAX, u32::MAX, u32::MAX);
        let live = Record::Live { vm, vcpu, core, counters, now: most, left };
        let bytes = encode(&live);
        assert!(bytes.len() <= MAX_RECORD, "{} bytes", bytes.len());
        assert_eq!(feed(&mut RecordDecoder::default(), &bytes), [live]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn a_frame_may_be_as_long_as_the_longest_and_no_longer() {
        // Each COBS block of 254 bytes has one more before it.
        let text = |length: usize| Record::Ended { vm: 1, end: End::Fault("x".repeat(length)) };
        let frame = |length: usize| encode(&text(length)).len() - 1;
        let longest = (MAX_RECORD - 100..MAX_RECORD).rfind(|n| frame(*n) == MAX_RECORD).unwrap();
        let mut d = RecordDecoder::default();
        assert_eq!(feed(&mut d, &encode(&text(longest))), [text(longest)]);
        // A frame that is too long and empty ones don't become records, nor spoil the next one.
        assert_eq!(feed(&mut d, &encode(&text(longest + 1))), []);
        assert_eq!(feed(&mut d, &[0, 0]), []);
        // Nor one that begins like a record.
        let mut more = encode(&text(1));
        more.pop();
        more.extend([1; MAX_RECORD]);
        more.push(0);
        assert_eq!(feed(&mut d, &more), []);
        assert_eq!(feed(&mut d, &encode(&text(1))), [text(1)]);
    }

    proptest! {
        #[test]
        fn live_counters_arrive_as_they_were_sent(
            exits in proptest::collection::vec(any::<u64>(), 0..64),
            (now, host_cycles, left) in any::<(u64, u64, u32)>(),
        ) {
            let counters = Counters { host_cycles, exits, ..Counters::default() };
            let live = Record::Live { vm: 3, vcpu: 1, core: 2, counters, now, left };
            prop_assert_eq!(feed(&mut RecordDecoder::default(), &encode(&live)), [live]);
        }

        #[test]
        fn no_input_panics_or_grows_without_bound(bytes in proptest::collection::vec(any::<u8>(), 0..9000)) {
            let mut d = RecordDecoder::default();
            feed(&mut d, &bytes);
            prop_assert!(d.frame.len() <= MAX_RECORD);
        }
    }
}
