//! Interfaces of a test's own, gone with it, and the other side of a switch's way out: a packet
//! socket.

use super::wire::LIMIT;
use daemon_os::{Mapping, Outgoing, Packets};
use rustix::event::{PollFd, PollFlags, poll};
use std::process::Command;

/// An interface of the test's own, gone with it.
pub struct Interface(pub String);

impl Drop for Interface {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "delete", &self.0]).status();
    }
}

pub fn ip(arguments: &[&str]) {
    let status = Command::new("ip").args(arguments).status().expect("it runs");
    assert!(status.success(), "{arguments:?}");
}

/// Names that no other test has.
pub fn names(letter: char) -> (String, String) {
    let own = std::process::id() % 100_000;
    (format!("exio{letter}{own}"), format!("exip{letter}{own}"))
}

/// The interface comes up, and the host says nothing there by itself.
pub fn bring_up(name: &str) {
    let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
    ip(&["link", "set", name, "up"]);
}

/// Waits until it takes frames: the kernel drops them between the carrier's coming and its notice
/// of that.
pub fn wait_until_up(name: &str) {
    let path = format!("/sys/class/net/{name}/operstate");
    while std::fs::read_to_string(&path).expect("it is there").trim() != "up" {
        std::thread::yield_now();
    }
    // Behind what set that: both need the same lock.
    ip(&["link", "set", name, "up"]);
}

/// Two interfaces that lead to each other, which take frames.
pub fn make_pair((near, far): &(String, String)) -> Interface {
    ip(&["link", "add", near, "type", "veth", "peer", "name", far]);
    let pair = Interface(near.clone());
    bring_up(near);
    bring_up(far);
    wait_until_up(near);
    pair
}

/// A test's station's address.
pub fn mac(number: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, number]
}

/// The other side of a way out.
pub struct Peer {
    packets: Packets,
    came: Vec<Vec<u8>>,
}

impl Peer {
    pub fn at(name: &str) -> Peer {
        wait_until_up(name);
        Self::at_once(name)
    }

    /// The same, whether or not the interface takes frames.
    pub fn at_once(name: &str) -> Peer {
        Peer { packets: Packets::open(name).expect("an interface"), came: Vec::new() }
    }

    /// The next frame that is from one of the test's addresses, behind its header.
    pub fn receive(&mut self) -> Vec<u8> {
        loop {
            if !self.came.is_empty() {
                return self.came.remove(0);
            }
            let mut waits = [PollFd::new(&self.packets, PollFlags::IN)];
            assert_eq!(poll(&mut waits, Some(&LIMIT)), Ok(1), "no frame came");
            let count = self.packets.receive().expect("it is up");
            let came = (0..count).map(|at| self.packets.came(at).to_vec());
            self.came.extend(came.filter(|bytes| bytes.get(18..23) == Some(&mac(0)[..5])));
        }
    }

    pub fn send(&mut self, header: &[u8; 12], frame: &[u8]) {
        let memory = Mapping::anonymous(4096).expect("memory");
        let all = memory.span().expect("all of it");
        all.write(0, frame).expect("inside");
        // In two parts, as frames at the end of a switch's memory are.
        let parts = [all.sub(0, 20), all.sub(20, frame.len() as u64 - 20)].map(Option::unwrap);
        self.packets.send(&[Outgoing { header: *header, parts }]);
    }
}
