//! Has the host plant a wrong entry in what confines this VM (`what=N`), for its audit to find: in
//! the image that is made for it, where a hypercall does that. The VM is stopped for it; if it is
//! about no VM (`told`), it goes on until a byte on its console says that the finding was told.

use super::svm;
use crate::{boot::Boot, console, console::check, console::println, cpu, edu::Edu, idt, wait};
use core::arch::asm;

/// RAX of the hypercall.
const HYPERCALL: u64 = u64::from_le_bytes(*b"PLANTED!");

fn plant(what: u64) {
    println!("planting {what}");
    idt::on(6, |frame| frame.rip += 3);
    // SAFETY: VMMCALL raises #UD, whose handler steps over it.
    unsafe {
        asm!(".byte 0x0F, 0x01, 0xD9", in("rax") HYPERCALL, in("rcx") what, options(nostack));
    }
}

/// Ends, and has the host send its core interrupts of vectors 16 to 31 when it is out of the guest:
/// the host has to bear that, and the VM beside this one tells whether it does. With `fault` the
/// host then runs into an exception there, which must not pass for one of the interrupts.
pub fn late(test: &str, boot: &Boot) {
    plant(if boot.option("fault").is_some() { 23 } else { 22 });
    check!(test, idt::count(6) == 1, "the hypercall was refused, and done");
}

/// The same about a guest of its own, whose tables have translations by then.
pub fn inner(test: &str, boot: &Boot) {
    if svm::touched(test) {
        plant(boot.option("what").and_then(|n| n.parse().ok()).unwrap_or(25));
        let found = wait::patiently(|| console::typed().is_some());
        check!(test, found && boot.option("told").is_some(), "it goes on, found out: {found}");
    }
}

/// Plants, and goes on until it is stopped or told.
pub fn planted(test: &str, boot: &Boot) {
    let what = boot.option("what").and_then(|n| n.parse().ok()).unwrap_or(0u64);
    let Some(edu) = Edu::find() else { return check!(test, false, "no edu device") };
    edu.aim_handled(0x40);
    cpu::enable_interrupts();
    let n = edu.raise_and_wait(0x40, 3);
    check!(test, n == 3, "{n} of 3 interrupts came before");
    plant(what);
    let found = wait::patiently(|| console::typed().is_some());
    check!(test, found && boot.option("told").is_some(), "it goes on, found out: {found}");
}
