//! The work of a vCPU out of its guest: the loop that enters it, and what each exit means.

pub mod code_pages;
pub mod control;
pub mod cpuid;
pub mod delivery_fault;
pub mod element;
pub mod emulator;
pub mod fetch;
pub mod io;
pub mod msr;
pub mod msr_state;
pub mod nested_fault;
mod nesting;
mod physical;
pub mod quick_write;
pub mod run;
mod serving;
pub mod string_io;
pub mod string_move;
pub mod unanswered;
