//! Memory that shrinks, that is given up, and files on it.
use crate::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::os::fd::{AsFd as _, OwnedFd};

pub(crate) fn memfd(len: u64) -> OwnedFd {
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

/// A program may have a number of mappings, and its end would be theirs.
#[test]
fn missing_pages_are_no_mappings_more() {
    survive().expect("a handler");
    let (pages, len) = (64, 0x8_0000);
    let fd = memfd(len);
    let mapping = Mapping::of_file(&fd, 0, len).expect("it is there");
    let span = mapping.span().expect("all of it");
    ftruncate(&fd, 0).expect("it shrinks");
    for page in 0..pages {
        span.write(page * 0x2000, &[9]).expect("inside");
    }
    assert!(mapping.has_shrunk());
    assert!(has_any_shrunk(), "who serves it isn't told at once");
    let first = mapping.start().as_ptr().addr() as u64;
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the system says them");
    let of_it = maps.lines().filter(|line| {
        let (start, end) = line.split(' ').next().and_then(|it| it.split_once('-')).expect("so");
        let [start, end] = [start, end].map(|it| u64::from_str_radix(it, 16).expect("so"));
        start < first + len && end > first
    });
    assert_eq!(of_it.count(), 1);
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
    assert!(says(0x800, 0x1000).contains("doesn't begin at a page"));
    assert!(says(0, 0).contains("empty"));
    assert!(says(0, 0x2001).contains("shorter"));
    assert!(says(0x1000, u64::MAX - 0xffe).contains("a number"));
    assert!(says(u64::MAX - 0xfff, 0x1000).contains("a number"));
}

/// As the memory of libblkio's rings.
#[test]
fn the_last_page_is_mapped_whole() {
    let mapping = Mapping::of_file(memfd(0x1801), 0x1000, 0x801).expect("it is there");
    let span = mapping.span().expect("all of it");
    assert_eq!(span.len(), 0x1000);
    span.write(0x7ff, &[9, 9]).expect("inside");
    assert!(!mapping.has_shrunk());
}

/// A file of huge pages: the machine needs none free for that, nor for what is refused.
fn huge(size: MemfdFlags, page: u64) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | size;
    let fd = memfd_create("huge", flags).expect("Linux has these pages");
    ftruncate(&fd, 2 * page).expect("it grows");
    fd
}

#[test]
fn parts_of_huge_pages_are_refused() {
    let page = 2 << 20;
    let fd = huge(MemfdFlags::HUGE_2MB, page);
    for (offset, len) in [(0, 0x1000), (0, page + 0x1000), (0x1000, page)] {
        let said = Mapping::of_file(&fd, offset, len).expect_err("it isn't whole").to_string();
        assert!(said.contains("whole huge pages"), "{said}");
    }
}

#[test]
#[ignore = "a step of its own in `exitless test`: it needs a free huge page"]
fn huge_pages_are_mapped_where_they_can_lie() {
    let page = 2 << 20;
    let mapping = Mapping::of_file(huge(MemfdFlags::HUGE_2MB, page), page, page);
    let span = mapping.expect("a free page").span().expect("all of it");
    assert!((span.as_ptr().addr() as u64).is_multiple_of(page));
}

#[test]
fn large_places_begin_where_a_huge_page_can() {
    // A place for a page of 1 GiB, and its neighbour: no other one's begins within.
    let places: Vec<_> = (0..3).map(|_| Mapping::anonymous(1 << 30).expect("memory")).collect();
    for place in &places {
        assert!(place.span().expect("all").as_ptr().addr().is_multiple_of(1 << 30));
    }
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

pub(crate) fn temporary(len: u64) -> std::fs::File {
    let file = tempfile::tempfile().expect("a file");
    file.set_len(len).expect("it grows");
    file
}

/// Asks for these, and waits until all ended: the results, by the numbers from 0 on.
pub(crate) fn run(ring: &mut Uring, tasks: &[Task<'_>]) -> Vec<std::io::Result<()>> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    const LIMIT: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };
    for (number, task) in tasks.iter().enumerate() {
        ring.ask(number as u64, 0, *task);
    }
    let mut results: Vec<_> = tasks.iter().map(|_| None).collect();
    while ring.outstanding() > 0 {
        ring.push().expect("the kernel takes it");
        let mut came = false;
        while let Some((number, result)) = ring.take_ended() {
            let place = &mut results[number as usize];
            assert!(place.replace(result).is_none(), "it ends once");
            came = true;
        }
        if !came {
            let told = poll(&mut [PollFd::new(&*ring, PollFlags::IN)], Some(&LIMIT));
            assert_ne!(told, Ok(0), "nobody is told");
        }
    }
    results.into_iter().map(|result| result.expect("each ends")).collect()
}

#[test]
fn a_ring_reads_writes_punches_and_syncs() {
    let file = temporary(0x20000);
    let mut ring = Uring::new(&[file.as_fd()]).expect("io_uring");
    let memory = Mapping::anonymous(0x10000).expect("memory");
    let span = memory.span().expect("all of it");
    span.write(0, &[5; 0x3000]).expect("inside");
    let parts = [span.sub(0, 0x1200), span.sub(0x1200, 0x1e00)].map(|part| part.expect("inside"));
    let done = run(
        &mut ring,
        &[
            Task::Write { offset: 0x1000, from: &parts, durable: true },
            Task::Write { offset: 0x8000, from: &parts[..1], durable: false },
            Task::Sync,
        ],
    );
    assert!(done.iter().all(Result::is_ok), "{done:?}");
    let done = run(
        &mut ring,
        &[
            Task::Punch { offset: 0x1000, len: 0x1000, durable: true },
            Task::Zero { offset: 0x8000, len: 0x200, durable: false },
        ],
    );
    assert!(done.iter().all(Result::is_ok), "{done:?}");
    let into = [span.sub(0x4000, 0x3000), span.sub(0x8000, 0x1200)].map(|part| [part.unwrap()]);
    let done = run(
        &mut ring,
        &[
            Task::Read { offset: 0x1000, into: &into[0] },
            Task::Read { offset: 0x8000, into: &into[1] },
        ],
    );
    assert!(done.iter().all(Result::is_ok), "{done:?}");
    let mut bytes = vec![1; 0x3000];
    span.read(0x4000, &mut bytes).expect("inside");
    assert!(bytes[..0x1000].iter().all(|byte| *byte == 0));
    assert!(bytes[0x1000..].iter().all(|byte| *byte == 5));
    span.read(0x8000, &mut bytes[..0x1200]).expect("inside");
    assert!(bytes[..0x200].iter().all(|byte| *byte == 0));
    assert!(bytes[0x200..0x1200].iter().all(|byte| *byte == 5));
}

/// Many more than the ring has entries, and a read that ends beyond the file.
#[test]
fn a_ring_takes_more_than_it_has_room_for() {
    let file = temporary(0x1000);
    let mut ring = Uring::new(&[file.as_fd()]).expect("io_uring");
    let memory = Mapping::anonymous(0x10000).expect("memory");
    let one = [memory.span().and_then(|span| span.sub(0, 0x800)).expect("inside")];
    let tasks: Vec<_> = (0..2000).map(|at| Task::Read { offset: at, into: &one }).collect();
    let done = run(&mut ring, &tasks);
    assert!(done.iter().all(Result::is_ok));
    // At 0x801 it reads up to the end, goes on there, and finds nothing.
    let end = run(&mut ring, &[Task::Read { offset: 0x801, into: &one }]);
    let kind = end[0].as_ref().expect_err("it is beyond the end").kind();
    assert_eq!(kind, std::io::ErrorKind::UnexpectedEof);
}

#[test]
fn locks_exclude_writers_and_let_readers_be() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let open = || std::fs::File::options().read(true).write(true).open(file.path()).expect("there");
    let (first, second, third) = (open(), open(), open());
    assert_eq!(lock(&first, false).expect("it has locks"), None);
    assert_eq!(lock(&second, false).expect("it has locks"), None, "both read");
    assert_eq!(lock(&third, true).expect("it has locks"), Some(InUse::Excludes));
    drop((first, second));
    assert_eq!(lock(&third, true).expect("it has locks"), None);
    let fourth = open();
    assert_eq!(lock(&fourth, false).expect("it has locks"), Some(InUse::Writes));
    drop(third);
    assert_eq!(lock(&fourth, true).expect("it has locks"), None);
}

/// Memory of ever other lengths doesn't use the addresses up: each pass would take 2^40 of 2^47.
#[test]
fn addresses_are_used_again_whatever_the_lengths() {
    for pages in 0..600 {
        let file = memfd((1 << 39) + pages * 0x1000);
        let mapping = Mapping::of_file(&file, 0, (1 << 39) + pages * 0x1000);
        let mapping = mapping.expect("there are addresses");
        let start = mapping.span().expect("all of it");
        start.write(0, &[1]).expect("inside");
    }
}

#[test]
fn a_guest_has_no_more_than_two_tebibytes() {
    let region = |guest: u64| {
        let mapping = Mapping::of_file(memfd(1 << 40), 0, 1 << 40).expect("there are addresses");
        GuestRegion::from((guest << 40, mapping))
    };
    assert!(GuestMemory::new(vec![region(0), region(1)]).is_ok());
    let more = GuestMemory::new(vec![region(0), region(1), region(2)]);
    assert!(more.expect_err("it is too much").to_string().contains("2 TiB"));
}

#[test]
fn an_older_system_waits_too() {
    use rustix::event::epoll::{CreateFlags, EventData, EventFlags, add, create};
    let set = create(CreateFlags::CLOEXEC).expect("an epoll");
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).expect("one");
    add(&set, &event, EventData::new_u64(7 << 40), EventFlags::IN).expect("it is waited for");
    let began = std::time::Instant::now();
    let limit = std::time::Duration::from_nanos(1_500_001);
    assert_eq!(crate::wait_by_epoll(&set, Some(limit)).expect("it waits"), []);
    assert!(began.elapsed() >= limit);
    rustix::io::write(&event, &1u64.to_ne_bytes()).expect("there is room");
    assert_eq!(crate::wait_by_epoll(&set, None).expect("it waits"), [7 << 40]);
}
