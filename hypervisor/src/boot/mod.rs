//! From the loader's entry to Rust on the boot CPU.

use core::arch::global_asm;

global_asm!(include_str!("entry.s"), boot = sym crate::boot);
