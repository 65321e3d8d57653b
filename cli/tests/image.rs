//! What `exitless image` can't make it tells in one sentence, and leaves the file as it was.

mod common;

use common::{Place, end};
use std::{fs, os::unix::fs::symlink, path::PathBuf, process::Command};

/// What may be left.
const NOTHING: [PathBuf; 0] = [];

/// A place with a plan and a file `old.*` of each kind.
fn place() -> Place {
    let place = Place::new("");
    fs::write(place.path("vm.toml"), "[vm.a]\nkernel = 'kernel'\nmemory = '64M'\n").unwrap();
    for ending in ["efi", "img", "iso", "plan"] {
        fs::write(place.path(&format!("old.{ending}")), "old").unwrap();
    }
    place
}

/// Makes `old.{ending}`, with the place's folder of temporary files and no tools of GRUB's or for
/// signing, and nothing that installs them.
fn image(place: &Place, ending: &str, more: &[&str]) -> Command {
    let [plan, output] = ["vm.toml".to_owned(), format!("old.{ending}")]
        .map(|name| place.path(&name).to_str().unwrap().to_owned());
    let mut command = place.exitless(&["image", &plan, "-o", &output]);
    command.args(more).env("EXITLESS_LOADER", place.path("vm.toml"));
    command.env("EXITLESS_ROOT", place.path("nowhere")).env("PATH", place.path("tmp"));
    command
}

/// What it says, where it fails.
fn refusal(place: &Place, mut command: Command, ending: &str) -> String {
    let (status, text) = end(command.spawn().unwrap());
    assert_eq!(status.code(), Some(1), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert_eq!(fs::read(place.path(&format!("old.{ending}"))).unwrap(), b"old");
    assert_eq!(place.left_over(), NOTHING);
    text
}

#[test]
fn the_boot_image_is_written_whole() {
    let place = place();
    let (status, text) = end(image(&place, "plan", &[]).spawn().unwrap());
    assert_eq!((status.code(), text.as_str()), (Some(0), ""));
    let bytes = fs::read(place.path("old.plan")).unwrap();
    assert_eq!(plan::image::parse(&bytes).unwrap().plan.vms[0].name, "a");
}

#[test]
fn a_loader_that_is_none_is_named() {
    for ending in ["efi", "img"] {
        let place = place();
        let mut command = image(&place, ending, &[]);
        command.env("EXITLESS_HYPERVISOR", env!("CARGO_BIN_EXE_exitless"));
        let text = refusal(&place, command, ending);
        let said = "vm.toml can't be used: it is no PE32+ program for x86-64";
        assert!(text.starts_with("exitless: the UEFI loader ") && text.contains(said), "{text}");
    }
}

#[test]
fn a_hypervisor_that_is_none_is_named() {
    let place = place();
    let text = refusal(&place, image(&place, "efi", &[]), "efi");
    let said = "kernel can't be used: it is no 64-bit little-endian ELF file";
    assert!(text.starts_with("exitless: the hypervisor ") && text.contains(said), "{text}");
}

#[test]
fn a_tool_that_is_missing_is_told_with_its_package() {
    let place = place();
    let text = refusal(&place, image(&place, "iso", &[]), "iso");
    assert!(text.contains("an ISO is made with GRUB's tools, and not all of them are"), "{text}");
    assert!(text.contains(" xorriso mtools"), "{text}");
    let pem = place.path("vm.toml");
    let both = "-----BEGIN PRIVATE KEY-----\n-----BEGIN CERTIFICATE-----\n";
    fs::write(place.path("key.pem"), both).unwrap();
    let key = place.path("key.pem");
    let [key, pem] = [key, pem].map(|path| path.to_str().unwrap().to_owned());
    let signed = image(&place, "efi", &["--sign", &key, "--certificate", &key]);
    let text = refusal(&place, signed, "efi");
    assert!(text.contains("install sbsigntool openssl"), "{text}");
    let signed = image(&place, "efi", &["--sign", &key, "--certificate", &pem]);
    let text = refusal(&place, signed, "efi");
    assert!(text.contains("--certificate: ") && text.contains("vm.toml is no PEM file"), "{text}");
}

#[test]
fn a_full_disk_is_told() {
    let place = place();
    let link = place.path("old.plan");
    fs::remove_file(&link).unwrap();
    symlink("/dev/full", &link).unwrap();
    let (status, text) = end(image(&place, "plan", &[]).spawn().unwrap());
    assert_eq!(status.code(), Some(1));
    assert!(text.contains("old.plan can't be written: No space left on device"), "{text}");
}
