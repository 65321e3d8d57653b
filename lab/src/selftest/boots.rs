//! The ways to the hypervisor, each to a guest that works with its device, and the table of
//! docs/hardware.md.
//!
//! Guarantees: what is booted is made as `exitless image` makes it; the table in the docs is what
//! the last run that had all of them saw, and nobody types it.

use super::{
    case::{Case, Expect, Special},
    cases::{case, guest},
    suite::Suite,
};
use crate::{document, summary::Summary};
use anyhow::{Context as _, Result};
use exitless::{
    context::Context,
    needs,
    source::{Trust, Way},
};
use plan::Policy;
use std::process::Command;

/// A way, and what starts what from what.
struct Kind {
    name: &'static str,
    way: Way,
    trust: Trust,
    what: &'static str,
}

const KINDS: [Kind; 8] = [
    kind("pvh", Way::Pvh, "QEMU loads the hypervisor and the boot image"),
    kind("grub-bios", Way::GrubBios, "a CD, `.iso`: GRUB, multiboot2"),
    kind("uefi-disk", Way::Uefi, "a SATA disk, `.img`"),
    kind("uefi-kernel", Way::UefiKernel, "the program alone, `.efi`, by `-kernel`"),
    kind("grub-efi", Way::GrubEfi, "the CD, `.iso`: GRUB, multiboot2"),
    kind("pxe", Way::Pxe, "DHCP and TFTP give the program, `.efi`"),
    Kind {
        trust: Trust::Signed,
        ..kind("secure-signed", Way::Uefi, "Secure Boot, a disk whose program is signed")
    },
    Kind {
        trust: Trust::Missing,
        ..kind("secure-unsigned", Way::Uefi, "Secure Boot, a disk whose program isn't signed")
    },
];

const fn kind(name: &'static str, way: Way, what: &'static str) -> Kind {
    Kind { name, way, trust: Trust::Anything, what }
}

/// A row of the table.
#[derive(Clone, Copy)]
struct Row {
    kind: &'static Kind,
    /// Whose UEFI firmware it has, if it has that.
    suite: Option<Suite>,
}

/// Each kind, by each firmware that it can have.
fn rows() -> impl Iterator<Item = Row> {
    let one = |kind: &'static Kind| match kind.way {
        Way::Pvh | Way::GrubBios => vec![Row { kind, suite: None }],
        _ => Suite::ALL.map(|suite| Row { kind, suite: Some(suite) }).into(),
    };
    KINDS.iter().flat_map(one)
}

impl Row {
    fn case_name(&self) -> String {
        let by = self.suite.map(|suite| format!("-{}", suite.name())).unwrap_or_default();
        format!("boot/{}{by}", self.kind.name)
    }

    /// What the hypervisor says of how it was started.
    fn said(&self) -> &'static str {
        match self.kind.way {
            Way::Pvh => "booted by PVH",
            Way::GrubBios | Way::GrubEfi => "booted by multiboot2",
            Way::Uefi | Way::UefiKernel | Way::Pxe => "booted by UEFI",
        }
    }

    fn is_refused(&self) -> bool {
        self.kind.trust == Trust::Missing
    }
}

/// All of them: a guest whose device interrupts it a hundred times, none of them by the host.
pub fn all() -> Vec<Case> {
    let cases = rows().map(|row| {
        let machine = Special::Boots(row.kind.way, row.kind.trust, row.suite);
        let refused = Expect::Unstarted("Access Denied");
        let expect = if row.is_refused() { refused } else { Expect::Ends };
        let guests = [guest("delivery", Policy::Direct)];
        let log = if row.is_refused() { Vec::new() } else { vec![row.said()] };
        Case { machine, expect, log, ..case(row.case_name(), false, guests) }
    });
    cases.collect()
}

/// Has what these cases need fetched, installed and built, so that no two of them do it at once and
/// no case's time has it.
pub fn prepare(cx: &Context, cases: &[Case]) -> Result<()> {
    for case in cases {
        let Special::Boots(way, trust, suite) = case.machine else { continue };
        if let Some(suite) = suite {
            suite.fetch(cx)?;
        }
        let grub = matches!(way, Way::GrubBios | Way::GrubEfi);
        if grub {
            needs::grub(cx)?;
        } else if suite.is_some() {
            needs::loader(cx)?;
            cx.loader()?;
        }
        if trust == Trust::Signed {
            needs::signing(cx)?;
        }
    }
    Ok(())
}

/// Whether all of them are among these cases.
pub fn has_all(cases: &[Case]) -> bool {
    rows().all(|row| cases.iter().any(|case| case.name == row.case_name()))
}

/// Brings the document up to date, after a run of all of them.
pub fn write(cx: &Context, summary: &Summary) -> Result<()> {
    let bios = first_line(Command::new(cx.qemu(None)?.program()).arg("--version"))?;
    let bios = bios.split(" (").next().unwrap_or_default().replace(" emulator version", "");
    let firmware = |row: Row| match (row.suite, row.kind.way) {
        (None, Way::Pvh) => "none".to_owned(),
        (None, _) => format!("SeaBIOS of {bios}"),
        (Some(suite), _) => suite.version(cx),
    };
    document::write(&cx.root, "docs/hardware.md", "table", &table(firmware, summary))
}

fn table(firmware: impl Fn(Row) -> String, summary: &Summary) -> String {
    let mut text = String::from(
        "| test | firmware | starts | comes to | millions of instructions |\n|---|---|---|---|---|\n",
    );
    for row in rows() {
        let came_to = match (summary.culprits.contains(&row.case_name()), row.is_refused()) {
            (true, _) => "**fails**",
            (false, true) => "refused by firmware, as it must be",
            (false, false) => "a guest: 100 interrupts of its device, 0 exits for them",
        };
        let (name, what) = (row.case_name(), row.kind.what);
        let entered = summary.entered.iter().find(|(case, _)| *case == name);
        let entered = entered.map_or("".into(), |(_, n)| format!("{:.1}", *n as f64 / 1e6));
        text += &format!("| `{name}` | {} | {what} | {came_to} | {entered} |\n", firmware(row));
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
        let entered = vec![("boot/pvh".to_owned(), 36_149_999)];
        let failed = Summary { entered, ..Summary::one("boot/pxe-trixie", false) };
        let table = table(|_| "F".to_owned(), &failed);
        let row = |name: &str| {
            table.lines().find(|line| line.contains(&format!("`boot/{name}`"))).unwrap().to_owned()
        };
        assert!(row("pxe-trixie").ends_with("| **fails** |  |"));
        assert!(row("pxe-bookworm").ends_with("0 exits for them |  |"));
        assert!(row("pvh").ends_with("0 exits for them | 36.1 |"));
        assert!(
            row("secure-unsigned-trixie").ends_with("| refused by firmware, as it must be |  |")
        );
        assert_eq!(table.lines().count(), 2 + 2 + 6 * Suite::ALL.len());
    }
}
