//! The instructions by which L1 runs L2 (APM vol. 3, chapter 5).
//!
//! Guarantees the exceptions of the manual: #UD where SVM is off or protection is, #GP outside of
//! ring 0 and for what isn't the address of a page of L1's memory.

use super::Nesting;
use super::inner_apic::beside;
use super::memory::{InPage, Words, composed};
use super::switches::{self, Switch};
use crate::cpu::svm::SvmCpu;
use decode::{Mode, Registers as _};
use delivery::Event;
use nested::tables::{Access, Rules, walk};
use nested::{Flush, Illegal, host_state, loaded};
use svm::Vmcb;
use svm::vmcb::{exit, int_ctl};
use vendor::{Attempt, GuestPages};

const UNDEFINED: u8 = 6;
const GENERAL_PROTECTION: u8 = 13;
const CR0_PE: u64 = 1;
const RFLAGS_IF: u64 = 1 << 9;
const RFLAGS_VM: u64 = 1 << 17;
/// MOV to CR8.
pub(super) const CR8: u16 = 1 << 8;
const EFER_LMA: u64 = 1 << 10;
const EFER_NXE: u64 = 1 << 11;

const VMRUN: [u8; 3] = [0x0F, 0x01, 0xD8];
const VMLOAD: [u8; 3] = [0x0F, 0x01, 0xDA];
const VMSAVE: [u8; 3] = [0x0F, 0x01, 0xDB];
const STGI: [u8; 3] = [0x0F, 0x01, 0xDC];
const CLGI: [u8; 3] = [0x0F, 0x01, 0xDD];
const INVLPGA: [u8; 3] = [0x0F, 0x01, 0xDF];

/// What a control block is known by. It is never 0, for whatever L1 has as its address: nothing is
/// known at first. The address has no bit 63, or the CPU refuses it.
#[inline(always)]
const fn key(gpa: u64) -> u64 {
    gpa << 1 | 1
}

/// The machine's address of a page of L1's memory, if this is the address of one.
fn page_at(memory: &dyn GuestPages, gpa: u64) -> Option<u64> {
    memory.page(gpa).filter(|_| gpa & 0xFFF == 0)
}

impl Nesting {
    /// What decides over L1's nested tables besides them.
    pub(super) fn rules(&self, v01: &Vmcb) -> Rules {
        let physical_bits = self.offer.physical_bits;
        Rules { no_execute: v01.efer & EFER_NXE != 0, physical_bits }
    }

    /// Makes 02 of 12, which lies at `gpa`.
    fn begin(
        &mut self,
        v01: &Vmcb,
        memory: &dyn GuestPages,
        (gpa, page): (u64, u64),
    ) -> Result<(), Illegal> {
        let mut entry = self.nest.enter(self.inner, v01, &self.offer, (gpa, &InPage(page)))?;
        if self.begin_apic(v01, memory)? {
            entry.flush = Flush::All;
        }
        match entry.flush {
            Flush::Nothing => {}
            Flush::Space => self.shadow.outdate(Some(entry.space)),
            Flush::All => self.shadow.outdate(None),
        }
        self.inner.nested_cr3 = match entry.nested_cr3 {
            None => v01.nested_cr3,
            // Nothing is known of tables of other formats.
            Some(cr3) if v01.efer & EFER_LMA == 0 => return Err(Illegal::NestedCr3(cr3)),
            Some(cr3) => {
                let root = match self.shadow.again(cr3, entry.space) {
                    Some(root) if !Switch::Again.is_off() => root,
                    _ => self.tables(v01, memory, cr3, entry.space)?,
                };
                if let Some((of, address)) = self.missed.take()
                    && of == cr3
                    && !Switch::PutIn.is_off()
                {
                    self.put_in(v01, memory, of, address);
                }
                root
            }
        };
        if Switch::Used.is_off() {
            self.use_all();
        }
        if !self.used.is_empty() {
            self.merge_maps(v01, memory);
        }
        if self.features.emulated && self.inner.int_ctl & int_ctl::V_IRQ != 0 {
            // Else it aborts: see `svm::emulator`.
            self.inner.intercept_cr_write |= CR8;
        }
        (self.block, self.known) = (Some(page), (key(gpa), page));
        Ok(())
    }

    /// The root for L1's tables, of which nothing is kept but what they say now.
    #[inline(never)]
    fn tables(
        &mut self,
        v01: &Vmcb,
        memory: &dyn GuestPages,
        cr3: u64,
        space: u32,
    ) -> Result<u64, Illegal> {
        if Switch::Trees.is_off() {
            self.shadow.clear(&mut self.frames);
        }
        if !self.shadow.is_right(cr3, space) {
            self.look_over(memory, (cr3, space), self.rules(v01));
        }
        let root = self.shadow.root(&mut self.frames, cr3, space);
        let (root, is_other) = root.map_err(|_| Illegal::NestedCr3(cr3))?;
        if is_other {
            self.inner.tlb_control = 1;
        }
        Ok(root)
    }

    fn look_over(&mut self, memory: &dyn GuestPages, (cr3, space): (u64, u32), rules: Rules) {
        let bar = self.apic.as_ref().and_then(|apic| apic.bar());
        let look = Access { look: true, ..Access::default() };
        let registers = &self.registers;
        let now = &mut |address| {
            let walked = walk(&mut Words(memory), cr3, address, look, rules).ok()?;
            if bar == Some(address & !0xFFF) {
                return None;
            }
            Some(beside(bar, address, composed(memory, registers, &walked)?))
        };
        if self.shadow.look_over(&mut self.frames, cr3, space, now) {
            self.inner.tlb_control = 1;
        }
    }

    /// Puts in what L1 has by now for an address whose fault it was told, so that L2 doesn't exit
    /// for it again. As a CPU may that looks ahead: the dirty bit stays, and so does what faults.
    #[inline(never)]
    fn put_in(&mut self, v01: &Vmcb, memory: &dyn GuestPages, cr3: u64, address: u64) {
        let has_apic = self.apic.is_some();
        if has_apic && self.is_inner_apic(address) {
            return;
        }
        let rules = self.rules(v01);
        let walked = walk(&mut Words(memory), cr3, address, Access::default(), rules);
        let Ok(walked) = walked else { return };
        let Some(page) = composed(memory, &self.registers, &walked) else { return };
        let page = if has_apic { self.beside_inner_apic(address, page) } else { page };
        // Without a frame for it the tables are empty, and L2 exits, as for any other page.
        if self.shadow.fill(&mut self.frames, cr3, address, page) != Ok(false) {
            self.inner.tlb_control = 1;
        }
    }
}

impl SvmCpu {
    /// After an exit for one of them, or for another instruction that nobody is offered.
    pub(in crate::cpu::svm) fn attempt_one(&mut self, memory: &dyn GuestPages) -> Attempt {
        let v01 = &*self.vcpu.vmcb;
        let (privilege, code) = (v01.cpl, v01.exit_code as u32);
        let real = v01.cr0 & CR0_PE == 0 || v01.rflags & RFLAGS_VM != 0;
        if real || !self.nesting.as_deref().is_some_and(|nesting| nesting.on) {
            return self.refuse(UNDEFINED, None);
        }
        if code == exit::VMRUN && privilege == 0 {
            return self.attempt_run(memory);
        }
        if !matches!(code, exit::VMRUN | exit::INVLPGA | exit::VMLOAD..=exit::CLGI) {
            return self.refuse(UNDEFINED, None);
        }
        if privilege != 0 {
            return self.refuse(GENERAL_PROTECTION, Some(0));
        }
        match code {
            exit::STGI => {
                self.let_interrupts();
                Attempt::Done(&STGI)
            }
            exit::CLGI => {
                self.clear_flag();
                Attempt::Done(&CLGI)
            }
            exit::INVLPGA => {
                switches::choose(self.vcpu.gpr(0), self.vcpu.gpr(1));
                // Address space 0 is its own; whichever it is, more is dropped than was asked for.
                self.vcpu.flush();
                if let Some(nesting) = self.nesting.as_deref_mut() {
                    nesting.flush();
                    nesting.shadow.outdate(None);
                }
                Attempt::Done(&INVLPGA)
            }
            _ => self.attempt_to_move(code, memory),
        }
    }

    /// The address of a control block, in RAX.
    #[inline(always)]
    fn block_address(&self) -> u64 {
        let rax = self.vcpu.gpr(0);
        if self.vcpu.vmcb.code_mode() == Mode::Bits64 { rax } else { rax & 0xFFFF_FFFF }
    }

    /// VMLOAD and VMSAVE.
    fn attempt_to_move(&mut self, code: u32, memory: &dyn GuestPages) -> Attempt {
        // It may be here for one that it couldn't do without an exit.
        self.vcpu.open_loads(true);
        let Some(page) = page_at(memory, self.block_address()) else {
            return self.refuse(GENERAL_PROTECTION, Some(0));
        };
        if code == exit::VMLOAD {
            loaded::load(self.vcpu.vmcb, &InPage(page));
            Attempt::Done(&VMLOAD)
        } else {
            loaded::save(self.vcpu.vmcb, &mut InPage(page));
            Attempt::Done(&VMSAVE)
        }
    }

    /// VMRUN.
    fn attempt_run(&mut self, memory: &dyn GuestPages) -> Attempt {
        let gpa = self.block_address();
        // A guest's memory stays where it is.
        let known = self.nesting.as_deref().map(|n| n.known);
        let known = known.filter(|known| known.0 == key(gpa) && !Switch::Remember.is_off());
        match known.map(|(_, page)| page).or_else(|| page_at(memory, gpa)) {
            Some(page) => self.run(memory, gpa, page),
            None => self.refuse(GENERAL_PROTECTION, Some(0)),
        }
    }

    #[inline(always)]
    fn run(&mut self, memory: &dyn GuestPages, gpa: u64, page: u64) -> Attempt {
        // What exits for L1 mustn't for L2; and what waits still ends L2, or is its own.
        let waits = self.vcpu.guards() && self.withdraw_for_inner();
        let v01 = &mut *self.vcpu.vmcb;
        let Some(nesting) = self.nesting.as_deref_mut() else {
            return self.refuse(UNDEFINED, None);
        };
        if nesting.begin(v01, memory, (gpa, page)).is_err() {
            nesting.nest.refuse(&mut InPage(page));
            host_state(v01);
            self.clear_flag();
            return Attempt::Done(&VMRUN);
        }
        // With V_INTR_MASKING it is L1's flag that lets physical interrupts leave L2.
        let closed = nesting.nest.control().masks_interrupts() && v01.rflags & RFLAGS_IF == 0;
        if closed {
            self.hold();
        } else if nesting.holds() {
            self.let_interrupts();
        }
        if waits && self.tells_at_once() {
            return Attempt::Done(&VMRUN);
        }
        Attempt::Enter(&VMRUN)
    }

    fn refuse(&mut self, vector: u8, error_code: Option<u32>) -> Attempt {
        self.vcpu.inject(Event::exception(vector, error_code));
        Attempt::Refused
    }
}
