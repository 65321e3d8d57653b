//! Checksums and segments: what goes out is right as others see it.

use super::model::sum;
use super::*;
use crate::{HANG, LEAST_SEGMENT};

/// A TCP segment with so many bytes of data: behind these IP headers and a tag, if there is one. In
/// place of its checksum is the sum of its pseudo header, with this length.
fn segment(six: bool, tagged: bool, data: usize) -> (Vec<u8>, u16, u16) {
    let mut frame = vec![2; 12];
    if tagged {
        frame.extend([0x81, 0, 0x60, 7]);
    }
    frame.extend(if six { [0x86, 0xDD] } else { [8, 0] });
    let ethernet = frame.len();
    let length = (20 + data) as u16;
    if six {
        frame.extend([0x60, 0, 0, 0]);
        frame.extend(length.to_be_bytes());
        frame.extend([6, 64]);
        frame.extend((0..32).map(|i| 7 * i + 1));
    } else {
        frame.extend([0x45, 0]);
        frame.extend((length + 20).to_be_bytes());
        frame.extend([0, 1, 0, 0, 64, 6, 0xAB, 0xCD, 10, 0, 0, 1, 192, 168, 255, 2]);
    }
    let start = frame.len();
    frame.extend([0, 80, 4, 0, 0, 0, 0xFF, 0xF0, 0, 0, 0, 9, 0x50, 0x18, 1, 0, 0, 0, 0, 0]);
    let pseudo = pseudo(&frame, ethernet, six, length);
    frame[start + 16..start + 18].copy_from_slice(&sum(&pseudo).to_be_bytes());
    frame.extend((0..data).map(|i| (i / 3) as u8));
    (frame, ethernet as u16, start as u16)
}

fn pseudo(frame: &[u8], ethernet: usize, six: bool, length: u16) -> Vec<u8> {
    let addresses = if six { ethernet + 8..ethernet + 40 } else { ethernet + 12..ethernet + 20 };
    [&frame[addresses], &[0, 6], &length.to_be_bytes()].concat()
}

/// Its lengths and checksums are right.
fn check(frame: &[u8], ethernet: u16, start: u16, six: bool) {
    let (ethernet, start) = (usize::from(ethernet), usize::from(start));
    let length = (frame.len() - start) as u16;
    let at = if six { ethernet + 4 } else { ethernet + 2 };
    let said = u16::from_be_bytes([frame[at], frame[at + 1]]);
    assert_eq!(said, if six { length } else { length + 20 });
    if !six {
        assert_eq!(sum(&frame[ethernet..start]), 0xFFFF);
    }
    let pseudo = pseudo(frame, ethernet, six, length);
    assert_eq!(sum(&[&pseudo, &frame[start..]].concat()), 0xFFFF);
}

#[test]
fn checksums_are_made_by_the_controller() {
    let mut bench = Bench::running();
    for (six, tagged) in [(false, false), (false, true), (true, false), (true, true)] {
        for data in [0, 1, 500, 1400] {
            let (frame, ethernet, start) = segment(six, tagged, data);
            let task = Task::Checksum { ethernet, start, tcp: true };
            assert!(bench.send_by(0, &frame, task));
            bench.controller.flush();
            let out = bench.model().wire.pop().unwrap();
            assert_eq!(out.len(), frame.len().max(60));
            if !six {
                // Its own checksum was the guest's to make.
                assert_eq!(out[usize::from(ethernet) + 10..][..2], [0xAB, 0xCD]);
                continue;
            }
            check(&out[..frame.len()], ethernet, start, six);
        }
    }
    // A context holds for all frames that need the same.
    assert_eq!(bench.model().contexts, 4);
    assert_eq!(bench.controller.statistics().summed, 16);
}

#[test]
fn segments_are_made_by_the_controller() {
    let mut bench = Bench::running();
    for (six, tagged) in [(false, false), (false, true), (true, false), (true, true)] {
        for (data, size) in [(1461, 1440), (60_000, 1440), (65_000, LEAST_SEGMENT), (4000, 1300)] {
            let (frame, ethernet, start) = segment(six, tagged, data);
            let headers = start + 20;
            let task = Task::Segments { ethernet, start, six, headers, size };
            assert!(bench.send_by(1, &frame, task));
            bench.controller.flush();
            let out = core::mem::take(&mut bench.model().wire);
            assert_eq!(out.len(), data.div_ceil(usize::from(size)));
            out.iter().for_each(|segment| check(segment, ethernet, start, six));
            let parts = out.iter().flat_map(|segment| &segment[usize::from(headers)..]);
            assert_eq!(parts.copied().collect::<Vec<_>>(), frame[usize::from(headers)..]);
        }
    }
    let counts = bench.controller.statistics();
    assert_eq!((counts.cut, counts.summed, counts.used), (16, 0, 1 << 17));
    assert!(bench.model().by.iter().all(|queue| *queue == 1));
}

#[test]
fn what_the_controller_can_not_do_is_not_sent() {
    let mut bench = Bench::running();
    let (frame, ethernet, start) = segment(false, false, 3000);
    let cut = |ethernet, start, headers, size| Task::Segments {
        ethernet,
        start,
        six: false,
        headers,
        size,
    };
    let sum = |ethernet, start| Task::Checksum { ethernet, start, tcp: true };
    for (bytes, task) in [
        (frame.len(), Task::Nothing),
        (frame.len(), sum(ethernet, start)),
        (1000, sum(ethernet, ethernet + 19)),
        (1000, sum(128, 300)),
        (1000, sum(14, 14 + 512)),
        (34, sum(ethernet, 60)),
        (frame.len(), cut(ethernet, start, start + 20, LEAST_SEGMENT - 1)),
        (frame.len(), cut(ethernet, start, start + 20, 1500)),
        (frame.len(), cut(ethernet, start, start + 19, 1000)),
        (frame.len(), cut(ethernet, start, start + 256, 1000)),
        (frame.len(), cut(start, ethernet, start + 20, 1000)),
        (54, cut(ethernet, start, start + 20, 1000)),
    ] {
        assert!(!bench.send_by(0, &frame[..bytes], task), "{bytes} {task:?}");
    }
    bench.controller.flush();
    assert!(bench.model().wire.is_empty());
    assert_eq!(bench.controller.statistics().unsent, 12);
}

/// A frame in two parts, wherever they part.
#[test]
fn parts_are_one_frame() {
    let mut bench = Bench::running();
    let (frame, ethernet, start) = segment(false, false, 9000);
    let span = bench.own(4096, frame.len() as u64);
    span.write(0, &frame).unwrap();
    for at in [0, 1, 54, 2047, 2048, 2049, 9054] {
        let parts = [span.sub(0, at).unwrap(), span.sub(at, frame.len() as u64 - at).unwrap()];
        let size = 1446;
        let task = Task::Segments { ethernet, start, six: false, headers: start + 20, size };
        assert!(bench.controller.send(0, &parts, task));
        bench.controller.flush();
        let out = core::mem::take(&mut bench.model().wire);
        let data: Vec<u8> = out.iter().flat_map(|segment| segment[54..].to_vec()).collect();
        assert_eq!(data, frame[54..]);
    }
}

/// Long frames and short ones, in a ring that they fill again and again.
#[test]
fn a_ring_full_of_long_frames_drops_whole_ones() {
    let mut bench = Bench::running();
    let (frame, ethernet, start) = segment(false, false, 60_000);
    let task = Task::Segments { ethernet, start, six: false, headers: start + 20, size: 1460 };
    for round in 0..20 {
        // 30 entries each, and one for the context the first time.
        let sent = (0..10).filter(|_| bench.send_by(2, &frame, task)).count();
        assert_eq!(sent, 8, "round {round}");
        assert!(bench.send_by(3, &[1; 60], Task::Nothing), "another queue has room");
        assert!(bench.send_by(2, &[1; 60], Task::Nothing));
        bench.controller.flush();
        let mut model = bench.model();
        assert_eq!(model.wire.len(), 8 * 42 + 2);
        model.wire.clear();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is asked for: what is sent is whole, and nothing else is touched.
    #[test]
    fn no_task_panics(
        tasks in prop::collection::vec(
            (any::<[u16; 4]>(), any::<[bool; 3]>(), 14usize..5000, 0u32..8), 1..100),
        small: bool,
    ) {
        let mut bench = Bench::running();
        for ([ethernet, start, headers, size], [cut, six, tcp], bytes, queue) in tasks {
            let mask = if small { 0x7F } else { u16::MAX };
            let (ethernet, start, headers) = (ethernet & mask, start & mask, headers & mask);
            let task = match cut {
                true => Task::Segments { ethernet, start, six, headers, size: size & 0x7FF },
                false => Task::Checksum { ethernet, start, tcp },
            };
            if task.encoded(bytes.max(60) as u32).is_none() {
                prop_assert!(!bench.send_by(queue, &vec![1; bytes], task));
            }
        }
    }
}

/// A frame and its context take two entries, and one stays free.
#[test]
fn contexts_take_room_in_the_ring() {
    for before in 0..4 {
        let mut bench = Bench::running();
        bench.model().hung = 1;
        (0..before).for_each(|_| assert!(bench.send(&[1; 60])));
        let (mut sent, mut kinds) = (before, [false, true].into_iter().cycle());
        while let Some(six) = kinds.next()
            && let (frame, ethernet, start) = segment(six, false, 100)
            && bench.send_by(0, &frame, Task::Checksum { ethernet, start, tcp: true })
        {
            sent += 1;
            assert!(sent < ENTRIES, "there is always room");
        }
        assert_eq!(sent, before + (ENTRIES - 1 - before) / 2);
        bench.controller.flush();
        (0..sent).for_each(|_| bench.model().finish_one(0));
        assert_eq!(bench.model().wire.len(), sent as usize);
        assert_eq!(bench.model().contexts, sent - before);
    }
}

/// A reset takes the context that the controller had away.
#[test]
fn after_a_reset_contexts_are_written_anew() {
    let mut bench = Bench::running();
    let (frame, ethernet, start) = segment(false, false, 100);
    let task = Task::Checksum { ethernet, start, tcp: true };
    let mut finished = frame.clone();
    let sum = !sum(&frame[start.into()..]);
    finished[usize::from(start) + 16..][..2].copy_from_slice(&sum.to_be_bytes());
    for contexts in [1, 2] {
        bench.model().wire.clear();
        for _ in 0..2 {
            assert!(bench.send_by(0, &frame, task));
            bench.controller.flush();
        }
        assert_eq!(bench.model().contexts, contexts);
        assert_eq!(bench.model().wire, [&finished[..]; 2]);
        bench.model().hung = 1;
        assert!(bench.send(&[1; 60]));
        bench.controller.flush();
        bench.steps(HANG + 200);
        bench.model().hung = 0;
        assert_eq!(bench.controller.state(), State::Running);
        assert_eq!(bench.controller.statistics().hung, u64::from(contexts));
    }
}

/// A controller that says of frames that they are sent, which it wasn't told of.
#[test]
fn what_it_does_not_know_of_is_not_done() {
    let mut bench = Bench::running();
    let ring = BASE + QUEUES as u64 * crate::ring::BYTES;
    let mut sent = 0;
    while sent < 2 * ENTRIES && bench.send(&[1; 60]) {
        let at = ring + u64::from(sent % ENTRIES) * 16 + 8;
        bench.memory.window().span(at, 8).unwrap().store_u64(0, 1 << 32).unwrap();
        sent += 1;
    }
    assert_eq!(sent, ENTRIES - 1);
}
