//! Exitless' UEFI loader: one PE file that carries the hypervisor and the boot image as sections
//! of its own, puts the one into memory, leaves the other where it is, ends the firmware's boot
//! services and enters the hypervisor.
//!
//! Guarantees: whatever is missing or wrong before boot services end is one sentence on the
//! firmware's console, and the firmware goes on. Nothing is read from a disk where Secure Boot is
//! on: what runs then is what was signed. It doesn't check the boot image; the hypervisor does.
#![no_main]
#![no_std]
#![deny(unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]

#[cfg(not(target_os = "uefi"))]
compile_error!("the loader is a UEFI program; build it with --target x86_64-unknown-uefi");

extern crate alloc;

mod disk;
mod enter;
mod machine;
mod pages;
mod place;
mod services;

use alloc::{format, string::String};
use core::{arch::asm, convert::Infallible, panic::PanicInfo};
use handover::{Transfer, payload};
use uefi::{Status, boot, entry, println, proto::loaded_image::LoadedImage};

/// What the firmware would log: below 0x10000 codes are its own (UEFI 7.5).
const WATCHDOG_CODE: u64 = 0x1_0000;

#[entry]
fn main() -> Status {
    match start() {
        Ok(never) => match never {},
        Err(reason) => {
            println!("exitless: {reason}");
            Status::LOAD_ERROR
        }
    }
}

/// Starts the hypervisor; the error says why that can't be.
fn start() -> Result<Infallible, String> {
    // By this the counting plugin (bench/plugin) knows that the program has begun.
    // SAFETY: it is a no-op (NOP of eight bytes).
    unsafe {
        asm!(
            ".byte 0x0f, 0x1f, 0x84, 0x00",
            ".long 0x45580011",
            options(nomem, nostack, preserves_flags)
        );
    }
    machine::check()?;
    // Firmware resets the machine five minutes after it started a boot option, and a large file
    // may take long. One that has no such watchdog has nothing to be switched off.
    let _ = boot::set_watchdog_timer(0, WATCHDOG_CODE, None);
    let own = boot::open_protocol_exclusive::<LoadedImage>(boot::image_handle())
        .map_err(|error| format!("the firmware doesn't say where this program is: {error}"))?;
    let (base, size) = own.info();
    if (base as u64).saturating_add(size) > pages::REACH {
        return Err("the firmware loaded this program above 512 GiB, where it can't go on after boot services have ended".into());
    }
    // SAFETY: the firmware loaded this program there, and keeps it until boot services end; nothing
    // writes to the sections that are looked at.
    let program: &'static [u8] = unsafe { core::slice::from_raw_parts(base.cast(), size as usize) };

    let hypervisor = payload::section(program, payload::HYPERVISOR).ok_or_else(|| {
        format!(
            "this program has no section {}, which the hypervisor should be in; make it with `exitless image`",
            payload::HYPERVISOR
        )
    })?;
    let hypervisor = place::place(hypervisor)?;
    let image = match payload::section(program, payload::PLAN).filter(|image| !image.is_empty()) {
        Some(image) => pages::at_a_page(image, payload::PLAN)?,
        None => disk::plan(&own)?,
    };
    let options = machine::options(&own);
    let mut transfer = Transfer {
        image: image.as_ptr() as u64,
        image_bytes: image.len() as u64,
        command_line: options.as_ptr() as u64,
        command_line_bytes: options.len() as u64,
        ..Transfer::EMPTY
    };
    if image.is_empty() {
        transfer.image = handover::NOT_THERE;
    }
    machine::describe(&mut transfer);
    enter::enter(transfer, &hypervisor)
}

/// A bug of the loader's, or of the firmware's: said, and the firmware goes on.
#[panic_handler]
fn panic(info: &PanicInfo) -> ! {
    println!("exitless: the loader failed: {info}");
    // SAFETY: nothing of this program is used any more, and it installed nothing.
    let _ = unsafe { boot::exit(boot::image_handle(), Status::ABORTED, 0, core::ptr::null_mut()) };
    // Firmware that doesn't take it back has nothing else to do, either.
    loop {
        core::hint::spin_loop();
    }
}
