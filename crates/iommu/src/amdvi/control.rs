//! The control register (48882, 3.4.1): what the unit does, and how it comes to that from whatever
//! the firmware left, with no moment at which a device that was confined isn't.
//!
//! A unit that is on stays on. Its commands and logs stop first, for their places are ours to
//! change then; then the device table is exchanged, by one store, for one that denies everything;
//! and when the unit has forgotten all it had read of the old one, the rest of the register
//! changes, which says how tables are read that no entry leads to any more.

use super::capabilities::Capabilities;
use super::device::DeviceTable;
use super::events::EventLog;
use super::queue::Queue;
use super::registers::{
    COHERENT, COMMAND_BUFFER, COMMAND_RUN, CONTROL, DEVICE_TABLE, ENABLE, EVENT_ARRIVED,
    EVENT_INTERRUPT, EVENT_LOG, EVENT_OVERFLOW, EVENT_RUN, EXCLUSION_BASE, EXCLUSION_LIMIT,
    GUEST_LOG, HT_TUNNEL, ISOCHRONOUS, PAGE_REQUESTS, PASS_PW, RESPONSE_PASS_PW, ROUTING, SEGMENTS,
    STATUS, WAIT_ARRIVED, WAIT_INTERRUPT, WIDE_ENTRIES, X2APIC, X2APIC_OWN,
};
use crate::poll::poll;
use crate::{Error, Firmware, Registers, Remapping};

/// What must stand still before the places of the buffers change.
const ACTIVE: u64 =
    COMMAND_BUFFER | EVENT_LOG | EVENT_INTERRUPT | WAIT_INTERRUPT | PAGE_REQUESTS | GUEST_LOG;

/// What decides over who is confined, and how. The rest may be lacking, or change by and by.
const CONFINING: u64 = ENABLE | COMMAND_BUFFER | WIDE_ENTRIES | X2APIC | SEGMENTS | ROUTING;

/// What the register says of who is confined how.
pub fn confines(control: u64) -> u64 {
    control & CONFINING
}

/// What the register is to hold in the end.
pub fn wanted(capabilities: &Capabilities, firmware: &Firmware) -> u64 {
    let bit = |wanted: bool, bit: u64| if wanted { bit } else { 0 };
    ENABLE
        | COMMAND_BUFFER
        | EVENT_LOG
        | COHERENT
        | bit(firmware.ht_tunnel, HT_TUNNEL)
        | bit(firmware.pass_posted_writes, PASS_PW)
        | bit(firmware.responses_pass_posted_writes, RESPONSE_PASS_PW)
        | bit(firmware.isochronous, ISOCHRONOUS)
        | bit(capabilities.remapping == Remapping::On, WIDE_ENTRIES | X2APIC)
        | bit(capabilities.x2apic, X2APIC_OWN)
}

/// Puts our buffers and our device table in the place of what was there. True if the unit is on: it
/// must forget everything then, before [`switch`].
pub fn replace(
    regs: &mut impl Registers,
    devices: &DeviceTable,
    queue: &Queue,
    log: &EventLog,
) -> Result<bool, Error> {
    let left = regs.read64(CONTROL);
    regs.write64(CONTROL, left & !ACTIVE);
    poll("stop its commands and its log", || regs.read64(STATUS) & (COMMAND_RUN | EVENT_RUN) == 0)?;
    regs.write64(STATUS, EVENT_OVERFLOW | EVENT_ARRIVED | WAIT_ARRIVED);
    queue.place(regs);
    log.place(regs);
    regs.write64(EXCLUSION_BASE, 0);
    regs.write64(EXCLUSION_LIMIT, 0);
    regs.write64(DEVICE_TABLE, devices.register());
    let on = left & ENABLE != 0;
    if on {
        start(regs, left & !ACTIVE | COMMAND_BUFFER | EVENT_LOG)?;
    }
    Ok(on)
}

/// Gives the register all that it is to hold, and gives what of it the unit has. `wanted`: from
/// [`wanted`].
pub fn switch(regs: &mut impl Registers, wanted: u64, on: bool) -> Result<u64, Error> {
    if !on {
        // How tables are read is settled when it begins to read them.
        regs.write64(CONTROL, wanted & !(ENABLE | ACTIVE));
    }
    start(regs, wanted)?;
    let mut control = 0;
    poll("take what its control register is to hold", || {
        control = regs.read64(CONTROL);
        confines(control) == confines(wanted)
    })?;
    // Of what it lacks nothing is asked for again.
    Ok(control & wanted)
}

fn start(regs: &mut impl Registers, control: u64) -> Result<(), Error> {
    regs.write64(CONTROL, control);
    poll("start to fetch commands and to log events", || {
        regs.read64(STATUS) & (COMMAND_RUN | EVENT_RUN) == COMMAND_RUN | EVENT_RUN
    })
}
