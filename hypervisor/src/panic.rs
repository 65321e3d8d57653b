//! How the hypervisor ends: done, refused to boot, or panicked.
//!
//! Guarantees: a panic stops the other cores and says who, where and what on the
//! raw UART and on the screen, with no lock, no heap and no ring; the first panic is the one
//! that is told.

use crate::{
    console::{self, uart},
    cpu::{self, NO_VM, PerCpu, port, x2apic},
    memory, power,
};
use alloc::string::ToString;
use core::{
    arch::asm,
    fmt::{self, Display, Formatter},
    panic::PanicInfo,
    sync::atomic::{AtomicU64, Ordering},
};
use plan::AtEnd;
use proto::{
    Record,
    exit::{DONE, PANICKED, PORT, REFUSED},
};

/// 0, or 1 + the APIC id of the core whose panic is told.
static PANICKING: AtomicU64 = AtomicU64::new(0);

/// Every VM ended and was reported.
pub fn finish(at_end: AtEnd) -> ! {
    if at_end != AtEnd::Stay {
        console::record(&Record::Leaving);
        console::flush();
        uart::drain();
        power::leave(at_end);
        log::warn!(
            "the machine stands still: nothing that the firmware offers does what the plan asks"
        );
    }
    console::flush();
    exit(DONE)
}

/// Reports why the hypervisor can't do what it is to do, and ends.
pub fn refused(reason: &dyn Display) -> ! {
    log::error!("{reason}");
    memory::while_reporting(|| console::record(&Record::Refused { reason: reason.to_string() }));
    console::flush();
    exit(REFUSED)
}

fn exit(code: u32) -> ! {
    uart::drain();
    // Where there is no such device, the machine stands still.
    port::write32(PORT, code);
    halt()
}

fn halt() -> ! {
    loop {
        // SAFETY: standing still for good is what is wanted.
        unsafe { asm!("cli", "hlt", options(nomem, nostack)) };
    }
}

/// Called by the NMI handler: a core that panics has the others stop.
pub fn halt_if_stopping() {
    if PANICKING.load(Ordering::Acquire) != 0 {
        halt();
    }
}

#[panic_handler]
fn panic(info: &PanicInfo) -> ! {
    let me = 1 + u64::from(cpu::apic_id());
    match PANICKING.compare_exchange(0, me, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {}
        // A panic while telling a panic: what was told has to do.
        Err(owner) if owner == me => exit(PANICKED),
        Err(_) => halt(),
    }
    // GS may be a guest's.
    let cpu = cpu::find();
    if cpu.is_some() {
        x2apic::send_nmi_to_others();
        // Until they have stopped, core 0 may go on with its frame.
        cpu::delay_us(1_000);
    }
    let words = Words { info, core: cpu.map_or(0, |cpu| cpu.index), vm: cpu.map_or(NO_VM, vm_of) };
    console::last_words(format_args!("\n{words}\n"));
    exit(PANICKED)
}

fn vm_of(cpu: &PerCpu) -> usize {
    cpu.vm.load(Ordering::Relaxed)
}

/// Who panicked, where, and why.
struct Words<'a> {
    info: &'a PanicInfo<'a>,
    core: usize,
    vm: usize,
}

impl Display for Words<'_> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        write!(f, "exitless: panic on core {}", self.core)?;
        if self.vm != NO_VM {
            write!(f, " (VM {})", self.vm)?;
        }
        if let Some(place) = self.info.location() {
            write!(f, " at {place}")?;
        }
        write!(f, ": {}", self.info.message())
    }
}
