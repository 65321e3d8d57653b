//! The contents of a guest's memory when it starts: kernel, initrd, and the tables that describe
//! its machine. Kept, so that a guest that resets itself finds the same again.

use crate::vm::memory::{Memory, PIECE};
use alloc::vec::Vec;
use loader::Load;
use virtual_pc::{bios_data, power};

/// Where everything goes; the bytes of kernel and initrd are those of the boot image.
pub struct Contents {
    pub load: Load<'static>,
    pub initrd: Option<&'static [u8]>,
    /// To be put at [`acpi::guest::BASE`].
    pub tables: Vec<u8>,
}

impl Contents {
    /// Puts everything into memory that is zero, with a `pause` now and then; false if it doesn't
    /// fit. Allocates nothing.
    pub fn put(&self, memory: &Memory, mut pause: impl FnMut()) -> bool {
        let segments = self.load.segments.iter().map(|s| (s.at, s.bytes));
        let blobs = self.load.blobs.iter().map(|b| (b.at, b.bytes.as_slice()));
        let initrd = self.load.initrd_at.zip(self.initrd);
        let data_area = bios_data::area();
        // A kernel may be loaded over the data area, as over a PC's.
        let below = [
            (bios_data::AT, data_area.as_slice()),
            (bios_data::EXTENSION_AT, bios_data::EXTENSION.as_slice()),
            (power::SERVICE_AT, power::SERVICE_CODE.as_slice()),
        ];
        let firmware = [
            (acpi::guest::BASE, self.tables.as_slice()),
            (power::RESET_VECTOR, power::RESET_CODE.as_slice()),
        ];
        let service = power::SERVICE_VECTOR.as_slice();
        let vectors = (0..power::SERVICES).map(|n| (n * service.len() as u64, service));
        let mut all =
            vectors.chain(below).chain(segments).chain(blobs).chain(initrd).chain(firmware);
        all.all(|(at, bytes)| {
            (at..).step_by(PIECE as usize).zip(bytes.chunks(PIECE as usize)).all(|(at, bytes)| {
                pause();
                memory.write(at, bytes)
            })
        })
    }
}
