//! The permission maps, as VMX has them in memory: MSRs (SDM vol. 3, 25.6.9) and I/O ports
//! (25.6.4). What is open in them is every vendor's ([`vendor::maps`]).

use vendor::maps::{Open, open_ports};

/// Bytes of a map of MSRs; it lies at a multiple of 4096.
pub const MSR_BYTES: usize = 4096;
/// Bytes of the two maps of ports, one behind the other; they lie at a multiple of 4096.
pub const PORT_BYTES: usize = 8192;

/// Bits of a quarter of a map of MSRs: reads below 0x2000, reads from 0xC000_0000, and the same of
/// writes.
const QUARTER: usize = MSR_BYTES * 8 / 4;
const HIGH: u32 = 0xC000_0000;

/// The bit for reads of an MSR, or for writes. Registers without one exit always.
pub fn msr_bit(msr: u32, write: bool) -> Option<usize> {
    let quarter = if write { 2 * QUARTER } else { 0 };
    Some(match msr {
        0..0x2000 => quarter + msr as usize,
        HIGH..0xC000_2000 => quarter + QUARTER + (msr - HIGH) as usize,
        _ => return None,
    })
}

/// The MSR that a bit of the map is for, and whether the bit is for writes.
pub(crate) fn msr_of(bit: usize) -> (u32, bool) {
    let base = if (bit / QUARTER).is_multiple_of(2) { 0 } else { HIGH };
    (base + (bit % QUARTER) as u32, bit / QUARTER >= 2)
}

/// The bits that are clear for this.
pub(crate) fn bits(Open { msr, read, write }: Open) -> impl Iterator<Item = usize> {
    let of = move |write| msr_bit(msr, write);
    let [read, write] = [(read, false), (write, true)].map(|(yes, w)| of(w).filter(|_| yes));
    read.into_iter().chain(write)
}

/// Fills a map of MSRs: what isn't in `open` exits.
pub fn fill_msrs(map: &mut [u8; MSR_BYTES], open: impl Iterator<Item = Open>) {
    map.fill(0xFF);
    open.flat_map(bits).for_each(|bit| clear(map, bit));
}

/// Fills the maps of ports: all but the PM timer at `pm_timer` exits.
pub fn fill_ports(map: &mut [u8; PORT_BYTES], pm_timer: Option<u16>) {
    map.fill(0xFF);
    open_ports(pm_timer).for_each(|port| clear(map, usize::from(port)));
}

fn clear(map: &mut [u8], bit: usize) {
    if let Some(byte) = map.get_mut(bit / 8) {
        *byte &= !(1 << (bit % 8));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use vendor::maps::Map;

    /// The registers of a map whose bits are clear, as the manual lays them out.
    fn told(map: &[u8; MSR_BYTES]) -> BTreeSet<(u32, bool)> {
        let mut open = BTreeSet::new();
        for (base, first, write) in
            [(0, 0, false), (0x400, HIGH, false), (0x800, 0, true), (0xC00, HIGH, true)]
        {
            for n in 0..0x2000 {
                if map[base + n / 8] >> (n % 8) & 1 == 0 {
                    open.insert((first + n as u32, write));
                }
            }
        }
        open
    }

    #[test]
    fn exactly_what_is_listed_is_open() {
        for map in Map::OF_VMX {
            for shared in [false, true] {
                let mut bytes = [0; MSR_BYTES];
                fill_msrs(&mut bytes, map.open(false, shared));
                let each = |open: Open| {
                    let [read, write] = [(open.read, false), (open.write, true)];
                    [read, write]
                        .into_iter()
                        .filter(|(yes, _)| *yes)
                        .map(move |(_, w)| (open.msr, w))
                };
                let listed: BTreeSet<_> = map.open(false, shared).flat_map(each).collect();
                assert_eq!(told(&bytes), listed, "{map:?} {shared}");
            }
        }
    }

    #[test]
    fn a_bit_is_one_registers() {
        for (msr, write) in [(0, false), (0x80B, true), (0x1FFF, false), (0xC000_1FFF, true)] {
            assert_eq!(msr_of(msr_bit(msr, write).unwrap()), (msr, write));
        }
        assert_eq!(msr_bit(0xC000_0102, false), Some(0x400 * 8 + 0x102));
        assert_eq!(msr_bit(0x80B, true), Some(0x800 * 8 + 0x80B));
        for msr in [0x2000, 0x4000_0000, 0xC000_2000, 0xC001_0000] {
            assert_eq!(msr_bit(msr, false), None);
        }
    }

    #[test]
    fn exactly_the_pm_timer_is_open() {
        let open = |pm_timer| {
            let mut map = [0; PORT_BYTES];
            fill_ports(&mut map, pm_timer);
            (0..PORT_BYTES * 8).filter(|n| map[n / 8] >> (n % 8) & 1 == 0).collect::<Vec<_>>()
        };
        assert_eq!(open(Some(0xB008)), [0xB008, 0xB009, 0xB00A, 0xB00B]);
        assert_eq!(open(None), []);
    }
}
