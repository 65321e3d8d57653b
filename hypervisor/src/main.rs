//! Exitless, the bare-metal image: a static ELF with a PVH entry.
#![no_std]
#![no_main]
#![deny(unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]

#[cfg(not(target_os = "none"))]
compile_error!("the image is bare metal; build it with --target x86_64-unknown-none");

mod boot;
mod console;
mod cpu;
mod panic;

/// First Rust code on the boot CPU, on the boot page tables.
extern "C" fn boot(start_info: u64) -> ! {
    console::uart::raw(format_args!("exitless: start info at {start_info:#x}\n"));
    panic::exit(panic::DONE)
}
