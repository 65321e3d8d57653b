//! The checks that a CPU makes at an entry (SDM vol. 3, 27.2 and 27.3), as a model: of controls and
//! the host's state, whose failure is an error of VMLAUNCH or VMRESUME, and of the guest's state,
//! whose failure is an exit.
//!
//! Guarantees: names the first field that breaks a rule, and the rule; so what a CPU says by a
//! number is one sentence. Not checked: what lies in memory (the virtual task priority against its
//! threshold, lists of MSRs), the pointers of PAE paging, and what only other controls than
//! [`Controls::NEEDED`](crate::Controls::NEEDED), those at times and those offered bring with them.
//! Refused though a CPU may take it, since it isn't used: accessed and dirty bits of EPT, shutdown
//! and wait-for-SIPI as activities, a monitor trap that is raised.
//!
//! The test kernel holds it against a processor's (`vmx-model`), bit by bit.

mod guest;
mod host;
mod segments;

use crate::controls::{entry, exit, pin, primary, secondary};
use crate::{Area, Capabilities, Delivered, Field, Kind, field};
use core::fmt;

/// A field that breaks a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The field.
    pub field: Field,
    /// What it has.
    pub value: u64,
    /// What it must be.
    pub rule: &'static str,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = field::ALL.iter().find(|(field, _)| *field == self.field);
        let name = name.map_or("a field", |(_, name)| name);
        write!(f, "{name} is {:#x}, and {}", self.value, self.rule)
    }
}

impl core::error::Error for Refusal {}

/// Would the CPU enter the guest?
pub fn check(area: &impl Area, capabilities: &Capabilities) -> Result<(), Refusal> {
    let look = Look { area, capabilities };
    look.controls()?;
    look.event()?;
    look.host()?;
    look.guest()
}

/// A look at a control structure, for a CPU.
struct Look<'a, A> {
    area: &'a A,
    capabilities: &'a Capabilities,
}

impl<A: Area> Look<'_, A> {
    fn get(&self, field: Field) -> u64 {
        self.area.read(field)
    }

    fn must(&self, field: Field, rule: &'static str, holds: bool) -> Result<(), Refusal> {
        if holds { Ok(()) } else { Err(Refusal { field, value: self.get(field), rule }) }
    }

    /// A physical address, of something that is aligned so.
    fn place(&self, field: Field, alignment: u64) -> Result<(), Refusal> {
        let address = self.get(field);
        let fits = address & (self.capabilities.beyond() | (alignment - 1)) == 0;
        self.must(field, "must be aligned and within the CPU's physical addresses", fits)
    }

    fn canonical(&self, field: Field) -> Result<(), Refusal> {
        self.must(field, "must be canonical", is_canonical(self.get(field)))
    }

    /// A PAT; each byte is a memory type.
    fn pat(&self, field: Field) -> Result<(), Refusal> {
        let types = self.get(field).to_le_bytes().iter().all(|t| matches!(t, 0 | 1 | 4..=7));
        self.must(field, "each of its bytes must be a memory type", types)
    }

    fn pin(&self, bit: u32) -> bool {
        self.get(field::PIN_CONTROLS) as u32 & bit != 0
    }

    fn primary(&self, bit: u32) -> bool {
        self.get(field::PRIMARY_CONTROLS) as u32 & bit != 0
    }

    /// The second word counts if the first says so.
    fn secondary(&self, bit: u32) -> bool {
        self.primary(primary::SECONDARY) && self.get(field::SECONDARY_CONTROLS) as u32 & bit != 0
    }

    fn at_exit(&self, bit: u32) -> bool {
        self.get(field::EXIT_CONTROLS) as u32 & bit != 0
    }

    fn at_entry(&self, bit: u32) -> bool {
        self.get(field::ENTRY_CONTROLS) as u32 & bit != 0
    }

    /// SDM vol. 3, 27.2.1.
    fn controls(&self) -> Result<(), Refusal> {
        let can = self.capabilities;
        let rule = "must be what the CPU's capability MSR allows";
        for (field, range) in [
            (field::PIN_CONTROLS, can.pin),
            (field::PRIMARY_CONTROLS, can.primary),
            (field::SECONDARY_CONTROLS, can.secondary),
            (field::EXIT_CONTROLS, can.exit),
            (field::ENTRY_CONTROLS, can.entry),
        ] {
            let counts = field != field::SECONDARY_CONTROLS || self.primary(primary::SECONDARY);
            self.must(field, rule, !counts || range.allows(self.get(field) as u32))?;
        }
        self.must(
            field::CR3_TARGET_COUNT,
            "must be 4 at most",
            self.get(field::CR3_TARGET_COUNT) <= 4,
        )?;
        if self.primary(primary::IO_BITMAPS) {
            self.place(field::IO_BITMAP_A, 4096)?;
            self.place(field::IO_BITMAP_B, 4096)?;
        }
        if self.primary(primary::MSR_BITMAPS) {
            self.place(field::MSR_BITMAPS, 4096)?;
        }
        self.virtual_apic()?;
        self.posted()?;
        let virtual_nmis = self.pin(pin::VIRTUAL_NMIS);
        self.must(
            field::PIN_CONTROLS,
            "virtual NMIs need NMI exiting",
            !virtual_nmis || self.pin(pin::NMI),
        )?;
        self.must(
            field::PRIMARY_CONTROLS,
            "NMI-window exiting needs virtual NMIs",
            virtual_nmis || !self.primary(primary::NMI_WINDOW),
        )?;
        if self.secondary(secondary::VPID) {
            self.must(field::VPID, "must not be 0", self.get(field::VPID) != 0)?;
        }
        if self.secondary(secondary::EPT) {
            self.ept()?;
        }
        self.must(
            field::SECONDARY_CONTROLS,
            "unrestricted guest needs EPT",
            !self.secondary(secondary::UNRESTRICTED) || self.secondary(secondary::EPT),
        )?;
        self.must(
            field::EXIT_CONTROLS,
            "saving the preemption timer needs the timer",
            !self.at_exit(exit::SAVE_TIMER) || self.pin(pin::PREEMPTION_TIMER),
        )?;
        for (count, list) in [
            (field::EXIT_MSR_STORE_COUNT, field::EXIT_MSR_STORE_ADDRESS),
            (field::EXIT_MSR_LOAD_COUNT, field::EXIT_MSR_LOAD_ADDRESS),
            (field::ENTRY_MSR_LOAD_COUNT, field::ENTRY_MSR_LOAD_ADDRESS),
        ] {
            if self.get(count) != 0 {
                self.place(list, 16)?;
            }
        }
        let smm = self.at_entry(entry::TO_SMM) || self.at_entry(entry::DEACTIVATE_DUAL);
        self.must(field::ENTRY_CONTROLS, "must not be into system management mode", !smm)
    }

    fn virtual_apic(&self) -> Result<(), Refusal> {
        let registers =
            secondary::APIC_REGISTERS | secondary::VIRTUAL_DELIVERY | secondary::VIRTUALIZE_X2APIC;
        if !self.primary(primary::TPR_SHADOW) {
            let none = !self.secondary(registers);
            return self.must(field::SECONDARY_CONTROLS, "a virtual APIC needs TPR shadow", none);
        }
        self.place(field::VIRTUAL_APIC_ADDRESS, 4096)?;
        let delivers = self.secondary(secondary::VIRTUAL_DELIVERY);
        let threshold = self.get(field::TPR_THRESHOLD);
        let rule = "must be a class of vectors";
        self.must(field::TPR_THRESHOLD, rule, delivers || threshold <= 0xF)?;
        self.must(
            field::SECONDARY_CONTROLS,
            "the APIC's page and its MSRs can't both be virtual",
            !(self.secondary(secondary::VIRTUALIZE_X2APIC)
                && self.secondary(secondary::VIRTUALIZE_APIC)),
        )?;
        self.must(
            field::PIN_CONTROLS,
            "virtual-interrupt delivery needs external-interrupt exiting",
            !delivers || self.pin(pin::EXTERNAL_INTERRUPT),
        )
    }

    /// Posted interrupts.
    fn posted(&self) -> Result<(), Refusal> {
        if !self.pin(pin::POSTED) {
            return Ok(());
        }
        self.must(
            field::PIN_CONTROLS,
            "posted interrupts need virtual-interrupt delivery",
            self.secondary(secondary::VIRTUAL_DELIVERY),
        )?;
        self.must(
            field::EXIT_CONTROLS,
            "posted interrupts need exits that acknowledge interrupts",
            self.at_exit(exit::ACKNOWLEDGE),
        )?;
        self.must(
            field::POSTED_VECTOR,
            "must be a vector",
            self.get(field::POSTED_VECTOR) <= 0xFF,
        )?;
        self.place(field::POSTED_DESCRIPTOR, 64)
    }

    /// The pointer of a CPU that [`Capabilities::suffice`] says yes to; without accessed and dirty
    /// bits, which aren't used.
    fn ept(&self) -> Result<(), Refusal> {
        let pointer = self.get(field::EPT_POINTER);
        let form = pointer & 0xFFF == 0x1E && pointer & self.capabilities.beyond() == 0;
        self.must(field::EPT_POINTER, "must be write-back, of four levels, and an address", form)
    }

    /// What is to be raised (SDM vol. 3, 27.2.1.3).
    fn event(&self) -> Result<(), Refusal> {
        let info = self.get(field::ENTRY_INTERRUPTION);
        if info >> 31 == 0 {
            return Ok(());
        }
        let must = |rule, holds| self.must(field::ENTRY_INTERRUPTION, rule, holds);
        must("bits 30:12 must be 0", info & 0x7FFF_F000 == 0)?;
        let Some(event) = Delivered::pending(self.area) else {
            return must("its type must not be reserved", false);
        };
        let Delivered { kind, vector, error_code, length } = event;
        must("an NMI has vector 2", kind != Kind::Nmi || vector == 2)?;
        must("an exception's vector is 31 at most", kind != Kind::Exception || vector <= 31)?;
        let protected = self.get(field::GUEST_CR0) & 1 != 0;
        let may = kind == Kind::Exception && protected;
        let pushes = may && matches!(vector, 8 | 10..=14 | 17);
        let fits = may && self.capabilities.any_error_code() || pushes == error_code.is_some();
        must("must have an error code where the exception has", fits)?;
        let narrow = error_code.is_none_or(|code| code <= 0xFFFF);
        self.must(field::ENTRY_ERROR_CODE, "must have 16 bits", narrow)?;
        let by_instruction =
            matches!(kind, Kind::Software | Kind::Privileged | Kind::SoftwareException);
        let rule = "must be that of an instruction";
        let least = u32::from(!self.capabilities.no_length());
        let long = !by_instruction || (least..=15).contains(&length);
        self.must(field::ENTRY_INSTRUCTION_LENGTH, rule, long)
    }
}

/// Of 48 bits: five levels aren't offered.
fn is_canonical(address: u64) -> bool {
    (address as i64) << 16 >> 16 == address as i64
}

#[cfg(test)]
mod tests;
