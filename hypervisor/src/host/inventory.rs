//! What the machine offers, told when there is no plan: to the log, and in records.
//!
//! Guarantees: everything is found out by what a plan is refused by, so that what is told here is
//! what a boot with a plan would say. Runs no guest. The IOMMUs are switched on as ever: from then
//! on devices reach nothing.

use crate::cpu;
use crate::pci::Pci;
use crate::pci::assignment::Assignment;
use crate::{console, iommu, panic};
use acpi::Machine;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use plan::{AtEnd, Plan, Policy, WithoutRemapping};
use proto::Record;
use proto::offer::Offer;

/// Tells it, and stands still.
#[cold]
pub fn tell(machine: &Machine) -> ! {
    let id = raw_cpuid::CpuId::new();
    let name = id.get_processor_brand_string();
    let apm = id.get_advanced_power_mgmt_info();
    offer(Offer::Processor {
        name: name.map_or_else(|| "of no name".to_string(), |name| name.as_str().trim().into()),
        invariant_tsc: apm.is_some_and(|apm| apm.has_invariant_tsc()),
    });
    match cpu::choose() {
        Ok(()) => {
            cpu::errata().for_each(|what| offer(Offer::Erratum(what.into())));
            let (nested, posted) =
                (cpu::lacks(true, Policy::Direct), cpu::lacks(false, Policy::Posted));
            nested.into_iter().for_each(|why| offer(Offer::NoNesting(why)));
            posted.into_iter().for_each(|why| offer(Offer::NoPosting(why)));
        }
        Err(why) => missing(&why),
    }
    let cores = |of: fn(&cpu::PerCpu) -> bool| {
        cpu::all().skip(1).filter(|cpu| of(cpu)).map(|cpu| cpu.index as u32).collect::<Vec<_>>()
    };
    let ready = cores(|cpu| cpu.is_parked() && cpu.may_run_guests());
    if ready.is_empty() {
        missing("core 0 is the host's, and there is no other that starts");
    }
    offer(Offer::Cores { ready, silent: cores(|cpu| !cpu.is_parked()) });
    match iommu::find(machine, WithoutRemapping::Refuse) {
        Ok(found) => {
            iommu::enable(found).unwrap_or_else(|why| offer(Offer::NoDevices(why)));
        }
        Err(why) => offer(Offer::NoDevices(why)),
    }
    for (kind, base) in iommu::names() {
        offer(Offer::Iommu { kind: kind.into(), base, remaps: iommu::remaps() });
    }
    match functions(machine) {
        Ok(functions) => functions.into_iter().for_each(|f| offer(Offer::Function(f))),
        Err(why) => missing(&why),
    }
    offer(Offer::Complete);
    panic::finish(AtEnd::Stay)
}

fn functions(machine: &Machine) -> Result<Vec<proto::offer::Function>, String> {
    let pci = Pci::new(machine);
    pci.lack().into_iter().for_each(|why| offer(Offer::NoDevices(why.into())));
    Ok(Assignment::new(pci, &Plan::new(Vec::new()))?.offers())
}

fn missing(why: &str) {
    offer(Offer::Missing(why.into()));
}

fn offer(offer: Offer) {
    log::info!("{offer}");
    console::record(&Record::Offer(offer));
}
