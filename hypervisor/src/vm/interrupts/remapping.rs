//! Messages as the guest's own IOMMU remaps them, if it has one that does.

use crate::iommu::guest::GuestIommu;
use viommu::vtd::{Blocked, Remapped};
use virtual_pc::message::{Message, Refused, Written};

/// The message of a function with this requester id.
pub fn of_msi(iommu: &GuestIommu, source: u16, written: Written) -> Result<Message, Refused> {
    let Some((remapping, window)) = iommu.remapping() else { return written.message() };
    let remapped = remapping.of_msi(&window, source, (written.address, written.data));
    read(remapped, || written.message())
}

/// The message of an entry of the IOAPIC.
pub fn of_redirection(iommu: Option<&GuestIommu>, entry: u64) -> Result<Message, Refused> {
    let plain = || Message::from_redirection(entry);
    let Some((remapping, window)) = iommu.and_then(GuestIommu::remapping) else { return plain() };
    read(remapping.of_redirection(&window, entry), plain)
}

fn read(
    remapped: Result<Option<Remapped>, Blocked>,
    plain: impl FnOnce() -> Result<Message, Refused>,
) -> Result<Message, Refused> {
    match remapped {
        Ok(Some(m)) => Message::remapped(m.data, m.destination, m.logical, m.hint),
        Ok(None) => plain(),
        Err(_) => Err(Refused::Blocked),
    }
}
