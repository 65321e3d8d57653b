//! #VMEXIT to L1: what the CPU would have written into 12, and what becomes of L1's registers.

use crate::Nest;
use crate::block::{Block, CPL, CPL_WORD, copy_out};
use core::mem::offset_of;
use svm::Vmcb;
use svm::vmcb::exit;

const CR0_PE: u64 = 1;
const RFLAGS_VM: u64 = 1 << 17;
/// DR7 with all breakpoints off.
const DR7_OFF: u64 = 0x400;

// Next to each other.
const _: () =
    assert!(offset_of!(Vmcb, next_rip) == 0xC8 && offset_of!(Vmcb, bytes_fetched) == 0xD0);
const _: () = assert!(offset_of!(Vmcb, cr4) == 0x548 && offset_of!(Vmcb, rip) == 0x578);

/// An exit that L1 is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// The exit code.
    pub code: u64,
    /// EXITINFO1 and EXITINFO2.
    pub info: [u64; 2],
    /// The event whose delivery was interrupted (EXITINTINFO).
    pub interrupted: u64,
}

impl Told {
    /// A control block that VMRUN refused.
    pub const INVALID: Told = Told { code: u64::MAX, info: [0; 2], interrupted: 0 };

    /// The exit that 02 tells of, by this code, with EXITINTINFO as it should be.
    pub fn of(v02: &Vmcb, code: u32, interrupted: u64) -> Self {
        let code = if code == exit::INVALID { u64::MAX } else { code.into() };
        Told { code, info: [v02.exit_info1, v02.exit_info2], interrupted }
    }
}

impl Nest {
    /// Writes L2's state and why it was left into L1's block. [`Nest::left`] comes before.
    #[inline(always)]
    pub fn leave<B: Block>(&self, v02: &Vmcb, told: &Told, block: &mut B) {
        // ES, CS, SS, DS.
        copy_out(block, v02, offset_of!(Vmcb, es), 8);
        copy_out(block, v02, offset_of!(Vmcb, gdtr), 2);
        copy_out(block, v02, offset_of!(Vmcb, idtr), 2);
        block.write(CPL_WORD, v02.word(CPL_WORD) & CPL);
        block.write(offset_of!(Vmcb, efer), v02.efer);
        // CR4, CR3, CR0, DR7, DR6, RFLAGS, RIP.
        copy_out(block, v02, offset_of!(Vmcb, cr4), 7);
        block.write(offset_of!(Vmcb, rsp), v02.rsp);
        block.write(offset_of!(Vmcb, rax), v02.rax);
        block.write(offset_of!(Vmcb, cr2), v02.cr2);
        block.write(offset_of!(Vmcb, interrupt_shadow), v02.interrupt_shadow);
        // The next RIP, and the bytes of the instruction.
        copy_out(block, v02, offset_of!(Vmcb, next_rip), 3);
        // Cleared by the CPU as soon as it was injected.
        block.write(offset_of!(Vmcb, event_inj), v02.event_inj);
        if self.control().nested_paging() {
            block.write(offset_of!(Vmcb, g_pat), v02.g_pat);
        }
        block.write(offset_of!(Vmcb, int_ctl), self.control().int_ctl);
        tell(told, block);
    }

    /// Tells L1 that VMRUN refused its block, whose state stays as it is.
    pub fn refuse<B: Block>(&mut self, block: &mut B) {
        self.forget();
        tell(&Told::INVALID, block);
    }
}

#[inline(always)]
fn tell<B: Block>(told: &Told, block: &mut B) {
    block.write(offset_of!(Vmcb, exit_code), told.code);
    block.write(offset_of!(Vmcb, exit_info1), told.info[0]);
    block.write(offset_of!(Vmcb, exit_info2), told.info[1]);
    block.write(offset_of!(Vmcb, exit_int_info), told.interrupted);
}

/// The registers of L1 in 01 after #VMEXIT (15.6). They stayed there since VMRUN, which is done:
/// RIP is behind it already. The global interrupt flag is the caller's to clear.
pub fn host_state(v01: &mut Vmcb) {
    v01.cr0 |= CR0_PE;
    v01.rflags &= !RFLAGS_VM;
    v01.dr7 = DR7_OFF;
    v01.cpl = 0;
}
