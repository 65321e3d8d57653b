//! hypervisor
fn main() {}
