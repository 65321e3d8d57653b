//! The world by steps in any order.

use super::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Rebind(usize, Option<u8>),
    Send(usize, usize),
    Arrive(usize),
    Serve(usize),
    Switch(usize),
    Step,
}

fn ops(vectors: &'static [u8]) -> impl Strategy<Value = Op> {
    let any = any::<usize>;
    let vector = prop_oneof![4 => prop::sample::select(vectors).prop_map(Some), 1 => Just(None)];
    prop_oneof![
        2 => (any(), vector).prop_map(|(s, v)| Op::Rebind(s, v)),
        6 => (any(), any()).prop_map(|(s, w)| Op::Send(s, w)),
        4 => any().prop_map(Op::Arrive),
        2 => any().prop_map(Op::Serve),
        2 => any().prop_map(Op::Switch),
        6 => Just(Op::Step),
    ]
}

fn run(world: &mut World, ops: Vec<Op>) -> Result<(), String> {
    let sources = world.sources.len();
    for op in ops {
        match op {
            Op::Rebind(source, vector) => world.rebind(source % sources, vector),
            Op::Send(source, which) => world.send(source % sources, which),
            Op::Arrive(which) => world.arrive(which),
            Op::Serve(which) if world.vectors.owner().is_some() => world.serve(which)?,
            Op::Serve(_) => {}
            Op::Switch(next) => world.switch(next),
            Op::Step => world.step()?,
        }
        world.look()?;
    }
    world.serve_all()
}

proptest! {
    /// Whatever happens, in whatever order: to its guest, with its vector, and (but for rule 5)
    /// nothing else.
    #[test]
    fn nothing_is_lost_or_given_to_another(
        slots in 1usize..5, sources in 1usize..9, ops in prop::collection::vec(ops(&VECTORS), 0..STEPS),
    ) {
        run(&mut World::new(slots, sources), ops).map_err(TestCaseError::fail)?;
    }

    /// With few vectors there are aliases for all, so nothing is made up either.
    #[test]
    fn nothing_is_made_up_within_the_quota(
        sources in 1usize..5, ops in prop::collection::vec(ops(&VECTORS[..5]), 0..STEPS),
    ) {
        let mut world = World::new(2, sources);
        run(&mut world, ops).map_err(TestCaseError::fail)?;
        prop_assert!(!world.crowded.contains(&true));
    }

    /// An alias is never one of the host's, nor nobody's.
    #[test]
    fn every_claim_has_an_alias_that_means_it(
        slots in 1usize..9, claims in prop::collection::vec((0usize..8, any::<u8>()), 0..60), owner in 0usize..8,
    ) {
        let mut vectors = CoreVectors::new(HOST, slots);
        if owner < slots {
            vectors.enter(owner);
        }
        for (slot, guest) in claims {
            let alias = vectors.claim(slot, guest);
            prop_assert_eq!(alias.is_some(), slot < slots && guest >= 32);
            let physical = vectors.physical(slot, guest);
            prop_assert!(physical.is_none_or(|p| !HOST.contains(p) && p >= 32));
            if let Some(alias) = alias {
                prop_assert!(alias >= FIRST_RESERVED && !HOST.contains(alias));
                let Arrived::Of { slot: of, vectors } = vectors.arrived(alias) else {
                    panic!("{alias:#x} is nobody's")
                };
                prop_assert!(of == slot && vectors.contains(guest));
            }
        }
    }
}
