//! The examples of `docs/examples.md`, taken from the page and run: QEMU, libvirt; and Cloud
//! Hypervisor's options against its own description of them.
//!
//! Guarantees: what runs is the page's text, but for its two folders and the word for KVM. A guest
//! has booted from the disk by its firmware and written to it, and its frames have crossed the
//! switch, or the test fails. Not shown: that an operating system works with it (`daemon/linux` of
//! `exitless test` is that).

#[allow(dead_code, reason = "the other tests have the rest")]
mod front_end {
    pub mod guest;
    pub mod station;
    pub mod wire;
}

use front_end::guest::{Place, block, page};
use front_end::station::Station;

/// The guest of the page runs with the front end that `start` starts; it is ended before the
/// folder is gone.
fn guest_runs<F>(place: &Place, start: impl FnOnce(&Place) -> F) {
    let _daemon = place.daemon();
    let mut peer = Station::connect(&place.path("run/db-net.sock"));
    let front_end = start(place);
    // Firmware may look for neighbours first.
    let mut frames = (0..FRAMES).map(|_| peer.receive_from_firmware());
    assert!(frames.any(|frame| is_request(&frame)), "no DHCP request came");
    assert!(place.was_written(), "the guest booted from another disk, or couldn't write to it");
    drop(front_end);
}

/// Frames of which one must be a DHCP request.
const FRAMES: usize = 100;

/// Broadcast, from the address of `io.toml`; IPv4, UDP from port 68 to 67.
fn is_request(frame: &[u8]) -> bool {
    frame.len() > 38
        && frame.starts_with(&[0xff; 6])
        && frame[6..14] == [2, 0, 0, 0, 0, 1, 8, 0]
        && (frame[23], &frame[34..38]) == (17, &[0, 68, 0, 67][..])
}

#[test]
#[ignore = "a step of its own in `exitless test`: it needs QEMU"]
fn example_of_qemu() {
    guest_runs(&Place::new(), |place| place.start("sh", &["-euc", &qemu(place, "sh qemu")]));
}

#[test]
#[ignore = "a step of its own in `exitless test`: it needs QEMU, OVMF and GRUB"]
fn example_of_qemu_with_uefi() {
    let place = Place::with_uefi_disk();
    let _daemon = place.daemon();
    // What boots switches the machine off, so that it ends by itself.
    place.run("timeout", &["300", "sh", "-euc", &qemu(&place, "sh qemu-uefi")]);
    assert!(place.was_written(), "the guest booted from another disk, or couldn't write to it");
}

fn qemu(place: &Place, kind: &str) -> String {
    place.text(&block(&page(), kind)).replace("-accel kvm", "-accel tcg")
}

#[test]
#[ignore = "a step of its own in `exitless test`: it needs libvirt"]
fn example_of_libvirt() {
    guest_runs(&Place::new(), |place| {
        let text = place.text(&block(&page(), "xml"));
        place.write("web.xml", &text.replace("<domain type='kvm'>", "<domain type='qemu'>"));
        place.run("virt-xml-validate", &["web.xml", "domain"]);
        // Logs without a daemon of their own; nothing that outlives the test.
        place.write("config/libvirt/qemu.conf", "stdio_handler = \"file\"\n");
        let libvirt = place.start("libvirtd", &[]).until(place, "runtime/libvirt/libvirt-sock");
        place.run("virsh", &["-c", "qemu:///session", "create", "web.xml"]);
        (Destroyed(place.clone()), libvirt)
    });
}

/// A domain that ends with the test.
struct Destroyed(Place);

impl Drop for Destroyed {
    fn drop(&mut self) {
        self.0.run("virsh", &["-c", "qemu:///session", "destroy", "web"]);
    }
}

/// What `cloud-hypervisor --help` of version 54 says of what the page uses.
const OPTIONS: [(&str, &[&str]); 7] = [
    ("--cpus", &["boot", "max", "topology", "kvm_hyperv", "max_phys_bits", "affinity", "features"]),
    (
        "--memory",
        &["size", "mergeable", "shared", "hugepages", "hugepage_size", "hotplug_method", "thp"],
    ),
    ("--firmware", &[]),
    (
        "--disk",
        &["path", "readonly", "direct", "num_queues", "queue_size", "vhost_user", "socket", "id"],
    ),
    (
        "--net",
        &["tap", "mac", "num_queues", "queue_size", "vhost_user", "socket", "vhost_mode", "id"],
    ),
    ("--serial", &[]),
    ("--console", &[]),
];

#[test]
fn example_of_cloud_hypervisor_has_options_that_it_describes() {
    let text = block(&page(), "sh cloud-hypervisor").replace("\\\n", " ");
    let mut words = text.split_whitespace();
    assert_eq!(words.next(), Some("cloud-hypervisor"));
    let (mut shares, mut served) = (false, 0);
    while let Some(option) = words.next() {
        let known = OPTIONS.iter().find(|(name, _)| *name == option);
        let (_, keys) = known.unwrap_or_else(|| panic!("{option} isn't described"));
        let value = words.next().expect("each has a value");
        for pair in value.split(',').filter(|_| !keys.is_empty()) {
            let (key, word) = pair.split_once('=').expect("a key and a value");
            assert!(keys.contains(&key), "{option} has no {key}");
            shares |= (key, word) == ("shared", "on");
            let named = key == "socket" && block(&page(), "toml").contains(&format!("\"{word}\""));
            served += usize::from(named);
        }
    }
    assert!(shares && served == 2, "memory that is shared, and sockets of io.toml");
}

/// Where there is neither QEMU nor libvirt, too: the file is one that the daemon takes.
#[test]
fn the_daemon_takes_the_file() {
    let place = Place::new();
    let _daemon = place.daemon();
    for socket in ["web.sock", "web-net.sock", "db-net.sock", "control"] {
        assert!(place.has(&format!("run/{socket}")), "{socket}");
    }
}
