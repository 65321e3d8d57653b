//! A memory that counts its frames and panics on any use of one it hasn't lent, and an independent
//! reading of all a table maps.

use std::collections::BTreeMap;

use crate::{Access, Entry, Format, Memory, Table};

/// Physical memory of lent frames only.
#[derive(Clone, Default)]
pub struct TestMemory {
    pub frames: BTreeMap<u64, Box<[u64]>>,
    /// How many frames may still be allocated.
    pub budget: u64,
    /// All writes: address and value.
    pub log: Vec<(u64, u64)>,
    next: u64,
}

impl TestMemory {
    pub fn new() -> Self {
        Self { budget: u64::MAX, ..Self::default() }
    }
}

impl Memory for TestMemory {
    fn read(&self, pa: u64) -> u64 {
        assert_eq!(pa & 7, 0);
        self.frames[&(pa & !0xFFF)][(pa >> 3 & 0x1FF) as usize]
    }

    fn write(&mut self, pa: u64, value: u64) {
        assert_eq!(pa & 7, 0);
        self.frames.get_mut(&(pa & !0xFFF)).expect("a lent frame")[(pa >> 3 & 0x1FF) as usize] =
            value;
        self.log.push((pa, value));
    }

    /// Frame 0 first: it is a frame like any other.
    fn allocate(&mut self) -> Option<u64> {
        self.budget = self.budget.checked_sub(1)?;
        let frame = self.next;
        self.next += 0x1000;
        self.frames.insert(frame, vec![0; 512].into());
        Some(frame)
    }

    fn free(&mut self, frame: u64) {
        self.frames.remove(&frame).expect("a lent frame");
        self.budget = self.budget.saturating_add(1);
    }
}

/// Contiguous addresses mapped to contiguous memory alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub va: u64,
    pub len: u64,
    pub pa: u64,
    pub access: Access,
}

/// Joins adjacent segments where possible.
pub fn join(segments: impl IntoIterator<Item = Segment>) -> Vec<Segment> {
    let mut joined: Vec<Segment> = Vec::new();
    for next in segments {
        match joined.last_mut() {
            Some(last)
                if last.va + last.len == next.va
                    && last.pa + last.len == next.pa
                    && last.access == next.access =>
            {
                last.len += next.len;
            }
            _ => joined.push(next),
        }
    }
    joined
}

/// All that `table` maps, and the frames it consists of. No table but the root may be empty.
pub fn dump<F: Format>(table: &Table<F>, mem: &TestMemory) -> (Vec<Segment>, Vec<u64>) {
    let (mut segments, mut frames) = (Vec::new(), Vec::new());
    let levels = table.format().levels();
    visit(table.format(), mem, table.root(), levels, 0, &mut segments, &mut frames);
    if F::SIGNED {
        let bits = 12 + 9 * levels;
        for segment in &mut segments {
            if segment.va >> (bits - 1) != 0 {
                segment.va |= !0 << bits;
            }
        }
    }
    (join(segments), frames)
}

fn visit<F: Format>(
    format: &F,
    mem: &TestMemory,
    frame: u64,
    level: u32,
    base: u64,
    segments: &mut Vec<Segment>,
    frames: &mut Vec<u64>,
) {
    frames.push(frame);
    let mut used = 0;
    let size = 0x1000u64 << (9 * (level - 1));
    for (index, &word) in mem.frames[&frame].iter().enumerate() {
        let va = base + index as u64 * size;
        match format.decode(level, word) {
            Entry::Empty => {
                assert_eq!(word, 0, "an empty entry is zero");
                continue;
            }
            Entry::Leaf { pa, access } => {
                assert_eq!(pa & (size - 1), 0);
                segments.push(Segment { va, len: size, pa, access });
            }
            Entry::Table(next) => visit(format, mem, next, level - 1, va, segments, frames),
        }
        used += 1;
    }
    assert!(used > 0 || level == format.levels(), "empty table {frame:#x} at level {level}");
}
