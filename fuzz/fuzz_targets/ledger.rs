//! The hypervisor's records in a byte stream that may be anything, the guest's console included.
//!
//! A record that comes out is one that could have been sent, and after any bytes and one end of a
//! frame the next record arrives whole.
#![no_main]

use ledger::{Record, RecordDecoder, encode};
use libfuzzer_sys::fuzz_target;

fn feed(decoder: &mut RecordDecoder, bytes: &[u8]) -> Vec<Record> {
    bytes.iter().filter_map(|byte| decoder.push(*byte)).collect()
}

fuzz_target!(|bytes: &[u8]| {
    let mut decoder = RecordDecoder::default();
    let mut records = feed(&mut decoder, bytes);
    decoder.push(0);
    // The same bytes as a record without its frame: coverage leads deep into the format.
    records.extend(postcard::from_bytes::<Record>(bytes));
    for record in records {
        let frame = encode(&record);
        assert_eq!(frame.iter().position(|byte| *byte == 0), Some(frame.len() - 1));
        // A longer one is dropped, and costs no other.
        if frame.len() <= 4096 {
            assert_eq!(feed(&mut decoder, &frame), [record]);
        } else {
            assert_eq!(feed(&mut decoder, &frame), []);
        }
    }
});
