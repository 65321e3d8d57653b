//! The local APIC a guest sees, in every mode (SDM vol. 3, 11; APM vol. 2, 16), as far as the host
//! emulates it.
//!
//! In injection mode all of it is here: what is pending (IRR), what is in service (ISR). While the
//! guest takes its interrupts itself IRR and ISR are empty and the physical local APIC holds the
//! guest's state; registers that the guest may read then show the physical ones less what belongs
//! to the host. That is possible in x2APIC mode only ([`LocalApic::exitless`]). The timer is always
//! the physical timer of the core, programmed with the guest's values and a vector of the host's.
//!
//! Globally disabled it accepts nothing and has forgotten everything; disabled by software it
//! accepts nothing and keeps what it has (SDM vol. 3, 11.4.3 and 11.4.7.2). No pin is connected to
//! LINT0 and LINT1, and nothing raises the thermal and performance entries: they hold what is
//! written.

use crate::{Addressing, ApicBase, ApicMode, Destination, Refused, VectorSet, class, is_ordinary};
use registers::*;

/// The services of its core that the emulation needs.
pub trait Core {
    /// The guest's task priority (CR8 in the upper four bits), wherever the mode keeps it.
    fn task_priority(&self) -> u8;
    /// Sets the guest's task priority.
    fn set_task_priority(&mut self, priority: u8);
    /// Guest-owned interrupts in service in the physical local APIC, by guest vector.
    fn in_service(&self) -> VectorSet;
    /// Guest-owned interrupts pending in the physical local APIC, by guest vector; the timer's is
    /// `timer`, if it has one.
    fn requested(&self, timer: Option<u8>) -> VectorSet;
    /// Current count of the physical timer.
    fn timer_count(&self) -> u32;
}

/// How the physical timer is to be set; its vector is the host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerSetup {
    /// Divide configuration register, as the guest wrote it (bits 0, 1, 3).
    pub divide: u32,
    /// Periodic instead of one-shot.
    pub periodic: bool,
    /// Interrupts masked.
    pub masked: bool,
    /// Initial count to write; `None` leaves the running count alone.
    pub initial: Option<u32>,
}

/// The host's part of a write to a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteEffect {
    /// Nothing.
    None,
    /// An interrupt was completed: this vector, or none was in service.
    Completed(Option<u8>),
    /// Program the physical timer.
    Timer(TimerSetup),
    /// Send a fixed interrupt (the sender is included where the destination says so).
    Interrupt {
        /// For whom.
        destination: Destination,
        /// Its vector.
        vector: u8,
    },
    /// Send a fixed interrupt to one of the receivers.
    OneOf {
        /// For one of whom.
        destination: Destination,
        /// Its vector.
        vector: u8,
    },
    /// Send an NMI.
    Nmi(Destination),
    /// INIT for other CPUs.
    Init(Destination),
    /// Start-up for other CPUs, at page `page`.
    StartUp {
        /// For whom.
        destination: Destination,
        /// Physical page number of the first instruction.
        page: u8,
    },
}

/// The virtual local APIC of one vCPU.
#[derive(Clone, Debug)]
pub struct LocalApic {
    base: ApicBase,
    id: u32,
    requested: VectorSet,
    in_service: VectorSet,
    svr: u32,
    esr: u32,
    esr_latched: u32,
    /// In xAPIC mode its upper half is the second register, with the destination in bits 63:56.
    icr: u64,
    /// Timer, thermal, performance, LINT0, LINT1, error.
    lvt: [u32; 6],
    divide: u32,
    initial: u32,
    /// Of xAPIC mode: bits 31:24 of LDR; DFR says cluster model.
    logical: u8,
    clusters: bool,
}

impl LocalApic {
    /// As firmware leaves it, in x2APIC mode, for the vCPU with this APIC id; the one with id 0 is
    /// the first processor.
    pub const fn new(id: u32) -> Self {
        LocalApic {
            base: ApicBase::new(id == 0),
            id,
            requested: VectorSet::EMPTY,
            in_service: VectorSet::EMPTY,
            svr: 0xFF,
            esr: 0,
            esr_latched: 0,
            icr: 0,
            lvt: [LVT_MASKED; 6],
            divide: 0,
            initial: 0,
            logical: 0,
            clusters: false,
        }
    }

    /// INIT: all registers as after reset, the mode as it is (SDM vol. 3, 11.4.7.3 and figure
    /// 11-27).
    pub const fn init(&mut self) {
        let base = self.base;
        *self = LocalApic::new(self.id);
        self.base = base;
    }

    /// The mode.
    #[inline]
    pub const fn mode(&self) -> ApicMode {
        self.base.mode()
    }

    /// IA32_APIC_BASE.
    pub const fn base(&self) -> u64 {
        self.base.bits()
    }

    /// Guest-physical address of the registers' page; none but in xAPIC mode.
    pub const fn page(&self) -> Option<u64> {
        match self.mode() {
            ApicMode::Xapic => Some(self.base.page()),
            ApicMode::X2apic | ApicMode::Disabled => None,
        }
    }

    /// The values that others need to address it.
    pub const fn addressing(&self) -> Addressing {
        Addressing::new(self.mode(), self.logical, self.clusters)
    }

    /// Does it accept interrupts?
    const fn accepts(&self) -> bool {
        self.svr & SVR_ENABLED != 0 && !matches!(self.mode(), ApicMode::Disabled)
    }

    /// May the guest take its interrupts itself, by the physical local APIC, which is in x2APIC
    /// mode and enabled for good?
    #[inline]
    pub const fn exitless(&self) -> bool {
        self.svr & SVR_ENABLED != 0 && matches!(self.mode(), ApicMode::X2apic)
    }

    /// Can the physical timer interrupt the guest with the guest's own vector, or not at all?
    /// Vectors below 32 would be exceptions to a host that takes one in the guest's place.
    pub fn timer_is_ordinary(&self) -> bool {
        self.timer_vector().is_none_or(|v| v < FIRST_VECTOR || is_ordinary(v))
    }

    /// Could writing this to MSR 0x800 + `register` end what [`LocalApic::exitless`] or
    /// [`LocalApic::timer_is_ordinary`] says? To be asked first: what the physical local APIC has
    /// for the guest then is to be taken over before.
    pub const fn ends_exitless(register: u8, value: u64) -> bool {
        match register {
            SVR => value & SVR_ENABLED as u64 == 0,
            // One below 16 interrupts nobody; a masked entry is written as 0 most often.
            LVT_TIMER => value as u8 >= FIRST_VECTOR && !is_ordinary(value as u8),
            _ => false,
        }
    }

    /// Writes IA32_APIC_BASE on a CPU with so many physical address bits. `free`: can the
    /// registers' page be at this address? To disable it is to reset it; from xAPIC mode to x2APIC
    /// mode it keeps what it has.
    pub fn write_base(
        &mut self,
        value: u64,
        physical_bits: u8,
        free: impl FnOnce(u64) -> bool,
    ) -> Result<WriteEffect, Refused> {
        let (old, new) = (self.base, self.base.write(value, physical_bits)?);
        if new.mode() == ApicMode::Xapic && new.page() != ApicBase::HOME && !free(new.page()) {
            return Err(Refused);
        }
        self.base = new;
        if new.mode() == ApicMode::Disabled && old.mode() != ApicMode::Disabled {
            self.init();
            return Ok(WriteEffect::Timer(TimerSetup { initial: Some(0), ..self.timer() }));
        }
        Ok(WriteEffect::None)
    }

    /// Nothing pending, nothing in service: the guest may take its interrupts itself.
    #[inline]
    pub fn quiet(&self) -> bool {
        self.requested.is_empty() && self.in_service.is_empty()
    }

    /// Makes a (fixed, edge-triggered) interrupt pending, if interrupts are accepted. One already
    /// pending with that vector absorbs it, as in hardware.
    pub fn request(&mut self, vector: u8) {
        if !self.accepts() {
            return;
        }
        if vector >= FIRST_VECTOR {
            self.requested.insert(vector);
        } else if let Some(vector) = self.error(ERROR_RECEIVE_VECTOR) {
            self.requested.insert(vector);
        }
    }

    /// As [`LocalApic::request`], of the vectors 64 × `index` on that have a bit in `bits`.
    #[inline]
    pub fn request_word(&mut self, index: u32, bits: u64) {
        /// Those that aren't received but reported.
        const REPORTED: u64 = (1 << FIRST_VECTOR) - 1;
        if index == 0 && bits & REPORTED != 0 {
            (0..64).filter(|v| bits >> v & 1 != 0).for_each(|v| self.request(v));
        } else if self.accepts() {
            self.requested.insert_word(index, bits);
        }
    }

    /// Is any vector pending, whether it can be delivered or not?
    #[inline]
    pub fn is_pending_any(&self) -> bool {
        !self.requested.is_empty()
    }

    /// Is this vector pending already, so that one more of it is absorbed?
    pub fn is_pending(&self, vector: u8) -> bool {
        self.requested.contains(vector)
    }

    /// An error is noted. The vector of the interrupt that tells of it: of the first one since the
    /// guest last looked (SDM vol. 3, 11.5.3).
    fn error(&mut self, error: u32) -> Option<u8> {
        let first = self.esr_latched == 0;
        self.esr_latched |= error;
        let [.., entry] = self.lvt;
        let told = first && entry & (LVT_MASKED | LVT_MODE) == 0 && self.accepts();
        (told && entry as u8 >= FIRST_VECTOR).then_some(entry as u8)
    }

    /// All that is pending and in service, which another keeps from here on.
    pub fn hand_over(&mut self) -> [VectorSet; 2] {
        [&mut self.requested, &mut self.in_service].map(core::mem::take)
    }

    /// Takes over interrupts that the guest has in service in the physical local APIC;
    /// the caller completes them there (paper 4.5).
    pub fn adopt_in_service(&mut self, vectors: VectorSet) {
        self.in_service = self.in_service.union(&vectors);
    }

    /// The pending interrupt that outranks everything in service. Whether the task
    /// priority lets it in is for the hardware to say (V_INTR_PRIO against V_TPR).
    #[inline]
    pub fn deliverable(&self) -> Option<u8> {
        let next = self.requested.highest()?;
        // Most often nothing is.
        if self.in_service.is_empty() {
            return Some(next);
        }
        match self.in_service.highest() {
            Some(current) if class(current) >= class(next) => None,
            _ => Some(next),
        }
    }

    /// The guest took this pending interrupt.
    #[inline]
    pub fn accepted(&mut self, vector: u8) {
        self.requested.remove(vector);
        self.in_service.insert(vector);
    }

    /// The vector and mask state of the timer's LVT entry: what to request when the
    /// physical timer fires.
    #[inline]
    pub fn timer_vector(&self) -> Option<u8> {
        let entry = self.lvt[0];
        (entry & LVT_MASKED == 0 && self.svr & SVR_ENABLED != 0).then_some(entry as u8)
    }

    /// The timer's registers as the guest wrote them where that caused no exit: the count it starts
    /// from, and the divider.
    pub fn adopt_timer(&mut self, initial: u32, divide: u32) {
        (self.initial, self.divide) = (initial, divide & DIVIDE_BITS);
    }

    /// Reads MSR 0x800 + `register`.
    pub fn read(&self, register: u8, core: &impl Core) -> Result<u64, Refused> {
        if self.mode() != ApicMode::X2apic {
            return Err(Refused);
        }
        Ok(match register {
            ID => self.id.into(),
            LDR => ((self.id >> 4) << 16 | 1 << (self.id & 15)).into(),
            ICR => self.icr,
            _ => self.value(register, core).ok_or(Refused)?.into(),
        })
    }

    /// A register that reads the same in both modes.
    fn value(&self, register: u8, core: &impl Core) -> Option<u32> {
        Some(match register {
            VERSION => VERSION_VALUE,
            TPR => core.task_priority().into(),
            PPR => self.processor_priority(core).into(),
            SVR => self.svr,
            ISR..TMR => self.in_service.union(&core.in_service()).register(register - ISR),
            // Only edge-triggered interrupts are ever delivered.
            TMR..IRR => 0,
            IRR..ESR => {
                let pending = core.requested(self.timer_vector());
                self.requested.union(&pending).register(register - IRR)
            }
            ESR => self.esr,
            LVT_TIMER..=LVT_ERROR => self.lvt[(register - LVT_TIMER) as usize],
            TIMER_INITIAL => self.initial,
            TIMER_CURRENT => core.timer_count(),
            TIMER_DIVIDE => self.divide,
            _ => return None,
        })
    }

    fn processor_priority(&self, core: &impl Core) -> u8 {
        let serving = self.in_service.union(&core.in_service()).highest().unwrap_or(0);
        let task = core.task_priority();
        if class(task) >= class(serving) { task } else { serving & 0xF0 }
    }

    /// Writes MSR 0x800 + `register`.
    pub fn write(
        &mut self,
        register: u8,
        value: u64,
        core: &mut impl Core,
    ) -> Result<WriteEffect, Refused> {
        if self.mode() != ApicMode::X2apic {
            return Err(Refused);
        }
        match register {
            // The frequent ones, first.
            EOI if value == 0 => Ok(WriteEffect::Completed(self.complete())),
            SELF_IPI if value <= 0xFF => Ok(self.fixed(Destination::Itself, value as u8)),
            ICR if value & ICR_RESERVED == 0 => Ok(self.command(value, Destination::of(value))),
            _ => match writable(register) {
                Some(bits) if value & !u64::from(bits) == 0 => {
                    Ok(self.set(register, value as u32, core))
                }
                _ => Err(Refused),
            },
        }
    }

    /// Writes one of the registers that are [`writable`] in both modes.
    fn set(&mut self, register: u8, value: u32, core: &mut impl Core) -> WriteEffect {
        match register {
            TPR => core.set_task_priority(value as u8),
            EOI => return WriteEffect::Completed(self.complete()),
            SVR => {
                self.svr = value;
                if value & SVR_ENABLED == 0 {
                    // A software-disabled APIC masks every LVT entry (SDM vol. 3, 11.4.7.2).
                    self.lvt.iter_mut().for_each(|e| *e |= LVT_MASKED);
                    return WriteEffect::Timer(self.timer());
                }
            }
            ESR => self.esr = core::mem::take(&mut self.esr_latched),
            LVT_TIMER => {
                self.set_lvt(register, value);
                return WriteEffect::Timer(self.timer());
            }
            LVT_THERMAL..=LVT_ERROR => self.set_lvt(register, value),
            TIMER_INITIAL => {
                self.initial = value;
                return WriteEffect::Timer(TimerSetup { initial: Some(value), ..self.timer() });
            }
            TIMER_DIVIDE => {
                self.divide = value;
                return WriteEffect::Timer(self.timer());
            }
            _ => {}
        }
        WriteEffect::None
    }

    #[inline]
    fn complete(&mut self) -> Option<u8> {
        self.in_service.take_highest()
    }

    fn set_lvt(&mut self, register: u8, value: u32) {
        let forced = if self.svr & SVR_ENABLED == 0 { LVT_MASKED } else { 0 };
        if let Some(entry) = self.lvt.get_mut(usize::from(register - LVT_TIMER)) {
            *entry = value & lvt_bits(register) | forced;
        }
    }

    /// How the timer is set, its count apart.
    pub fn timer(&self) -> TimerSetup {
        let entry = self.lvt[0];
        TimerSetup {
            divide: self.divide,
            periodic: entry & LVT_PERIODIC != 0,
            masked: entry & LVT_MASKED != 0,
            initial: None,
        }
    }
}

#[path = "apic_command.rs"]
mod command;
#[path = "apic_page.rs"]
mod page;
#[path = "apic_registers.rs"]
mod registers;

#[cfg(test)]
#[path = "apic_mode_tests.rs"]
mod mode_tests;
#[cfg(test)]
#[path = "apic_page_tests.rs"]
mod page_tests;
#[cfg(test)]
#[path = "apic_tests.rs"]
mod tests;
