//! A switch with a hostile guest: any headers and frames, any commands, any buffers, any words of
//! its rings changed at any time, resets. What must hold is what the crate's test of hostile guests
//! says.
#![no_main]

extern crate virtio_net as net;

#[path = "../../crates/net/tests/guest/mod.rs"]
mod guest;

use arbitrary::Arbitrary;
use guest::hostile::{KINDS, RINGS, Step, places, run};
use libfuzzer_sys::fuzz_target;
use net::header::Header;

#[derive(Arbitrary, Debug)]
struct Input {
    declined: [bool; 4],
    finish: u8,
    acts: Vec<Act>,
}

#[derive(Arbitrary, Debug)]
enum Act {
    /// A frame with a header that is mostly right.
    Send {
        right: Right,
        like: u8,
        patch: Vec<(u8, u8)>,
        len: u16,
        cuts: Vec<u16>,
    },
    /// A frame with any header.
    Raw {
        header: [u8; 12],
        like: u8,
        len: u8,
    },
    Command(Vec<u8>),
    Write(u16, Vec<u8>),
    Buffer {
        index: u8,
        address: u64,
        near: bool,
        len: u32,
        writable: bool,
    },
    Serve(u8),
    Reset,
}

#[derive(Arbitrary, Debug)]
struct Right {
    flags: u8,
    kind: u8,
    start: Option<u16>,
    offset: Option<u16>,
    size: u16,
}

fn header(right: &Right, like: u8) -> [u8; 12] {
    let (start, offset) = places(like);
    let header = Header {
        flags: right.flags,
        gso_type: right.kind,
        gso_size: right.size,
        csum_start: right.start.unwrap_or(start),
        csum_offset: right.offset.unwrap_or(offset),
        ..Header::default()
    };
    header.bytes()
}

fn step(act: Act) -> Step {
    match act {
        Act::Send { right, like, patch, len, cuts } => {
            let header = header(&right, like % KINDS);
            let cuts = cuts.into_iter().take(8).map(usize::from).collect();
            Step::Send { header, like: like % KINDS, patch, len: len.into(), cuts }
        }
        Act::Raw { header, like, len } => Step::Send {
            header,
            like: like % KINDS,
            patch: vec![],
            len: len.into(),
            cuts: vec![12],
        },
        Act::Command(bytes) => Step::Command(bytes),
        Act::Write(at, mut bytes) => {
            bytes.truncate(64);
            Step::Write(u64::from(at) % RINGS, bytes)
        }
        Act::Buffer { index, address, near, len, writable } => {
            let address = if near { address % (16 << 20) } else { address };
            Step::Buffer { index: u16::from(index) % 3, address, len, writable }
        }
        Act::Serve(index) if index >= 128 => Step::Burst,
        Act::Serve(index) => Step::Serve(u16::from(index) % 4),
        Act::Reset => Step::Reset,
    }
}

fuzz_target!(|input: Input| {
    run(input.declined, input.finish, input.acts.into_iter().take(100).map(step).collect());
});
