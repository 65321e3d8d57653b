//! Messages as the guest's own IOMMU remaps them, if it has one that does.

use crate::iommu::guest::GuestIommu;
use viommu::unit::{Blocked, Posted, Remapped};
use virtual_pc::message::{Message, Refused, Written};

/// A message, and for whom it is if it is posted.
pub type Sent = (Message, Option<Posted>);

/// The message of a function with this requester id.
pub fn of_msi(iommu: &GuestIommu, source: u16, written: Written) -> Result<Sent, Refused> {
    let plain = || written.message();
    let Some((remapping, window)) = iommu.remapping() else { return Ok((plain()?, None)) };
    read(remapping.of_msi(&window, source, (written.address, written.data)), plain)
}

/// The message of an entry of the IOAPIC.
pub fn of_redirection(iommu: Option<&GuestIommu>, entry: u64) -> Result<Message, Refused> {
    let plain = || Message::from_redirection(entry);
    let Some((remapping, window)) = iommu.and_then(GuestIommu::remapping) else { return plain() };
    match read(remapping.of_redirection(&window, entry), plain)? {
        (message, None) => Ok(message),
        // Nobody posts what the host emulates.
        (_, Some(_)) => Err(Refused::Blocked),
    }
}

fn read(
    remapped: Result<Option<Remapped>, Blocked>,
    plain: impl FnOnce() -> Result<Message, Refused>,
) -> Result<Sent, Refused> {
    match remapped {
        Ok(Some(m)) => Ok((Message::remapped(m.data, m.destination, m.logical, m.hint)?, m.posted)),
        Ok(None) => Ok((plain()?, None)),
        Err(_) => Err(Refused::Blocked),
    }
}
