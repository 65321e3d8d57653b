//! The parts by themselves: configuration, requests, pieces, places, the disk in memory.

use proptest::prelude::*;
use virtqueue::Chain;
use window::{Memory, Span};

use crate::backend::{Backend, Failure, Operation, Ram, Submitted, Token};
use crate::config::{BadConfig, CONFIG_BYTES, Config, Features, MAX_SEGMENTS, Parameters};
use crate::pieces::{Cursor, Piece, Work};
use crate::request::{Change, Header, Request, Rules, Status};
use crate::slots::{Job, Slots};
use crate::{PIECE_DATA, PIECE_RANGE, SECTOR};

fn parameters() -> Parameters {
    Parameters {
        capacity: 1 << 20,
        block_size: 4096,
        physical_block_exponent: 3,
        minimum_io: 8,
        optimal_io: 0x1234,
        queues: 4,
        discard: 1 << 17,
        write_zeroes: 1 << 16,
        write_zeroes_may_unmap: true,
        packed: true,
        ..Parameters::default()
    }
}

fn rules(change: impl FnOnce(&mut Parameters)) -> Rules {
    let mut asked = parameters();
    change(&mut asked);
    let config = Config::new(asked).unwrap();
    Rules::new(&config, Features::all())
}

#[test]
fn every_field_is_where_the_standard_has_it() {
    let config = Config::new(parameters()).unwrap();
    let mut expected = Vec::new();
    expected.extend((1u64 << 20).to_le_bytes()); // capacity
    expected.extend(0u32.to_le_bytes()); // size_max
    expected.extend(MAX_SEGMENTS.to_le_bytes()); // seg_max
    expected.extend(0u32.to_le_bytes()); // geometry
    expected.extend(4096u32.to_le_bytes()); // blk_size
    expected.extend([3, 0, 8, 0]); // physical_block_exp, alignment_offset, min_io_size
    expected.extend(0x1234u32.to_le_bytes()); // opt_io_size
    expected.extend([0, 0, 4, 0]); // writeback, unused0, num_queues
    for word in [1u32 << 17, 1, 8 << 3, 1 << 16, 1] {
        expected.extend(word.to_le_bytes()); // discard: most, segments, alignment; zeroes: two
    }
    expected.extend([1, 0, 0, 0]); // write_zeroes_may_unmap
    assert_eq!(expected, config.config_bytes());
    assert_eq!(0x5_3000_7644, config.features().bits());
}

#[test]
fn what_isnt_offered_has_no_field() {
    let config = Config::new(Parameters { read_only: true, queues: 1, ..parameters() }).unwrap();
    let without = Features::MQ | Features::DISCARD | Features::WRITE_ZEROES;
    assert!(!config.features().intersects(without));
    assert!(config.features().contains(Features::RO));
    assert_eq!([0; CONFIG_BYTES - 32], config.config_bytes()[32..]);
}

#[test]
fn what_cant_be_is_refused() {
    let with = |change: fn(&mut Parameters)| {
        let mut asked = parameters();
        change(&mut asked);
        Config::new(asked).map(|_| ())
    };
    assert_eq!(Ok(()), with(|_| {}));
    assert_eq!(Err(BadConfig::BlockSize), with(|p| p.block_size = 0));
    assert_eq!(Err(BadConfig::BlockSize), with(|p| p.block_size = 256));
    assert_eq!(Err(BadConfig::BlockSize), with(|p| p.block_size = 4097));
    assert_eq!(Err(BadConfig::BlockSize), with(|p| p.block_size = 2 * PIECE_DATA));
    assert_eq!(Err(BadConfig::Capacity), with(|p| p.capacity = 9));
    assert_eq!(Err(BadConfig::Capacity), with(|p| p.capacity = 1 << 55));
    assert_eq!(Err(BadConfig::Limit), with(|p| p.discard = 9));
    assert_eq!(Err(BadConfig::Limit), with(|p| p.write_zeroes = 9));
    assert_eq!(Err(BadConfig::Queues), with(|p| p.queues = 0));
    assert_eq!(Err(BadConfig::Segments), with(|p| p.segments = 0));
    assert_eq!(Err(BadConfig::Segments), with(|p| p.segments = MAX_SEGMENTS + 1));
}

fn header(kind: u32, sector: u64) -> Header {
    let mut bytes = [0xa5; 16];
    bytes[..4].copy_from_slice(&kind.to_le_bytes());
    bytes[8..].copy_from_slice(&sector.to_le_bytes());
    Header::parse(&bytes)
}

#[test]
fn a_range_ends_within_the_disk() {
    let rules = rules(|p| p.block_size = 512);
    let end = 1u64 << 20;
    let read = |sector, bytes| rules.request(header(0, sector), 0, bytes);
    assert_eq!(Ok(Request::Read { sector: end - 1 }), read(end - 1, 512));
    assert_eq!(Ok(Request::Read { sector: end }), read(end, 0));
    for (sector, bytes) in [
        (end - 1, 1024),
        (end, 512),
        (end + 1, 0),
        (u64::MAX, 512),
        (u64::MAX, 0),
        (u64::MAX - 7, 4096),
        (1 << 55, 512),
        (0, 511),
        (0, 513),
    ] {
        assert_eq!(Err(Status::IoError), read(sector, bytes), "{sector} {bytes}");
        let write = rules.request(header(1, sector), bytes, 0);
        assert_eq!(Err(Status::IoError), write, "{sector} {bytes}");
    }
}

#[test]
fn requests_are_whole_blocks() {
    let rules = rules(|_| {});
    assert_eq!(Ok(Request::Write { sector: 8 }), rules.request(header(1, 8), 4096, 0));
    assert_eq!(Err(Status::IoError), rules.request(header(1, 1), 4096, 0));
    assert_eq!(Err(Status::IoError), rules.request(header(1, 8), 512, 0));
}

#[test]
fn a_read_only_disk_isnt_written() {
    let rules = rules(|p| p.read_only = true);
    for kind in [1, 11, 13] {
        assert_eq!(Err(Status::IoError), rules.request(header(kind, 0), 16, 0));
    }
    assert_eq!(Ok(Request::Read { sector: 0 }), rules.request(header(0, 0), 0, 4096));
    assert_eq!(Ok(Request::Flush), rules.request(header(4, 0), 0, 0));
}

#[test]
fn unknown_types_are_unsupported() {
    let rules = rules(|_| {});
    for kind in (0..64).filter(|kind| ![0, 1, 4, 8, 11, 13].contains(kind)) {
        assert_eq!(Err(Status::Unsupported), rules.request(header(kind, 0), 0, 0));
    }
    assert_eq!(Err(Status::Unsupported), rules.request(header(0x8000_0000, 0), 0, 0));
}

#[test]
fn a_range_has_one_segment() {
    let rules = rules(|_| {});
    for kind in [11, 13] {
        let of = |bytes| rules.request(header(kind, 0), bytes, 0);
        assert_eq!(Ok(Request::Range { discard: kind == 11 }), of(16));
        assert_eq!(Err(Status::IoError), of(0));
        assert_eq!(Err(Status::IoError), of(15));
        assert_eq!(Err(Status::Unsupported), of(17));
        assert_eq!(Err(Status::Unsupported), of(32));
    }
}

#[test]
fn what_wasnt_negotiated_is_unsupported() {
    let config = Config::new(parameters()).unwrap();
    let rules = Rules::new(&config, Features::VERSION_1);
    for kind in [11, 13] {
        assert_eq!(Err(Status::Unsupported), rules.request(header(kind, 0), 16, 0));
    }
    // A driver that can't flush has its writes durable.
    assert!(rules.durable);
    assert!(!Rules::new(&config, Features::FLUSH).durable);
}

fn segment(sector: u64, sectors: u32, flags: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&sector.to_le_bytes());
    bytes[8..12].copy_from_slice(&sectors.to_le_bytes());
    bytes[12..].copy_from_slice(&flags.to_le_bytes());
    bytes
}

#[test]
fn flags_and_limits_of_ranges() {
    let rules = rules(|_| {});
    let discard = |range: [u8; 16]| rules.range(true, &range);
    let zeroes = |range: [u8; 16]| rules.range(false, &range);
    assert_eq!(Ok((8, 16, Change::Discard)), discard(segment(8, 16, 0)));
    assert_eq!(Err(Status::Unsupported), discard(segment(8, 16, 1)));
    let unmap = Change::Zeroes { unmap: true };
    assert_eq!(Ok((8, 16, unmap)), zeroes(segment(8, 16, 1)));
    for bit in 1..32 {
        assert_eq!(Err(Status::Unsupported), zeroes(segment(8, 16, 1 << bit)));
        assert_eq!(Err(Status::Unsupported), discard(segment(8, 16, 1 << bit)));
    }
    assert!(discard(segment(0, 1 << 17, 0)).is_ok());
    assert_eq!(Err(Status::IoError), discard(segment(0, (1 << 17) + 8, 0)));
    assert_eq!(Err(Status::IoError), zeroes(segment(0, (1 << 16) + 8, 0)));
    assert_eq!(Err(Status::IoError), discard(segment(0, u32::MAX, 0)));
    assert_eq!(Err(Status::IoError), discard(segment((1 << 20) - 8, 16, 0)));
    assert_eq!(Err(Status::IoError), discard(segment(u64::MAX - 7, 8, 0)));
    assert_eq!(Err(Status::IoError), discard(segment(8, 1, 0)));
}

#[test]
fn storage_isnt_freed_unless_that_was_said() {
    let rules = rules(|p| p.write_zeroes_may_unmap = false);
    let range = rules.range(false, &segment(0, 8, 1));
    assert_eq!(Ok((0, 8, Change::Zeroes { unmap: false })), range);
}

#[test]
fn a_range_goes_in_pieces() {
    let (chain, mut piece) = (Chain::new(), Piece::new());
    let (mut at, mut turns) = (24, 0);
    let sectors = u64::from(PIECE_RANGE) / SECTOR * 7 + 8;
    let mut work = Some(Work::Range { sector: at, sectors, change: Change::Discard });
    while let Some(now) = work {
        let next = now.next(&chain, &mut piece, false).unwrap();
        let Operation::Discard { sector, sectors } = next.operation else { panic!() };
        assert_eq!(at, sector);
        assert!(sectors > 0 && next.bytes <= PIECE_RANGE.into());
        at += sectors;
        turns += 1;
        work = next.rest;
    }
    assert_eq!((24 + sectors, 8), (at, turns));
}

#[test]
fn a_place_knows_its_own_completions() {
    let memory = Memory::new(&[(0, 4096)], 0);
    let status = memory.window().span(0, 1).unwrap();
    let job = || Job { outstanding: 1, ..Job::new(Chain::new().head(), status, 0, 0) };
    let mut slots = Slots::<2>::new();
    let next = slots.next_token(7);
    let first = slots.insert(job()).unwrap();
    let token = slots.token(7, first);
    assert_eq!(Some(token), next);
    assert_eq!(token, Token::from_bits(token.bits()));
    assert_eq!(Some(first), slots.find(token));
    slots.remove(first);
    assert_eq!(None, slots.find(token));
    let again = slots.insert(job()).unwrap();
    assert_eq!(first, again);
    assert_eq!(None, slots.find(token), "it is the request's before");
    slots.insert(job()).unwrap();
    assert_eq!((None, None), (slots.next_token(7), slots.insert(job())));
    let token = slots.token(7, again);
    slots.clear();
    assert_eq!((0, None), (slots.used(), slots.find(token)));
    assert_eq!(None, slots.find(Token::from_bits(u64::MAX)));
}

#[test]
fn a_disk_in_memory_ends() {
    let memory = Memory::new(&[(0, 8192)], 0);
    let window = memory.window();
    let disk = window.span(4096, 4096).unwrap();
    let data = window.span(0, 512).unwrap();
    let mut ram = Ram::new(disk);
    let token = Token::from_bits(0);
    let mut read = |sector| ram.submit(token, Operation::Read { sector, into: &[data] });
    assert_eq!(Submitted::Done(Ok(())), read(7));
    assert_eq!(Submitted::Done(Err(Failure::Io)), read(8));
    assert_eq!(Submitted::Done(Err(Failure::Io)), read(u64::MAX));
    let zeroes =
        |sector, sectors| Operation::WriteZeroes { sector, sectors, unmap: false, durable: false };
    disk.fill(1);
    assert_eq!(Submitted::Done(Ok(())), ram.submit(token, zeroes(7, 1)));
    assert_eq!(Submitted::Done(Err(Failure::Io)), ram.submit(token, zeroes(7, 2)));
    let mut bytes = [9; 1024];
    disk.read(3072, &mut bytes).unwrap();
    assert!(bytes[..512] == [1; 512] && bytes[512..] == [0; 512]);
}

proptest! {
    /// A read of the configuration space is the bytes there, and zeroes behind.
    #[test]
    fn configuration_is_read_anywhere(offset in 0u64..80, len in 0usize..80, far: bool) {
        let config = Config::new(parameters()).unwrap();
        let offset = if far { u64::MAX - offset } else { offset };
        let mut read = vec![0xee; len];
        config.read(offset, &mut read);
        let bytes = config.config_bytes();
        for (at, byte) in read.iter().enumerate() {
            let place = offset.checked_add(at as u64).map(|place| place as usize);
            let there = place.and_then(|place| bytes.get(place)).copied().unwrap_or(0);
            prop_assert_eq!(there, *byte);
        }
    }

    /// Pieces of any spans are the bytes in order, whole pieces but the last.
    #[test]
    fn pieces_are_the_data(
        lengths in proptest::collection::vec(0u32..70_000, 1..40),
        skip in 0u32..100_000,
        cut in 0u32..1000,
    ) {
        let total: u32 = lengths.iter().sum();
        let memory = Memory::new(&[(0, 40 * 70_000 / 4096 * 4096 + 4096)], 0);
        let window = memory.window();
        let mut at = 0;
        let spans: Vec<Span> = lengths.iter().map(|len| {
            at += u64::from(*len);
            window.span(at - u64::from(*len), u64::from(*len)).unwrap()
        }).collect();
        let left = total.saturating_sub(skip).saturating_sub(cut);
        let mut cursor = (left > 0).then(|| Cursor::new(skip, left));
        let (mut next, mut piece) = (u64::from(skip), Piece::new());
        while let Some(now) = cursor {
            let (rest, bytes) = now.advance(&spans, PIECE_DATA, &mut piece).unwrap();
            prop_assert!(bytes == u64::from(PIECE_DATA) || rest.is_none());
            prop_assert_eq!(bytes, piece.iter().map(Span::len).sum::<u64>());
            for part in &piece {
                prop_assert!(!part.is_empty());
                prop_assert_eq!(next, part.dma());
                next += part.len();
            }
            cursor = rest;
        }
        prop_assert_eq!(u64::from(skip) + u64::from(left), next);
    }

    /// A request that comes out lies in the disk.
    #[test]
    fn nothing_leaves_the_disk(
        kind in 0u32..15, sector: u64, readable in 0u64..1 << 33, writable in 0u64..1 << 33,
    ) {
        let rules = rules(|_| {});
        let sector = if kind & 1 == 0 { sector } else { sector % (2 << 20) };
        match rules.request(header(kind, sector), readable, writable) {
            Ok(Request::Read { sector }) => {
                prop_assert!(u128::from(sector) * 512 + u128::from(writable) <= 512 << 20);
            }
            Ok(Request::Write { sector }) => {
                prop_assert!(u128::from(sector) * 512 + u128::from(readable) <= 512 << 20);
            }
            _ => {}
        }
    }
}
