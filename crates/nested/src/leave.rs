//! #VMEXIT to L1: what the CPU would have written into 12, and what becomes of L1's registers.

use crate::Nest;
use crate::block::{Block, write_segment};
use core::mem::offset_of;
use svm::Vmcb;
use svm::vmcb::exit;

const CR0_PE: u64 = 1;
const RFLAGS_VM: u64 = 1 << 17;
/// DR7 with all breakpoints off.
const DR7_OFF: u64 = 0x400;

/// Bytes of an instruction, and how many, as two words from here on.
const INSTRUCTION: usize = offset_of!(Vmcb, bytes_fetched);
const _: () = assert!(INSTRUCTION == 0xD0);

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
    /// Writes L2's state and why it was left into L1's block. [`Nest::keep_offer`] comes before.
    pub fn leave(&self, v02: &Vmcb, told: &Told, block: &mut dyn Block) {
        for (at, segment) in [
            (offset_of!(Vmcb, es), &v02.es),
            (offset_of!(Vmcb, cs), &v02.cs),
            (offset_of!(Vmcb, ss), &v02.ss),
            (offset_of!(Vmcb, ds), &v02.ds),
            (offset_of!(Vmcb, gdtr), &v02.gdtr),
            (offset_of!(Vmcb, idtr), &v02.idtr),
        ] {
            write_segment(block, at, segment);
        }
        block.write(
            offset_of!(Vmcb, cpl) & !7,
            u64::from(v02.cpl) << (offset_of!(Vmcb, cpl) % 8 * 8),
        );
        for (at, value) in [
            (offset_of!(Vmcb, efer), v02.efer),
            (offset_of!(Vmcb, cr4), v02.cr4),
            (offset_of!(Vmcb, cr3), v02.cr3),
            (offset_of!(Vmcb, cr0), v02.cr0),
            (offset_of!(Vmcb, dr7), v02.dr7),
            (offset_of!(Vmcb, dr6), v02.dr6),
            (offset_of!(Vmcb, rflags), v02.rflags),
            (offset_of!(Vmcb, rip), v02.rip),
            (offset_of!(Vmcb, rsp), v02.rsp),
            (offset_of!(Vmcb, rax), v02.rax),
            (offset_of!(Vmcb, cr2), v02.cr2),
            (offset_of!(Vmcb, interrupt_shadow), v02.interrupt_shadow),
            (offset_of!(Vmcb, next_rip), v02.next_rip),
            // Cleared by the CPU as soon as it was injected.
            (offset_of!(Vmcb, event_inj), v02.event_inj),
        ] {
            block.write(at, value);
        }
        if self.control().nested_paging() {
            block.write(offset_of!(Vmcb, g_pat), v02.g_pat);
        }
        let bytes = |range: core::ops::Range<usize>| {
            range.fold(0, |word, at| {
                let byte = if at == 0 { v02.bytes_fetched } else { v02.instruction[at - 1] };
                word | u64::from(byte) << (at % 8 * 8)
            })
        };
        block.write(INSTRUCTION, bytes(0..8));
        block.write(INSTRUCTION + 8, bytes(8..16));
        block.write(offset_of!(Vmcb, int_ctl), self.control().int_ctl);
        tell(told, block);
    }

    /// Tells L1 that VMRUN refused its block, whose state stays as it is.
    pub fn refuse(&mut self, block: &mut dyn Block) {
        self.forget();
        tell(&Told::INVALID, block);
    }
}

fn tell(told: &Told, block: &mut dyn Block) {
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
