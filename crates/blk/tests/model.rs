//! A disk in a `Vec` against the server: any requests, in any framing, on both kinds of rings, with
//! a back end that ends its operations in any order, has room for few, and fails now and then.
mod guest;
mod storage;

use blk::config::Parameters;
use blk::{Budget, Failure, PIECE_DATA, PIECE_RANGE};
use guest::{Chains, Guest, Sent, header, segment};
use proptest::prelude::*;
use storage::Storage;

/// Sectors of a request's own part of the disk: those of one round don't overlap, so that their
/// order, which isn't said, doesn't matter.
const PART: u64 = 2048;
/// Requests of a round, and so parts.
const ROUND: usize = 6;
const SECTORS: u64 = PART * ROUND as u64;

#[derive(Clone, Debug)]
enum Ask {
    Read,
    Write(u8),
    Flush,
    Discard,
    Zeroes {
        unmap: bool,
    },
    Id,
    Unknown,
    /// Beyond the end.
    Outside {
        write: bool,
    },
}

#[derive(Clone, Debug)]
struct Step {
    ask: Ask,
    sector: u64,
    sectors: u64,
    /// How long the buffers are, again and again.
    cuts: Vec<u32>,
    fails: bool,
}

fn step() -> impl Strategy<Value = Step> {
    let ask = prop_oneof![
        4 => Just(Ask::Read),
        4 => any::<u8>().prop_map(Ask::Write),
        1 => Just(Ask::Flush),
        1 => Just(Ask::Discard),
        2 => any::<bool>().prop_map(|unmap| Ask::Zeroes { unmap }),
        1 => Just(Ask::Id),
        1 => Just(Ask::Unknown),
        1 => any::<bool>().prop_map(|write| Ask::Outside { write }),
    ];
    let sectors = prop_oneof![3 => 0..17u64, 1 => 0..=PART];
    let cuts =
        proptest::collection::vec(prop_oneof![1..20u32, 512..9000u32, 9000..200_000u32], 1..4);
    (ask, sectors, 0..PART, cuts, proptest::bool::weighted(0.1)).prop_map(
        |(ask, sectors, sector, cuts, fails)| {
            let sectors = sectors.min(PART - sector);
            Step { ask, sector, sectors, cuts, fails }
        },
    )
}

/// Lengths of buffers that are `total` together, at most 60.
fn lengths(total: usize, cuts: &[u32]) -> Vec<u32> {
    let (mut left, mut lengths) = (total as u32, Vec::new());
    for cut in cuts.iter().cycle().take(59) {
        let now = left.min(*cut);
        lengths.push(now);
        left -= now;
    }
    lengths.push(left);
    lengths
}

/// What the guest is to be told, and the disk to be afterwards.
struct Expected {
    sent: Sent,
    status: u8,
    data: Option<Vec<u8>>,
    fails: bool,
    /// Writable bytes in front of the status.
    room: usize,
    /// Sectors that may be anything now.
    undefined: std::ops::Range<usize>,
}

fn content(seed: u8, bytes: u64) -> Vec<u8> {
    (0..bytes).map(|at| (at as u8).wrapping_mul(31) ^ (at >> 9) as u8 ^ seed).collect()
}

fn send(guest: &mut Guest, model: &mut [u8], part: u64, step: &Step) -> Expected {
    let sector = part * PART + step.sector;
    let bytes = step.sectors * 512;
    let place = (sector * 512) as usize..(sector * 512 + bytes) as usize;
    let mut readable = header(99, sector).to_vec();
    let kind = |kind: u32, sector| header(kind, sector).to_vec();
    let (mut writable, mut status, mut data) = (0, 0, None);
    let mut changes = false;
    match step.ask {
        Ask::Read => {
            readable = kind(0, sector);
            writable = bytes as usize;
            data = Some(model[place.clone()].to_vec());
        }
        Ask::Write(seed) => {
            readable = kind(1, sector);
            readable.extend(content(seed, bytes));
            model[place.clone()].copy_from_slice(&readable[16..]);
            changes = true;
        }
        Ask::Flush => readable = kind(4, 0),
        Ask::Discard => {
            readable = kind(11, 0);
            readable.extend(segment(sector, step.sectors as u32, 0));
            model[place.clone()].fill(0xdd);
            changes = true;
        }
        Ask::Zeroes { unmap } => {
            readable = kind(13, 0);
            readable.extend(segment(sector, step.sectors as u32, unmap.into()));
            model[place.clone()].fill(0);
            changes = true;
        }
        Ask::Id => {
            readable = kind(8, 0);
            writable = 20;
            data = Some(b"a serial of 20 bytes".to_vec());
        }
        Ask::Unknown => status = 2,
        Ask::Outside { write: false } => {
            readable = kind(0, SECTORS - step.sector.min(7));
            writable = 8 * 512;
            status = 1;
        }
        Ask::Outside { write: true } => {
            readable = kind(1, SECTORS - step.sector.min(7));
            readable.extend([1; 8 * 512]);
            status = 1;
        }
    }
    let mut rest = &readable[..];
    let mut parts = Vec::new();
    for len in lengths(readable.len(), &step.cuts) {
        let (now, then) = rest.split_at(len as usize);
        parts.push(now);
        rest = then;
    }
    let sent = guest.send(&parts, &lengths(writable + 1, &step.cuts));
    let asks = matches!(step.ask, Ask::Flush)
        || step.sectors > 0 && matches!(step.ask, Ask::Read | Ask::Write(_))
        || step.sectors > 0 && matches!(step.ask, Ask::Discard | Ask::Zeroes { .. });
    let fails = step.fails && asks;
    let undefined = if fails && changes { place } else { 0..0 };
    Expected { sent, status, data, fails, room: writable, undefined }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn the_server_is_a_disk(
        packed: bool,
        chains in prop_oneof![Just(Chains::Mixed), Just(Chains::InRing), Just(Chains::InTables)],
        room in prop_oneof![Just(0usize), 1..4usize, Just(64)],
        rounds in proptest::collection::vec(
            proptest::collection::vec((step(), any::<u16>()), ROUND), 1..5),
    ) {
        let asked = Parameters {
            capacity: SECTORS,
            discard: PART as u32,
            write_zeroes: PART as u32,
            packed: true,
            serial: *b"a serial of 20 bytes",
            ..Parameters::default()
        };
        let mut guest = Guest::new(asked, packed);
        guest.chains = chains;
        let mut disk = Storage::new(SECTORS, room);
        let mut model = disk.cache.clone();
        for round in &rounds {
            let mut expected = Vec::new();
            for (part, (step, order)) in round.iter().enumerate() {
                // The request that fails is alone, so that the failure is its own.
                if step.fails {
                    finish(&mut guest, &mut disk, &mut expected, &mut model, *order)?;
                    disk.failures.push_back(Some(Failure::Io));
                }
                expected.push(send(&mut guest, &mut model, part as u64, step));
                if step.fails {
                    finish(&mut guest, &mut disk, &mut expected, &mut model, *order)?;
                    disk.failures.clear();
                }
            }
            finish(&mut guest, &mut disk, &mut expected, &mut model, round[0].1)?;
            prop_assert!(disk.cache == model);
        }
        prop_assert!(disk.largest.0 <= PIECE_DATA.into());
        prop_assert!(disk.largest.1 <= PIECE_RANGE.into());
        prop_assert_eq!(0, guest.server.statistics().stale);
    }
}

/// Has all of it served, in an order by `order`, and compares.
fn finish(
    guest: &mut Guest,
    disk: &mut Storage,
    expected: &mut Vec<Expected>,
    model: &mut [u8],
    order: u16,
) -> Result<(), TestCaseError> {
    let mut random = u32::from(order) | 1;
    let mut turns = 0;
    while !expected.is_empty() {
        turns += 1;
        prop_assert!(turns < 10_000, "nothing ends");
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let budget = Budget { requests: 1 + (random >> 20 & 3), charge: u64::from(random >> 12) };
        let (outcome, ended) = guest.serve_some(disk, budget);
        prop_assert_eq!(Ok(()), ended, "the chains are right");
        prop_assert!(outcome.charge >= outcome.bytes && outcome.asked <= budget.requests);
        prop_assert!(outcome.bytes <= u64::from(PIECE_RANGE) + budget.charge);
        if random >> 30 == 0 || !outcome.more {
            if !disk.waiting.is_empty() {
                disk.end((random >> 8) as usize % disk.waiting.len());
            }
            guest.server.collect(disk, 2);
        }
        if random >> 29 & 3 == 0 || !outcome.more {
            guest.server.queue().expect("it was started").publish();
        }
        while let Some((sent, written)) = guest.used() {
            let at = expected.iter().position(|expected| expected.sent == sent);
            let Some(at) = at else {
                return Err(TestCaseError::fail("answered twice"));
            };
            let expected = expected.swap_remove(at);
            let status = if expected.fails { 1 } else { expected.status };
            prop_assert_eq!(status, guest.status(sent));
            match expected.data.filter(|_| status == 0) {
                Some(data) => {
                    prop_assert_eq!(data.len() as u32 + 1, written);
                    prop_assert!(data == guest.data(sent));
                }
                None => prop_assert_eq!(u32::from(expected.room == 0), written),
            }
            let place = expected.undefined;
            model[place.clone()].copy_from_slice(&disk.cache[place]);
        }
    }
    prop_assert_eq!((0, 0), (guest.server.in_flight(), guest.server.outstanding()));
    Ok(())
}
