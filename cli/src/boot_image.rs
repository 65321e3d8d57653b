//! The boot image on its way to QEMU: a file without a name.
//!
//! Guarantees: where QEMU's firmware has more to keep at the end of memory than QEMU left room for,
//! no byte of the image lies there.

use crate::{load::File, unnamed::Unnamed};
use anyhow::Result;
use plan::Plan;
use std::path::PathBuf;

/// QEMU puts the module 160 KiB below the end of memory; SeaBIOS keeps up to 256 KiB there, the
/// more the more disks there are.
const ROOM: usize = 128 << 10;

/// The image with room behind it that nothing reads, for a machine whose QEMU loads it itself.
pub fn with_room(image: &[u8]) -> Vec<u8> {
    let mut padded = image.to_vec();
    padded.resize(image.len() + ROOM, 0);
    padded
}

/// A packed boot image that QEMU can open while this lives.
#[derive(Debug)]
pub struct BootImage(Unnamed);

impl BootImage {
    /// Packs a plan.
    pub fn new(plan: &Plan<File>) -> Result<BootImage> {
        Unnamed::with(&with_room(&plan::image::build(plan)?), "the boot image").map(BootImage)
    }

    /// Where other processes of this user find it.
    pub fn path(&self) -> PathBuf {
        self.0.path()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::Vm;
    use std::fs;

    #[test]
    fn the_plan_is_packed() {
        let kernel = File { path: "k".into(), bytes: vec![1, 2, 3] };
        let vm = Vm {
            name: "a".into(),
            cpus: vec![1],
            weight: plan::DEFAULT_WEIGHT,
            limit: plan::Limit::default(),
            memory: 64 << 20,
            kernel,
            initrd: None,
            cmdline: String::new(),
            devices: vec![],
            disks: vec![],
            interfaces: vec![],
            interrupts: None,
            reset: plan::OnReset::Stop,
            nested: false,
            iommu: plan::GuestIommu::None,
        };
        let image = BootImage::new(&Plan::new(vec![vm])).unwrap();
        let bytes = fs::read(image.path()).unwrap();
        assert_eq!(plan::image::parse(&bytes).unwrap().plan.vms[0].name, "a");
        let length = plan::image::length(&bytes).unwrap();
        assert_eq!(bytes.len() as u64 - length, ROOM as u64);
    }
}
