//! Machine checks of the core this runs on, and errors that raised none: what its banks tell, read
//! and given back.

use super::{control, msr, this};
use crate::memory;
use mca::{Registers, Report};

struct Msrs;

impl Registers for Msrs {
    fn read(&self, register: u32) -> u64 {
        // SAFETY: `exists` was asked, and `mca` reads what a bank says that it has.
        unsafe { msr::read(register) }
    }

    fn write(&mut self, register: u32, value: u64) {
        // SAFETY: as above; clearing an error's record changes no memory.
        unsafe { msr::write(register, value) };
    }
}

/// Has the CPU the architecture's registers?
fn exists() -> bool {
    control::cpuid().get_feature_info().is_some_and(|f| f.has_mca())
}

/// Is a machine check being handled?
pub fn in_progress() -> bool {
    exists() && mca::in_progress(&Msrs)
}

/// Reads and clears the banks; the machine check is handled then.
pub fn take() -> Option<Report> {
    exists().then(|| mca::take(&mut Msrs))
}

/// Tells of the errors that the banks have, once: none of them raised a machine check that came to
/// the host. Those that firmware corrects in SMM aren't seen here.
pub fn tell_of_errors() {
    if let Some(report) = take().filter(Report::tells_something) {
        let core = this().index;
        memory::while_reporting(|| match report.is_harmless() {
            true => log::warn!("core {core}: {report}"),
            false => log::error!("core {core}: {report}"),
        });
    }
}
