//! The server behind a driver of the test's own, on both kinds of rings.
mod guest;
mod storage;

use blk::backend::{Null, Ram};
use blk::config::{Features, Parameters};
use blk::{Failure, PIECE_DATA, PIECE_RANGE, Server};
use guest::{Guest, IOERR, OK, SECTORS, UNSUPP, all, both, header, parameters, segment};
use storage::{Asked, Storage};

#[test]
fn what_was_written_is_read() {
    both(|mut guest| {
        let mut disk = Storage::new(SECTORS, 0);
        let data: Vec<u8> = (0..8192).map(|at| (at % 251) as u8).collect();
        let write = guest.write(8, &data);
        assert_eq!((OK, 1), guest.run(&mut disk, write));
        let read = guest.read(8, 8192);
        assert_eq!((OK, 8193), guest.run(&mut disk, read));
        assert_eq!(data, guest.data(read));
        assert_eq!(&data[..], &disk.cache[4096..12288]);
    });
}

/// The header, the data, the status: each may be cut anywhere (2.7.4, message framing).
#[test]
fn framing_is_free() {
    both(|mut guest| {
        let mut disk = Storage::new(SECTORS, 0);
        let data: Vec<u8> = (0..1024).map(|at| at as u8).collect();
        let mut all = header(1, 3).to_vec();
        all.extend(&data);
        // Cut inside of the header, between sectors, inside of a sector.
        let write = guest.send(&[&all[..5], &all[5..17], &all[17..900], &all[900..]], &[1]);
        assert_eq!((OK, 1), guest.run(&mut disk, write));
        // One readable and one writable buffer for everything.
        let read = guest.send(&[&header(0, 3)], &[1025]);
        assert_eq!((OK, 1025), guest.run(&mut disk, read));
        assert_eq!(data, guest.data(read));
        let read = guest.send(&[&header(0, 3)[..1], &header(0, 3)[1..]], &[1, 511, 300, 213]);
        assert_eq!((OK, 1025), guest.run(&mut disk, read));
        assert_eq!(data, guest.data(read));
    });
}

/// Nothing is copied on the way: the back end has the guest's own buffers, however they are cut.
#[test]
fn the_back_end_has_the_guests_buffers() {
    both(|mut guest| {
        for writable in [&[4096, 1][..], &[1024, 3072, 1], &[1024, 3073]] {
            let mut disk = Storage::new(SECTORS, 1);
            let read = guest.send(&[&header(0, 0)], writable);
            guest.serve(&mut disk).unwrap();
            let [(_, Asked::Read { into, .. })] = &disk.waiting[..] else { panic!() };
            assert_eq!(4096, into.iter().map(|span| span.len()).sum::<u64>());
            for (at, span) in into.iter().enumerate() {
                assert_eq!(guest.dma(read, at), span.dma());
            }
            disk.end_all();
            guest.server.collect(&mut disk, 1);
        }
    });
}

#[test]
fn every_status() {
    both(|mut guest| {
        let mut disk = Storage::new(SECTORS, 0);
        let range = |kind, range: [u8; 16]| [&header(kind, 0)[..], &range].concat();
        let discard = |sector, sectors, flags| range(11, segment(sector, sectors, flags));
        let zeroes = |sector, sectors, flags| range(13, segment(sector, sectors, flags));
        let mut status = |readable: &[u8], data: u32| {
            let request = guest.send(&[readable], &[data, 1]);
            guest.run(&mut disk, request)
        };
        assert_eq!((OK, 513), status(&header(0, SECTORS - 1), 512));
        assert_eq!((OK, 1), status(&header(0, 0), 0));
        assert_eq!((IOERR, 0), status(&header(0, SECTORS), 512));
        assert_eq!((IOERR, 0), status(&header(0, u64::MAX), 512));
        assert_eq!((IOERR, 0), status(&header(0, 0), 511));
        assert_eq!((IOERR, 0), status(&header(0, 0)[..15], 512));
        assert_eq!((IOERR, 0), status(&[], 512));
        assert_eq!((OK, 1), status(&header(1, 0), 0));
        assert_eq!((IOERR, 1), status(&[&header(1, SECTORS)[..], &[0; 512]].concat(), 0));
        assert_eq!((IOERR, 1), status(&[&header(1, 0)[..], &[0; 100]].concat(), 0));
        assert_eq!((OK, 1), status(&header(4, 0), 0));
        assert_eq!((OK, 1), status(&discard(0, 4096, 0), 0));
        assert_eq!((OK, 1), status(&discard(0, 0, 0), 0));
        assert_eq!((UNSUPP, 1), status(&discard(0, 8, 1), 0));
        assert_eq!((IOERR, 1), status(&discard(1, 4096, 0), 0));
        assert_eq!((IOERR, 1), status(&discard(0, 4097, 0), 0));
        assert_eq!((OK, 1), status(&zeroes(0, 8, 1), 0));
        assert_eq!((UNSUPP, 1), status(&zeroes(0, 8, 2), 0));
        assert_eq!((UNSUPP, 1), status(&[zeroes(0, 8, 0), vec![0; 16]].concat(), 0));
        assert_eq!((IOERR, 1), status(&zeroes(0, 8, 0)[..31], 0));
        for kind in [2, 3, 5, 7, 10, 14, 15, 0x8000_0000] {
            assert_eq!((UNSUPP, 0), status(&header(kind, 0), 512));
        }
        let id = guest.send(&[&header(8, 0)], &[20, 1]);
        assert_eq!((OK, 21), guest.run(&mut disk, id));
        assert_eq!(b"a serial of 20 bytes", &guest.data(id)[..]);
        let short = guest.send(&[&header(8, 0)], &[5, 1]);
        assert_eq!((OK, 6), guest.run(&mut disk, short));
        assert_eq!(b"a ser", &guest.data(short)[..]);
        // A flush may come with data, which is nobody's.
        let flush = guest.send(&[&header(4, 0)], &[512, 1]);
        assert_eq!((OK, 0), guest.run(&mut disk, flush));
        let long = guest.send(&[&header(8, 0)], &[30, 1]);
        assert_eq!((OK, 20), guest.run(&mut disk, long));
    });
}

#[test]
fn a_read_only_disk_keeps_its_content() {
    all(Parameters { read_only: true, ..parameters() }, |mut guest| {
        let mut disk = Storage::new(SECTORS, 0);
        disk.cache.fill(7);
        for _ in 0..2 {
            let write = guest.write(0, &[1; 512]);
            assert_eq!((IOERR, 1), guest.run(&mut disk, write));
        }
        for kind in [11, 13] {
            let change = guest.send(&[&header(kind, 0), &segment(0, 8, 0)], &[1]);
            assert_eq!((IOERR, 1), guest.run(&mut disk, change));
        }
        assert!(disk.asked.is_empty() && disk.cache.iter().all(|byte| *byte == 7));
    });
}

#[test]
fn failures_of_the_back_end_are_told() {
    both(|mut guest| {
        for room in [0, 4] {
            let mut disk = Storage::new(SECTORS, room);
            for (failure, status) in [(Failure::Io, IOERR), (Failure::Unsupported, UNSUPP)] {
                for kind in [0, 1, 4, 11, 13] {
                    let request = match kind {
                        0 => guest.read(0, 512),
                        1 => guest.write(0, &[1; 512]),
                        4 => guest.send(&[&header(4, 0)], &[1]),
                        _ => guest.send(&[&header(kind, 0), &segment(0, 8, 0)], &[1]),
                    };
                    disk.failures.push_back(Some(failure));
                    let answer = guest.run_until(&mut disk, request, Storage::end_all);
                    assert_eq!((status, (kind != 0).into()), answer, "{kind}");
                }
            }
        }
    });
}

/// The rest of a request that failed isn't asked for, and it is answered after its last operation.
#[test]
fn a_failed_piece_ends_its_request() {
    both(|mut guest| {
        let mut disk = Storage::new(SECTORS, 8);
        let request = guest.read(0, 8 * PIECE_DATA);
        for _ in 0..2 {
            guest.serve(&mut disk).unwrap();
        }
        disk.failures.push_back(Some(Failure::Io));
        disk.end(0);
        assert_eq!(0, guest.server.collect(&mut disk, 10));
        let outcome = guest.serve(&mut disk).unwrap();
        assert_eq!((0, 0), (outcome.bytes, outcome.completed), "one is still under way");
        assert_eq!((1, 2), (guest.server.in_flight(), disk.asked.len()));
        disk.end(0);
        assert_eq!(1, guest.server.collect(&mut disk, 10));
        guest.server.queue().unwrap().publish();
        let (id, written) = guest.used().unwrap();
        assert_eq!((request, 0, IOERR), (id, written, guest.status(request)));
        assert_eq!(0, guest.server.in_flight());
    });
}

/// ELVIS decides after each piece: a huge request is many turns, and others have theirs between.
#[test]
fn a_large_discard_takes_many_turns() {
    let asked = Parameters { capacity: 1 << 20, discard: 1 << 17, ..parameters() };
    for packed in [false, true] {
        let mut guest = Guest::new(asked, packed);
        let mut other = Guest::new(asked, packed);
        let mut disk = Null;
        // 64 MiB.
        let large = guest.send(&[&header(11, 0), &segment(8, 1 << 17, 0)], &[1]);
        let mut turns = 0;
        loop {
            let outcome = guest.serve(&mut disk).unwrap();
            turns += 1;
            assert_eq!(u64::from(PIECE_RANGE), outcome.bytes);
            assert_eq!(outcome.bytes, outcome.charge);
            assert!(outcome.more);
            let small = other.read(0, 4096);
            assert_eq!((OK, 4097), other.run(&mut disk, small));
            if outcome.completed == 1 {
                break;
            }
        }
        assert_eq!((64 << 20) / u64::from(PIECE_RANGE), turns);
        guest.server.queue().unwrap().publish();
        assert_eq!(Some((large, 1)), guest.used());
        assert_eq!(64 << 20, guest.server.statistics().touched);
    }
}

#[test]
fn a_large_read_goes_in_pieces_that_end_in_any_order() {
    both(|mut guest| {
        let mut disk = Storage::new(SECTORS, 64);
        for (at, byte) in disk.cache.iter_mut().enumerate() {
            *byte = (at / 512 % 253) as u8;
        }
        let bytes = 5 * PIECE_DATA + 512;
        let request = guest.read(16, bytes);
        let mut moved = 0;
        for turn in 0..6 {
            let outcome = guest.serve(&mut disk).unwrap();
            assert_eq!((0, true), (outcome.completed, outcome.more), "{turn}");
            moved += outcome.bytes;
        }
        assert_eq!(u64::from(bytes), moved);
        assert!(!guest.serve(&mut disk).unwrap().more);
        assert_eq!((1, 6), (guest.server.in_flight(), guest.server.outstanding()));
        for left in (0..6).rev() {
            disk.end(left / 2);
            assert_eq!(u32::from(left == 0), guest.server.collect(&mut disk, 10));
        }
        guest.server.queue().unwrap().publish();
        assert_eq!(Some((request, bytes + 1)), guest.used());
        assert_eq!(disk.cache[8192..][..bytes as usize], guest.data(request));
        assert!(disk.largest.0 <= PIECE_DATA.into());
    });
}

#[test]
fn a_full_back_end_is_asked_again() {
    both(|mut guest| {
        let mut disk = Storage::new(SECTORS, 1);
        let first = guest.write(0, &vec![1; 2 * PIECE_DATA as usize]);
        assert!(!guest.serve(&mut disk).unwrap().full);
        for _ in 0..3 {
            let outcome = guest.serve(&mut disk).unwrap();
            assert_eq!((0, 0, true), (outcome.bytes, outcome.charge, outcome.full));
            assert!(!outcome.more);
        }
        disk.end(0);
        assert_eq!(0, guest.server.collect(&mut disk, 1));
        assert_eq!(u64::from(PIECE_DATA), guest.serve(&mut disk).unwrap().bytes);
        disk.end(0);
        assert_eq!(1, guest.server.collect(&mut disk, 1));
        guest.server.queue().unwrap().publish();
        assert_eq!(Some((first, 1)), guest.used());
        assert!(disk.cache[..2 * PIECE_DATA as usize].iter().all(|byte| *byte == 1));
    });
}

#[test]
fn no_more_than_its_places_are_in_flight() {
    both(|mut guest| {
        let mut disk = Storage::new(SECTORS, 64);
        for sector in 0..20 {
            guest.read(sector, 512);
        }
        let places = guest::PLACES as u16;
        for _ in 0..places {
            assert!(guest.serve(&mut disk).unwrap().more);
        }
        let outcome = guest.serve(&mut disk).unwrap();
        assert!(outcome.full && !outcome.more);
        assert_eq!(places, guest.server.in_flight());
        disk.end(3);
        assert_eq!(1, guest.server.collect(&mut disk, 10));
        assert_eq!(places - 1, guest.server.in_flight());
        assert!(guest.serve(&mut disk).unwrap().more);
    });
}

/// A flush is the back end's, asked for after what was completed before, confirmed after it.
#[test]
fn a_flush_waits_for_the_back_end() {
    both(|mut guest| {
        let mut disk = Storage::new(SECTORS, 8);
        let write = guest.write(0, &[5; 512]);
        guest.serve(&mut disk).unwrap();
        disk.end_all();
        guest.server.collect(&mut disk, 10);
        guest.server.queue().unwrap().publish();
        assert_eq!(Some((write, 1)), guest.used());
        assert!(disk.durable[..512] == [0; 512], "the cache has it alone");
        let flush = guest.send(&[&header(4, 0)], &[1]);
        assert_eq!(0, guest.serve(&mut disk).unwrap().completed);
        assert!(matches!(disk.waiting[..], [(_, Asked::Flush)]));
        guest.server.queue().unwrap().publish();
        assert_eq!(None, guest.used());
        disk.end_all();
        guest.server.collect(&mut disk, 10);
        guest.server.queue().unwrap().publish();
        assert_eq!(Some((flush, 1)), guest.used());
        assert!(disk.durable[..512] == [5; 512]);
    });
}

/// 5.2.6.2, case 1: the driver can't flush, so a write is completed when it is stable.
#[test]
fn without_flush_writes_are_durable() {
    both(|mut guest| {
        let mut disk = Storage::new(SECTORS, 0);
        guest.accepted = Features::VERSION_1 | Features::WRITE_ZEROES;
        guest.reset();
        let write = guest.write(0, &vec![5; PIECE_DATA as usize * 2]);
        assert_eq!((OK, 1), guest.run(&mut disk, write));
        let zeroes = guest.send(&[&header(13, 0), &segment(0, 8, 0)], &[1]);
        assert_eq!((OK, 1), guest.run(&mut disk, zeroes));
        assert_eq!(disk.cache, disk.durable);
        assert_eq!(5, disk.durable[4096]);
    });
}

/// What a limit of requests counts: each request with its first piece, though no turn answers it
/// and the driver may reset before it is asked for whole.
#[test]
fn each_request_is_asked_for_once() {
    both(|mut guest| {
        let mut disk = Storage::new(SECTORS, 2);
        guest.write(0, &vec![1; 2 * PIECE_DATA as usize]);
        guest.read(0, 512);
        guest.send(&[&header(99, 0)], &[1]);
        let (mut turns, mut answered) = (Vec::new(), 0);
        for _ in 0..8 {
            let outcome = guest.serve(&mut disk).unwrap();
            if outcome.charge > 0 {
                turns.push((outcome.asked, outcome.completed));
            } else {
                disk.end_all();
                answered += guest.server.collect(&mut disk, 10);
            }
        }
        assert_eq!(([(1, 0), (0, 0), (1, 0), (1, 1)].as_slice(), 2), (&turns[..], answered));
    });
}

#[test]
fn statistics_add_up() {
    both(|mut guest| {
        let mut disk = Storage::new(SECTORS, 0);
        let requests = [
            guest.read(0, 1024),
            guest.write(0, &[0; 512]),
            guest.send(&[&header(4, 0)], &[1]),
            guest.send(&[&header(13, 0), &segment(0, 8, 0)], &[1]),
            // It isn't known, which is no I/O error; what lies behind the disk's end is one.
            guest.send(&[&header(99, 0)], &[1]),
            guest.read(SECTORS, 512),
        ];
        for request in requests {
            guest.run(&mut disk, request);
        }
        let statistics = blk::Statistics {
            requests: 6,
            failed: 1,
            flushes: 1,
            read: 1024,
            written: 512,
            touched: 4096,
            stale: 0,
        };
        assert_eq!(&statistics, guest.server.statistics());
    });
}

/// The guest's memory is the disk's, too: nothing is copied in between.
#[test]
fn a_disk_in_memory_is_read_and_written() {
    both(|mut guest| {
        let memory = window::Memory::new(&[(0, SECTORS * 512)], 0);
        let disk = memory.window().span(0, SECTORS * 512).unwrap();
        let mut ram = Ram::new(disk);
        let data: Vec<u8> = (0..3 * PIECE_DATA).map(|at| (at / 7) as u8).collect();
        let write = guest.write(9, &data);
        assert_eq!((OK, 1), guest.run(&mut ram, write));
        let read = guest.read(9, data.len() as u32);
        assert_eq!((OK, data.len() as u32 + 1), guest.run(&mut ram, read));
        assert_eq!(data, guest.data(read));
    });
}

/// The image has one for each queue.
#[test]
fn a_server_is_small() {
    let bytes = size_of::<Server<256>>();
    assert!(bytes < 32 << 10, "{bytes}");
}
