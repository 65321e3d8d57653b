//! Where the console goes: which serial port, and the screen until a VM has it. Boot only.
//!
//! Guarantees: the device that the host's console is on isn't given to a VM; a display is, and then
//! the host draws no more. What firmware says wrong of its console costs the console alone.

use crate::console::screen;
use crate::console::uart::{self, BAUD, Mmio, Port};
use crate::memory::{PAGE, is_physical, map_mmio};
use crate::pci::{COMMAND, COMMAND_IO, COMMAND_MEMORY, Config, Pci, shown};
use ::screen::Show;
use acpi::{SerialFunction, SerialPort, SerialRegisters};
use alloc::string::String;
use handover::MemoryMap;
use iommu::Bdf;
use plan::Plan;
use serial::{PC_CLOCK, divisor};
use spin::Once;

/// Class and subclass of serial controllers (PCI Code and ID Assignment 1.15, 1.8).
const SERIAL_CLASS: u32 = 0x0700;
const BAR0: u16 = 0x10;
/// Bytes of a port's registers.
const REGISTERS: u64 = 8;

/// The PCI function that the host's serial port is.
static FUNCTION: Once<Bdf> = Once::new();

/// Chooses the serial port: the one that firmware's console is on, else COM1, else the first PCI
/// one whose registers are ports.
pub fn choose_port(machine: &acpi::Machine, memory: &MemoryMap) {
    let named = match machine.console {
        Some(Ok(named)) => use_named(machine, &named, memory),
        Some(Err(error)) => {
            log::warn!("the serial port of firmware's console isn't used: {error}");
            false
        }
        None => false,
    };
    if !named && uart::port().is_none() {
        use_pci(machine);
    }
    if uart::port().is_none() && screen::place().is_none() {
        // Nobody reads this; who attaches a port later finds why nothing was said.
        log::warn!("there is neither a serial port nor a framebuffer: nothing of this is shown");
    }
}

/// The port of the SPCR; false if it doesn't answer.
fn use_named(machine: &acpi::Machine, named: &SerialPort, memory: &MemoryMap) -> bool {
    let port = match named.registers {
        SerialRegisters::Ports(base) => Port::Ports(base),
        SerialRegisters::Memory { address, stride, width } => {
            let bytes = REGISTERS * u64::from(stride);
            if !is_physical(address, bytes) {
                log::warn!("the serial port that the SPCR names, at {address:#x}, can't be there");
                return false;
            }
            if memory.has_memory(&(address & !(PAGE - 1)..address + bytes)) {
                log::warn!("the serial port that the SPCR names, at {address:#x}, lies in memory");
                return false;
            }
            map_mmio(address, bytes);
            // SAFETY: firmware says that a serial port is there, and the parser that its registers
            // are aligned; they are mapped from now on.
            Port::Memory(unsafe { Mmio::new(address, stride, width) })
        }
    };
    if uart::port() == Some(port) {
        return true;
    }
    let function = named.function.and_then(|f| decoded(machine, f));
    // Firmware has set the port up; without a clock in the table only a PC's is known.
    let pc_clock = matches!(port, Port::Ports(_)).then_some(PC_CLOCK);
    let rate = named.clock.or(pc_clock).zip(named.baud);
    let answers = uart::choose(port, rate.and_then(|(clock, baud)| divisor(clock, baud)));
    match answers {
        true => {
            function.map(|bdf| FUNCTION.call_once(|| bdf));
            log::info!("the serial port is that of firmware's console (SPCR), {}", port);
        }
        false => log::warn!("the serial port that the SPCR names, {}, is silent", port),
    }
    answers
}

/// Has the function decode its registers.
fn decoded(machine: &acpi::Machine, named: SerialFunction) -> Option<Bdf> {
    let bdf = Bdf::new(named.bus, named.device, named.function)?.in_segment(named.segment.into());
    let pci = Pci::new(machine);
    let command = pci.read16(bdf, COMMAND);
    pci.write16(bdf, COMMAND, command | COMMAND_IO | COMMAND_MEMORY);
    Some(bdf)
}

/// The first serial controller on PCI. One whose registers are in memory is left: nothing says how
/// far apart they are.
fn use_pci(machine: &acpi::Machine) {
    let pci = Pci::new(machine);
    for function in pci.scan().iter().filter(|f| f.class >> 8 == SERIAL_CLASS) {
        let bar = pci.read32(function.bdf, BAR0);
        let Ok(base) = u16::try_from(bar & !3) else { continue };
        if bar & 1 == 0 || base == 0 {
            continue;
        }
        let command = pci.read16(function.bdf, COMMAND);
        pci.write16(function.bdf, COMMAND, command | COMMAND_IO);
        let port = Port::Ports(base);
        if uart::choose(port, divisor(PC_CLOCK, BAUD)) {
            FUNCTION.call_once(|| function.bdf);
            log::info!("the serial port is {}, {}: COM1 isn't there", function.bdf, port);
            return;
        }
        pci.write16(function.bdf, COMMAND, command);
    }
}

/// Before a function is given to a VM: the host doesn't use it any more, or the end of a sentence
/// about why it goes on to.
pub fn leave(pci: &Pci, bdf: Bdf, vm: &str) -> Result<(), String> {
    if FUNCTION.get() == Some(&bdf) {
        return Err("it is the serial port of the host's console".into());
    }
    let Some(frame) = screen::place() else { return Ok(()) };
    let has = |bar: &crate::pci::Bar| {
        !bar.kind.is_io() && bar.address < frame.end && frame.start < bar.address + bar.size
    };
    if shown::bars(pci, bdf).iter().any(has) {
        log::warn!("device {bdf} has the screen: from here on it is VM {vm}'s");
        screen::give_up();
    }
    Ok(())
}

/// Shows the consoles that the plan asks for; that of the only VM as it writes.
pub fn show<F>(plan: &Plan<F>) {
    plan.vms.iter().enumerate().for_each(|(vm, of)| screen::name(vm, &of.name));
    let only = (plan.vms.len() == 1).then_some(0);
    let chosen = plan.host.screen.map(|vm| vm as usize).or(only);
    match chosen.and_then(|vm| plan.vms.get(vm).map(|of| (vm, &of.name))) {
        Some((vm, name)) => screen::show(Show::One(vm), format_args!("console of VM {name}")),
        None => screen::show(Show::All, format_args!("consoles of {} VMs", plan.vms.len())),
    }
}
