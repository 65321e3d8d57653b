//! Spans of memory as commands' data: PRP entries (NVM Express Base Specification 2.0, 4.1.1).
//!
//! A command's data is pages: the first from any offset that is a multiple of 4 on, all later ones
//! from their start on, all but the last to their end. So spans are *cut* wherever two of them
//! don't meet at a page's boundary. A cut must leave whole blocks on both sides: spans for which
//! there is no such way have to be copied (`bounce`).
//!
//! Guarantees: the commands' data are the spans' bytes, in order, each once, and nothing else.

use arrayvec::ArrayVec;
use window::Span;

use crate::command::Prps;

/// The size of a page: CC.MPS is 0.
pub const PAGE: u64 = 4096;
/// Bytes of a list of PRP entries, which doesn't cross a page: more than 64 KiB of data need.
pub const LIST: u64 = 256;
/// Commands that an operation becomes at most. What needs more is copied.
pub const MOST_CUTS: usize = 8;

/// The data of one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The first span of it, and the offset there.
    span: u32,
    at: u32,
    /// All its bytes: at least 1.
    pub bytes: u32,
}

/// The commands of an operation.
pub type Cuts = ArrayVec<Cut, MOST_CUTS>;

/// The one cut of this data, if it is one span and no more than `most` bytes: as nearly all is.
#[inline]
pub fn cut_one(spans: &[Span], most: u32) -> Option<Cut> {
    let [span] = spans else { return None };
    let fits = span.len() <= most.into() && span.dma().is_multiple_of(4) && !span.is_empty();
    fits.then_some(Cut { span: 0, at: 0, bytes: span.len() as u32 })
}

/// The cuts of these spans: each of whole blocks, and of at most `most` bytes, which are whole
/// blocks, too. Nothing if there are none, or too many.
pub fn cut(spans: &[Span], block: u32, most: u32) -> Option<Cuts> {
    let mut cuts = Cuts::new();
    let mut open: Option<Cut> = None;
    // Where the open cut's data ends.
    let mut end = 0;
    for (place, span) in spans.iter().enumerate().filter(|(_, span)| !span.is_empty()) {
        let (start, len) = (span.dma(), u32::try_from(span.len()).ok()?);
        if let Some(cut) = open
            && start != end
            && (start | end) % PAGE != 0
        {
            cuts.try_push(whole(cut, block)?).ok()?;
            open = None;
        }
        let mut at = 0;
        while at < len {
            let cut = match &mut open {
                Some(cut) => cut,
                None if (start + u64::from(at)).is_multiple_of(4) => {
                    open.insert(Cut { span: place as u32, at, bytes: 0 })
                }
                None => return None,
            };
            let now = (len - at).min(most - cut.bytes);
            cut.bytes += now;
            at += now;
            if cut.bytes == most {
                cuts.try_push(*cut).ok()?;
                open = None;
            }
        }
        end = start + u64::from(len);
    }
    if let Some(cut) = open {
        cuts.try_push(whole(cut, block)?).ok()?;
    }
    Some(cuts)
}

fn whole(cut: Cut, block: u32) -> Option<Cut> {
    cut.bytes.is_multiple_of(block).then_some(cut)
}

/// The PRP entries of a cut. Those of the third page on, and the second one's then, go into `list`.
/// Nothing if they don't fit there, or aren't as many as the controller takes for so many bytes,
/// which can't be for what [`cut`] gives: it would take what comes next for addresses.
#[inline]
pub fn entries(spans: &[Span], cut: &Cut, list: &Span) -> Option<Prps> {
    if let [span] = spans {
        let first = span.dma() + u64::from(cut.at);
        let next = first - first % PAGE + PAGE;
        let end = first + u64::from(cut.bytes);
        if end <= next {
            return Some(Prps { first, second: 0 });
        }
        if end <= next + PAGE {
            return Some(Prps { first, second: next });
        }
    }
    entries_otherwise(spans, cut, list)
}

#[inline(never)]
fn entries_otherwise(spans: &[Span], cut: &Cut, list: &Span) -> Option<Prps> {
    let mut prps = Prps::default();
    let (mut left, mut skip) = (u64::from(cut.bytes), u64::from(cut.at));
    let mut count = 0;
    // Where the data so far ends: from there on there is a new page's entry, or, within a page, the
    // same one goes on. The same page may come again, which takes another one.
    let mut reached = 0;
    for span in spans.get(cut.span as usize..)? {
        let mut at = span.dma() + skip;
        let end = at + (span.len() - skip).min(left);
        left -= end - at;
        skip = 0;
        while at < end {
            if (reached | at).is_multiple_of(PAGE) || count == 0 {
                match count {
                    0 => prps.first = at,
                    1 => {
                        prps.second = at;
                        list.store_u64(0, at).ok()?;
                    }
                    _ => {
                        prps.second = list.dma();
                        list.store_u64((count - 1) * 8, at).ok()?;
                    }
                }
                count += 1;
            } else if reached != at {
                return None;
            }
            at = end.min((at / PAGE + 1) * PAGE);
            reached = at;
        }
        if left == 0 {
            // What the controller goes by: the first one's offset, and the bytes.
            let taken = (prps.first % PAGE + u64::from(cut.bytes)).div_ceil(PAGE);
            return (count == taken).then_some(prps);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use window::{Memory, Window};

    /// What a controller reads of PRP entries: 4.1.1, with its own checks.
    fn data(window: &Window, prps: Prps, mut bytes: u64) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        assert_eq!(0, prps.first % 4);
        let first = bytes.min(PAGE - prps.first % PAGE);
        found.push((prps.first, first));
        bytes -= first;
        if bytes == 0 {
            assert_eq!(0, prps.second);
        } else if bytes <= PAGE {
            assert_eq!(0, prps.second % PAGE);
            found.push((prps.second, bytes));
        } else {
            let mut at = prps.second;
            assert_eq!(0, at % 8);
            assert_eq!(at / PAGE, (at + LIST - 1) / PAGE);
            while bytes > 0 {
                let page = window.span(at, 8).unwrap().load_u64(0).unwrap();
                assert_eq!(0, page % PAGE);
                found.push((page, bytes.min(PAGE)));
                bytes -= bytes.min(PAGE);
                at += 8;
            }
        }
        found
    }

    /// Each byte's address.
    fn flat(pieces: impl IntoIterator<Item = (u64, u64)>) -> Vec<u64> {
        pieces.into_iter().flat_map(|(at, len)| at..at + len).collect()
    }

    fn spans(window: &Window, of: &[(u64, u64)]) -> Vec<Span> {
        of.iter().map(|(at, len)| window.span(*at, *len).unwrap()).collect()
    }

    #[test]
    fn pages_that_meet_are_one_command() {
        let memory = Memory::new(&[(0, 1 << 20)], 0);
        let window = memory.window();
        let lengths = |of: &[(u64, u64)], most| {
            let cuts = cut(&spans(&window, of), 512, most)?;
            Some(cuts.iter().map(|cut| cut.bytes).collect::<Vec<_>>())
        };
        assert_eq!(Some(vec![4096]), lengths(&[(0x1000, 4096)], 1 << 20));
        assert_eq!(Some(vec![8192]), lengths(&[(0x1000, 4096), (0x9000, 4096)], 1 << 20));
        assert_eq!(Some(vec![1024]), lengths(&[(0x1e00, 512), (0x9000, 512)], 1 << 20));
        // What lies one after the other meets anywhere.
        assert_eq!(Some(vec![1024]), lengths(&[(0x1004, 100), (0x1068, 924)], 1 << 20));
        assert_eq!(Some(vec![512, 512]), lengths(&[(0x1000, 512), (0x9000, 512)], 1 << 20));
        assert_eq!(Some(vec![8192, 8192, 512]), lengths(&[(0x1200, 16896)], 8192));
        // No block ends where they part; no multiple of 4.
        assert_eq!(None, lengths(&[(0x1000, 256), (0x9000, 256)], 1 << 20));
        assert_eq!(None, lengths(&[(0x1002, 512)], 1 << 20));
        let scattered: Vec<_> = (0..9).map(|page| (page * 4096, 512)).collect();
        assert_eq!(None, lengths(&scattered, 1 << 20));
        assert_eq!(8, lengths(&scattered[..8], 1 << 20).unwrap().len());
    }

    /// A guest that reads into the same page again: an entry that was missing had the controller
    /// take the guest's next page for a list of entries.
    #[test]
    fn a_page_that_comes_again_has_an_entry_again() {
        let memory = Memory::new(&[(0, 1 << 20)], 0);
        let window = memory.window();
        let list = window.span((1 << 20) - LIST, LIST).unwrap();
        let twice = [(0x3000, 4096), (0x3000, 4096)];
        let thrice = [(0x3000, 4096), (0x3000, 4096), (0x5000, 4096)];
        let ends = [(0x3e00, 512), (0x3000, 4096), (0x3000, 512)];
        for of in [&twice[..], &thrice, &ends] {
            let spans = spans(&window, of);
            let cuts = cut(&spans, 512, 1 << 20).unwrap();
            let [one] = &cuts[..] else { panic!("{cuts:?}") };
            let prps = entries(&spans, one, &list).unwrap();
            let found = data(&window, prps, one.bytes.into());
            assert_eq!(flat(found), flat(of.iter().copied()), "{of:x?}");
        }
    }

    /// Where spans are parted wrongly there are entries that no controller takes as they are meant.
    #[test]
    fn data_that_no_command_can_have_has_no_entries() {
        let memory = Memory::new(&[(0, 1 << 20)], 0);
        let window = memory.window();
        let list = window.span((1 << 20) - LIST, LIST).unwrap();
        let of = |of: &[(u64, u64)]| {
            let bytes = of.iter().map(|(_, len)| *len as u32).sum();
            entries(&spans(&window, of), &Cut { span: 0, at: 0, bytes }, &list)
        };
        // Pages that end early, begin late, or both.
        assert_eq!(None, of(&[(0x3000, 4096), (0x5000, 512), (0x7000, 4096)]));
        assert_eq!(None, of(&[(0x3000, 4096), (0x5000, 4000), (0x7000, 4000)]));
        assert_eq!(None, of(&[(0x3000, 4096), (0x5200, 3584)]));
        assert_eq!(None, of(&[(0x3000, 512), (0x3000, 512)]));
        // More bytes than there are.
        let spans = spans(&window, &[(0x3000, 4096), (0x5000, 4096)]);
        assert_eq!(None, entries(&spans, &Cut { span: 0, at: 0, bytes: 12288 }, &list));
        assert_eq!(None, entries(&spans, &Cut { span: 2, at: 0, bytes: 4096 }, &list));
    }

    proptest! {
        /// What the entries say are the spans' bytes, in order, in whole blocks.
        #[test]
        fn commands_are_the_spans(
            pieces in proptest::collection::vec(
                (prop_oneof![0u64..4, 0u64..32],
                 prop_oneof![Just(0u64), (0u64..32).prop_map(|n| n * 128), 0u64..4096],
                 prop_oneof![4 => (1u64..17).prop_map(|n| n * 512), 1 => 0u64..9000]), 1..12),
            chained in proptest::collection::vec(any::<bool>(), 12),
            most in prop_oneof![Just(8192u32), Just(16384), Just(1 << 20)],
            block in prop_oneof![Just(512u32), Just(4096)],
        ) {
            let memory = Memory::new(&[(0, 1 << 20)], 0);
            let window = memory.window();
            let mut of: Vec<(u64, u64)> = Vec::new();
            for ((page, offset, len), chained) in pieces.into_iter().zip(chained) {
                let end = of.last().map(|(at, len)| at + len);
                let at = end.filter(|end| chained && *end < 900_000);
                of.push((at.unwrap_or(page * 4096 + offset), len));
            }
            let spans = spans(&window, &of);
            let total: u64 = of.iter().map(|(_, len)| len).sum();
            let Some(cuts) = cut(&spans, block, most) else { return Ok(()) };
            if total > 64 << 10 {
                return Ok(());
            }
            let mut found = Vec::new();
            let list = window.span((1 << 20) - LIST, LIST).unwrap();
            for cut in &cuts {
                prop_assert!(cut.bytes > 0 && cut.bytes <= most && cut.bytes % block == 0);
                let prps = entries(&spans, cut, &list).unwrap();
                if let Some(one) = cut_one(&spans, most) {
                    prop_assert_eq!(&[one][..], &cuts[..]);
                }
                found.extend(flat(data(&window, prps, cut.bytes.into())));
            }
            prop_assert_eq!(found, flat(of));
        }
    }
}
