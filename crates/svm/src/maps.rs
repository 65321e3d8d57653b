//! The permission maps, as SVM has them in memory: MSRs (APM vol. 2, 15.11) and I/O ports (15.10).
//! What is open in them is every vendor's ([`vendor::maps`]).

pub(crate) use vendor::maps::open_ports;
pub use vendor::maps::{Map, Open};

/// Bytes of an MSR permission map; it lies at a multiple of 4096.
pub const MSR_BYTES: usize = 8192;
/// Bytes of an I/O permission map; it lies at a multiple of 4096.
pub const PORT_BYTES: usize = 12288;

/// Fills an MSR permission map: what isn't in `open` exits.
pub fn fill_msrs(map: &mut [u8; MSR_BYTES], open: impl Iterator<Item = Open>) {
    map.fill(0xFF);
    for Open { msr, read, write } in open {
        if let Some(bit) = msr_bit(msr) {
            clear(map, bit, read);
            clear(map, bit + 1, write);
        }
    }
}

/// Fills an I/O permission map: all but the PM timer at `pm_timer` exits.
pub fn fill_ports(map: &mut [u8; PORT_BYTES], pm_timer: Option<u16>) {
    map.fill(0xFF);
    open_ports(pm_timer).for_each(|port| clear(map, usize::from(port), true));
}

/// The bit for reads of an MSR; that for writes follows. Registers without one exit always.
pub fn msr_bit(msr: u32) -> Option<usize> {
    Some(match msr {
        0..0x2000 => msr as usize * 2,
        0xC000_0000..0xC000_2000 => 0x800 * 8 + (msr as usize - 0xC000_0000) * 2,
        0xC001_0000..0xC001_2000 => 0x1000 * 8 + (msr as usize - 0xC001_0000) * 2,
        _ => return None,
    })
}

/// The MSR that a bit of the map is for, and whether the bit is for writes.
pub(crate) fn msr_of(bit: usize) -> (u32, bool) {
    let base = match bit / (0x800 * 8) {
        0 => 0,
        range => 0xC000_0000 + 0x1_0000 * (range as u32 - 1),
    };
    (base + (bit % (0x800 * 8) / 2) as u32, bit & 1 != 0)
}

fn clear(map: &mut [u8], bit: usize, yes: bool) {
    if let Some(byte) = map.get_mut(bit / 8).filter(|_| yes) {
        *byte &= !(1 << (bit % 8));
    }
}

#[cfg(test)]
mod tests;
