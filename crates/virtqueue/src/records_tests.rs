//! Records against a model: a program that ends at any store of any step, and one that goes on.
//! Chains are answered once, whichever way they are completed and in whatever order.
use crate::{Head, Records, fuel};
use proptest::prelude::*;
use std::collections::VecDeque;
use window::{Memory, Span};

const SIZE: u16 = 8;

#[derive(Clone, Debug)]
enum Step {
    /// The driver offers a chain, if a head is free.
    Offer,
    /// The back end is asked for the next chain, and answers later or at once.
    Take {
        later: bool,
    },
    /// It ends one of those that it has, by this number.
    End(usize),
    Publish,
    /// The program ends after so many stores from here on, in the step where the last one is.
    Die(u32),
}

/// The ring, which outlives the program as the records do, and what the driver saw.
struct Ring {
    available: VecDeque<u16>,
    /// The index of the first one in `available`.
    offered: u16,
    free: Vec<u16>,
    used: u16,
    /// Of each head, whether the driver waits for it.
    waits: [bool; SIZE as usize],
    answers: u32,
    offers: u32,
}

/// What is lost with the program.
struct Program {
    records: Records<{ SIZE as usize }>,
    next: u16,
    later: Vec<u16>,
    completed: Vec<u16>,
    last: u16,
}

impl Program {
    fn start(span: Span, ring: &Ring) -> Program {
        let (mut records, state) = Records::open(span, SIZE, ring.used).expect("they are ours");
        let mut later = Vec::new();
        while let Some(head) = records.next_left() {
            later.push(head.0);
        }
        for head in &later {
            assert!(ring.waits[usize::from(*head)], "{head} was answered, and is done again");
            assert_eq!(state.in_flight[usize::from(*head)], 1);
        }
        Program { records, next: state.available.index, later, completed: Vec::new(), last: 0 }
    }

    /// Publishing is one store of the ring, which needs fuel, too.
    fn publish(&mut self, ring: &mut Ring) {
        if self.completed.is_empty() {
            return;
        }
        self.records.publishing(Head(self.last));
        if fuel::burn() {
            for head in &self.completed {
                let waits = &mut ring.waits[usize::from(*head)];
                assert!(std::mem::take(waits), "{head} is answered twice");
                ring.answers += 1;
                ring.free.push(*head);
            }
            ring.used = ring.used.wrapping_add(self.completed.len() as u16);
        }
        self.completed.clear();
        self.records.published(ring.used);
    }

    fn take(&mut self, ring: &mut Ring, later: bool) {
        let at = self.next.wrapping_sub(ring.offered);
        let Some(head) = ring.available.get(usize::from(at)).copied() else { return };
        if self.records.has_batch() {
            self.publish(ring);
        }
        assert!(ring.waits[usize::from(head)], "{head} is taken after it was answered");
        assert!(!self.later.contains(&head), "{head} is taken twice");
        (self.next, self.last) = (self.next.wrapping_add(1), head);
        if later {
            self.publish(ring);
            self.records.take(Head(head));
            self.later.push(head);
        } else {
            self.completed.push(head);
        }
    }

    fn end(&mut self, ring: &mut Ring, which: usize) {
        if self.later.is_empty() {
            return;
        }
        if !self.records.has_batch() {
            self.publish(ring);
        }
        let head = self.later.swap_remove(which % self.later.len());
        self.records.complete(Head(head));
        self.completed.push(head);
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => Just(Step::Offer),
        6 => any::<bool>().prop_map(|later| Step::Take { later }),
        5 => any::<usize>().prop_map(Step::End),
        3 => Just(Step::Publish),
        2 => (0..30u32).prop_map(Step::Die),
    ];
    prop::collection::vec(step, 1..120)
}

fn run(steps: Vec<Step>, start: u16) {
    let memory = Memory::new(&[(0, 4096)], 0);
    let bytes = Records::<{ SIZE as usize }>::bytes(SIZE);
    let span = memory.window().span(0, bytes).expect("a region");
    let mut ring = Ring {
        available: VecDeque::new(),
        offered: start,
        free: (0..SIZE).collect(),
        used: start,
        waits: [false; SIZE as usize],
        answers: 0,
        offers: 0,
    };
    let mut program = Program::start(span, &ring);
    for step in steps {
        match step {
            Step::Offer => {
                if let Some(head) = ring.free.pop() {
                    ring.available.push_back(head);
                    ring.waits[usize::from(head)] = true;
                    ring.offers += 1;
                }
            }
            Step::Take { later } => program.take(&mut ring, later),
            Step::End(which) => program.end(&mut ring, which),
            Step::Publish => program.publish(&mut ring),
            Step::Die(stores) => {
                fuel::set(stores);
                continue;
            }
        }
        if fuel::is_out() {
            fuel::set(u32::MAX);
            program = Program::start(span, &ring);
        }
    }
    // Whoever goes on ends all.
    fuel::set(u32::MAX);
    program = Program::start(span, &ring);
    for _ in 0..4 * SIZE {
        program.end(&mut ring, 0);
        program.take(&mut ring, false);
    }
    program.publish(&mut ring);
    assert_eq!(ring.answers, ring.offers, "a request is lost");
}

proptest! {
    #[test]
    fn nothing_is_lost_and_nothing_is_answered_twice(steps in steps(), start in any::<u16>()) {
        run(steps, start);
    }

    /// Records of whatever content.
    #[test]
    fn nonsense_is_survived(
        bytes in prop::collection::vec(any::<u8>(), 192),
        version in 0..3u8,
        used in any::<u16>(),
    ) {
        let memory = Memory::new(&[(0, 4096)], 0);
        let span = memory.window().span(0, 192).expect("a region");
        span.write(0, &bytes).expect("inside");
        span.write(8, &[version, 0, 8, 0]).expect("inside");
        if let Ok((mut records, state)) = Records::<8>::open(span, SIZE, used) {
            let taken = state.available.index.wrapping_sub(used);
            prop_assert_eq!(taken, records.left());
            while let Some(head) = records.next_left() {
                prop_assert!(head.0 < SIZE);
                records.complete(head);
            }
            records.published(used.wrapping_add(taken));
        }
    }
}

#[test]
fn chains_come_back_in_the_order_in_which_they_were_taken() {
    let memory = Memory::new(&[(0, 4096)], 0);
    let span = memory.window().span(0, 192).expect("a region");
    let (mut records, _) = Records::<8>::open(span, SIZE, 5).expect("new ones");
    for head in [3, 1, 7, 0] {
        records.take(Head(head));
    }
    records.complete(Head(1));
    records.published(6);
    let (mut next, state) = Records::<8>::open(span, SIZE, 6).expect("ours");
    let order: Vec<u16> = std::iter::from_fn(|| next.next_left()).map(|head| head.0).collect();
    assert_eq!(order, [3, 7, 0]);
    assert_eq!(state.available.index, 9);
    // The next one is behind all of them.
    next.take(Head(1));
    let (mut last, _) = Records::<8>::open(span, SIZE, 6).expect("ours");
    let order: Vec<u16> = std::iter::from_fn(|| last.next_left()).map(|head| head.0).collect();
    assert_eq!(order, [3, 7, 0, 1]);
}

/// Who goes on takes the last batch as answered if the index says that more was shown. One that
/// nothing of was recorded has a head there that isn't in flight, whatever was taken last.
#[test]
fn what_is_published_without_records_answers_no_chain_in_flight() {
    for (in_flight, last) in [(vec![5], 5), (vec![0, 1, 5], 5), (vec![0, 1, 5], 6)] {
        let memory = Memory::new(&[(0, 4096)], 0);
        let span = memory.window().span(0, 192).expect("a region");
        let (mut records, _) = Records::<8>::open(span, SIZE, 0).expect("new ones");
        in_flight.iter().for_each(|head| records.take(Head(*head)));
        records.publishing(Head(last));
        // It ends here: the index is visible, and isn't in the records.
        let (mut next, _) = Records::<8>::open(span, SIZE, 2).expect("ours");
        let left: Vec<u16> = std::iter::from_fn(|| next.next_left()).map(|head| head.0).collect();
        assert_eq!(left, in_flight);
    }
}

#[test]
fn another_size_is_refused_while_something_is_in_flight() {
    let memory = Memory::new(&[(0, 4096)], 0);
    let span = memory.window().span(0, 320).expect("a region");
    let (mut records, _) = Records::<16>::open(span, 8, 0).expect("new ones");
    records.take(Head(2));
    let refused = Records::<16>::open(span, 16, 0).expect_err("it is another ring");
    assert_eq!(refused, crate::BadRecords::Size(8));
    records.complete(Head(2));
    records.published(1);
    assert!(Records::<16>::open(span, 16, 0).is_ok());
}
