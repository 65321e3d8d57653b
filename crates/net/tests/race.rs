//! A guest that changes what it sends while it is looked at: what was checked is what arrives.
mod guest;

use guest::{Lan, frame, mac};
use net::header::HEADER_BYTES;
use net::{Features, Parameters, Plan};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Frames at a time, where each begins, and how often they are sent.
const FRAMES: u64 = 8;
const SLOT: u64 = 2048;
const PLACE: u64 = 2 << 20;
const ROUNDS: usize = if cfg!(miri) { 5 } else { 300 };

/// Says so when it goes.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Addresses and type of a frame that may pass: to who has it, from its sender's own address, and
/// without a tag. Bytes may be of different moments, and so the type one that nobody wrote.
fn is_right(number: u8, frame: &[u8]) -> bool {
    frame[..6] == mac(number).0 && frame[6..12] == mac(0).0 && frame[12..14] != [0x81, 0]
}

#[test]
fn what_was_checked_is_what_arrives() {
    for (packed, len, cuts) in [
        (false, 60, &[][..]),
        (false, 400, &[]),
        (false, 60, &[12]),
        (true, 60, &[]),
        (true, 400, &[12]),
    ] {
        let mut lan = Lan::new();
        for number in 0..3 {
            let parameters = Parameters { mac: mac(number), packed, ..Parameters::default() };
            let guest = lan.add(parameters, Plan::default(), Features::empty());
            if number > 0 {
                lan.post_many(guest, FRAMES as usize, SLOT as u32);
            }
        }
        let window = lan.guests[0].window;
        let stop = AtomicBool::new(false);
        let passed = thread::scope(|scope| {
            scope.spawn(|| {
                let places: Vec<u64> = (0..FRAMES).map(|n| PLACE + n * SLOT).collect();
                let heads = [(1, 0, [0x88, 0xb5]), (2, 1, [0x88, 0xb5]), (2, 0, [0x81, 0])];
                for (to, from, kind) in heads.iter().cycle() {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    for place in &places {
                        let at = place + HEADER_BYTES as u64;
                        let head = [&mac(*to).0[..], &mac(*from).0, kind].concat();
                        window.write(at, &head).unwrap();
                    }
                }
            });
            // Also if a check fails: the scope waits for the other thread.
            let _stop = Stop(&stop);
            (0..ROUNDS).map(|_| round(&mut lan, len, cuts)).sum::<usize>()
        });
        // How many depends on who runs when; with all that is written the first may pass.
        let sent = lan.statistics(0).sent;
        assert!(sent == FRAMES * ROUNDS as u64 && passed as u64 <= sent, "{passed} of {sent}");
    }
}

/// Sends all of them in one burst. How many arrived.
fn round(lan: &mut Lan, len: u64, cuts: &[u32]) -> usize {
    for number in 0..FRAMES {
        let place = PLACE + number * SLOT;
        lan.guests[0]
            .window
            .write(place + HEADER_BYTES as u64, &frame(mac(1), mac(0), &[]))
            .unwrap();
        let mut buffers = Vec::new();
        let (mut at, end) = (place, place + HEADER_BYTES as u64 + len);
        for cut in cuts {
            buffers.push((at, *cut));
            at += u64::from(*cut);
        }
        buffers.push((at, (end - at) as u32));
        lan.guests[0].offer(1, &buffers, false);
    }
    while lan.burst(0).unwrap().completed > 0 {}
    let mut passed = 0;
    for number in [1, 2] {
        let frames = lan.received(number.into());
        assert!(frames.iter().all(|frame| is_right(number, frame)), "{frames:x?}");
        passed += frames.len();
        lan.post_many(number.into(), frames.len(), SLOT as u32);
    }
    assert!(lan.broken.is_empty());
    passed
}
