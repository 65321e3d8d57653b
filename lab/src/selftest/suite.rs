//! UEFI firmware for emulated machines, by the suite of Debian that it is from: whatever this
//! machine has installed, the same are tried.

use anyhow::Result;
use exitless::{context::Context, recipe};
use std::{fs, path::PathBuf};

/// The suite of Debian that a machine's UEFI firmware is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// Debian 12.
    Bookworm,
    /// Debian 13.
    Trixie,
}

impl Suite {
    /// All of them.
    pub const ALL: [Suite; 2] = [Suite::Bookworm, Suite::Trixie];

    /// Its name in a mirror.
    pub const fn name(self) -> &'static str {
        match self {
            Suite::Bookworm => "bookworm",
            Suite::Trixie => "trixie",
        }
    }

    /// Takes the firmware out of its package, once.
    pub fn fetch(self, cx: &Context) -> Result<()> {
        let recipe = cx.root.join("cli/ovmf/build");
        recipe::make_one(&recipe, &self.folder(cx), &[self.name()], "firmware")
    }

    /// The folder of the firmware that was fetched.
    pub fn ovmf(self, cx: &Context) -> PathBuf {
        self.folder(cx).join("usr/share/OVMF")
    }

    /// Name and version of what was fetched.
    pub fn version(self, cx: &Context) -> String {
        let said = fs::read_to_string(self.folder(cx).join("versions"));
        said.map_or_else(|_| "?".into(), |version| version.trim().to_owned())
    }

    fn folder(self, cx: &Context) -> PathBuf {
        cx.root.join("build").join(format!("ovmf-{}", self.name()))
    }
}
