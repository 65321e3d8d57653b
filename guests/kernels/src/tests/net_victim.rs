//! virtio-net beside those who attack the switch, its sidecore, or the wire: frames with numbers
//! that come back, each said again until it does, until somebody types that it is enough.
//!
//! Frames may be lost: a wire has no promise. What arrives must be whole, from the other one, of
//! now or of before; nobody else's may.

use super::net::{Link, Seen, kind, links};
use crate::{boot::Boot, console::check, console::println, console::typed, cpu, virtio::status};

/// Numbers at the least; there are more while nobody types.
const NUMBERS: u64 = 300;
/// Looks for an answer before the number is said again.
const LOOKS: u64 = 200_000;
/// Says of a number, before it is given up.
const MOST: u64 = 2_000;

/// The loop: who begins says numbers, the other one says them again.
pub fn victim(test: &str, boot: &Boot) {
    let Some([link]) = links(test, boot) else { return };
    let started = link.start(boot);
    cpu::enable_interrupts();
    let met = started && link.meet();
    check!(test, met, "both are there");
    let mut seen = Strangers::default();
    let (numbers, said) =
        if link.begins() { asks(&link, &mut seen) } else { echoes(&link, &mut seen) };
    println!("numbers={numbers} said={said}");
    check!(test, met && numbers >= NUMBERS, "{numbers} of {NUMBERS} numbers, {said} times said");
    let Strangers { others, wrong } = seen;
    check!(test, others == 0 && wrong == 0, "{others} frames of others, {wrong} wrong ones");
    let account = link.interface().account();
    let needs_reset = link.virtio.status() & status::NEEDS_RESET != 0;
    check!(test, account.odd == 0 && !needs_reset, "{account:?}");
}

/// Frames that mustn't arrive.
#[derive(Default)]
struct Strangers {
    others: u64,
    wrong: u64,
}

impl Strangers {
    /// The number of a frame of the other one's, of this kind.
    fn look(&mut self, link: &Link, seen: Seen, wanted: u8) -> Option<u64> {
        let Seen { from, to, kind, number, whole } = seen;
        if from != link.peer || to != link.own {
            self.others += 1;
            return None;
        }
        self.wrong += u64::from(!whole);
        (whole && kind == wanted).then_some(number)
    }
}

fn asks(link: &Link, strangers: &mut Strangers) -> (u64, u64) {
    let (mut number, mut said, mut enough) = (0, 0, false);
    while number < NUMBERS || !enough {
        let mut answered = false;
        for _ in 0..MOST {
            link.try_send(link.own, link.peer, kind::NUMBER, number);
            said += 1;
            for _ in 0..LOOKS {
                let Some(seen) = link.receive() else { continue };
                let echo = strangers.look(link, seen, kind::ECHO);
                strangers.wrong += u64::from(echo.is_some_and(|echo| echo > number));
                if echo == Some(number) {
                    answered = true;
                    break;
                }
            }
            if answered {
                break;
            }
        }
        if !answered {
            return (number, said);
        }
        number += 1;
        enough |= number % 64 == 0 && typed().is_some();
    }
    let parted = link.ask(kind::BYE);
    (if parted { number } else { 0 }, said)
}

fn echoes(link: &Link, strangers: &mut Strangers) -> (u64, u64) {
    let (mut next, mut said) = (0, 0);
    while let Some(seen) = link.wait() {
        if seen.kind == kind::BYE && seen.from == link.peer {
            // One may be lost.
            (0..8).for_each(|_| {
                link.send(kind::BYE, 0);
            });
            link.interface().all_sent();
            break;
        }
        if seen.kind == kind::HELLO && seen.from == link.peer {
            link.send(kind::HELLO, 0);
            continue;
        }
        if let Some(number) = strangers.look(link, seen, kind::NUMBER) {
            strangers.wrong += u64::from(number > next);
            next = next.max(number + 1);
            link.send(kind::ECHO, number);
            said += 1;
        }
    }
    (next, said)
}
