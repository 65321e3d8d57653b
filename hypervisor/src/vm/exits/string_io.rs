//! INS and OUTS: one element for each exit, so that the work is bounded and the guest takes
//! its interrupts between the elements of a long one.
//!
//! Guarantees: a port sees each element as IN or OUT would move it; all bytes of the element
//! are checked against the guest's page tables, with SMAP, before the port or memory is
//! touched, and the guest gets the #PF or #GP that it would get from a processor. Where it has
//! no memory, loads give ones and stores vanish. Segment limits, alignment and protection keys
//! aren't checked, and no accessed or dirty bit is set in the guest's page tables.

use crate::cpu::vendor::VirtualCpu;
use crate::vm::Vcpu;
use crate::vm::exceptions::GENERAL_PROTECTION;
use crate::vm::stop::Incident;
use crate::vm::stop::{Fault, Stop};
use decode::{Mode, Op, Register};
use paging::walk::{self, Access, GuestMemory, Paging, WalkError};
use platform::ports::Port;

const COUNT: Register = Register { number: 1, high: false };
const DIRECTION: u64 = 1 << 10;
const ALIGNMENT_CHECK: u64 = 1 << 18;
const CR0_PG: u64 = 1 << 31;
const CR4_SMAP: u64 = 1 << 21;

/// Error code of #PF (APM vol. 2, 8.4.2).
mod page_fault {
    pub const PRESENT: u32 = 1 << 0;
    pub const WRITE: u32 = 1 << 1;
    pub const USER: u32 = 1 << 2;
    pub const RESERVED: u32 = 1 << 3;
}

/// The guest-physical address of each byte of an element, as many as it has.
type Place = [u64; 4];

/// What the processor raises instead of the access.
enum Exception {
    Protection,
    Page { address: u64, error_code: u32 },
}

impl<C: VirtualCpu> Vcpu<C> {
    /// Moves the next element between `port` and memory.
    pub(in crate::vm) fn string_io(
        &mut self,
        port: Port,
        size: u8,
        input: bool,
        next: u64,
    ) -> Result<(), Stop> {
        let address = self.cpu.rip();
        let mut bytes = [0; 15];
        let length = self.fetch(&mut bytes).ok_or(Stop::Fault(Fault::Unreadable { address }))?;
        let mode = self.cpu.code_mode();
        let instruction = decode::decode(bytes.get(..length).unwrap_or_default(), mode)
            .map_err(|why| Stop::Fault(Fault::Instruction { address, why }))?;
        let (repeat, memory) = match (instruction.op, instruction.memory) {
            (Op::Ins { repeat } | Op::Outs { repeat }, Some(memory)) => (repeat, memory),
            // IN or OUT with a repeat prefix, which means nothing there.
            _ => return self.register_io(port, size, input, next),
        };
        let width = memory.address_size;
        let count = COUNT.read(&self.cpu, width);
        if repeat && count == 0 {
            self.cpu.resume_at(next);
            return Ok(());
        }
        let linear = instruction.linear_address(&self.cpu, mode).unwrap_or_default();
        match self.place(linear, size, input, mode) {
            Ok(place) if input => {
                let value = self.port_read(port, size);
                self.store_element(&place, size, value).map_err(Stop::Fault)?;
            }
            Ok(place) => {
                let value = self.load_element(&place, size);
                self.port_write(port, size, value)?;
            }
            Err(Exception::Protection) => {
                self.cpu.raise(GENERAL_PROTECTION, Some(0));
                return Ok(());
            }
            Err(Exception::Page { address, error_code }) => {
                self.cpu.raise_page_fault(address, error_code);
                return Ok(());
            }
        }
        if let Some(number) = memory.base {
            let pointer = Register { number, high: false };
            let at = pointer.read(&self.cpu, width);
            let back = self.cpu.rflags() & DIRECTION != 0;
            let step = size as u64;
            let moved = if back { at.wrapping_sub(step) } else { at.wrapping_add(step) };
            pointer.write(&mut self.cpu, width, moved);
        }
        if repeat {
            COUNT.write(&mut self.cpu, width, count - 1);
        }
        // Also when it isn't done: the shadow of STI covers one element.
        self.cpu.resume_at(if repeat && count > 1 { address } else { next });
        Ok(())
    }

    /// Translates all bytes of the element at `linear`.
    fn place(&self, linear: u64, size: u8, write: bool, mode: Mode) -> Result<Place, Exception> {
        let paging = self.cpu.paging();
        let access = Access { user: self.cpu.privilege() == 3, write, fetch: false };
        let mut place = [0; 4];
        for (i, gpa) in place.iter_mut().enumerate().take(size as usize) {
            let at = linear.wrapping_add(i as u64);
            let at = if mode == Mode::Bits64 { at } else { at & 0xFFFF_FFFF };
            *gpa = self.translate(&paging, at, access)?;
        }
        Ok(place)
    }

    fn translate(&self, paging: &Paging, address: u64, access: Access) -> Result<u64, Exception> {
        use page_fault::{PRESENT, RESERVED, USER, WRITE};
        let cause = if access.write { WRITE } else { 0 } | if access.user { USER } else { 0 };
        let page = |code| Err(Exception::Page { address, error_code: cause | code });
        match walk::translate(&self.vm.memory, paging, address, access) {
            Ok(_) if !access.user && self.smap_forbids(paging, address) => page(PRESENT),
            // Tables that are no memory lead to nothing, as their own address does.
            Ok(gpa) | Err(WalkError::NoMemory { gpa, .. }) => Ok(gpa),
            Err(WalkError::NotCanonical { .. }) => Err(Exception::Protection),
            Err(WalkError::NotPresent { .. }) => page(0),
            Err(WalkError::Protection { .. }) => page(PRESENT),
            Err(WalkError::Reserved { .. }) => page(PRESENT | RESERVED),
        }
    }

    /// A supervisor may not use this address, since it is a user's (APM vol. 2, 5.6.6).
    fn smap_forbids(&self, paging: &Paging, address: u64) -> bool {
        let user = Access { user: true, ..Access::default() };
        paging.cr0 & CR0_PG != 0
            && paging.cr4 & CR4_SMAP != 0
            && self.cpu.rflags() & ALIGNMENT_CHECK == 0
            && walk::translate(&self.vm.memory, paging, address, user).is_ok()
    }

    fn load_element(&mut self, place: &Place, size: u8) -> u32 {
        let mut bytes = [0; 4];
        for (byte, gpa) in bytes.iter_mut().zip(*place).take(size as usize) {
            *byte = match self.vm.memory.read_u64(gpa & !7) {
                Some(word) => (word >> (8 * (gpa & 7))) as u8,
                None => {
                    self.note_incident(Incident::Memory(gpa));
                    0xFF
                }
            };
        }
        u32::from_le_bytes(bytes)
    }

    fn store_element(&mut self, place: &Place, size: u8, value: u32) -> Result<(), Fault> {
        for (byte, gpa) in value.to_le_bytes().into_iter().zip(*place).take(size as usize) {
            self.with_pc(|pc, here| {
                pc.drop_at(here, gpa & !0xFFF)?;
                if !here.vm.memory.write(gpa, &[byte]) {
                    pc.incident = Some(Incident::Memory(gpa));
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}
