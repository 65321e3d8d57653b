//! Memory that shrinks, that is given up, and files on it.
use crate::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::os::fd::OwnedFd;

fn memfd(len: u64) -> OwnedFd {
    let fd = memfd_create("test", MemfdFlags::CLOEXEC).expect("the system has memfd");
    ftruncate(&fd, len).expect("it grows");
    fd
}

#[test]
fn a_region_that_shrinks_becomes_zeroes_and_says_so() {
    survive().expect("a handler");
    let fd = memfd(0x4000);
    let mapping = Mapping::of_file(&fd, 0, 0x4000).expect("it is there");
    let other = Mapping::of_file(memfd(0x1000), 0, 0x1000).expect("it is there");
    let span = mapping.span().expect("all of it");
    span.write(0, &[7; 0x4000]).expect("inside");
    ftruncate(&fd, 0x1000).expect("it shrinks");
    let mut bytes = [1; 0x4000];
    span.read(0, &mut bytes).expect("inside");
    assert!(bytes[..0x1000].iter().all(|byte| *byte == 7));
    assert!(bytes[0x1000..].iter().all(|byte| *byte == 0));
    span.write(0x3000, &[9]).expect("inside");
    assert!(mapping.has_shrunk());
    assert!(!other.has_shrunk());
}

#[test]
fn a_span_outlives_its_mapping() {
    let mapping = Mapping::anonymous(0x3000).expect("memory");
    let span = mapping.span().expect("all of it");
    span.write(0, &[7; 8]).expect("inside");
    drop(mapping);
    let mut bytes = [1; 8];
    span.read(0, &mut bytes).expect("inside");
    assert_eq!(bytes, [0; 8]);
}

#[test]
fn what_cant_be_mapped_is_said() {
    let fd = memfd(0x2000);
    let says =
        |offset, len| Mapping::of_file(&fd, offset, len).expect_err("it can't be").to_string();
    assert!(says(0, 0x3000).contains("shorter"));
    assert!(says(0x800, 0x1000).contains("whole pages"));
    assert!(says(u64::MAX - 0xfff, 0x1000).contains("a number"));
}

#[test]
fn files_are_read_and_written_across_spans() {
    let fd = memfd(0x2000);
    let memory = Mapping::anonymous(0x4000).expect("memory");
    let span = memory.span().expect("all of it");
    span.write(0, &[5; 0x600]).expect("inside");
    let parts = [span.sub(0, 0x200), span.sub(0x200, 0x400)].map(|part| part.expect("inside"));
    write_at(&fd, 0x1000, &parts).expect("there is room");
    let into = [span.sub(0x2000, 0x600).expect("inside")];
    read_at(&fd, 0x1000, &into).expect("it is there");
    let mut bytes = [0; 0x600];
    span.read(0x2000, &mut bytes).expect("inside");
    assert_eq!(bytes, [5; 0x600]);
    let end = read_at(&fd, 0x1e00, &into).expect_err("it ends").kind();
    assert_eq!(end, std::io::ErrorKind::UnexpectedEof);
}
