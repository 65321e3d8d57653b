//! What is left when nobody waits for it any more: at the program's end, of a ring that was given
//! up.

use super::{done, ended, memory, next, open, read, request, serve, shake};
use crate::storage::Store;
use crate::storage::nbd::NbdStore;
use blk::{Backend as _, Failure, Operation, Submitted, Token};
use std::io::Write as _;
use std::sync::mpsc;

/// The program that comes after couldn't tell the guest that writes were lost with the server.
#[test]
fn what_was_answered_is_flushed_at_the_end() {
    let (tell, told) = mpsc::channel();
    let (_folder, _, uri) = serve(move |listener| {
        let mut socket = shake(next(&listener), false);
        while let Some((command, cookie)) = request(&mut socket) {
            tell.send(command).expect("it is heard");
            let _ = socket.write_all(&done(cookie));
        }
    });
    let mut store = Store::Nbd(Box::new(open(&uri).expect("it is there")));
    store.settle_at_end().expect("there is nothing to flush");
    let from = [memory(0x1000).sub(0, 512).expect("inside")];
    let write = Operation::Write { sector: 0, from: &from, durable: false };
    assert_eq!(store.submit(Token::from_bits(5), write), Submitted::Accepted);
    let Store::Nbd(nbd) = &mut store else { panic!("it is a server's") };
    assert_eq!(ended(nbd).result, Ok(()));
    store.settle_at_end().expect("it is flushed");
    store.settle_at_end().expect("there is nothing more");
    drop(store);
    assert_eq!(told.iter().collect::<Vec<_>>(), [1, 3]);
}

/// A ring that isn't waited for any more has its memory used by somebody else: a late answer
/// doesn't touch it, and what wasn't answered isn't asked for again.
#[test]
fn what_was_abandoned_touches_no_memory() {
    let (go, may_answer) = mpsc::channel();
    let (tell, told) = mpsc::channel();
    let (_folder, _, uri) = serve(move |listener| {
        let mut socket = shake(next(&listener), false);
        let (_, late) = request(&mut socket).expect("a read");
        (0..3).for_each(|_| assert!(request(&mut socket).is_some()));
        may_answer.recv().expect("it is told");
        socket.write_all(&[&done(late)[..], &[1; 512]].concat()).expect("it takes it");
        drop(socket);
        may_answer.recv().expect("it is told");
        let mut socket = shake(next(&listener), false);
        while let Some((command, cookie)) = request(&mut socket) {
            tell.send(command).expect("it is heard");
            let _ = socket.write_all(&[&done(cookie)[..], &[2; 512]].concat());
        }
    });
    let mut store = open(&uri).expect("it is there");
    let [given_up, other] = [5, 6].map(|ring| move |slot: u64| ring | slot << 16);
    let (own, others) = (memory(0x3000), memory(0x1000));
    let own = |page: u64| own.sub(page * 0x1000, 512).expect("inside");
    let write = |store: &mut NbdStore, number, from| {
        let operation = Operation::Write { sector: 0, from: &[from], durable: false };
        store.submit(Token::from_bits(number), operation)
    };
    assert_eq!(read(&mut store, given_up(0), &own(0)), Submitted::Accepted);
    assert_eq!(read(&mut store, given_up(1), &own(1)), Submitted::Accepted);
    assert_eq!(write(&mut store, given_up(2), own(1)), Submitted::Accepted);
    assert_eq!(read(&mut store, other(0), &others), Submitted::Accepted);
    store.push();
    store.abandon(5);
    go.send(()).expect("it waits");
    let mut results = [0; 3].map(|_| {
        let completion = ended(&mut store);
        (completion.token.bits(), completion.result)
    });
    results.sort_by_key(|(number, _)| *number);
    let lost = Err(Failure::Io);
    assert_eq!(results, [(given_up(0), Ok(())), (given_up(1), lost), (given_up(2), lost)]);
    // There is no connection now.
    assert_eq!(write(&mut store, given_up(3), own(2)), Submitted::Accepted);
    store.abandon(5);
    let completion = store.poll().expect("it ends at once");
    assert_eq!((completion.token.bits(), completion.result), (given_up(3), lost));
    go.send(()).expect("it waits");
    let completion = ended(&mut store);
    assert_eq!((completion.token.bits(), completion.result), (other(0), Ok(())));
    drop(store);
    assert_eq!(told.iter().collect::<Vec<_>>(), [0], "what was given up was asked for again");
    let mut bytes = [9; 512];
    for page in 0..3 {
        own(page).read(0, &mut bytes).expect("inside");
        assert_eq!(bytes, [0; 512], "page {page}");
    }
}
