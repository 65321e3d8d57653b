//! The release of a Linux kernel, and what its configuration says.
//!
//! Guarantees: an option is told to be missing if the configuration was read, or if it is one that
//! Debian's kernels for clouds are known to lack.

use std::{fs, io::Read, path::Path};

/// More than any configuration of a kernel.
const MAX_CONFIG: u64 = 4 << 20;
/// What Debian's kernels for clouds lack (those of bookworm were looked at), of what is asked here.
const CLOUD_LACKS: [&str; 4] =
    ["CONFIG_IGB", "CONFIG_E1000E", "CONFIG_IGBVF", "CONFIG_VIRTIO_IOMMU"];

/// The release of a bzImage (The Linux/x86 Boot Protocol, `kernel_version`): "6.1.0-9-amd64".
pub fn release(kernel: &[u8]) -> Option<String> {
    let field =
        |at: usize| kernel.get(at..at + 2).map(|b| usize::from(b[0]) | usize::from(b[1]) << 8);
    let is_linux = kernel.get(0x202..0x206) == Some(b"HdrS");
    let start = is_linux.then(|| field(0x20E)).flatten().filter(|offset| *offset != 0)? + 0x200;
    let text = kernel.get(start..)?;
    let end = text.iter().take(128).position(|b| *b == b' ' || *b == 0)?;
    let release = str::from_utf8(&text[..end]).ok()?;
    let plain = |c: char| c.is_ascii_alphanumeric() || ".+-_~".contains(c);
    (!release.is_empty() && release.chars().all(plain)).then(|| release.to_owned())
}

/// What a configuration says of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Built in.
    BuiltIn,
    /// A module.
    Module,
    /// Left out.
    Missing,
    /// The configuration wasn't found.
    Unknown,
}

/// A kernel's configuration.
pub enum Config {
    /// As its build wrote it.
    Text(String),
    /// Debian's for clouds, whose file isn't there: it leaves out what clouds don't have.
    DebianCloud,
    /// It isn't known.
    NotFound,
}

impl Config {
    /// Beside the kernel, or where the system has it.
    pub fn find(kernel: &Path, release: &str, boot: &Path) -> Config {
        let folders = [kernel.parent().unwrap_or(Path::new("")), boot];
        let text = folders.iter().find_map(|folder| {
            let mut text = String::new();
            let file = fs::File::open(folder.join(format!("config-{release}"))).ok()?;
            file.take(MAX_CONFIG).read_to_string(&mut text).ok()?;
            text.contains("CONFIG_").then_some(text)
        });
        match text {
            Some(text) => Config::Text(text),
            None if release.ends_with("-cloud-amd64") => Config::DebianCloud,
            None => Config::NotFound,
        }
    }

    /// What it says of this option.
    pub fn state(&self, option: &str) -> State {
        match self {
            Config::Text(text) => {
                let value = text.lines().find_map(|l| l.strip_prefix(option)?.strip_prefix('='));
                match value.map(str::trim_end) {
                    Some("y") => State::BuiltIn,
                    Some("m") => State::Module,
                    _ => State::Missing,
                }
            }
            Config::DebianCloud if CLOUD_LACKS.contains(&option) => State::Missing,
            Config::DebianCloud | Config::NotFound => State::Unknown,
        }
    }
}
