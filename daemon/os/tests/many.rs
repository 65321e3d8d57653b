//! As many mappings as there may be: in a process of its own, which has all of them.

use daemon_os::{Mapping, survive};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::os::fd::OwnedFd;

fn memfd() -> OwnedFd {
    let fd = memfd_create("test", MemfdFlags::CLOEXEC).expect("the system has memfd");
    ftruncate(&fd, 4096).expect("it grows");
    fd
}

/// One more than all is refused in a sentence, and one that goes makes room. The last one is
/// watched as the first one is.
#[test]
fn all_front_ends_can_have_their_regions() {
    survive().expect("a handler");
    let (file, last) = (memfd(), memfd());
    let map = |file: &OwnedFd| Mapping::of_file(file, 0, 4096);
    let mut all: Vec<_> = (1..512 * 20).map(|_| map(&file).expect("it is there")).collect();
    all.push(map(&last).expect("the last one"));
    let refused = map(&file).expect_err("it is one more").to_string();
    assert_eq!(refused, "all front ends have more than 10240 regions of memory");
    assert!(Mapping::anonymous(4096).is_ok(), "what has no file isn't counted");
    ftruncate(&last, 0).expect("it shrinks");
    let shrunk = all.last().expect("the last one");
    shrunk.span().expect("all of it").write(0, &[1]).expect("inside");
    let said = all.iter().filter(|mapping| mapping.has_shrunk()).count();
    assert!(shrunk.has_shrunk() && said == 1, "{said}");
    all.truncate(10);
    assert!(map(&file).is_ok());
}
