//! The boot image on its way to QEMU: a file without a name, so that none is left
//! behind however the run ends.

use crate::load::File;
use anyhow::{Context, Result};
use plan::Plan;
use std::{fs, io::Write, os::fd::AsRawFd, path::PathBuf, process};

/// A packed boot image that QEMU can open while this lives.
#[derive(Debug)]
pub struct BootImage {
    file: fs::File,
}

impl BootImage {
    /// Packs a plan.
    pub fn new(plan: &Plan<File>) -> Result<BootImage> {
        let image = plan::image::build(plan)?;
        let mut file = tempfile::tempfile().context("no temporary file can be made")?;
        file.write_all(&image).context("the boot image can't be written to a temporary file")?;
        Ok(BootImage { file })
    }

    /// Where other processes of this user find it.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", process::id(), self.file.as_raw_fd()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::Vm;

    #[test]
    fn it_can_be_opened_by_its_path_and_has_no_name() {
        let kernel = File { path: "k".into(), bytes: vec![1, 2, 3] };
        let vm = Vm {
            name: "a".into(),
            cpus: vec![1],
            weight: plan::DEFAULT_WEIGHT,
            memory: 64 << 20,
            kernel,
            initrd: None,
            cmdline: String::new(),
            devices: vec![],
            interrupts: None,
            reset: plan::OnReset::Stop,
        };
        let image = BootImage::new(&Plan::new(vec![vm])).unwrap();
        let bytes = fs::read(image.path()).unwrap();
        assert_eq!(plan::image::parse(&bytes).unwrap().plan.vms[0].name, "a");
        assert!(fs::read_link(image.path()).unwrap().to_string_lossy().ends_with("(deleted)"));
    }
}
