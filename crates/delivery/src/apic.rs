//! The x2APIC a guest sees (SDM vol. 3, 11.12; APM vol. 2, 16), as far as the host
//! emulates it.
//!
//! In injection mode all of it is here: what is pending (IRR), what is in service
//! (ISR). In direct mode IRR and ISR are empty and the physical local APIC holds the
//! guest's state; registers that the guest may read then show the physical ones less
//! what belongs to the host. The timer is always the physical timer of the core,
//! programmed with the guest's values and a vector of the host's.

use crate::{VectorSet, class};

/// What the emulation needs of the core it runs on.
pub trait Core {
    /// The guest's task priority (CR8 in the upper four bits), wherever the mode keeps it.
    fn task_priority(&self) -> u8;
    /// Sets the guest's task priority.
    fn set_task_priority(&mut self, priority: u8);
    /// Guest-owned interrupts in service in the physical local APIC, by guest vector.
    fn in_service(&self) -> VectorSet;
    /// Guest-owned interrupts pending in the physical local APIC, by guest vector.
    fn requested(&self) -> VectorSet;
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

/// Whom an inter-processor interrupt is for, in the guest's APIC ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The sender.
    Itself,
    /// Everybody, the sender too.
    All,
    /// Everybody else.
    Others,
    /// One physical APIC id.
    Physical(u32),
    /// A logical x2APIC destination: cluster in the upper half, members in the lower.
    Logical(u32),
}

impl Destination {
    /// The one that an interrupt command names.
    #[inline]
    pub const fn of(command: u64) -> Destination {
        const SHORTHAND: u64 = 3 << 18;
        const LOGICAL: u64 = 1 << 11;
        let id = (command >> 32) as u32;
        // The frequent one, first.
        if command & (SHORTHAND | LOGICAL) == 0 && id != u32::MAX {
            return Destination::Physical(id);
        }
        match command >> 18 & 3 {
            // Broadcast, in both destination modes (SDM vol. 3, 11.12.9).
            0 if id == u32::MAX => Destination::All,
            0 => Destination::Logical(id),
            1 => Destination::Itself,
            2 => Destination::All,
            _ => Destination::Others,
        }
    }

    /// The receivers among the local APICs 0 to 63, a bit each, of what `sender`, one of them,
    /// sends.
    #[inline]
    pub const fn members(self, sender: u32) -> u64 {
        match self {
            Destination::Physical(id) => bit(id),
            Destination::Others => !bit(sender),
            Destination::All => !0,
            Destination::Itself => bit(sender),
            Destination::Logical(set) if set >> 16 < 4 => (set as u64 & 0xFFFF) << (set >> 16 << 4),
            Destination::Logical(_) => 0,
        }
    }

    /// Is the local APIC `id` among the receivers of what `sender` sends?
    pub const fn includes(self, id: u32, sender: u32) -> bool {
        match self {
            Destination::Itself => sender == id,
            Destination::All => true,
            Destination::Others => sender != id,
            Destination::Physical(only) => only == id,
            Destination::Logical(set) => set >> 16 == id >> 4 && set & 1 << (id & 15) != 0,
        }
    }
}

const fn bit(id: u32) -> u64 {
    if id < 64 { 1 << id } else { 0 }
}

/// What the host has to do after a register write.
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

/// The access is one that raises #GP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

// Register numbers: MSR 0x800 + n.
const ID: u8 = 0x02;
const VERSION: u8 = 0x03;
const TPR: u8 = 0x08;
const PPR: u8 = 0x0A;
const EOI: u8 = 0x0B;
const LDR: u8 = 0x0D;
const SVR: u8 = 0x0F;
const ISR: u8 = 0x10;
const TMR: u8 = 0x18;
const IRR: u8 = 0x20;
const ESR: u8 = 0x28;
const ICR: u8 = 0x30;
const LVT_TIMER: u8 = 0x32;
const LVT_THERMAL: u8 = 0x33;
const LVT_ERROR: u8 = 0x37;
const TIMER_INITIAL: u8 = 0x38;
const TIMER_CURRENT: u8 = 0x39;
const TIMER_DIVIDE: u8 = 0x3E;
const SELF_IPI: u8 = 0x3F;

const LVT_MASKED: u32 = 1 << 16;
const LVT_PERIODIC: u32 = 1 << 17;
const LVT_BITS: u32 = 0x3_57FF;
const SVR_ENABLED: u32 = 1 << 8;
/// ESR bits: a vector below 16 was sent, or received.
const ERROR_SEND_VECTOR: u32 = 1 << 5;
const ERROR_RECEIVE_VECTOR: u32 = 1 << 6;
/// Six LVT entries, version as an integrated APIC says it, no EOI-broadcast suppression.
const VERSION_VALUE: u32 = 5 << 16 | 0x14;

/// The virtual local APIC of one vCPU.
#[derive(Clone, Debug)]
pub struct LocalApic {
    id: u32,
    requested: VectorSet,
    in_service: VectorSet,
    svr: u32,
    esr: u32,
    esr_latched: u32,
    icr: u64,
    /// Timer, thermal, performance, LINT0, LINT1, error.
    lvt: [u32; 6],
    divide: u32,
    initial: u32,
}

impl LocalApic {
    /// As after reset, for the vCPU with this APIC id.
    pub const fn new(id: u32) -> Self {
        LocalApic {
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
        }
    }

    /// Nothing pending, nothing in service: the guest may take its interrupts itself.
    pub fn quiet(&self) -> bool {
        self.requested.is_empty() && self.in_service.is_empty()
    }

    /// Makes a (fixed, edge-triggered) interrupt pending. One already pending with that
    /// vector absorbs it, as in hardware.
    pub fn request(&mut self, vector: u8) {
        if vector < 16 {
            self.esr_latched |= ERROR_RECEIVE_VECTOR;
        } else {
            self.requested.insert(vector);
        }
    }

    /// Takes over interrupts that the guest has in service in the physical local APIC;
    /// the caller completes them there (paper 4.5).
    pub fn adopt_in_service(&mut self, vectors: VectorSet) {
        self.in_service = self.in_service.union(&vectors);
    }

    /// The pending interrupt that outranks everything in service. Whether the task
    /// priority lets it in is for the hardware to say (V_INTR_PRIO against V_TPR).
    pub fn deliverable(&self) -> Option<u8> {
        let next = self.requested.highest()?;
        match self.in_service.highest() {
            Some(current) if class(current) >= class(next) => None,
            _ => Some(next),
        }
    }

    /// The guest took this pending interrupt.
    pub fn taken(&mut self, vector: u8) {
        self.requested.remove(vector);
        self.in_service.insert(vector);
    }

    /// The vector and mask state of the timer's LVT entry: what to request when the
    /// physical timer fires.
    pub fn timer_vector(&self) -> Option<u8> {
        let entry = self.lvt[0];
        (entry & LVT_MASKED == 0 && self.svr & SVR_ENABLED != 0).then_some(entry as u8)
    }

    /// Reads MSR 0x800 + `register`.
    pub fn read(&self, register: u8, core: &impl Core) -> Result<u64, Refused> {
        let value = match register {
            ID => self.id,
            VERSION => VERSION_VALUE,
            TPR => core.task_priority() as u32,
            PPR => self.processor_priority(core) as u32,
            LDR => (self.id >> 4) << 16 | 1 << (self.id & 15),
            SVR => self.svr,
            ISR..TMR => self.in_service.union(&core.in_service()).register(register - ISR),
            // Only edge-triggered interrupts are ever delivered.
            TMR..IRR => 0,
            IRR..ESR => self.requested.union(&core.requested()).register(register - IRR),
            ESR => self.esr,
            ICR => return Ok(self.icr),
            LVT_TIMER..=LVT_ERROR => self.lvt[(register - LVT_TIMER) as usize],
            TIMER_INITIAL => self.initial,
            TIMER_CURRENT => core.timer_count(),
            TIMER_DIVIDE => self.divide,
            _ => return Err(Refused),
        };
        Ok(value as u64)
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
        if register == ICR {
            return self.write_icr(value);
        }
        let value = u32::try_from(value).map_err(|_| Refused)?;
        match register {
            TPR if value <= 0xFF => core.set_task_priority(value as u8),
            EOI if value == 0 => return Ok(WriteEffect::Completed(self.complete())),
            SVR if value & !0x1FF == 0 => {
                self.svr = value;
                if value & SVR_ENABLED == 0 {
                    // A software-disabled APIC masks every LVT entry (SDM vol. 3, 11.4.7.2).
                    self.lvt.iter_mut().for_each(|e| *e |= LVT_MASKED);
                    return Ok(WriteEffect::Timer(self.timer(None)));
                }
            }
            ESR if value == 0 => self.esr = core::mem::take(&mut self.esr_latched),
            LVT_TIMER => {
                self.set_lvt(0, value & !(0x700 | 1 << 14));
                return Ok(WriteEffect::Timer(self.timer(None)));
            }
            LVT_THERMAL..=LVT_ERROR => {
                self.set_lvt((register - LVT_TIMER) as usize, value & !LVT_PERIODIC)
            }
            TIMER_INITIAL => {
                self.initial = value;
                return Ok(WriteEffect::Timer(self.timer(Some(value))));
            }
            TIMER_DIVIDE if value & !0b1011 == 0 => {
                self.divide = value;
                return Ok(WriteEffect::Timer(self.timer(None)));
            }
            SELF_IPI if value <= 0xFF => {
                return Ok(self.fixed(Destination::Itself, value as u8));
            }
            _ => return Err(Refused),
        }
        Ok(WriteEffect::None)
    }

    fn complete(&mut self) -> Option<u8> {
        let vector = self.in_service.highest()?;
        self.in_service.remove(vector);
        Some(vector)
    }

    fn set_lvt(&mut self, index: usize, value: u32) {
        let forced = if self.svr & SVR_ENABLED == 0 { LVT_MASKED } else { 0 };
        if let Some(entry) = self.lvt.get_mut(index) {
            *entry = value & LVT_BITS | forced;
        }
    }

    fn timer(&self, initial: Option<u32>) -> TimerSetup {
        let entry = self.lvt[0];
        TimerSetup {
            divide: self.divide,
            periodic: entry & LVT_PERIODIC != 0,
            masked: entry & LVT_MASKED != 0,
            initial,
        }
    }

    /// The frequent interrupt command: a fixed interrupt with a legal vector. Gives for whom it
    /// is, and its vector; nothing if it is another command, which [`LocalApic::write`] takes.
    #[inline]
    pub fn quick_command(&mut self, value: u64) -> Option<(Destination, u8)> {
        /// The delivery modes but fixed and lowest priority.
        const OTHER_MODES: u64 = 0b110 << 8;
        if value & OTHER_MODES != 0 || (value as u8) < 16 {
            return None;
        }
        self.icr = value & !(1 << 12);
        Some((Destination::of(value), value as u8))
    }

    /// The interrupt command register (SDM vol. 3, 11.6.1 and 11.12.9).
    fn write_icr(&mut self, value: u64) -> Result<WriteEffect, Refused> {
        /// Level triggered, and not asserted: the end of an INIT, which means nothing any more.
        const DEASSERT: (u64, u64) = (1 << 15 | 1 << 14, 1 << 15);
        self.icr = value & !(1 << 12);
        let vector = value as u8;
        let destination = Destination::of(value);
        Ok(match value >> 8 & 7 {
            // Fixed, and lowest priority, which x2APIC hardware may treat as fixed.
            0 | 1 => self.fixed(destination, vector),
            4 => WriteEffect::Nmi(destination),
            5 if value & DEASSERT.0 == DEASSERT.1 => WriteEffect::None,
            5 => WriteEffect::Init(destination),
            6 => WriteEffect::StartUp { destination, page: vector },
            _ => WriteEffect::None,
        })
    }

    fn fixed(&mut self, destination: Destination, vector: u8) -> WriteEffect {
        if vector < 16 {
            self.esr_latched |= ERROR_SEND_VECTOR;
            return WriteEffect::None;
        }
        WriteEffect::Interrupt { destination, vector }
    }
}

#[cfg(test)]
#[path = "apic_tests.rs"]
mod tests;
