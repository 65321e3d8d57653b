//! How the emulated machine comes to the hypervisor: as QEMU loads it, or as real machines do,
//! by their firmware and perhaps a boot loader.
//!
//! Guarantees: what the machine boots from is made as `exitless image` makes it; it and the
//! firmware's variables are files without a name, so that nothing is left behind.

use crate::{
    boot_image, bootable,
    context::Context,
    firmware::{Firmware, Flash, Medium},
    helper,
    machine::Boot,
    needs,
    signing::Signature,
    unnamed::Unnamed,
};
use anyhow::{Context as _, Result, bail};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// What firmware and a boot loader need beside what they load.
const FIRMWARE_MEMORY: u64 = 128 << 20;
/// How often a UEFI program is in memory at once: as the file, as it was loaded, and its parts
/// where they are wanted.
const COPIES: u64 = 3;
/// From the firmware's folder, the keys that Debian's variables for tests have in them, and the
/// word that opens the private one: everybody knows it.
const TEST_KEYS: &str = "../ovmf/PkKek-1-snakeoil";
const TEST_KEYS_WORD: &str = "pass:snakeoil";

/// A way to the hypervisor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Way {
    /// QEMU loads it and starts it by its PVH note
    #[default]
    Pvh,
    /// UEFI firmware starts a disk, as `exitless image -o exitless.img` makes it
    Uefi,
    /// UEFI firmware gets the program from QEMU, as `-o exitless.efi` makes it
    UefiKernel,
    /// BIOS and GRUB start a CD, as `-o exitless.iso` makes it
    GrubBios,
    /// UEFI firmware and GRUB start the same CD
    GrubEfi,
    /// UEFI firmware gets the program from a network
    Pxe,
}

/// What the firmware makes sure of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Nothing: it starts what there is.
    Anything,
    /// That what it starts is signed, and it is, by a key for tests.
    Signed,
    /// The same, and it isn't: firmware must refuse it.
    Missing,
}

/// How a machine is started.
#[derive(Clone, Debug)]
pub struct Start {
    /// The way to the hypervisor.
    pub way: Way,
    /// What its firmware makes sure of.
    pub trust: Trust,
    /// The folder of its UEFI firmware, laid out as Debian's package has it; none for the
    /// system's ([`needs::ovmf`]).
    pub ovmf: Option<PathBuf>,
}

impl Start {
    /// In this way, by the system's firmware, which starts whatever there is.
    pub const fn by(way: Way) -> Start {
        Start { way, trust: Trust::Anything, ovmf: None }
    }

    fn ovmf(&self, cx: &Context) -> Result<PathBuf> {
        self.ovmf.clone().map_or_else(|| needs::ovmf(cx), Ok)
    }
}

/// What a machine boots from, which is there while this lives.
#[derive(Debug)]
pub struct Source {
    /// For [`crate::machine::Machine::boot`].
    pub boot: Boot,
    /// Bytes of memory that it takes.
    pub memory: u64,
    _files: Vec<Unnamed>,
}

impl Source {
    /// Packs a boot image for a machine that is started so.
    pub fn new(start: &Start, image: &[u8], cx: &Context) -> Result<Source> {
        let Start { way, trust, .. } = *start;
        let secure = trust != Trust::Anything;
        if secure && !matches!(way, Way::Uefi | Way::UefiKernel | Way::Pxe) {
            bail!("--secure-boot: only UEFI firmware checks signatures; give `--boot uefi` too");
        }
        if way == Way::Pvh {
            let file = Unnamed::with(&boot_image::with_room(image), "the boot image")?;
            let boot =
                Boot::Exitless { hypervisor: cx.hypervisor()?.to_owned(), image: file.path() };
            return Ok(Source { boot, memory: image.len() as u64, _files: vec![file] });
        }
        let (flash, variables) = match way {
            Way::GrubBios => (None, None),
            _ => flash(&start.ovmf(cx)?, secure).map(|(flash, file)| (Some(flash), Some(file)))?,
        };
        let bytes = match way {
            Way::GrubBios | Way::GrubEfi => bootable::iso(cx, Some(image))?,
            _ if trust == Trust::Signed => {
                test_signed(&bootable::program(cx, Some(image), None)?, &start.ovmf(cx)?, cx)?
            }
            _ => bootable::program(cx, Some(image), None)?,
        };
        let memory = COPIES * bytes.len() as u64 + FIRMWARE_MEMORY;
        let bytes = if way == Way::Uefi { media::disk::with_program(&bytes)? } else { bytes };
        let file = Unnamed::with(&bytes, "what the machine boots from")?;
        let path = file.path();
        let medium = match way {
            Way::GrubBios | Way::GrubEfi => Medium::Cd(path),
            Way::Pxe => Medium::Network(path),
            Way::Uefi => Medium::Disk(path),
            Way::UefiKernel | Way::Pvh => Medium::Program(path),
        };
        let boot = Boot::Firmware(Firmware { flash, medium });
        Ok(Source { boot, memory, _files: variables.into_iter().chain([file]).collect() })
    }
}

/// The emulated machine's UEFI firmware, with variables of its own.
fn flash(folder: &Path, secure: bool) -> Result<(Flash, Unnamed)> {
    let (code, variables) = match secure {
        true => ("OVMF_CODE_4M.secboot.fd", "OVMF_VARS_4M.snakeoil.fd"),
        false => ("OVMF_CODE_4M.fd", "OVMF_VARS_4M.fd"),
    };
    let (code, variables) = (folder.join(code), folder.join(variables));
    if !code.is_file() {
        bail!("{} doesn't exist, and the machine's firmware is there", code.display());
    }
    let bytes =
        fs::read(&variables).with_context(|| format!("{} can't be read", variables.display()))?;
    let file = Unnamed::with(&bytes, "the firmware's variables")?;
    Ok((Flash { code, variables: file.path(), secure }, file))
}

/// The program, signed by the key that [`flash`] knows: for tests, since everybody has it.
fn test_signed(program: &[u8], ovmf: &Path, cx: &Context) -> Result<Vec<u8>> {
    needs::signing(cx)?;
    let keys = ovmf.join(TEST_KEYS);
    let folder = tempfile::tempdir().context("no temporary folder can be made")?;
    let key = folder.path().join("key.pem");
    let mut openssl = Command::new("openssl");
    openssl.args(["pkey", "-passin", TEST_KEYS_WORD, "-in"]).arg(keys.with_extension("key"));
    helper::run(openssl.arg("-out").arg(&key), "the test key", cx)?;
    Signature { key, certificate: keys.with_extension("pem") }.sign(program, cx)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_checks_no_signature_is_not_secure() {
        for way in [Way::Pvh, Way::GrubBios, Way::GrubEfi] {
            let cx = Context::for_tests();
            let start = Start { trust: Trust::Signed, ..Start::by(way) };
            let error = Source::new(&start, b"image", &cx).unwrap_err();
            assert!(error.to_string().starts_with("--secure-boot: only UEFI firmware checks"));
        }
    }
}
