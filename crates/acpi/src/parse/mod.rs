//! From the root pointer to the [`Machine`]: finds the tables, and reads those that matter.
//!
//! Only tables that are used are read and summed. Of two tables with one signature the first
//! counts. Nothing is followed twice, so no cycle of addresses can hold it up.

mod dmar;
mod fadt;
mod ivrs;
mod madt;
mod root;
mod spcr;
mod srat;
mod table;
mod wdat;

#[cfg(test)]
mod tests;

use crate::{Ecam, Error, MAX_ECAMS, Machine, Physical};
pub use root::{RootPointer, find_rsdp, places};
use table::{Read, Source, Table};

/// Reads the machine's description, beginning at the root pointer (an address, or a copy of it).
// Not generic: it is built once, with this crate, which is built for size.
pub fn probe(mem: &dyn Physical, rsdp: impl Into<RootPointer>) -> Result<Machine, Error> {
    probe_from(mem, &rsdp.into())
}

fn probe_from(mem: &dyn Physical, rsdp: &RootPointer) -> Result<Machine, Error> {
    let source = &Source::new(mem);
    let mut machine = Machine::default();
    let mut seen = Seen::default();
    let root = root::root_table(source, rsdp)?;
    let read = root.for_each_table(&mut |signature, address| {
        let open = |name| Table::open(source, name, signature, address);
        match &signature {
            b"APIC" if !seen.madt => {
                seen.madt = true;
                madt::parse(&open("MADT")?, &mut machine)?;
            }
            b"FACP" if !seen.fadt => {
                seen.fadt = true;
                fadt::parse(&open("FADT")?, &mut machine)?;
            }
            b"MCFG" if !seen.mcfg => {
                seen.mcfg = true;
                mcfg(&open("MCFG")?, &mut machine)?;
            }
            b"DMAR" if machine.dmar.is_none() => {
                machine.dmar = Some(dmar::parse(&open("DMAR")?)?);
            }
            b"SPCR" if !seen.spcr => {
                seen.spcr = true;
                let console = open("SPCR").and_then(|table| spcr::parse(&table));
                machine.console = source.outcome(console).transpose();
            }
            b"SRAT" if machine.affinity.is_none() => {
                let affinity = open("SRAT").and_then(|table| srat::parse(&table));
                machine.affinity = Some(source.outcome(affinity));
            }
            b"WDAT" if !seen.wdat => {
                seen.wdat = true;
                let watchdog = open("WDAT").and_then(|table| wdat::parse(&table));
                machine.watchdog = source.outcome(watchdog).transpose();
            }
            b"IVRS" if machine.ivrs.is_none() => {
                machine.ivrs = Some(ivrs::parse(&open("IVRS")?)?);
            }
            _ => {}
        }
        Ok(())
    });
    source.outcome(read)?;
    if !seen.madt {
        return Err(Error::Missing { table: "MADT", purpose: "the processors" });
    }
    Ok(machine)
}

#[derive(Default)]
struct Seen {
    madt: bool,
    fadt: bool,
    mcfg: bool,
    spcr: bool,
    wdat: bool,
}

/// The windows of configuration space (PCI Firmware 3.3, 4.1.2). Two that give one function twice
/// would let two VMs have it.
fn mcfg(table: &Table<'_>, machine: &mut Machine) -> Read<()> {
    const ENTRIES: u32 = 44;
    const ENTRY: u32 = 16;
    let mut next = ENTRIES;
    while next < table.length() {
        let offset = next;
        let entry = table.part(offset, ENTRY, ENTRY)?;
        next = offset.saturating_add(ENTRY);
        let ecam = Ecam {
            base: entry.u64(0)?,
            segment: entry.u16(8)?,
            bus_start: entry.u8(10)?,
            bus_end: entry.u8(11)?,
        };
        if machine.ecams.contains(&ecam) {
            continue;
        }
        let inconsistent =
            |needed| table.stop(Error::Inconsistent { table: "MCFG", offset, needed });
        let end = (u64::from(ecam.bus_end) + 1) << 20;
        if ecam.bus_start > ecam.bus_end || ecam.base.checked_add(end).is_none() {
            return Err(inconsistent("a first bus not above the last and an end below 2^64"));
        }
        if machine.ecams.iter().any(|other| other.overlaps(&ecam)) {
            return Err(inconsistent("buses and memory that no other entry has"));
        }
        let full = Error::TooMany { table: "MCFG", what: "windows", most: MAX_ECAMS };
        machine.ecams.try_push(ecam).map_err(|_| table.stop(full))?;
    }
    Ok(())
}
