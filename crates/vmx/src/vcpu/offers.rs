//! What is raised in a vCPU at its next entry: exceptions, NMIs, the virtual interrupt on offer.
//!
//! VMX has no virtual interrupt that waits for the guest to let it in, as long as its interrupts
//! aren't the CPU's own matter (`posted`): an offer is raised at an entry where the guest lets it
//! in, and else has the guest left as soon as it does ([`Exit::Window`](vendor::Exit::Window)).
//!
//! Guarantees: one event at most is raised at an entry; an offer that wasn't taken stays one.

use super::{ACTIVE, BY_MOV_SS, BY_NMI, BY_STI, CR0_PE, NEVER, Vcpu};
use crate::controls::{pin, primary};
use crate::{Area, Delivered, field};
use core::sync::atomic::Ordering;
use delivery::{Event, EventKind, VectorSet, class};

const RF: u64 = 1 << 16;
/// #DB, which has had its RF, #BP, #OF, #DF and #MC.
const TRAPS_AND_ABORTS: VectorSet = VectorSet::of(&[1, 3, 4, 8, 18]);
/// Of the pending debug exceptions: a breakpoint that is enabled was met, a single step.
const TRAPS: u64 = 1 << 12 | 1 << 14;

impl<A: Area> Vcpu<A> {
    /// Raises an event at the next entry.
    pub fn inject(&mut self, mut event: Event) {
        if event.kind == EventKind::Nmi {
            // Of one whose delivery was interrupted it is set already.
            let blocking = self.area.read(field::GUEST_INTERRUPTIBILITY);
            self.area.write(field::GUEST_INTERRUPTIBILITY, blocking & !BY_NMI);
            self.set_primary(primary::NMI_WINDOW, true);
        }
        if self.area.read(field::CR0_SHADOW) & CR0_PE == 0 {
            // Real mode has none.
            event.error_code = None;
        }
        if event.kind == EventKind::Exception {
            // An interrupt that woke the guest may have led to it; nothing else wakes for one.
            self.area.write(field::GUEST_ACTIVITY, ACTIVE);
            if !TRAPS_AND_ABORTS.contains(event.vector) {
                // A fault pushes RF, which the entry does for nobody (SDM vol. 3, 19.3.1.1).
                let flags = self.area.read(field::GUEST_RFLAGS);
                self.area.write(field::GUEST_RFLAGS, flags | RF);
            }
        }
        let length = self.area.read(field::INSTRUCTION_LENGTH) as u32;
        Delivered::new(event, length).raise(&mut self.area);
    }

    /// Is one to be raised already? Or is a trap held back, which the entry delivers: the CPU
    /// forgets it for an interrupt or an NMI that is raised (SDM vol. 3, 27.7.3).
    pub fn injects(&self) -> bool {
        Delivered::pending(&self.area).is_some()
            || self.area.read(field::GUEST_PENDING_DEBUG) & TRAPS != 0
    }

    /// Could the guest take an NMI? If not, an exit follows when it can.
    ///
    /// Some CPUs refuse to raise one behind STI (SDM vol. 3, 27.3.1.5). Whether the window for NMIs
    /// waits for the end of that shadow is the CPU's affair, too; the one for interrupts does.
    pub fn nmi_possible(&mut self) -> bool {
        let blocking = self.area.read(field::GUEST_INTERRUPTIBILITY);
        if blocking & (BY_NMI | BY_MOV_SS) != 0 {
            self.set_primary(primary::NMI_WINDOW, true);
        } else if blocking & BY_STI != 0 {
            self.awaits_shadow = true;
            self.open_window(false);
        }
        blocking & (BY_NMI | BY_MOV_SS | BY_STI) == 0
    }

    /// The task priority in injection mode, all eight bits.
    pub fn virtual_priority(&self) -> u8 {
        self.priority.load(Ordering::Relaxed)
    }

    /// Sets it.
    pub fn set_virtual_priority(&mut self, priority: u8) {
        self.priority.store(priority, Ordering::Relaxed);
    }

    /// In injection mode: the virtual interrupt that the guest takes as soon as its IF and task
    /// priority let it in, or none.
    pub fn offer(&mut self, vector: Option<u8>) {
        self.offered = vector;
        if vector.is_none() {
            self.open_window(false);
            self.set_threshold(0);
        }
    }

    /// Was it taken? Then none is on offer any more.
    pub fn offer_accepted(&self) -> bool {
        self.offered.is_none()
    }

    /// The interrupt on offer.
    pub fn offered(&self) -> Option<u8> {
        self.offered
    }

    fn set_threshold(&mut self, threshold: u8) {
        self.area.write(field::TPR_THRESHOLD, threshold.into());
    }

    /// Before an entry: raises what is on offer, or has the guest left when it lets it in. `now`:
    /// the TSC, where it is left at a time.
    #[inline]
    pub fn prepare(&mut self, now: impl FnOnce() -> u64) {
        if self.limit != NEVER && !self.leaves {
            self.set_count(now());
        }
        if let Some(vector) = self.offered {
            self.try_offer(vector);
        }
    }

    /// The guest is left when it lets an interrupt in, or not. HLT exits meanwhile: behind STI the
    /// window ends it on a processor, and not on Bochs 3.0 (`handleWaitForEvent`), where the guest
    /// would sleep on.
    pub(super) fn open_window(&mut self, open: bool) {
        let open = open || self.awaits_shadow;
        self.set_primary(primary::INTERRUPT_WINDOW, open);
        self.set_primary(primary::HLT, self.halt_watched || open || self.in_posted());
    }

    #[inline(never)]
    fn try_offer(&mut self, vector: u8) {
        let held = class(vector) <= class(self.virtual_priority());
        self.set_threshold(if held { class(vector) } else { 0 });
        let now = !held && self.interrupts_enabled() && !self.in_shadow() && !self.injects();
        if now {
            Delivered::new(Event::interrupt(vector), 0).raise(&mut self.area);
        }
        self.raised = now;
        self.open_window(!held && !now);
    }

    /// The guest was entered, and left: what was raised was taken.
    #[inline]
    pub fn entered(&mut self) {
        if self.raised {
            self.raised = false;
            self.offered = None;
        }
    }

    /// The guest wasn't entered.
    #[cold]
    pub fn aborted(&mut self) {
        if self.raised {
            self.raised = false;
            Delivered::withdraw(&mut self.area);
        }
    }

    /// Has it left at this time of the TSC ([`Exit::TimeUp`](vendor::Exit::TimeUp)), or no more.
    pub fn leave_at(&mut self, at: u64) {
        self.limit = at;
        self.set_pin(pin::PREEMPTION_TIMER, self.leaves || at != NEVER);
    }

    /// The count with which the guest is left when its time has come, and not before: the first
    /// step comes as soon as the TSC's bit changes (SDM vol. 3, 26.5.1).
    #[inline(never)]
    fn set_count(&mut self, now: u64) {
        let left = self.limit.saturating_sub(now);
        let count = left.div_ceil(1 << self.capabilities.timer_shift()) + 1;
        self.area.write(field::PREEMPTION_TIMER, count.min(u32::MAX.into()));
    }

    /// Has the next entry end before the guest's next instruction: [`Exit::Nmi`].
    pub fn leave_at_once(&mut self) {
        self.leaves = true;
        self.area.write(field::PREEMPTION_TIMER, 0);
        self.set_pin(pin::PREEMPTION_TIMER, true);
    }

    #[inline]
    pub(super) fn end_leave(&mut self) {
        if self.leaves {
            self.leaves = false;
            self.set_pin(pin::PREEMPTION_TIMER, self.limit != NEVER);
        }
        if self.awaits_shadow {
            self.end_shadow();
        }
    }

    /// What is on offer opens the window again.
    #[cold]
    fn end_shadow(&mut self) {
        self.awaits_shadow = false;
        self.open_window(false);
    }
}
