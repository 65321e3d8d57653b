//! How much memory a VM must have for its kernel and initrd to be loaded.

use loader::{Error, Format, GuestMachine, MemoryRegion, RegionKind};

/// What kernels and initrds are loaded into ends here at the latest.
pub const LOW: u64 = 2 << 30;
/// A VM's memory is a multiple of this.
const STEP: u64 = 2 << 20;

/// The format of a kernel, if it can be started in so much memory, with an initrd of so many bytes.
pub fn format(
    kernel: &[u8],
    initrd: Option<u64>,
    cmdline: &str,
    memory: u64,
) -> Result<Format, Error> {
    // The part of the guest's memory map that kernels are loaded into (docs/design.md);
    // the hypervisor asks again with the map the guest gets.
    let regions =
        [(0, memory.min(LOW), RegionKind::Ram), (0x9_FC00, 0x6_0400, RegionKind::Reserved)]
            .map(|(start, len, kind)| MemoryRegion { start, len, kind });
    let machine = GuestMachine { regions: &regions, rsdp: 0xE_0000 };
    loader::load(kernel, initrd, cmdline, &machine).map(|load| load.format)
}

/// How much is enough where so much isn't. None: it is enough, or no more would help.
pub fn least(kernel: &[u8], initrd: Option<u64>, cmdline: &str, memory: u64) -> Option<u64> {
    let mut enough = memory;
    loop {
        match format(kernel, initrd, cmdline, enough) {
            Ok(_) => return (enough > memory).then_some(enough),
            Err(Error::TooLittleRam { end: needed, .. } | Error::NoRoomYet { needed, .. }) => {
                let more = needed.checked_next_multiple_of(STEP)?;
                if more <= enough || more > LOW {
                    return None;
                }
                enough = more;
            }
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::tests::tiny_kernel;

    #[test]
    fn the_least_memory_is_enough_and_less_is_not() {
        let kernel = tiny_kernel();
        for initrd in [64 << 20, 500 << 20, (1 << 30) + 1] {
            let needed = least(&kernel, Some(initrd), "", 64 << 20).unwrap();
            assert!(needed > initrd && needed.is_multiple_of(STEP), "{needed}");
            assert!(format(&kernel, Some(initrd), "", needed).is_ok());
            assert!(format(&kernel, Some(initrd), "", needed - STEP).is_err());
            assert_eq!(least(&kernel, Some(initrd), "", needed), None);
        }
        assert_eq!(least(&kernel, Some(4 << 30), "", 64 << 20), None);
        assert_eq!(least(&kernel, Some(LOW), "", 8 << 30), None);
        assert_eq!(least(b"", Some(64 << 20), "", 64 << 20), None);
    }

    /// A kernel that itself is too large isn't told its own need alone.
    #[test]
    fn kernel_and_initrd_are_counted_together() {
        let mut kernel = tiny_kernel();
        // From 1 MiB to 100 MiB: `bss_end_addr` of the multiboot header.
        kernel[24..28].copy_from_slice(&(100u32 << 20).to_le_bytes());
        let needed = least(&kernel, Some(60 << 20), "", 64 << 20).unwrap();
        assert!((160 << 20..=164 << 20).contains(&needed), "{needed}");
    }
}
