//! Resetting the machine and switching it off.
//!
//! Guarantees: nothing of the firmware's is called or mapped before the very end, when every guest
//! has ended and its devices are reset. The firmware's code is trusted then as it was before boot.
//! Where no way works the caller goes on.

use crate::{boot, cpu, interrupts, memory};
use acpi::{Machine, Reset, ResetRegister};
use core::ptr;
use cpu::port;
use handover::{BootInfo, efi};
use plan::AtEnd;
use spin::Once;

/// How long a way has until the next one is tried.
const PATIENCE_US: u64 = 500_000;

/// The reset control register of PC chipsets: bit 1 asks for a hard reset, bit 2 going up does it.
const RESET_CONTROL: u16 = 0xCF9;
const HARD: u8 = 1 << 1;
const NOW: u8 = 1 << 2;

/// Configuration space by ports (PCI 3.0, 3.2.2.3.2).
const CONFIG_ADDRESS: u16 = 0xCF8;
const CONFIG_DATA: u16 = 0xCFC;
const CONFIG_ENABLE: u32 = 1 << 31;

/// EFI_RESET_TYPE (UEFI 8.5.1).
#[derive(Clone, Copy)]
#[repr(u32)]
enum EfiReset {
    Cold = 0,
    Shutdown = 2,
}

/// ResetSystem: type, status, and data with its length.
type ResetSystem = extern "efiapi" fn(EfiReset, usize, usize, *const ());

/// What the firmware offers.
struct Ways {
    register: Option<Reset>,
    /// Address of ResetSystem.
    efi: Option<u64>,
}

static WAYS: Once<Ways> = Once::new();

/// Notes what the firmware offers; while everything is mapped, on the boot page tables.
pub fn note(machine: &Machine, info: &BootInfo) {
    let firmware = memory::Firmware(&info.memory);
    let efi = info.system_table.and_then(|table| efi::reset_system(&firmware, table, &info.memory));
    WAYS.call_once(|| Ways { register: machine.reset, efi });
}

/// Does as the plan asks; returns if that can't be done.
pub fn leave(at_end: AtEnd) {
    let Some(ways) = WAYS.get() else { return };
    interrupts::disable();
    // SAFETY: the host itself needs nothing any more but this stack, which the boot tables map.
    unsafe { memory::on_boot_map(|| try_all(ways, at_end)) };
}

/// Tries what the plan asks for, way by way; on the boot tables.
fn try_all(ways: &Ways, at_end: AtEnd) {
    match at_end {
        AtEnd::Stay => {}
        AtEnd::PowerOff => call(ways.efi, EfiReset::Shutdown),
        AtEnd::Reset => {
            if let Some(reset) = ways.register {
                write(reset);
            }
            port::write8(RESET_CONTROL, HARD);
            port::write8(RESET_CONTROL, HARD | NOW);
            cpu::delay_us(PATIENCE_US);
            call(ways.efi, EfiReset::Cold);
        }
    }
}

/// Writes to the reset register, and waits for what comes of it.
fn write(Reset { register, value }: Reset) {
    match register {
        ResetRegister::Port(port) => port::write8(port, value),
        ResetRegister::Memory(address) if address < boot::MAPPED => {
            // SAFETY: the boot tables map it, and it is the register that the firmware names; no
            // memory is used any more.
            unsafe { ptr::write_volatile(address as *mut u8, value) };
        }
        ResetRegister::Memory(_) => {}
        ResetRegister::Config { device, function, offset } => {
            let place = u32::from(device) << 11 | u32::from(function) << 8 | u32::from(offset & !3);
            port::write32(CONFIG_ADDRESS, CONFIG_ENABLE | place);
            port::write8(CONFIG_DATA + u16::from(offset & 3), value);
        }
    }
    cpu::delay_us(PATIENCE_US);
}

/// Calls ResetSystem, if there is one.
fn call(function: Option<u64>, kind: EfiReset) {
    let Some(address) = function.filter(|address| *address < boot::MAPPED) else { return };
    // SAFETY: `note` saw that the firmware has its ResetSystem there, in memory of its runtime
    // services, which nobody else ever had. It is called as it is to be without a virtual map: one
    // core, interrupts off, everything mapped one to one.
    unsafe {
        let reset: ResetSystem = core::mem::transmute(address);
        reset(kind, 0, 0, ptr::null());
    }
}
