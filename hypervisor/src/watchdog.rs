//! The watchdog that firmware may have left running (WDAT): stopped, or fed by core 0.
//!
//! Guarantees: only registers that the table names are touched, and none in memory. One that can't
//! be stopped resets the machine when core 0 no longer comes round, after a panic too: that is what
//! it is for. Watchdogs that no table names aren't known; UEFI's own is the loader's business.

use crate::cpu::{self, port, rdtsc};
use crate::memory;
use acpi::{Machine, Place, Quieted, Watchdog, WatchdogRegister, WatchdogRegisters};
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};
use handover::MemoryMap;
use spin::Once;

/// One that has to be fed.
struct Fed {
    watchdog: Watchdog,
    every_ms: u32,
    /// When it was, by the TSC.
    last: AtomicU64,
}

static FED: Once<Fed> = Once::new();

/// Stops the watchdog, or feeds it from now on; while booting, once the final page tables are in
/// use.
pub fn quiet(machine: &Machine, map: &MemoryMap) {
    let watchdog = match &machine.watchdog {
        Some(Ok(watchdog)) => watchdog,
        Some(Err(error)) => {
            log::warn!("firmware's watchdog, if it runs, is left to itself: {error}");
            return;
        }
        None => return,
    };
    for register in watchdog.registers() {
        let (Place::Memory(address), bytes) = (register.place, u64::from(register.width)) else {
            continue;
        };
        let lies = match () {
            () if !memory::is_physical(address, bytes) => "isn't where this CPU has addresses",
            () if map.has_memory(&(address..address.saturating_add(bytes))) => "lies in memory",
            () => "",
        };
        if !lies.is_empty() {
            log::warn!(
                "firmware's watchdog, if it runs, is left to itself: a register of it, at \
                 {address:#x}, {lies}"
            );
            return;
        }
        memory::map_mmio(address, bytes);
    }
    match watchdog.quiet(&mut Mapped) {
        Quieted::Idle => log::info!("firmware's watchdog (WDAT) doesn't run"),
        Quieted::Stopped => log::info!("firmware's watchdog (WDAT) was running, and is stopped"),
        Quieted::Fed { every_ms } => {
            log::info!("firmware's watchdog (WDAT) can't be stopped: fed every {every_ms} ms");
            let last = AtomicU64::new(rdtsc());
            FED.call_once(|| Fed { watchdog: watchdog.clone(), every_ms, last });
        }
        Quieted::Running => log::warn!(
            "firmware's watchdog may run, and its table (WDAT) names no way to stop or feed it: it \
             may reset the machine"
        ),
    }
}

/// Core 0, at each tick of its timer: feeds the watchdog, if it is time.
pub fn feed() {
    let Some(fed) = FED.get() else { return };
    let now = rdtsc();
    let interval = cpu::tsc_hz() / 1_000 * u64::from(fed.every_ms);
    if now.wrapping_sub(fed.last.load(Ordering::Relaxed)) >= interval {
        fed.last.store(now, Ordering::Relaxed);
        fed.watchdog.feed(&mut Mapped);
    }
}

/// The registers, once [`quiet`] has looked where they are and mapped them.
struct Mapped;

impl WatchdogRegisters for Mapped {
    fn read(&mut self, register: WatchdogRegister) -> u32 {
        match (register.place, register.width) {
            (Place::Port(port), 1) => port::read8(port).into(),
            (Place::Port(port), 2) => port::read16(port).into(),
            (Place::Port(port), _) => port::read32(port),
            // SAFETY: `quiet` saw that no memory is there, and mapped it; firmware says that it is
            // a register of the watchdog's, and the parser that it is aligned.
            (Place::Memory(address), width) => unsafe {
                match width {
                    1 => ptr::read_volatile(address as *const u8).into(),
                    2 => ptr::read_volatile(address as *const u16).into(),
                    _ => ptr::read_volatile(address as *const u32),
                }
            },
        }
    }

    fn write(&mut self, register: WatchdogRegister, value: u32) {
        match (register.place, register.width) {
            (Place::Port(port), 1) => port::write8(port, value as u8),
            (Place::Port(port), 2) => port::write16(port, value as u16),
            (Place::Port(port), _) => port::write32(port, value),
            // SAFETY: as in `read`; no memory of this program is behind it.
            (Place::Memory(address), width) => unsafe {
                match width {
                    1 => ptr::write_volatile(address as *mut u8, value as u8),
                    2 => ptr::write_volatile(address as *mut u16, value as u16),
                    _ => ptr::write_volatile(address as *mut u32, value),
                }
            },
        }
    }
}
