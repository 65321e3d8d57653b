//! What a real machine boots from, made of bytes alone: a UEFI program with the hypervisor
//! and its boot image inside, and a disk that carries it.
//!
//! Guarantees: nothing is read or written but the bytes that are given and returned, the same
//! bytes give the same result (no clock, no chance), and input of any kind is either taken or
//! refused in one sentence. Not covered: signatures, and disks that GRUB starts from, which
//! programs of others make.
#![forbid(unsafe_code)]

pub mod disk;
pub mod elf;
mod fat;
mod field;
pub mod pe;
