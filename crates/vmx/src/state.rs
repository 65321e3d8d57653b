//! The state of the processor in the control structure: what the rest of the hypervisor reads of it
//! and changes in it, as the CPU itself would.

use crate::field::{self, Segment};
use crate::start::{self, CR4_MCE, rights};
use crate::{Area, Delivered, Kind, Vcpu, debug_status};
use decode::{Mode, Registers as _};
use paging::walk::Paging;
use vendor::Exit;

const CR0_PG: u64 = 1 << 31;
/// PG, CD and NW: what changes one of them reads the pointers of PAE paging (SDM vol. 3, 4.4.1).
const POINTERS_BY: u64 = CR0_PG | 0b11 << 29;
const CR4_PAE: u64 = 1 << 5;
const EFER_LME: u64 = 1 << 8;
const EFER_LMA: u64 = 1 << 10;
const RFLAGS_TF: u64 = 1 << 8;
const RFLAGS_IF: u64 = 1 << 9;
const RFLAGS_RF: u64 = 1 << 16;
/// Blocking by STI and by MOV SS.
const SHADOW: u64 = 0b11;
/// Of the pending debug exceptions: a single step.
const SINGLE_STEP: u64 = 1 << 14;
/// Of DEBUGCTL: it is branches that are stepped.
const BY_BRANCH: u64 = 1 << 1;
/// Of DR7: access to debug registers traps.
const GENERAL_DETECT: u64 = 1 << 13;

/// Of a pointer of PAE paging: present, and the bits that must be 0 then, but for those beyond the
/// CPU's addresses.
const PRESENT: u64 = 1;
const RESERVED: u64 = 0b11 << 1 | 0b1111 << 5;

/// The type of a task state of 16 bits, busy.
const TASK_OF_16: u64 = 3;

const POINTERS: [crate::Field; 4] =
    [field::GUEST_PDPTE0, field::GUEST_PDPTE1, field::GUEST_PDPTE2, field::GUEST_PDPTE3];

impl<A: Area> Vcpu<A> {
    /// Is the guest in long mode?
    pub fn long_mode(&self) -> bool {
        self.efer() & EFER_LMA != 0
    }

    /// The width code runs at.
    pub fn code_mode(&self) -> Mode {
        let code = self.area.read(Segment::Cs.rights());
        if code & rights::LONG != 0 && self.long_mode() {
            Mode::Bits64
        } else if code & rights::BIG != 0 {
            Mode::Bits32
        } else {
            Mode::Bits16
        }
    }

    /// Current privilege level.
    pub fn privilege(&self) -> u8 {
        (self.area.read(Segment::Ss.rights()) >> 5 & 3) as u8
    }

    /// EFER.
    pub fn efer(&self) -> u64 {
        self.area.read(field::GUEST_EFER)
    }

    /// What the guest reads of CR0.
    fn cr0(&self) -> u64 {
        let [own, shown] = [field::GUEST_CR0, field::CR0_SHADOW].map(|f| self.area.read(f));
        own & !start::CR0_MASK | shown & start::CR0_MASK
    }

    /// What the guest reads of CR4.
    pub fn cr4(&self) -> u64 {
        let mask = self.cr4_mask();
        let [own, shown] = [field::GUEST_CR4, field::CR4_SHADOW].map(|f| self.area.read(f));
        own & !mask | shown & mask
    }

    /// Of CR4: what the guest doesn't change without an exit.
    pub(crate) fn cr4_mask(&self) -> u64 {
        !self.offered_cr4() | start::hidden_cr4(&self.capabilities)
    }

    /// A MOV to CR4 that changes what is masked. With what the guest isn't offered it is refused.
    /// Else MCE is another: that is what the guest sees from here on, and the instruction, which is
    /// executed again, does the rest. Should the CPU refuse it then, MCE alone has changed.
    pub(crate) fn load_cr4(&mut self, from: u8) -> Exit {
        let wide = self.code_mode() == Mode::Bits64;
        let value = self.gpr(from) & if wide { u64::MAX } else { 0xFFFF_FFFF };
        let shown = self.area.read(field::CR4_SHADOW);
        if value & !self.offered_cr4() != 0 || (value ^ shown) & CR4_MCE == 0 {
            return Exit::Forbidden;
        }
        self.area.write(field::CR4_SHADOW, shown ^ CR4_MCE);
        Exit::Nothing
    }

    /// The registers that a walk of the guest's page tables needs.
    pub fn paging(&self) -> Paging {
        let cr3 = self.area.read(field::GUEST_CR3);
        let (cr4, efer) = (self.cr4(), self.efer());
        let kept = cr4 & CR4_PAE != 0 && efer & EFER_LMA == 0;
        let pointers = kept.then(|| POINTERS.map(|pointer| self.area.read(pointer)));
        Paging { cr0: self.cr0(), cr3, cr4, efer, pointers }
    }

    /// Does the guest let interrupts in?
    pub fn interrupts_enabled(&self) -> bool {
        self.area.read(field::GUEST_RFLAGS) & RFLAGS_IF != 0
    }

    /// Is it behind STI or MOV SS?
    pub(crate) fn in_shadow(&self) -> bool {
        self.area.read(field::GUEST_INTERRUPTIBILITY) & SHADOW != 0
    }

    /// After an exit for an instruction: the address of the next one.
    pub fn next_rip(&self) -> u64 {
        let [rip, length] =
            [field::GUEST_RIP, field::INSTRUCTION_LENGTH].map(|f| self.area.read(f));
        rip.wrapping_add(length)
    }

    /// The end of an instruction, as the CPU would have it: the guest goes on at `next`, unless
    /// what the instruction did raises an event first.
    pub fn advance(&mut self, next: u64) {
        self.go_on_at(next);
        let blocking = self.area.read(field::GUEST_INTERRUPTIBILITY);
        if blocking & SHADOW != 0 {
            self.area.write(field::GUEST_INTERRUPTIBILITY, blocking & !SHADOW);
        }
        let flags = self.area.read(field::GUEST_RFLAGS);
        if flags & (RFLAGS_RF | RFLAGS_TF) != 0 {
            self.end_traced(flags);
        }
    }

    /// The guest goes on there, by as many bits as its code's addresses have.
    fn go_on_at(&mut self, next: u64) {
        let long = self.code_mode() == Mode::Bits64;
        self.area.write(field::GUEST_RIP, if long { next } else { next & 0xFFFF_FFFF });
    }

    /// The rest of it, where the guest is debugged.
    #[cold]
    fn end_traced(&mut self, flags: u64) {
        self.area.write(field::GUEST_RFLAGS, flags & !RFLAGS_RF);
        let steps = self.area.read(field::GUEST_DEBUGCTL) & BY_BRANCH == 0;
        if flags & RFLAGS_TF != 0 && steps && Delivered::pending(&self.area).is_none() {
            let pending = self.area.read(field::GUEST_PENDING_DEBUG);
            self.area.write(field::GUEST_PENDING_DEBUG, pending | SINGLE_STEP);
        }
    }

    /// After an exit for #DB, which is raised at the next entry: what DR6 is to read, `before` it.
    /// The exit left it alone, and the guest's trap of accesses to debug registers in force, which
    /// its handler may make.
    ///
    /// What is raised ends a shadow of STI or MOV SS. It is taken away here: the CPU refuses an
    /// entry behind one with TF set and no step held back (SDM vol. 3, 27.3.1.5), and that is what
    /// an exit for #DB leaves. A user comes to it by MOV SS and INT1.
    pub fn take_debug_status(&mut self, before: u64) -> u64 {
        let blocking = self.area.read(field::GUEST_INTERRUPTIBILITY);
        self.area.write(field::GUEST_INTERRUPTIBILITY, blocking & !SHADOW);
        if Delivered::exited(&self.area).is_some_and(|event| event.kind == Kind::Privileged) {
            // INT1's trap is behind it, and DR6 isn't for it.
            self.go_on_at(self.next_rip());
            return before;
        }
        let control = self.area.read(field::GUEST_DR7);
        self.area.write(field::GUEST_DR7, control & !GENERAL_DETECT);
        debug_status(&self.area, before)
    }

    /// CS.L, whatever the mode.
    pub fn cs_long(&self) -> bool {
        self.area.read(Segment::Cs.rights()) & rights::LONG != 0
    }

    /// Sets CR0, which may begin or end long mode. `pointers`: where the guest's CR3 has those of
    /// PAE paging, read if it is in force and PG, CD or NW changes. False: the CPU refuses it, for
    /// they aren't right, or since long mode doesn't begin in a task of 16 bits (SDM vol. 2, MOV to
    /// control registers).
    pub fn set_cr0(&mut self, value: u64, pointers: impl FnOnce(u64) -> [u64; 4]) -> bool {
        let (before, efer, cr4) = (self.cr0(), self.efer(), self.cr4());
        let paging = value & CR0_PG != 0;
        let long = efer & EFER_LME != 0 && paging;
        let is_of_16 = || self.area.read(Segment::Tr.rights()) & 0xF == TASK_OF_16;
        if long && !self.long_mode() && is_of_16() {
            return false;
        }
        if paging && (value ^ before) & POINTERS_BY != 0 && cr4 & CR4_PAE != 0 && !long {
            let pointers = pointers(self.area.read(field::GUEST_CR3));
            let reserved = RESERVED | self.capabilities.beyond();
            if pointers.iter().any(|p| p & PRESENT != 0 && p & reserved != 0) {
                return false;
            }
            POINTERS.into_iter().zip(pointers).for_each(|(f, p)| self.area.write(f, p));
        }
        start::set_cr0(&mut self.area, &self.capabilities, value);
        let lma = if long { EFER_LMA } else { 0 };
        start::set_efer(&mut self.area, efer & !EFER_LMA | lma);
        self.flush();
        true
    }

    /// Sets EFER, as the guest wrote it, but for LMA, which is CR0's.
    pub fn set_efer(&mut self, value: u64) {
        let before = self.efer();
        let after = value & !EFER_LMA | before & EFER_LMA;
        if after != before {
            start::set_efer(&mut self.area, after);
            self.flush();
        }
    }

    /// Base and limit of the guest's IDT, whatever limit is in force.
    pub fn idtr(&self) -> (u64, u16) {
        let limit = self.own_limit.unwrap_or_else(|| self.area.read(field::GUEST_IDTR_LIMIT));
        (self.area.read(field::GUEST_IDTR_BASE), limit as u16)
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
