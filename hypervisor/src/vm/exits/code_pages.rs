//! A small cache of translations of code pages: saves an exit the walk to learn a length.
//!
//! An entry may be stale; it only ever tells that the expected opcode stands at an address of the
//! guest's own memory, and a guest that remaps its code under itself misleads itself by a few
//! bytes at most.

use crate::cpu::vendor::VirtualCpu;
use crate::vm::exits::physical::Physical;
use crate::vm::memory::Memory;
use decode::Segment;
use paging::walk;

const SETS: usize = 4;
/// Where addresses of 32 bits end.
pub const FOUR_GIB: u64 = 1 << 32;

/// The cache of one vCPU. Two pages of the same set are both kept, the newer one first: where a
/// kernel has its HLT and its WRMSR is chance.
pub struct CodePages {
    sets: [[Entry; 2]; SETS],
    /// Where [`CodePages::stands`] last looked for an opcode, by what it is.
    last: [Place; 4],
}

/// An instruction that exits often, which a kernel has in few places.
#[derive(Clone, Copy, Debug)]
pub enum Site {
    /// It sends an interrupt.
    Command,
    /// It completes one.
    Completion,
    /// It waits for one.
    Halt,
    /// It runs a guest of the guest's.
    InnerEntry,
}

/// An address in 64-bit code, and where the opcode there is by [`Memory::within`].
#[derive(Clone, Copy)]
struct Place {
    at: u64,
    cr3: u64,
    hpa: u64,
}

/// No guest has this CR3.
const NOWHERE: Place = Place { at: 0, cr3: u64::MAX, hpa: 0 };

impl Default for CodePages {
    fn default() -> Self {
        CodePages { sets: Default::default(), last: [NOWHERE; 4] }
    }
}

#[derive(Clone, Copy, Default)]
struct Entry {
    /// Linear page address with bit 0 set, so that zero means empty.
    page: u64,
    cr3: u64,
    hpa: u64,
}

/// Linear address of the instruction: outside of 64-bit code they are 32 bits wide.
pub fn linear(cpu: &impl VirtualCpu) -> u64 {
    match cpu.code_mode() {
        decode::Mode::Bits64 => cpu.rip(),
        _ => cpu.segment_base(Segment::Cs).wrapping_add(cpu.rip()) & (FOUR_GIB - 1),
    }
}

fn set(page: u64) -> usize {
    (page >> 12) as usize % SETS
}

impl CodePages {
    /// Does `opcode` stand at RIP, as far as the cache knows?
    #[inline]
    pub fn matches<const N: usize>(
        &self,
        memory: &Memory,
        cpu: &impl VirtualCpu,
        opcode: &[u8; N],
    ) -> bool {
        let at = linear(cpu);
        let entry = self.find(cpu, at & !0xFFF);
        let place = entry.and_then(|entry| Memory::within(entry.hpa, at & 0xFFF, N));
        place.is_some_and(|at| memory.holds(at, opcode))
    }

    /// Does this opcode stand at RIP, in 64-bit code, as far as the cache knows? Where it stood the
    /// last time its bytes alone are looked at: code of 32 bits at the same address is as long.
    #[inline(always)]
    pub fn stands<const N: usize>(
        &mut self,
        memory: &Memory,
        cpu: &impl VirtualCpu,
        site: Site,
        opcode: &[u8; N],
    ) -> bool {
        let (at, cr3) = (cpu.rip(), cpu.cr3());
        let last = &self.last[site as usize];
        let known = last.at == at && last.cr3 == cr3;
        (known || self.stood(memory, cpu, site, N, at, cr3))
            && memory.holds(self.last[site as usize].hpa, opcode)
    }

    /// It may: here it is looked for. Where the CPU tells the next RIP nobody else looks up the
    /// page of an instruction that exits: the first one of this length does.
    #[inline(never)]
    fn stood(
        &mut self,
        memory: &Memory,
        cpu: &impl VirtualCpu,
        site: Site,
        bytes: usize,
        at: u64,
        cr3: u64,
    ) -> bool {
        if cpu.code_mode() != decode::Mode::Bits64 {
            return false;
        }
        let told = cpu.next_rip().is_some_and(|next| next.wrapping_sub(at) == bytes as u64);
        if told && self.find(cpu, at & !0xFFF).is_none() {
            self.learn(memory, cpu);
        }
        let entry = self.find(cpu, at & !0xFFF);
        let place = entry.and_then(|entry| Memory::within(entry.hpa, at & 0xFFF, bytes));
        let Some(hpa) = place else { return false };
        self.last[site as usize] = Place { at, cr3, hpa };
        true
    }

    #[inline(always)]
    fn find(&self, cpu: &impl VirtualCpu, page: u64) -> Option<&Entry> {
        let cr3 = cpu.cr3();
        self.sets[set(page)].iter().find(|entry| entry.page == page | 1 && entry.cr3 == cr3)
    }

    /// Remembers the page that RIP is in.
    pub fn learn(&mut self, memory: &Memory, cpu: &impl VirtualCpu) {
        let page = linear(cpu) & !0xFFF;
        let access = walk::Access { user: cpu.privilege() == 3, write: false, fetch: true };
        let regs = cpu.paging();
        let found = walk::translate(&Physical::of(memory), &regs, page, access).ok();
        if let Some(hpa) = found.and_then(|gpa| memory.resolve(gpa & !0xFFF, 4096)) {
            let [newer, older] = &mut self.sets[set(page)];
            (*newer, *older) = (Entry { page: page | 1, cr3: regs.cr3, hpa }, *newer);
        }
    }
}
