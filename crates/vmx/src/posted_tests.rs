//! The descriptor's bits as the manuals have them; posts and looks in any order; the registers'
//! places.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

const TO: Notification = Notification { destination: 0x1234_5678, vector: 0xF4 };

/// The descriptor as 64 bytes.
fn bytes(descriptor: &Descriptor) -> Vec<u64> {
    let Descriptor { requests, control, reserved } = descriptor;
    let words = requests.iter().chain([control]).map(|word| word.load(Ordering::Relaxed));
    words.chain(*reserved).collect()
}

/// SDM vol. 3, table 30-1; VT-d 9.11 has the same.
#[test]
fn each_part_is_where_the_manual_has_it() {
    assert_eq!((Descriptor::BYTES, align_of::<Descriptor>()), (64, 64));
    let descriptor = Descriptor::new(TO);
    assert_eq!(bytes(&descriptor), [0, 0, 0, 0, 0x1234_5678_00F4_0000, 0, 0, 0]);
    assert_eq!(descriptor.post(0xC1), Some(TO));
    assert_eq!(bytes(&descriptor), [0, 0, 0, 2, 0x1234_5678_00F4_0001, 0, 0, 0]);
}

#[test]
fn registers_are_sixteen_bytes_apart() {
    let registers = Registers::default();
    let pending = VectorSet::of(&[0x20, 0x51]);
    registers.set_interrupts([&pending, &VectorSet::of(&[0xFF])]);
    let set: Vec<_> = (0..1024)
        .map(|n| (4 * n, registers.0[n].load(Ordering::Relaxed)))
        .filter(|(_, value)| *value != 0)
        .collect();
    assert_eq!(set, [(0x170, 1 << 31), (0x210, 1), (0x220, 1 << 0x11)]);
    assert_eq!(registers.interrupts(), [pending, VectorSet::of(&[0xFF])]);
}

#[test]
fn the_status_has_the_highest_of_each() {
    let [pending, serves] = [VectorSet::of(&[0x41, 0x60]), VectorSet::of(&[0x31, 0x52])];
    assert_eq!(status([&pending, &serves]), 0x5260);
    assert_eq!(status([&VectorSet::EMPTY; 2]), 0);
}

proptest! {
    /// `Some` posts a vector, `None` looks.
    #[test]
    fn each_vector_is_taken_once_and_each_first_post_notifies(
        steps in proptest::collection::vec(any::<Option<u8>>(), 0..100)
    ) {
        let descriptor = Descriptor::new(TO);
        let mut posted = BTreeSet::new();
        for step in steps {
            match step {
                Some(vector) => {
                    let first = posted.is_empty();
                    posted.insert(vector);
                    prop_assert_eq!(descriptor.post(vector), first.then_some(TO));
                }
                None => {
                    let taken = descriptor.take();
                    prop_assert_eq!(taken.is_some(), !posted.is_empty());
                    let mut set = VectorSet::EMPTY;
                    for (index, bits) in (0..).zip(taken.unwrap_or_default()) {
                        set.insert_word(index, bits);
                    }
                    let vectors: BTreeSet<_> = set.iter().collect();
                    prop_assert_eq!(vectors, core::mem::take(&mut posted));
                }
            }
        }
        prop_assert_eq!(descriptor.notification(), TO);
    }
}
