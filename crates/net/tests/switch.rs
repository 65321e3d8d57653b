//! Who gets which frame: guests with drivers at both kinds of rings.
mod guest;

use guest::{Lan, SECOND, frame, mac, parameters};
use net::header::Header;
use net::{
    BadPort, Config, Features, LEAST_CHARGE, Mac, Parameters, Plan, Rate, Sources, Switch, Vlan,
    VlanSet,
};

/// A frame with a tag.
fn tagged(to: Mac, from: Mac, control: u16, data: &[u8]) -> Vec<u8> {
    let [a, b] = control.to_be_bytes();
    [&to.0[..], &from.0, &[0x81, 0, a, b, 0x88, 0xb5], data].concat()
}

#[test]
fn a_frame_goes_to_whom_it_is_for() {
    let mut lan = Lan::of(4, Plan::default(), 2048);
    let sent = frame(mac(2), mac(0), &[7; 100]);
    let outcome = lan.pass(0, Header::default(), &sent);
    assert_eq!((114, LEAST_CHARGE), (outcome.bytes, outcome.charge));
    assert_eq!(vec![sent], lan.received(2));
    for other in [0, 1, 3] {
        assert!(lan.received(other).is_empty());
    }
    assert_eq!(1, lan.guests[0].returned);
    assert!(!lan.turn(0, 0).unwrap().more);
}

#[test]
fn a_broadcast_goes_to_all_but_its_sender() {
    let mut lan = Lan::of(4, Plan::default(), 2048);
    for to in [Mac::BROADCAST, Mac([1, 0, 0x5e, 0, 0, 1])] {
        let sent = frame(to, mac(1), b"to all");
        let outcome = lan.pass(1, Header::default(), &sent);
        assert_eq!((3 * 20, 3 * LEAST_CHARGE), (outcome.bytes, outcome.charge));
        assert!(lan.received(1).is_empty());
        for other in [0, 2, 3] {
            assert_eq!(vec![sent.clone()], lan.received(other));
        }
    }
}

/// Frames of any length arrive whole, from buffers cut anywhere, into buffers cut anywhere.
#[test]
fn buffers_may_be_cut_anywhere() {
    for len in [14, 15, 60, 242, 243, 256, 257, 300, 1514] {
        let mut lan = Lan::of(1, Plan::default(), 2048);
        let second = lan.add(parameters(1), Plan::default(), Features::empty());
        let data: Vec<u8> = (0..len - 14).map(|at| (at / 3) as u8).collect();
        let sent = frame(mac(1), mac(0), &data);
        for cuts in [vec![], vec![1, 2, 11], vec![12], vec![13, 20, 200, 270, 271, 900]] {
            for room in [vec![2000], vec![1, 1, 9, 2000], vec![12, 14, 228, 1, 1, 1, 1500]] {
                lan.post(second, 0, &room);
                lan.send_cut(0, 0, Header::default(), &sent, &cuts);
                lan.turn(0, 0).unwrap();
                assert_eq!(vec![sent.clone()], lan.received(second), "{len} {cuts:?} {room:?}");
            }
        }
    }
}

#[test]
fn several_buffers_make_up_one_frame() {
    let mut lan = Lan::of(1, Plan::default(), 2048);
    let second = lan.add(parameters(1), Plan::default(), Features::empty());
    lan.post_many(second, 20, 100);
    let sent = frame(mac(1), mac(0), &(0..=255).collect::<Vec<u8>>());
    lan.pass(0, Header::default(), &sent);
    lan.pass(0, Header::default(), &sent);
    let received = lan.received_by(second, 0);
    assert_eq!(2, received.len());
    for (header, bytes) in received {
        assert_eq!(3, header.num_buffers);
        assert_eq!(sent, bytes);
    }
}

/// A frame that doesn't fit leaves the buffers to the next one, and none is lost.
#[test]
fn what_has_no_room_is_dropped_and_counted() {
    let mut lan = Lan::of(1, Plan::default(), 2048);
    let second = lan.add(parameters(1), Plan::default(), Features::empty());
    lan.post_many(second, 3, 100);
    let large = frame(mac(1), mac(0), &[1; 1000]);
    let small = frame(mac(1), mac(0), &[2; 50]);
    assert_eq!(0, lan.pass(0, Header::default(), &large).bytes);
    for _ in 0..4 {
        lan.pass(0, Header::default(), &small);
    }
    assert_eq!(vec![small; 3], lan.received(second));
    let counted = lan.statistics(second);
    assert_eq!((2, 3), (counted.no_room, counted.received));
}

/// CVE-2014-0077 (vhost_net): without mergeable buffers a frame longer than its buffer was written
/// beyond it.
#[test]
fn without_mergeable_buffers_one_must_do() {
    let mut lan = Lan::of(1, Plan::default(), 2048);
    let second = lan.add(parameters(1), Plan::default(), Features::MRG_RXBUF);
    lan.post(second, 0, &[12, 200]);
    lan.post(second, 0, &[12, 1514]);
    let large = frame(mac(1), mac(0), &[1; 1500]);
    let small = frame(mac(1), mac(0), &[2; 50]);
    lan.pass(0, Header::default(), &large);
    lan.pass(0, Header::default(), &small);
    lan.pass(0, Header::default(), &large);
    let received = lan.received_by(second, 0);
    assert_eq!(vec![1, 1], received.iter().map(|(h, _)| h.num_buffers).collect::<Vec<_>>());
    assert_eq!(vec![small, large], received.into_iter().map(|(_, f)| f).collect::<Vec<_>>());
    assert_eq!(1, lan.statistics(second).no_room);
}

#[test]
fn nobody_sends_from_anothers_address() {
    for sources in [Sources::Planned, Sources::Settable, Sources::Any] {
        let mut lan = Lan::of(2, Plan { sources, ..Plan::default() }, 2048);
        let group = Mac([3, 0, 0, 0, 0, 1]);
        for from in [mac(1), Mac::default(), group, Mac::BROADCAST] {
            lan.pass(0, Header::default(), &frame(mac(1), from, b"spoofed"));
            lan.pass(0, Header::default(), &frame(Mac::BROADCAST, from, b"spoofed"));
        }
        assert_eq!(8, lan.statistics(0).spoofed, "{sources:?}");
        lan.pass(0, Header::default(), &frame(mac(1), mac(77), b"of nobody"));
        assert_eq!(usize::from(sources == Sources::Any), lan.received(1).len());
    }
}

#[test]
fn an_address_is_set_only_if_the_plan_lets_it() {
    for (sources, answer) in [(Sources::Planned, 1), (Sources::Settable, 0), (Sources::Any, 0)] {
        let mut lan = Lan::of(3, Plan { sources, ..Plan::default() }, 2048);
        let new = mac(50);
        assert_eq!(answer, lan.command(0, 1, 1, &new.0), "{sources:?}");
        // Neither another port's, nor one that no station has; its own always.
        for bad in [mac(1), Mac::BROADCAST, Mac::default(), Mac([1, 0, 0, 0, 0, 1])] {
            assert_eq!(1, lan.command(0, 1, 1, &bad.0));
        }
        assert_eq!(1, lan.command(2, 1, 1, &mac(0).0), "kept for after a reset");
        if answer == 0 {
            assert_eq!(1, lan.command(2, 1, 1, &new.0), "it is taken");
            assert_eq!(new.0, lan.switch.config_bytes(lan.guests[0].port)[..6]);
            lan.pass(0, Header::default(), &frame(mac(1), new, b"from"));
            lan.pass(1, Header::default(), &frame(new, mac(1), b"to"));
            assert_eq!((1, 1), (lan.received(1).len(), lan.received(0).len()));
            lan.reset(0);
            assert_eq!(mac(0).0, lan.switch.config_bytes(lan.guests[0].port)[..6]);
            assert_eq!(0, lan.command(2, 1, 1, &new.0), "it is free again");
        }
        assert_eq!(0, lan.command(0, 1, 1, &mac(0).0));
        assert_eq!(mac(0).0, lan.switch.config_bytes(lan.guests[0].port)[..6]);
    }
}

#[test]
fn vlans_are_apart() {
    let mut lan = Lan::new();
    for (number, vlan) in [(0, 5), (1, 5), (2, 6), (3, 0)] {
        let plan = Plan { vlan: Vlan::Access(vlan), ..Plan::default() };
        let guest = lan.add(parameters(number), plan, Features::empty());
        lan.post_many(guest, 20, 2048);
    }
    for to in [Mac::BROADCAST, mac(1), mac(2), mac(3)] {
        lan.pass(0, Header::default(), &frame(to, mac(0), b"in 5"));
    }
    // Tags at such a port aren't believed.
    for control in [5, 6, 0, 0xf006] {
        lan.pass(0, Header::default(), &tagged(Mac::BROADCAST, mac(0), control, b"hop"));
    }
    assert_eq!(2, lan.received(1).len());
    assert!(lan.received(2).is_empty() && lan.received(3).is_empty());
    assert_eq!((4, 2), (lan.statistics(0).bad_vlan, lan.statistics(0).unknown));
}

#[test]
fn a_trunk_has_tags() {
    let mut lan = Lan::of(0, Plan::default(), 0);
    let set: VlanSet = [5, 6].into_iter().collect();
    let vlans = [Vlan::Access(5), Vlan::Trunk(set), Vlan::Trunk(VlanSet::ALL), Vlan::Access(7)];
    for (number, vlan) in vlans.into_iter().enumerate() {
        let plan = Plan { vlan, ..Plan::default() };
        let guest = lan.add(parameters(number as u8), plan, Features::empty());
        lan.post_many(guest, 20, 2048);
    }
    let data = [9; 400];
    lan.pass(0, Header::default(), &frame(Mac::BROADCAST, mac(0), &data));
    for trunk in [1, 2] {
        assert_eq!(vec![tagged(Mac::BROADCAST, mac(0), 5, &data)], lan.received(trunk));
    }
    // The priority stays; without it at a port without tags.
    let sent = tagged(Mac::BROADCAST, mac(1), 0x6005, &data);
    lan.pass(1, Header::default(), &sent);
    assert_eq!(vec![frame(Mac::BROADCAST, mac(1), &data)], lan.received(0));
    assert_eq!(vec![sent], lan.received(2));
    // Not in 7, not without a tag, not with two, not with another kind.
    lan.pass(1, Header::default(), &tagged(Mac::BROADCAST, mac(1), 7, &data));
    lan.pass(1, Header::default(), &frame(Mac::BROADCAST, mac(1), &data));
    let mut two = tagged(Mac::BROADCAST, mac(1), 5, &data);
    two.splice(16..16, [0x81, 0, 0, 6]);
    lan.pass(1, Header::default(), &two);
    two[12..14].copy_from_slice(&[0x88, 0xa8]);
    lan.pass(1, Header::default(), &two);
    assert_eq!(4, lan.statistics(1).bad_vlan);
    assert!((0..4).all(|guest| lan.received(guest).is_empty()));
    assert!(lan.command(1, 0, 0, &[0]) == 0, "not promiscuous: the filter counts");
    lan.pass(0, Header::default(), &frame(Mac::BROADCAST, mac(0), &data));
    assert!(lan.received(1).is_empty());
    assert_eq!(0, lan.command(1, 2, 0, &5u16.to_le_bytes()));
    lan.pass(0, Header::default(), &frame(Mac::BROADCAST, mac(0), &data));
    assert_eq!(1, lan.received(1).len());
    assert_eq!(0, lan.command(1, 2, 1, &5u16.to_le_bytes()));
    assert_eq!(1, lan.command(1, 2, 0, &4095u16.to_le_bytes()));
    // Linux says it of each device, and warns if it is refused.
    assert_eq!(0, lan.command(1, 2, 0, &0u16.to_le_bytes()));
    assert_eq!(0, lan.command(1, 2, 1, &0u16.to_le_bytes()));
    lan.pass(0, Header::default(), &frame(Mac::BROADCAST, mac(0), &data));
    assert!(lan.received(1).is_empty());
}

#[test]
fn modes_and_tables_filter() {
    let mut lan = Lan::of(2, Plan::default(), 2048);
    let group = Mac([1, 0, 0x5e, 0, 0, 9]);
    let arrives = |lan: &mut Lan, to: Mac| {
        lan.pass(0, Header::default(), &frame(to, mac(0), b"x"));
        lan.received(1).len() == 1
    };
    assert!(arrives(&mut lan, group), "all is received at first");
    assert_eq!(0, lan.command(1, 0, 0, &[0]));
    assert!(!arrives(&mut lan, group));
    assert!(arrives(&mut lan, Mac::BROADCAST) && arrives(&mut lan, mac(1)));
    let table = |groups: &[Mac]| {
        let mut bytes = vec![0; 4];
        bytes.extend((groups.len() as u32).to_le_bytes());
        bytes.extend(groups.iter().flat_map(|mac| mac.0));
        bytes
    };
    assert_eq!(0, lan.command(1, 1, 0, &table(&[mac(9), group])));
    assert!(arrives(&mut lan, group));
    assert_eq!(0, lan.command(1, 1, 0, &table(&[])));
    assert!(!arrives(&mut lan, group));
    // Wherever its chain is cut.
    let cuts: Vec<usize> = (1..28).collect();
    assert_eq!(0, lan.command_cut(1, [1, 0], &table(&[mac(8), mac(9), group]), &cuts));
    assert!(arrives(&mut lan, group));
    assert_eq!(0, lan.command(1, 1, 0, &table(&[])));
    assert!(!arrives(&mut lan, group));
    assert_eq!(0, lan.command(1, 1, 0, &table(&[mac(9); 65])));
    assert!(arrives(&mut lan, group), "more than fit: all");
    assert_eq!(0, lan.command(1, 1, 0, &table(&[])));
    assert_eq!(0, lan.command(1, 0, 1, &[1]));
    assert!(arrives(&mut lan, group));
    for (command, to) in [(3, group), (4, mac(1)), (5, Mac::BROADCAST)] {
        assert_eq!(0, lan.command(1, 0, command, &[1]));
        assert!(!arrives(&mut lan, to));
        assert_eq!(0, lan.command(1, 0, command, &[0]));
        assert!(arrives(&mut lan, to));
    }
    // A table that is longer than its chain, commands without data, and none such.
    assert_eq!(1, lan.command(1, 1, 0, &[0, 0, 0, 0, 1, 0, 0, 0, 1, 2, 3, 4, 5]));
    assert_eq!(1, lan.command(1, 1, 0, &[0xff; 8]));
    for (class, command) in [(0, 0), (0, 6), (1, 2), (2, 0), (3, 0), (4, 0), (5, 0), (255, 255)] {
        assert_eq!(1, lan.command(1, class, command, &[]));
    }
    lan.reset(1);
    lan.post_many(1, 1, 2048);
    assert!(arrives(&mut lan, group), "a reset forgets the filter");
}

#[test]
fn addresses_are_learned_and_forgotten() {
    let any = Plan { sources: Sources::Any, ..Plan::default() };
    let mut lan = Lan::new();
    for (number, plan) in [any, any, any, Plan::default()].into_iter().enumerate() {
        let guest = lan.add(parameters(number as u8), plan, Features::empty());
        lan.post_many(guest, 50, 2048);
    }
    let station = mac(100);
    let reach = |lan: &mut Lan| {
        lan.pass(3, Header::default(), &frame(station, mac(3), b"?"));
        (0..4).filter(|guest| !lan.received(*guest).is_empty()).collect::<Vec<_>>()
    };
    assert_eq!(vec![0, 1, 2], reach(&mut lan), "unknown ones are looked for where any may be");
    lan.pass(1, Header::default(), &frame(mac(3), station, b"here"));
    lan.received(3);
    assert_eq!(vec![1], reach(&mut lan));
    lan.pass(2, Header::default(), &frame(mac(3), station, b"moved"));
    lan.received(3);
    assert_eq!(vec![2], reach(&mut lan));
    lan.pass(2, Header::default(), &frame(station, mac(101), b"behind the same port"));
    assert!((0..4).all(|guest| lan.received(guest).is_empty()));
    lan.now += 300 * SECOND;
    assert_eq!(vec![2], reach(&mut lan));
    lan.now += 1;
    assert_eq!(vec![0, 1, 2], reach(&mut lan));
    lan.pass(2, Header::default(), &frame(mac(3), station, b"here again"));
    lan.received(3);
    assert_eq!(vec![2], reach(&mut lan));
    lan.reset(2);
    lan.post_many(2, 10, 2048);
    assert_eq!(vec![0, 1, 2], reach(&mut lan), "a reset forgets what was learned");
}

/// CVE-2019-3900 (vhost_net): packets that were dropped didn't count, so that a guest that sent
/// nothing else kept the thread for good.
#[test]
fn what_is_dropped_is_charged() {
    let mut lan = Lan::of(2, Plan::default(), 2048);
    for bytes in [&[0; 1][..], &[0; 12], &[0; 25], &[0; 100], &[0xff; 100]] {
        lan.guests[0].give(1, bytes, &[]);
        let outcome = lan.turn(0, 0).unwrap();
        assert_eq!((0, LEAST_CHARGE, 1), (outcome.bytes, outcome.charge, outcome.completed));
    }
    // And a chain of nothing readable.
    lan.guests[0].offer(1, &[(1 << 20, 100)], true);
    assert_eq!(LEAST_CHARGE, lan.turn(0, 0).unwrap().charge);
    assert_eq!(
        (4, 2),
        (lan.statistics(0).short, lan.statistics(0).bad_header + lan.statistics(0).spoofed)
    );
    assert_eq!(6, lan.guests[0].returned);
}

/// A frame for all is charged for all: else who sends them to ports that don't take them, for their
/// filters or full rings, has many times its share of the core.
#[test]
fn whoever_is_asked_is_charged() {
    let mut lan = Lan::of(5, Plan::default(), 2048);
    for guest in [3, 4] {
        assert_eq!(0, lan.command(guest, 0, 0, &[0]));
    }
    lan.reset(1);
    lan.reset(2);
    let group = Mac([1, 0, 0x5e, 0, 0, 1]);
    let outcome = lan.pass(0, Header::default(), &frame(group, mac(0), &[0; 46]));
    assert_eq!((0, 4 * LEAST_CHARGE), (outcome.bytes, outcome.charge));
}

#[test]
fn a_port_waits_when_it_has_sent_its_share() {
    let rate = Some(Rate { bytes_per_second: 1000, burst: 2000 });
    let mut lan = Lan::of(2, Plan { rate, ..Plan::default() }, 2048);
    let sent = frame(mac(1), mac(0), &[0; 974]); // 1,000 bytes with the header.
    for _ in 0..4 {
        lan.send(0, &sent);
    }
    assert!(lan.turn(0, 0).unwrap().more && lan.turn(0, 0).unwrap().more);
    let outcome = lan.turn(0, 0).unwrap();
    assert!(outcome.full && !outcome.more && outcome.completed == 0);
    let ready = lan.switch.ready_at(lan.guests[0].port);
    assert_eq!(lan.now + 1, ready);
    lan.now = ready - 1;
    assert!(lan.turn(0, 0).unwrap().full);
    lan.now = ready;
    assert_eq!(1, lan.turn(0, 0).unwrap().completed);
    assert!(lan.turn(0, 0).unwrap().full);
    lan.now += SECOND;
    assert_eq!(1, lan.turn(0, 0).unwrap().completed);
    assert!(!lan.turn(0, 0).unwrap().full, "nothing waits");
    assert_eq!(4, lan.received(1).len());
}

#[test]
fn floods_are_limited() {
    let flood = Some(Rate { bytes_per_second: 100, burst: 200 });
    let mut lan = Lan::of(3, Plan { flood, ..Plan::default() }, 2048);
    let all = frame(Mac::BROADCAST, mac(0), &[0; 86]);
    for _ in 0..3 {
        lan.pass(0, Header::default(), &all);
        lan.pass(0, Header::default(), &frame(mac(1), mac(0), &[0; 86]));
    }
    assert_eq!((4, 1), (lan.received(1).len(), lan.received(2).len()));
    assert_eq!(2, lan.statistics(0).flooded);
    lan.now += SECOND;
    lan.pass(0, Header::default(), &all);
    assert_eq!(1, lan.received(2).len());
}

#[test]
fn a_link_that_is_down_carries_nothing() {
    let mut lan = Lan::of(2, Plan::default(), 2048);
    let port = lan.guests[1].port;
    assert_eq!(1, lan.switch.config_bytes(port)[6]);
    lan.switch.set_link(port, false);
    assert_eq!(0, lan.switch.config_bytes(port)[6]);
    lan.pass(0, Header::default(), &frame(mac(1), mac(0), b"x"));
    lan.pass(1, Header::default(), &frame(mac(0), mac(1), b"x"));
    assert!(lan.received(0).is_empty() && lan.received(1).is_empty());
    assert_eq!(2, lan.statistics(1).down);
    lan.switch.set_link(port, true);
    lan.pass(0, Header::default(), &frame(mac(1), mac(0), b"x"));
    assert_eq!(1, lan.received(1).len());
}

/// Answers come where the question was asked from (5.1.6.5.6.1).
#[test]
fn a_flow_comes_back_to_the_pair_that_sent_it() {
    let mut lan = Lan::of(1, Plan::default(), 2048);
    let two = Parameters { pairs: 2, ..parameters(1) };
    let second = lan.add(two, Plan::default(), Features::empty());
    for pair in [0, 1] {
        for _ in 0..20 {
            lan.post(second, pair, &[2048]);
        }
    }
    let answer = frame(mac(1), mac(0), b"answer");
    let ask = |lan: &mut Lan, pair| {
        let question = frame(mac(0), mac(1), b"question");
        lan.send_cut(second, pair, Header::default(), &question, &[]);
        lan.turn(second, pair).unwrap();
        lan.pass(0, Header::default(), &answer);
        [lan.received_by(second, 0).len(), lan.received_by(second, 1).len()]
    };
    assert_eq!([1, 0], ask(&mut lan, 1), "one pair is used until the driver says so");
    for bad in [0u16, 3] {
        assert_eq!(1, lan.command(second, 4, 0, &bad.to_le_bytes()));
    }
    assert_eq!(0, lan.command(second, 4, 0, &2u16.to_le_bytes()));
    assert_eq!([0, 1], ask(&mut lan, 1));
    assert_eq!([1, 0], ask(&mut lan, 0));
}

#[test]
fn frames_that_bridges_keep_arent_forwarded() {
    let mut lan = Lan::of(2, Plan::default(), 2048);
    for last in [0, 1, 2, 15] {
        let to = Mac([1, 0x80, 0xc2, 0, 0, last]);
        lan.pass(0, Header::default(), &frame(to, mac(0), b"spanning tree"));
    }
    assert!(lan.received(1).is_empty());
    assert_eq!(4, lan.statistics(0).unknown);
}

#[test]
fn ports_are_checked() {
    let config = |asked| Config::new(asked).unwrap();
    let mut switch: Switch = Switch::new(2, 1);
    let plan = Plan::default();
    let pairs = Parameters { pairs: 65, ..parameters(0) };
    assert_eq!(Err(BadPort::Pairs), switch.add(config(pairs), plan));
    let vlan = Plan { vlan: Vlan::Access(4095), ..plan };
    assert_eq!(Err(BadPort::Vlan), switch.add(config(parameters(0)), vlan));
    switch.add(config(parameters(0)), plan).unwrap();
    assert_eq!(Err(BadPort::Address(mac(0))), switch.add(config(parameters(0)), plan));
    switch.add(config(parameters(1)), plan).unwrap();
    assert_eq!(Err(BadPort::Full), switch.add(config(parameters(2)), plan));
}
