//! What it costs to give a core to another vCPU: two that share one wake each other alternately,
//! in windows for the counting plugin.

use super::executed::{self, Executed};
use crate::counters::Slices;
use crate::{boot::Boot, console::check, cpu, idt, smp, wait, x2apic};

const PING: u8 = 0x45;
const PONG: u8 = 0x56;
const DEVICE: u8 = 0x61;
/// Rounds before a window: who starts later has caught up then.
const WARM: u64 = 100;
/// Rounds in a window, two switches each; the harness knows the number.
const MEASURED: u64 = 1000;

/// Wakes the other and sleeps until it answers; says whether it did. Nothing here spins: who waits
/// yields the core.
fn round() -> bool {
    let before = idt::count(PONG);
    x2apic::send(1, u64::from(PING));
    for _ in 0..WARM {
        // What came meanwhile is taken here, so that HLT isn't in vain.
        cpu::enable_interrupts();
        cpu::disable_interrupts();
        if idt::count(PONG) > before {
            return true;
        }
        cpu::halt_until_interrupt();
    }
    false
}

/// The plugin's marker (bench/plugin): a window opens or closes here.
macro_rules! marker {
    ($number:literal) => {
        // SAFETY: a NOP.
        unsafe { core::arch::asm!(".byte 0x0F, 0x1F, 0x84, 0x00", concat!(".long ", $number)) }
    };
}

/// A window as it is, and one in which a device's interrupts go to this vCPU: they are routed
/// elsewhere when it leaves, and back when it returns (`device=none`: not that one).
pub fn instructions(test: &str, boot: &Boot) {
    if super::cpus(test, boot) != Some(2) {
        return check!(test, false, "two CPUs that share a core are needed");
    }
    let executed = Executed::here(boot);
    let device = boot.option("device") != Some("none");
    let edu = if device { super::edu(test) } else { None };
    if device && edu.is_none() {
        return;
    }
    idt::on(PING, |_| {
        x2apic::complete();
        x2apic::send(0, u64::from(PONG));
    });
    for edu in [None, edu.as_ref()].into_iter().take(1 + usize::from(device)) {
        if let Some(edu) = edu {
            edu.aim_handled(DEVICE);
        }
        cpu::disable_interrupts();
        let mut came = (0..WARM).all(|_| round());
        let slices = [0, 1].map(Slices::of);
        marker!("0x45580001");
        let mut rounds = || (0..MEASURED).for_each(|_| came &= round());
        match executed {
            Some(executed) => executed::say("switch", 2 * MEASURED, executed.of(&mut rounds)),
            None => rounds(),
        }
        marker!("0x45580002");
        let slices = slices.each_ref().map(Slices::since);
        check!(test, came, "{MEASURED} answers");
        // An end of slice or a look in vain gives a few more.
        let each = MEASURED..=MEASURED + MEASURED / 20;
        check!(
            test,
            slices.iter().all(|n| each.contains(n)),
            "{slices:?} time slices for {MEASURED} each"
        );
    }
    cpu::enable_interrupts();
    check!(test, smp::starts(1) == 1, "the other one was started once");
    let Some(edu) = edu else { return };
    // With the other one asleep the device interrupts whom it is routed to, all the same.
    let once = edu.raise_and_wait(DEVICE, 1) == 1;
    wait::settle();
    check!(test, once && idt::total(DEVICE) == 1, "the device's interrupt still arrives, once");
    edu.silence();
}
