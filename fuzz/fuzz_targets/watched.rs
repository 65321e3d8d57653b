//! What `exitless top` is told by a run, and what the run makes it of: any line, any records. The
//! state stays bounded, and a message reads the same when it was sent.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use proto::{Record, RecordDecoder};
use state::{Message, Snapshot};

// Of a program, so there is no crate to name.
#[allow(dead_code, reason = "the target uses its part")]
#[path = "../../cli/src/top/state.rs"]
mod state;

#[derive(Arbitrary, Debug)]
enum Input<'a> {
    Line(&'a [u8]),
    /// Records in their encoding.
    Records(u8, Vec<&'a [u8]>),
}

fn sent(message: Message) {
    let line = serde_json::to_vec(&message).expect("a message can be written");
    assert!(!line.contains(&b'\n'));
    assert_eq!(serde_json::from_slice::<Message>(&line).expect("and read"), message);
}

fuzz_target!(|input: Input| match input {
    Input::Line(line) => {
        if let Ok(message) = serde_json::from_slice::<Message>(line) {
            sent(message);
        }
    }
    Input::Records(vms, records) => {
        let vms = usize::from(vms % 4);
        let mut snapshot = Snapshot::new((0..vms).map(|i| format!("vm{i}")));
        let mut decoder = RecordDecoder::default();
        for record in records {
            let bytes = record.iter().filter(|byte| **byte != 0);
            let framed = bytes.chain(&[0]).filter_map(|byte| decoder.push(*byte)).next();
            for record in postcard::from_bytes::<Record>(record).into_iter().chain(framed) {
                snapshot.see(&record);
            }
            assert_eq!(snapshot.vms.len(), vms);
            assert!(snapshot.vms.iter().all(|vm| vm.vcpus.len() <= 64));
        }
        sent(Message::State(snapshot));
    }
});
