//! What a machine boots from: the loader, the hypervisor and a boot image in one file.
//!
//! | made | holds | starts on |
//! |---|---|---|
//! | a UEFI program | the loader, with sections `.hyper`, `.plan` | UEFI, by disk or network |
//! | a disk | that program as `\EFI\BOOT\BOOTX64.EFI` | UEFI, from a stick |
//! | an ISO | GRUB, the hypervisor, the boot image as its module | BIOS and UEFI, stick or CD |
//!
//! Guarantees: without a boot image nothing in the file says that there is one. The hypervisor
//! goes in without its debug information.

use crate::{context::Context, helper, needs, signing::Signature};
use anyhow::{Context as _, Result};
use media::pe::Section;
use std::{fs, path::Path, process::Command};

/// The sections that the loader looks for in itself.
const HYPERVISOR: &str = ".hyper";
const PLAN: &str = ".plan";
/// The only modules of GRUB that the ISO's menu needs, and what they need themselves.
const MODULES: &str = "--install-modules=normal multiboot2 echo serial terminal test search \
    search_fs_file iso9660 part_acorn part_amiga part_apple part_bsd part_dfly part_dvh part_gpt \
    part_msdos part_plan part_sun part_sunpc reboot halt";

/// The UEFI program with a boot image, or none; signed, where a signature is given.
pub fn program(
    cx: &Context,
    image: Option<&[u8]>,
    signature: Option<&Signature>,
) -> Result<Vec<u8>> {
    needs::loader(cx)?;
    let path = cx.loader()?;
    let loader = read(path)?;
    let hypervisor = packed(cx.hypervisor()?)?;
    let mut sections = vec![Section { name: HYPERVISOR, bytes: &hypervisor }];
    sections.extend(image.map(|bytes| Section { name: PLAN, bytes }));
    let program = media::pe::with_sections(&loader, &sections)
        .with_context(|| format!("the UEFI loader {} can't be used", shown(path)))?;
    match signature {
        Some(signature) => signature.sign(&program, cx),
        None => Ok(program),
    }
}

/// The ISO with a boot image, or none.
pub fn iso(cx: &Context, image: Option<&[u8]>) -> Result<Vec<u8>> {
    iso_of(cx.hypervisor()?, cx, image)
}

/// The same with another hypervisor than that of `cx`.
pub fn iso_of(hypervisor: &Path, cx: &Context, image: Option<&[u8]>) -> Result<Vec<u8>> {
    needs::grub(cx)?;
    let folder = tempfile::tempdir().context("no temporary folder can be made")?;
    let (tree, iso) = (folder.path().join("tree"), folder.path().join("iso"));
    let write = |path: &str, bytes: &[u8]| {
        let path = tree.join(path);
        let made = path.parent().map_or(Ok(()), fs::create_dir_all);
        made.and_then(|()| fs::write(&path, bytes))
            .with_context(|| format!("{} can't be written", path.display()))
    };
    write("boot/exitless", &packed(hypervisor)?)?;
    if let Some(image) = image {
        write("boot/plan", image)?;
    }
    write("boot/grub/grub.cfg", menu(image.is_some()).as_bytes())?;
    let mut grub = Command::new("grub-mkrescue");
    grub.args(["--fonts=", "--locales=", "--themes=", MODULES, "-o"]).arg(&iso).arg(&tree);
    grub.args(["--", "-volid", "EXITLESS"]);
    helper::run(&mut grub, "the ISO", cx)?;
    fs::read(&iso).context("the ISO can't be read")
}

/// What GRUB does: no menu; its words on the console that UEFI firmware has, which may be a serial
/// port, or on a BIOS's screen and, where there is one, the serial port.
fn menu(image: bool) -> String {
    let module = if image { "module2 /boot/plan\n" } else { "" };
    format!(
        "if [ \"$grub_platform\" = pc ]; then\n  if serial --unit=0 --speed=115200; then\n    \
         terminal_output console serial\n  fi\nfi\n\
         echo 'Loading Exitless ...'\n\
         if multiboot2 /boot/exitless; then\n{module}boot\nfi\n"
    )
}

/// The hypervisor's ELF as it is packed.
fn packed(path: &Path) -> Result<Vec<u8>> {
    media::elf::stripped(&read(path)?)
        .with_context(|| format!("the hypervisor {} can't be used", shown(path)))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("{} can't be read", shown(path)))
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_menu_names_a_module_where_there_is_one() {
        let (with, without) = (menu(true), menu(false));
        assert!(with.contains("then\nmodule2 /boot/plan\nboot\nfi\n"), "{with}");
        assert!(!without.contains("module2") && without.contains("then\nboot\nfi\n"), "{without}");
    }
}
