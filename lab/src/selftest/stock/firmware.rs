//! A disk of the daemon's that firmware boots from: GRUB, Debian's kernel and the guest's
//! initramfs, for BIOS and UEFI alike.
//!
//! Guarantees: QEMU loads nothing by itself, so what runs was read from the disk; after the guest's
//! reboot once more.

use super::super::suite::Suite;
use anyhow::{Context as _, Result};
use exitless::{context::Context, helper, needs, options::file_option};
use std::{ffi::OsString, fs, path::Path, process::Command};

/// The modules of GRUB that its few lines need, and what it looks for itself.
const MODULES: &str = "--install-modules=normal linux serial terminal test search search_fs_file \
    iso9660 part_acorn part_amiga part_apple part_bsd part_dfly part_dvh part_gpt part_msdos \
    part_plan part_sun part_sunpc";

/// Makes the disk's file. The guest hears these words.
pub fn image(cx: &Context, guest: &Path, words: &str, file: &Path) -> Result<()> {
    needs::grub(cx)?;
    let tree = tempfile::tempdir().context("no directory for temporary files")?;
    let boot = tree.path().join("boot");
    fs::create_dir_all(boot.join("grub"))?;
    for name in ["vmlinuz", "initrd.img"] {
        fs::copy(guest.join(name), boot.join(name)).with_context(|| name.to_owned())?;
    }
    let menu = format!(
        "if [ \"$grub_platform\" = pc ]; then\n  serial --unit=0 --speed=115200\n  \
         terminal_output serial\nfi\nlinux /boot/vmlinuz {words}\ninitrd /boot/initrd.img\nboot\n"
    );
    fs::write(boot.join("grub/grub.cfg"), menu)?;
    let mut grub = Command::new("grub-mkrescue");
    grub.args(["--fonts=", "--locales=", "--themes=", MODULES, "-o"]).arg(file).arg(tree.path());
    helper::run(&mut grub, "the disk that is booted from", cx)
}

/// QEMU's arguments for this firmware, or its BIOS; its variables are kept in this folder.
pub fn arguments(cx: &Context, suite: Option<Suite>, folder: &Path) -> Result<Vec<OsString>> {
    let Some(suite) = suite else { return Ok(Vec::new()) };
    suite.fetch(cx)?;
    let from = suite.ovmf(cx);
    let variables = folder.join("variables");
    fs::copy(from.join("OVMF_VARS_4M.fd"), &variables).context("the firmware's variables")?;
    let drive = |unit: u32, more, path: &Path| {
        file_option(&format!("if=pflash,format=raw,unit={unit},{more}file="), path)
    };
    let code = drive(0, "readonly=on,", &from.join("OVMF_CODE_4M.fd"));
    Ok(vec!["-drive".into(), code, "-drive".into(), drive(1, "", &variables)])
}
