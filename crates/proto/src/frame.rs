//! Frames on the serial line: `0x01, channel, length, payload`, with a payload of 0 to 255
//! bytes. Channel 0 is the log, 1 to 32 the VMs' consoles, 0x7F records. Bytes outside of
//! frames are text from before or after the image's own console works (firmware, a panic).
//!
//! Guarantees: any bytes in any chunks are taken, and the same bytes give the same payloads
//! however they are cut. A frame on a channel that doesn't exist is text, so that a damaged
//! stream is seen and not swallowed.

/// Most VMs that a plan may have, and consoles that there are channels for.
pub const MAX_VMS: usize = 32;
/// The longest payload of a frame.
pub const MAX_PAYLOAD: usize = 255;
/// Bytes before the payload.
pub const HEADER: usize = 3;
/// The number of the log's channel.
pub const LOG: u8 = 0;
/// The number of the records' channel.
pub const RECORDS: u8 = 0x7F;

const START: u8 = 0x01;
const FIRST_CONSOLE: u8 = 1;
const LAST_CONSOLE: u8 = FIRST_CONSOLE + MAX_VMS as u8 - 1;
const _: () = assert!(LAST_CONSOLE < RECORDS);

/// The number of a VM's channel; `vm` is its index in the plan, below [`MAX_VMS`].
pub const fn console(vm: usize) -> u8 {
    debug_assert!(vm < MAX_VMS);
    FIRST_CONSOLE + vm as u8
}

/// What comes before a payload of `length` bytes.
pub const fn header(channel: u8, length: u8) -> [u8; HEADER] {
    [START, channel, length]
}

/// Whose bytes a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// The image's log.
    Log,
    /// A VM's console; the VM's index in the plan, below [`MAX_VMS`].
    Console(usize),
    /// Records, and what is asked of the image.
    Records,
}

impl Channel {
    /// The channel of this number.
    pub const fn of(number: u8) -> Option<Channel> {
        match number {
            LOG => Some(Channel::Log),
            FIRST_CONSOLE..=LAST_CONSOLE => {
                Some(Channel::Console((number - FIRST_CONSOLE) as usize))
            }
            RECORDS => Some(Channel::Records),
            _ => None,
        }
    }
}

/// Some bytes of a stream, and where they belong.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Outside of any frame.
    Outside(&'a [u8]),
    /// Of a frame's payload, which may go on with the next piece.
    Payload(Channel, &'a [u8]),
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    Outside,
    Channel,
    Length(Channel),
    Payload(Channel, u8),
}

/// Takes a stream apart, from its start.
#[derive(Debug, Default)]
pub struct Reader(State);

impl Reader {
    /// At the start of a stream.
    pub const fn new() -> Reader {
        Reader(State::Outside)
    }

    /// Takes bytes off the front of `bytes` until they make a piece; none when all are taken.
    pub fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Option<Piece<'a>> {
        while let Some((&byte, rest)) = bytes.split_first() {
            match self.0 {
                State::Outside if byte == START => self.0 = State::Channel,
                State::Outside => {
                    let end = bytes.iter().position(|b| *b == START).unwrap_or(bytes.len());
                    return Some(Piece::Outside(take(bytes, end)));
                }
                State::Channel => match Channel::of(byte) {
                    Some(channel) => self.0 = State::Length(channel),
                    None => {
                        // Not a frame's start; this byte may start one.
                        self.0 = State::Outside;
                        return Some(Piece::Outside(&[START]));
                    }
                },
                State::Length(channel) => self.0 = State::payload(channel, byte),
                State::Payload(channel, left) => {
                    let payload = take(bytes, left.into());
                    self.0 = State::payload(channel, left - payload.len() as u8);
                    return Some(Piece::Payload(channel, payload));
                }
            }
            *bytes = rest;
        }
        None
    }
}

impl State {
    const fn payload(channel: Channel, left: u8) -> State {
        if left == 0 { State::Outside } else { State::Payload(channel, left) }
    }
}

/// Takes up to `count` bytes off the front.
fn take<'a>(bytes: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (taken, rest) = bytes.split_at(bytes.len().min(count));
    *bytes = rest;
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    /// The bytes of each channel, joined; outside ones first.
    #[derive(Debug, Default, PartialEq)]
    struct Read {
        outside: Vec<u8>,
        payloads: Vec<(Channel, Vec<u8>)>,
    }

    fn read(bytes: &[u8], cut: usize) -> Read {
        let (mut reader, mut read) = (Reader::new(), Read::default());
        for mut chunk in bytes.chunks(cut) {
            while let Some(piece) = reader.next(&mut chunk) {
                match piece {
                    Piece::Outside(bytes) => read.outside.extend(bytes),
                    Piece::Payload(channel, bytes) => match read.payloads.last_mut() {
                        Some((last, so_far)) if *last == channel => so_far.extend(bytes),
                        _ => read.payloads.push((channel, bytes.to_vec())),
                    },
                }
            }
            assert!(chunk.is_empty());
        }
        read
    }

    fn frame(channel: u8, payload: &[u8]) -> Vec<u8> {
        [&header(channel, payload.len() as u8), payload].concat()
    }

    #[test]
    fn channels_are_told_apart() {
        let frames = [
            b"firmware".to_vec(),
            frame(LOG, b"log"),
            frame(console(1), b""),
            frame(console(31), &[START, LOG, 0]),
            frame(RECORDS, &[7; MAX_PAYLOAD]),
            b"panic".to_vec(),
        ]
        .concat();
        let payloads = [
            (Channel::Log, b"log".to_vec()),
            (Channel::Console(31), [START, LOG, 0].to_vec()),
            (Channel::Records, [7; MAX_PAYLOAD].to_vec()),
        ]
        .to_vec();
        for cut in [1, 2, 3, 1000] {
            let expected = Read { outside: b"firmwarepanic".to_vec(), payloads: payloads.clone() };
            assert_eq!(read(&frames, cut), expected);
        }
    }

    #[test]
    fn a_frame_on_no_channel_is_text() {
        let found = read(b"\x01\x21\x01\x01\x01x", 1);
        assert_eq!(found.outside, b"\x01\x21");
        assert_eq!(found.payloads, [(Channel::Console(0), b"x".to_vec())]);
        let (first, last) = (Channel::of(FIRST_CONSOLE), Channel::of(LAST_CONSOLE));
        assert_eq!((first, last), (Some(Channel::Console(0)), Some(Channel::Console(31))));
        assert_eq!((Channel::of(33), Channel::of(0x80)), (None, None));
    }

    proptest! {
        #[test]
        fn cuts_change_nothing(bytes in prop::collection::vec(0u8..40, 0..600), cut in 1usize..50) {
            prop_assert_eq!(read(&bytes, cut), read(&bytes, bytes.len().max(1)));
        }

        #[test]
        fn what_was_framed_arrives(
            vm in 0..MAX_VMS,
            payload in prop::collection::vec(any::<u8>(), 1..256),
            cut in 1usize..50,
        ) {
            let found = read(&frame(console(vm), &payload), cut);
            prop_assert_eq!(found.payloads, [(Channel::Console(vm), payload)]);
            prop_assert!(found.outside.is_empty());
        }
    }
}
