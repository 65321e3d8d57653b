//! The instructions of VMX that aren't the switch, and the current control structure.

use crate::cpu::msr;
use core::arch::asm;
use vmx::{Area, Capabilities, Failure, FeatureControl, Field, Refused, field};
use x86_64::registers::control::{Cr4, Cr4Flags};

/// This core's current control structure.
pub struct Current;

impl Area for Current {
    #[inline(always)]
    fn read(&self, field: Field) -> u64 {
        let value: u64;
        // SAFETY: whoever has a `Current` made one current on this core; the fields of
        // `vmx::field` are there on every CPU that `supported` took.
        unsafe {
            asm!("vmread {}, {}", out(reg) value, in(reg) field.encoding(), options(nostack));
        }
        value
    }

    #[inline(always)]
    fn write(&mut self, field: Field, value: u64) {
        // SAFETY: as above; what is written is used at an entry, which is the switch's affair.
        unsafe {
            asm!("vmwrite {}, {}", in(reg) field.encoding(), in(reg) value, options(nostack));
        }
    }
}

/// Executes an instruction whose operand is an address in memory.
macro_rules! pointed {
    ($name:literal, $address:expr) => {{
        let address: u64 = $address;
        let failed: u8;
        // SAFETY: the address is that of a page of our own with the CPU's revision in it, and what
        // the instruction needs of the core was seen to.
        unsafe {
            asm!(
                concat!($name, " [{}]"), "setbe {}",
                in(reg) &raw const address, out(reg_byte) failed,
                options(nostack)
            );
        }
        assert!(failed == 0, "{} of {address:#x} failed", $name);
    }};
}

/// Turns VMX on for this core, if it isn't. `region`: a page for the CPU's own use.
pub fn turn_on(region: u64, capabilities: &Capabilities) {
    let cr4 = Cr4::read_raw();
    if cr4 & Cr4Flags::VIRTUAL_MACHINE_EXTENSIONS.bits() != 0 {
        return;
    }
    // SAFETY: the register exists on every CPU with VMX; core 0's was seen not to be locked off,
    // and each core has its own.
    match FeatureControl::of(unsafe { msr::read(FeatureControl::MSR) }) {
        Ok(FeatureControl::Ready) => {}
        // SAFETY: it isn't locked.
        Ok(FeatureControl::Write(value)) => unsafe { msr::write(FeatureControl::MSR, value) },
        Err(locked) => panic!("core {}: {locked}", crate::cpu::this().index),
    }
    stamp(region, capabilities);
    // SAFETY: VMX is there; CR0 has NE, PE and PG.
    unsafe { Cr4::write_raw(cr4 | Cr4Flags::VIRTUAL_MACHINE_EXTENSIONS.bits()) };
    pointed!("vmxon", region);
}

/// A region begins with the CPU's revision.
fn stamp(region: u64, capabilities: &Capabilities) {
    // SAFETY: a page of our own, identity-mapped, which no CPU uses yet.
    unsafe { (region as *mut u32).write_volatile(capabilities.revision) };
}

/// Makes a new control structure of a page, and the current one.
pub fn create(region: u64, capabilities: &Capabilities) {
    stamp(region, capabilities);
    pointed!("vmclear", region);
    make_current(region);
}

/// Makes a control structure the current one.
pub fn make_current(region: u64) {
    pointed!("vmptrld", region);
}

/// An entry failed whose guest's state isn't the reason: what was built is wrong. The model of an
/// entry (`vmx::entry`) would name the field, and is 20 KB: it is in the test kernels.
#[cold]
pub fn failed() -> ! {
    panic!("{}", Failure(Current.read(field::INSTRUCTION_ERROR) as u32));
}

/// The guest's state is the reason: its VM ends, and what it has is told.
#[cold]
pub fn tell_of_refusal() {
    crate::memory::while_reporting(|| log::error!("{}", Refused(&Current)));
}

/// INVEPT and INVVPID of a single context.
const SINGLE: u64 = 1;

/// Drops all that this core has cached of a guest's translations.
pub fn flush(ept_pointer: u64, vpid: u16) {
    let (of_tables, of_guest) = ([ept_pointer, 0], [u64::from(vpid), 0]);
    let failed: u8;
    // SAFETY: both are there, as `supported` saw; they change what is cached, and nothing else.
    unsafe {
        asm!(
            "invept {kind}, [{tables}]", "setbe {failed}",
            "invvpid {kind}, [{guest}]", "setbe {kind:l}",
            "or {failed}, {kind:l}",
            kind = inout(reg) SINGLE => _,
            tables = in(reg) of_tables.as_ptr(),
            guest = in(reg) of_guest.as_ptr(),
            failed = out(reg_byte) failed,
            options(nostack)
        );
    }
    assert!(failed == 0, "INVEPT or INVVPID failed");
}
