//! Where a vCPU starts.

/// PAT after a reset, a guest's and the host's: write-back, write-through, uncached-, uncached,
/// twice (APM vol. 2, 7.8.2).
pub const PAT_AT_RESET: u64 = 0x0007_0406_0007_0406;

/// Where a vCPU starts, and in what state.
#[derive(Clone, Copy, Debug)]
pub enum Start {
    /// As a boot loader enters a kernel, in flat protected mode or in long mode; all else is as
    /// after a reset of the machine.
    Kernel {
        /// First instruction.
        rip: u64,
        /// Long mode with these page tables, else flat 32-bit protected mode.
        page_tables: Option<u64>,
        /// Guest-physical address of the GDT the selectors below refer to, and its limit.
        gdt: (u64, u16),
        /// Selectors of code and data.
        selectors: (u16, u16),
        /// RAX, RBX, RSI.
        registers: (u64, u64, u64),
    },
    /// As INIT and a start-up interrupt have it: real mode at this 4 KiB page. What INIT leaves
    /// alone stays: extended state, and most MSRs.
    StartUp {
        /// Its number.
        page: u8,
    },
}
