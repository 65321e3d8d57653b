//! Disks on a controller that does what it is told, in any order, and fails some of it: against
//! what the data should be.
mod model;

use blk::{Backend, Failure, Operation, Submitted};
use model::{GUEST, World, token};
use nvme::{BadPart, Part, State};
use proptest::prelude::*;
use window::Span;

/// Sectors of each operation's own place on its disk: so that order doesn't matter.
const PLACE: u64 = 128;
const OPERATIONS: usize = 16;
const DISKS: u64 = 3;
/// Bytes of each disk, and of what is before each of them.
const BYTES: u64 = OPERATIONS as u64 * PLACE * 512;
const GAP: u64 = 64 << 10;
const ALL: u64 = DISKS * (BYTES + GAP) + GAP;

fn part(disk: u64) -> Part {
    Part { first: GAP + disk * (BYTES + GAP), bytes: BYTES }
}

#[derive(Clone, Copy, Debug)]
enum Ask {
    Read,
    Write { durable: bool },
    Flush,
    Discard,
    Zeroes,
}

#[derive(Clone, Debug)]
struct Step {
    ask: Ask,
    disk: u64,
    /// Within the operation's place, in blocks.
    first: u64,
    count: u64,
    /// The memory: how the spans lie.
    layout: Layout,
    fails: bool,
}

#[derive(Clone, Copy, Debug)]
enum Layout {
    /// In one piece, from this offset on.
    Whole(u64),
    /// Pages in reverse order.
    Pages,
    /// In pieces of so many bytes, with gaps.
    Pieces(u64),
}

impl Layout {
    /// Where the bytes lie in memory of the operation's own, of 256 KiB.
    fn spans(self, own: &Span, bytes: u64) -> Vec<Span> {
        match self {
            Layout::Whole(offset) => vec![own.sub(offset, bytes).unwrap()],
            Layout::Pages => {
                let pages = bytes.div_ceil(4096);
                let page =
                    |n: u64| own.sub((pages - 1 - n) * 4096, (bytes - n * 4096).min(4096)).unwrap();
                (0..pages).map(page).collect()
            }
            Layout::Pieces(len) => (0..bytes.div_ceil(len))
                .map(|n| own.sub(n * (len + 100), len.min(bytes - n * len)).unwrap())
                .collect(),
        }
    }
}

fn step() -> impl Strategy<Value = Step> {
    let ask = prop_oneof![
        4 => Just(Ask::Read),
        4 => any::<bool>().prop_map(|durable| Ask::Write { durable }),
        1 => Just(Ask::Flush),
        1 => Just(Ask::Discard),
        2 => Just(Ask::Zeroes),
    ];
    let layout = prop_oneof![
        4 => Just(Layout::Whole(0)),
        2 => (0u64..1024).prop_map(|n| Layout::Whole(n * 4)),
        1 => (0u64..4096).prop_map(Layout::Whole),
        2 => Just(Layout::Pages),
        1 => (9u64..80).prop_map(|n| Layout::Pieces(n * 64)),
        1 => (600u64..9000).prop_map(Layout::Pieces),
    ];
    (ask, 0..DISKS, 0u64..8, 1u64..=8, layout, proptest::bool::weighted(0.1)).prop_map(
        |(ask, disk, first, count, layout, fails)| Step {
            ask,
            disk,
            first,
            count: count.min(8 - first),
            layout,
            fails,
        },
    )
}

/// The byte of a pattern.
fn byte(seed: usize, at: u64) -> u8 {
    (seed as u64 * 31 + at * 7 + at / 509) as u8
}

fn started(shift: u32, mdts: u8, cache: bool) -> World {
    let mut world = World::new(ALL as usize, shift, |model| {
        (model.mdts, model.cache) = (mdts, cache);
        for (at, byte) in model.disk.iter_mut().enumerate() {
            *byte = self::byte(99, at as u64);
        }
    });
    assert_eq!(State::Running, world.start());
    for disk in 0..DISKS {
        assert_eq!(Ok(disk as u16), world.controller.add_disk(part(disk)));
    }
    world
}

#[test]
fn a_part_is_in_the_namespace() {
    let mut world = started(12, 0, true);
    let add = |world: &mut World, first, bytes| world.controller.add_disk(Part { first, bytes });
    let all = ALL;
    assert_eq!(Err(BadPart::TooLarge { end: all + 4096, bytes: all }), add(&mut world, 4096, all));
    assert_eq!(Err(BadPart::Blocks(4096)), add(&mut world, 512, 4096));
    for _ in DISKS..16 {
        add(&mut world, 0, 4096).unwrap();
    }
    assert_eq!(Err(BadPart::TooMany), add(&mut world, 0, 4096));
}

#[test]
fn a_flush_is_nothing_without_a_cache() {
    for (cache, expected) in [(false, Submitted::Done(Ok(()))), (true, Submitted::Accepted)] {
        let mut world = started(9, 0, cache);
        assert_eq!(expected, world.controller.disk(0).submit(token(1), Operation::Flush));
    }
}

#[test]
fn a_whole_piece_is_one_command_and_a_list() {
    let mut world = started(9, 0, true);
    let span = world.memory.window().span(512, 64 << 10).unwrap();
    let read = Operation::Read { sector: 0, into: &[span] };
    assert_eq!(Submitted::Accepted, world.controller.disk(1).submit(token(1), read));
    assert_eq!((1, 0), {
        let statistics = world.controller.statistics();
        (statistics.commands, statistics.copied)
    });
    world.round();
    assert!(world.model.borrow_mut().end(0, 0).is_some());
    assert_eq!(1, world.round().len());
}

#[test]
fn completions_of_nobody_are_told() {
    let mut world = started(9, 0, true);
    let span = world.memory.window().span(0, 512).unwrap();
    let read = Operation::Read { sector: 0, into: &[span] };
    world.controller.disk(0).submit(token(5), read);
    world.round();
    let id = world.model.borrow().pending[0].id;
    {
        let mut model = world.model.borrow_mut();
        // No such slot, no such command, of a use before, of another queue.
        for (id, queue) in [(0xFFFF, 1), (7, 1), (id.wrapping_sub(256), 1), (id, 0), (id, 2)] {
            model.write_completion(false, id, queue, 0);
        }
    }
    assert_eq!(0, world.round().len());
    assert_eq!(5, world.controller.statistics().strays);
    world.model.borrow_mut().end(0, 0);
    world.model.borrow_mut().write_completion(false, id, 1, 0);
    let ended = world.round();
    assert_eq!((1, 0, token(5)), (ended.len(), ended[0].0, ended[0].1.token));
    assert_eq!(6, world.controller.statistics().strays);
    assert_eq!(0, world.controller.under_way());
}

#[test]
fn a_disk_cant_take_what_is_anothers() {
    let mut world = started(9, 0, true);
    let span = world.memory.window().span(0, 512).unwrap();
    let mut taken = 0;
    while world.controller.disk(0).submit(token(1), Operation::Read { sector: 0, into: &[span] })
        == Submitted::Accepted
    {
        taken += 1;
    }
    // All but the guarantees of the two others.
    assert_eq!(255 - 2 * (255 / 6), taken);
    for disk in [1, 2] {
        for _ in 0..255 / 6 {
            let read = Operation::Read { sector: 0, into: &[span] };
            assert_eq!(Submitted::Accepted, world.controller.disk(disk).submit(token(1), read));
        }
    }
    let read = Operation::Read { sector: 0, into: &[span] };
    assert_eq!(Submitted::Full, world.controller.disk(1).submit(token(1), read));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// Each disk holds what was written to it, and nothing else changed; each read got it; failures
    /// are told; nothing is under way at the end.
    #[test]
    fn data_is_where_it_belongs(
        steps in proptest::collection::vec(step(), 1..=OPERATIONS),
        picks in proptest::collection::vec(any::<usize>(), 64),
        shift in prop_oneof![Just(9u32), Just(12)],
        mdts in prop_oneof![Just(0u8), Just(1), Just(4)],
    ) {
        let mut world = started(shift, mdts, true);
        let window = world.memory.window();
        let own = |n: usize| window.span(n as u64 * (GUEST / OPERATIONS as u64), GUEST / 16).unwrap();
        let mut expected = world.model.borrow().disk.clone();
        let mut results = vec![None; steps.len()];
        let (mut waiting, mut picks) = ((0..steps.len()).collect::<Vec<_>>(), picks.iter().cycle());
        let block = 1u64 << shift;
        for (number, _) in steps.iter().enumerate() {
            let own = own(number);
            let bytes: Vec<u8> = (0..own.len()).map(|at| byte(number, at)).collect();
            own.write(0, &bytes).unwrap();
        }
        let mut failing = vec![false; steps.len()];
        for _ in 0..2000 {
            waiting.retain(|number| {
                let step = &steps[*number];
                let bytes = step.count * block;
                let sector = *number as u64 * PLACE + step.first * block / 512;
                let sectors = bytes / 512;
                let spans = step.layout.spans(&own(*number), bytes);
                let operation = match step.ask {
                    Ask::Read => Operation::Read { sector, into: &spans },
                    Ask::Write { durable } => Operation::Write { sector, from: &spans, durable },
                    Ask::Flush => Operation::Flush,
                    Ask::Discard => Operation::Discard { sector, sectors },
                    Ask::Zeroes => Operation::WriteZeroes {
                        sector, sectors, unmap: true, durable: false,
                    },
                };
                let mut disk = world.controller.disk(step.disk as u16);
                match disk.submit(token(*number), operation) {
                    Submitted::Full => true,
                    Submitted::Accepted => false,
                    done => panic!("{done:?}"),
                }
            });
            for (disk, completion) in world.round() {
                let number = completion.token.bits() as usize;
                assert_eq!(steps[number].disk, u64::from(disk));
                assert_eq!(None, results[number].replace(completion.result));
            }
            let mut model = world.model.borrow_mut();
            if let Some(command) = model.pending.first().copied() {
                let pick = picks.next().unwrap() % model.pending.len();
                let command = model.pending.get(pick).copied().unwrap_or(command);
                // Which step it is of is told by its blocks; flushes never fail here.
                let number = if matches!(command.opcode(), 0 | 9) {
                    None
                } else {
                    let at = command.blocks().0 << shift;
                    Some(((at - GAP) % (BYTES + GAP) / (PLACE * 512)) as usize)
                };
                let fails = number.is_some_and(|number| steps[number].fails);
                if let Some(number) = number {
                    failing[number] |= fails;
                }
                // An unrecovered read error, of the media's type (2h, 81h).
                model.end(pick, if fails { 0x281 } else { 0 });
            } else if waiting.is_empty() {
                break;
            }
        }
        world.round().into_iter().for_each(|(_, completion)| {
            results[completion.token.bits() as usize] = Some(completion.result);
        });
        prop_assert!(waiting.is_empty());
        prop_assert_eq!(0, world.controller.under_way());
        let mut unknown = Vec::new();
        for (number, step) in steps.iter().enumerate() {
            let fails = failing[number];
            let result = if fails { Err(Failure::Io) } else { Ok(()) };
            prop_assert_eq!(Some(result), results[number], "{} {:?}", number, step);
            let bytes = (step.count * block) as usize;
            let at = part(step.disk).first + number as u64 * PLACE * 512 + step.first * block;
            let place = at as usize..at as usize + bytes;
            let spans = step.layout.spans(&own(number), bytes as u64);
            let mut memory = Vec::new();
            for span in &spans {
                let mut part = vec![0; span.len() as usize];
                span.read(0, &mut part).unwrap();
                memory.extend(part);
            }
            match step.ask {
                Ask::Flush => {}
                _ if fails => unknown.push(place),
                Ask::Read => prop_assert_eq!(&memory, &expected[place]),
                Ask::Write { .. } => expected[place].copy_from_slice(&memory),
                Ask::Discard => expected[place].fill(0xdd),
                Ask::Zeroes => expected[place].fill(0),
            }
        }
        let mut disk = world.model.borrow().disk.clone();
        for place in unknown {
            disk[place.clone()].fill(0);
            expected[place].fill(0);
        }
        prop_assert!(disk == expected);
    }

    /// Whatever sectors a disk is asked for, the controller is never asked outside of its part.
    #[test]
    fn no_command_leaves_the_part(
        asks in proptest::collection::vec(
            (0u8..4, 0..DISKS, prop_oneof![
                any::<u64>(), 0..BYTES / 512 + 300, (0..600u64).prop_map(|n| u64::MAX / 512 - 300 + n)
            ], 1u64..129), 1..40),
        shift in prop_oneof![Just(9u32), Just(12)],
    ) {
        let mut world = started(shift, 0, true);
        let all = world.memory.window().span(0, GUEST).unwrap();
        for (number, (kind, disk, sector, sectors)) in asks.into_iter().enumerate() {
            let spans = [all.sub(0, sectors * 512).unwrap()];
            let operation = match kind {
                0 => Operation::Read { sector, into: &spans },
                1 => Operation::Write { sector, from: &spans, durable: false },
                2 => Operation::Discard { sector, sectors },
                _ => Operation::WriteZeroes { sector, sectors, unmap: false, durable: true },
            };
            let submitted = world.controller.disk(disk as u16).submit(token(number), operation);
            let blocks = 1u64 << shift;
            let inside = sector.checked_add(sectors).is_some_and(|end| end <= BYTES / 512)
                && (sector | sectors) * 512 % blocks == 0;
            if !inside {
                prop_assert_eq!(Submitted::Done(Err(Failure::Io)), submitted);
                continue;
            }
            prop_assert_eq!(Submitted::Accepted, submitted);
            world.round();
            while world.model.borrow_mut().end(0, 0).is_some() {}
            prop_assert_eq!(1, world.round().len());
            let own = part(disk);
            for (from, to) in world.model.borrow_mut().touched.drain(..) {
                prop_assert!(own.first <= from && to <= own.first + own.bytes);
                prop_assert_eq!((from, to - from), (own.first + sector * 512, sectors * 512));
            }
        }
    }
}
