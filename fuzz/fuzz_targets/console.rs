//! The console stream that the command line takes apart: any bytes, and frames among which text may
//! stand. However it is cut, the same pieces come out; what was framed arrives whole, on its own
//! channel and in order; log lines hold no control characters.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use proto::{End, Record, frame};
use stream::{Demux, Piece};

// Of a program, so there is no crate to name.
#[allow(dead_code, reason = "the target uses its part")]
#[path = "../../cli/src/stream.rs"]
mod stream;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    parts: Vec<Part<'a>>,
    cuts: Vec<u8>,
}

#[derive(Arbitrary, Debug)]
enum Part<'a> {
    /// Anything at all: it may begin a frame and swallow what follows.
    Bytes(&'a [u8]),
    Text(&'a str),
    Console(u8, &'a [u8]),
    Record(u32),
}

/// What came out, pieces of one console joined.
#[derive(Debug, Default, PartialEq)]
struct Heard {
    consoles: Vec<Vec<u8>>,
    log: Vec<String>,
    records: Vec<Record>,
}

impl Heard {
    fn of(bytes: &[u8], cuts: &[u8]) -> Heard {
        let mut heard = Heard { consoles: vec![vec![]; plan::MAX_VMS], ..Heard::default() };
        let mut demux = Demux::default();
        let mut give = |piece: Piece| match piece {
            Piece::Console { vm, bytes } => heard.consoles[vm].extend(bytes),
            Piece::Log(line) => {
                assert!(!line.is_empty());
                assert!(!line.chars().any(|c| c.is_control() && c != '\t'), "{line:?}");
                heard.log.push(line);
            }
            Piece::Record(record) => heard.records.push(record),
        };
        let mut rest = bytes;
        for cut in cuts {
            let (now, later) = rest.split_at(rest.len().min((*cut).into()));
            demux.push(now, &mut give);
            rest = later;
        }
        demux.push(rest, &mut give);
        demux.finish(&mut give);
        heard
    }
}

fuzz_target!(|input: Input| {
    let (mut bytes, mut sent) = (Vec::new(), Heard::default());
    sent.consoles.resize(plan::MAX_VMS, Vec::new());
    let mut orderly = true;
    for part in input.parts {
        match part {
            Part::Bytes(any) => {
                orderly &= !any.contains(&1);
                bytes.extend(any);
            }
            Part::Text(text) => {
                orderly &= !text.contains('\x01');
                bytes.extend(text.bytes());
            }
            Part::Console(vm, output) => {
                let vm = usize::from(vm) % plan::MAX_VMS;
                bytes.extend(stream::frame_input(vm, output));
                sent.consoles[vm].extend(output);
            }
            Part::Record(vm) => {
                let record = Record::Ended { vm, end: End::PowerOff };
                for chunk in proto::encode(&record).chunks(frame::MAX_PAYLOAD) {
                    bytes.extend(frame::header(frame::RECORDS, chunk.len() as u8));
                    bytes.extend(chunk);
                }
                sent.records.push(record);
            }
        }
    }
    let heard = Heard::of(&bytes, &input.cuts);
    assert_eq!(heard, Heard::of(&bytes, &[]));
    if orderly {
        assert_eq!((heard.consoles, heard.records), (sent.consoles, sent.records));
    }
});
