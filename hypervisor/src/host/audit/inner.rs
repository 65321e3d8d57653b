//! The tables by which the guests of a guest run: each leaf leads to memory of the VM's, or to
//! registers that it itself reaches without an exit.
//!
//! Guarantees: a finding is told only if it stood, at every look for a while, since the vCPU's core
//! changes the tables without a lock. The address that a leaf translates is the guest's affair.
//! Doesn't look at tables that are kept for guests that don't run now.

use super::read::{ENTRIES, Looked, Suspected, word};
use crate::cpu::vendor::audit::InnerTables;
use crate::vm::Vm;
use alloc::vec::Vec;
use paging::Access;
use paging::audit::{Cursor, Finding, Region};

const PAGE: u64 = 4096;

/// What they may lead to, and how far the looking is.
pub struct Inner {
    regions: Vec<Region>,
    at: Cursor,
    suspected: Suspected<Finding>,
}

impl Inner {
    /// Of a vCPU of this VM.
    pub fn new(vm: &Vm) -> Self {
        let all = Access::READ | Access::WRITE | Access::EXECUTE;
        let pc = vm.pc.lock();
        let mut regions = Vec::new();
        // Uncached where the guest wants that, too.
        let mut allow = |pa, len, access| {
            regions.extend([access, access | Access::UNCACHED].map(|access| Region {
                va: None,
                pa,
                len,
                access,
            }));
        };
        vm.guest.memory.regions().iter().for_each(|r| allow(r.hpa, r.len, all));
        for function in pc.pci().functions() {
            for (part, access) in function.placement().open() {
                allow(part.start, part.end - part.start, access);
            }
        }
        let suspected = Suspected::nothing();
        Inner { regions, at: Cursor::default(), suspected }
    }

    /// Looks at the next entries.
    pub fn look(&mut self, tables: &InnerTables) -> Looked<Finding> {
        let (first, end) = tables.frames;
        let is_table = |frame: u64| (first..end).contains(&frame) && frame.is_multiple_of(PAGE);
        let before = self.at;
        let (at, regions) = (&mut self.at, &self.regions);
        match tables.outline.audit(word, at, ENTRIES, regions, is_table, || Some(())) {
            Ok(ended) => {
                self.suspected = Suspected::nothing();
                (ended, None)
            }
            Err(what) if self.suspected.stands(what) => {
                self.suspected = Suspected::nothing();
                (self.at == Cursor::default(), Some(what))
            }
            Err(_) => {
                self.at = before;
                (false, None)
            }
        }
    }
}
