//! Whether this machine has the memory that an emulated one needs.
//!
//! The hypervisor clears the guests' memory before they start, so all of it is used at once. What
//! is missing would be noticed late, by the system's ending some process.

use anyhow::{Result, bail};
use plan::Size;
use std::fs;

const MIB: u64 = 1 << 20;
/// VMs and disks have their memory in pages of this size.
const LARGE_PAGE: u64 = 2 << 20;
/// From here on nobody asks for the MiB.
const LARGE: u64 = 64 << 30;

/// Bytes of memory of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// What it has.
    all: u64,
    /// What can be had now, swap included.
    free: u64,
}

impl Room {
    /// As the system tells it now; none where it doesn't.
    pub fn now() -> Option<Room> {
        let room = parse(&fs::read_to_string("/proc/meminfo").ok()?)?;
        // A container's limit, where there is one.
        let limit = fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
        let limit = limit.and_then(|text| text.trim().parse().ok()).unwrap_or(u64::MAX);
        let used = fs::read_to_string("/sys/fs/cgroup/memory.current").ok();
        let used: u64 = used.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        let left = if limit == u64::MAX { u64::MAX } else { limit.saturating_sub(used) };
        Some(Room { all: room.all.min(limit), free: room.free.min(left) })
    }

    /// Fails if a machine of `needed` bytes, `vms` of them the VMs' and
    /// `disks` their RAM disks', has no room.
    pub fn check(self, vms: u64, disks: u64, needed: u64) -> Result<()> {
        if needed <= self.free {
            return Ok(());
        }
        let [all, free] = [self.all, self.free].map(|bytes| Size(bytes - bytes % step(bytes)));
        let own = needed.saturating_sub(vms.saturating_add(disks));
        let fits = self.free.saturating_sub(own) & !(LARGE_PAGE - 1);
        let remedy = match (fits < plan::MIN_MEMORY, disks > 0) {
            (true, _) => "end something that runs here".to_owned(),
            (_, true) => format!("lower both to {} together", Size(fits)),
            (_, false) => format!("lower theirs to {} together", Size(fits)),
        };
        let [guests, disks, needed] = [vms, disks, needed]
            .map(|bytes| Size(bytes.checked_next_multiple_of(step(bytes)).unwrap_or(bytes)));
        if disks != Size(0) {
            bail!(
                "{guests} for VMs and {disks} for RAM disks need an emulated machine of {needed}; this machine has {all}, of which {free} are free; {remedy}"
            );
        }
        bail!(
            "the VMs have {guests} of memory, for which the emulated machine needs {needed}; this machine has {all}, of which {free} are free; {remedy}"
        )
    }
}

/// What a number of bytes is told in whole ones of.
fn step(bytes: u64) -> u64 {
    if bytes < LARGE { MIB } else { 1 << 30 }
}

/// From the text of `/proc/meminfo`.
fn parse(text: &str) -> Option<Room> {
    let field = |name: &str| -> Option<u64> {
        let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
    };
    let free = field("MemAvailable")?.saturating_add(field("SwapFree").unwrap_or(0));
    Some(Room { all: field("MemTotal")?, free })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "\
MemTotal:       24684084 kB
MemFree:          123456 kB
MemAvailable:   18874368 kB
SwapTotal:             0 kB
SwapFree:        1048576 kB
";

    #[test]
    fn the_systems_own_numbers_are_read() {
        let room = parse(MEMINFO).unwrap();
        assert_eq!(room, Room { all: 24_684_084 << 10, free: 19 << 30 });
        assert_eq!(parse("MemTotal: 5 kB\n"), None);
        let now = Room::now().unwrap();
        assert!(now.free > 0 && now.all > 0);
    }

    #[test]
    fn what_is_missing_is_told_with_what_there_is() {
        let room = Room { all: 24 << 30, free: 19 << 30 };
        assert!(room.check(18 << 30, 0, 19 << 30).is_ok());
        let error = room.check(20 << 30, 0, (22 << 30) + 1).unwrap_err().to_string();
        assert_eq!(
            error,
            "the VMs have 20G of memory, for which the emulated machine needs 22529M; this machine has 24G, of which 19G are free; lower theirs to 17406M together"
        );
        let none = Room { free: 2 << 30, ..room };
        let error = none.check(20 << 30, 0, 22 << 30).unwrap_err().to_string();
        assert!(error.ends_with("of which 2G are free; end something that runs here"), "{error}");
        let error = room.check(1 << 30, 64 << 30, 66 << 30).unwrap_err().to_string();
        assert_eq!(
            error,
            "1G for VMs and 64G for RAM disks need an emulated machine of 66G; this machine has 24G, of which 19G are free; lower both to 18G together"
        );
        let disks = (15 << 40) + (64 << 20);
        let error = room.check(1 << 30, disks, disks + (3 << 30)).unwrap_err().to_string();
        assert!(
            error.starts_with(
                "1G for VMs and 15361G for RAM disks need an emulated machine of 15364G"
            ),
            "{error}"
        );
    }
}
