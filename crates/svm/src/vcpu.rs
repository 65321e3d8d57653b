//! A vCPU as SVM has it: its control block, kept in step with its mode, its offer and its NMIs.
//!
//! Guarantees: every intercept that the host's safety needs is set whatever is done here, and on a
//! CPU that isn't emulated none is set for an emulator's sake. While an IDT's limit is cut
//! ([`Vcpu::set_exitless`]), nothing shows or changes that limit without an exit.

use crate::emulator::{DEBUG_CONTROLS, DELIVERY_FAULTS};
use crate::maps::Map;
use crate::nmi::Nmi;
use crate::registers::GeneralRegisters;
use crate::vmcb::{Vmcb, int_ctl, misc1, misc2};
use crate::{EFER_SVME, Features, events, exits};
use delivery::{Event, EventKind, FIRST_RESERVED, GATE_BYTES, Mode, class};
use vendor::{Exit, Start};

const DEBUG: u8 = 1;
pub(crate) const NOT_PRESENT: u8 = 11;
pub(crate) const GENERAL_PROTECTION: u8 = 13;
const ALIGNMENT_CHECK: u8 = 17;
const MACHINE_CHECK: u8 = 18;

/// Word 3 of the intercepts: those that every guest has.
pub const ALWAYS_MISC1: u32 = misc1::NMI
    | misc1::INIT
    | misc1::CR0_SELECTIVE
    | misc1::RDPMC
    | misc1::CPUID
    | misc1::INVD
    | misc1::INVLPGA
    | misc1::IOIO
    | misc1::MSR
    | misc1::TASK_SWITCH
    | misc1::FERR_FREEZE
    | misc1::SHUTDOWN;
/// Word 4 of the intercepts: those that every guest has.
pub const ALWAYS_MISC2: u32 = misc2::VMRUN
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

/// #DB and #AC can recur without end inside the delivery of an event, where nothing but an
/// intercept gets the core back (CVE-2015-8104, CVE-2015-5307); #MC is the host's.
pub const ALWAYS_EXCEPTIONS: u32 = 1 << DEBUG | 1 << ALIGNMENT_CHECK | 1 << MACHINE_CHECK;

/// The instructions that show or change the IDT's limit. Writes to CR0, which decides the size of a
/// gate, exit always.
pub(crate) const CUT_INTERCEPTS: u32 = misc1::LIDT | misc1::SIDT;

/// The largest limit of an IDT that is cut.
pub(crate) const CUT: u32 = FIRST_RESERVED as u32 * GATE_BYTES as u32 - 1;

/// MOV to CR8.
const CR8: u16 = 1 << 8;

/// Physical addresses of the permission maps.
#[derive(Clone, Copy, Debug)]
pub struct Maps {
    /// Of the MSRs, by [`Map`].
    pub msrs: [u64; Map::ALL.len()],
    /// Of the ports.
    pub ports: u64,
}

/// The parts that a vCPU is made of.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Physical address of its nested page tables.
    pub nested_root: u64,
    /// Its address space; not 0.
    pub asid: u32,
    /// Its permission maps.
    pub maps: Maps,
    /// It isn't alone on its core.
    pub shared: bool,
    /// Gates may be hidden from it by a shadow IDT, so #NP is for the host to look at.
    pub hides_gates: bool,
    /// The features of the CPU.
    pub features: Features,
    /// Where it starts.
    pub start: Start,
    /// Family, model and stepping: EAX of CPUID 1, which a start-up leaves in EDX.
    pub signature: u32,
}

impl Setup {
    /// The exceptions that exit in every mode.
    pub(crate) fn exceptions(&self) -> u32 {
        let not_present = u32::from(self.hides_gates || self.features.emulated) << NOT_PRESENT;
        ALWAYS_EXCEPTIONS | not_present
    }
}

/// One virtual CPU.
pub struct Vcpu {
    /// Its control block.
    pub vmcb: &'static mut Vmcb,
    /// Its registers, but for RAX and RSP.
    pub registers: GeneralRegisters,
    pub(crate) features: Features,
    maps: Maps,
    shared: bool,
    timer_open: bool,
    timer_lent: bool,
    x2apic: bool,
    signature: u32,
    nmi: Nmi,
    /// The limit of the guest's IDT, while another is in force.
    own_limit: Option<u32>,
    /// On an emulated CPU: the interrupt that is wanted on offer, and whether it is held back by
    /// the task priority, so that it isn't.
    wanted: Option<u8>,
    held: bool,
    /// The task priority as it was last set in injection mode. The control block has but its class,
    /// which the guest's MOVs to CR8 change.
    priority: u8,
    /// Which MOVs to debug registers exit.
    debug_controls: u16,
}

impl Vcpu {
    /// A vCPU at its start, with a control block that is all zero.
    pub fn new(vmcb: &'static mut Vmcb, setup: &Setup) -> Self {
        let emulated = setup.features.emulated;
        vmcb.intercept_misc1 = ALWAYS_MISC1;
        vmcb.intercept_misc2 = ALWAYS_MISC2;
        vmcb.intercept_exceptions = setup.exceptions();
        vmcb.iopm_base = setup.maps.ports;
        vmcb.asid = setup.asid;
        vmcb.nested_control = 1;
        vmcb.nested_cr3 = setup.nested_root;
        let mut vcpu = Vcpu {
            vmcb,
            registers: GeneralRegisters::default(),
            features: setup.features,
            maps: setup.maps,
            shared: setup.shared,
            timer_open: true,
            timer_lent: false,
            x2apic: true,
            signature: setup.signature,
            nmi: Nmi::None,
            own_limit: None,
            wanted: None,
            held: false,
            priority: 0,
            debug_controls: if emulated { DEBUG_CONTROLS } else { 0 },
        };
        vcpu.reset(setup.start);
        vcpu
    }

    /// The state of a CPU at its start; nothing pending, injection mode.
    pub fn reset(&mut self, start: Start) {
        self.restore_idt();
        self.end_guard();
        self.take_flag();
        self.open_loads(false);
        self.registers = GeneralRegisters::default();
        match start {
            Start::Kernel { rip, page_tables, gdt, selectors, registers } => {
                self.vmcb.enter_kernel(rip, page_tables, gdt, selectors);
                let (rax, rbx, rsi) = registers;
                self.vmcb.rax = rax;
                self.registers.0[3] = rbx;
                self.registers.0[6] = rsi;
            }
            Start::StartUp { page } => {
                self.vmcb.start_up(page);
                // As after every reset.
                self.registers.0[2] = u64::from(self.signature);
            }
        }
        self.vmcb.efer |= EFER_SVME;
        self.nmi.forget(self.vmcb);
        self.watch_idt(false);
        self.watch_halt(false);
        (self.timer_open, self.timer_lent) = (true, false);
        self.offer(None);
        self.set_injection(0);
        self.end_let_debug_control();
        self.flush();
    }

    /// Sets CR0, as the guest wrote it.
    pub fn set_cr0(&mut self, value: u64) {
        self.vmcb.set_cr0(value);
        self.flush();
    }

    /// Sets EFER, as the guest wrote it, but for LMA, which is CR0's.
    pub fn set_efer(&mut self, value: u64) {
        if self.vmcb.set_efer(value) {
            self.flush();
        }
    }

    /// Has the next entry drop all cached translations; the entry takes this back.
    #[inline]
    pub fn flush(&mut self) {
        self.vmcb.tlb_control = 1;
    }

    /// Why it was left; to be asked once for each time. `in_service`: as in
    /// [`emulator::true_event`](crate::emulator::true_event).
    #[inline]
    pub fn exit(&mut self, in_service: impl Fn(u8) -> bool) -> Exit {
        self.end_let_debug_control();
        let exit = exits::decode(self.vmcb, &self.features, in_service);
        match exit {
            Exit::NmiDone => self.nmi.returns(self.vmcb),
            Exit::Fault { .. } => self.forget_guard(),
            Exit::Exception { vector: DEBUG, .. } if self.nmi.stepped(self.vmcb) => {
                return Exit::NmiDone;
            }
            _ => {}
        }
        exit
    }

    /// Why it was left isn't asked.
    #[inline]
    pub fn acknowledge_exit(&mut self) {
        self.end_let_debug_control();
    }

    /// May a timer of a local APIC that has counted down lose its interrupt if it is set, or
    /// masked, before that is pending?
    pub fn timer_forgets(&self) -> bool {
        self.features.emulated
    }

    /// Lets the guest write DR4 to DR7 until the next exit.
    pub fn let_debug_control(&mut self) {
        self.vmcb.intercept_dr_write = 0;
    }

    #[inline]
    fn end_let_debug_control(&mut self) {
        self.vmcb.intercept_dr_write = self.debug_controls;
    }
}

/// Modes.
impl Vcpu {
    /// Injection mode, with this task priority.
    pub fn set_injection(&mut self, priority: u8) {
        self.restore_idt();
        self.vmcb.intercept_misc1 |= misc1::INTR;
        self.write_priority(priority);
        self.vmcb.int_ctl |= int_ctl::V_INTR_MASKING;
        self.load_map(Mode::Injection);
    }

    /// ELI or passthrough mode. Gives the task priority of the guest in injection mode.
    pub fn set_exitless(&mut self, mode: Mode) -> u8 {
        let priority = self.virtual_priority();
        self.offer(None);
        self.vmcb.intercept_misc1 &= !misc1::INTR;
        self.vmcb.int_ctl &= !int_ctl::V_INTR_MASKING;
        self.load_map(mode);
        if self.shared {
            self.cut_idt();
        }
        priority
    }

    /// Is it in injection mode?
    #[inline]
    pub fn in_injection(&self) -> bool {
        self.vmcb.int_ctl & int_ctl::V_INTR_MASKING != 0
    }

    /// Whether the guest may set its core's timer without an exit in passthrough mode.
    pub fn open_timer(&mut self, mode: Mode, open: bool) {
        self.timer_open = open;
        self.load_map(mode);
    }

    /// Whether it may in ELI mode: the core's timer is the guest's, and one-shot.
    pub fn lend_timer(&mut self, mode: Mode, lent: bool) {
        self.timer_lent = lent;
        self.load_map(mode);
    }

    /// Whether the guest's local APIC is in x2APIC mode: else none of its registers is open.
    pub fn show_x2apic(&mut self, mode: Mode, on: bool) {
        self.x2apic = on;
        self.load_map(mode);
    }

    fn load_map(&mut self, mode: Mode) {
        let [injection, eli, passthrough, periodic, hidden, timer] = self.maps.msrs;
        self.vmcb.msrpm_base = match Map::of(mode, self.timer_open, self.timer_lent, self.x2apic) {
            // Nobody is in posted mode.
            Map::Injection | Map::Posted => injection,
            Map::Hidden => hidden,
            Map::Eli => eli,
            Map::Passthrough => passthrough,
            Map::Periodic => periodic,
            Map::EliTimer => timer,
        };
    }

    /// On a shared core, in ELI mode: the vectors of the host and of the others raise #GP in
    /// delivery, before any memory of the guest's is read, and nothing shows or ends that unseen.
    fn cut_idt(&mut self) {
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

    /// Base and limit of the guest's IDT.
    pub fn idtr(&self) -> (u64, u16) {
        (self.vmcb.idtr.base, self.own_limit.unwrap_or(self.vmcb.idtr.limit) as u16)
    }

    /// Exits on LIDT, or not.
    pub fn watch_idt(&mut self, on: bool) {
        if on {
            self.vmcb.intercept_misc1 |= misc1::LIDT;
        } else if self.own_limit.is_none() {
            self.vmcb.intercept_misc1 &= !misc1::LIDT;
        }
    }

    /// Exits on HLT, or not.
    #[inline]
    pub fn watch_halt(&mut self, on: bool) {
        if on {
            self.vmcb.intercept_misc1 |= misc1::HLT;
        } else {
            self.vmcb.intercept_misc1 &= !misc1::HLT;
        }
    }
}

/// Events.
impl Vcpu {
    /// Raises an event at the next entry.
    pub fn inject(&mut self, event: Event) {
        if event.kind == EventKind::Nmi {
            self.nmi.injected(self.vmcb);
        }
        self.vmcb.event_inj = events::injected(event);
    }

    /// Is one to be injected already?
    #[inline]
    pub fn injects(&self) -> bool {
        events::injects(self.vmcb)
    }

    /// Could the guest take an NMI? If not, an exit follows when it can.
    pub fn nmi_possible(&mut self) -> bool {
        self.nmi.possible(self.vmcb)
    }

    /// The task priority in injection mode, all eight bits. A MOV to CR8 that changes the class
    /// clears bits 3:0, as in a processor; one that leaves the class as it is doesn't here, for
    /// nothing shows it.
    pub fn virtual_priority(&self) -> u8 {
        let now = (self.vmcb.int_ctl & 0xF) as u8;
        if now == class(self.priority) { self.priority } else { now << 4 }
    }

    /// Sets the task priority in injection mode.
    pub fn set_virtual_priority(&mut self, priority: u8) {
        self.write_priority(priority);
        if self.wanted.is_some() {
            self.offer(self.wanted);
        }
    }

    fn write_priority(&mut self, priority: u8) {
        self.priority = priority;
        self.vmcb.int_ctl = self.vmcb.int_ctl & !int_ctl::V_TPR | u64::from(class(priority));
    }

    /// In injection mode: the virtual interrupt that the guest takes as soon as its IF and task
    /// priority let it in, or none.
    pub fn offer(&mut self, vector: Option<u8>) {
        if !self.features.emulated {
            return events::offer(self.vmcb, vector);
        }
        self.wanted = vector;
        self.held = vector.is_some_and(|v| class(v) <= class(self.virtual_priority()));
        events::offer(self.vmcb, vector.filter(|_| !self.held));
        let (priority, faults) = match vector {
            None => (0, 0),
            Some(_) if self.held => (CR8, 0),
            Some(_) => (CR8, DELIVERY_FAULTS),
        };
        self.vmcb.intercept_cr_write = priority;
        self.vmcb.intercept_exceptions = self.vmcb.intercept_exceptions & !DELIVERY_FAULTS | faults;
    }

    /// Was it taken? Then none is on offer any more.
    #[inline]
    pub fn offer_accepted(&mut self) -> bool {
        let taken = !self.held && events::offered(self.vmcb).is_none();
        if taken && self.features.emulated {
            self.wanted = None;
            self.vmcb.intercept_exceptions &= !DELIVERY_FAULTS;
            self.vmcb.intercept_cr_write = 0;
        }
        taken
    }

    /// Is this vector on offer, so that the CPU delivers it by itself?
    pub fn delivers(&self, vector: u8) -> bool {
        events::offered(self.vmcb) == Some(vector)
    }
}

#[cfg(test)]
pub(crate) mod tests;
