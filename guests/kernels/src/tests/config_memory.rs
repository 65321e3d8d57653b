//! Configuration space in memory, where the MCFG says: the same registers as by the ports.

use crate::{acpi::Tables, boot::Boot, console::check, cpu, edu::Edu, pci, pci::Function};

/// Where the MCFG has the first window's address, its segment, and its first and last bus.
const BASE: u64 = 44;
const SEGMENT: u64 = 52;
const BUSES: u64 = 54;
/// Registers by the ports, and with those in memory alone.
const REGISTERS: u64 = 0x100;
const EXTENDED: u64 = 0x1000;
const COMMAND: u64 = pci::COMMAND as u64;
const MASTER: u32 = 1 << 2;

/// Every function of the bus, each register of those that are there, by every width.
pub fn config_memory(test: &str, boot: &Boot) {
    let Some(mcfg) = Tables::find(boot.rsdp).and_then(|tables| tables.get(b"MCFG")) else {
        return check!(test, false, "no MCFG");
    };
    let (base, buses) = (mcfg.number(BASE, 8), mcfg.number(BUSES, 2));
    check!(test, (mcfg.number(SEGMENT, 2), buses) == (0, 0), "segment 0, bus 0 alone");
    let (mut there, mut wrong) = (0, [0u32; 4]);
    for function in Function::all() {
        let space = base + (u64::from(function.device) << 15 | u64::from(function.function) << 12);
        let absent = !function.present();
        let beyond = if absent { !0 } else { 0 };
        wrong[0] += u32::from(cpu::mmio_read(space + REGISTERS) != beyond);
        if absent {
            wrong[1] += u32::from(cpu::mmio_read(space) != !0);
            continue;
        }
        there += 1;
        for register in (0..REGISTERS).step_by(4) {
            let value = function.read(register as u8);
            let at = space + register;
            let words = [0, 2].map(|n| u32::from(cpu::mmio_read16(at + n)) << (8 * n));
            let bytes = [0, 1, 2, 3].map(|n| u32::from(cpu::mmio_read8(at + n)) << (8 * n));
            let sums = [words.iter().sum(), bytes.iter().sum(), cpu::mmio_read(at)];
            wrong[2] += u32::from(sums != [value; 3]);
        }
        cpu::mmio_write(space + EXTENDED - 4, !0);
        wrong[3] += u32::from(cpu::mmio_read(space + EXTENDED - 4) != 0);
    }
    check!(test, there >= 2, "{there} functions");
    check!(test, wrong == [0; 4], "otherwise than by the ports: {wrong:?}");
    written(test, base);
}

/// What is written there is what the ports read, and nothing else is.
fn written(test: &str, base: u64) {
    let Some(edu) = Edu::find() else { return check!(test, false, "no edu device") };
    let function = edu.function;
    let space = base + (u64::from(function.device) << 15);
    let before = function.read(pci::COMMAND);
    let master = |on: bool| if on { before | MASTER } else { before & !MASTER };
    for on in [false, true, false] {
        cpu::mmio_write8(space + COMMAND, master(on) as u8);
        let found = function.read(pci::COMMAND);
        check!(test, found == master(on), "bus mastering {on}: {found:#x}");
    }
    // Not one of 1, 2 or 4 bytes in a register's place.
    cpu::mmio_write64(space + COMMAND, master(true).into());
    cpu::mmio_write(space + COMMAND - 2, master(true) << 16);
    let found = function.read(pci::COMMAND);
    check!(test, found == master(false), "by others than 4 bytes: {found:#x}");
    cpu::mmio_write(space + COMMAND, before);
    check!(test, function.read(pci::COMMAND) == before, "as before");
}
