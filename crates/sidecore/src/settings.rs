//! The schedule's parameters.

/// The parameters of ELVIS, and of the limits. Times are in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Ticks in a second, for the limits.
    pub ticks_per_second: u64,
    /// Bytes below which a turn goes on if there is something: they pay for the switch.
    pub min_bytes: u64,
    /// Bytes above which a turn ends.
    pub max_bytes: u64,
    /// A VM that was idle may have so many bytes before the others. It makes who asks seldom be the
    /// first; others may wait for it in as many short turns as it has requests of 512 bytes.
    pub credit: u64,
    /// A queue that was kicked may wait for this long while another has its turn.
    pub work_stuck: u64,
    /// A queue whose backlog doesn't grow may wait for this long while another has its turn.
    pub queue_stuck: u64,
    /// A queue without requests is polled for this long, or for this long at most.
    pub idle: u64,
    /// It is polled for longer the sooner its requests come, and not at all if they come late. It
    /// is for a core that others use, too.
    pub adapts: bool,
    /// For this long a VM saves up what its limits allow.
    pub burst: u64,
    /// To be compared with: queues are served one after the other, each until it is empty or had
    /// `max_bytes`, whoever waits and whatever their VMs had. Limits hold.
    pub whole_turns: bool,
}

impl Settings {
    /// ELVIS' 4 KiB, 512 KiB and 3 s. It has both stuck limits off; here they are 10 µs for a kick
    /// and 5 µs for a backlog, about what copying 64 KiB takes. The
    /// burst is 10 ms, the credit 64 KiB.
    pub const fn usual(ticks_per_second: u64) -> Self {
        Settings {
            ticks_per_second,
            min_bytes: 4 << 10,
            max_bytes: 512 << 10,
            credit: 64 << 10,
            work_stuck: ticks_per_second / 100_000,
            queue_stuck: ticks_per_second / 200_000,
            idle: ticks_per_second.saturating_mul(3),
            adapts: false,
            burst: ticks_per_second / 100,
            whole_turns: false,
        }
    }

    /// The same without what ELVIS adds to polling in turn.
    pub const fn in_whole_turns(self) -> Self {
        // Above `max_bytes`: nobody who is stuck is looked for.
        let min_bytes = self.max_bytes.saturating_add(1);
        Settings { min_bytes, whole_turns: true, ..self }
    }
}
