//! Which virtqueue a polling core serves next, and for how long: the scheduling of ELVIS (Har'El
//! and others, "Efficient and Scalable Paravirtual I/O System", USENIX ATC 2013), with weights and
//! limits by VM.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

/// What the schedule sees of the queues.
pub trait Look {
    /// Chains that wait in this queue, by one load of its ring and without a change of it; one that
    /// was taken and isn't served whole counts. A queue that is broken shows 1, so that it gets its
    /// turn and is found out.
    fn waiting(&mut self, queue: usize) -> u16;
}

/// The parameters of ELVIS; times are in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Bytes that are served before the core switches to another queue.
    pub min_bytes: u64,
    /// Bytes after which the core switches to another queue.
    pub max_bytes: u64,
    /// A queue that was kicked may wait for this long while another is served.
    pub work_stuck: u64,
    /// A queue whose backlog doesn't grow may wait for this long while another is served.
    pub queue_stuck: u64,
    /// A queue without requests is polled for this long.
    pub idle: u64,
    /// For how many ticks a VM may save up what its limits allow.
    pub burst: u64,
    /// Ticks in a second, for the limits.
    pub ticks_per_second: u64,
}

impl Settings {
    /// 4 KiB, 512 KiB, 10 µs, 5 µs, 3 s, 10 ms.
    pub const fn usual(ticks_per_second: u64) -> Self {
        Settings {
            min_bytes: 4 << 10,
            max_bytes: 512 << 10,
            work_stuck: ticks_per_second / 100_000,
            queue_stuck: ticks_per_second / 200_000,
            idle: ticks_per_second.saturating_mul(3),
            burst: ticks_per_second / 100,
            ticks_per_second,
        }
    }
}

/// What a VM may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Its part of the bytes under load, against the weights of the others: 1 to [`MAX_WEIGHT`].
    pub weight: u32,
    /// Requests a second at most.
    pub requests: Option<u64>,
    /// Bytes a second at most.
    pub bytes: Option<u64>,
}

/// The largest weight; the smallest is 1.
pub const MAX_WEIGHT: u32 = 10_000;

/// What the core is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Serve a piece of this queue, and say so by [`Schedule::served`]; or [`Schedule::rest`].
    Serve(usize),
    /// This queue had nothing for long: re-arm its kicks, and call [`Schedule::sleep`] then.
    Sleep(usize),
    /// No queue has anything.
    Nothing,
}

/// Does the turn go on?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Serve another piece of the same queue: there is one.
    Continue,
    /// Ask [`Schedule::next`].
    Switch,
}

/// How often, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Calls of [`Schedule::next`].
    pub passes: u64,
    /// Those that found a queue to serve.
    pub found: u64,
}

/// The queues of one polling core, by their places 0 to `N - 1`, and their VMs, by theirs.
#[derive(Clone, Debug)]
pub struct Schedule<const N: usize> {
    settings: Settings,
    statistics: Statistics,
}

impl<const N: usize> Schedule<N> {
    /// No queues yet.
    pub const fn new(settings: Settings) -> Self {
        Schedule { settings, statistics: Statistics { passes: 0, found: 0 } }
    }

    /// A VM begins, at this place (0 to `N - 1`), or its share changes. Without this a VM has
    /// weight 100 and no limits.
    pub fn set_share(&mut self, vm: usize, share: Share) {
        let _ = (vm, share, self.settings);
    }

    /// The queue is the VM's from now on, and not polled: its kicks are on. False if there are no
    /// such places. One that is there already starts anew.
    pub fn join(&mut self, queue: usize, vm: usize) -> bool {
        queue < N && vm < N
    }

    /// The queue is gone: its device was reset, is broken, or the VM ended.
    pub fn leave(&mut self, queue: usize) {
        let _ = queue;
    }

    /// The queue was kicked. True: it is polled from now on, and its kicks are to be suppressed.
    /// False: it is polled already, or isn't there.
    pub fn kicked(&mut self, queue: usize, now: u64) -> bool {
        let _ = (queue, now);
        false
    }

    /// What to do next. Another turn that wasn't ended is.
    pub fn next(&mut self, now: u64, look: &mut impl Look) -> Turn {
        let _ = (now, look);
        self.statistics.passes += 1;
        Turn::Nothing
    }

    /// A piece of the queue whose turn it is was served: this many bytes, and the last piece of this
    /// many requests.
    pub fn served(
        &mut self,
        queue: usize,
        bytes: u64,
        requests: u32,
        now: u64,
        look: &mut impl Look,
    ) -> Next {
        let _ = (queue, bytes, requests, now, look);
        Next::Switch
    }

    /// The queue whose turn it is can't be served now: others come first.
    pub fn rest(&mut self, queue: usize) {
        let _ = queue;
    }

    /// The kicks of a queue were re-armed after [`Turn::Sleep`]. True: it isn't polled any more.
    /// False: something came in between, it is polled on, and its kicks are to be suppressed again.
    pub fn sleep(&mut self, queue: usize, now: u64, look: &mut impl Look) -> bool {
        let _ = (queue, now, look);
        true
    }

    /// Passes so far.
    pub const fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// The most passes that this queue was seen waiting before its turn; 0 if it isn't there.
    pub fn worst_wait(&self, queue: usize) -> u64 {
        let _ = queue;
        0
    }
}
