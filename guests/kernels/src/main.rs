//! kernels
fn main() {}
