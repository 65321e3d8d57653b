//! Trees of functions, and which of them may be taken apart.

use crate::{Acs, Bdf, Function, Kind, Why, extended_capability, together};
use core::{cell::Cell, ops::RangeInclusive};
use proptest::prelude::*;

const ON: Acs = Acs { capability: 0x1F, control: 0x1F };
const OFF: Acs = Acs { capability: 0x1F, control: 0 };

fn bdf(bus: u8, device: u8, function: u8) -> Bdf {
    Bdf::new(bus, device, function).unwrap()
}

fn function(bdf: Bdf, kind: Kind, acs: Option<Acs>) -> Function {
    Function { bdf, ids: (0x1B36, 0x0010), kind, acs, buses: None, physical: None }
}

fn endpoint(bdf: Bdf) -> Function {
    function(bdf, Kind::Endpoint, None)
}

fn bridge(bdf: Bdf, kind: Kind, acs: Option<Acs>, buses: RangeInclusive<u8>) -> Function {
    Function { buses: Some(buses), ..function(bdf, kind, acs) }
}

/// Both ways, since it makes no difference who is asked about first.
fn why(functions: &[Function], a: Bdf, b: Bdf) -> Option<Why> {
    let (one, other) = (together(functions, a, b), together(functions, b, a));
    assert_eq!(one.is_some(), other.is_some());
    one
}

#[test]
fn devices_at_the_root_are_apart_and_their_functions_not() {
    let (a, b, c) = (bdf(0, 4, 0), bdf(0, 5, 0), bdf(0, 5, 1));
    let mut all = vec![endpoint(a), endpoint(b), endpoint(c)];
    assert_eq!(why(&all, a, b), None);
    assert_eq!(why(&all, b, c), Some(Why::OneDevice(b, c)));
    all[1].acs = Some(ON);
    assert_eq!(why(&all, b, c), Some(Why::OneDevice(b, c)), "one doesn't say that it keeps off");
    all[2].acs = Some(OFF);
    assert_eq!(why(&all, b, c), Some(Why::OneDevice(b, c)), "it isn't switched on");
    all[2].acs = Some(ON);
    assert_eq!(why(&all, b, c), None);
    // Conventional functions have no ACS, whatever their registers say.
    all[2].kind = Kind::Conventional;
    assert_eq!(why(&all, b, c), Some(Why::OneDevice(b, c)));
    assert_eq!(why(&all, a, bdf(9, 0, 0)), None, "not there");
}

#[test]
fn known_devices_need_no_acs() {
    let (a, b) = (bdf(1, 0, 0), bdf(1, 0, 1));
    let port = bridge(bdf(0, 1, 0), Kind::RootPort, Some(ON), 1..=1);
    let mut all = vec![port, endpoint(a), endpoint(b)];
    assert_eq!(why(&all, a, b), Some(Why::OneDevice(a, b)));
    all[1].ids = (0x8086, 0x10C9);
    assert_eq!(why(&all, a, b), Some(Why::OneDevice(a, b)));
    all[2].ids = (0x8086, 0x1526);
    assert_eq!(why(&all, a, b), None);
}

#[test]
fn virtual_functions_are_functions_of_their_physical_one_s_device() {
    let (pf, one, two) = (bdf(1, 0, 0), bdf(1, 16, 0), bdf(1, 16, 2));
    let port = bridge(bdf(0, 1, 0), Kind::RootPort, Some(ON), 1..=1);
    let vf = |at| Function { physical: Some(pf), ..endpoint(at) };
    let mut all = vec![port, endpoint(pf), vf(one), vf(two)];
    assert_eq!(why(&all, one, two), Some(Why::OneDevice(one, two)));
    assert_eq!(why(&all, pf, two), Some(Why::OneDevice(pf, two)));
    for f in &mut all[1..] {
        f.ids = (0x8086, if f.physical.is_some() { 0x10CA } else { 0x10C9 });
    }
    assert_eq!(why(&all, one, two), None);
    assert_eq!(why(&all, pf, two), None);
    // The port above still has to check who sends.
    all[0].acs = Some(OFF);
    assert_eq!(why(&all, one, two), Some(Why::Port(bdf(0, 1, 0))));
}

/// 00:01.0 leads to a switch (01:00.0) with ports 02:00.0 and 02:01.0, and below the second to
/// another switch (04:00.0) with ports 05:00.0 and 05:01.0. Endpoints at buses 3, 6 and 7, and at
/// 00:02.0's 8.
fn tree(acs: [Option<Acs>; 6]) -> Vec<Function> {
    let [root, a, b, c, d, other] = acs;
    vec![
        bridge(bdf(0, 1, 0), Kind::RootPort, root, 1..=7),
        bridge(bdf(1, 0, 0), Kind::UpstreamPort, None, 2..=7),
        bridge(bdf(2, 0, 0), Kind::DownstreamPort, a, 3..=3),
        bridge(bdf(2, 1, 0), Kind::DownstreamPort, b, 4..=7),
        endpoint(bdf(3, 0, 0)),
        bridge(bdf(4, 0, 0), Kind::UpstreamPort, None, 5..=7),
        bridge(bdf(5, 0, 0), Kind::DownstreamPort, c, 6..=6),
        bridge(bdf(5, 1, 0), Kind::DownstreamPort, d, 7..=7),
        endpoint(bdf(6, 0, 0)),
        endpoint(bdf(7, 0, 0)),
        bridge(bdf(0, 2, 0), Kind::RootPort, other, 8..=8),
        endpoint(bdf(8, 0, 0)),
    ]
}

#[test]
fn each_port_between_must_send_requests_up() {
    const NEAR: Bdf = Bdf::from_requester_id(0x300);
    const LOW: Bdf = Bdf::from_requester_id(0x600);
    const LOWER: Bdf = Bdf::from_requester_id(0x700);
    const OTHER: Bdf = Bdf::from_requester_id(0x800);
    let pairs = [(NEAR, LOW), (LOW, LOWER), (NEAR, OTHER), (LOW, OTHER)];
    let all = tree([Some(ON); 6]);
    for (a, b) in pairs {
        assert_eq!(why(&all, a, b), None, "{a} {b}");
    }
    let (root, a, b) = (bdf(0, 1, 0), bdf(2, 0, 0), bdf(2, 1, 0));
    let (c, d) = (bdf(5, 0, 0), bdf(5, 1, 0));
    // For each port that lacks ACS: what can't be taken apart any more, of the pairs above.
    let cases = [
        (0, [Some(root), Some(root), None, None]),
        (1, [Some(a), None, None, None]),
        (2, [Some(b), Some(b), None, None]),
        (3, [None, Some(c), None, None]),
        (4, [None, Some(d), None, None]),
        (5, [None; 4]),
    ];
    for (port, expected) in cases {
        for without in [None, Some(OFF), Some(Acs { control: 0x1B, ..ON })] {
            let mut acs = [Some(ON); 6];
            acs[port] = without;
            let all = tree(acs);
            for ((a, b), expected) in pairs.into_iter().zip(expected) {
                assert_eq!(why(&all, a, b), expected.map(Why::Port), "{a} {b}, port {port}");
            }
        }
    }
}

#[test]
fn root_ports_that_are_functions_of_one_device_must_have_acs() {
    let (a, b) = (bdf(1, 0, 0), bdf(2, 0, 0));
    let (one, other) = (bdf(0, 0x1C, 0), bdf(0, 0x1C, 4));
    let mut all = vec![
        bridge(one, Kind::RootPort, Some(ON), 1..=1),
        bridge(other, Kind::RootPort, None, 2..=2),
        endpoint(a),
        endpoint(b),
    ];
    assert_eq!(why(&all, a, b), Some(Why::OneDevice(one, other)));
    all[1].acs = Some(ON);
    assert_eq!(why(&all, a, b), None);
}

/// The buses of segments are numbered alike, and no bridge leads from one to another.
#[test]
fn functions_of_different_segments_are_apart() {
    let there = |bdf: Bdf| bdf.in_segment(1);
    let (a, b) = (bdf(1, 0, 0), bdf(1, 0, 1));
    let port = bridge(bdf(0, 1, 0), Kind::RootPort, None, 1..=1);
    let mut all = vec![port, endpoint(a), endpoint(there(b)), endpoint(there(a))];
    assert_eq!(why(&all, a, there(b)), None, "neither one device's nor behind one port");
    assert_eq!(why(&all, there(a), there(b)), Some(Why::OneDevice(there(a), there(b))));
    all.push(bridge(there(bdf(0, 2, 0)), Kind::RootPort, None, 1..=1));
    assert_eq!(why(&all, a, there(b)), None, "each is behind its own segment's port");
}

#[test]
fn behind_a_conventional_bridge_nobody_is_apart() {
    let (a, b) = (bdf(1, 1, 0), bdf(1, 2, 0));
    let bridge = bridge(bdf(0, 3, 0), Kind::Conventional, Some(ON), 1..=1);
    let all = vec![bridge, endpoint(a), endpoint(b)];
    assert_eq!(why(&all, a, b), Some(Why::Port(bdf(0, 3, 0))));
}

#[test]
fn a_bridge_that_claims_its_own_bus_ends_the_way_up() {
    let (a, b) = (bdf(1, 0, 0), bdf(2, 0, 0));
    let all = vec![
        bridge(bdf(1, 1, 0), Kind::RootPort, Some(ON), 1..=2),
        bridge(bdf(2, 1, 0), Kind::RootPort, Some(ON), 1..=2),
        endpoint(a),
        endpoint(b),
    ];
    assert_eq!(why(&all, a, b), None);
}

/// Firmware that got the buses wrong: two bridges, each of which claims to be above the other.
#[test]
fn bridges_that_lead_to_each_other_make_no_endless_way() {
    let (a, b) = (bdf(0, 0, 0), bdf(0, 0, 1));
    let all = vec![
        bridge(a, Kind::RootPort, Some(ON), 0..=3),
        bridge(bdf(2, 0, 0), Kind::RootPort, Some(ON), 0..=0),
        endpoint(b),
    ];
    assert_eq!(together(&all, a, b), Some(Why::OneDevice(a, b)));
    assert_eq!(together(&all, b, a), Some(Why::OneDevice(b, a)));
}

#[test]
fn what_acs_has_is_switched_on() {
    let wanted = |capability, control| Acs { capability, control }.wanted();
    assert_eq!(wanted(0x1F, 0), 0x1F);
    assert_eq!(wanted(0x7F, 0x60), 0x1F, "no egress control, no direct translated requests");
    assert_eq!(wanted(0x1D, 0), 0x1D);
    assert_eq!(wanted(0, 0), 0);
    for bit in [0, 2, 3, 4] {
        assert!(!Acs { capability: 0x1F, control: 0x1F & !(1 << bit) }.isolates(), "bit {bit}");
        assert!(Acs { capability: 0x1F & !(1 << bit), control: 0x1F & !(1 << bit) }.isolates());
    }
    assert!(
        Acs { capability: 0x1F, control: 0x1D }.isolates(),
        "translation blocking isn't needed"
    );
}

#[test]
fn reasons_are_sentences() {
    assert_eq!(
        Why::OneDevice(bdf(0, 5, 0), bdf(0, 5, 1)).to_string(),
        "00:05.0 and 00:05.1 are functions of one device without access control (ACS)"
    );
    assert_eq!(
        Why::Port(bdf(2, 0, 0)).to_string(),
        "the port 02:00.0 above has no access control (ACS) that is complete"
    );
}

#[test]
fn extended_capabilities_are_found_and_loops_end() {
    let space = |list: &'static [(u16, u32)]| {
        move |at| list.iter().find(|entry| entry.0 == at).map_or(0, |entry| entry.1)
    };
    let list = space(&[(0x100, 0x1481_0001), (0x148, 0x1602_0003), (0x160, 0x0001_000D)]);
    assert_eq!(extended_capability(1, list), Some(0x100));
    assert_eq!(extended_capability(3, list), Some(0x148));
    assert_eq!(extended_capability(0xD, list), Some(0x160));
    assert_eq!(extended_capability(0x10, list), None);
    assert_eq!(extended_capability(0xD, |_| 0), None);
    assert_eq!(extended_capability(0xFFFF, |_| u32::MAX), None);
    assert_eq!(extended_capability(0xD, |_| 0x1001_0001), None, "it leads to itself");
    // No list has more members than fit: one that leads to itself is left after as many.
    let reads = Cell::new(0);
    let loops = |_| {
        reads.set(reads.get() + 1);
        0x1001_0001
    };
    assert_eq!((extended_capability(0xD, loops), reads.get()), (None, 480));
    // Its pointer's two low bits are reserved; one into the conventional space ends the list.
    let odd = space(&[(0x100, 0x1471_0001), (0x144, 0x0001_000D)]);
    assert_eq!(extended_capability(0xD, odd), Some(0x144));
    let low = space(&[(0x100, 0x0FC1_0001), (0xFC, 0x0001_000D)]);
    assert_eq!(extended_capability(0xD, low), None);
    // A list that fills the space is read to its end.
    let full = |at: u16| u32::from(at + 8) << 20 | if at == 0xFF8 { 0xD } else { 1 };
    assert_eq!(extended_capability(0xD, full), Some(0xFF8));
}

#[test]
fn bdfs_are_named_as_everybody_does() {
    assert_eq!(bdf(0xAB, 31, 7).to_string(), "ab:1f.7");
    assert_eq!(format!("{:?}", bdf(0, 5, 1)), "00:05.1");
    assert_eq!((Bdf::new(0, 32, 0), Bdf::new(0, 0, 8)), (None, None));
    assert_eq!(bdf(1, 2, 3).requester_id(), 0x113);
    let elsewhere = bdf(1, 2, 3).in_segment(0xAB);
    assert_eq!(elsewhere.to_string(), "00ab:01:02.3");
    assert_eq!((elsewhere.requester_id(), elsewhere.address()), (0x113, 0xAB_0113));
}

proptest! {
    #[test]
    fn bdfs_survive_encoding(id: u16, segment: u16) {
        let device = Bdf::from_requester_id(id);
        prop_assert_eq!(Bdf::new(device.bus(), device.device(), device.function()), Some(device));
        let there = device.in_segment(segment);
        prop_assert_eq!((there.segment(), there.in_segment(0)), (segment, device));
        prop_assert_eq!(there == device, segment == 0);
    }

    /// Any tree, also one that firmware got wrong: an answer, the same both ways; and more ACS
    /// never takes away.
    #[test]
    fn any_tree_gives_an_answer(
        raw in prop::collection::vec((0u16..0x400, 0u8..5, any::<bool>(), 0u8..4, 0u8..4), 2..10),
    ) {
        let kinds = [
            Kind::Endpoint, Kind::RootPort, Kind::UpstreamPort, Kind::DownstreamPort,
            Kind::Conventional,
        ];
        let mut all: Vec<Function> = Vec::new();
        for (id, kind, acs, first, last) in raw {
            let kind = kinds[usize::from(kind)];
            let buses = (kind != Kind::Endpoint).then_some(first..=last);
            let at = Bdf::from_requester_id(id);
            if all.iter().all(|f| f.bdf != at) {
                all.push(Function { buses, ..function(at, kind, acs.then_some(ON)) });
            }
        }
        let better: Vec<_> =
            all.iter().map(|f| Function { acs: Some(ON), ..f.clone() }).collect();
        for a in &all {
            for b in &all {
                if a.bdf == b.bdf {
                    continue;
                }
                let why = together(&all, a.bdf, b.bdf);
                prop_assert_eq!(why.is_some(), together(&all, b.bdf, a.bdf).is_some());
                if why.is_none() {
                    prop_assert_eq!(together(&better, a.bdf, b.bdf), None);
                }
            }
        }
    }
}
