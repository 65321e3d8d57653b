//! What a command needs of this machine that not every command does. It is found out when the
//! command is about to need it, and the checkout's script installs what is missing.

use crate::context::{Context, LOADER, UEFI_TARGET};
use anyhow::{Context as _, Result, bail};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
};

/// The variable of the environment that names a folder with another firmware.
const OVMF_FOLDER: &str = "EXITLESS_OVMF";
/// Where Debian and Ubuntu have GRUB's modules, and UEFI firmware for QEMU.
const GRUB: &str = "/usr/lib/grub";
const OVMF: &str = "/usr/share/OVMF";
/// Where Debian and Ubuntu have libvirt's drivers.
const LIBVIRT: &str = "/usr/lib/x86_64-linux-gnu/libvirt/connection-driver";

/// Where they have a folder of DPDK's drivers for each of its versions.
const DPDK: &str = "/usr/lib/x86_64-linux-gnu/dpdk";

/// Has the checkout's script install `word`, where `missing` says that it isn't there; if it still
/// isn't then, the error is what `missing` says.
pub fn install<S: AsRef<str>>(
    cx: &Context,
    word: &str,
    missing: impl Fn() -> Option<S>,
) -> Result<()> {
    /// Two at a time would find the package manager busy.
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _one = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(sentence) = missing() else { return Ok(()) };
    let mut script = Command::new(cx.root.join("exitless"));
    script.args(["--install", word]).stdin(Stdio::null()).stdout(Stdio::null());
    let status = script.status().with_context(|| sentence.as_ref().to_owned())?;
    match missing() {
        None if status.success() => Ok(()),
        _ => bail!("{}", sentence.as_ref()),
    }
}

/// What the UEFI loader is built with, if it is built.
pub fn loader(cx: &Context) -> Result<()> {
    if env::var_os(LOADER).is_some() {
        return Ok(());
    }
    let there = || {
        let mut rustc = Command::new("rustc");
        rustc.args(["--print", "target-libdir", "--target", UEFI_TARGET]);
        let found = rustc.stderr(Stdio::null()).output().ok()?;
        let folder = String::from_utf8(found.stdout).ok()?;
        Path::new(folder.trim()).is_dir().then_some(())
    };
    install(cx, "loader", || match there() {
        Some(()) => None,
        None => Some(format!(
            "Rust's target {UEFI_TARGET} is missing, and the UEFI loader is built for it; add it with: rustup target add {UEFI_TARGET}"
        )),
    })
}

/// What makes an ISO that BIOS and UEFI firmware start.
pub fn grub(cx: &Context) -> Result<()> {
    install(cx, "grub", || {
        let module = |platform| Path::new(GRUB).join(platform).is_dir();
        packages(
            "an ISO is made with GRUB's tools",
            &[
                (on_path("grub-mkrescue"), "grub-common"),
                (module("i386-pc"), "grub-pc-bin"),
                (module("x86_64-efi"), "grub-efi-amd64-bin"),
                (on_path("xorriso"), "xorriso"),
                (on_path("mformat"), "mtools"),
            ],
        )
    })
}

/// The folder of the emulated machine's UEFI firmware: one that [`OVMF_FOLDER`] names, or the
/// system's.
pub fn ovmf(cx: &Context) -> Result<PathBuf> {
    if let Some(folder) = env::var_os(OVMF_FOLDER) {
        return Ok(PathBuf::from(folder));
    }
    let folder = Path::new(OVMF);
    install(cx, "ovmf", || {
        let there = folder.join("OVMF_CODE_4M.fd").is_file();
        packages("the emulated machine's UEFI firmware is a package", &[(there, "ovmf")])
    })?;
    Ok(folder.to_owned())
}

/// What signs UEFI programs.
pub fn signing(cx: &Context) -> Result<()> {
    install(cx, "signing", || {
        packages(
            "a UEFI program is signed by sbsign",
            &[(on_path("sbsign"), "sbsigntool"), (on_path("openssl"), "openssl")],
        )
    })
}

/// QEMU's server of disks, which the daemon is compared with.
pub fn storage_daemon(cx: &Context) -> Result<()> {
    install(cx, "storage-daemon", || {
        let there = on_path("qemu-storage-daemon");
        packages("the daemon is compared with QEMU's storage daemon", &[(there, "qemu-utils")])
    })
}

/// A program that no package has.
pub fn program(name: &str) -> Result<()> {
    if !on_path(name) {
        bail!("{name} isn't on PATH, and no package has it");
    }
    Ok(())
}

/// DPDK's testpmd with its driver for vhost, which the daemon's switch is compared with.
pub fn testpmd(cx: &Context) -> Result<()> {
    install(cx, "testpmd", || {
        let folders = fs::read_dir(DPDK).into_iter().flatten().flatten();
        let driver =
            folders.map(|folder| folder.path()).any(|at| at.join("librte_net_vhost.so").exists());
        packages(
            "the daemon's networks are compared with DPDK's testpmd",
            &[(on_path("dpdk-testpmd"), "dpdk-dev"), (driver, "librte-net-vhost")],
        )
    })
}

/// The NBD servers that the daemon is tried with.
pub fn nbd_servers(cx: &Context) -> Result<()> {
    install(cx, "nbd-servers", || {
        packages(
            "the daemon is tried with two NBD servers",
            &[(on_path("qemu-nbd"), "qemu-utils"), (on_path("nbdkit"), "nbdkit")],
        )
    })
}

/// What other users and TAPs are tried with.
pub fn root_and_tap() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("it needs root, to be another user and to make a TAP");
    }
    match std::fs::File::open("/dev/net/tun") {
        Ok(_) if on_path("ip") => Ok(()),
        Ok(_) => bail!("it needs the command ip, from the package iproute2"),
        Err(error) => bail!("/dev/net/tun can't be opened: {error}"),
    }
}

/// A free huge page of 2 MiB.
pub fn huge_page() -> Result<()> {
    let free = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
    match std::fs::read_to_string(free).map(|text| text.trim().parse::<u64>()) {
        Ok(Ok(1..)) => Ok(()),
        _ => bail!("no huge page of 2 MiB is free; sysctl vm.nr_hugepages=1 sets one aside"),
    }
}

/// What the examples of the docs are run with, beside QEMU.
pub fn libvirt(cx: &Context) -> Result<()> {
    install(cx, "libvirt", || {
        let server = on_path("libvirtd") || Path::new("/usr/sbin/libvirtd").is_file();
        let driver = Path::new(LIBVIRT).join("libvirt_driver_qemu.so").is_file();
        packages(
            "the docs' examples are run with libvirt",
            &[
                (server, "libvirt-daemon"),
                (driver, "libvirt-daemon-driver-qemu"),
                (on_path("virsh"), "libvirt-clients"),
                (on_path("xmllint"), "libxml2-utils"),
            ],
        )
    })
}

/// Which packages `what` lacks, of pairs of "is it there" and the package.
fn packages(what: &str, needed: &[(bool, &str)]) -> Option<String> {
    let missing: Vec<_> = needed.iter().filter(|(there, _)| !there).map(|(_, p)| *p).collect();
    (!missing.is_empty())
        .then(|| format!("{what}, and not all of them are here; install {}", missing.join(" ")))
}

/// Whether there is a program of this name.
fn on_path(program: &str) -> bool {
    let folders = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&folders).any(|folder| folder.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{cell::Cell, fs, os::unix::fs::PermissionsExt};

    #[test]
    fn the_packages_that_are_missing_are_named() {
        assert_eq!(packages("it needs both", &[(true, "a"), (true, "b")]), None);
        let said = "it needs both, and not all of them are here; install b c";
        let needed = [(true, "a"), (false, "b"), (false, "c")];
        assert_eq!(packages("it needs both", &needed).as_deref(), Some(said));
        assert!(on_path("sh") && !on_path("no such program"));
    }

    #[test]
    fn the_script_installs_what_is_missing_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let mut cx = Context::for_tests();
        cx.root = folder.path().to_owned();
        let script = |text: &str| {
            let path = folder.path().join("exitless");
            fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        };
        // Without a script, what is there needs none, and what isn't is told.
        install(&cx, "it", || None::<&str>).unwrap();
        let error = install(&cx, "it", || Some("it is missing; install it")).unwrap_err();
        assert!(error.to_string().starts_with("it is missing; install it"));
        let made = folder.path().join("made");
        let missing = || (!made.exists()).then_some("it is missing");
        script("exit 1");
        assert_eq!(install(&cx, "it", missing).unwrap_err().to_string(), "it is missing");
        script("[ \"$*\" = '--install it' ] && touch \"$(dirname \"$0\")/made\"");
        install(&cx, "it", missing).unwrap();
        // It must be there then, whatever the script says of itself.
        let asked = Cell::new(0);
        let never = || {
            asked.set(asked.get() + 1);
            Some("it is missing")
        };
        assert!(install(&cx, "it", never).is_err());
        assert_eq!(asked.get(), 2);
    }
}
