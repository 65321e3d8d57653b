//! The test kernel's image, and variants of it that only one kind of loader takes; and Debian's.

use crate::bench;
use anyhow::{Context as _, Result, anyhow};
use exitless::context::Context;
use std::fs;

const MULTIBOOT_MAGIC: [u8; 4] = 0x1BAD_B002u32.to_le_bytes();
/// Name size, descriptor size and type of XEN_ELFNOTE_PHYS32_ENTRY, and the name.
const PVH_NOTE: [u8; 16] = *b"\x04\0\0\0\x04\0\0\0\x12\0\0\0Xen\0";

/// Which of its headers an image keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Multiboot 1 alone.
    Multiboot,
    /// The PVH note alone.
    Pvh,
    /// Cut off in its ELF header: no kernel at all.
    Broken,
    /// Not this kernel but the attacker.
    Hostile,
    /// Not this kernel but Debian's, with the recipe's initramfs.
    Linux,
    /// The same, with the measuring guest's; for `victim`.
    Victim,
}

/// The kernels as built.
#[derive(Default)]
pub struct Kernel {
    test: Vec<u8>,
    hostile: Vec<u8>,
    linux: Option<bench::Guest>,
    victim: Option<bench::Guest>,
}

/// Builds those that are wanted, and the test kernel.
pub fn build(cx: &Context, wanted: impl Fn(Variant) -> bool) -> Result<Kernel> {
    let image = |package| {
        let path = cx.build_bare_metal(package)?;
        fs::read(&path).with_context(|| format!("{} can't be read", path.display()))
    };
    let debian = |variant, name| wanted(variant).then(|| bench::Guest::make(cx, name)).transpose();
    Ok(Kernel {
        test: image("kernels")?,
        hostile: if wanted(Variant::Hostile) { image("hostile")? } else { Vec::new() },
        linux: debian(Variant::Linux, "workloads")?,
        victim: debian(Variant::Victim, "disk")?,
    })
}

impl Kernel {
    /// A variant's image.
    pub fn variant(&self, variant: Variant) -> Result<Vec<u8>> {
        match variant {
            Variant::Multiboot => self.without(&PVH_NOTE),
            Variant::Pvh => self.without(&MULTIBOOT_MAGIC),
            Variant::Broken => Ok(self.test.iter().take(100).copied().collect()),
            Variant::Hostile => Ok(self.hostile.clone()),
            Variant::Linux | Variant::Victim => Ok(fs::read(&self.debian(variant)?.kernel)?),
        }
    }

    /// The initial RAM disk that goes with a variant.
    pub fn initrd(&self, variant: Variant) -> Result<Option<String>> {
        match variant {
            Variant::Linux | Variant::Victim => {
                Ok(Some(self.debian(variant)?.initrd.display().to_string()))
            }
            _ => Ok(None),
        }
    }

    fn debian(&self, variant: Variant) -> Result<&bench::Guest> {
        let guest = if variant == Variant::Victim { &self.victim } else { &self.linux };
        guest.as_ref().ok_or_else(|| anyhow!("Debian's kernel wasn't asked for"))
    }

    fn without(&self, mark: &[u8]) -> Result<Vec<u8>> {
        let mut image = self.test.clone();
        let at = image.windows(mark.len()).position(|w| w == mark);
        let at = at.ok_or_else(|| anyhow!("the test kernel has lost one of its headers"))?;
        image[at..at + mark.len()].fill(0);
        Ok(image)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variant_lacks_the_other_header() {
        let image = [&[1; 8][..], &MULTIBOOT_MAGIC, &[2; 8], &PVH_NOTE, &[3; 100]].concat();
        let kernel = Kernel { test: image.clone(), ..Kernel::default() };
        let has =
            |v, mark: &[u8]| kernel.variant(v).unwrap().windows(mark.len()).any(|w| w == mark);
        assert!(has(Variant::Multiboot, &MULTIBOOT_MAGIC) && !has(Variant::Multiboot, &PVH_NOTE));
        assert!(has(Variant::Pvh, &PVH_NOTE) && !has(Variant::Pvh, &MULTIBOOT_MAGIC));
        assert_eq!(kernel.variant(Variant::Pvh).unwrap().len(), image.len());
        let other = Kernel { test: vec![0; 64], ..Kernel::default() };
        assert!(other.variant(Variant::Pvh).is_err() && other.variant(Variant::Linux).is_err());
    }
}
