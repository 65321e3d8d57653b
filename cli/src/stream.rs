//! The console stream: one byte stream from the machine's serial port that carries
//! every VM's console, the hypervisor's log and its records.
//!
//! Frames are `0x01, channel, length, payload`: channel 0 is the log, 1 to 32 the
//! VMs' consoles, 0x7F records. Bytes outside frames are text from before or after
//! the hypervisor's own console works (firmware, a panic) and count as log.
//!
//! Guarantees: any bytes in any chunks are taken, the same bytes give the same pieces
//! however they are cut, and memory stays bounded. A frame on a channel that doesn't
//! exist is taken for text, so that a damaged stream is seen and not swallowed.

use ledger::{ASK_LIVE, Record, RecordDecoder};
use plan::Escaped;

const FRAME: u8 = 0x01;
const LOG: u8 = 0;
const FIRST_CONSOLE: u8 = 1;
const LAST_CONSOLE: u8 = plan::MAX_VMS as u8;
const RECORDS: u8 = 0x7F;
/// Where a log line is cut that doesn't end.
const MAX_LINE: usize = 4096;

/// One thing the stream carried.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Output of a VM's console.
    Console {
        /// Index of the VM in the plan.
        vm: usize,
        /// Some of its output, cut anywhere.
        bytes: &'a [u8],
    },
    /// A line of the hypervisor's log, or text outside frames; no control characters.
    Log(String),
    /// A record.
    Record(Record),
}

#[derive(Clone, Copy, Default)]
enum State {
    #[default]
    Text,
    Channel,
    Length {
        channel: u8,
    },
    Payload {
        channel: u8,
        left: u8,
    },
}

/// Takes a stream apart, from its start.
#[derive(Default)]
pub struct Demux {
    state: State,
    log: Line,
    text: Line,
    records: RecordDecoder,
}

impl Demux {
    /// Takes the next bytes and gives what they complete.
    pub fn push(&mut self, mut bytes: &[u8], mut give: impl FnMut(Piece)) {
        while let Some((&byte, rest)) = bytes.split_first() {
            match self.state {
                State::Text if byte == FRAME => self.state = State::Channel,
                State::Text => self.text.push(byte, &mut give),
                State::Channel if is_channel(byte) => self.state = State::Length { channel: byte },
                State::Channel => {
                    self.state = State::Text;
                    self.text.push(FRAME, &mut give);
                    continue; // the byte itself may start a frame
                }
                State::Length { channel } => self.state = State::payload(channel, byte),
                State::Payload { channel, left } => {
                    let (payload, rest) = bytes.split_at(bytes.len().min(left.into()));
                    self.payload(channel, payload, &mut give);
                    self.state = State::payload(channel, left - payload.len() as u8);
                    bytes = rest;
                    continue;
                }
            }
            bytes = rest;
        }
    }

    /// The stream has ended: gives the lines that were never finished.
    pub fn finish(&mut self, mut give: impl FnMut(Piece)) {
        self.log.end(&mut give);
        self.text.end(&mut give);
    }

    fn payload(&mut self, channel: u8, bytes: &[u8], give: &mut impl FnMut(Piece)) {
        match channel {
            LOG => bytes.iter().for_each(|b| self.log.push(*b, give)),
            RECORDS => {
                for record in bytes.iter().filter_map(|b| self.records.push(*b)) {
                    give(Piece::Record(record));
                }
            }
            console => give(Piece::Console { vm: usize::from(console - FIRST_CONSOLE), bytes }),
        }
    }
}

impl State {
    fn payload(channel: u8, left: u8) -> State {
        if left == 0 { State::Text } else { State::Payload { channel, left } }
    }
}

fn is_channel(byte: u8) -> bool {
    matches!(byte, LOG | FIRST_CONSOLE..=LAST_CONSOLE | RECORDS)
}

/// A line of text that is being collected.
#[derive(Default)]
struct Line(Vec<u8>);

impl Line {
    fn push(&mut self, byte: u8, give: &mut impl FnMut(Piece)) {
        if byte != b'\n' {
            self.0.push(byte);
        }
        if byte == b'\n' || self.0.len() == MAX_LINE {
            self.end(give);
        }
    }

    fn end(&mut self, give: &mut impl FnMut(Piece)) {
        let bytes = std::mem::take(&mut self.0);
        let line = String::from_utf8_lossy(&bytes);
        let line = line.trim_end();
        if !line.is_empty() {
            give(Piece::Log(printable(line)));
        }
    }
}

/// The text with control characters written out, tabs apart, so that what a guest or a file
/// says can't steer the terminal.
pub fn printable(text: &str) -> String {
    let parts: Vec<_> = text.split('\t').map(|part| Escaped(part).to_string()).collect();
    parts.join("\t")
}

/// Frames console input for a VM.
pub fn frame_input(vm: usize, bytes: &[u8]) -> Vec<u8> {
    let channel = u8::try_from(vm).map_or(FIRST_CONSOLE, |vm| vm.saturating_add(FIRST_CONSOLE));
    bytes.chunks(255).flat_map(|c| [&[FRAME, channel, c.len() as u8], c].concat()).collect()
}

/// Asks the hypervisor for the vCPUs' counters.
pub fn ask_live() -> Vec<u8> {
    vec![FRAME, RECORDS, 1, ASK_LIVE]
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledger::{End, encode};
    use proptest::prelude::*;

    /// What a stream carries, cut into chunks of `cut` bytes: consoles joined, as text.
    fn read(bytes: &[u8], cut: usize) -> (Vec<String>, Vec<Record>, Vec<Vec<u8>>) {
        let (mut log, mut records, mut consoles) = (vec![], vec![], vec![vec![]; plan::MAX_VMS]);
        let mut demux = Demux::default();
        let mut give = |piece: Piece| match piece {
            Piece::Log(line) => log.push(line),
            Piece::Record(record) => records.push(record),
            Piece::Console { vm, bytes } => consoles[vm].extend(bytes),
        };
        for chunk in bytes.chunks(cut) {
            demux.push(chunk, &mut give);
        }
        demux.finish(&mut give);
        (log, records, consoles)
    }

    fn frame(channel: u8, payload: &[u8]) -> Vec<u8> {
        [&[FRAME, channel, payload.len() as u8], payload].concat()
    }

    #[test]
    fn channels_are_told_apart() {
        let ended = Record::Ended { vm: 1, end: End::PowerOff };
        let encoded = encode(&ended);
        let stream = [
            b"SeaBIOS\r\n".to_vec(),
            frame(LOG, b"exitless: 2 c"),
            frame(2, b"hello"),
            frame(LOG, b"pus\nnext\n"),
            frame(RECORDS, &encoded[..2]),
            frame(1, &[0x01, 0x00, 0xFF]),
            frame(RECORDS, &encoded[2..]),
            b"PANIC at \x1b[2J".to_vec(),
        ]
        .concat();
        for cut in [1, 2, 3, 7, 1000] {
            let (log, records, consoles) = read(&stream, cut);
            assert_eq!(log, ["SeaBIOS", "exitless: 2 cpus", "next", "PANIC at \\u{1b}[2J"]);
            assert_eq!(records, std::slice::from_ref(&ended));
            assert_eq!(consoles[0], [0x01, 0x00, 0xFF]);
            assert_eq!(consoles[1], b"hello");
        }
    }

    #[test]
    fn a_frame_on_no_channel_is_text() {
        let (log, _, consoles) = read(b"\x01\x21\x01\x01\x01x", 1);
        assert_eq!(log, ["\\u{1}!"]);
        assert_eq!(consoles[0], b"x");
    }

    #[test]
    fn input_is_framed_for_its_vm() {
        assert_eq!(frame_input(0, b"ls\r"), frame(1, b"ls\r"));
        let long = frame_input(1, &[7; 300]);
        assert_eq!(long, [frame(2, &[7; 255]), frame(2, &[7; 45])].concat());
        assert_eq!(ask_live(), frame(RECORDS, b"L"));
    }

    proptest! {
        #[test]
        fn cuts_change_nothing(bytes in prop::collection::vec(0u8..40, 0..600), cut in 1usize..50) {
            prop_assert_eq!(read(&bytes, cut), read(&bytes, bytes.len().max(1)));
        }

        #[test]
        fn lines_are_printable(bytes in prop::collection::vec(any::<u8>(), 0..9000)) {
            for line in read(&bytes, 512).0 {
                prop_assert!(line.len() <= MAX_LINE * 8 && !line.chars().any(|c| c.is_control() && c != '\t'));
            }
        }
    }
}
