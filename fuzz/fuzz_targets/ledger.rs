//! The hypervisor's records in a byte stream that may be anything, the guest's console included.
//!
//! A record that comes out is one that could have been sent, and after any bytes and one end of a
//! frame the next record arrives whole.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use proto::{Record, RecordDecoder, encode};

#[derive(Arbitrary, Debug)]
enum Piece<'a> {
    Bytes(&'a [u8]),
    /// One byte many times over.
    Run(u8, u16),
    /// What may be a record in its encoding: it is sent in a frame.
    Record(&'a [u8]),
}

fn feed(decoder: &mut RecordDecoder, bytes: &[u8]) -> Vec<Record> {
    bytes.iter().filter_map(|byte| decoder.push(*byte)).collect()
}

/// Sends a record at the end of a frame.
fn send(decoder: &mut RecordDecoder, record: Record) {
    let frame = encode(&record);
    assert_eq!(frame.iter().position(|byte| *byte == 0), Some(frame.len() - 1));
    // A longer one is dropped, and costs no other.
    let expected = if frame.len() <= 4096 { vec![record] } else { vec![] };
    assert_eq!(feed(decoder, &frame), expected);
}

fuzz_target!(|pieces: Vec<Piece>| {
    let mut decoder = RecordDecoder::default();
    for piece in pieces {
        let records = match piece {
            Piece::Bytes(bytes) => feed(&mut decoder, bytes),
            Piece::Run(byte, length) => feed(&mut decoder, &vec![byte; (length % 8192).into()]),
            Piece::Record(bytes) => postcard::from_bytes(bytes).into_iter().collect(),
        };
        for record in records {
            decoder.push(0);
            send(&mut decoder, record);
        }
    }
    decoder.push(0);
    send(&mut decoder, Record::Incident { vm: 1, what: "the last".into() });
});
