//! An element of a string instruction, wherever in the guest it is: in its memory, in a device's
//! registers, or nowhere.
//!
//! Guarantees: all bytes of the element are checked against the guest's page tables, with SMAP,
//! before any is touched, and the guest gets the #PF or #GP that it would get from a processor.
//! Where there is nothing, loads give ones and stores vanish. Segment limits, alignment and
//! protection keys aren't checked, and no accessed or dirty bit is set in the guest's page tables.

use crate::cpu::vendor::VirtualCpu;
use crate::vm::Vcpu;
use crate::vm::exceptions::GENERAL_PROTECTION;
use crate::vm::stop::Stop;
use decode::Mode;
use paging::walk::{self, Access, GuestMemory, Paging, WalkError};

const PAGE: u64 = 4096;
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

/// Where an element is.
pub struct Element {
    /// The guest-physical address of each byte, as many as it has.
    bytes: [u64; 8],
    /// 1, 2, 4 or 8.
    size: u8,
    /// It has one page for itself.
    whole: bool,
}

impl Element {
    /// Is a byte of it at this guest-physical address?
    pub fn reaches(&self, gpa: u64) -> bool {
        self.bytes.iter().take(self.size.into()).any(|byte| *byte == gpa)
    }
}

/// The exception that the processor raises instead of the access.
pub enum Exception {
    Protection,
    Page {
        address: u64,
        error_code: u32,
    },
    /// Of an inner guest: the guest's tables haven't this physical address, for the access or for
    /// the inner guest's page tables.
    Missing {
        address: u64,
        write: bool,
        table: bool,
    },
}

impl<C: VirtualCpu> Vcpu<C> {
    /// Finds the element of `size` bytes at the linear address, to be written or read.
    pub(in crate::vm) fn element(
        &self,
        linear: u64,
        size: u8,
        write: bool,
        mode: Mode,
    ) -> Result<Element, Exception> {
        let paging = self.cpu.paging();
        let access = Access { user: self.cpu.privilege() == 3, write, fetch: false };
        let whole = linear % PAGE + u64::from(size) <= PAGE;
        let mut bytes = [0; 8];
        for i in 0..usize::from(size.min(8)) {
            bytes[i] = match i {
                1.. if whole => bytes[0] + i as u64,
                _ => {
                    let at = linear.wrapping_add(i as u64);
                    let at = if mode == Mode::Bits64 { at } else { at & 0xFFFF_FFFF };
                    self.translate(&paging, at, access)?
                }
            };
        }
        Ok(Element { bytes, size, whole })
    }

    pub(in crate::vm) fn raise_instead(&mut self, exception: Exception) {
        match exception {
            Exception::Protection => self.cpu.inject(GENERAL_PROTECTION, Some(0)),
            Exception::Page { address, error_code } => {
                self.cpu.inject_page_fault(address, error_code);
            }
            Exception::Missing { address, write, table } => {
                self.cpu.inner_missing(&self.vm.guest.memory, address, write, table);
            }
        }
    }

    fn translate(&self, paging: &Paging, address: u64, access: Access) -> Result<u64, Exception> {
        use page_fault::{PRESENT, RESERVED, USER, WRITE};
        let cause = if access.write { WRITE } else { 0 } | if access.user { USER } else { 0 };
        let page = |code| Err(Exception::Page { address, error_code: cause | code });
        let missing = |address, write, table| Exception::Missing { address, write, table };
        match walk::translate(&self.physical(), paging, address, access) {
            Ok(_) if !access.user && self.smap_forbids(paging, address) => page(PRESENT),
            Ok(at) if self.serves => {
                let write = access.write;
                self.physical().find(at, write).ok_or(missing(at, write, false))
            }
            Err(WalkError::NoMemory { gpa, .. }) if self.serves => Err(missing(gpa, false, true)),
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
            && walk::translate(&self.physical(), paging, address, user).is_ok()
    }

    fn is_memory(&self, gpa: u64) -> bool {
        self.vm.guest.memory.resolve(gpa & !(PAGE - 1), PAGE).is_some()
    }

    /// A device sees an element that has one page for itself as one access, else byte by byte.
    pub(in crate::vm) fn load_element(&mut self, element: &Element) -> u64 {
        let [first, ..] = element.bytes;
        if element.whole && !self.is_memory(first) {
            return self.load(first, element.size);
        }
        let mut value = [0; 8];
        for (byte, gpa) in value.iter_mut().zip(element.bytes).take(element.size as usize) {
            *byte = match self.vm.guest.memory.read_u64(gpa & !7) {
                Some(word) => (word >> (8 * (gpa & 7))) as u8,
                None => self.load(gpa, 1) as u8,
            };
        }
        u64::from_le_bytes(value)
    }

    pub(in crate::vm) fn store_element(
        &mut self,
        element: &Element,
        value: u64,
    ) -> Result<(), Stop> {
        let [first, ..] = element.bytes;
        let bytes = value.to_le_bytes();
        let bytes = bytes.get(..element.size as usize).unwrap_or_default();
        if element.whole {
            return self.store_piece(first, bytes);
        }
        bytes.iter().zip(element.bytes).try_for_each(|(byte, gpa)| self.store_piece(gpa, &[*byte]))
    }

    /// Stores the bytes of an element that are in one page.
    fn store_piece(&mut self, gpa: u64, bytes: &[u8]) -> Result<(), Stop> {
        if self.is_memory(gpa) {
            return self.with_pc(|pc, cx| {
                pc.board_mut().drop_shadow_at(cx, gpa & !(PAGE - 1))?;
                cx.guest.memory.write(gpa, bytes);
                Ok(())
            });
        }
        let value = bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
        self.store(gpa, bytes.len() as u8, value).map(drop)
    }
}
