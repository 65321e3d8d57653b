//! A watchdog that firmware left running, as the WDAT tells: the ICH9's TCO timer, which QEMU has,
//! started by an option ROM. A guest that runs for longer than the watchdog would let it must come
//! to its end: with a table by which the watchdog can be stopped, and with one by which it can only
//! be fed.

use super::case::{Case, Special};
use super::cases::{case, heartbeat};
use anyhow::Result;
use plan::Policy;
use std::{ffi::OsString, fs, path::Path};

/// Ticks of 0.6 s until the timer expires; at the second time it resets the machine.
const TICKS: u16 = 10;
/// Some 16 seconds, of the 12 that the watchdog gives.
const BEATS: &str = "beats=320";

/// Registers of the TCO timer (ICH9 datasheet, 13.9), where SeaBIOS puts them.
const RELOAD: u16 = 0x660;
const CONTROL: u16 = 0x668;
const TIMER: u16 = 0x672;
/// In the control register: the timer is halted.
const HALT_BIT: u8 = 11;
/// General control and status, in the chipset's registers: its bit 5 keeps the TCO timer from
/// resetting anything.
const GENERAL_CONTROL: u32 = 0xFED1_F410;

/// Both of them.
pub fn all() -> Vec<Case> {
    let of = |name: &str, stops, said| {
        let case = case(format!("watchdog/{name}"), false, [heartbeat(BEATS, Policy::Eli)]);
        Case { machine: Special::Watchdog { stops }, log: vec![said], silent: true, ..case }
    };
    vec![
        of("stopped", true, "(WDAT) was running, and is stopped"),
        of("fed", false, "(WDAT) can't be stopped: fed every 1500 ms"),
    ]
}

/// QEMU's arguments; `directory` is for the table and the ROM.
pub fn arguments(directory: &Path, stops: bool) -> Result<Vec<OsString>> {
    let (table, rom) = (directory.join("wdat"), directory.join("rom"));
    fs::write(&table, body(stops))?;
    fs::write(&rom, option_rom())?;
    let table = format!("sig=WDAT,rev=1,data={}", table.display());
    let arguments = ["-global", "ICH9-LPC.noreboot=off", "-acpitable", &table, "-option-rom"];
    Ok(arguments.into_iter().map(OsString::from).chain([rom.into()]).collect())
}

/// What the table has behind its header: 600 ms a count, and the actions of the TCO timer.
fn body(stops: bool) -> Vec<u8> {
    const COMPARE: u8 = 0;
    const COUNT: u8 = 1;
    const WRITE: u8 = 2;
    const WRITE_PART: u8 = 0x82;
    let step = |action: u8, kind: u8, port: u16, shift: u8, value: u32, mask: u32| {
        let mut bytes = vec![action, kind, 0, 0, 1, 16, shift, 2];
        bytes.extend(u64::from(port).to_le_bytes());
        bytes.extend([value, mask].iter().flat_map(|word| word.to_le_bytes()));
        bytes
    };
    let mut steps = vec![
        step(1, WRITE, RELOAD, 0, 1, 0xFFFF),
        step(5, COUNT, TIMER, 0, 0, 0x3FF),
        step(8, COMPARE, CONTROL, HALT_BIT, 0, 1),
    ];
    if stops {
        steps.push(step(11, WRITE_PART, CONTROL, HALT_BIT, 1, 1));
    }
    let mut body = vec![32, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0];
    body.extend([600, 0x3FF, 2, 1, steps.len() as u32].iter().flat_map(|w: &u32| w.to_le_bytes()));
    body.extend(steps.concat());
    body
}

/// Has the watchdog reset the machine, and starts it. The BIOS calls ROMs in real mode with
/// segments of 4 GiB.
fn option_rom() -> Vec<u8> {
    // Signature, and the length in blocks of 512 bytes.
    let mut rom = vec![0x55, 0xAA, 1];
    // mov dword [GENERAL_CONTROL], 0, by an address of 32 bits.
    rom.extend([0x66, 0x67, 0xC7, 0x05]);
    rom.extend(GENERAL_CONTROL.to_le_bytes());
    rom.extend(0u32.to_le_bytes());
    for (port, value) in [(TIMER, TICKS), (RELOAD, 1)] {
        let ([a, b], [c, d]) = (port.to_le_bytes(), value.to_le_bytes());
        // mov dx, port; mov ax, value; out dx, ax.
        rom.extend([0xBA, a, b, 0xB8, c, d, 0xEF]);
    }
    // retf
    rom.push(0xCB);
    rom.resize(511, 0);
    rom.push(rom.iter().fold(0u8, |sum, byte| sum.wrapping_sub(*byte)));
    rom
}
