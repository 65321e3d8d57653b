//! Who owns which vector of a shared core, under guests that claim and release anything while the
//! core switches between them.
//!
//! No physical vector means two places or the host and a guest; whatever an entry could hold since
//! its place last left is understood as what it was written for; and own vectors mean the one at
//! home alone.
#![no_main]

use arbitrary::Arbitrary;
use delivery::{Arrived, CoreVectors, FIRST_RESERVED, VectorSet};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input {
    host: Vec<u8>,
    places: u8,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Claim(u8, u8),
    Release(u16),
    Leave,
    Left,
    Enter(u8),
}

fuzz_target!(|input: Input| {
    let host = VectorSet::of(&input.host.iter().map(|v| v | 0xF0).collect::<Vec<u8>>());
    let places = usize::from(input.places % 9);
    let mut core = CoreVectors::new(host, places);
    // Claims held, and those released that an entry may still have been read as: place, guest's
    // vector, alias.
    let mut held: Vec<(usize, u8, u8)> = Vec::new();
    let mut late: Vec<(usize, u8, u8)> = Vec::new();
    let (mut leaving, mut disturbed) = (false, false);
    for step in input.steps {
        match step {
            Step::Claim(place, guest) => {
                let place = usize::from(place % 9);
                if let Some(alias) = core.claim(place, guest) {
                    assert!(place < places && guest >= 32);
                    held.push((place, guest, alias));
                }
            }
            Step::Release(which) => {
                if !held.is_empty() {
                    let claim = held.swap_remove(usize::from(which) % held.len());
                    core.release(claim.0, claim.1);
                    late.push(claim);
                    disturbed = true;
                }
            }
            Step::Leave => {
                core.leave();
                (leaving, disturbed) = (core.owner().is_some(), false);
            }
            Step::Left => {
                let home = core.owner();
                core.left();
                if leaving && !disturbed {
                    late.retain(|(place, ..)| Some(*place) != home);
                }
                leaving = false;
                assert_eq!(core.owner(), None);
            }
            Step::Enter(place) => {
                if core.owner().is_none() {
                    core.enter(usize::from(place) % 9);
                    leaving = false;
                }
            }
        }
        let home = core.owner();
        for (place, guest, alias) in held.iter().chain(&late) {
            assert!(*alias >= FIRST_RESERVED && *alias != 0xFF && !host.contains(*alias));
            let Arrived::Of { slot: of, vectors } = core.arrived(*alias) else {
                panic!("{alias:#x} means nobody")
            };
            assert!(of == *place && vectors.contains(*guest));
        }
        for (place, guest, alias) in &held {
            assert_eq!(core.alias(*place, *guest), Some(*alias));
            let own = home == Some(*place) && !leaving && core.arrives_itself(*guest);
            assert_eq!(core.physical(*place, *guest), Some(if own { *guest } else { *alias }));
        }
        for physical in 0..=255 {
            match core.arrived(physical) {
                Arrived::Host => assert!(host.contains(physical)),
                Arrived::Of { slot: place, vectors } if physical < FIRST_RESERVED => {
                    assert!(home == Some(place) && physical >= 32);
                    assert_eq!(vectors, VectorSet::of(&[physical]));
                }
                Arrived::Of { slot: place, vectors } => {
                    assert!(place < places && !vectors.is_empty())
                }
                Arrived::Nobody => assert!(home.is_none() || !core.arrives_itself(physical)),
            }
        }
    }
});
