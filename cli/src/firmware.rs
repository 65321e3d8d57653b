//! Firmware of the emulated machine, and from what it boots, as arguments for QEMU.
//!
//! Guarantees: the firmware's code and what is on a CD are never written to; what is booted is
//! the machine's first choice, whatever else it has.

use crate::options::file_option;
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

/// A controller that only firmware uses, where none is that a plan can name, so that its place in
/// PCI order is after theirs.
const BOOT_NIC_SLOT: u32 = 0x1E;

/// What firmware the machine has, and from what it boots.
#[derive(Clone, Debug)]
pub struct Firmware {
    /// UEFI firmware, else QEMU's BIOS.
    pub flash: Option<Flash>,
    /// From what.
    pub medium: Medium,
}

/// UEFI firmware.
#[derive(Clone, Debug)]
pub struct Flash {
    /// Its code, which stays as it is.
    pub code: PathBuf,
    /// Its variables, which it writes to.
    pub variables: PathBuf,
    /// Whether it starts nothing but what is signed.
    pub secure: bool,
}

/// From what a machine boots; the file is a raw one.
#[derive(Clone, Debug)]
pub enum Medium {
    /// A SATA disk.
    Disk(PathBuf),
    /// A CD.
    Cd(PathBuf),
    /// A UEFI program that QEMU hands to the firmware.
    Program(PathBuf),
    /// A UEFI program on a TFTP server.
    Network(PathBuf),
}

impl Firmware {
    /// Whether system-management mode guards the variables.
    pub fn is_secure(&self) -> bool {
        self.flash.as_ref().is_some_and(|flash| flash.secure)
    }

    /// QEMU's arguments.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut args = Vec::new();
        let mut add = |option: &str, value: OsString| args.extend([option.into(), value]);
        if let Some(flash) = &self.flash {
            let drive = |unit: u32, more, path| {
                file_option(&format!("if=pflash,format=raw,unit={unit},{more}file="), path)
            };
            add("-drive", drive(0, "readonly=on,", &flash.code));
            add("-drive", drive(1, "", &flash.variables));
            if flash.secure {
                add("-global", "driver=cfi.pflash01,property=secure,value=on".into());
            }
        }
        let node = |more| format!("raw,node-name=boot,{more}file.driver=file,file.filename=");
        match &self.medium {
            Medium::Disk(path) => {
                add("-blockdev", file_option(&node(""), path));
                add("-device", "ide-hd,bus=ide.0,drive=boot,bootindex=0".into());
            }
            Medium::Cd(path) => {
                add("-blockdev", file_option(&node("read-only=on,"), path));
                add("-device", "ide-cd,bus=ide.0,drive=boot,bootindex=0".into());
            }
            Medium::Program(path) => add("-kernel", path.into()),
            Medium::Network(path) => {
                let (folder, name) = (path.parent(), path.file_name().unwrap_or_default());
                let mut net = file_option("user,id=boot,tftp=", folder.unwrap_or(Path::new("/")));
                net.push(file_option(",bootfile=", Path::new(name)));
                add("-netdev", net);
                let nic = "virtio-net-pci,netdev=boot,bootindex=0,romfile=";
                add("-device", format!("{nic},addr={BOOT_NIC_SLOT:#x}").into());
            }
        }
        args
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(firmware: &Firmware) -> String {
        firmware.arguments().join(" ".as_ref()).into_string().unwrap()
    }

    #[test]
    fn each_medium_is_the_one_that_is_booted() {
        let bios = |medium| line(&Firmware { flash: None, medium });
        let disk = bios(Medium::Disk("a,b".into()));
        assert!(disk.contains("file.filename=a,,b -device ide-hd,"), "{disk}");
        let cd = bios(Medium::Cd("cd".into()));
        assert!(cd.contains("read-only=on") && cd.contains("-device ide-cd,"), "{cd}");
        let net = bios(Medium::Network("/proc/1/fd/7".into()));
        assert!(net.contains("tftp=/proc/1/fd,bootfile=7 -device virtio-net-pci"), "{net}");
        for line in [disk, cd, net] {
            assert!(line.contains("bootindex=0") && !line.contains("pflash"), "{line}");
        }
        assert_eq!(bios(Medium::Program("x.efi".into())), "-kernel x.efi");
    }

    #[test]
    fn variables_are_written_to_and_code_is_not() {
        let flash = |secure| Flash { code: "code".into(), variables: "vars".into(), secure };
        let firmware =
            |secure| Firmware { flash: Some(flash(secure)), medium: Medium::Program("x".into()) };
        let plain = line(&firmware(false));
        assert!(plain.contains("unit=0,readonly=on,file=code -drive if=pflash"), "{plain}");
        assert!(plain.contains("unit=1,file=vars -kernel"), "{plain}");
        assert!(!plain.contains("secure"), "{plain}");
        assert!(line(&firmware(true)).contains("property=secure,value=on"));
        assert!(firmware(true).is_secure() && !firmware(false).is_secure());
    }
}
