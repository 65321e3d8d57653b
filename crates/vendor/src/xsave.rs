//! The extended state of a processor after a reset, as an XSAVE area (APM vol. 2, 11.5; what reset
//! leaves: APM vol. 2, table 14-1).

/// Bytes of the area's legacy region and header.
pub const HEADER_END: usize = 576;

const CONTROL_WORD: usize = 0;
const TAGS: usize = 4;
const MXCSR: usize = 24;
const PRESENT: usize = 512;

/// Fills the first part of an XSAVE area; what follows it doesn't matter. XRSTOR of all states from
/// it leaves the processor as a reset does: x87 control word 0x40, all registers zero and tagged
/// so, MXCSR 0x1F80, and all other states in their first configuration.
pub fn reset(area: &mut [u8; HEADER_END]) {
    area.fill(0);
    let mut put = |at: usize, bytes: &[u8]| {
        area[at..at + bytes.len()].copy_from_slice(bytes);
    };
    put(CONTROL_WORD, &0x40u16.to_le_bytes());
    // One bit for each register that isn't empty.
    put(TAGS, &[0xFF]);
    put(MXCSR, &0x1F80u32.to_le_bytes());
    // x87 state is in the area: its first configuration is that of FNINIT. MXCSR is loaded anyway.
    put(PRESENT, &1u64.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_area_says_what_the_manual_does() {
        let mut area = [0xAA; HEADER_END];
        reset(&mut area);
        assert_eq!(area[..6], [0x40, 0, 0, 0, 0xFF, 0]);
        assert_eq!(area[24..28], [0x80, 0x1F, 0, 0]);
        assert_eq!(area[512..520], [1, 0, 0, 0, 0, 0, 0, 0]);
        let set = area.iter().filter(|b| **b != 0).count();
        assert_eq!(set, 5, "all else is zero");
    }
}
