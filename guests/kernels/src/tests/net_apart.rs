//! What a switch keeps apart: VLANs and other switches, addresses that aren't the sender's, and
//! what a rate doesn't let through.

use super::net::{Link, kind, links, size};
use crate::virtio_net::{BROADCAST, HEADER};
use crate::{boot::Boot, console::check, cpu, wait};

/// Frames that must not arrive.
const FRAMES: u64 = 1_000;
/// Of every so many frames one is honest.
const HONEST: u64 = 8;

/// On the first interface the VMs reach each other, on the second they mustn't: what one sends
/// there to the other's address and to all is nobody's.
pub fn apart(test: &str, boot: &Boot) {
    let Some([link, other]) = links(test, boot) else { return };
    let started = link.start(boot) && other.start(boot);
    cpu::enable_interrupts();
    let met = started && link.meet();
    check!(test, met, "both are there");
    if link.begins() {
        let sent = (0..FRAMES).all(|number| {
            let to = if number % 2 == 0 { other.peer } else { BROADCAST };
            wait::patiently(|| other.try_send(other.own, to, kind::NUMBER, number))
        });
        let gone = other.interface().all_sent();
        let account = other.interface().account();
        check!(test, sent && gone && account.completed == FRAMES, "they are taken: {account:?}");
    }
    check!(test, link.part(), "both come to the end");
    wait::settle();
    let account = other.interface().account();
    check!(test, account.arrived == 0 && account.odd == 0, "nothing arrives there: {account:?}");
}

/// Frames from addresses that the sender doesn't have, between honest ones: those alone arrive.
pub fn spoofed(test: &str, boot: &Boot) {
    let Some([link]) = links(test, boot) else { return };
    let started = link.start(boot);
    cpu::enable_interrupts();
    check!(test, started && link.meet(), "both are there");
    if link.begins() {
        let sent = (0..FRAMES).all(|number| {
            let mut from = link.own;
            match number % HONEST {
                0 => {}
                1 => from = link.peer,
                2 => from = BROADCAST,
                3 => from = [0; 6],
                bit => from[5] ^= 1 << bit,
            }
            let sent = wait::patiently(|| link.try_send(from, link.peer, kind::NUMBER, number));
            sent && (from != link.own || is_answered(&link))
        });
        let taken = link.interface().all_sent();
        check!(test, sent && taken, "{FRAMES} frames are taken");
        return check!(test, link.part(), "both come to the end");
    }
    let (mut honest, mut odd) = (0, 0);
    let ended = wait::patiently(|| {
        let Some(seen) = link.receive() else { return false };
        match seen.kind {
            kind::NUMBER => {
                let right = seen.from == link.peer && seen.whole;
                honest += u64::from(right && seen.number == honest * HONEST);
                odd += u64::from(!right);
                link.send(kind::ECHO, seen.number);
            }
            kind::BYE => return link.send(kind::BYE, 0) && link.interface().all_sent(),
            _ => {}
        }
        false
    });
    let wanted = FRAMES / HONEST;
    check!(test, ended && honest == wanted, "{honest} of {wanted} honest frames");
    check!(test, odd == 0, "{odd} others");
}

/// The plan's rate, in bytes a second, and what it lets through at once.
const RATE: u64 = 1 << 20;
const BURST: u64 = 256 << 10;
/// No machine's time-stamp counter is slower: so many ticks are a second at most.
const TICKS: u64 = 1_000_000_000;
/// Frames of 1,514 bytes and less, some 500 KiB together, and how many are under way.
const LIMITED: u64 = 2_700;
const UNDER_WAY: u64 = 32;

/// The sender may send so much a second: all of it arrives, and no sooner than that allows.
pub fn rate(test: &str, boot: &Boot) {
    let Some([link]) = links(test, boot) else { return };
    let started = link.start(boot);
    cpu::enable_interrupts();
    check!(test, started && link.meet(), "both are there");
    if link.begins() {
        let before = cpu::tsc();
        let sent = (0..LIMITED).all(|number| {
            // The other one has room for so many.
            let may = number < UNDER_WAY || is_answered(&link);
            may && link.send(kind::NUMBER, number)
        });
        let taken = link.interface().all_sent();
        let ticks = cpu::tsc().wrapping_sub(before);
        let bytes: u64 = (0..LIMITED).map(|number| size(number) as u64 + HEADER).sum();
        let most = BURST + 2048 + (u128::from(ticks) * u128::from(RATE) / u128::from(TICKS)) as u64;
        check!(
            test,
            sent && taken && bytes <= most,
            "{bytes} bytes, {most} may be in {ticks} ticks"
        );
        return check!(test, link.part(), "both come to the end");
    }
    let (there, ended) = until_bye(&link);
    check!(test, ended && there == LIMITED, "{there} of {LIMITED} frames");
}

/// Whether a frame that was sent comes back.
fn is_answered(link: &Link) -> bool {
    wait::patiently(|| link.receive().is_some_and(|seen| seen.kind == kind::ECHO))
}

/// How many whole frames come in order until the other side comes to its end, which is answered.
fn until_bye(link: &Link) -> (u64, bool) {
    let mut there = 0;
    let ended = wait::patiently(|| {
        let Some(seen) = link.receive() else { return false };
        if seen.kind == kind::NUMBER {
            there += u64::from(seen.whole && seen.number == there);
            link.send(kind::ECHO, seen.number);
        }
        seen.kind == kind::BYE && link.send(kind::BYE, 0) && link.interface().all_sent()
    });
    (there, ended)
}
