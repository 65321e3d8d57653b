//! Firmware that ends its boot services at once, later, or never.

use crate::ending::{BootServices, CALLS, INVALID_PARAMETER, SUCCESS, Unended, end};
use proptest::prelude::*;

const UNSUPPORTED: u64 = 1 << 63 | 3;
const BUFFER_TOO_SMALL: u64 = 1 << 63 | 5;

/// Its map has another key each time that it is read; and it gives these answers to the end's
/// calls, the last for good.
struct Firmware {
    answers: Vec<u64>,
    /// The map can be read so often.
    readable: u32,
    reads: u32,
    calls: u32,
    over: bool,
}

impl Firmware {
    fn new(answers: &[u64]) -> Self {
        let answers = answers.to_vec();
        Firmware { answers, readable: u32::MAX, reads: 0, calls: 0, over: false }
    }
}

impl BootServices for Firmware {
    type Map = u32;

    fn memory_map(&mut self) -> Result<(u32, u64), u64> {
        assert!(!self.over);
        self.reads += 1;
        let key = 100 + u64::from(self.reads);
        if self.reads > self.readable { Err(BUFFER_TOO_SMALL) } else { Ok((self.reads, key)) }
    }

    fn exit(&mut self, key: u64) -> u64 {
        assert!(!self.over);
        assert_eq!(key, 100 + u64::from(self.reads), "the key of the last map");
        let last = self.answers.len() - 1;
        let answer = self.answers[last.min(self.calls as usize)];
        self.calls += 1;
        self.over = answer == SUCCESS;
        answer
    }
}

#[test]
fn the_map_is_the_one_whose_key_was_taken() {
    for late in 0..CALLS {
        let mut answers = vec![INVALID_PARAMETER; late as usize];
        answers.push(SUCCESS);
        let mut firmware = Firmware::new(&answers);
        assert_eq!(end(&mut firmware), Ok(late + 1));
        assert_eq!(firmware.calls, late + 1);
    }
}

#[test]
fn firmware_that_never_does_is_given_up() {
    let mut firmware = Firmware::new(&[INVALID_PARAMETER]);
    assert_eq!(end(&mut firmware), Err(Unended { calls: 8, status: INVALID_PARAMETER }));
    assert_eq!((firmware.calls, firmware.reads), (8, 8));
}

#[test]
fn another_answer_isn_t_asked_for_again() {
    let mut firmware = Firmware::new(&[INVALID_PARAMETER, UNSUPPORTED, SUCCESS]);
    assert_eq!(end(&mut firmware), Err(Unended { calls: 2, status: UNSUPPORTED }));
    assert_eq!(firmware.calls, 2);
}

#[test]
fn without_a_map_there_is_no_key() {
    for (readable, calls) in [(0, 0), (3, 3)] {
        let mut firmware = Firmware { readable, ..Firmware::new(&[INVALID_PARAMETER]) };
        assert_eq!(end(&mut firmware), Err(Unended { calls, status: BUFFER_TOO_SMALL }));
        assert_eq!(firmware.calls, calls);
    }
}

proptest! {
    #[test]
    fn it_ends_if_and_only_if_the_firmware_said_so(
        answers in prop::collection::vec(
            prop_oneof![3 => Just(INVALID_PARAMETER), 1 => Just(SUCCESS), 1 => any::<u64>()],
            1..12,
        ),
        readable in 0..12u32,
    ) {
        let mut firmware = Firmware { readable, ..Firmware::new(&answers) };
        let ended = end(&mut firmware);
        prop_assert_eq!(ended.is_ok(), firmware.over);
        prop_assert!(firmware.calls <= CALLS && firmware.reads <= CALLS);
        match ended {
            Ok(map) => prop_assert_eq!(map, firmware.reads),
            Err(unended) => prop_assert!(unended.calls == firmware.calls && unended.status != SUCCESS),
        }
    }
}
