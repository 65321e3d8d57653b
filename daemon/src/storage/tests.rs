//! A file as a store, by io_uring and by calls that wait, against what is in the file.
use super::file::goes_direct;
use super::{Access, FileStore, Store};
use blk::{Backend as _, Failure, Operation, Submitted, Token};
use daemon_os::Mapping;
use std::path::Path;

/// Does it, and waits for its end.
fn run(store: &mut Store, operation: Operation<'_>) -> Result<(), Failure> {
    match store.submit(Token::from_bits(7), operation) {
        Submitted::Done(result) => result,
        Submitted::Full => panic!("it has room"),
        Submitted::Accepted => loop {
            store.push();
            if let Some(ended) = store.poll() {
                assert_eq!(ended.token.bits(), 7);
                assert_eq!(store.outstanding(), 0);
                return ended.result;
            }
            store.wait();
        },
    }
}

fn both(test: fn(&mut Store, &Path)) {
    for (by_ring, page_cache) in [(true, false), (true, true), (false, false)] {
        let file = tempfile::NamedTempFile::new_in(".").expect("a file");
        file.as_file().set_len(1 << 20).expect("it grows");
        let access = Access { page_cache, ..Access::default() };
        let store = FileStore::with(file.path(), access, by_ring).expect("it opens");
        // A second descriptor is that of direct I/O, if the file can be accessed so.
        assert!(!page_cache || store.copies().expect("they are few").len() == 1);
        test(&mut Store::File(Box::new(store)), file.path());
    }
}

/// Aligned and not, so that direct I/O and the page cache take turns.
#[test]
fn what_is_written_is_in_the_file_and_is_read() {
    both(|store, path| {
        let memory = Mapping::anonymous(1 << 20).expect("memory");
        let span = memory.span().expect("all of it");
        for (turn, at) in [0, 512, 7, 4096, 0x2345].into_iter().enumerate() {
            let bytes: Vec<u8> = (0..8192).map(|byte| (byte % 251) as u8 ^ turn as u8).collect();
            let sector = 8 * turn as u64 + turn as u64 % 2;
            span.write(at, &bytes).expect("inside");
            let from = [span.sub(at, 512), span.sub(at + 512, 7680)].map(|part| part.unwrap());
            let durable = turn == 1;
            let write = Operation::Write { sector, from: &from, durable };
            assert_eq!(run(store, write), Ok(()));
            let there = std::fs::read(path).expect("it is there");
            assert_eq!(there[sector as usize * 512..][..8192], bytes);
            let into = [span.sub(0x80000 + at, 8192).expect("inside")];
            assert_eq!(run(store, Operation::Read { sector, into: &into }), Ok(()));
            let mut back = vec![0; 8192];
            into[0].read(0, &mut back).expect("inside");
            assert_eq!(back, bytes);
        }
        assert_eq!(run(store, Operation::Flush), Ok(()));
    });
}

#[test]
fn discards_and_zeroes_are_zeroes() {
    both(|store, path| {
        std::fs::write(path, vec![9; 1 << 20]).expect("it is written");
        let zeroes =
            |sector, unmap| Operation::WriteZeroes { sector, sectors: 16, unmap, durable: true };
        assert_eq!(run(store, Operation::Discard { sector: 0, sectors: 16 }), Ok(()));
        assert_eq!(run(store, zeroes(32, false)), Ok(()));
        assert_eq!(run(store, zeroes(64, true)), Ok(()));
        let there = std::fs::read(path).expect("it is there");
        for (sector, bytes) in there.chunks(512).enumerate() {
            let zero = [0..16, 32..48, 64..80].iter().any(|range| range.contains(&sector));
            assert!(bytes.iter().all(|byte| *byte == if zero { 0 } else { 9 }), "{sector}");
        }
    });
}

/// It never comes back, not even if the file grows again with zeroes.
#[test]
fn a_file_that_became_shorter_fails() {
    both(|store, path| {
        let memory = Mapping::anonymous(4096).expect("memory");
        let into = [memory.span().expect("all of it")];
        let read = |sector| Operation::Read { sector, into: &into };
        let file = std::fs::File::options().write(true).open(path).expect("it is there");
        file.set_len(8192).expect("it shrinks");
        assert_eq!(run(store, read(0)), Ok(()), "nobody knows yet");
        assert_eq!(run(store, read(64)), Err(Failure::Io));
        file.set_len(1 << 20).expect("it grows");
        assert_eq!(run(store, read(0)), Err(Failure::Io));
    });
    both(|store, path| {
        let file = std::fs::File::options().write(true).open(path).expect("it is there");
        file.set_len(8192).expect("it shrinks");
        assert_eq!(run(store, Operation::Flush), Err(Failure::Io));
    });
}

/// A page is written by one way, whatever unit the file asks for.
#[test]
fn only_whole_pages_go_around_the_page_cache() {
    let memory = Mapping::anonymous(1 << 20).expect("memory");
    let span = memory.span().expect("all of it");
    let goes = |offset, parts: &[(u64, u64)], unit| {
        let parts: Vec<_> = parts.iter().map(|(at, len)| span.sub(*at, *len).unwrap()).collect();
        goes_direct(offset, &parts, 512, unit)
    };
    assert!(goes(4096, &[(512, 8192)], 512));
    assert!(goes(4096, &[(512, 512), (8192, 3584)], 512));
    assert!(!goes(512, &[(0, 4096)], 512));
    assert!(!goes(4096, &[(0, 512)], 512));
    assert!(!goes(4096, &[(8, 4096)], 512));
    assert!(!goes(4096, &[(512, 512), (8192, 3584)], 4096));
    assert!(!goes(4096, &[(0, 4096)], 16384));
    assert!(goes(16384, &[(0, 16384)], 16384));
}

/// What isn't handed over or hasn't ended is bounded; then there is room again.
#[test]
fn a_file_is_full() {
    let file = tempfile::NamedTempFile::new_in(".").expect("a file");
    file.as_file().set_len(1 << 20).expect("it grows");
    let mut store = FileStore::with(file.path(), Access::default(), true).expect("it opens");
    let memory = Mapping::anonymous(4096).expect("memory");
    let into = [memory.span().expect("all of it")];
    let read = Operation::Read { sector: 0, into: &into };
    let mut submit = || store.submit(Token::from_bits(7), read);
    match submit() {
        Submitted::Accepted => {}
        // There is no io_uring here, so nothing is kept.
        other => return assert_eq!(other, Submitted::Done(Ok(()))),
    }
    let count = 1 + (1..10_000).take_while(|_| submit() == Submitted::Accepted).count();
    assert_eq!(count, 1024);
    assert_eq!(submit(), Submitted::Full);
    let mut store = Store::File(Box::new(store));
    let ended = loop {
        store.push();
        if let Some(ended) = store.poll() {
            break ended;
        }
        store.wait();
    };
    assert_eq!(ended.result, Ok(()));
    assert_eq!(store.submit(Token::from_bits(7), read), Submitted::Accepted);
    while store.outstanding() > 0 {
        store.push();
        store.wait();
        while store.poll().is_some() {}
    }
}
