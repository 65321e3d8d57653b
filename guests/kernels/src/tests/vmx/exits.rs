//! Instructions that exit, one after the other in one guest, each stepped over by the length that
//! the processor tells.

use super::structure::{Came, Current, long};
use crate::console::check;
use core::arch::global_asm;
use delivery::{Event, EventKind, Raised};
use vendor::{Exit, PortAccess};
use vmx::controls::{pin, primary, secondary};
use vmx::{Area, Delivered, decode, field};

global_asm!(
    ".global vmx_guest",
    "vmx_guest:",
    "cpuid",
    "hlt",
    "out 0x80, al",
    // Registers are those that the switch leaves.
    "mov edx, 0x71",
    "in eax, dx",
    "mov edx, 0x71",
    "rep outsb",
    "rdmsr",
    "wrmsr",
    "invd",
    "wbinvd",
    "xsetbv",
    "rdpmc",
    "monitor",
    "mwait",
    "vmxoff",
    "lidt [rsp]",
    "sidt [rsp]",
    "str ax",
    "mov cr0, rax",
    "vmcall",
    "int 0x50",
);

unsafe extern "C" {
    static vmx_guest: u8;
}

const fn port(port: u16, size: u8, input: bool) -> PortAccess {
    PortAccess { port, size, input }
}

/// In the order of the instructions; of IN and OUT, what follows is filled in.
const EXITS: [Exit; 19] = [
    Exit::Cpuid,
    Exit::Halt,
    Exit::Io { access: port(0x80, 1, false), string: false, next: 0 },
    Exit::Io { access: port(0x71, 4, true), string: false, next: 0 },
    Exit::Io { access: port(0x71, 1, false), string: true, next: 0 },
    Exit::MsrRead,
    Exit::MsrWrite,
    Exit::FlushCaches,
    Exit::FlushCaches,
    Exit::Xsetbv,
    Exit::Forbidden,
    Exit::Undefined,
    Exit::Undefined,
    Exit::Undefined,
    Exit::IdtLoad,
    Exit::LeaveEli,
    Exit::LeaveEli,
    Exit::ControlLoad,
    Exit::Hypercall,
];

/// CR4: XSETBV is there.
const OSXSAVE: u32 = 1 << 18;
/// A vector without a gate.
const ABSENT: u8 = 0x50;
const NOT_PRESENT: u8 = 11;
const PROTECTION: u8 = 13;

pub fn all(test: &str, current: &mut Current) {
    let first = &raw const vmx_guest as u64;
    current.build(long(first));
    for (field, bits) in [
        (field::PRIMARY_CONTROLS, primary::HLT),
        (field::SECONDARY_CONTROLS, secondary::DESCRIPTOR_TABLES),
        (field::GUEST_CR4, OSXSAVE),
    ] {
        let word = current.read(field);
        current.write(field, word | u64::from(bits));
    }
    for expected in EXITS {
        let came = current.enter();
        let rip = current.read(field::GUEST_RIP);
        let next = rip + current.read(field::INSTRUCTION_LENGTH);
        let expected = match expected {
            Exit::Io { access, string, .. } => Exit::Io { access, string, next },
            other => other,
        };
        let exit = decode(current);
        let right = came == Came::Left && exit == expected;
        check!(test, right, "{exit:?} at {:#x}", rip - first);
        if !right {
            return check!(test, false, "{came:?}, and not {expected:?}");
        }
        current.write(field::GUEST_RIP, next);
    }
    hidden(test, current);
    timer(test, current);
}

/// A gate that is absent, met by INT n and by an interrupt that is raised; and the same beyond the
/// IDT's limit.
fn hidden(test: &str, current: &mut Current) {
    static GATES: [u64; 2 * (ABSENT as usize + 1)] = {
        let mut gates = [0; 2 * (ABSENT as usize + 1)];
        // An interrupt gate that isn't present.
        gates[2 * ABSENT as usize] = 0xE << 40 | 0x08 << 16;
        gates
    };
    let bits = 1 << NOT_PRESENT | 1 << PROTECTION;
    let bitmap = current.read(field::EXCEPTION_BITMAP);
    current.write(field::EXCEPTION_BITMAP, bitmap | bits);
    current.write(field::GUEST_IDTR_BASE, GATES.as_ptr() as u64);
    let rip = current.read(field::GUEST_RIP);
    let end = u64::from(ABSENT) * 16;
    for (name, limit, vector) in
        [("absent", end + 15, NOT_PRESENT), ("beyond the limit", end + 14, PROTECTION)]
    {
        current.write(field::GUEST_IDTR_LIMIT, limit);
        let software = Event { kind: EventKind::Software, ..Event::interrupt(ABSENT) };
        let error_code = u32::from(ABSENT) << 3 | 2;
        let raised = Raised { vector, error_code, address: 0 };
        let (came, exit) = (current.enter(), decode(current));
        let right = exit == Exit::Fault { raised, event: Some(software) };
        check!(test, came == Came::Left && right, "INT n, its gate {name}: {exit:?}");
        current.write(field::GUEST_RFLAGS, 0x202);
        Delivered::new(Event::interrupt(ABSENT), 0).raise(current);
        let (came, exit) = (current.enter(), decode(current));
        // The event came from outside.
        let raised = Raised { error_code: error_code | 1, ..raised };
        let right = exit == Exit::Fault { raised, event: Some(Event::interrupt(ABSENT)) };
        check!(test, came == Came::Left && right, "an interrupt, its gate {name}: {exit:?}");
        let again = Delivered::interrupted(current);
        let same = again == Some(Delivered::new(Event::interrupt(ABSENT), 0));
        check!(test, same, "it can be raised again: {again:?}");
        let stays = current.read(field::GUEST_RIP) == rip;
        check!(test, stays, "the guest is where it was");
    }
}

/// The preemption timer at 0: no instruction is executed.
fn timer(test: &str, current: &mut Current) {
    let word = current.read(field::PIN_CONTROLS);
    current.write(field::PIN_CONTROLS, word | u64::from(pin::PREEMPTION_TIMER));
    current.write(field::PREEMPTION_TIMER, 0);
    let rip = &raw const vmx_guest as u64;
    current.write(field::GUEST_RIP, rip);
    let (came, exit) = (current.enter(), decode(current));
    let stays = current.read(field::GUEST_RIP) == rip;
    check!(test, came == Came::Left && exit == Exit::TimeUp && stays, "timer 0: {exit:?}");
}
