//! The virtual machine control block (APM vol. 2, appendix B): the layout and the bits
//! that are used, nothing of what they are used for.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A segment register in the state-save area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Segment {
    /// The value that was loaded.
    pub selector: u16,
    /// Bits 7:0 of descriptor byte 5, then bits 3:0 from the upper half of byte 6.
    pub attributes: u16,
    /// Its last byte's offset, in bytes.
    pub limit: u32,
    /// Its first byte's linear address.
    pub base: u64,
}

impl Segment {
    /// Data or code as `attributes` say, flat.
    pub const fn flat(selector: u16, attributes: u16) -> Self {
        Segment { selector, attributes, limit: 0xFFFF_FFFF, base: 0 }
    }
}

/// Control area and state-save area, one page. Fields have the names and meanings of the manual.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[allow(missing_docs, reason = "the names are the manual's")]
#[repr(C, align(4096))]
pub struct Vmcb {
    pub intercept_cr_read: u16,
    pub intercept_cr_write: u16,
    pub intercept_dr_read: u16,
    pub intercept_dr_write: u16,
    pub intercept_exceptions: u32,
    /// Instructions and events, word 3 of the intercepts.
    pub intercept_misc1: u32,
    /// SVM and other instructions, word 4.
    pub intercept_misc2: u32,
    pub intercept_misc3: u32,
    _018: [u8; 0x24],
    pub pause_filter_threshold: u16,
    pub pause_filter_count: u16,
    pub iopm_base: u64,
    pub msrpm_base: u64,
    pub tsc_offset: u64,
    pub asid: u32,
    pub tlb_control: u32,
    /// V_TPR 7:0, V_IRQ 8, V_GIF 9, V_INTR_PRIO 19:16, V_IGN_TPR 20, V_INTR_MASKING 24,
    /// V_GIF_ENABLE 25, V_INTR_VECTOR 39:32.
    pub int_ctl: u64,
    /// Bit 0: in an interrupt shadow.
    pub interrupt_shadow: u64,
    pub exit_code: u64,
    pub exit_info1: u64,
    pub exit_info2: u64,
    pub exit_int_info: u64,
    /// Bit 0: nested paging.
    pub nested_control: u64,
    pub avic_bar: u64,
    _0a0: u64,
    pub event_inj: u64,
    pub nested_cr3: u64,
    /// Recording of branches, and VMLOAD by the guest.
    pub other_virtualization: u64,
    /// Zero: everything is to be loaded anew.
    pub clean: u64,
    pub next_rip: u64,
    /// How many bytes of the instruction follow.
    pub bytes_fetched: u8,
    pub instruction: [u8; 15],
    pub avic_backing_page: u64,
    _0e8: [u8; 0x318],
    pub es: Segment,
    pub cs: Segment,
    pub ss: Segment,
    pub ds: Segment,
    pub fs: Segment,
    pub gs: Segment,
    pub gdtr: Segment,
    pub ldtr: Segment,
    pub idtr: Segment,
    pub tr: Segment,
    _4a0: [u8; 0x2B],
    pub cpl: u8,
    _4cc: u32,
    pub efer: u64,
    _4d8: [u8; 0x70],
    pub cr4: u64,
    pub cr3: u64,
    pub cr0: u64,
    pub dr7: u64,
    pub dr6: u64,
    pub rflags: u64,
    pub rip: u64,
    _580: [u8; 0x58],
    pub rsp: u64,
    _5e0: [u8; 0x18],
    pub rax: u64,
    pub star: u64,
    pub lstar: u64,
    pub cstar: u64,
    pub sfmask: u64,
    pub kernel_gs_base: u64,
    pub sysenter_cs: u64,
    pub sysenter_esp: u64,
    pub sysenter_eip: u64,
    pub cr2: u64,
    _648: [u8; 0x20],
    pub g_pat: u64,
    _670: [u8; 0x70],
    /// The guest's IA32_SPEC_CTRL, where the CPU switches it (VirtSpecCtrl).
    pub spec_ctrl: u64,
    _6e8: [u8; 0x918],
}

impl Vmcb {
    /// The 8 bytes at `at`, a multiple of 8 below 4096.
    #[inline(always)]
    pub fn word(&self, at: usize) -> u64 {
        let words: &[u64; 512] = zerocopy::transmute_ref!(self);
        words[at / 8]
    }

    /// Sets them.
    #[inline(always)]
    pub fn set_word(&mut self, at: usize, value: u64) {
        let words: &mut [u64; 512] = zerocopy::transmute_mut!(self);
        words[at / 8] = value;
    }
}

const _: () = assert!(core::mem::size_of::<Vmcb>() == 4096);
const _: () = assert!(core::mem::offset_of!(Vmcb, pause_filter_count) == 0x3E);
const _: () = assert!(core::mem::offset_of!(Vmcb, iopm_base) == 0x40);
const _: () = assert!(core::mem::offset_of!(Vmcb, asid) == 0x58);
const _: () = assert!(core::mem::offset_of!(Vmcb, int_ctl) == 0x60);
const _: () = assert!(core::mem::offset_of!(Vmcb, interrupt_shadow) == 0x68);
const _: () = assert!(core::mem::offset_of!(Vmcb, exit_code) == 0x70);
const _: () = assert!(core::mem::offset_of!(Vmcb, nested_control) == 0x90);
const _: () = assert!(core::mem::offset_of!(Vmcb, avic_bar) == 0x98);
const _: () = assert!(core::mem::offset_of!(Vmcb, event_inj) == 0xA8);
const _: () = assert!(core::mem::offset_of!(Vmcb, avic_backing_page) == 0xE0);
const _: () = assert!(core::mem::offset_of!(Vmcb, nested_cr3) == 0xB0);
const _: () = assert!(core::mem::offset_of!(Vmcb, clean) == 0xC0);
const _: () = assert!(core::mem::offset_of!(Vmcb, next_rip) == 0xC8);
const _: () = assert!(core::mem::offset_of!(Vmcb, instruction) == 0xD1);
const _: () = assert!(core::mem::offset_of!(Vmcb, es) == 0x400);
const _: () = assert!(core::mem::offset_of!(Vmcb, cpl) == 0x4CB);
const _: () = assert!(core::mem::offset_of!(Vmcb, efer) == 0x4D0);
const _: () = assert!(core::mem::offset_of!(Vmcb, cr4) == 0x548);
const _: () = assert!(core::mem::offset_of!(Vmcb, rip) == 0x578);
const _: () = assert!(core::mem::offset_of!(Vmcb, rsp) == 0x5D8);
const _: () = assert!(core::mem::offset_of!(Vmcb, rax) == 0x5F8);
const _: () = assert!(core::mem::offset_of!(Vmcb, cr2) == 0x640);
const _: () = assert!(core::mem::offset_of!(Vmcb, g_pat) == 0x668);
const _: () = assert!(core::mem::offset_of!(Vmcb, spec_ctrl) == 0x6E0);

/// Intercept bits of `intercept_misc1`.
#[allow(missing_docs, reason = "the names are the manual's")]
pub mod misc1 {
    pub const INTR: u32 = 1 << 0;
    pub const NMI: u32 = 1 << 1;
    pub const INIT: u32 = 1 << 3;
    pub const VINTR: u32 = 1 << 4;
    pub const CR0_SELECTIVE: u32 = 1 << 5;
    pub const SIDT: u32 = 1 << 6;
    pub const LIDT: u32 = 1 << 10;
    pub const RDPMC: u32 = 1 << 15;
    pub const CPUID: u32 = 1 << 18;
    pub const IRET: u32 = 1 << 20;
    pub const INVD: u32 = 1 << 22;
    pub const PAUSE: u32 = 1 << 23;
    pub const HLT: u32 = 1 << 24;
    pub const INVLPGA: u32 = 1 << 26;
    pub const IOIO: u32 = 1 << 27;
    pub const MSR: u32 = 1 << 28;
    pub const TASK_SWITCH: u32 = 1 << 29;
    pub const FERR_FREEZE: u32 = 1 << 30;
    pub const SHUTDOWN: u32 = 1 << 31;
}

/// Intercept bits of `intercept_misc2`.
#[allow(missing_docs, reason = "the names are the manual's")]
pub mod misc2 {
    pub const VMRUN: u32 = 1 << 0;
    pub const VMMCALL: u32 = 1 << 1;
    pub const VMLOAD: u32 = 1 << 2;
    pub const VMSAVE: u32 = 1 << 3;
    pub const STGI: u32 = 1 << 4;
    pub const CLGI: u32 = 1 << 5;
    pub const SKINIT: u32 = 1 << 6;
    pub const WBINVD: u32 = 1 << 9;
    pub const MONITOR: u32 = 1 << 10;
    pub const MWAIT: u32 = 1 << 11;
    pub const MWAIT_ARMED: u32 = 1 << 12;
    pub const XSETBV: u32 = 1 << 13;
    pub const RDPRU: u32 = 1 << 14;
}

/// Bits of `int_ctl`.
#[allow(missing_docs, reason = "the names are the manual's")]
pub mod int_ctl {
    pub const V_TPR: u64 = 0xFF;
    pub const V_IRQ: u64 = 1 << 8;
    pub const V_GIF: u64 = 1 << 9;
    pub const PRIORITY_SHIFT: u64 = 16;
    pub const V_INTR_MASKING: u64 = 1 << 24;
    pub const V_GIF_ENABLE: u64 = 1 << 25;
    /// V_IGN_TPR: the task priority doesn't hold it back.
    pub const IGNORES_PRIORITY: u64 = 1 << 20;
    pub const X2AVIC: u64 = 1 << 30;
    pub const AVIC: u64 = 1 << 31;
    /// Virtual GIF and NMI, x2AVIC and AVIC: enabled.
    pub const VIRTUALIZED: u64 = 1 << 25 | 1 << 26 | 1 << 30 | 1 << 31;
    pub const VECTOR_SHIFT: u64 = 32;
    /// V_IRQ, its priority and its vector.
    pub const OFFER: u64 = V_IRQ | 0xF << PRIORITY_SHIFT | 0xFF << VECTOR_SHIFT;
}

/// `other_virtualization`: VMLOAD and VMSAVE by the guest.
pub const VIRTUAL_LOADS: u64 = 1 << 1;

/// Exit codes (APM vol. 2, appendix C). Only the low 32 bits are compared: QEMU before
/// 10.0.7 doesn't sign-extend INVALID.
#[allow(missing_docs, reason = "the names are the manual's")]
pub mod exit {
    pub const CR8_WRITE: u32 = 0x18;
    pub const DR4_WRITE: u32 = 0x34;
    pub const DR7_WRITE: u32 = 0x37;
    pub const EXCEPTION_BASE: u32 = 0x40;
    pub const EXCEPTION_LAST: u32 = 0x5F;
    pub const INTR: u32 = 0x60;
    pub const NMI: u32 = 0x61;
    pub const INIT: u32 = 0x63;
    pub const CR0_SELECTIVE: u32 = 0x65;
    pub const IDTR_READ: u32 = 0x66;
    pub const IDTR_WRITE: u32 = 0x6A;
    pub const RDPMC: u32 = 0x6F;
    pub const CPUID: u32 = 0x72;
    pub const IRET: u32 = 0x74;
    pub const INVD: u32 = 0x76;
    pub const HLT: u32 = 0x78;
    pub const INVLPGA: u32 = 0x7A;
    pub const IOIO: u32 = 0x7B;
    pub const MSR: u32 = 0x7C;
    pub const TASK_SWITCH: u32 = 0x7D;
    pub const FERR_FREEZE: u32 = 0x7E;
    pub const SHUTDOWN: u32 = 0x7F;
    pub const VMRUN: u32 = 0x80;
    pub const VMMCALL: u32 = 0x81;
    pub const VMLOAD: u32 = 0x82;
    pub const VMSAVE: u32 = 0x83;
    pub const STGI: u32 = 0x84;
    pub const CLGI: u32 = 0x85;
    pub const SKINIT: u32 = 0x86;
    pub const WBINVD: u32 = 0x89;
    pub const MONITOR: u32 = 0x8A;
    pub const MWAIT_ARMED: u32 = 0x8C;
    pub const XSETBV: u32 = 0x8D;
    pub const RDPRU: u32 = 0x8E;
    pub const NPF: u32 = 0x400;
    pub const INVALID: u32 = 0xFFFF_FFFF;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bit n of word 3 of the intercepts has the exit code 0x60 + n, of word 4 0x80 + n (APM
    /// vol. 2, table B-1 and appendix C).
    #[test]
    fn intercepts_and_exit_codes_go_by_the_same_numbers() {
        use exit as e;
        let (misc1, misc2) = (
            {
                use misc1::*;
                [
                    INTR,
                    NMI,
                    INIT,
                    CR0_SELECTIVE,
                    SIDT,
                    LIDT,
                    RDPMC,
                    CPUID,
                    IRET,
                    INVD,
                    HLT,
                    INVLPGA,
                    IOIO,
                    MSR,
                    TASK_SWITCH,
                    FERR_FREEZE,
                    SHUTDOWN,
                ]
            },
            {
                use misc2::*;
                [
                    VMRUN,
                    VMMCALL,
                    VMLOAD,
                    VMSAVE,
                    STGI,
                    CLGI,
                    SKINIT,
                    WBINVD,
                    MONITOR,
                    MWAIT_ARMED,
                    XSETBV,
                    RDPRU,
                ]
            },
        );
        assert_eq!(
            misc1.map(u32::trailing_zeros),
            [0, 1, 3, 5, 6, 10, 15, 18, 20, 22, 24, 26, 27, 28, 29, 30, 31]
        );
        assert_eq!(misc2.map(u32::trailing_zeros), [0, 1, 2, 3, 4, 5, 6, 9, 10, 12, 13, 14]);
        assert!(misc1.iter().chain(&misc2).all(|bit| bit.is_power_of_two()));
        assert_eq!(
            misc1.map(|bit| 0x60 + bit.trailing_zeros()),
            [
                e::INTR,
                e::NMI,
                e::INIT,
                e::CR0_SELECTIVE,
                e::IDTR_READ,
                e::IDTR_WRITE,
                e::RDPMC,
                e::CPUID,
                e::IRET,
                e::INVD,
                e::HLT,
                e::INVLPGA,
                e::IOIO,
                e::MSR,
                e::TASK_SWITCH,
                e::FERR_FREEZE,
                e::SHUTDOWN
            ]
        );
        assert_eq!(
            misc2.map(|bit| 0x80 + bit.trailing_zeros()),
            [
                e::VMRUN,
                e::VMMCALL,
                e::VMLOAD,
                e::VMSAVE,
                e::STGI,
                e::CLGI,
                e::SKINIT,
                e::WBINVD,
                e::MONITOR,
                e::MWAIT_ARMED,
                e::XSETBV,
                e::RDPRU
            ]
        );
        // Those that no exit code is looked for of.
        assert_eq!(misc1::INIT, 1 << 3);
        assert_eq!(misc2::MWAIT, 1 << 11);
    }

    /// As the table at offset 0x60 has them.
    #[test]
    fn virtual_interrupts_have_their_fields() {
        assert_eq!(
            (int_ctl::V_TPR, int_ctl::V_IRQ, int_ctl::V_INTR_MASKING),
            (0xFF, 0x100, 0x100_0000)
        );
        assert_eq!((int_ctl::OFFER, int_ctl::VIRTUALIZED), (0xFF_000F_0100, 0xC600_0000));
        assert_eq!((int_ctl::V_GIF, int_ctl::V_GIF_ENABLE), (0x200, 0x200_0000));
    }
}
