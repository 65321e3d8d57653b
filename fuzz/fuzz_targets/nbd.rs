//! What an NBD server says, in pieces of any length: the handshake, then replies to requests.
//!
//! A byte that is done with was there; data and holes are within what was asked for; a request ends
//! once, and no event is about another one's cookie.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use nbd_server::{Asked, Event, Handshake, Progress, Replies};
use std::collections::BTreeMap;

#[derive(Arbitrary, Debug)]
struct Input {
    tls: bool,
    /// It begins with replies.
    is_ready: Option<bool>,
    /// Bytes that reads ask for, by their cookies, and where the first is; none: other requests.
    asked: Vec<(u16, u32)>,
    pieces: Vec<Vec<u8>>,
}

fuzz_target!(|input: Input| {
    let mut came = Vec::new();
    let mut pieces = input.pieces.iter();
    let structured = match input.is_ready {
        Some(structured) => structured,
        None => match shake(&mut came, &mut pieces, input.tls) {
            Some(structured) => structured,
            None => return,
        },
    };
    let asked = |&(reads, offset)| Asked { reads: u32::from(reads), offset: u64::from(offset) };
    let mut open: BTreeMap<u64, Asked> = (0..).zip(input.asked.iter().map(asked)).collect();
    let mut replies = Replies::new(structured);
    loop {
        loop {
            let Ok((count, event)) = replies.hear(&came, |cookie| open.get(&cookie).copied())
            else {
                return;
            };
            assert!(count <= came.len());
            let within = |cookie: u64, at: u32, len: u64| {
                let asked = open.get(&cookie).expect("nobody asked");
                assert!(u64::from(at) + len <= u64::from(asked.reads), "{asked:?}");
            };
            let mut ended = None;
            match event {
                Event::Nothing => {
                    assert_eq!(count, 0, "bytes that say nothing");
                    break;
                }
                Event::Data { cookie, at, bytes } => within(cookie, at, bytes.len() as u64),
                Event::Hole { cookie, at, len } => within(cookie, at, len.into()),
                Event::Failed { cookie, .. } => assert!(open.contains_key(&cookie)),
                Event::End { cookie } => ended = Some(cookie),
            }
            came.drain(..count);
            if let Some(cookie) = ended {
                assert!(open.remove(&cookie).is_some(), "it has ended before");
            }
        }
        let Some(piece) = pieces.next() else { return };
        came.extend(piece);
    }
});

/// Shakes hands: whether replies are structured. None: there is no connection.
fn shake<'a>(
    came: &mut Vec<u8>,
    pieces: &mut impl Iterator<Item = &'a Vec<u8>>,
    tls: bool,
) -> Option<bool> {
    let (mut handshake, mut send) = (Handshake::new("x", tls), Vec::new());
    loop {
        let (count, progress) = handshake.hear(came, &mut send).ok()?;
        assert!(count <= came.len() && send.len() < 4096);
        came.drain(..count);
        match progress {
            Progress::Done(export) => return Some(export.structured),
            Progress::Shaking if count == 0 => came.extend(pieces.next()?),
            Progress::Shaking | Progress::StartTls => {}
        }
    }
}
