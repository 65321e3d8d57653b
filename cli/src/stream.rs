//! The console stream: one byte stream from the machine's serial port that carries
//! every VM's console, the hypervisor's log and its records.
//!
//! `proto::frame` describes it. Bytes outside of frames are text from before or after the
//! hypervisor's own console works (firmware, a panic) and count as log.
//!
//! Guarantees: any bytes in any chunks are taken, the same bytes give the same pieces
//! however they are cut, and memory stays bounded.

use plan::Escaped;
use proto::{
    ASK_LIVE, Record, RecordDecoder,
    frame::{self, Channel, MAX_PAYLOAD, MAX_VMS, RECORDS, Reader, header},
};

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

/// Takes a stream apart, from its start.
#[derive(Default)]
pub struct Demux {
    reader: Reader,
    log: Line,
    text: Line,
    records: RecordDecoder,
}

impl Demux {
    /// Takes the next bytes and gives what they complete.
    pub fn push(&mut self, mut bytes: &[u8], mut give: impl FnMut(Piece)) {
        while let Some(piece) = self.reader.next(&mut bytes) {
            match piece {
                frame::Piece::Outside(bytes) => self.text.push(bytes, &mut give),
                frame::Piece::Payload(Channel::Log, bytes) => self.log.push(bytes, &mut give),
                frame::Piece::Payload(Channel::Console(vm), bytes) => {
                    give(Piece::Console { vm, bytes });
                }
                frame::Piece::Payload(Channel::Records, bytes) => {
                    for record in bytes.iter().filter_map(|b| self.records.push(*b)) {
                        give(Piece::Record(record));
                    }
                }
            }
        }
    }

    /// The stream has ended: gives the lines that were never finished.
    pub fn finish(&mut self, mut give: impl FnMut(Piece)) {
        self.log.end(&mut give);
        self.text.end(&mut give);
    }
}

/// A line of text that is being collected.
#[derive(Default)]
struct Line(Vec<u8>);

impl Line {
    fn push(&mut self, bytes: &[u8], give: &mut impl FnMut(Piece)) {
        for &byte in bytes {
            if byte != b'\n' {
                self.0.push(byte);
            }
            if byte == b'\n' || self.0.len() == MAX_LINE {
                self.end(give);
            }
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

/// Frames console input for a VM; for none, when there can be no such VM.
pub fn frame_input(vm: usize, bytes: &[u8]) -> Vec<u8> {
    if vm >= MAX_VMS { Vec::new() } else { framed(frame::console(vm), bytes) }
}

/// Asks the hypervisor for the vCPUs' counters.
pub fn ask_live() -> Vec<u8> {
    framed(RECORDS, &[ASK_LIVE])
}

fn framed(channel: u8, bytes: &[u8]) -> Vec<u8> {
    let frame = |c: &[u8]| [&header(channel, c.len() as u8), c].concat();
    bytes.chunks(MAX_PAYLOAD).flat_map(frame).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proto::{End, encode};

    /// What a stream carries, cut into chunks of `cut` bytes: consoles joined, as text.
    fn read(bytes: &[u8], cut: usize) -> (Vec<String>, Vec<Record>, Vec<Vec<u8>>) {
        let (mut log, mut records, mut consoles) = (vec![], vec![], vec![vec![]; MAX_VMS]);
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
        [&header(channel, payload.len() as u8), payload].concat()
    }

    #[test]
    fn channels_are_told_apart() {
        let ended = Record::Ended { vm: 1, end: End::PowerOff };
        let encoded = encode(&ended);
        let stream = [
            b"SeaBIOS\r\n".to_vec(),
            frame(frame::LOG, b"exitless: 2 c"),
            frame(2, b"hello"),
            frame(frame::LOG, b"pus\nnext\n"),
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
