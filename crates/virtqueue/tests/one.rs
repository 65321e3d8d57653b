//! Chains of one buffer: those alone are taken without a chain, and are what the walk takes.

use proptest::prelude::*;
use virtqueue::{Chain, Features, Layout, Queue, State};
use window::{Memory, Window};

const LEN: u64 = 0x4000;
/// What a descriptor may take for a table: descriptors of a buffer each, from here to the end.
const TABLES: u64 = 0x1000;
const LAYOUT: Layout = Layout { size: 8, descriptors: 0x100, driver: 0x400, device: 0x600 };

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

fn describe(window: &Window, at: u64, address: u64, len: u32, flags: u16, next: u16) {
    let word = u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48;
    let bytes = [address.to_le_bytes(), word.to_le_bytes()];
    window.write(at, bytes.as_flattened()).unwrap();
}

/// All that a chain says.
fn told(chain: &Chain) -> impl PartialEq + use<> {
    (chain.head(), chain.readable().to_vec(), chain.writable().to_vec(), chain.descriptors())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2048, ..ProptestConfig::default() })]

    #[test]
    fn it_is_the_chain_that_the_walk_takes(
        address in prop_oneof![4 => (TABLES / 16..LEN / 16).prop_map(|n| n * 16), 1 => 0..LEN + 20],
        len in prop::sample::select(vec![0_u32, 1, 16, 32, 48, 512, 4096, u32::MAX]),
        flags in 0_u16..8,
        next in 0_u16..9,
        indirect: bool,
        writable: bool,
        is_held: bool,
    ) {
        let memory = Memory::new(&[(0, LEN)], 1 << 40);
        let window = memory.window();
        for at in (TABLES..LEN).step_by(16) {
            let flags = if at & 0x100 == 0 { WRITE } else { 0 };
            describe(&window, at, 0x2000, 64, flags, 0);
        }
        describe(&window, LAYOUT.descriptors, address, len, flags, next);
        for at in 1..8 {
            let to = LAYOUT.descriptors + 16 * at;
            describe(&window, to, 0x3000, 64, flags & !(NEXT | INDIRECT), 0);
        }
        window.write(0x402, &1_u16.to_le_bytes()).unwrap();
        let features = Features { indirect, event_index: false, packed: false };
        let queue = || -> Queue {
            Queue::new(&window, LAYOUT, features, State::at_reset(features)).unwrap()
        };
        let (mut walked, mut other) = (Chain::new(), Chain::new());
        let mut of_walk = queue();
        let wanted = of_walk.take(&window, &mut walked);
        let mut of_one = queue();
        let Queue::Split(split) = &mut of_one else { panic!("it is a split one") };
        let mut taken = Ok(false);
        let one = match writable {
            true => split.take_one::<true>(&window, &mut other, &mut taken),
            false => split.take_one::<false>(&window, &mut other, &mut taken),
        };
        let is_one = flags & (NEXT | INDIRECT) == 0
            && (flags & WRITE != 0) == writable
            && wanted == Ok(true)
            && len > 0;
        prop_assert_eq!(one.is_some(), is_one);
        if let Some(one) = one {
            let spans = if writable { walked.writable() } else { walked.readable() };
            prop_assert_eq!(spans, [*one.span()]);
            prop_assert_eq!((walked.descriptors(), one.bytes()), (1, len));
            if is_held {
                split.hold_one(one, writable, &mut other);
                taken = Ok(true);
            } else {
                split.used_one(one, 7);
                of_walk.complete(walked.head(), 7);
            }
        }
        if !is_one || is_held {
            prop_assert_eq!(taken, wanted);
            prop_assert!(taken != Ok(true) || told(&other) == told(&walked));
        }
        prop_assert_eq!(of_one.state(), of_walk.state());
    }
}
