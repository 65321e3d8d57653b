//! What the devices of a guest's PC use of it: the tables that say what is where in guest-physical
//! memory, the shadows in them, the IOAPIC.

use crate::iommu::guest::GuestIommu;
use crate::vm::exit_context::ExitContext;
use crate::vm::guest::Guest;
use crate::vm::interrupts::remapping;
use crate::vm::interrupts::shadow_idt::pages::Shadows;
use crate::vm::memory::Tables;
use crate::vm::stop::{Fault, Incident};
use delivery::VectorSet;
use paging::Access;
use proto::Policy;
use virtual_pc::ioapic::Ioapic;

/// The part of the PC that devices use.
pub struct Board {
    tables: Tables,
    shadows: Shadows,
    ioapic: Ioapic,
    /// What may remap what the IOAPIC sends.
    iommu: Option<&'static GuestIommu>,
    /// The last thing refused to the guest while it went on.
    incident: Option<Incident>,
}

impl Board {
    /// As a VM starts.
    pub fn new(tables: Tables, shadows: Shadows, iommu: Option<&'static GuestIommu>) -> Self {
        Board { tables, shadows, ioapic: Ioapic::default(), iommu, incident: None }
    }

    /// As after power on; the tables stay.
    pub fn restart(&mut self) {
        self.ioapic = Ioapic::default();
    }

    /// The tables that confine the guest and its devices.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// The same, to be made wrong.
    #[cfg(feature = "plant")]
    pub fn tables_mut(&mut self) -> &mut Tables {
        &mut self.tables
    }

    /// The frames that may stand in the place of pages of the guest's.
    pub fn shadow_frames(&self) -> impl Iterator<Item = u64> {
        self.shadows.frames()
    }

    /// The vectors that some shadow hides.
    pub fn hidden(&self) -> VectorSet {
        self.shadows.hidden()
    }

    /// Maps registers of a function, or memory that stands for them, for the guest.
    pub fn map_registers(
        &mut self,
        gpa: u64,
        hpa: u64,
        len: u64,
        access: Access,
    ) -> Result<(), Fault> {
        self.tables.map(gpa, hpa, len, access).map_err(Fault::Tables)
    }

    /// Unmaps them.
    pub fn unmap_registers(
        &mut self,
        cx: &mut ExitContext,
        gpa: u64,
        len: u64,
    ) -> Result<(), Fault> {
        self.tables.unmap(gpa, len, || cx.flush_all()).map_err(Fault::Tables)
    }

    /// Something was refused to the guest, which goes on.
    pub fn note(&mut self, incident: Incident) {
        self.incident = Some(incident);
    }

    /// The last thing that was.
    pub fn incident(&self) -> Option<Incident> {
        self.incident
    }

    /// A pulse on an interrupt line.
    pub fn pulse(&mut self, guest: &Guest, pin: usize) {
        let iommu = self.iommu;
        let read = |entry| remapping::of_redirection(iommu, entry);
        if let Some(message) = self.ioapic.raise(&read, pin) {
            guest.set_completion_awaited(self.ioapic.awaits());
            guest.deliver(&message);
            if guest.policy == Policy::Direct {
                // The guest's EOI isn't seen there. The line is a pulse: nothing is lost.
                self.ioapic.eoi(&read, message.vector);
            }
        }
    }

    /// The guest completed an interrupt with this vector.
    pub fn completed(&mut self, guest: &Guest, vector: u8) {
        let iommu = self.iommu;
        let messages = self.ioapic.eoi(&|entry| remapping::of_redirection(iommu, entry), vector);
        guest.set_completion_awaited(self.ioapic.awaits());
        messages.iter().for_each(|message| guest.deliver(message));
    }

    /// A guest's load from the IOAPIC.
    pub fn read_ioapic(&self, offset: u32) -> u32 {
        self.ioapic.read(offset)
    }

    /// A guest's store to the IOAPIC.
    pub fn write_ioapic(&mut self, guest: &Guest, offset: u32, value: u32) {
        let iommu = self.iommu;
        let read = |entry| remapping::of_redirection(iommu, entry);
        let messages = self.ioapic.write(&read, offset, value);
        guest.set_completion_awaited(self.ioapic.awaits());
        messages.iter().for_each(|message| guest.deliver(message));
    }

    /// Has the vCPU here take its interrupts through the shadow of `page`, whose table is at
    /// `table` in it; gives what is hidden.
    pub fn place_shadow(
        &mut self,
        cx: &mut ExitContext,
        page: u64,
        table: usize,
    ) -> Option<VectorSet> {
        self.shadows.place(&mut self.tables, cx, page, table)
    }

    /// The vCPU here takes its interrupts through no shadow any more: its IDT changes.
    pub fn leave_shadow(&mut self, cx: &mut ExitContext) -> Result<(), Fault> {
        self.shadows.leave(&mut self.tables, cx)
    }

    /// Gives the guest its page back, if it has a shadow.
    pub fn drop_shadow_at(&mut self, cx: &mut ExitContext, page: u64) -> Result<(), Fault> {
        self.shadows.drop_at(&mut self.tables, cx, page)
    }

    /// Gives the guest all its pages back.
    pub fn drop_shadows(&mut self, cx: &mut ExitContext) -> Result<(), Fault> {
        self.shadows.drop_all(&mut self.tables, cx)
    }
}
