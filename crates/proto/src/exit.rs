//! How the image ends the machine: a code that it writes to QEMU's debug-exit device.

/// The I/O port of the debug-exit device (`isa-debug-exit`, 4 bytes wide).
pub const PORT: u16 = 0xF4;

/// Every VM ended and was reported.
pub const DONE: u32 = 0x10;
/// A bug in the hypervisor.
pub const PANICKED: u32 = 0x11;
/// The hypervisor refused this machine or this plan.
pub const REFUSED: u32 = 0x12;

/// The code that made QEMU exit with `status`. QEMU exits with `code << 1 | 1`; status 1 is its
/// own failure, and an even one has nothing to do with the device.
pub const fn code(status: i32) -> Option<u32> {
    if status > 1 && status & 1 == 1 { Some(status as u32 >> 1) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_told_from_qemus_own_statuses() {
        for (status, expected) in
            [(33, Some(DONE)), (35, Some(PANICKED)), (37, Some(REFUSED)), (3, Some(1))]
        {
            assert_eq!(code(status), expected, "{status}");
        }
        for status in [0, 1, 2, 34, -1] {
            assert_eq!(code(status), None, "{status}");
        }
    }
}
