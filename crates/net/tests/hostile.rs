//! Guests that write anything anywhere: nothing panics, each turn is bounded, and nobody else's
//! memory changes but in the buffers that it has offered.
mod guest;

use guest::hostile::{KINDS, RINGS, Step, run};
use net::header::{GSO_TCPV4, GSO_TCPV6, GSO_UDP, Header, NEEDS_CSUM};
use proptest::prelude::*;

fn header() -> impl Strategy<Value = [u8; 12]> {
    let flags = prop_oneof![Just(NEEDS_CSUM), any::<u8>()];
    let kind = prop_oneof![Just(0), Just(GSO_TCPV4), Just(GSO_TCPV6), Just(GSO_UDP), any::<u8>()];
    let start = prop_oneof![Just(34), Just(54), 0..300u16, any::<u16>()];
    let offset = prop_oneof![Just(16), Just(6), 0..300u16, any::<u16>()];
    let size = prop_oneof![Just(1000), 0..20u16, any::<u16>()];
    let right = (flags, kind, start, offset, size).prop_map(
        |(flags, gso_type, csum_start, csum_offset, gso_size)| {
            let header =
                Header { flags, gso_type, csum_start, csum_offset, gso_size, ..Header::default() };
            header.bytes()
        },
    );
    prop_oneof![4 => right, 1 => any::<[u8; 12]>()]
}

fn step() -> impl Strategy<Value = Step> {
    let patch = prop::collection::vec((any::<u8>(), any::<u8>()), 0..4);
    let len = prop_oneof![0..100u32, 0..2000u32, 60_000..66_000u32];
    let cuts = prop::collection::vec(0..1000usize, 0..6);
    let bytes = prop::collection::vec(any::<u8>(), 0..40);
    let near = prop_oneof![(0..16u64 << 20), any::<u64>()];
    prop_oneof![
        6 => (header(), 0..KINDS, patch, len, cuts)
            .prop_map(|(header, like, patch, len, cuts)| Step::Send { header, like, patch, len, cuts }),
        2 => bytes.clone().prop_map(Step::Command),
        1 => (0..RINGS, bytes).prop_map(|(at, bytes)| Step::Write(at, bytes)),
        1 => (0..3u16, near, prop_oneof![0..3000u32, any::<u32>()], any::<bool>())
            .prop_map(|(index, address, len, writable)| Step::Buffer { index, address, len, writable }),
        6 => (0..4u16).prop_map(Step::Serve),
        2 => Just(Step::Burst),
        1 => Just(Step::Reset),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn nobody_else_is_harmed(
        declined: [bool; 4],
        finish in 0..4u8,
        steps in prop::collection::vec(step(), 1..60),
    ) {
        run(declined, finish, steps);
    }
}
