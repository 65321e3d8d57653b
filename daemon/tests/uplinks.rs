//! Ways out of a switch: a TAP, and one end of a pair of interfaces. At the other side is a packet
//! socket of the test's.

#[allow(dead_code, reason = "the other tests have the rest")]
mod front_end {
    pub mod daemon;
    pub mod interface;
    pub mod station;
    pub mod wire;
}

use front_end::daemon::Daemon;
use front_end::interface::{Interface, Peer, bring_up, ip, mac, make_pair, names, wait_until_up};
use front_end::station::Station;
use std::process::Command;

/// VIRTIO_NET_F_CSUM, HOST_TSO4; GUEST_CSUM, GUEST_TSO4.
const SENDS: u64 = 1 | 1 << 11;
const TAKES: u64 = 1 << 1 | 1 << 7;
/// VIRTIO_NET_F_GUEST_USO4, HOST_USO.
const PACKETS: u64 = 1 << 54 | 1 << 56;
const HEADERS: usize = 54;
const FAR: [u8; 6] = [2, 0xfa, 0, 0, 0, 1];

const HOST: &str = "[host]\ncontrol = \"control\"\n";

/// A network, one of VLAN 7, one of any address, and this way out.
fn networks(out: &str) -> String {
    let network = |name: &str, number: u8, more: &str| {
        format!(
            "[network.{name}]\nsocket = \"{name}\"\nswitch = \"lan\"\n\
             mac = \"02:00:00:00:00:0{number}\"\n{more}"
        )
    };
    let any = "[network.any]\nsocket = \"any\"\nswitch = \"lan\"\n";
    let all = network("a", 1, "") + &network("b", 2, "vlan = 7\n") + any;
    all + &format!("[uplink.lan]\n{out}\n")
}

fn sum(bytes: &[u8], from: u32) -> u32 {
    let words = bytes
        .chunks(2)
        .map(|word| u32::from(word[0]) << 8 | word.get(1).copied().map_or(0, u32::from));
    let mut sum = words.sum::<u32>() + from;
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum
}

/// TCP over IPv4, with the sum of the pseudo header in the checksum's place.
fn tcp(to: [u8; 6], from: [u8; 6], data: &[u8]) -> Vec<u8> {
    let len = (40 + data.len()) as u16;
    let mut ip = [&[0x45, 0][..], &len.to_be_bytes(), &[0, 0, 0x40, 0, 64, 6, 0, 0]].concat();
    ip.extend([10, 0, 0, 1, 10, 0, 0, 2]);
    let check = !sum(&ip, 0) as u16;
    ip[10..12].copy_from_slice(&check.to_be_bytes());
    let pseudo = sum(&ip[12..20], 6 + u32::from(len) - 20) as u16;
    let ports = [4, 210, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 32, 0];
    let tcp = [&ports[..], &pseudo.to_be_bytes(), &[0, 0]].concat();
    [&to[..], &from, &[8, 0], &ip, &tcp, data].concat()
}

/// The header for that: segments of 400 bytes of data.
fn segments(tag: u8) -> [u8; 12] {
    [1, 1, HEADERS as u8 + tag, 0, 0x90, 1, 34 + tag, 0, 16, 0, 0, 0]
}

/// The same without what the receiver of a frame may set otherwise.
fn asked(whole: &[u8]) -> ([u8; 2], [u8; 6]) {
    (whole[..2].try_into().expect("two"), whole[4..10].try_into().expect("six"))
}

fn data() -> Vec<u8> {
    (0..1200_u32).map(|at| (at / 3) as u8).collect()
}

fn tagged(frame: &[u8]) -> Vec<u8> {
    [&frame[..12], &[0x81, 0, 0, 7], &frame[12..]].concat()
}

/// Frames go both ways: as they are, and with what is left to be done.
fn try_both_ways(daemon: &Daemon, peer: &mut Peer) {
    let plain = |to: [u8; 6], from: [u8; 6]| [&to[..], &from, &[0x88, 0xb5], &[7; 80]].concat();
    let mut a = Station::with(&daemon.path("a"), SENDS | TAKES);
    a.send(&plain(FAR, mac(1)));
    let came = peer.receive();
    assert_eq!(asked(&came), ([0; 2], [0; 6]));
    assert_eq!(came[12..], plain(FAR, mac(1)));
    peer.send(&[0; 12], &plain(mac(1), FAR));
    assert_eq!(a.receive(), plain(mac(1), FAR));

    let long = tcp(FAR, mac(1), &data());
    a.send_as(&segments(0), &long);
    let came = peer.receive();
    assert_eq!(asked(&came), asked(&segments(0)), "it isn't cut on its way");
    assert_eq!(came[12..], long);
    let back = tcp(mac(1), FAR, &data());
    peer.send(&segments(0), &back);
    let came = a.receive_whole();
    assert_eq!(asked(&came), asked(&segments(0)), "nor on its way back");
    assert_eq!(came[12..], back);
    // A header that isn't so goes nowhere.
    a.send_as(&[1, 1, 54, 0, 0x90, 1, 200, 0, 200, 0, 0, 0], &long);
    a.send(&plain(FAR, mac(1)));
    assert_eq!(peer.receive()[12..], plain(FAR, mac(1)));
    drop(a);

    // For one that takes nothing the switch cuts it.
    let mut a = Station::connect(&daemon.path("a"));
    peer.send(&segments(0), &back);
    let mut all: Vec<u8> = Vec::new();
    for _ in 0..3 {
        let frame = a.receive();
        let len = frame.len() - 34;
        assert_eq!(sum(&frame[34..], sum(&frame[26..34], 6 + len as u32)), 0xffff);
        all.extend(&frame[HEADERS..]);
    }
    assert_eq!(all, data());
}

/// UDP over IPv4, likewise.
fn udp(to: [u8; 6], from: [u8; 6], data: &[u8]) -> Vec<u8> {
    let len = (8 + data.len()) as u16;
    let mut ip =
        [&[0x45, 0][..], &(20 + len).to_be_bytes(), &[0, 0, 0x40, 0, 64, 17, 0, 0]].concat();
    ip.extend([10, 0, 0, 1, 10, 0, 0, 2]);
    let check = !sum(&ip, 0) as u16;
    ip[10..12].copy_from_slice(&check.to_be_bytes());
    let pseudo = sum(&ip[12..20], 17 + u32::from(len)) as u16;
    let udp = [&[4, 210, 1, 187][..], &len.to_be_bytes(), &pseudo.to_be_bytes()].concat();
    [&to[..], &from, &[8, 0], &ip, &udp, data].concat()
}

/// Packets of UDP go both ways together, and arrive one by one where they aren't taken otherwise.
fn try_packets_of_udp(daemon: &Daemon, peer: &mut Peer) {
    let packets = [1, 5, 42, 0, 0x90, 1, 34, 0, 6, 0, 0, 0];
    let mut a = Station::with(&daemon.path("a"), SENDS | TAKES | PACKETS);
    let long = udp(FAR, mac(1), &data());
    a.send_as(&packets, &long);
    let came = peer.receive();
    assert_eq!((asked(&came), &came[12..]), (asked(&packets), &long[..]));
    let back = udp(mac(1), FAR, &data());
    peer.send(&packets, &back);
    let came = a.receive_whole();
    assert_eq!((asked(&came), &came[12..]), (asked(&packets), &back[..]));
    drop(a);

    let mut a = Station::with(&daemon.path("a"), SENDS | TAKES);
    peer.send(&packets, &udp(mac(1), FAR, &data()));
    let mut all: Vec<u8> = Vec::new();
    for _ in 0..3 {
        let frame = a.receive();
        assert_eq!((442, [1, 152]), (frame.len(), frame[38..40].try_into().expect("two")));
        all.extend(&frame[42..]);
    }
    assert_eq!(all, data());
}

/// The second network's frames have a tag outside.
fn try_tags(daemon: &Daemon, peer: &mut Peer) {
    let mut b = Station::with(&daemon.path("b"), SENDS | TAKES);
    let long = tcp(FAR, mac(2), &data());
    b.send(&long);
    assert_eq!(peer.receive()[12..], tagged(&long));
    b.send_as(&segments(0), &long);
    let came = peer.receive();
    assert_eq!(asked(&came), asked(&segments(4)));
    assert_eq!(came[12..], tagged(&long));
    let back = tcp(mac(2), FAR, &data());
    peer.send(&[0; 12], &tagged(&back));
    assert_eq!(b.receive(), back);
    peer.send(&segments(4), &tagged(&back));
    let came = b.receive_whole();
    assert_eq!(asked(&came), asked(&segments(0)));
    assert_eq!(came[12..], back);
}

#[test]
#[ignore = "a step of its own in `exitless test`: it needs root"]
fn as_root_a_tap_takes_and_gives_what_is_left_to_be_done() {
    let (name, _) = names('t');
    ip(&["tuntap", "add", "mode", "tap", "name", &name]);
    let interface = Interface(name);
    let daemon = Daemon::run(&networks(&format!("tap = \"{}\"", interface.0)));
    bring_up(&interface.0);
    let mut peer = Peer::at(&interface.0);
    try_both_ways(&daemon, &mut peer);
    try_tags(&daemon, &mut peer);
    try_packets_of_udp(&daemon, &mut peer);
}

#[test]
#[ignore = "a step of its own in `exitless test`: it needs root"]
fn as_root_an_interface_takes_and_gives_what_is_left_to_be_done() {
    let (name, other) = names('v');
    let interface = make_pair(&(name, other.clone()));
    let daemon = Daemon::run(&networks(&format!("packet = \"{}\"", interface.0)));
    let mut peer = Peer::at(&other);
    try_both_ways(&daemon, &mut peer);
    try_tags(&daemon, &mut peer);
    try_packets_of_udp(&daemon, &mut peer);
    // A network of any address has what nobody is known for, and nothing of the host's own.
    let mut any = Station::connect(&daemon.path("any"));
    let own = std::fs::read_to_string(format!("/sys/class/net/{}/address", interface.0));
    let own = own.expect("it is there");
    let own = own.trim().split(':').map(|byte| u8::from_str_radix(byte, 16).expect("a byte"));
    let own: [u8; 6] = own.collect::<Vec<_>>().try_into().expect("six");
    for to in [own, [2, 9, 9, 9, 9, 9]] {
        peer.send(&[0; 12], &[&to[..], &FAR, &[0x88, 0xb5], &[1; 60]].concat());
    }
    assert_eq!(any.receive()[..6], [2, 9, 9, 9, 9, 9]);
    drop(any);
    // More than one call takes, while the daemon sleeps in between.
    let mut a = Station::connect(&daemon.path("a"));
    for round in 0..100_u8 {
        let frame = [&mac(1)[..], &FAR, &[0x88, 0xb5, round], &[1; 60]].concat();
        peer.send(&[0; 12], &frame);
        if round % 4 == 3 {
            for expected in round - 3..=round {
                assert_eq!(a.receive()[14], expected);
            }
        }
    }
}

/// It goes on, and sleeps: the system tells of the TAP's end without end.
#[test]
#[ignore = "a step of its own in `exitless test`: it needs root"]
fn as_root_a_tap_that_is_removed_is_said_once() {
    let (name, _) = names('r');
    ip(&["tuntap", "add", "mode", "tap", "name", &name]);
    let interface = Interface(name);
    let daemon = Daemon::run(&networks(&format!("tap = \"{}\"", interface.0)));
    drop(interface);
    daemon.wait_until_said("uplink of lan: the TAP was removed", 1);
    daemon.wait_until_asleep();
    let mut a = Station::connect(&daemon.path("a"));
    a.send(&[&FAR[..], &mac(1), &[0x88, 0xb5], &[7; 80]].concat());
    daemon.wait_until_asleep();
    assert_eq!(daemon.said("the TAP was removed"), 1);
}

/// The new program goes on with both kinds, and with what the host leaves to it.
#[test]
#[ignore = "a step of its own in `exitless test`: it needs root"]
fn as_root_a_new_program_goes_on_with_ways_out() {
    let (tap, _) = names('u');
    ip(&["tuntap", "add", "mode", "tap", "name", &tap]);
    let _tap = Interface(tap.clone());
    bring_up(&tap);
    let both = names('w');
    let mut pair = make_pair(&both);
    let (near, far) = both.clone();
    for (out, other) in [(format!("tap = \"{tap}\""), &tap), (format!("packet = \"{near}\""), &far)]
    {
        let mut daemon = Daemon::run(&(networks(&out) + "[host]\ncontrol = \"control\"\n"));
        let mut peer = Peer::at(other);
        let mut a = Station::with(&daemon.path("a"), SENDS | TAKES);
        for _ in 0..3 {
            let long = tcp(FAR, mac(1), &data());
            a.send_as(&segments(0), &long);
            assert_eq!(peer.receive()[12..], long);
            daemon.upgrade();
            let back = tcp(mac(1), FAR, &data());
            peer.send(&segments(0), &back);
            assert_eq!(a.receive_whole()[12..], back);
        }
        if out.contains("packet") {
            // The new one has interfaces though the only one is gone, and it is made anew.
            drop(pair);
            daemon.upgrade();
            pair = make_pair(&both);
            assert!(daemon.ask(&["reload"]).status.success());
            let mut peer = Peer::at(other);
            let long = tcp(FAR, mac(1), &data());
            a.send_as(&segments(0), &long);
            assert_eq!(peer.receive()[12..], long);
        }
    }
}

/// A TAP more, another one in its place, one that was removed and is there again, and none.
#[test]
#[ignore = "a step of its own in `exitless test`: it needs root"]
fn as_root_ways_out_come_change_and_go_with_the_file() {
    let (first, second) = names('c');
    let pair = names('d');
    let make = |name: &str| ip(&["tuntap", "add", "mode", "tap", "name", name]);
    make(&first);
    make(&second);
    let taps = [Interface(first.clone()), Interface(second.clone())];
    let _pair = make_pair(&pair);
    let lone = names('l');
    let lone_pair = make_pair(&lone);
    bring_up(&first);
    bring_up(&second);
    // What interfaces take isn't given up where there is one at the start.
    let other = format!(
        "[network.other]\nsocket = \"other\"\nswitch = \"other\"\n\
         [uplink.other]\npacket = \"{}\"\n",
        pair.0
    );
    let toml = |out: &str| networks(out) + &other + HOST;
    let tap = |name: &str| toml(&format!("tap = \"{name}\""));
    let daemon = Daemon::run(&tap(&first));
    let mut a = Station::connect(&daemon.path("a"));
    let mut round = 0;
    let mut reaches = |name: &str| {
        round += 1;
        let mut peer = Peer::at(name);
        let out = [&FAR[..], &mac(1), &[0x88, 0xb5, round], &[7; 80]].concat();
        a.send(&out);
        assert_eq!(peer.receive()[12..], out);
        let back = [&mac(1)[..], &FAR, &[0x88, 0xb5, round], &[8; 80]].concat();
        peer.send(&[0; 12], &back);
        assert_eq!(a.receive(), back);
    };
    let reload = |text: &str| {
        daemon.rewrite(text);
        let done = daemon.ask(&["reload"]);
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        (done.status.success(), said)
    };
    let done = || (true, String::new());
    reaches(&first);
    assert_eq!(reload(&tap(&first)), done());
    reaches(&first);
    assert_eq!(reload(&tap(&second)), done());
    reaches(&second);
    assert_eq!(reload(&toml(&format!("packet = \"{}\"", pair.0))), done());
    reaches(&pair.1);
    assert_eq!(reload(&tap(&first)), done());
    reaches(&first);

    drop(taps);
    daemon.wait_until_said("uplink of lan: the TAP was removed", 1);
    make(&first);
    let _first = Interface(first.clone());
    bring_up(&first);
    assert_eq!(reload(&tap(&first)), done());
    reaches(&first);

    let (is_done, said) = reload(&toml("packet = \"nosuch0\""));
    assert!(!is_done && said.contains("uplink of lan: frames of the interface nosuch0"), "{said}");
    // What there was is there still.
    assert!(said.contains(&format!("uplink of lan: the TAP {first} is there")), "{said}");
    reaches(&first);
    let (is_done, said) = reload(&toml("tap = \"lo\""));
    assert!(!is_done && said.contains("uplink of lan: lo is an interface, and no TAP"), "{said}");
    reaches(&first);
    // An interface that is down comes up by itself; one that was removed is made anew.
    let packet = toml(&format!("packet = \"{}\"", lone.0));
    assert_eq!(reload(&packet), done());
    reaches(&lone.1);
    ip(&["link", "set", &lone.0, "down"]);
    daemon.wait_until_said("uplink of lan: its interface: Network is down", 1);
    bring_up(&lone.0);
    wait_until_up(&lone.0);
    reaches(&lone.1);
    drop(lone_pair);
    let _lone_pair = make_pair(&lone);
    assert_eq!(reload(&packet), done());
    reaches(&lone.1);
    assert_eq!(reload(&tap(&first)), done());

    let without = toml("tap = 1").replace("[uplink.lan]\ntap = 1\n", "");
    assert_eq!(reload(&without), done());
    let mut peer = Peer::at_once(&first);
    a.send(&[&FAR[..], &mac(1), &[0x88, 0xb5, 99], &[7; 80]].concat());
    assert_eq!(reload(&tap(&first)), done());
    a.send(&[&FAR[..], &mac(1), &[0x88, 0xb5, 100], &[7; 80]].concat());
    assert_eq!(peer.receive()[26], 100, "without a way out nothing goes there");

    std::fs::write(daemon.path("more.toml"), tap(&second)).expect("it is written");
    let more = daemon.ask(&["add", &daemon.path("more.toml")]);
    let said = String::from_utf8_lossy(&more.stderr).into_owned();
    assert!(said.contains("a way out comes by the daemon's file alone"), "{said}");
}

#[test]
fn an_interface_comes_later_where_there_was_one_at_the_start() {
    let without = networks("tap = 1").replace("[uplink.lan]\ntap = 1\n", "");
    let daemon = Daemon::run(&(without + HOST));
    let _a = Station::connect(&daemon.path("a"));
    daemon.rewrite(&(networks("packet = \"lo\"") + HOST));
    let said = daemon.ask(&["reload"]).stderr;
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(said.contains("uplink of lan: the calls for interfaces were given up"), "{said}");
    // Nothing else of such a file is done, either: what it takes away is served on.
    let more = "[network.more]\nsocket = \"more\"\nswitch = \"lan\"\n";
    let moved = networks("packet = \"lo\"").replace("[network.any]", "[network.other]");
    daemon.rewrite(&(moved + more + HOST));
    assert!(!daemon.ask(&["reload"]).status.success());
    let devices = daemon.report()["devices"].as_array().cloned().expect("they are there");
    assert_eq!(devices.iter().map(|device| &device["name"]).collect::<Vec<_>>(), ["a", "b", "any"]);
}

#[test]
fn what_is_no_interface_isnt_served() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("io.toml");
    let says = |out: &str| {
        std::fs::write(&file, networks(out)).expect("it is written");
        let ran = Command::new(front_end::daemon::PROGRAM).arg("run").arg(&file).output();
        String::from_utf8(ran.expect("it runs").stderr).expect("it is text")
    };
    let daemon =
        Daemon::run(&(networks("packet = \"nosuch0\"") + "[host]\ncontrol = \"control\"\n"));
    let listed = String::from_utf8_lossy(&daemon.ask(&["list"]).stdout).into_owned();
    let part = "uplink of lan isn't served: frames of the interface nosuch0 can't be taken: No such \
                device";
    assert!(listed.contains(part), "{listed}");
    assert!(says("packet = \"a\"\ntap = \"b\"").contains("it has both `tap` and `packet`"));
    assert!(says("").contains("it leads nowhere; give `tap` or `packet`"));
    assert!(says("packets = \"a\"").contains("unknown key `packets`; did you mean `packet`?"));
}
