//! The hypervisor, from its ELF file into memory.

use crate::pages::{BELOW_4_GIB, allocate, below};
use alloc::{format, string::String};
use handover::{NOTE_ENTRY, NOTE_NAME};
use loader::Program;
use uefi::boot::AllocateType;

/// It is put at a multiple of this.
const ALIGN: u64 = 2 << 20;
/// More than any that was built: what is larger isn't the hypervisor.
const MAX_BYTES: u64 = 64 << 20;

/// The hypervisor in memory.
pub struct Placed {
    /// Where it is entered.
    pub entry: u64,
}

/// Puts the program of the ELF file `file` where it was linked, or else anywhere below 4 GiB.
pub fn place(file: &[u8]) -> Result<Placed, String> {
    let program = Program::read(file, (NOTE_NAME, NOTE_ENTRY))
        .map_err(|error| format!("the hypervisor isn't one: {error}"))?;
    let bytes = program.end - program.start;
    if bytes > MAX_BYTES {
        return Err(format!(
            "the hypervisor has {bytes} bytes in memory, and at most {MAX_BYTES} are handled"
        ));
    }
    let memory = memory(program.start, bytes)?;
    let start = memory.as_ptr() as u64;
    for segment in &program.segments {
        // Between its ends, as the program vouches for.
        let at = (segment.at - program.start) as usize;
        memory[at..at + segment.bytes.len()].copy_from_slice(segment.bytes);
    }
    Ok(Placed { entry: program.entry - program.start + start })
}

/// `bytes` of zeroed memory, at `liked` if that is free.
fn memory(liked: u64, bytes: u64) -> Result<&'static mut [u8], String> {
    if let Ok(memory) = allocate(AllocateType::Address(liked), bytes) {
        return Ok(memory);
    }
    let room = below(BELOW_4_GIB, bytes + ALIGN, "the hypervisor")?;
    let start = room.as_ptr() as u64;
    let skip = (start.next_multiple_of(ALIGN) - start) as usize;
    Ok(&mut room[skip..][..bytes as usize])
}
