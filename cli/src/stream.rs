//! The console stream: one byte stream from the machine's serial port that carries
//! every VM's console, the hypervisor's log and its records.
//!
//! `proto::frame` describes it. Bytes outside of frames are text from before or after the
//! hypervisor's own console works (firmware, a boot loader, a panic) and count as log. Firmware
//! writes as if to a terminal, and its lines end where it moves the cursor.
//!
//! Guarantees: any bytes in any chunks are taken, the same bytes give the same pieces
//! however they are cut, and memory stays bounded. Text that looks like a frame's header costs
//! at most the 255 bytes after it. Records that came damaged are counted, where their end came.

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
    sequences: Sequences,
    records: RecordDecoder,
    /// Some of a record has come, and not its end.
    within: bool,
    damaged: usize,
    outside: usize,
    framed: bool,
}

impl Demux {
    /// Takes the next bytes and gives what they complete.
    pub fn push(&mut self, mut bytes: &[u8], mut give: impl FnMut(Piece)) {
        while let Some(piece) = self.reader.next(&mut bytes) {
            match piece {
                frame::Piece::Outside(bytes) => {
                    self.outside += bytes.len();
                    self.text.push(&self.sequences.without(bytes), &mut give);
                    continue;
                }
                frame::Piece::Payload(Channel::Log, bytes) => self.log.push(bytes, &mut give),
                frame::Piece::Payload(Channel::Console(vm), bytes) => {
                    give(Piece::Console { vm, bytes });
                }
                frame::Piece::Payload(Channel::Records, bytes) => {
                    for &byte in bytes {
                        match self.records.push(byte) {
                            Some(record) => give(Piece::Record(record)),
                            None => self.damaged += usize::from(byte == 0 && self.within),
                        }
                        self.within = byte != 0;
                    }
                }
            }
            self.framed = true;
        }
    }

    /// Whether a frame has come: the hypervisor listens.
    pub fn is_framed(&self) -> bool {
        self.framed
    }

    /// How many records have come whose bytes make none.
    pub fn damaged(&self) -> usize {
        self.damaged
    }

    /// How many bytes have come outside of frames.
    pub fn outside(&self) -> usize {
        self.outside
    }

    /// The stream has ended: gives the lines that were never finished.
    pub fn finish(&mut self, mut give: impl FnMut(Piece)) {
        self.log.end(&mut give);
        self.text.end(&mut give);
    }
}

/// Finds what steers a terminal in text (ECMA-48 section 5.4), however it is cut.
#[derive(Default)]
enum Sequences {
    #[default]
    Outside,
    /// After ESC.
    Escape,
    /// After ESC [: parameters, up to a final byte.
    Control,
}

impl Sequences {
    /// The text without them. What moves the cursor to another line or its start, or clears, ends
    /// one.
    fn without(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut text = Vec::with_capacity(bytes.len());
        for &byte in bytes {
            match (&self, byte) {
                (_, 0x1B) => *self = Sequences::Escape,
                // Back to the line's start, to write over it.
                (Sequences::Outside, b'\r') => text.push(b'\n'),
                (Sequences::Outside, _) => text.push(byte),
                (Sequences::Escape, b'[') => *self = Sequences::Control,
                (Sequences::Control, 0x20..=0x3F) => {}
                (Sequences::Control, b'H' | b'f' | b'J') => {
                    text.push(b'\n');
                    *self = Sequences::Outside;
                }
                (Sequences::Escape | Sequences::Control, 0x30..=0x7E) => *self = Sequences::Outside,
                // None after all.
                (Sequences::Escape | Sequences::Control, _) => {
                    text.push(byte);
                    *self = Sequences::Outside;
                }
            }
        }
        text
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
            b"PANIC at \x07".to_vec(),
        ]
        .concat();
        for cut in [1, 2, 3, 7, 1000] {
            let (log, records, consoles) = read(&stream, cut);
            assert_eq!(log, ["SeaBIOS", "exitless: 2 cpus", "next", "PANIC at \\u{7}"]);
            assert_eq!(records, std::slice::from_ref(&ended));
            assert_eq!(consoles[0], [0x01, 0x00, 0xFF]);
            assert_eq!(consoles[1], b"hello");
        }
    }

    #[test]
    fn firmware_writes_to_a_terminal_and_is_read_as_text() {
        let firmware = b"\x1b[2J\x1b[01;01H\x1b[=3h\x1b[2J\x1b[01;01HBdsDxe: loading Boot0001\r\n\
            BdsDxe: starting Boot0001\r\r\n\x1b[0m\x1b[35m\x1b[40mWelcome\x1b[05;01H 1%\rto\x1b GRUB";
        let stream =
            [firmware.as_slice(), &frame(frame::LOG, b"exitless: \x1b[1m2 cpus\n")].concat();
        let lines = [
            "exitless: \\u{1b}[1m2 cpus",
            "BdsDxe: loading Boot0001",
            "BdsDxe: starting Boot0001",
            "Welcome",
            " 1%",
            "to GRUB",
        ];
        for cut in [1, 2, 5, 1000] {
            let mut log = read(&stream, cut).0;
            // What is in frames is the hypervisor's, and shown as it is.
            log.sort_by_key(|line| !line.starts_with("exitless"));
            assert_eq!(log, lines);
        }
    }

    #[test]
    fn the_hypervisor_listens_once_a_frame_has_come() {
        let mut demux = Demux::default();
        demux.push(b"firmware \x01\x70", |_| {});
        assert_eq!((demux.is_framed(), demux.outside()), (false, 11));
        demux.push(&frame(frame::LOG, b"a"), |_| {});
        assert!(demux.is_framed());
    }

    #[test]
    fn records_whose_bytes_make_none_are_counted() {
        let good = encode(&Record::Ended { vm: 1, end: End::PowerOff });
        let cut = [&good[..1], &good[2..]].concat();
        for (payload, damaged) in [
            (good.clone(), 0),
            ([&good[..2], &[0, 0]].concat(), 1),
            ([&*cut, &*cut, &*good].concat(), 2),
        ] {
            let mut demux = Demux::default();
            frame(RECORDS, &payload).chunks(1).for_each(|byte| demux.push(byte, |_| {}));
            assert_eq!(demux.damaged(), damaged, "{payload:?}");
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

        /// Firmware, whatever it says, takes nothing away from what comes in frames.
        #[test]
        fn what_is_framed_arrives_after_any_text(
            text in prop::collection::vec(any::<u8>().prop_filter("no frame starts", |b| *b != 1), 0..400),
            cut in 1usize..50,
        ) {
            let record = Record::Ended { vm: 0, end: End::PowerOff };
            let frames = [frame(RECORDS, &encode(&record)), frame(1, b"hello")].concat();
            let (_, records, consoles) = read(&[text, frames].concat(), cut);
            prop_assert_eq!(records, [record]);
            prop_assert_eq!(&consoles[0], b"hello");
        }

        #[test]
        fn lines_are_printable(bytes in prop::collection::vec(any::<u8>(), 0..9000)) {
            for line in read(&bytes, 512).0 {
                prop_assert!(line.len() <= MAX_LINE * 8 && !line.chars().any(|c| c.is_control() && c != '\t'));
            }
        }
    }
}
