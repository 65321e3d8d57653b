//! The experiments: what a load costs on the bare emulated machine and in a VM,
//! counted (`docs/figures.md` says how), on the terminal, as JSON and as an HTML page.

mod boot;
mod column;
mod command;
mod emulated;
mod experiments;
mod figures;
pub mod generator;
mod guest;
mod io;
mod iommus;
mod lines;
mod matched;
mod measure;
mod model;
mod nested;
mod plugin_check;
mod progress;
mod ready;
mod report;
mod rows;
mod shared;
pub mod show;
mod sidecore;
mod viommu;
mod watch;
mod workload;

pub use command::{Args, DemoArgs, OnMachine, demo, run, smoke};
pub use guest::{Guest, counting_plugin};
pub use lines::{Edge, Plugin, plugin as counted};
