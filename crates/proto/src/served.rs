//! What a sidecore did for one queue of a paravirtual device.

use core::fmt;
use serde::{Deserialize, Serialize};

/// A paravirtual device of a VM, by its place among those of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ServedDevice {
    /// A disk.
    Disk(u32),
    /// A network interface. Its queues are those of virtio 1.2, 5.1.2: by pairs what it receives
    /// and what it sends, then commands.
    Network(u32),
    /// The guest's own IOMMU: its requests, and events.
    Iommu,
}

impl fmt::Display for ServedDevice {
    /// As people are told it: `disk0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServedDevice::Disk(index) => write!(f, "disk{index}"),
            ServedDevice::Network(index) => write!(f, "network{index}"),
            ServedDevice::Iommu => f.write_str("iommu"),
        }
    }
}

/// Counted since the VM started, through all resets of its device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Served {
    /// What was completed: requests of a disk, those that failed among them; frames that were taken
    /// from a transmit queue, or put into a receive queue; commands.
    pub completed: u64,
    /// Bytes of data that requests moved, discarded or zeroed; bytes of frames; of a guest's IOMMU,
    /// bytes of mappings that came back before they were torn down.
    pub bytes: u64,
    /// Frames of a transmit queue that were forwarded to nobody; frames for which a receive queue
    /// had no room.
    pub dropped: u64,
    /// Interrupts that were sent for their completions.
    pub calls: u64,
    /// Completions whose call was put off or left out, as a later one tells of them, too. Some of
    /// them the driver may not have wanted to hear of.
    pub calls_withheld: u64,
    /// Notifications of the driver that came to the host, each an exit.
    pub kicks: u64,
    /// The longest that it waited for its turn, in passes of the sidecore.
    pub longest_wait: u64,
    /// The longest that it waited for its turn, in what others were served meanwhile: the cost of
    /// that in bytes, as the schedule charges it.
    pub longest_wait_bytes: u64,
    /// Times that its device came from another sidecore.
    pub moves: u64,
    /// TSC ticks for which its VM was at its limit by what this queue was served.
    pub held: u64,
}

impl Served {
    /// Adds what was done for another queue; counts that would overflow stay at the end, and of the
    /// waits and of the moves the larger one counts.
    pub fn add(&mut self, other: &Served) {
        let sums = [
            (&mut self.completed, other.completed),
            (&mut self.bytes, other.bytes),
            (&mut self.dropped, other.dropped),
            (&mut self.calls, other.calls),
            (&mut self.calls_withheld, other.calls_withheld),
            (&mut self.kicks, other.kicks),
            (&mut self.held, other.held),
        ];
        for (sum, more) in sums {
            *sum = sum.saturating_add(more);
        }
        self.longest_wait = self.longest_wait.max(other.longest_wait);
        self.longest_wait_bytes = self.longest_wait_bytes.max(other.longest_wait_bytes);
        self.moves = self.moves.max(other.moves);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_add_up_one_by_one() {
        let one = Served {
            completed: 1,
            bytes: 2,
            dropped: 7,
            calls: 3,
            calls_withheld: 4,
            kicks: 5,
            longest_wait: 6,
            longest_wait_bytes: 8,
            moves: 8,
            held: 9,
        };
        let mut sum = one;
        sum.add(&one);
        let two = Served {
            completed: 2,
            bytes: 4,
            dropped: 14,
            calls: 6,
            calls_withheld: 8,
            kicks: 10,
            longest_wait: 6,
            longest_wait_bytes: 8,
            moves: 8,
            held: 18,
        };
        assert_eq!(sum, two);
        sum.add(&Served { bytes: u64::MAX, ..Served::default() });
        assert_eq!(sum, Served { bytes: u64::MAX, ..two });
        sum.add(&Served { longest_wait: 7, longest_wait_bytes: 9, moves: 9, ..Served::default() });
        assert_eq!((sum.longest_wait, sum.longest_wait_bytes, sum.moves), (7, 9, 9));
    }
}
