//! What the user's commands are made of, for the binary `exitless` and for the developers'
//! tools in `lab/`: plans, the emulated machine, its console stream, reports.
#![forbid(unsafe_code)]

pub mod advice;
pub mod arguments;
pub mod boot_image;
pub mod bootable;
pub mod check;
pub mod consoles;
pub mod context;
pub mod disk;
pub mod entry;
pub mod firmware;
pub mod help;
pub mod helper;
pub mod image;
mod kernel_config;
mod least;
pub mod load;
pub mod machine;
pub mod mistaken;
pub mod needs;
pub mod network;
pub mod offered;
pub mod options;
pub mod output;
pub mod package;
pub mod paravirtual;
pub mod qemu;
pub mod recipe;
pub mod recording;
pub mod report;
pub mod room;
pub mod run;
pub mod say;
mod served;
pub mod session;
pub mod signing;
pub mod source;
pub mod stream;
pub mod table;
pub mod terminal;
pub mod tools;
pub mod top;
pub mod unnamed;
mod unserved;
pub mod unused;
