//! The registers of xAPIC mode: a page of memory (SDM vol. 3, 11.4.1; APM vol. 2, 16.3.2).
//!
//! Each register is the first four bytes of sixteen; the other twelve hold nothing. Stores count
//! when they are of these four bytes and of nothing else, as the manuals want them; loads may be of
//! a part. A register that isn't there reads zero, ignores what is written and is an error in ESR.
//! Bits that can't be written keep their value. The id is the vCPU's number, whatever is written.

use super::*;

const ARBITRATION_PRIORITY: u8 = 0x09;
const REMOTE_READ: u8 = 0x0C;
const DFR: u8 = 0x0E;
const ICR_HIGH: u8 = 0x31;

const LOW: u64 = 0xFFFF_FFFF;
/// ICR's upper half: the destination.
const ICR_DESTINATION: u64 = 0xFF << 56;
/// DFR: the model, and its values; the bits below read one.
const DFR_FLAT: u32 = 0xF;
const DFR_REST: u32 = 0x0FFF_FFFF;

impl LocalApic {
    /// Reads `size` bytes at `offset` of the page.
    pub fn load(&mut self, offset: u16, size: u8, core: &impl Core) -> u64 {
        let (register, within) = ((offset >> 4) as u8, offset & 0xF);
        if within >= 4 {
            return 0;
        }
        let value = match register {
            ID => self.id << 24,
            LDR => u32::from(self.logical) << 24,
            DFR => (if self.clusters { 0 } else { DFR_FLAT }) << 28 | DFR_REST,
            ICR => self.icr as u32,
            ICR_HIGH => (self.icr >> 32) as u32,
            // Left over from older ones, or only to be written.
            ARBITRATION_PRIORITY | REMOTE_READ | EOI => 0,
            _ => self.value(register, core).unwrap_or_else(|| {
                self.no_register();
                0
            }),
        };
        let kept = match size {
            1 => 0xFF,
            2 => 0xFFFF,
            _ => LOW,
        };
        u64::from(value) >> (within * 8) & kept
    }

    /// Writes `size` bytes at `offset` of the page.
    pub fn store(
        &mut self,
        offset: u16,
        size: u8,
        value: u64,
        core: &mut impl Core,
    ) -> WriteEffect {
        if size != 4 || offset & 0xF != 0 {
            return WriteEffect::None;
        }
        let (register, value) = ((offset >> 4) as u8, value as u32);
        match register {
            ICR => {
                let command = self.icr & !LOW | u64::from(value);
                return self.command(command, Destination::of_xapic(command));
            }
            ICR_HIGH => self.icr = self.icr & LOW | u64::from(value) << 32 & ICR_DESTINATION,
            LDR => self.logical = (value >> 24) as u8,
            DFR => self.clusters = value >> 28 == 0,
            ID | ARBITRATION_PRIORITY | REMOTE_READ => {}
            _ => match writable(register) {
                Some(bits) => return self.set(register, value & bits, core),
                None if self.value(register, core).is_some() => {}
                None => self.no_register(),
            },
        }
        WriteEffect::None
    }

    fn no_register(&mut self) {
        if let Some(vector) = self.error(ERROR_REGISTER) {
            self.requested.insert(vector);
        }
    }
}
