//! What the decoder takes and refuses, and what performing an instruction does to registers, flags
//! and the device.

mod arithmetic;
mod decoding;
mod machine;
mod moves;
