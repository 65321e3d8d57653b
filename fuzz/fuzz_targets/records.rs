//! Records of what is in flight, which a front end keeps and may write at any moment: opened as
//! they are, then used by a ring whose chains come and go.
//!
//! What is left was in flight, and comes once; the state to go on with fits it; nothing panics, and
//! nothing is written beside the records.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use std::collections::BTreeSet;
use virtqueue::{Head, PackedRecords, Position, Records, State};
use window::{Memory, Span};

const N: usize = 16;
const LEN: u64 = 0x800;
/// Where they begin: what is before and behind isn't theirs.
const AT: u64 = 0x400;

#[derive(Arbitrary, Debug)]
struct Input {
    packed: bool,
    size: u8,
    used: u16,
    wrap: bool,
    /// By places of the ring: something is offered there.
    offered: u32,
    /// The front end's header, then its entries.
    bytes: Vec<u8>,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    /// The next chain that was left is asked for again.
    Left,
    /// One of these is completed.
    Complete(u8),
    Publish,
    Write {
        at: u16,
        bytes: Vec<u8>,
    },
}

fuzz_target!(|input: Input| {
    let memory = Memory::new(&[(0, 0x1000)], 0);
    let all = memory.window().span(0, 0x1000).expect("it is there");
    let span = all.sub(AT, LEN).expect("inside");
    write(&span, 0, &input.bytes);
    let size = match input.packed {
        true => u16::from(input.size % N as u8) + 1,
        false => 1 << (input.size % 5),
    };
    if input.packed {
        packed(&input, span, size)
    } else {
        split(&input, span, size)
    }
    let mut beside = [0; AT as usize];
    for at in [0, AT + LEN] {
        let part = &mut beside[..AT as usize];
        all.read(at, part).expect("inside");
        assert!(part.iter().all(|byte| *byte == 0), "beside it");
    }
});

fn write(span: &Span, at: u64, bytes: &[u8]) {
    let at = at % LEN;
    let len = (bytes.len() as u64).min(LEN - at);
    span.write(at, &bytes[..len as usize]).expect("inside");
}

fn in_flight(state: &State<N>, size: u16, left: u16) {
    let taken = state.in_flight.iter().filter(|count| **count != 0).count();
    assert_eq!(taken, usize::from(left), "as many as are left");
    assert!(state.in_flight[usize::from(size)..].iter().all(|count| *count == 0));
}

fn split(input: &Input, span: Span, size: u16) {
    let Ok((mut records, state)) = Records::<N>::open(span, size, input.used) else { return };
    in_flight(&state, size, records.left());
    assert_eq!(state.available.index.wrapping_sub(state.used.index), records.left());
    let (mut heads, mut last) = (Vec::new(), None);
    for step in &input.steps {
        match step {
            Step::Left => heads.extend(left(records.next_left(), &state, &mut last)),
            Step::Complete(which) => {
                complete(&mut heads, *which).into_iter().for_each(|head| records.complete(head))
            }
            Step::Publish => {
                last.into_iter().for_each(|last| records.publishing(last));
                records.published(input.used);
            }
            Step::Write { at, bytes } => write(&span, (*at).into(), bytes),
        }
        let ids: BTreeSet<u16> = heads.iter().map(|head| head.index()).collect();
        assert_eq!(ids.len(), heads.len(), "one came twice");
    }
}

/// A chain that was left, which comes once.
fn left(head: Option<Head>, state: &State<N>, last: &mut Option<Head>) -> Option<Head> {
    let head = head?;
    assert_ne!(state.in_flight[usize::from(head.index())], 0, "it wasn't in flight");
    *last = Some(head);
    Some(head)
}

fn complete(heads: &mut Vec<Head>, which: u8) -> Option<Head> {
    let at = usize::from(which).checked_rem(heads.len())?;
    Some(heads.swap_remove(at))
}

fn packed(input: &Input, span: Span, size: u16) {
    let at = Position { index: input.used % size, wrap: input.wrap };
    let begins = State { available: at, used: at, in_flight: [0; N] };
    let offered = |at: Position| input.offered >> at.index & 1 != 0;
    let Ok((mut records, state)) = PackedRecords::<N>::open(span, size, begins, offered) else {
        return;
    };
    in_flight(&state, size, records.left());
    assert!(state.used.index < size && state.available.index < size);
    let taken: u16 = state.in_flight.iter().sum();
    assert!(taken <= size);
    let (mut heads, mut last) = (Vec::new(), None);
    for step in &input.steps {
        match step {
            Step::Left => heads.extend(left(records.next_left(), &state, &mut last)),
            Step::Complete(which) => {
                complete(&mut heads, *which).into_iter().for_each(|id| records.complete(id))
            }
            Step::Publish => {
                records.publishing(state.used);
                records.published(state.used);
            }
            Step::Write { at, bytes } => write(&span, (*at).into(), bytes),
        }
        let ids: BTreeSet<u16> = heads.iter().map(|id| id.index()).collect();
        assert_eq!(ids.len(), heads.len(), "one came twice");
    }
}
