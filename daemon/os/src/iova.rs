//! Addresses that a device has memory at: which of those that its IOMMU knows are free.
//!
//! Guarantees: no two that are taken overlap, each lies in one range of the IOMMU's, begins at a
//! page, and isn't below [`LOWEST`], where interrupts and what firmware reserves are.

use window::ALIGNMENT;

/// The first address that is given.
pub const LOWEST: u64 = 4 << 30;
/// What an IOMMU knows that doesn't say so: the addresses that all of them have.
const USUAL: (u64, u64) = (LOWEST, (1 << 39) - 1);
/// A large region begins where the IOMMU's large pages can: 1 GiB, 2 MiB.
const LARGE: [u64; 2] = [1 << 30, 2 << 20];

/// A capability of VFIO_IOMMU_GET_INFO: its header, the count of ranges, ranges.
const HEADER: usize = 8;
const COUNT: usize = 8;
const FIRST: usize = 16;
const RANGE: usize = 16;

/// Addresses.
#[derive(Debug)]
pub struct Addresses {
    /// First and last ones, in ascending order.
    ranges: Vec<(u64, u64)>,
    /// Starts and lengths, in ascending order.
    taken: Vec<(u64, u64)>,
}

impl Addresses {
    /// Of these ranges, by their first and last addresses; none: the usual ones.
    pub fn new(mut ranges: Vec<(u64, u64)>) -> Addresses {
        if ranges.is_empty() {
            ranges.push(USUAL);
        }
        ranges.sort_unstable();
        Addresses { ranges, taken: Vec::new() }
    }

    /// Takes so many, whole pages of them.
    pub fn take(&mut self, len: u64) -> Option<u64> {
        let align = LARGE.into_iter().find(|large| len >= *large).unwrap_or(ALIGNMENT);
        let fits = |start: u64| {
            let last = start.checked_add(len.checked_sub(1)?)?;
            let within = |(first, end): &(u64, u64)| *first <= start && last <= *end;
            let is_apart = |(at, bytes): &(u64, u64)| at + bytes <= start || last < *at;
            let is_free = self.ranges.iter().any(within) && self.taken.iter().all(is_apart);
            is_free.then_some(start)
        };
        let behind = self.taken.iter().map(|(at, bytes)| at + bytes);
        let starts = self.ranges.iter().map(|(first, _)| (*first).max(LOWEST)).chain(behind);
        let found =
            starts.filter_map(|start| fits(start.checked_next_multiple_of(align)?)).min()?;
        let place = self.taken.partition_point(|(at, _)| *at < found);
        self.taken.insert(place, (found, len));
        Some(found)
    }

    /// Gives back what begins here.
    pub fn give_back(&mut self, start: u64) {
        self.taken.retain(|(at, _)| *at != start);
    }

    /// What is taken: starts and lengths.
    pub fn taken(&self) -> &[(u64, u64)] {
        &self.taken
    }

    /// Bytes that are taken.
    pub fn bytes(&self) -> u64 {
        self.taken.iter().map(|(_, bytes)| bytes).sum()
    }
}

/// The ranges that the answer of VFIO_IOMMU_GET_INFO has, whose capabilities begin at `at`; `kind`:
/// theirs among all capabilities.
pub fn ranges(answer: &[u8], mut at: usize, kind: u16) -> Vec<(u64, u64)> {
    let bytes = |at: usize| answer.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes);
    // Each is behind the one before, or the answer is none.
    while at >= HEADER {
        let Some(header) = bytes(at) else { break };
        let (id, next) = (header as u16, (header >> 32) as usize);
        if id == kind {
            let count = bytes(at + COUNT).map_or(0, |word| word as u32 as usize);
            let range =
                |n| Some((bytes(at + FIRST + n * RANGE)?, bytes(at + FIRST + n * RANGE + 8)?));
            return (0..count).map_while(range).collect();
        }
        if next <= at {
            break;
        }
        at = next;
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn none_is_given_twice_or_outside() {
        let mut addresses = Addresses::new(vec![(0, 0xfedf_ffff), (0xfef0_0000, (1 << 33) - 1)]);
        let first = addresses.take(1 << 30);
        assert_eq!(first, Some(LOWEST));
        assert_eq!(addresses.take(ALIGNMENT), Some(LOWEST + (1 << 30)));
        // Where a page of 1 GiB can be, and no sooner.
        assert_eq!(addresses.take(1 << 30), Some(LOWEST + (2 << 30)));
        assert_eq!(addresses.take(2 << 30), None, "nothing is behind the range");
        assert_eq!(addresses.take(2 << 20), Some(LOWEST + (1 << 30) + (2 << 20)));
        assert_eq!(addresses.bytes(), (2 << 30) + (2 << 20) + ALIGNMENT);
        addresses.give_back(LOWEST);
        assert_eq!(addresses.take(1 << 30), Some(LOWEST));
        assert_eq!(addresses.taken().len(), 4);
        assert_eq!(addresses.take(0), None);
        assert_eq!(addresses.take(u64::MAX), None);
    }

    #[test]
    fn what_the_iommu_says_is_taken_as_far_as_it_is_there() {
        let mut answer = vec![0; 24];
        let capability = |id: u64, next: u64| (id | 1 << 16 | next << 32).to_ne_bytes();
        answer.extend(capability(3, 40));
        answer.extend([0; 8]);
        answer.extend(capability(1, 0));
        answer.extend(2u64.to_ne_bytes());
        for word in [0, 0xfedf_ffff, 0xfef0_0000, u64::MAX] {
            answer.extend(word.to_ne_bytes());
        }
        let both = vec![(0, 0xfedf_ffff), (0xfef0_0000, u64::MAX)];
        assert_eq!(ranges(&answer, 24, 1), both);
        assert_eq!(ranges(&answer[..80], 24, 1), both[..1]);
        assert_eq!(ranges(&answer, 24, 2), []);
        assert_eq!(ranges(&answer, 0, 1), []);
        // One that leads back to itself.
        answer[28..32].copy_from_slice(&24u32.to_ne_bytes());
        assert_eq!(ranges(&answer, 24, 1), []);
        assert_eq!(Addresses::new(Vec::new()).take(ALIGNMENT), Some(LOWEST));
    }
}
