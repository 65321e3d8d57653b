//! Servers of others, as programs.

use std::path::Path;
use std::process::{Child, Command};

/// A server program, ended with the test.
pub struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server program, and waits until it listens: between its socket's file and that, who
/// connects is refused.
pub fn program(name: &str, arguments: &[&str], socket: &Path) -> Program {
    let started = Command::new(name).args(arguments).spawn();
    let mut child = started.unwrap_or_else(|error| panic!("{name}: {error}"));
    while !is_listened_at(socket) {
        assert_eq!(child.try_wait().expect("it is ours"), None, "{name} ended");
        std::thread::yield_now();
    }
    Program(child)
}

/// By the kernel's list; to connect would be somebody's connection (`proc(5)`: flag `ACCEPTCON`).
fn is_listened_at(socket: &Path) -> bool {
    let list = std::fs::read_to_string("/proc/net/unix").expect("the kernel's list");
    list.lines().any(|line| {
        let mut words = line.split_whitespace().skip(3);
        words.next() == Some("00010000") && words.nth(3).map(Path::new) == Some(socket)
    })
}
