//! The ways to the hypervisor, each to a guest that works with its device, and the table of
//! docs/hardware.md.
//!
//! Guarantees: what is booted is made as `exitless image` makes it; the table in the docs is what
//! the last run that had all of them saw, and nobody types it.

use super::{
    case::{Case, Expect, Special},
    cases::{case, guest},
};
use crate::{document, summary::Summary};
use anyhow::{Context as _, Result};
use exitless::{
    context::Context,
    needs,
    source::{Trust, Way},
};
use plan::Policy;
use std::{env, process::Command};

/// A row of the table.
struct Row {
    name: &'static str,
    way: Way,
    trust: Trust,
    /// What starts what, from what.
    what: &'static str,
    firmware: Firmware,
}

/// Whose firmware, for the table.
#[derive(Clone, Copy)]
enum Firmware {
    None,
    Bios,
    Uefi,
}

const ROWS: [Row; 8] = [
    Row {
        name: "pvh",
        way: Way::Pvh,
        trust: Trust::Anything,
        what: "QEMU loads the hypervisor and the boot image",
        firmware: Firmware::None,
    },
    Row {
        name: "uefi-disk",
        way: Way::Uefi,
        trust: Trust::Anything,
        what: "a SATA disk, `.img`",
        firmware: Firmware::Uefi,
    },
    Row {
        name: "uefi-kernel",
        way: Way::UefiKernel,
        trust: Trust::Anything,
        what: "the program alone, `.efi`, by `-kernel`",
        firmware: Firmware::Uefi,
    },
    Row {
        name: "grub-bios",
        way: Way::GrubBios,
        trust: Trust::Anything,
        what: "a CD, `.iso`: GRUB, multiboot2",
        firmware: Firmware::Bios,
    },
    Row {
        name: "grub-efi",
        way: Way::GrubEfi,
        trust: Trust::Anything,
        what: "the same CD: GRUB, multiboot2",
        firmware: Firmware::Uefi,
    },
    Row {
        name: "pxe",
        way: Way::Pxe,
        trust: Trust::Anything,
        what: "DHCP and TFTP give the program, `.efi`",
        firmware: Firmware::Uefi,
    },
    Row {
        name: "secure-signed",
        way: Way::Uefi,
        trust: Trust::Signed,
        what: "Secure Boot, a disk whose program is signed",
        firmware: Firmware::Uefi,
    },
    Row {
        name: "secure-unsigned",
        way: Way::Uefi,
        trust: Trust::Missing,
        what: "Secure Boot, a disk whose program isn't signed",
        firmware: Firmware::Uefi,
    },
];

impl Row {
    fn case_name(&self) -> String {
        format!("boot/{}", self.name)
    }

    /// What the hypervisor says of how it was started.
    fn said(&self) -> &'static str {
        match self.way {
            Way::Pvh => "booted by PVH",
            Way::GrubBios | Way::GrubEfi => "booted by multiboot2",
            Way::Uefi | Way::UefiKernel | Way::Pxe => "booted by UEFI",
        }
    }

    fn is_refused(&self) -> bool {
        self.trust == Trust::Missing
    }
}

/// All of them: a guest whose device interrupts it a hundred times, none of them by the host.
pub fn all() -> Vec<Case> {
    let cases = ROWS.iter().map(|row| {
        let machine = Special::Boots(row.way, row.trust);
        let refused = Expect::Unstarted("Access Denied");
        let expect = if row.is_refused() { refused } else { Expect::Ends };
        let guests = [guest("delivery", Policy::Direct)];
        let log = if row.is_refused() { Vec::new() } else { vec![row.said()] };
        Case { machine, expect, log, ..case(row.case_name(), false, guests) }
    });
    cases.collect()
}

/// Has what these cases need installed and built, so that no two of them do it at once and no
/// case's time has it.
pub fn prepare(cx: &Context, cases: &[Case]) -> Result<()> {
    for case in cases {
        let Special::Boots(way, trust) = case.machine else { continue };
        let grub = matches!(way, Way::GrubBios | Way::GrubEfi);
        let uefi = !matches!(way, Way::Pvh | Way::GrubBios);
        if grub {
            needs::grub(cx)?;
        }
        if uefi {
            needs::ovmf(cx)?;
        }
        if uefi && !grub {
            needs::loader(cx)?;
            cx.loader()?;
        }
        if trust == Trust::Signed {
            needs::signing(cx)?;
        }
    }
    Ok(())
}

/// Whether all of them are among these cases, with the firmware that the table names.
pub fn has_all(cases: &[Case]) -> bool {
    let own = env::var_os(needs::OVMF_FOLDER).is_none();
    own && ROWS.iter().all(|row| cases.iter().any(|case| case.name == row.case_name()))
}

/// Brings the document up to date, after a run of all of them.
pub fn write(cx: &Context, summary: &Summary) -> Result<()> {
    let bios = first_line(Command::new(cx.qemu(None)?.program()).arg("--version"))?;
    let bios = bios.split(" (").next().unwrap_or_default().replace(" emulator version", "");
    let uefi = first_line(Command::new("dpkg-query").args(["-W", "-f=${Version}", "ovmf"]))?;
    let firmware = |firmware| match firmware {
        Firmware::None => "none".to_owned(),
        Firmware::Bios => format!("SeaBIOS of {bios}"),
        Firmware::Uefi => format!("OVMF {uefi}"),
    };
    document::write(&cx.root, "docs/hardware.md", "table", &table(firmware, summary))
}

fn table(firmware: impl Fn(Firmware) -> String, summary: &Summary) -> String {
    let mut text = String::from("| test | firmware | starts | comes to |\n|---|---|---|---|\n");
    for row in &ROWS {
        let came_to = match (summary.culprits.contains(&row.case_name()), row.is_refused()) {
            (true, _) => "**fails**",
            (false, true) => "refused by firmware, as it must be",
            (false, false) => "a guest: 100 interrupts of its device, 0 exits for them",
        };
        let (name, what) = (row.case_name(), row.what);
        text += &format!("| `{name}` | {} | {what} | {came_to} |\n", firmware(row.firmware));
    }
    text
}

fn first_line(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("{name} can't be started"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().next().unwrap_or("?").trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_stands_in_the_table_and_what_firmware_must_refuse_is_no_guest() {
        let failed = Summary::one("boot/pxe", false);
        let table = table(|_| "F".to_owned(), &failed);
        let row = |name: &str| {
            table.lines().find(|line| line.contains(&format!("`boot/{name}`"))).unwrap().to_owned()
        };
        assert!(row("pxe").ends_with("| **fails** |"));
        assert!(row("pvh").ends_with("0 exits for them |"));
        assert!(row("secure-unsigned").ends_with("| refused by firmware, as it must be |"));
        assert_eq!(table.lines().count(), 2 + ROWS.len());
    }
}
