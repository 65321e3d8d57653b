use crate::config::{QueueKind, REQUIREMENTS};
use crate::filter::{Addresses, Filter, Mode, TABLE};
use crate::offload::checksum::Sum;
use crate::rate::Bucket;
use crate::steer::{Pairs, Steering, flow};
use crate::table::{Table, WAYS, place};
use crate::*;
use proptest::prelude::*;
use virtqueue::DEFAULT_SIZE;

const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

fn station(number: u32) -> Mac {
    let [a, b, c, d] = number.to_be_bytes();
    Mac([2, 1, a, b, c, d])
}

fn config(asked: Parameters) -> Config {
    Config::new(Parameters { mac: MAC, ..asked }).unwrap()
}

#[test]
fn a_device_is_checked() {
    let asked = Parameters { mac: MAC, ..Parameters::default() };
    let refused = |asked| Config::new(asked).unwrap_err();
    for mac in [Mac::default(), Mac::BROADCAST, Mac([1, 0, 0, 0, 0, 0])] {
        assert_eq!(BadConfig::Mac(mac), refused(Parameters { mac, ..asked }));
    }
    assert_eq!(BadConfig::Mtu, refused(Parameters { mtu: 1279, ..asked }));
    for pairs in [0, 32769] {
        assert_eq!(BadConfig::Pairs, refused(Parameters { pairs, ..asked }));
    }
    for withheld in [Features::MAC, Features::VERSION_1] {
        assert_eq!(BadConfig::Withheld, refused(Parameters { withheld, ..asked }));
    }
    assert!(Config::new(Parameters { mtu: 1280, pairs: 32768, ..asked }).is_ok());
}

/// Bits as the standard has them (5.1.3), so that a slip in the list shows.
#[test]
fn features_have_their_bits() {
    let bits = [
        0, 1, 3, 5, 7, 8, 9, 11, 12, 13, 15, 16, 17, 18, 19, 20, 21, 22, 23, 28, 29, 32, 34, 54,
        55, 56,
    ];
    let expected = bits.iter().fold(0u64, |all, bit| all | 1 << bit);
    let asked = Parameters { pairs: 2, packed: true, announces: true, ..Parameters::default() };
    let all = config(asked).features();
    assert_eq!(expected, all.bits());
    let one = config(Parameters::default()).features();
    assert_eq!(Features::MQ | Features::RING_PACKED | Features::GUEST_ANNOUNCE, all - one);
}

#[test]
fn what_is_withheld_takes_what_asks_for_it_along() {
    let offered =
        |withheld| config(Parameters { withheld, pairs: 2, ..Parameters::default() }).features();
    let without = offered(Features::CTRL_VQ);
    let control = Features::CTRL_RX
        | Features::CTRL_RX_EXTRA
        | Features::CTRL_VLAN
        | Features::MQ
        | Features::CTRL_MAC_ADDR;
    assert!(!without.intersects(control));
    let without = offered(Features::CSUM | Features::GUEST_CSUM);
    assert!(!without.intersects(Features::HOST_TSO4 | Features::HOST_ECN | Features::GUEST_TSO6));
    assert!(!without.contains(Features::GUEST_ECN));
    assert!(offered(Features::GUEST_TSO4).contains(Features::GUEST_ECN));
    for (feature, requirement) in REQUIREMENTS {
        assert!(!offered(requirement).intersects(feature));
    }
}

/// 5.1.3.1, one by one.
#[test]
fn features_without_what_they_ask_for_arent_accepted() {
    let config = config(Parameters { pairs: 2, announces: true, ..Parameters::default() });
    let base = Features::VERSION_1;
    assert_eq!(Ok(base), config.accept(base.bits()));
    assert_eq!(Err(BadFeatures::Legacy), config.accept(Features::CSUM.bits()));
    assert_eq!(
        Err(BadFeatures::NotOffered(Features::from_bits_retain(1 << 33))),
        config.accept(base.bits() | 1 << 33)
    );
    for (feature, requirement) in REQUIREMENTS {
        let refused = config.accept((base | feature).bits());
        assert_eq!(Err(BadFeatures::Requires(feature, requirement)), refused);
    }
    use Features as F;
    for together in [
        F::CSUM | F::HOST_TSO4,
        F::CSUM | F::HOST_TSO6 | F::HOST_ECN,
        F::GUEST_CSUM | F::GUEST_TSO4 | F::GUEST_ECN,
        F::GUEST_CSUM | F::GUEST_TSO6,
        F::CTRL_VQ | F::CTRL_RX | F::CTRL_VLAN | F::MQ | F::CTRL_MAC_ADDR,
    ] {
        assert_eq!(Ok(base | together), config.accept((base | together).bits()));
    }
    assert!(config.accept(config.features().bits()).is_ok());
}

/// 5.1.2: the control queue is behind the pairs that there are, one without MQ.
#[test]
fn queues_have_their_places() {
    let config = config(Parameters { pairs: 3, ..Parameters::default() });
    let all = config.features();
    let kinds: Vec<_> = (0..8).map(|index| config.queue(index, all)).collect();
    use QueueKind::*;
    let expected = [Receive(0), Transmit(0), Receive(1), Transmit(1), Receive(2), Transmit(2)];
    assert_eq!(expected.map(Some), kinds[..6]);
    assert_eq!([Some(Control), None], kinds[6..]);
    let one = all - Features::MQ;
    assert_eq!(Some(Control), config.queue(2, one));
    assert_eq!(None, config.queue(3, one));
    assert_eq!(None, config.queue(2, one - Features::CTRL_VQ));
    assert_eq!(None, config.queue(u16::MAX, all));
    assert_eq!(7, config.queues());
}

#[test]
fn the_configuration_space_is_the_standards() {
    let two = config(Parameters { pairs: 2, mtu: 9000, ..Parameters::default() });
    assert_eq!([2, 0, 0, 0, 0, 1, 1, 0, 2, 0, 0x28, 0x23], two.config_bytes(MAC, true));
    assert_eq!([0, 0], two.config_bytes(MAC, false)[6..8]);
    let withheld = Features::STATUS | Features::MTU;
    let less = config(Parameters { withheld, ..Parameters::default() });
    assert_eq!([2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0], less.config_bytes(MAC, true));
}

/// RFC 1071, 3: the example.
#[test]
fn the_sum_is_the_rfcs() {
    let mut sum = Sum::default();
    sum.add(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
    assert_eq!(0xddf2, sum.folded());
    assert_eq!(0x220d, sum.checksum());
}

#[test]
fn only_transport_checksums_avoid_zero() {
    let mut sum = Sum::default();
    sum.add(&[0xff, 0xff]);
    assert_eq!((0, 0xffff), (sum.checksum(), sum.checksum_not_zero()));
}

proptest! {
    /// In pieces of any length it is the sum of all words.
    #[test]
    fn sums_may_be_made_in_pieces(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..20)) {
        let mut sum = Sum::default();
        pieces.iter().for_each(|piece| sum.add(piece));
        let mut expected = 0u32;
        for word in pieces.concat().chunks(2) {
            let second = word.get(1).copied().unwrap_or(0);
            expected += u32::from(u16::from_be_bytes([word[0], second]));
            expected = (expected & 0xffff) + (expected >> 16);
        }
        prop_assert_eq!(expected, u32::from(sum.folded()));
    }

    /// No more than the burst and what time has brought back, and the last one.
    #[test]
    fn a_bucket_lets_no_more_through(
        rate in 1..1_000_000u64,
        burst in 0..100_000u64,
        steps in prop::collection::vec((0..1_000_000_000u64, 1..70_000u64), 1..100),
    ) {
        let mut bucket = Bucket::new(Some(Rate { bytes_per_second: rate, burst }));
        let (mut now, mut through, mut last) = (0, 0, 0);
        for (time, bytes) in steps {
            now += time;
            if bucket.ready_at() <= now {
                bucket.take(bytes, now);
                through += bytes;
                last = bytes;
            }
            let allowed = u128::from(burst) + u128::from(now) * u128::from(rate) / 1_000_000_000;
            prop_assert!(u128::from(through) <= allowed + u128::from(last) + 1);
        }
        let ready = bucket.ready_at();
        prop_assert!(ready <= now || ready - now <= (through * 1_000_000_000).div_ceil(rate) + 1);
    }
}

#[test]
fn a_bucket_at_the_ends_of_numbers() {
    let mut bucket = Bucket::new(None);
    bucket.take(u64::MAX, u64::MAX);
    assert_eq!(0, bucket.ready_at());
    for (bytes_per_second, burst) in [(0, 0), (1, u64::MAX), (u64::MAX, u64::MAX)] {
        let mut bucket = Bucket::new(Some(Rate { bytes_per_second, burst }));
        for now in [0, 1, u64::MAX] {
            bucket.take(u64::MAX, now);
            let _ = bucket.ready_at();
        }
    }
}

#[test]
fn addresses_of_bridges_are_reserved() {
    assert!(Mac([1, 0x80, 0xc2, 0, 0, 15]).is_reserved());
    assert!(!Mac([1, 0x80, 0xc2, 0, 0, 16]).is_reserved());
    assert!(Mac::BROADCAST.is_group() && !Mac::BROADCAST.is_station());
    assert_eq!("02:00:00:00:00:01", MAC.to_string());
}

#[test]
fn sets_hold_what_tags_can_name() {
    let mut set = VlanSet::EMPTY;
    for (vlan, there) in [(0, false), (1, true), (64, true), (4094, true), (4095, false)] {
        assert_eq!(there, set.set(vlan, true));
        assert_eq!((there, there), (set.contains(vlan), VlanSet::ALL.contains(vlan)));
    }
    assert!(!set.set(u16::MAX, true) && !set.contains(u16::MAX) && !set.contains(2));
    assert!(set.set(64, false) && !set.contains(64));
    assert_eq!(4094, (0..=u16::MAX).filter(|vlan| VlanSet::ALL.contains(*vlan)).count());
}

#[test]
fn a_full_table_of_addresses_lets_all_through() {
    let mut filter = Filter::new(Features::VERSION_1);
    filter.set_mode(Mode::Promiscuous, false);
    let mut table = Addresses::default();
    (0..TABLE as u32).for_each(|number| table.push(station(number)));
    filter.set_tables(table.clone(), Addresses::default());
    assert!(filter.accepts(station(63), None, MAC) && !filter.accepts(station(64), None, MAC));
    table.push(station(64));
    filter.set_tables(table, Addresses::default());
    assert!(filter.accepts(station(1000), None, MAC));
    assert!(!filter.accepts(Mac([1, 0, 0, 0, 0, 0]), None, MAC), "of stations only");
}

#[test]
fn frames_to_its_own_address_are_received_as_others_are() {
    use Mode::{AllMulticast, AllUnicast, NoBroadcast, NoMulticast, NoUnicast, Promiscuous};
    let modes = [Promiscuous, AllMulticast, AllUnicast, NoMulticast, NoUnicast, NoBroadcast];
    for set in 0..1 << modes.len() {
        let mut filter = Filter::new(Features::VERSION_1);
        for (bit, mode) in modes.into_iter().enumerate() {
            filter.set_mode(mode, set >> bit & 1 != 0);
        }
        for own in [MAC, Mac::BROADCAST, Mac([1, 0, 0, 0, 0, 0])] {
            assert_eq!(filter.accepts(own, None, own), filter.accepts_own(own), "{set:#b} {own}");
        }
    }
}

#[test]
fn no_port_fills_the_table() {
    let mut table = Table::new(100);
    (0..4000).for_each(|number| table.learn(station(number), 0, 1, 5));
    assert!(table.count(1) <= 512, "{}", table.count(1));
    assert!(table.count(1) >= 400);
    let own: Vec<Mac> =
        (0..4000).map(station).filter(|mac| table.find(*mac, 0, 5) == Some(1)).collect();
    assert_eq!(usize::from(table.count(1)), own.len());
    (5000..5400).for_each(|number| table.learn(station(number), 0, 2, 6));
    assert!(table.count(2) >= 300, "{}", table.count(2));
    // What is too old goes.
    (6000..10_000).for_each(|number| table.learn(station(number), 0, 3, 200));
    assert!(table.count(3) >= 400 && table.count(1) < 512);
    table.forget(3);
    assert_eq!(0, table.count(3));
    assert!((6000..10_000).all(|number| table.find(station(number), 0, 200).is_none()));
}

/// Who knows how addresses are spread fills the set of one that isn't its own, and sees what is
/// sent there, as to an address that nobody knows: the attack on a switch's table, by few frames.
#[test]
fn no_port_keeps_others_from_being_learned() {
    let in_set: Vec<Mac> =
        (0..).map(station).filter(|mac| place(*mac, 0) == place(MAC, 0)).take(60).collect();
    let learn = |table: &mut Table, macs: &[Mac], port, now| {
        macs.iter().for_each(|mac| table.learn(*mac, 0, port, now));
    };
    let mut table = Table::new(100);
    learn(&mut table, &in_set[..20], 1, 5);
    table.learn(MAC, 0, 2, 5);
    assert_eq!(Some(2), table.find(MAC, 0, 5), "the set is another's");
    learn(&mut table, &in_set[..20], 1, 6);
    assert_eq!(Some(2), table.find(MAC, 0, 6), "its last place was taken");
    // Neither gets more than half, whoever comes last.
    learn(&mut table, &in_set[20..40], 2, 7);
    learn(&mut table, &in_set[..20], 1, 8);
    assert_eq!((4, 4), (table.count(1), table.count(2)));
    // As many ports as there are places have one each.
    for (port, mac) in (3..=WAYS as u8).zip(&in_set[40..]) {
        table.learn(*mac, 0, port, 9);
    }
    assert!((1..=WAYS as u8).all(|port| table.count(port) == 1));
    table.learn(in_set[50], 0, 9, 9);
    assert_eq!(None, table.find(in_set[50], 0, 9));
}

#[test]
fn a_port_with_its_fill_goes_on_in_its_own_places() {
    let is_in_set = |mac: &Mac| place(*mac, 0) == place(MAC, 0);
    let in_set: Vec<Mac> = (0..).map(station).filter(is_in_set).take(WAYS + 1).collect();
    let mut table = Table::new(100);
    in_set[..5].iter().for_each(|mac| table.learn(*mac, 0, 2, 5));
    in_set[5..WAYS].iter().for_each(|mac| table.learn(*mac, 0, 1, 5));
    let others = (0..8000).map(station).filter(|mac| !is_in_set(mac));
    others.for_each(|mac| table.learn(mac, 0, 1, 6));
    assert_eq!(512, table.count(1));
    table.learn(in_set[WAYS], 0, 1, 7);
    assert_eq!((Some(1), 512), (table.find(in_set[WAYS], 0, 7), table.count(1)));
    assert!(in_set[..5].iter().all(|mac| table.find(*mac, 0, 7) == Some(2)));
}

#[test]
fn an_address_is_at_one_port_of_each_vlan() {
    let mut table = Table::new(100);
    table.learn(MAC, 1, 1, 0);
    table.learn(MAC, 2, 2, 0);
    assert_eq!(
        (Some(1), Some(2), None),
        (table.find(MAC, 1, 0), table.find(MAC, 2, 0), table.find(MAC, 3, 0))
    );
    table.learn(MAC, 1, 3, 1);
    assert_eq!((Some(3), 0, 1), (table.find(MAC, 1, 1), table.count(1), table.count(3)));
    table.learn(MAC, 1, 200, 1);
    assert_eq!(Some(3), table.find(MAC, 1, 1), "there is no such port");
    assert_eq!((Some(3), None), (table.find(MAC, 1, 101), table.find(MAC, 1, 102)));
}

/// The frame of a packet from `a` to `b`.
fn packet(a: ([u8; 4], u16), b: ([u8; 4], u16)) -> frame::Frame {
    let builder =
        etherparse::PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4(a.0, b.0, 9).udp(a.1, b.1);
    let mut bytes = Vec::new();
    builder.write(&mut bytes, b"x").unwrap();
    let mut head = frame::Head::new();
    head.extend(&bytes);
    let len = bytes.len() as u32;
    let offload = offload::Offload::Nothing;
    frame::Frame { head, tag: None, len, offload, longest: len, port: 0 }
}

#[test]
fn both_directions_are_one_flow() {
    let mut seen = std::collections::HashSet::new();
    for port in 1..200 {
        let (a, b) = (([10, 0, 0, 1], port), ([10, 0, 3, 9], 53));
        assert_eq!(flow(&packet(a, b).head), flow(&packet(b, a).head));
        seen.insert(flow(&packet(a, b).head));
    }
    assert!(seen.len() > 80, "{}", seen.len());
    let mut steering = Steering::new();
    assert_eq!(7 % 4, steering.pair(7, 0b1111));
    steering.sent(7, 2);
    assert_eq!((2, 1), (steering.pair(7, 0b1111), steering.pair(7, 0b11)));
    assert_eq!((0, 0), (steering.pair(7, 1), steering.pair(7, 0)));
    // One that doesn't receive any more, whichever it is; the others share its flows.
    assert_eq!((3, 1), (steering.pair(7, 0b1010), steering.pair(6, 0b1010)));
    let mut pairs = Pairs::new();
    [0, 2, 63].iter().for_each(|pair| pairs.attach(*pair, true));
    assert_eq!(1 << 63 | 0b101, pairs.active());
    pairs.attach(0, false);
    assert_eq!(1 << 63 | 0b100, pairs.active());
    pairs.has_control();
    assert_eq!(0, pairs.active(), "the first one alone is used");
    pairs.set_used(3);
    pairs.has_control();
    assert_eq!(0b100, pairs.active());
    pairs.set_used(64);
    assert_eq!(1 << 63 | 0b100, pairs.active());
    assert_eq!(0, pairs.detached().active());
}

#[test]
fn a_header_is_where_it_should_be() {
    let bytes = [1, 0x81, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11];
    let header = header::Header::parse(&bytes);
    assert_eq!((0x0302, 0x0504), (header.hdr_len, header.gso_size));
    assert_eq!(
        (0x0706, 0x0908, 0x0b0a),
        (header.csum_start, header.csum_offset, header.num_buffers)
    );
    assert_eq!(bytes, header.bytes());
}

/// They are moved by a stack that may be small.
#[test]
fn what_is_moved_is_small() {
    let sizes = [
        size_of::<Switch>(),
        size_of::<crate::port::Port>(),
        size_of::<crate::queues::Queues<DEFAULT_SIZE>>(),
        size_of::<crate::receive::Receive<DEFAULT_SIZE>>(),
    ];
    assert!(sizes.iter().all(|size| *size < 4096), "{sizes:?}");
}
