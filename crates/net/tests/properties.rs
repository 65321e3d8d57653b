//! Each frame arrives at exactly the right ports, whole, once, in order: against a model that knows
//! nothing of the switch but the rules of [`net::Plan`].
mod guest;

use guest::{Lan, SECOND, frame, mac, parameters};
use net::header::Header;
use net::{Features, Mac, Plan, Sources, Vlan, VlanSet};
use proptest::prelude::*;
use std::collections::{HashMap, VecDeque};

/// A port: the number of its VLAN (3 is a trunk of 1 and 2), what it may send from, and what its
/// driver declines.
type Ports = Vec<(u8, u8, bool)>;

/// What a guest does.
#[derive(Clone, Debug)]
enum Step {
    /// It sends, from an address, to one, so many bytes, with a tag if it has one, cut somewhere.
    Send { from: u8, source: u8, to: u8, len: usize, tag: u16, cuts: Vec<usize> },
    /// Its transmit queue is served: a frame, or many.
    Serve(u8, bool),
    /// It offers receive buffers.
    Post(u8, Vec<u32>),
    /// It doesn't want broadcasts any more, or does.
    Broadcasts(u8, bool),
    /// Time passes, in seconds.
    Wait(u8),
}

/// Addresses: 0 to 5 are the ports', then stations behind them, a group, all, and a bridge's.
fn address(number: u8) -> Mac {
    match number {
        0..=8 => mac(number),
        9 => Mac([1, 0, 0x5e, 1, 2, 3]),
        10 => Mac::BROADCAST,
        _ => Mac([1, 0x80, 0xc2, 0, 0, 2]),
    }
}

fn vlan(kind: u8) -> Vlan {
    match kind {
        3 => Vlan::Trunk([1, 2].into_iter().collect::<VlanSet>()),
        number => Vlan::Access(number.into()),
    }
}

/// The switch as it should be.
struct Model {
    ports: Ports,
    /// By VLAN and station: the port and the time.
    learned: HashMap<(u16, u8), (usize, u64)>,
    no_broadcasts: Vec<bool>,
    now: u64,
}

/// What is on its way: source, destination, tag, data.
type Sent = (u8, u8, Option<u16>, Vec<u8>);

impl Model {
    fn within(&self, port: usize, vlan: u16) -> bool {
        match self.ports[port].0 {
            3 => vlan == 1 || vlan == 2,
            own => u16::from(own) == vlan,
        }
    }

    /// The ports at which it arrives.
    fn receivers(&mut self, from: usize, (source, to, tag, _): &Sent) -> Vec<usize> {
        let (kind, sources, _) = self.ports[from];
        let vlan = match (kind, tag) {
            (3, Some(tag)) if *tag == 1 || *tag == 2 => *tag,
            (0..=2, None) => kind.into(),
            _ => return vec![],
        };
        let any = |port: usize| self.ports[port].1 == 2;
        let own = usize::from(*source) == from;
        let others = usize::from(*source) < self.ports.len() && !own;
        if others || *source > 8 || (!own && sources != 2) {
            return vec![];
        }
        if !own {
            self.learned.insert((vlan, *source), (from, self.now));
        }
        let all = (0..self.ports.len()).filter(|port| *port != from && self.within(*port, vlan));
        match to {
            11.. => vec![],
            10 => all.filter(|port| !self.no_broadcasts[*port]).collect(),
            9 => all.collect(),
            to if usize::from(*to) == from => vec![],
            to if usize::from(*to) < self.ports.len() && self.within((*to).into(), vlan) => {
                vec![(*to).into()]
            }
            to => match self.learned.get(&(vlan, *to)) {
                Some((port, seen)) if self.now - seen <= 300 * SECOND => {
                    all.filter(|at| at == port).collect()
                }
                _ => all.filter(|port| any(*port)).collect(),
            },
        }
    }
}

fn step() -> impl Strategy<Value = Step> {
    let guest = 0..6u8;
    let len = prop_oneof![0..100usize, 200..300usize, 0..1486usize];
    let cuts = prop::collection::vec(0..1500usize, 0..4);
    prop_oneof![
        6 => (guest.clone(), 0..12u8, 0..12u8, len, 0..5u16, cuts, any::<bool>()).prop_map(
            |(from, source, to, len, tag, cuts, honest)| {
                let source = if honest { from } else { source };
                Step::Send { from, source, to, len, tag, cuts }
            }
        ),
        8 => (guest.clone(), prop::bool::weighted(0.3))
            .prop_map(|(guest, many)| Step::Serve(guest, many)),
        2 => (guest.clone(), prop::collection::vec(100..2000u32, 1..5))
            .prop_map(|(guest, lens)| Step::Post(guest, lens)),
        1 => (guest, any::<bool>()).prop_map(|(guest, on)| Step::Broadcasts(guest, on)),
        1 => (0..200u8).prop_map(Step::Wait),
    ]
}

fn run(ports: Ports, steps: Vec<Step>) {
    let count = ports.len();
    let mut lan = Lan::new();
    for (number, (kind, sources, small)) in ports.iter().enumerate() {
        let sources = [Sources::Planned, Sources::Settable, Sources::Any][usize::from(*sources)];
        let plan = Plan { vlan: vlan(*kind), sources, ..Plan::default() };
        let declined = if *small { Features::MRG_RXBUF } else { Features::empty() };
        let guest = lan.add(parameters(number as u8), plan, declined);
        lan.post_many(guest, 56, 1600);
    }
    let mut model =
        Model { ports, learned: HashMap::new(), no_broadcasts: vec![false; count], now: lan.now };
    let mut waiting: Vec<VecDeque<Sent>> = vec![VecDeque::new(); count];
    let mut serial = 0u32;
    let serve =
        |lan: &mut Lan, model: &mut Model, waiting: &mut Vec<VecDeque<Sent>>, from, many| {
            let outcome = if many { lan.burst(from) } else { lan.turn(from, 0) }.unwrap();
            let most = if many { net::BURST } else { 1 };
            let is_much = outcome.completed == most || outcome.charge >= net::BURST_CHARGE;
            assert_eq!((is_much, false), (outcome.more, outcome.full));
            let taken = outcome.completed as usize;
            assert!(outcome.completed <= most && (is_much || taken == waiting[from].len()));
            let taken: Vec<Sent> = waiting[from].drain(..taken).collect();
            let mut expected = vec![Vec::new(); count];
            for sent in &taken {
                let (source, to, tag, data) = sent;
                for at in model.receivers(from, sent) {
                    let mut whole = frame(address(*to), address(*source), data);
                    if model.ports[at].0 == 3 {
                        let vlan = tag.unwrap_or(model.ports[from].0.into());
                        whole.splice(12..12, [0x81, 0, 0, vlan as u8]);
                    }
                    expected[at].push(whole);
                }
            }
            let bytes: usize = expected.iter().flatten().map(Vec::len).sum();
            for (at, expected) in expected.into_iter().enumerate() {
                assert_eq!(expected, lan.received(at), "{taken:?} of {from} at {at}");
                while lan.room(at) > 200 {
                    lan.post(at, 0, &[1600]);
                }
            }
            assert_eq!(bytes as u64, outcome.bytes);
        };
    for step in steps {
        match step {
            Step::Send { from, source, to, len, tag, cuts } => {
                let from = usize::from(from) % count;
                if waiting[from].len() >= 16 {
                    continue;
                }
                let source = if source < 6 { (usize::from(source) % count) as u8 } else { source };
                serial += 1;
                let mut data = serial.to_be_bytes().to_vec();
                data.extend((0..len).map(|at| at as u8));
                let mut bytes = frame(address(to), address(source), &data);
                // Mostly as it is right at the port.
                let tag = match (model.ports[from].0 == 3, tag) {
                    (true, 0) | (false, 1..) => None,
                    (_, tag) => Some(tag),
                };
                if let Some(tag) = tag {
                    bytes.splice(12..12, [0x81, 0, 0, tag as u8]);
                }
                lan.send_cut(from, 0, Header::default(), &bytes, &cuts);
                waiting[from].push_back((source, to, tag, data));
            }
            Step::Serve(from, many) => {
                serve(&mut lan, &mut model, &mut waiting, usize::from(from) % count, many);
            }
            Step::Post(guest, lens) => {
                let guest = usize::from(guest) % count;
                // Without mergeable buffers each chain has room for the longest frame.
                let mergeable = lan.guests[guest].accepted.contains(Features::MRG_RXBUF);
                let lens = if mergeable { lens } else { [lens, vec![1600]].concat() };
                if lan.room(guest) > 150 {
                    lan.post(guest, 0, &lens);
                }
            }
            Step::Broadcasts(guest, on) => {
                let guest = usize::from(guest) % count;
                // Not promiscuous, but all of groups and stations, as the model has it.
                for (command, on) in [(0, false), (1, true), (2, true), (5, !on)] {
                    assert_eq!(0, lan.command(guest, 0, command, &[on.into()]));
                }
                for vlan in [1u16, 2] {
                    assert_eq!(0, lan.command(guest, 2, 0, &vlan.to_le_bytes()));
                }
                model.no_broadcasts[guest] = !on;
            }
            Step::Wait(seconds) => {
                lan.now += u64::from(seconds) * SECOND;
                model.now = lan.now;
            }
        }
    }
    for from in 0..count {
        while !waiting[from].is_empty() {
            serve(&mut lan, &mut model, &mut waiting, from, true);
        }
        let sent = lan.statistics(from).sent;
        assert_eq!(sent, lan.guests[from].returned, "each chain comes back");
        assert_eq!(0, lan.statistics(from).no_room);
    }
    assert!(lan.broken.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn each_frame_arrives_where_it_should(
        ports in prop::collection::vec((0..4u8, 0..3u8, any::<bool>()), 2..6),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        run(ports, steps);
    }
}
