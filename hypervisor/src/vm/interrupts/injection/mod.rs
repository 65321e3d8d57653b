//! Injection mode, and when a vCPU is in it (paper 4.1; who completes an interrupt in
//! it, 4.4).
//!
//! `receive` takes the physical interrupts that reach the host, `mode` chooses the vCPU's mode and
//! offers what is pending, `posted` hands it to a CPU that delivers by itself, `delivery_mode` is
//! the state. The rule that chooses is `crates/delivery`
//! (`mode`).

pub mod delivery_mode;
pub mod mode;
pub mod posted;
pub mod receive;
