//! At boot: what a paravirtual disk is made of, and what it says of itself.
//!
//! Guarantees: memory behind a disk is the disk's alone; a part of a controller is inside of its
//! namespace. The errors are sentences, or their ends.

use crate::memory::{allocate, available};
use crate::sidecore::backing::Backing;
use crate::sidecore::polling_core::PollingCore;
use crate::sidecore::views::window;
use alloc::format;
use alloc::string::String;
use blk::SECTOR;
use blk::backend::{Null, Ram};
use blk::config::SERIAL_BYTES;
use nvme::Abilities;

const MIB_2: u64 = 2 << 20;
/// What a discard or a write-zeroes request may touch at most: it is served in pieces.
const MOST_TOUCHED: u64 = 1 << 30;

/// What it says of itself, if what is behind it can so much. The error is a sentence.
pub fn config(disk: &plan::Disk, can: &Abilities) -> Result<blk::Config, String> {
    let mut serial = [0; SERIAL_BYTES];
    serial.iter_mut().zip(disk.serial.bytes()).for_each(|(to, byte)| *to = byte);
    let touched = (MOST_TOUCHED / SECTOR) as u32;
    let if_it = |can| if can && !disk.read_only { touched } else { 0 };
    blk::Config::new(blk::Parameters {
        capacity: disk.size / SECTOR,
        queues: disk.queues,
        read_only: disk.read_only,
        block_size: can.block,
        discard: if_it(can.discards),
        write_zeroes: if_it(can.zeroes),
        serial,
        packed: disk.control.packed,
        ..blk::Parameters::default()
    })
    .map_err(|error| format!("{error}"))
}

/// A part of a controller of this core's, for the next of its devices, of a VM with this memory;
/// and what it can.
pub fn cut(
    core: &mut PollingCore,
    disk: &plan::Disk,
    part: plan::Part,
    memory: &[(u64, u64)],
) -> Result<(Backing, Abilities), String> {
    let device = core.devices.len();
    let mut controllers = core.controllers.iter_mut().enumerate();
    let found = controllers.find(|(_, driven)| driven.name == part.device);
    let (place, driven) = found.ok_or("its controller isn't driven")?;
    let can = driven.abilities()?;
    if can.protected && !disk.read_only {
        return Err(format!("{} is write-protected: make the disk read-only", part.device));
    }
    let part = nvme::Part { first: part.offset, bytes: disk.size };
    let number = driven.cut(part, memory.iter().copied(), device)?;
    Ok((Backing::Part(place, number), can))
}

/// What disks can do that are nobody's but ours.
const ALL: Abilities =
    Abilities { block: SECTOR as u32, discards: true, zeroes: true, protected: false };

/// Memory with this content, or nothing; and what that can.
pub fn backing(disk: &plan::Disk, content: &[u8]) -> Result<(Backing, Abilities), String> {
    if disk.backing == plan::Backing::Null {
        return Ok((Backing::Null(Null), ALL));
    }
    let bytes = disk.memory();
    let at = allocate(bytes, MIB_2).ok_or_else(|| {
        format!(
            "{} MiB of memory are needed in one piece, and there are {} MiB left in all: lower its size",
            bytes >> 20,
            available() >> 20
        )
    })?;
    let span = window([(0, at, bytes)].into_iter())?.span(0, disk.size);
    let span = span.ok_or("its memory isn't whole")?;
    span.write(0, content).map_err(|_| "its image is larger than the disk")?;
    Ok((Backing::Ram(Ram::new(span)), ALL))
}
