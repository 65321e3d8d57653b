//! How many instructions a CPU has executed, the guest's and the host's alike, where the machine
//! tells: the Bochs of `cli/bochs/count.patch`, asked for by `count=executed` on the command line.

use crate::{boot::Boot, console::println};
use core::arch::asm;

const OSXSAVE: u64 = 1 << 18;
/// The register of XGETBV that is none.
const EXECUTED: u32 = 0x4558;

/// Looks at the count of the CPU that it was made on.
#[derive(Clone, Copy)]
pub struct Executed(());

impl Executed {
    /// For this CPU, if the machine is said to tell.
    pub fn here(boot: &Boot) -> Option<Executed> {
        (boot.option("count") == Some("executed")).then(Executed::on_this)
    }

    /// For this CPU, on a machine that tells.
    pub fn on_this() -> Executed {
        // SAFETY: XGETBV is allowed, and nothing else changes.
        unsafe {
            asm!("mov {v}, cr4", "or {v}, {bit}", "mov cr4, {v}",
                 v = out(reg) _, bit = in(reg) OSXSAVE, options(nomem, nostack))
        };
        Executed(())
    }

    /// What this takes, beyond what it takes to look.
    pub fn of(self, act: impl FnOnce()) -> u64 {
        let begun = self.now();
        act();
        let ended = self.now();
        let looked = self.now() - ended;
        (ended - begun).saturating_sub(looked)
    }

    #[inline(always)]
    fn now(self) -> u64 {
        let (low, high): (u32, u32);
        // SAFETY: CR4 allows it, and this machine knows the register.
        unsafe {
            asm!("xgetbv", in("ecx") EXECUTED, out("eax") low, out("edx") high,
                 options(nomem, nostack, preserves_flags))
        };
        u64::from(high) << 32 | u64::from(low)
    }
}

/// Says what `times` of these took together.
pub fn say(what: &str, times: u64, instructions: u64) {
    println!("price {what} {times} {instructions}");
}
