//! virtio-net between two VMs at a switch: what the device says of itself, and frames with numbers
//! that one of them sends and the other sends back.
//!
//! Each VM is started with `peer=N`, the last byte of the other's address; addresses are
//! 02:00:00:00:00:N, and those of second interfaces 02:00:00:00:01:N. The one whose number is less
//! begins.

use crate::virtio::{Virtio, status};
use crate::virtio_net::{self as net, FRAME, Interface, Mac, NETWORK, WANTED, features};
use crate::{
    boot::Boot, console::check, counters, counters::Policy, counters::Window, cpu, idt, wait,
};
use core::cell::Cell;
use ledger::Reason;

pub const VECTOR: u8 = 0x41;
/// Frames of the exchange, and how many are under way.
const FRAMES: u64 = 3_000;
const UNDER_WAY: u64 = 16;

/// What a frame is for.
pub mod kind {
    /// Somebody begins, or answers that.
    pub const HELLO: u8 = 1;
    /// A frame with a number.
    pub const NUMBER: u8 = 2;
    /// The same on its way back.
    pub const ECHO: u8 = 3;
    /// Nothing more comes, or the answer to that.
    pub const BYE: u8 = 4;
}

/// Two experimental bytes (IEEE 802, 9.2.4).
const ETHERTYPE: [u8; 2] = [0x88, 0xB5];
const HEAD: usize = 14 + 1 + 8;

/// A frame of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pub from: Mac,
    pub to: Mac,
    pub kind: u8,
    pub number: u64,
    /// Its bytes are what they must be.
    pub whole: bool,
}

/// An interface with its addresses.
pub struct Link {
    pub virtio: Virtio,
    pub number: usize,
    pub own: Mac,
    pub peer: Mac,
}

/// Bytes of the frame with this number: most are short, every eighth is of any length.
pub fn size(number: u64) -> usize {
    let range = if number.is_multiple_of(8) { FRAME + 1 - 60 } else { 64 };
    60 + (number as usize * 131) % range
}

fn pattern(kind: u8, number: u64, at: usize) -> u8 {
    (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (at % 8 * 8)) as u8 ^ at as u8 ^ kind
}

/// The first network devices, so many, as links to the peer; or a failed check.
pub fn links<const N: usize>(test: &str, boot: &Boot) -> Option<[Link; N]> {
    let peer = boot.option("peer").and_then(|n| n.parse::<u8>().ok()).unwrap_or(0);
    let mut found = Virtio::all(NETWORK);
    let links = [(); N].map(|()| found.next());
    if links.iter().any(Option::is_none) {
        check!(test, false, "fewer than {N} network devices (1AF4:1041) with MSI-X on bus 0");
        return None;
    }
    let number = Cell::new(0);
    Some(links.map(|virtio| {
        let (virtio, at) = (virtio.unwrap_or_else(|| unreachable!()), number.get());
        number.set(at + 1);
        let own = net::mac(&virtio);
        Link { virtio, number: at, own, peer: [2, 0, 0, 0, at as u8, peer] }
    }))
}

impl Link {
    /// Sets it up, with interrupts at a vector of its own.
    pub fn start(&self, boot: &Boot) -> bool {
        let wanted = self.virtio.offered() & WANTED;
        let started = net::start(&self.virtio, self.number, wanted, boot);
        net::handle(&self.virtio, self.number, VECTOR + self.number as u8);
        started
    }

    pub fn interface(&self) -> &'static Interface {
        net::interface(self.number)
    }

    /// Whether this side begins.
    pub fn begins(&self) -> bool {
        self.own < self.peer
    }

    /// Sends a frame; whether there was room for it.
    pub fn try_send(&self, from: Mac, to: Mac, kind: u8, number: u64) -> bool {
        let mut frame = [0; FRAME];
        let bytes = size(number);
        frame[..6].copy_from_slice(&to);
        frame[6..12].copy_from_slice(&from);
        frame[12..14].copy_from_slice(&ETHERTYPE);
        frame[14] = kind;
        frame[15..HEAD].copy_from_slice(&number.to_le_bytes());
        let rest = frame.iter_mut().enumerate().take(bytes).skip(HEAD);
        rest.for_each(|(at, byte)| *byte = pattern(kind, number, at));
        self.interface().send(&frame[..bytes])
    }

    /// Sends a frame to the peer, and waits for room.
    pub fn send(&self, kind: u8, number: u64) -> bool {
        wait::patiently(|| self.try_send(self.own, self.peer, kind, number))
    }

    /// The next frame that arrived.
    pub fn receive(&self) -> Option<Seen> {
        let mut frame = [0; FRAME + 1];
        let bytes = self.interface().receive(&mut frame)?;
        let mac = |at: usize| core::array::from_fn(|i| frame[at + i]);
        let number = u64::from_le_bytes(core::array::from_fn(|i| frame[15 + i]));
        let kind = frame[14];
        let whole = bytes == size(number)
            && frame[12..14] == ETHERTYPE
            && (HEAD..bytes).all(|at| frame[at] == pattern(kind, number, at));
        Some(Seen { to: mac(0), from: mac(6), kind, number, whole })
    }

    /// The next frame, when there is one; none if there never is.
    pub fn wait(&self) -> Option<Seen> {
        let mut seen = None;
        wait::patiently(|| {
            seen = self.receive();
            seen.is_some()
        });
        seen
    }

    /// Says something of no number again and again until the answer is there. What else comes is
    /// left out.
    pub fn ask(&self, kind: u8) -> bool {
        let mut silent = 0_u64;
        wait::patiently(|| {
            if silent.is_multiple_of(100_000) {
                self.try_send(self.own, self.peer, kind, 0);
            }
            silent += 1;
            self.receive().is_some_and(|seen| seen.kind == kind)
        })
    }

    /// Waits until it is asked, and answers. The answer has gone when this returns.
    pub fn answer(&self, kind: u8) -> bool {
        let asked = wait::patiently(|| self.receive().is_some_and(|seen| seen.kind == kind));
        asked && self.send(kind, 0) && self.interface().all_sent()
    }

    /// Both sides are there.
    pub fn meet(&self) -> bool {
        if self.begins() { self.ask(kind::HELLO) } else { self.answer(kind::HELLO) }
    }

    /// Both sides come to the end.
    pub fn part(&self) -> bool {
        if self.begins() { self.ask(kind::BYE) } else { self.answer(kind::BYE) }
    }
}

/// What the device says of itself, and which commands it takes.
pub fn negotiation(test: &str, boot: &Boot) {
    let Some([link]) = links(test, boot) else { return };
    let virtio = &link.virtio;
    let offered = virtio.offered();
    check!(test, offered & WANTED == WANTED, "offers {offered:#x}");
    let queues = virtio.queues();
    check!(test, virtio.entries() > queues && queues >= 3, "{queues} queues");
    let clear = (0..queues).all(|q| virtio.vectors(q) == (0xFFFF, 0xFFFF, false));
    check!(test, clear, "no queue is enabled, none has a vector");
    let refused = !virtio.negotiate(offered & WANTED & !crate::virtio::feature::VERSION_1);
    check!(test, refused, "not without VERSION_1");
    check!(test, link.own[0] == 2 && link.own[5] != 0, "its address is {:x?}", link.own);
    let [_, _, status, _] = virtio.config(4).to_le_bytes();
    let mtu = virtio.config(8) >> 16;
    check!(test, status & 1 == 1 && mtu == 1500, "link {status}, an MTU of {mtu}");
    let started = link.start(boot);
    check!(test, started, "it starts with {:#x}", offered & WANTED);
    let mut other = link.own;
    other[5] ^= 0x40;
    let answers = [
        ("promiscuous mode off", 0, 0, &[0][..], 0),
        ("its own address", 1, 1, &link.own[..], 0),
        ("another address", 1, 1, &other[..], 1),
        ("no command", 9, 9, &[][..], 1),
    ];
    for (what, class, command, data, wanted) in answers {
        let answer = link.interface().command(class, command, data);
        check!(test, answer == Some(wanted), "{what}: {answer:x?}");
    }
    check!(test, virtio.reset() && virtio.status() == 0, "a reset takes it all back");
    // Features that ask for others that aren't there are found out when it runs.
    let alone = crate::virtio::feature::VERSION_1 | features::CTRL_RX;
    net::start(virtio, 0, alone, boot);
    let told = wait::until(|| virtio.status() & status::NEEDS_RESET != 0);
    check!(test, told, "it needs a reset after features that don't go together");
    check!(test, virtio.reset(), "which it takes");
}

/// The same, and an exit tells of each frame that finds the sidecore at rest.
const KICKED: &str = "net-kicked";

/// Numbered frames go there and come back, by interrupts alone: no exit, no loss, no other order.
pub fn exchange(test: &str, boot: &Boot) {
    let Some([link]) = links(test, boot) else { return };
    let started = link.start(boot);
    cpu::enable_interrupts();
    let met = started && link.meet();
    check!(test, met, "both are there");
    let interface = link.interface();
    // Until the sidecore has come to them there are kicks, which exit no more than later ones.
    let polled = || interface.sending().is_polled() && interface.receiving().is_polled();
    check!(test, test == KICKED || wait::patiently(polled), "the queues are polled");
    if !met {
        return;
    }
    let (before, (begins, window)) = idt::between(VECTOR, || (interface.account(), Window::open()));
    let (there, wrong) = if link.begins() { asks(&link) } else { echoes(&link) };
    let (after, (ends, counted)) = idt::between(VECTOR, || (interface.account(), window.so_far()));
    check!(test, there == FRAMES && wrong == 0, "{there} of {FRAMES} frames, {wrong} wrong");
    if test != KICKED {
        counted.expect_at_most(test, 1);
    }
    let came = after - before;
    let frames = ends.arrived - begins.arrived;
    let all = ends.by_interrupt - begins.by_interrupt == frames && ends.odd == 0;
    check!(test, all && (1..=frames).contains(&came), "{came} interrupts for {frames} frames");
    if counters::policy() == Policy::Trap {
        let [exits, completed] =
            [Reason::DeviceInterrupt, Reason::DeviceEoi].map(|r| counted.of(r));
        let right = (exits >= came || counters::shared()) && completed == came;
        check!(test, right, "{exits} exits for {came} interrupts, {completed} completions");
    }
    check!(test, link.part(), "both come to the end");
}

/// Sends the frames, and gets them back: how many, and how many of them were wrong.
fn asks(link: &Link) -> (u64, u64) {
    let (mut sent, mut back, mut wrong) = (0, 0, 0);
    while back < FRAMES {
        if sent < FRAMES && sent - back < UNDER_WAY {
            if !link.send(kind::NUMBER, sent) {
                break;
            }
            sent += 1;
            if sent - back < UNDER_WAY {
                continue;
            }
        }
        let Some(seen) = link.wait() else { break };
        if seen.kind == kind::HELLO {
            continue;
        }
        let wanted =
            Seen { from: link.peer, to: link.own, kind: kind::ECHO, number: back, whole: true };
        wrong += u64::from(seen != wanted);
        back += 1;
    }
    (back, wrong)
}

/// Sends back what comes: how many, and how many of them were wrong.
fn echoes(link: &Link) -> (u64, u64) {
    let (mut came, mut wrong) = (0, 0);
    while came < FRAMES {
        let Some(seen) = link.wait() else { break };
        if seen.kind == kind::HELLO {
            continue;
        }
        let wanted =
            Seen { from: link.peer, to: link.own, kind: kind::NUMBER, number: came, whole: true };
        wrong += u64::from(seen != wanted);
        if !link.send(kind::ECHO, came) {
            break;
        }
        came += 1;
    }
    (came, wrong)
}
