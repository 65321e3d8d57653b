//! The machine is what it says: memory map, CPUID, ACPI, x2APIC, ledger page; and
//! power-off and the three ways to reset end it.

use crate::{
    acpi::Tables,
    boot::{Boot, kernel_end},
    console::check,
    counters, cpu, power, x2apic,
};

/// Looks at everything the loader and firmware promise.
pub fn hello(test: &str, boot: &Boot) {
    memory(test, boot);
    let leaf = cpu::cpuid(1);
    check!(test, leaf.ecx >> 21 & 1 == 1, "CPUID has x2APIC");
    check!(test, x2apic::enabled(), "x2APIC mode is on");
    let bare = counters::policy() == counters::Policy::Bare;
    check!(test, counters::under_exitless() != bare, "hypervisor leaf fits policy=");
    check!(test, bare || leaf.ecx >> 31 == 1, "CPUID says hypervisor");
    let svm = cpu::cpuid(0x8000_0001).ecx >> 2 & 1 == 1;
    let vmx = leaf.ecx >> 5 & 1 == 1;
    check!(test, bare || !svm && !vmx, "a guest is offered neither SVM nor VMX");
    check!(test, counters::page_is_sane(), "ledger page");
    match Tables::find(boot.rsdp) {
        Some(tables) => acpi(test, &tables),
        None => check!(test, false, "no RSDP, or a table's checksum is wrong"),
    }
    let (start, end) = (cpu::tsc(), cpu::tsc());
    check!(test, end > start, "the time-stamp counter runs");
}

fn memory(test: &str, boot: &Boot) {
    let usable = boot.regions().iter().filter(|r| r.kind == 1).map(|r| r.bytes).sum::<u64>();
    check!(test, usable >= 16 << 20, "{} KiB of usable memory", usable >> 10);
    let regions = boot.regions();
    // A kernel that places its trampoline by these words must find memory there.
    let (segment, kib) = (u64::from(cpu::word(0x40E)), u64::from(cpu::word(0x413)));
    let low = regions.iter().find(|r| r.kind == 1 && r.start == 0).map_or(0, |r| r.bytes);
    let agrees = segment << 4 == kib << 10 && kib >= 512 && (kib << 10).abs_diff(low) < 1024;
    check!(test, agrees, "BIOS data area: {segment:#x}:0, {kib} KiB, and the map has {low:#x}");
    let overlap = regions.iter().enumerate().any(|(i, a)| {
        regions[i + 1..].iter().any(|b| a.start < b.start + b.bytes && b.start < a.start + a.bytes)
    });
    check!(test, !overlap, "{} regions, none overlaps another", regions.len());
    let holds = |r: &crate::boot::Region| {
        r.kind == 1 && r.start <= 0x10_0000 && r.start + r.bytes >= kernel_end()
    };
    check!(test, regions.iter().any(holds), "the kernel lies in usable memory");
    let free = boot.free_memory();
    let good = [free.start, free.end - 0x1000].iter().all(|a| {
        let word = *a as *mut u64;
        // SAFETY: the loader says this memory is free; both ends below 4 GiB.
        unsafe {
            word.write_volatile(0x5AFE_5AFE ^ a);
            word.read_volatile() == 0x5AFE_5AFE ^ a
        }
    });
    check!(test, good, "free memory {:#x} to {:#x} holds what is written", free.start, free.end);
}

fn acpi(test: &str, tables: &Tables) {
    check!(test, true, "RSDP at {:#x}, {} tables, checksums right", tables.rsdp, tables.count());
    let id = x2apic::id();
    let listed = tables.processors().any(|p| p == id);
    check!(test, listed, "the MADT lists this CPU, APIC id {id}");
    match tables.fadt() {
        Some(fadt) => {
            let reduced = fadt.reduced || counters::policy() == counters::Policy::Bare;
            check!(test, reduced, "hardware-reduced ACPI");
            check!(test, fadt.dsdt.is(b"DSDT"), "DSDT of {} bytes", fadt.dsdt.length());
        }
        None => check!(test, false, "no FADT, or its DSDT's checksum is wrong"),
    }
}

/// Powers off by ACPI.
pub fn power_off(test: &str, boot: &Boot) {
    match Tables::find(boot.rsdp).and_then(|t| t.fadt()) {
        Some(fadt) => {
            check!(test, true, "powering off");
            power::off(&fadt)
        }
        None => check!(test, false, "no FADT"),
    }
}

/// Resets by the FADT's reset register.
pub fn reset_acpi(test: &str, boot: &Boot) {
    match Tables::find(boot.rsdp).and_then(|t| t.fadt()) {
        Some(fadt) => {
            check!(test, true, "resetting through port {:#x}", fadt.reset.0);
            cpu::outb(fadt.reset.0, fadt.reset.1);
            cpu::halt_forever()
        }
        None => check!(test, false, "no FADT"),
    }
}

/// Resets by the chipset's reset control register.
pub fn reset_chipset(test: &str, _: &Boot) {
    check!(test, true, "resetting through port 0xcf9");
    cpu::outb(0xCF9, 0x06);
    cpu::halt_forever()
}

/// Resets by the keyboard controller.
pub fn reset_keyboard(test: &str, _: &Boot) {
    check!(test, true, "resetting through port 0x64");
    cpu::outb(0x64, 0xFE);
    cpu::halt_forever()
}
