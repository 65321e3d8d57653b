//! The guest-physical address space: what is there and read-only, what ends where, page tables that
//! make no sense.

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
use machine::{attempt, boot::Boot, cpu, idt, random::Random};

const LEDGER: u64 = 0xFED0_0000;
const IOAPIC: u64 = 0xFEC0_0000;
const ROM: u64 = 0xE_0000;
const SEED: u64 = 0x59A;
/// A gigabyte of linear addresses that nothing else uses.
const SPARE: u64 = 0x50_0000_0000;

/// Stores of every width to the page of its own counters and beyond it.
pub fn ledger(_: &str, _: &Boot) {
    for offset in (0..4096).step_by(8).chain((4096..0x2_0000).step_by(4096)) {
        cpu::mmio_write(LEDGER + offset, 0);
        // SAFETY: read-only, or not there.
        unsafe {
            asm!("mov byte ptr [{a}], 0", "mov word ptr [{a}], 0", a = in(reg) LEDGER + offset)
        }
    }
}

/// Accesses that begin on one side of an end and go on beyond it.
pub fn edges(_: &str, boot: &Boot) {
    let end = boot.memory_end();
    for edge in [end, LEDGER, LEDGER + 4096, IOAPIC, IOAPIC + 4096, 0xFEE0_0000, 1 << 32, ROM] {
        for before in 1..8 {
            let at = edge - before;
            if at < end - 4096 && at > 0x10_0000 {
                continue;
            }
            let _ = attempt!(at, "mov rax, [{v}]");
            let _ = attempt!(at, "mov [{v}], rax");
            let _ = attempt!(at, "mov eax, [{v}]");
        }
    }
}

/// The IOAPIC by every width, by read-modify-write and exchange, at every offset.
pub fn widths(_: &str, _: &Boot) {
    let mut random = Random::new(SEED);
    for _ in 0..1000 {
        let at = IOAPIC + (random.number() & 0xFF);
        let _ = attempt!(at, "mov al, [{v}]");
        let _ = attempt!(at, "mov [{v}], al");
        let _ = attempt!(at, "mov ax, [{v}]");
        let _ = attempt!(at, "movzx eax, byte ptr [{v}]");
        let _ = attempt!(at, "mov rax, [{v}]");
        let _ = attempt!(at, "mov [{v}], rax");
        let _ = attempt!(at, "or dword ptr [{v}], 1");
        let _ = attempt!(at, "xchg [{v}], eax");
    }
}

#[repr(C, align(4096))]
struct PageTable([AtomicU64; 512]);
static DIRECTORY: PageTable = PageTable([const { AtomicU64::new(0) }; 512]);

unsafe extern "C" {
    static pdpt: [AtomicU64; 512];
}

/// Entries with each bit set that isn't an address, that lead to themselves; walked by loads and by
/// the host, which has to read an instruction's bytes and a port's string through them. (Tables
/// where nothing is end the VM.)
pub fn tables(_: &str, _: &Boot) {
    let own = DIRECTORY.0.as_ptr() as u64;
    let slot = (SPARE >> 30) as usize;
    for i in 0..600u64 {
        let bits = [1 << (i % 12), 1 << (52 + i % 12), 1 << (i % 12) | 1 << (52 + i % 11)];
        let entry = own | 3 | bits[i as usize % 3];
        DIRECTORY.0[0].store(entry, SeqCst);
        // SAFETY: the boot code's table of the first 512 GiB; only 0 to 4 GiB are in use.
        unsafe { pdpt[slot].store(if i % 7 == 0 { entry } else { own | 3 }, SeqCst) }
        cpu::invalidate_page(SPARE);
        let _ = attempt!(SPARE, "mov eax, [{v}]");
        idt::expect_fault();
        // SAFETY: reads one byte, or faults and resumes at label 2.
        unsafe {
            asm!("lea {t}, [rip + 2f]", "mov [{r}], {t}", "outsb", "2:", t = out(reg) _,
                 r = in(reg) idt::recovery(), inout("rsi") SPARE => _, in("dx") 0x80u16)
        }
        let _ = idt::take_fault();
    }
    // SAFETY: as above.
    unsafe { pdpt[slot].store(0, SeqCst) }
    cpu::invalidate_page(SPARE);
}
