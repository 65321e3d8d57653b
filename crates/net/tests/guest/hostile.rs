//! What hostile guests do, and what must hold: for the test and the fuzzer.
use super::{Lan, mac, parameters};
use net::header::{GSO_UDP, Header, NEEDS_CSUM};
use net::{
    BURST, BURST_CHARGE, Features, Finish, LEAST_CHARGE, LONG_UPLINK_MEMORY, Leaving, MAX_FRAME,
    MAX_SEGMENTS, MAX_UNCUT, Mac, Parameters, Plan, PortNumber, Sources, Task,
};
use window::Memory;

/// The rings of a guest are in its first pages.
pub const RINGS: u64 = 32 << 10;

#[derive(Clone, Debug)]
pub enum Step {
    /// A header and the first bytes of a frame that may be right, then others.
    Send {
        header: [u8; 12],
        like: u8,
        patch: Vec<(u8, u8)>,
        len: u32,
        cuts: Vec<usize>,
    },
    /// Any bytes in the control queue.
    Command(Vec<u8>),
    /// Any bytes in the rings.
    Write(u64, Vec<u8>),
    /// A buffer that may be anywhere.
    Buffer {
        index: u16,
        address: u64,
        len: u32,
        writable: bool,
    },
    Serve(u16),
    /// Its frames, many in a turn.
    Burst,
    Reset,
}

/// How many kinds of frames there are.
pub const KINDS: u8 = 15;

/// Where the header of TCP or UDP is in a frame of this kind, and where its checksum is from there.
pub fn places(kind: u8) -> (u16, u16) {
    (if matches!(kind % 5, 0 | 3) { 34 } else { 54 }, if kind % 5 < 3 { 16 } else { 6 })
}

/// The first bytes of a frame from guest 0: IPv4 with TCP, IPv6 with TCP, something else, or UDP
/// in either; to guest 1, to nobody who is known, or to all.
fn like(kind: u8, patch: &[(u8, u8)]) -> Vec<u8> {
    let to = [mac(1), mac(99), Mac::BROADCAST][usize::from(kind / 5 % 3)];
    let mut bytes = [&to.0[..], &mac(0).0].concat();
    match kind % 5 {
        0 => {
            bytes.extend([8, 0, 0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
            bytes.extend([0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0xff, 0, 0, 0, 0, 0, 0]);
        }
        1 => {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 6, 64]);
            bytes.extend([1; 32]);
            bytes.extend([0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0xff, 0, 0, 0, 0, 0, 0]);
        }
        2 => bytes.extend([0x81, 0, 0, 1, 8, 0]),
        3 => {
            bytes.extend([8, 0, 0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0]);
            bytes.extend([10, 0, 0, 1, 10, 0, 0, 2, 0, 1, 0, 2, 0, 0, 0, 0]);
        }
        _ => {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 17, 64]);
            bytes.extend([1; 32]);
            bytes.extend([0, 1, 0, 2, 0, 0, 0, 0]);
        }
    }
    for (at, value) in patch {
        // Addresses mostly stay, so that it is forwarded.
        if let Some(byte) = bytes.get_mut(usize::from(*at)) {
            *byte = *value;
        }
    }
    bytes
}

/// Publishes what was touched. None but guest 0's own queues may be broken.
fn look_at_touched(lan: &mut Lan) {
    while let Some(touched) = lan.switch.touched() {
        assert!(touched.broken.is_none() || touched.port == lan.guests[0].port);
        lan.switch.queue(touched.port, touched.queue).unwrap().publish();
    }
}

/// What leaves asks for nothing that isn't in the frame: a controller, or the host's kernel, goes
/// by it.
fn look_at_leaving(lan: &mut Lan, wire: PortNumber, finish: Finish) {
    while let Some(Leaving { parts, ethernet, task, header, .. }) = lan.switch.leaving(wire) {
        let len = parts.iter().map(|part| part.len()).sum::<u64>();
        let header = Header::parse(&header);
        let [start, offset, headers] =
            [header.csum_start, header.csum_offset, header.hdr_len].map(u64::from);
        assert!(len >= 14 && matches!(ethernet, 14 | 18));
        if header.flags & NEEDS_CSUM != 0 {
            assert!(start >= ethernet.into() && start + offset + 2 <= len);
        }
        if header.gso_type == 0 {
            assert!(len <= u64::from(ethernet) + 1500);
        } else {
            let udp = header.gso_type == GSO_UDP;
            let (least, own) = match finish {
                Finish::ByHeader { udp: may } if udp => {
                    assert!(may);
                    (1, 8)
                }
                Finish::ByHeader { .. } => (8, 20),
                _ => (256, 20),
            };
            assert!(header.flags == NEEDS_CSUM && header.gso_size >= least);
            assert!(start + own <= headers && headers + u64::from(header.gso_size) < len);
            let count = (len - headers).div_ceil(header.gso_size.into());
            assert!(!udp || count <= MAX_UNCUT.into());
            assert!(headers + u64::from(header.gso_size) <= u64::from(ethernet) + 1500);
        }
        match (finish, task) {
            (Finish::Here, task) => assert_eq!(task, Task::Nothing),
            (Finish::ByController, Task::Checksum { start, tcp }) => {
                assert!(start >= ethernet + 20 && u64::from(start) + 8 <= len);
                assert_eq!(header.csum_offset, if tcp { 16 } else { 6 });
                assert!(len >= 60, "padding would be summed up");
            }
            (Finish::ByController, Task::Segments { start, headers, .. }) => {
                assert!(start >= ethernet + 20 && headers >= start + 20);
            }
            _ => {}
        }
    }
}

/// Guest 0 does all this, at a switch with two others whose drivers decline some features, and a
/// port to the wire.
pub fn run(declined: [bool; 4], finish: u8, steps: Vec<Step>) {
    let mut lan = Lan::new();
    let plan = Plan { sources: Sources::Any, ..Plan::default() };
    let mut options = Features::empty();
    let tcp = Features::GUEST_TSO4 | Features::GUEST_TSO6 | Features::GUEST_ECN;
    let udp = Features::GUEST_USO4 | Features::GUEST_USO6;
    let all = Features::GUEST_CSUM | tcp | udp;
    for (decline, features) in declined.into_iter().zip([tcp, all, Features::MRG_RXBUF, udp]) {
        if decline {
            options |= features;
        }
    }
    let big = Parameters { mtu: u16::MAX, ..parameters(0) };
    lan.add(big, plan, Features::empty());
    for number in 1..3 {
        let big = Parameters { mtu: u16::MAX, ..parameters(number) };
        let guest = lan.add(big, plan, options);
        lan.post_many(guest, 100, 1600);
        lan.post(guest, 0, &[65562]);
    }
    lan.post_many(0, 20, 1600);
    let finish = match finish % 4 {
        0 => Finish::Here,
        1 => Finish::ByController,
        2 => Finish::ByHeader { udp: false },
        _ => Finish::ByHeader { udp: true },
    };
    let memory = Memory::new(&[(0, LONG_UPLINK_MEMORY)], 0);
    let span = memory.window().span(0, LONG_UPLINK_MEMORY).unwrap();
    let wire = lan.switch.add_uplink(span, finish).unwrap();
    lan.switch.set_link(wire, true);
    // What others have that isn't offered.
    const AWAY: std::ops::Range<u64> = 5 << 20..(5 << 20) + (256 << 10);
    for guest in [1, 2] {
        lan.guests[guest].window.span(AWAY.start, AWAY.end - AWAY.start).unwrap().fill(0x5a);
    }
    for step in steps {
        match step {
            Step::Send { header, like: kind, patch, len, cuts } => {
                let mut frame = like(kind, &patch);
                frame.resize((frame.len() + len as usize).min(66_000), 7);
                if len < 10 {
                    frame.truncate(len as usize);
                }
                let bytes = [&header[..], &frame].concat();
                let _ = lan.guests[0].try_give(1, &bytes, &cuts);
            }
            Step::Command(bytes) => {
                let _ = lan.guests[0].try_command(2, &bytes);
            }
            Step::Write(at, bytes) => lan.guests[0].window.write(at, &bytes).unwrap(),
            Step::Buffer { index, address, len, writable } => {
                let _ = lan.guests[0].try_offer(index, address, len, writable);
            }
            Step::Serve(index) => {
                let port = lan.guests[0].port;
                if let Ok(outcome) = lan.switch.serve(port, index, lan.now) {
                    // A copy for each of the three others; headers again for each segment.
                    let most = 3 * u64::from(MAX_FRAME + MAX_SEGMENTS * 260);
                    assert!(outcome.bytes <= most);
                    // The wire's copies count twice.
                    let charge = 2 * most + 4 * u64::from(MAX_SEGMENTS) * LEAST_CHARGE;
                    assert!(outcome.charge <= charge);
                    assert!(outcome.completed <= 1);
                    assert!(outcome.completed == 0 || outcome.charge >= LEAST_CHARGE);
                }
                look_at_touched(&mut lan);
                look_at_leaving(&mut lan, wire, finish);
            }
            Step::Burst => {
                let port = lan.guests[0].port;
                if let Ok(outcome) = lan.switch.serve_burst(port, 1, lan.now) {
                    let most = 3 * u64::from(MAX_FRAME + MAX_SEGMENTS * 260);
                    let last = 2 * most + 4 * u64::from(MAX_SEGMENTS) * LEAST_CHARGE;
                    assert!(outcome.completed <= BURST && outcome.charge <= BURST_CHARGE + last);
                    assert!(outcome.charge >= u64::from(outcome.completed) * LEAST_CHARGE);
                }
                look_at_touched(&mut lan);
                look_at_leaving(&mut lan, wire, finish);
            }
            Step::Reset => lan.reset(0),
        }
    }
    for guest in [1, 2] {
        let frames = lan.received_by(guest, 0);
        assert_eq!(lan.statistics(guest).received, frames.len() as u64);
        for (header, frame) in frames {
            assert!(frame.len() >= 14);
            if header.flags & NEEDS_CSUM != 0 {
                let end = usize::from(header.csum_start) + usize::from(header.csum_offset) + 2;
                assert!(end <= frame.len());
            }
            if header.gso_type != 0 {
                assert!(usize::from(header.hdr_len) < frame.len() && header.gso_size > 0);
                let data = (frame.len() - usize::from(header.hdr_len)) as u32;
                let count = data.div_ceil(header.gso_size.into());
                assert!(header.gso_type != GSO_UDP || count <= MAX_UNCUT);
            }
        }
        let mut away = vec![0; (AWAY.end - AWAY.start) as usize];
        lan.guests[guest].window.read(AWAY.start, &mut away).unwrap();
        assert!(away.iter().all(|byte| *byte == 0x5a));
    }
}
