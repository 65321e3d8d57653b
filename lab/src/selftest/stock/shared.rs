//! What the tests below a stock QEMU have in common.

use std::{collections::HashMap, path::Path, time::Duration};

/// Two boots, and rounds of fio, on a slow machine.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// QEMU's character device at the socket of this device, which it connects to again and again.
pub fn chardev(name: &str, folder: &Path) -> String {
    let socket = folder.join(format!("{name}.sock"));
    format!("socket,id={name},path={},reconnect-ms=100", socket.display())
}

/// The words of a line that are pairs.
pub fn pairs(line: &str) -> HashMap<&str, &str> {
    line.split_whitespace().filter_map(|word| word.split_once('=')).collect()
}
