//! The Exitless command line.
fn main() {}
