//! Where the guest's exiting instructions are in memory: a small cache of translations of
//! code pages, so that an exit need not walk the guest's page tables to learn a length.
//!
//! An entry may be stale; it only ever tells that the expected opcode stands at an address
//! of the guest's own memory, and a guest that remaps its code under itself misleads
//! itself by a few bytes at most.

use super::memory::Memory;
use crate::cpu::vendor::VirtualCpu;
use decode::Segment;
use paging::walk;

const ENTRIES: usize = 4;

/// The cache of one vCPU.
#[derive(Default)]
pub struct CodePages([Entry; ENTRIES]);

#[derive(Clone, Copy, Default)]
struct Entry {
    /// Linear page address with bit 0 set, so that zero means empty.
    page: u64,
    cr3: u64,
    hpa: u64,
}

fn linear(cpu: &impl VirtualCpu) -> u64 {
    let long = cpu.code_mode() == decode::Mode::Bits64;
    let base = if long { 0 } else { cpu.segment_base(Segment::Cs) };
    base.wrapping_add(cpu.rip())
}

fn slot(page: u64) -> usize {
    (page >> 12) as usize % ENTRIES
}

impl CodePages {
    /// Does `opcode` stand at RIP, as far as the cache knows?
    pub fn matches(&self, memory: &Memory, cpu: &impl VirtualCpu, opcode: &[u8]) -> bool {
        let at = linear(cpu);
        let entry = self.0[slot(at & !0xFFF)];
        let known = entry.page == at & !0xFFF | 1 && entry.cr3 == cpu.paging().cr3;
        let inside = (at & 0xFFF) as usize + opcode.len() <= 4096;
        known && inside && memory.page_holds(entry.hpa, (at & 0xFFF) as usize, opcode)
    }

    /// Remembers the page that RIP is in.
    pub fn learn(&mut self, memory: &Memory, cpu: &impl VirtualCpu) {
        let page = linear(cpu) & !0xFFF;
        let access = walk::Access { user: cpu.privilege() == 3, write: false, fetch: true };
        let regs = cpu.paging();
        let found = walk::translate(memory, &regs, page, access).ok();
        if let Some(hpa) = found.and_then(|gpa| memory.resolve(gpa & !0xFFF, 4096)) {
            self.0[slot(page)] = Entry { page: page | 1, cr3: regs.cr3, hpa };
        }
    }
}
