//! Which guest vector a physical vector stands for, under a guest that claims without end.
//!
//! Two guest vectors never share a physical one, the host's vectors are never given out, a vector
//! that the guest takes itself never becomes hidden, and a stand-in keeps its meaning for good.
#![no_main]

use arbitrary::Arbitrary;
use delivery::{Routes, VectorSet};
use libfuzzer_sys::fuzz_target;
use std::collections::BTreeMap;

#[derive(Arbitrary, Debug)]
struct Input {
    host: Vec<u8>,
    claims: Vec<u8>,
}

fuzz_target!(|input: Input| {
    let host = VectorSet::of(&input.host.iter().map(|v| v | 0x20).collect::<Vec<u8>>());
    let mut routes = Routes::new(host);
    // Pairs of guest and physical vector, and what each stand-in was first given for.
    let mut held: Vec<(u8, u8)> = Vec::new();
    let mut stand_ins: BTreeMap<u8, u8> = BTreeMap::new();
    for guest in input.claims {
        match routes.claim(guest) {
            Some(physical) => {
                assert!(guest >= 32 && physical >= 32 && !host.contains(physical));
                if physical != guest {
                    assert!(routes.hidden().contains(physical));
                    assert_eq!(*stand_ins.entry(physical).or_insert(guest), guest);
                }
                held.push((guest, physical));
            }
            None => assert!(guest < 32 || routes.hidden().contains(guest)),
        }
        let hidden = routes.hidden();
        assert!(host.without(&hidden).is_empty());
        for (guest, physical) in &held {
            assert_eq!(routes.guest_vector(*physical), Some(*guest));
            assert_eq!(hidden.contains(*physical), guest != physical);
        }
        for (physical, guest) in &stand_ins {
            assert_eq!(routes.guest_vector(*physical), Some(*guest));
        }
        assert!(host.iter().all(|vector| routes.guest_vector(vector).is_none()));
    }
});
