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

/// Starts a server program, and waits for its socket.
pub fn program(name: &str, arguments: &[&str], socket: &Path) -> Program {
    let started = Command::new(name).args(arguments).spawn();
    let mut child = started.unwrap_or_else(|error| panic!("{name}: {error}"));
    while !socket.exists() {
        assert_eq!(child.try_wait().expect("it is ours"), None, "{name} ended");
        std::thread::yield_now();
    }
    Program(child)
}
