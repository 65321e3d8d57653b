//! The processors' extension, chosen when the machine starts, behind the types that generic code is
//! compiled for.
//!
//! Guarantees: all vCPUs are of one vendor, and what distinguishes vendors is a number that is
//! looked at in each call. Generic code for each vendor would cost the image 89 KiB more; the price
//! of looking is in docs/design.md.

use super::svm::{self, SvmCpu};
use super::vendor::audit::{self, Finding, InnerTables};
use super::vendor::{
    ApicAnswer, Attempt, Entry, Exit, GuestPages, Inner, Notice, PostedTo, Start, VirtualCpu, Visit,
};
use super::vmx::{self, VmxCpu};
use alloc::string::{String, ToString};
use core::sync::atomic::AtomicU32;
use decode::{Registers, Segment};
use delivery::{Event, Mode, VectorSet};
use paging::walk::Paging;
use paging::{Mapping, SecondLevel};
use proto::Policy;
use raw_cpuid::CpuId;
use spin::Once;

/// What distinguishes a vCPU.
#[derive(Clone, Copy, Debug)]
pub struct Traits {
    /// EOI exits in ELI mode, too.
    pub completions_exit: bool,
    /// It isn't alone on its core.
    pub shared: bool,
    /// Gates may be hidden from it by a shadow IDT.
    pub hides_gates: bool,
    /// The mode in which it takes its interrupts itself; injection mode: it never does.
    pub takes: Mode,
    /// By what others post to it; none: it is never in posted mode.
    pub posting: Option<Posting>,
    /// Devices post interrupts to guests of its own: for which backing page.
    pub posts: Option<&'static PostedTo>,
    /// What it is offered of SVM, if it may run guests of its own.
    pub offer: Option<nested::Offer>,
}

/// Whose the extension is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Vendor {
    Svm,
    Vmx,
}

static CHOSEN: Once<Vendor> = Once::new();

/// The vendor by CPUID, of the core that asks.
fn vendor() -> Option<Vendor> {
    let cpuid = CpuId::new();
    let extended = cpuid.get_extended_processor_and_feature_identifiers();
    if extended.is_some_and(|f| f.has_svm()) {
        return Some(Vendor::Svm);
    }
    cpuid.get_feature_info().filter(|f| f.has_vmx()).map(|_| Vendor::Vmx)
}

/// Has firmware locked the virtualisation of the core that asks off? Each core has a register of
/// its own that says so.
pub fn locked_off() -> bool {
    match vendor() {
        Some(Vendor::Svm) => svm::locked_off(),
        Some(Vendor::Vmx) => vmx::locked_off(),
        None => false,
    }
}

/// Chooses the vendor, and checks that the CPU has all that is needed; the error is the sentence
/// that names what is missing.
pub fn choose() -> Result<(), String> {
    let vendor = vendor().ok_or(
        "the CPU has neither SVM (AMD-V) nor VMX (Intel's): CPUID 8000_0001 ECX bit 2 and CPUID 1 \
         ECX bit 5 are clear; on QEMU use -cpu max",
    )?;
    match vendor {
        Vendor::Svm => svm::supported()?,
        Vendor::Vmx => vmx::supported()?,
    }
    CHOSEN.call_once(|| vendor);
    Ok(())
}

fn chosen() -> Vendor {
    *CHOSEN.get().expect("the vendor is chosen before the first VM is built")
}

/// What is known to be wrong with the CPU, as far as the host can't help it: a sentence each. Of
/// AMD's nothing is known yet.
pub fn errata() -> impl Iterator<Item = &'static str> {
    let known = matches!(chosen(), Vendor::Vmx).then(vmx::errata);
    known.into_iter().flatten()
}

/// What a plan asks for and this vendor's side hasn't yet, or the CPU hasn't, as the end of a
/// sentence.
pub fn lacks(nested: bool, policy: Policy) -> Option<String> {
    let sentence = match chosen() {
        Vendor::Vmx if nested => {
            "guests of a guest aren't there on VMX yet; leave nested out, or take a machine of AMD's"
        }
        Vendor::Vmx if policy == Policy::Posted => return vmx::posts().err(),
        Vendor::Svm if policy == Policy::Posted => {
            "\"posted\" is for Intel's processors: AMD's means (AVIC) isn't there yet"
        }
        _ => return None,
    };
    Some(sentence.to_string())
}

/// Has the CPU all of [`Policy::Posted`]?
pub fn posts() -> bool {
    lacks(false, Policy::Posted).is_none()
}

/// By what any core posts interrupts to a vCPU whose CPU delivers them by itself.
#[derive(Clone, Copy, Debug)]
pub struct Posting(vmx::Posts);

impl Posting {
    /// For a vCPU on the core with this APIC id; `None` when memory runs out.
    pub fn new(apic_id: u32) -> Option<Posting> {
        vmx::Posts::new(apic_id).map(Posting)
    }

    pub(super) fn posts(self) -> vmx::Posts {
        self.0
    }

    /// Posts a vector. The core is told, unless it has been since it last looked.
    pub fn post(self, vector: u8) {
        self.0.post(vector);
    }

    /// The vCPU's core, out of the guest: takes what was posted, 64 vectors an element.
    #[inline]
    pub fn take(self) -> Option<[u64; 4]> {
        self.0.take()
    }
}

/// The format of nested tables.
pub fn second_level() -> SecondLevel {
    match chosen() {
        Vendor::Svm => SecondLevel::Nested,
        Vendor::Vmx => SecondLevel::Ept,
    }
}

/// One virtual CPU.
#[expect(clippy::large_enum_variant, reason = "a machine has one kind, and each is in a box")]
pub enum VendorCpu {
    /// AMD's.
    Svm(SvmCpu),
    /// Intel's.
    Vmx(VmxCpu),
}

impl VendorCpu {
    /// Memory and state of a vCPU; `None` when memory runs out. `nested_root`: its nested page
    /// tables; `number`: its address space on its core, not 0; `pm_timer`: the port at which it
    /// reads the PM timer without an exit.
    pub fn new(
        nested_root: u64,
        number: u16,
        pm_timer: Option<u16>,
        traits: Traits,
        start: Start,
    ) -> Option<Self> {
        Some(match chosen() {
            Vendor::Svm => {
                VendorCpu::Svm(SvmCpu::new(nested_root, number.into(), pm_timer, traits, start)?)
            }
            Vendor::Vmx => {
                VendorCpu::Vmx(VmxCpu::new(nested_root, number, pm_timer, traits, start)?)
            }
        })
    }
}

/// Has each of these functions be the vendor's: `ref` takes `&self`, `mut` takes `&mut self`. One
/// that the trait has a default for and that isn't listed would be the default for both vendors.
macro_rules! delegate {
    ($($(#[$inline:meta])* $kind:ident $name:ident($($arg:ident: $type:ty),*) $(-> $ret:ty)?;)*) => {
        $(delegate!(@ $(#[$inline])* $kind $name ($($arg: $type),*) ($($ret)?));)*
    };
    (@ $(#[$inline:meta])* ref $name:ident ($($arg:ident: $type:ty),*) ($($ret:ty)?)) => {
        $(#[$inline])*
        fn $name(&self, $($arg: $type),*) $(-> $ret)? {
            match self {
                VendorCpu::Svm(cpu) => cpu.$name($($arg),*),
                VendorCpu::Vmx(cpu) => cpu.$name($($arg),*),
            }
        }
    };
    (@ $(#[$inline:meta])* mut $name:ident ($($arg:ident: $type:ty),*) ($($ret:ty)?)) => {
        $(#[$inline])*
        fn $name(&mut self, $($arg: $type),*) $(-> $ret)? {
            match self {
                VendorCpu::Svm(cpu) => cpu.$name($($arg),*),
                VendorCpu::Vmx(cpu) => cpu.$name($($arg),*),
            }
        }
    };
}

impl Registers for VendorCpu {
    delegate! {
        #[inline(always)]
        ref gpr(number: u8) -> u64;
        #[inline(always)]
        mut set_gpr(number: u8, value: u64);
        #[inline]
        ref rflags() -> u64;
        #[inline]
        mut set_rflags(value: u64);
        #[inline(always)]
        ref rip() -> u64;
        #[inline]
        ref segment_base(segment: Segment) -> u64;
    }
}

impl VirtualCpu for VendorCpu {
    type Outline = VendorOutline;

    fn outline(&self) -> VendorOutline {
        match self {
            VendorCpu::Svm(cpu) => VendorOutline::Svm(cpu.outline()),
            VendorCpu::Vmx(cpu) => VendorOutline::Vmx(cpu.outline()),
        }
    }

    #[inline(always)]
    fn visited<V: Visit>(&mut self, visit: V) -> V::Output {
        match self {
            VendorCpu::Svm(cpu) => visit.visit(cpu),
            VendorCpu::Vmx(cpu) => visit.visit(cpu),
        }
    }

    delegate! {
        #[inline(always)]
        mut step_over(length: u64);
        #[inline]
        mut reset(start: Start);
        #[inline]
        mut prepare_core();
        #[inline]
        mut release_core();
        #[inline(always)]
        mut enter(requests: &AtomicU32) -> Entry;
        #[inline]
        mut leave_at_once();
        #[inline(always)]
        mut leave_at(at: u64) -> bool;
        #[inline(always)]
        ref wrote_msr() -> bool;
        #[inline(always)]
        ref halted() -> bool;
        #[inline]
        mut exit() -> Exit;
        #[inline(always)]
        mut acknowledge_exit();
        #[inline(always)]
        mut take_interrupts();
        #[inline]
        mut set_mode(mode: Mode);
        #[inline]
        ref kept_interrupts() -> Option<[VectorSet; 2]>;
        mut keep_interrupts(pending: &VectorSet, in_service: &VectorSet, watched: &VectorSet);
        #[inline]
        mut watch_idt(on: bool);
        #[inline]
        mut open_timer(open: bool);
        #[inline]
        mut lend_timer(lent: bool);
        #[inline]
        ref timer_forgets() -> bool;
        #[inline]
        mut show_x2apic(on: bool);
        #[inline]
        mut watch_halt(on: bool);
        #[inline]
        ref interrupts_enabled() -> bool;
        #[inline]
        mut leave_core();
        #[inline]
        mut return_to_core();
        #[inline(always)]
        mut offer_interrupt(vector: Option<u8>);
        #[inline(always)]
        mut offer_accepted() -> bool;
        #[inline]
        ref delivers(vector: u8) -> bool;
        #[inline]
        mut inject(vector: u8, error_code: Option<u32>);
        #[inline]
        mut inject_page_fault(address: u64, error_code: u32);
        #[inline]
        mut inject_nmi();
        #[inline]
        mut nmi_possible() -> bool;
        #[inline]
        ref injects() -> bool;
        #[inline]
        ref task_priority() -> u8;
        #[inline]
        mut set_task_priority(priority: u8);
        #[inline]
        mut redeliver(event: Event);
        #[inline(always)]
        ref next_rip() -> Option<u64>;
        #[inline]
        ref instruction_bytes() -> Option<&[u8]>;
        #[inline(always)]
        mut advance(next: u64);
        #[inline]
        ref idtr() -> (u64, u16);
        #[inline]
        ref paging() -> Paging;
        #[inline(always)]
        ref cr3() -> u64;
        #[inline]
        ref long_mode() -> bool;
        #[inline]
        ref code_mode() -> decode::Mode;
        ref cs_long() -> bool;
        #[inline]
        ref cr4() -> u64;
        #[inline]
        mut set_cr0(value: u64, memory: &dyn GuestPages) -> bool;
        #[inline]
        mut let_debug_control();
        #[inline]
        ref privilege() -> u8;
        #[inline]
        ref efer() -> u64;
        #[inline]
        mut set_efer(value: u64);
        #[inline]
        ref tsc() -> u64;
        #[inline]
        mut set_tsc(value: u64);
        #[inline]
        mut flush_translations();
        #[inline]
        mut attempt(memory: &dyn GuestPages) -> Attempt;
        #[inline]
        mut enter_inner(requests: &AtomicU32) -> Entry;
        #[inline]
        mut inner_exit(memory: &dyn GuestPages) -> Inner;
        #[inline]
        mut inner_registers(at: u64, registers: Option<Mapping>) -> Inner;
        #[inline]
        mut served(memory: &dyn GuestPages);
        #[inline]
        ref inner_address(memory: &dyn GuestPages, address: u64, write: bool) -> Option<u64>;
        #[inline]
        mut inner_missing(memory: &dyn GuestPages, address: u64, write: bool, table: bool);
        #[inline]
        mut inner_apic(register: u8, write: Option<u64>, page: bool) -> Option<ApicAnswer>;
        #[inline]
        ref inner_is_told() -> bool;
        #[inline]
        mut inner_again();
        #[inline]
        ref inner_injects() -> bool;
        #[inline]
        mut notify(notice: Notice) -> bool;
        #[inline]
        mut holds_init() -> bool;
        #[inline]
        mut exit_instead() -> bool;
        #[inline]
        ref runs_inner() -> bool;
    }
}

/// Where the controls and permission maps of a vCPU are.
#[derive(Clone, Copy, Debug)]
pub enum VendorOutline {
    /// AMD's.
    Svm(::svm::Outline),
    /// Intel's.
    Vmx(::vmx::Outline),
}

impl audit::Outline for VendorOutline {
    fn parts(&self) -> u32 {
        match self {
            VendorOutline::Svm(outline) => outline.parts(),
            VendorOutline::Vmx(outline) => outline.parts(),
        }
    }

    fn audit(&self, part: u32, word: impl Fn(u64) -> u64) -> Result<(), Finding> {
        match self {
            VendorOutline::Svm(outline) => outline.audit(part, word),
            VendorOutline::Vmx(outline) => outline.audit(part, word),
        }
    }

    fn control_block(&self) -> u64 {
        match self {
            VendorOutline::Svm(outline) => outline.control_block(),
            VendorOutline::Vmx(outline) => outline.control_block(),
        }
    }

    fn has_inner(&self) -> bool {
        match self {
            VendorOutline::Svm(outline) => outline.has_inner(),
            VendorOutline::Vmx(outline) => outline.has_inner(),
        }
    }

    fn inner_tables(&self, word: impl Fn(u64) -> u64) -> Option<InnerTables> {
        match self {
            VendorOutline::Svm(outline) => outline.inner_tables(word),
            VendorOutline::Vmx(outline) => outline.inner_tables(word),
        }
    }
}
