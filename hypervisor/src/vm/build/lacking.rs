//! A machine on which no VM can have a device, since something is missing by which devices are
//! found or kept from what isn't their VM's.
//!
//! Guarantees: a plan with a device, of a VM's or of the host's for VMs, isn't run there. Any other
//! is: the functions that no IOMMU serves are silenced ([`Assignment`](crate::pci::assignment)).

use alloc::format;
use alloc::string::String;
use plan::Plan;

/// Whether the plan can do without what the machine lacks, parts of a sentence each; the error is a
/// sentence.
#[cold]
pub fn check<F>(plan: &Plan<F>, lacks: &[&str]) -> Result<(), String> {
    if lacks.is_empty() {
        return Ok(());
    }
    let lacks = lacks.join("; besides, ");
    match plan.any_device() {
        Some((owner, device)) => Err(format!("{owner} is to have {device}, but {lacks}")),
        None => {
            log::warn!("no VM can have a device on this machine, and none is to have one: {lacks}");
            Ok(())
        }
    }
}
