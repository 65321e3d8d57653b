//! Processors as far as the models need them: what is sent to them, and waiting for it.

use loom::thread;
use sync::{AtomicBool, AtomicU32, Ordering};

/// Something that is sent to a core and stays until the core takes it: one interrupt, however often
/// it was sent.
#[derive(Debug, Default)]
pub struct Line(AtomicBool);

impl Line {
    pub fn send(&self) {
        // RMWs alone have one order for all.
        self.0.swap(true, Ordering::Release);
    }

    pub fn take(&self) -> bool {
        self.0.swap(false, Ordering::AcqRel)
    }
}

/// What is sent to a core.
#[derive(Debug)]
pub struct Processor {
    pub nmi: Line,
    pub wake: Line,
    /// How many wake-ups were sent.
    pub wakes: AtomicU32,
    /// How many other cores have something to send yet.
    senders: AtomicU32,
}

impl Processor {
    pub fn new(senders: u32) -> Self {
        Processor {
            nmi: Line::default(),
            wake: Line::default(),
            wakes: AtomicU32::new(0),
            senders: AtomicU32::new(senders),
        }
    }

    pub fn send_wake(&self) {
        self.wakes.fetch_add(1, Ordering::Relaxed);
        self.wake.send();
    }

    /// One of the other cores has sent all that it sends.
    pub fn sent(&self) {
        self.senders.fetch_sub(1, Ordering::Release);
    }

    /// The core runs a guest, or sleeps, until one of these comes.
    pub fn wait_for(&self, lines: &[&Line]) {
        loop {
            // By an RMW, which reads no old value.
            let nobody_sends = self.senders.fetch_add(0, Ordering::Acquire) == 0;
            let came = lines.iter().filter(|line| line.take()).count() > 0;
            if came {
                return;
            }
            assert!(!nobody_sends, "nothing comes any more");
            thread::yield_now();
        }
    }

    /// Enters a guest that only an NMI ends, unless something is asked for: a new look at
    /// `requests` behind the point from which on an NMI ends the entry, or, `too_early`, one before
    /// it.
    pub fn enter(&self, requests: &AtomicU32, too_early: bool) -> bool {
        let early = requests.load(Ordering::SeqCst);
        // An NMI up to here is taken in the host, where it changes nothing. From here on it ends
        // the entry.
        self.nmi.take();
        let looked = requests.load(Ordering::SeqCst);
        if (if too_early { early } else { looked }) != 0 {
            return false;
        }
        self.wait_for(&[&self.nmi]);
        true
    }
}
