//! How the drivers of IOMMUs reach a unit's registers and the memory that they share with it.

use crate::memory;
use iommu::Registers;

/// Registers in memory.
pub struct Mmio(pub u64);

impl Registers for Mmio {
    fn read32(&mut self, offset: u32) -> u32 {
        // SAFETY: the driver stays within the register window mapped when it was found, aligned.
        unsafe { core::ptr::read_volatile((self.0 + offset as u64) as *const u32) }
    }

    fn read64(&mut self, offset: u32) -> u64 {
        // SAFETY: as in `read32`.
        unsafe { core::ptr::read_volatile((self.0 + offset as u64) as *const u64) }
    }

    fn write32(&mut self, offset: u32, value: u32) {
        // SAFETY: as in `read32`; what the write makes the unit do is the driver's to get right.
        unsafe { core::ptr::write_volatile((self.0 + offset as u64) as *mut u32, value) }
    }

    fn write64(&mut self, offset: u32, value: u64) {
        // SAFETY: as in `write32`.
        unsafe { core::ptr::write_volatile((self.0 + offset as u64) as *mut u64, value) }
    }
}

/// Memory for the unit's tables: identity-mapped, never given back.
pub struct Frames;

impl iommu::Memory for Frames {
    fn read64(&mut self, pa: u64) -> u64 {
        // SAFETY: the driver and its audit pass addresses inside frames from `allocate` only.
        unsafe { core::ptr::read_volatile(pa as *const u64) }
    }

    fn write64(&mut self, pa: u64, value: u64) {
        // SAFETY: as in `read64`.
        unsafe { core::ptr::write_volatile(pa as *mut u64, value) }
    }

    fn write128(&mut self, pa: u64, low: u64, high: u64) {
        // What is there is taken for what it is compared with: the second round at the latest finds
        // it so, unless the unit writes, too.
        let (mut old_low, mut old_high) = (self.read64(pa), self.read64(pa + 8));
        let mut done = 0_u8;
        while done == 0 {
            // SAFETY: as in `read64`, aligned to 16 as the driver promises; every CPU with SVM has
            // the instruction. RBX, which the compiler keeps for itself and may have any operand in
            // that isn't named, has its value again after; the address is in RDI, so not there.
            unsafe {
                core::arch::asm!(
                    "xchg rbx, {low}",
                    "lock cmpxchg16b [rdi]",
                    "mov rbx, {low}",
                    "sete {done}",
                    low = inout(reg) low => _,
                    in("rdi") pa,
                    done = out(reg_byte) done,
                    in("rcx") high,
                    inout("rax") old_low,
                    inout("rdx") old_high,
                    options(nostack)
                );
            }
        }
    }

    fn write_back(&mut self, pa: u64, bytes: u64) {
        write_back(pa, bytes);
    }

    fn allocate(&mut self, frames: u64) -> Option<u64> {
        memory::allocate(frames * 4096, 4096)
    }
}

/// Writes memory back from the CPU's caches, for units that don't snoop them.
pub fn write_back(pa: u64, bytes: u64) {
    for line in (pa & !63..pa + bytes).step_by(64) {
        // SAFETY: flushing a cache line of our own memory changes nothing that can be seen.
        unsafe { core::arch::asm!("clflush [{}]", in(reg) line, options(nostack)) };
    }
    // SAFETY: orders the flushes before what follows.
    unsafe { core::arch::asm!("mfence", options(nostack)) };
}
