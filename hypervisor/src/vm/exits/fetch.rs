//! The guest's exiting instructions: read through its page tables, and stepped over when done.

use crate::cpu::vendor::{VirtualCpu, Visit};
use crate::vm::Vcpu;
use crate::vm::exits::code_pages::{CodePages, FOUR_GIB, Site, linear};
use crate::vm::memory::Memory;
use crate::vm::stop::Fault;
use decode::Instruction;
use paging::walk;

/// Steps over an instruction, if it is known to stand at RIP and the CPU doesn't tell where the
/// next one is. Is it done?
struct Known<'a, const N: usize> {
    memory: &'a Memory,
    code_pages: &'a mut CodePages,
    site: Site,
    opcode: &'a [u8; N],
}

impl<const N: usize> Visit for Known<'_, N> {
    type Output = bool;

    #[inline(always)]
    fn visit(self, cpu: &mut impl VirtualCpu) -> bool {
        let known = cpu.next_rip().is_none()
            && self.code_pages.stands(self.memory, cpu, self.site, self.opcode);
        if known {
            cpu.advance(cpu.rip().wrapping_add(N as u64));
        }
        known
    }
}

impl<C: VirtualCpu> Vcpu<C> {
    /// The instruction that exited, which without prefixes is `opcode`, is done.
    ///
    /// Its length decides where the guest goes on, and not every CPU tells it. Reading it
    /// anew through the guest's page tables at each exit would cost more than most exits do,
    /// so the page it was in is remembered: if the bare opcode still stands there it is that
    /// long; anything else is looked up and decoded.
    pub(in crate::vm) fn skip<const N: usize>(&mut self, opcode: &[u8; N]) {
        if let Some(next) = self.cpu.next_rip() {
            return self.cpu.advance(next);
        }
        let known =
            !self.serves && self.code_pages.matches(&self.vm.guest.memory, &self.cpu, opcode);
        let length = match known {
            true => opcode.len() as u64,
            false => self.instruction_length(opcode.len()),
        };
        self.cpu.advance(self.cpu.rip().wrapping_add(length));
    }

    /// The same, for an instruction that exits often.
    #[inline]
    pub(in crate::vm) fn skip_often<const N: usize>(&mut self, site: Site, opcode: &[u8; N]) {
        let (memory, code_pages) = (&self.vm.guest.memory, &mut self.code_pages);
        if !self.cpu.visited(Known { memory, code_pages, site, opcode }) {
            self.skip(opcode);
        }
    }

    /// The length by decoding; `bare` when the guest has meanwhile made it unreadable.
    fn instruction_length(&mut self, bare: usize) -> u64 {
        let mut bytes = [0; 15];
        let decoded = self
            .fetch(&mut bytes)
            .and_then(|n| decode::decode(bytes.get(..n)?, self.cpu.code_mode()).ok());
        if !self.serves {
            self.code_pages.learn(&self.vm.guest.memory, &self.cpu);
        }
        decoded.map_or(bare as u64, |i| i.len as u64)
    }

    /// Reads the instruction at RIP as the guest's page tables show it; how many bytes there were.
    pub(in crate::vm) fn fetch(&self, bytes: &mut [u8; 15]) -> Option<usize> {
        let access = walk::Access { user: self.cpu.privilege() == 3, write: false, fetch: true };
        let memory = self.physical();
        let read = |at: u64, bytes: &mut [u8]| {
            walk::read_virtual(&memory, &self.cpu.paging(), at, access, bytes).ok()
        };
        let at = linear(&self.cpu);
        // Behind 4 GiB 32-bit addresses begin anew.
        let room = match self.cpu.code_mode() {
            decode::Mode::Bits64 => usize::MAX,
            _ => (FOUR_GIB - at) as usize,
        };
        let (first, rest) = bytes.split_at_mut(room.min(15));
        let length = read(at, first)?;
        let more = if length == first.len() && !rest.is_empty() { read(0, rest) } else { None };
        Some(length + more.unwrap_or(0)).filter(|n| *n > 0)
    }

    /// The instruction behind an exit, as `fetch` reads it, or what stands in its place by now.
    /// `address`: what an error is to name.
    pub(in crate::vm) fn decoded(
        &self,
        address: u64,
        fetch: fn(&Self, &mut [u8; 15]) -> Option<usize>,
    ) -> Result<Instruction, Fault> {
        let mut bytes = [0; 15];
        let length = fetch(self, &mut bytes).ok_or(Fault::Unreadable { address })?;
        decode::decode(bytes.get(..length).unwrap_or_default(), self.cpu.code_mode())
            .map_err(|why| Fault::Instruction { address, why })
    }

    /// After a nested page fault: reads the instruction, or takes what the CPU tells of it.
    pub(in crate::vm) fn fetch_faulted(&self, bytes: &mut [u8; 15]) -> Option<usize> {
        match self.cpu.instruction_bytes() {
            Some(told) => {
                bytes.get_mut(..told.len())?.copy_from_slice(told);
                Some(told.len())
            }
            None => self.fetch(bytes),
        }
    }
}
