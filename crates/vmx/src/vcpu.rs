//! A vCPU as VMX has it: its control structure, kept in step with its mode, its offer and its NMIs.
//!
//! Guarantees: all of [`Controls::NEEDED`] but the TPR shadow is set whatever is done here; that is
//! set in injection mode, and in the others the task priority is the core's own. While an IDT's
//! limit is cut ([`Vcpu::set_exitless`]), nothing shows or changes that limit without an exit. What
//! is entered passes [`crate::entry::check`].
//!
//! What it is offered and what is raised in it: `offers`. Posted mode: `posting`.

mod offers;
mod posting;

use crate::controls::{pin, primary, secondary};
use crate::start::{self, ALWAYS_EXCEPTIONS, Parts};
use crate::{Area, Capabilities, Controls, exits, field, nmi_unblocked};
use core::sync::atomic::{AtomicU8, Ordering};
use delivery::{FIRST_RESERVED, GATE_BYTES, Mode};
use vendor::maps::Map;
use vendor::{Exit, Start};

pub use posting::Posting;

const NOT_PRESENT: u32 = 11;
const GENERAL_PROTECTION: u32 = 13;
const DEBUG: u8 = 1;
const CR0_PE: u64 = 1;
/// The activity states, awake and in HLT.
const ACTIVE: u64 = 0;
const SLEEPS: u64 = 1;
/// Of the interruptibility state.
const BY_STI: u64 = 1 << 0;
const BY_MOV_SS: u64 = 1 << 1;
const BY_NMI: u64 = 1 << 3;

/// A time that doesn't come.
const NEVER: u64 = u64::MAX;

/// The largest limit of an IDT that is cut.
const CUT: u64 = FIRST_RESERVED as u64 * GATE_BYTES as u64 - 1;

/// The parts that a vCPU is made of.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// What its control structure points to, with the map of injection mode.
    pub parts: Parts,
    /// Physical addresses of its maps of MSRs, by [`Map`].
    pub maps: [u64; Map::OF_VMX.len()],
    /// What the CPU's VMX can.
    pub capabilities: Capabilities,
    /// It isn't alone on its core.
    pub shared: bool,
    /// Gates may be hidden from it by a shadow IDT, so #NP is for the host to look at.
    pub hides_gates: bool,
    /// What posted mode needs, if it may be in it.
    pub posting: Option<Posting>,
    /// The bits of CR4 that it may set.
    pub cr4: u64,
    /// Where it starts.
    pub start: Start,
    /// Family, model and stepping: EAX of CPUID 1, which a start-up leaves in EDX.
    pub signature: u32,
}

/// One virtual CPU. Its control structure is the current one wherever it is used, but for
/// [`Vcpu::new`] and a [`Vcpu::reset`] before [`Vcpu::build`].
pub struct Vcpu<A> {
    /// Its control structure.
    pub area: A,
    /// Its registers, numbered as instructions encode them, but for RSP.
    pub registers: [u64; 16],
    pub(crate) capabilities: Capabilities,
    /// The limit of the guest's IDT, while another is in force.
    pub(crate) own_limit: Option<u64>,
    setup: Setup,
    /// As they stand in the control structure.
    controls: Controls,
    exceptions: u32,
    built: bool,
    /// The byte of the virtual-APIC page that has the task priority in injection mode.
    priority: &'static AtomicU8,
    start: Start,
    timer_open: bool,
    timer_lent: bool,
    x2apic: bool,
    /// LIDT is to exit.
    idt_watched: bool,
    /// HLT is to exit.
    halt_watched: bool,
    /// The interrupt on offer.
    offered: Option<u8>,
    /// It is raised at this entry.
    raised: bool,
    /// Cached translations are to be dropped before the next entry.
    flushes: bool,
    /// It is left at once, by the preemption timer.
    leaves: bool,
    /// When it is left by that timer, by the TSC; [`NEVER`]: it isn't.
    limit: u64,
    /// The guest is left behind the shadow of an STI, for an NMI that waits.
    awaits_shadow: bool,
}

impl<A: Area> Vcpu<A> {
    /// A vCPU at its start, on paper. `controls`: those of [`Controls::fit`].
    pub fn new(
        area: A,
        setup: &Setup,
        mut controls: Controls,
        priority: &'static AtomicU8,
    ) -> Self {
        if setup.posting.is_some() {
            controls.exit |= Controls::POSTED.exit;
        }
        let mut vcpu = Vcpu {
            area,
            registers: [0; 16],
            capabilities: setup.capabilities,
            own_limit: None,
            setup: *setup,
            controls,
            exceptions: ALWAYS_EXCEPTIONS | u32::from(setup.hides_gates) << NOT_PRESENT,
            built: false,
            priority,
            start: setup.start,
            timer_open: true,
            timer_lent: false,
            x2apic: true,
            idt_watched: false,
            halt_watched: false,
            offered: None,
            raised: false,
            flushes: true,
            leaves: false,
            limit: NEVER,
            awaits_shadow: false,
        };
        vcpu.reset(setup.start);
        vcpu
    }

    /// Writes all of the control structure but the host's state, once.
    pub fn build(&mut self) {
        start::set_up(&mut self.area, &self.capabilities, &self.controls, &self.setup.parts);
        self.area.write(field::EXCEPTION_BITMAP, self.exceptions.into());
        self.area.write(field::CR4_MASK, self.cr4_mask());
        self.set_up_posting();
        self.built = true;
        // What a start-up leaves alone is as after a reset.
        let start = self.start;
        self.reset(self.setup.start);
        self.reset(start);
    }

    /// Was it written?
    pub fn is_built(&self) -> bool {
        self.built
    }

    /// The state of a CPU at its start; nothing pending, injection mode.
    pub fn reset(&mut self, start: Start) {
        self.registers = [0; 16];
        match start {
            Start::Kernel { registers: (rax, rbx, rsi), .. } => {
                (self.registers[0], self.registers[3], self.registers[6]) = (rax, rbx, rsi);
            }
            Start::StartUp { .. } => self.registers[2] = self.setup.signature.into(),
        }
        self.start = start;
        self.flush();
        if !self.built {
            return;
        }
        self.restore_idt();
        start::reset(&mut self.area, &self.capabilities, start);
        self.set_primary(primary::NMI_WINDOW, false);
        self.end_leave();
        self.leave_at(NEVER);
        self.watch_idt(false);
        self.watch_halt(false);
        (self.timer_open, self.timer_lent) = (true, false);
        self.raised = false;
        self.offer(None);
        self.set_injection(0);
    }

    /// Has the next entry drop all cached translations of the guest.
    #[inline]
    pub fn flush(&mut self) {
        self.flushes = true;
    }

    /// Whether they are to be dropped; they are from here on.
    #[inline]
    pub fn take_flush(&mut self) -> bool {
        core::mem::replace(&mut self.flushes, false)
    }

    /// Why it was left; to be asked once for each time.
    pub fn exit(&mut self) -> Exit {
        let at_once = self.leaves;
        self.end_leave();
        let exit = exits::decode(&self.area);
        match exit {
            // It takes the place of an NMI.
            Exit::TimeUp if at_once => return Exit::Nmi,
            Exit::NmiDone => self.set_primary(primary::NMI_WINDOW, false),
            Exit::Forbidden => {
                if let Some(from) = exits::cr4_source(&self.area) {
                    return self.load_cr4(from);
                }
            }
            Exit::Halt if !self.halt_watched => {
                // It sleeps from the next entry on, unless that raises something.
                self.advance(self.next_rip());
                if !(self.in_posted() && self.is_due()) {
                    self.area.write(field::GUEST_ACTIVITY, SLEEPS);
                }
                return Exit::Slept;
            }
            Exit::Fault { .. } | Exit::Exception { .. } if nmi_unblocked(&self.area, false) => {
                self.block_nmis();
            }
            Exit::NestedFault { .. } if nmi_unblocked(&self.area, true) => self.block_nmis(),
            Exit::Completed(vector) => self.end_watch(vector),
            _ => {}
        }
        exit
    }

    /// Was it left for HLT, which it is to be left for?
    #[inline]
    pub fn halted(&self) -> bool {
        self.halt_watched && exits::is_halt(&self.area)
    }

    /// Why it was left isn't asked.
    #[inline]
    pub fn acknowledge_exit(&mut self) {
        self.end_leave();
    }

    /// Is it #DB that it was left for?
    pub fn is_debug(exit: Exit) -> bool {
        matches!(exit, Exit::Exception { vector: DEBUG, .. })
    }

    pub(crate) fn offered_cr4(&self) -> u64 {
        self.setup.cr4
    }

    fn block_nmis(&mut self) {
        let blocking = self.area.read(field::GUEST_INTERRUPTIBILITY);
        self.area.write(field::GUEST_INTERRUPTIBILITY, blocking | BY_NMI);
    }

    fn set_pin(&mut self, bit: u32, on: bool) {
        let word = if on { self.controls.pin | bit } else { self.controls.pin & !bit };
        if word != self.controls.pin {
            self.controls.pin = word;
            self.area.write(field::PIN_CONTROLS, word.into());
        }
    }

    fn set_primary(&mut self, bit: u32, on: bool) {
        let word = if on { self.controls.primary | bit } else { self.controls.primary & !bit };
        if word != self.controls.primary {
            self.controls.primary = word;
            self.area.write(field::PRIMARY_CONTROLS, word.into());
        }
    }
}

/// Modes.
impl<A: Area> Vcpu<A> {
    /// Injection mode, with this task priority.
    pub fn set_injection(&mut self, priority: u8) {
        self.restore_idt();
        self.end_posted();
        self.set_pin(pin::EXTERNAL_INTERRUPT, true);
        self.priority.store(priority, Ordering::Relaxed);
        self.set_primary(primary::TPR_SHADOW, true);
        self.load_map(Mode::Injection);
    }

    /// ELI or passthrough mode. Gives the task priority of the guest in injection mode.
    pub fn set_exitless(&mut self, mode: Mode) -> u8 {
        let priority = self.virtual_priority();
        self.offer(None);
        self.set_pin(pin::EXTERNAL_INTERRUPT, false);
        self.set_primary(primary::TPR_SHADOW, false);
        self.load_map(mode);
        if self.setup.shared {
            self.cut_idt();
        }
        priority
    }

    /// Do physical interrupts exit? In injection mode, and in posted mode.
    #[inline]
    pub fn in_injection(&self) -> bool {
        self.controls.pin & pin::EXTERNAL_INTERRUPT != 0
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
        if self.built {
            let map = Map::of(mode, self.timer_open, self.timer_lent, self.x2apic);
            self.area.write(field::MSR_BITMAPS, self.setup.maps[map as usize]);
        }
    }

    /// On a shared core, in ELI mode: the vectors of the host and of the others raise #GP in
    /// delivery, before any memory of the guest's is read, and nothing shows or ends that unseen.
    fn cut_idt(&mut self) {
        let own = self.area.read(field::GUEST_IDTR_LIMIT);
        self.own_limit = Some(own);
        self.area.write(field::GUEST_IDTR_LIMIT, own.min(CUT));
        self.set_exception(GENERAL_PROTECTION, true);
        self.watch_tables();
    }

    fn restore_idt(&mut self) {
        if let Some(own) = self.own_limit.take() {
            self.area.write(field::GUEST_IDTR_LIMIT, own);
            self.set_exception(GENERAL_PROTECTION, false);
            self.watch_tables();
        }
    }

    fn set_exception(&mut self, vector: u32, on: bool) {
        let bit = 1 << vector;
        self.exceptions = if on { self.exceptions | bit } else { self.exceptions & !bit };
        self.area.write(field::EXCEPTION_BITMAP, self.exceptions.into());
    }

    /// Exits on LIDT, and with it on all that is about descriptor tables, or not.
    pub fn watch_idt(&mut self, on: bool) {
        self.idt_watched = on;
        self.watch_tables();
    }

    fn watch_tables(&mut self) {
        let (word, bit) = (self.controls.secondary, secondary::DESCRIPTOR_TABLES);
        let on = self.idt_watched || self.own_limit.is_some();
        self.set_secondary(if on { word | bit } else { word & !bit });
    }

    fn set_secondary(&mut self, word: u32) {
        if word != self.controls.secondary {
            self.controls.secondary = word;
            self.area.write(field::SECONDARY_CONTROLS, word.into());
        }
    }

    /// Exits on HLT, or not. Who sleeps already is awake behind its HLT, as by an interrupt that
    /// wasn't for it: asleep, it would have the core's time with nothing to do, and say nothing.
    pub fn watch_halt(&mut self, on: bool) {
        if on && !self.halt_watched && self.area.read(field::GUEST_ACTIVITY) == SLEEPS {
            self.area.write(field::GUEST_ACTIVITY, ACTIVE);
        }
        self.halt_watched = on;
        self.set_primary(primary::HLT, on);
    }
}

#[cfg(test)]
#[path = "vcpu_steps_tests.rs"]
mod steps_tests;
#[cfg(test)]
#[path = "vcpu_tests.rs"]
pub(crate) mod tests;
