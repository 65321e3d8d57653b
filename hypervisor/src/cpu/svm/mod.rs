//! AMD's Secure Virtual Machine (APM vol. 2, 15) as a [`VirtualCpu`].
//!
//! Guarantees: the guest runs with nested paging and with every intercept that host
//! safety needs, whatever the mode; the host's FS, GS, TR, LDTR and system-call
//! registers are back before any Rust code runs. The FPU and the debug address registers stay
//! the guest's at an exit, since the host uses neither; they are switched when another vCPU
//! gets the core.

mod bitmaps;
mod events;
mod exits;
mod extra;
mod nmi;
mod registers;
mod start;
mod switch;
mod vmcb;

use super::vendor::{Exit, Start, VirtualCpu};
use super::{msr, rdtsc};
use crate::memory;
use bitmaps::Bitmaps;
use core::arch::asm;
use delivery::{FIRST_RESERVED, GATE_BYTES, Interruption, Mode, class};
use events::{ALIGNMENT_CHECK, DEBUG, GENERAL_PROTECTION, MACHINE_CHECK, NOT_PRESENT, PAGE_FAULT};
use extra::Extra;
use nmi::Nmi;
use paging::walk::Paging;
use switch::{GeneralRegisters, svm_switch};
use vmcb::{Vmcb, exit, int_ctl, misc1, misc2};

const EFER: u32 = 0xC000_0080;
const EFER_SVME: u64 = 1 << 12;
const EFER_LME: u64 = 1 << 8;
const EFER_LMA: u64 = 1 << 10;
const CR0_PG: u64 = 1 << 31;
const VM_CR: u32 = 0xC001_0114;
const VM_CR_SVMDIS: u64 = 1 << 4;
const VM_HSAVE_PA: u32 = 0xC001_0117;

const ALWAYS_MISC1: u32 = misc1::NMI
    | misc1::INIT
    | misc1::CR0_SELECTIVE
    | misc1::RDPMC
    | misc1::CPUID
    | misc1::INVD
    | misc1::INVLPGA
    | misc1::IOIO
    | misc1::MSR
    | misc1::TASK_SWITCH
    | misc1::SHUTDOWN;
const ALWAYS_MISC2: u32 = misc2::VMRUN
    | misc2::VMMCALL
    | misc2::VMLOAD
    | misc2::VMSAVE
    | misc2::STGI
    | misc2::CLGI
    | misc2::SKINIT
    | misc2::WBINVD
    | misc2::MONITOR
    | misc2::MWAIT
    | misc2::MWAIT_ARMED
    | misc2::XSETBV
    | misc2::RDPRU;

/// #DB and #AC can recur without end inside the delivery of an event, where nothing but
/// an intercept gets the core back (CVE-2015-8104, CVE-2015-5307); #MC is the host's. #NP is
/// ELI's way out, and outside of direct mode tells that the delivery of an offered interrupt
/// failed, after which QEMU would offer it for ever.
const ALWAYS_EXCEPTIONS: u32 =
    1 << DEBUG | 1 << NOT_PRESENT | 1 << ALIGNMENT_CHECK | 1 << MACHINE_CHECK;

/// What would show or change the IDT's limit while another is in force. What it is measured in is CR0's to
/// change, which exits always.
const CUT_INTERCEPTS: u32 = misc1::LIDT | misc1::SIDT;

/// MOV to DR4 to DR7: QEMU takes values that VMRUN refuses.
const DEBUG_CONTROLS: u16 = 0xF0;

/// What a CPU must have, or the sentence that says what is missing.
pub fn supported() -> Result<(), &'static str> {
    use raw_cpuid::CpuId;
    let cpuid = CpuId::new();
    if !cpuid.get_extended_processor_and_feature_identifiers().is_some_and(|f| f.has_svm()) {
        return Err(
            "the CPU has no SVM (AMD-V): CPUID 8000_0001 ECX bit 2 is clear; on QEMU use -cpu max",
        );
    }
    if !cpuid.get_svm_info().is_some_and(|s| s.has_nested_paging()) {
        return Err(
            "the CPU's SVM has no nested paging: CPUID 8000_000A EDX bit 0 is clear; Exitless needs it",
        );
    }
    // SAFETY: VM_CR exists on every CPU with SVM.
    if unsafe { msr::read(VM_CR) } & VM_CR_SVMDIS != 0 {
        return Err(
            "SVM is disabled by the firmware (VM_CR.SVMDIS is set): enable virtualisation in its setup",
        );
    }
    Ok(())
}

/// One virtual CPU.
pub struct SvmCpu {
    vmcb: &'static mut Vmcb,
    /// Physical address of the page for the host's segments and system-call registers.
    host_vmcb: u64,
    /// Physical address of the page for VM_HSAVE_PA.
    host_save: u64,
    registers: GeneralRegisters,
    bitmaps: Bitmaps,
    nmi: Nmi,
    flush: bool,
    /// On a shared core: what else it has on the core.
    extra: Option<Extra>,
    /// The limit of the guest's IDT, while another is in force.
    own_limit: Option<u32>,
}

impl SvmCpu {
    /// Memory and state of a vCPU; `None` when memory runs out. `nested_root`: its
    /// nested page tables; `open_ports`: I/O ports it may use without an exit;
    /// `completions_exit`: EOI exits in direct mode too; `shared`: it isn't alone on its core.
    pub fn new(
        nested_root: u64,
        asid: u32,
        open_ports: core::ops::Range<u16>,
        completions_exit: bool,
        shared: bool,
        start: Start,
    ) -> Option<Self> {
        let page = memory::allocate(4096, 4096)?;
        let host_vmcb = memory::allocate(4096, 4096)?;
        let host_save = memory::allocate(4096, 4096)?;
        let bitmaps = Bitmaps::new(open_ports, completions_exit, shared)?;
        // SAFETY: a zeroed page of our own, identity-mapped, aligned; all-zero is a valid Vmcb.
        let vmcb = unsafe { &mut *(page as *mut Vmcb) };
        vmcb.intercept_misc1 = ALWAYS_MISC1;
        vmcb.intercept_misc2 = ALWAYS_MISC2;
        vmcb.intercept_exceptions = ALWAYS_EXCEPTIONS;
        vmcb.intercept_dr_write = DEBUG_CONTROLS;
        vmcb.iopm_base = bitmaps.ports;
        vmcb.asid = asid;
        vmcb.nested_control = 1;
        vmcb.nested_cr3 = nested_root;
        let mut cpu = SvmCpu {
            vmcb,
            host_vmcb,
            host_save,
            registers: GeneralRegisters::default(),
            bitmaps,
            nmi: Nmi::None,
            flush: true,
            extra: if shared { Some(Extra::new()?) } else { None },
            own_limit: None,
        };
        cpu.reset(start);
        Some(cpu)
    }

    /// On a shared core, in direct mode: the vectors of the host and of the others raise #GP in
    /// delivery, before any memory of the guest's is read, and nothing shows or ends that unseen.
    fn cut_idt(&mut self) {
        const CUT: u32 = FIRST_RESERVED as u32 * GATE_BYTES as u32 - 1;
        let own = self.vmcb.idtr.limit;
        self.own_limit = Some(own);
        self.vmcb.idtr.limit = own.min(CUT);
        self.vmcb.intercept_misc1 |= CUT_INTERCEPTS;
        self.vmcb.intercept_exceptions |= 1 << GENERAL_PROTECTION;
    }

    fn restore_idt(&mut self) {
        if let Some(own) = self.own_limit.take() {
            self.vmcb.idtr.limit = own;
            self.vmcb.intercept_misc1 &= !CUT_INTERCEPTS;
            self.vmcb.intercept_exceptions &= !(1 << GENERAL_PROTECTION);
        }
    }

    fn set_injection(&mut self) {
        self.restore_idt();
        self.vmcb.intercept_misc1 |= misc1::INTR;
        self.vmcb.int_ctl |= int_ctl::V_INTR_MASKING;
        self.vmcb.msrpm_base = self.bitmaps.msrs(Mode::Injection);
    }

    fn in_injection(&self) -> bool {
        self.vmcb.int_ctl & int_ctl::V_INTR_MASKING != 0
    }
}

impl VirtualCpu for SvmCpu {
    fn reset(&mut self, start: Start) {
        self.restore_idt();
        match start {
            Start::Kernel { rip, page_tables, gdt, selectors, registers } => {
                self.vmcb.enter_kernel(rip, page_tables, gdt, selectors);
                let (rax, rbx, rsi) = registers;
                self.vmcb.rax = rax;
                self.registers = GeneralRegisters::default();
                self.registers.0[3] = rbx;
                self.registers.0[6] = rsi;
            }
            Start::StartUp { page } => {
                self.vmcb.start_up(page);
                self.registers = GeneralRegisters::default();
                // Family, model and stepping, as after every reset.
                self.registers.0[2] = u64::from(raw_cpuid::native_cpuid::cpuid_count(1, 0).eax);
            }
        }
        self.vmcb.efer |= EFER_SVME;
        self.nmi.forget(self.vmcb);
        self.watch_idt(false);
        self.watch_task_priority(false);
        self.watch_halt(false);
        self.vmcb.int_ctl = 0;
        self.offer_interrupt(None);
        self.set_injection();
        self.flush = true;
    }

    fn prepare_core(&mut self) {
        // SAFETY: `supported` was checked at boot; HSAVE gets a page of its own; VMSAVE writes
        // only to the page allocated for it.
        unsafe {
            msr::write(EFER, msr::read(EFER) | EFER_SVME);
            msr::write(VM_HSAVE_PA, self.host_save);
            asm!("cli", "clgi", "vmsave rax", in("rax") self.host_vmcb, options(nostack));
        }
    }

    fn release_core(&mut self) {
        self.set_mode(Mode::Injection);
        crate::cpu::control::set_xcr0(1);
        // SAFETY: ends what `prepare_core` began.
        unsafe { asm!("stgi", options(nostack)) };
        crate::interrupts::drain();
    }

    #[inline(always)]
    fn enter(&mut self) {
        self.vmcb.tlb_control = u32::from(core::mem::take(&mut self.flush));
        self.vmcb.clean = 0;
        let page = core::ptr::from_mut::<Vmcb>(self.vmcb) as u64;
        // SAFETY: `prepare_core` ran on this core (GIF is clear since), the VMCBs are pages of our
        // own, and everything the guest can change outside its memory is switched or intercepted.
        unsafe { svm_switch(&mut self.registers, page, self.host_vmcb) };
    }

    #[inline(always)]
    fn wrote_msr(&self) -> bool {
        self.vmcb.exit_code as u32 == exit::MSR && self.vmcb.exit_info1 & 1 != 0
    }

    fn exit(&mut self) -> Exit {
        self.vmcb.intercept_dr_write = DEBUG_CONTROLS;
        let exit = exits::decode(self.vmcb);
        match exit {
            Exit::NmiDone => self.nmi.returns(self.vmcb),
            Exit::Exception { vector: DEBUG, .. } if self.nmi.stepped(self.vmcb) => {
                return Exit::NmiDone;
            }
            _ => {}
        }
        exit
    }

    fn take_interrupts(&mut self) {
        // SAFETY: host state is complete here (segments restored by VMLOAD), so the host's own
        // handlers may run; GIF and IF are as before afterwards.
        unsafe { asm!("sti", "stgi", "nop", "clgi", "cli") };
    }

    fn take_nmi(&mut self) {
        // SAFETY: as in `take_interrupts`, with IF clear.
        unsafe { asm!("stgi", "nop", "clgi") };
    }

    fn set_mode(&mut self, mode: Mode) {
        match mode {
            Mode::Direct | Mode::Dedicated if self.in_injection() => {
                let priority = self.vmcb.int_ctl & int_ctl::V_TPR;
                self.vmcb.intercept_misc1 &= !misc1::INTR;
                self.offer_interrupt(None);
                self.vmcb.int_ctl &= !int_ctl::V_INTR_MASKING;
                self.vmcb.msrpm_base = self.bitmaps.msrs(mode);
                if self.extra.is_some() {
                    self.cut_idt();
                }
                if priority != 0 {
                    super::x2apic::set_tpr((priority as u8) << 4);
                }
            }
            Mode::Injection if !self.in_injection() => {
                let priority = super::x2apic::tpr();
                if priority != 0 {
                    super::x2apic::set_tpr(0);
                }
                self.vmcb.int_ctl = self.vmcb.int_ctl & !int_ctl::V_TPR | class(priority) as u64;
                self.set_injection();
            }
            _ => {}
        }
    }

    fn watch_idt(&mut self, on: bool) {
        if on {
            self.vmcb.intercept_misc1 |= misc1::LIDT;
        } else if self.own_limit.is_none() {
            self.vmcb.intercept_misc1 &= !misc1::LIDT;
        }
    }

    fn watch_task_priority(&mut self, on: bool) {
        const CR8: u16 = 1 << 8;
        if on {
            self.vmcb.intercept_cr_write |= CR8;
        } else {
            self.vmcb.intercept_cr_write &= !CR8;
        }
    }

    fn watch_halt(&mut self, on: bool) {
        if on {
            self.vmcb.intercept_misc1 |= misc1::HLT;
        } else {
            self.vmcb.intercept_misc1 &= !misc1::HLT;
        }
    }

    fn interrupts_enabled(&self) -> bool {
        const IF: u64 = 1 << 9;
        self.vmcb.rflags & IF != 0
    }

    fn leave_core(&mut self) {
        if let Some(extra) = &mut self.extra {
            extra.save();
        }
    }

    fn return_to_core(&mut self) {
        if let Some(extra) = &self.extra {
            extra.load();
        }
    }

    fn sleep() {
        // SAFETY: as in `take_interrupts`; with IF=0 only NMIs come here, and keep it from sleeping.
        unsafe { asm!("stgi") };
        crate::interrupts::enable_and_halt();
        // SAFETY: as in `take_interrupts`.
        unsafe { asm!("cli", "clgi") };
    }

    fn offer_interrupt(&mut self, vector: Option<u8>) {
        events::offer(self.vmcb, vector);
    }

    fn offer_taken(&self) -> bool {
        events::taken(self.vmcb)
    }

    fn raise(&mut self, vector: u8, error_code: Option<u32>) {
        events::raise(self.vmcb, vector, error_code);
    }

    fn raise_page_fault(&mut self, address: u64, error_code: u32) {
        self.vmcb.cr2 = address;
        self.raise(PAGE_FAULT, Some(error_code));
    }

    fn raise_nmi(&mut self) {
        events::raise_nmi(self.vmcb, &mut self.nmi);
    }

    fn nmi_possible(&mut self) -> bool {
        self.nmi.possible(self.vmcb)
    }

    fn raising(&self) -> bool {
        events::raising(self.vmcb)
    }

    fn redeliver(&mut self, interruption: Interruption) {
        let own = !self.in_injection();
        let physical = |v| own && super::x2apic::in_service(v);
        events::redeliver(self.vmcb, &mut self.nmi, interruption, physical);
    }

    fn task_priority(&self) -> u8 {
        if self.in_injection() {
            (self.vmcb.int_ctl as u8 & 0xF) << 4
        } else {
            super::x2apic::tpr()
        }
    }

    fn set_task_priority(&mut self, priority: u8) {
        if self.in_injection() {
            self.vmcb.int_ctl = self.vmcb.int_ctl & !int_ctl::V_TPR | class(priority) as u64;
        } else {
            super::x2apic::set_tpr(priority);
        }
    }

    fn resume_at(&mut self, rip: u64) {
        const TRAP: u64 = 1 << 8;
        const RESUME: u64 = 1 << 16;
        const SINGLE_STEP: u64 = 1 << 14;
        self.vmcb.rip = rip;
        self.vmcb.interrupt_shadow &= !1;
        // The end of an instruction as the CPU would have it (APM vol. 2, 13.1.4), unless what the
        // instruction did raises an event first.
        self.vmcb.rflags &= !RESUME;
        if self.vmcb.rflags & TRAP != 0 && !events::raising(self.vmcb) {
            self.vmcb.dr6 |= SINGLE_STEP;
            self.raise(DEBUG, None);
        }
    }

    fn idtr(&self) -> (u64, u16) {
        (self.vmcb.idtr.base, self.own_limit.unwrap_or(self.vmcb.idtr.limit) as u16)
    }

    fn paging(&self) -> Paging {
        let v = &*self.vmcb;
        Paging { cr0: v.cr0, cr3: v.cr3, cr4: v.cr4, efer: v.efer & !EFER_SVME }
    }

    fn long_mode(&self) -> bool {
        self.vmcb.efer & EFER_LMA != 0
    }

    fn code_mode(&self) -> decode::Mode {
        const LONG: u16 = 1 << 9;
        const DEFAULT_32: u16 = 1 << 10;
        let attributes = self.vmcb.cs.attributes;
        if self.long_mode() && attributes & LONG != 0 {
            decode::Mode::Bits64
        } else if attributes & DEFAULT_32 != 0 {
            decode::Mode::Bits32
        } else {
            decode::Mode::Bits16
        }
    }

    fn set_cr0(&mut self, value: u64) {
        let long = self.vmcb.efer & EFER_LME != 0 && value & CR0_PG != 0;
        self.vmcb.cr0 = value;
        self.vmcb.efer = self.vmcb.efer & !EFER_LMA | if long { EFER_LMA } else { 0 };
        self.flush = true;
    }

    fn let_debug_control(&mut self) {
        self.vmcb.intercept_dr_write = 0;
    }

    fn mend(&mut self) -> bool {
        let (dr6, dr7) = (self.vmcb.dr6, self.vmcb.dr7);
        self.vmcb.dr6 = dr6 & 0xFFFF_FFFF;
        self.vmcb.dr7 = dr7 & 0xFFFF_FFFF;
        (dr6 | dr7) >> 32 != 0
    }

    fn privilege(&self) -> u8 {
        self.vmcb.cpl
    }

    fn cr4(&self) -> u64 {
        self.vmcb.cr4
    }

    fn efer(&self) -> u64 {
        self.vmcb.efer & !EFER_SVME
    }

    fn set_efer(&mut self, value: u64) {
        self.vmcb.efer = value & !EFER_LMA | self.vmcb.efer & EFER_LMA | EFER_SVME;
    }

    fn tsc(&self) -> u64 {
        rdtsc().wrapping_add(self.vmcb.tsc_offset)
    }

    fn set_tsc(&mut self, value: u64) {
        self.vmcb.tsc_offset = value.wrapping_sub(rdtsc());
    }

    fn flush_translations(&mut self) {
        self.flush = true;
    }
}
