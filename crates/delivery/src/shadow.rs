//! The content of the shadow IDT, and which guest IDTs can have one.
//!
//! The shadow takes the place of the guest's own IDT page in the nested page tables,
//! so the IDTR keeps the guest's value and every exception and every assigned
//! interrupt finds the guest's own gate. Only vectors that the host may receive on
//! this core are hidden: same gate, P = 0 (APM vol. 2, 8.2.12: #NP with the vector in
//! its error code). A gate of a wrong type would raise #GP before P is looked at, so a
//! hidden gate always has the type of an interrupt gate.

use crate::VectorSet;

/// Bytes of a page, and of the shadow.
pub const PAGE_BYTES: usize = 4096;
/// Bytes of a gate in long mode.
pub const GATE_BYTES: usize = 16;

/// Byte of a gate that holds P, DPL and the type.
const GATE_FLAGS: usize = 5;
const PRESENT: u8 = 0x80;
const INTERRUPT_GATE: u8 = 0x0E;

/// Why an IDT can't be shadowed; the vCPU then stays in injection mode, where every
/// interrupt goes through the host as in the baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsuitable {
    /// Not in long mode: gates have another format.
    NotLongMode,
    /// The table crosses a page boundary.
    CrossesPage,
    /// The limit ends before a vector that must be hidden.
    LimitTooLow,
}

/// Can an IDT at this linear address, with this limit, be shadowed? All of it must lie
/// in one page, and its limit must cover every vector in `hidden`: beyond the limit an
/// interrupt raises the guest's own #GP.
pub fn suitable(
    long_mode: bool,
    base: u64,
    limit: u16,
    hidden: &VectorSet,
) -> Result<(), Unsuitable> {
    if !long_mode {
        return Err(Unsuitable::NotLongMode);
    }
    let offset = base as usize % PAGE_BYTES;
    if offset + limit as usize >= PAGE_BYTES {
        return Err(Unsuitable::CrossesPage);
    }
    match hidden.highest() {
        Some(v) if (v as usize + 1) * GATE_BYTES > limit as usize + 1 => {
            Err(Unsuitable::LimitTooLow)
        }
        _ => Ok(()),
    }
}

/// Fills `shadow` with the guest's page and hides `hidden`. `offset` is where in the
/// page the table starts.
pub fn build(
    guest: &[u8; PAGE_BYTES],
    offset: usize,
    hidden: &VectorSet,
    shadow: &mut [u8; PAGE_BYTES],
) {
    *shadow = *guest;
    for v in hidden.iter() {
        if let Some(flags) = shadow.get_mut(offset + v as usize * GATE_BYTES + GATE_FLAGS) {
            *flags = *flags & !(PRESENT | 0x1F) | INTERRUPT_GATE;
        }
    }
}

/// Is the gate of `vector` present in the table at `offset` of this page?
pub fn gate_present(page: &[u8; PAGE_BYTES], offset: usize, vector: u8) -> bool {
    page.get(offset + vector as usize * GATE_BYTES + GATE_FLAGS).is_some_and(|f| f & PRESENT != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_whole_tables_in_one_page_can_be_shadowed() {
        let hidden = VectorSet::of(&[0xF1]);
        assert_eq!(suitable(true, 0xFFFF_FE00_0000_0000, 0xFFF, &hidden), Ok(()));
        assert_eq!(suitable(false, 0x1000, 0xFFF, &hidden), Err(Unsuitable::NotLongMode));
        assert_eq!(suitable(true, 0x1010, 0xFFF, &hidden), Err(Unsuitable::CrossesPage));
        assert_eq!(suitable(true, 0x1000, 0xF1F, &hidden), Ok(()));
        assert_eq!(suitable(true, 0x1000, 0xF1E, &hidden), Err(Unsuitable::LimitTooLow));
        assert_eq!(suitable(true, 0x10E0, 0xF1F, &hidden), Ok(()));
        assert_eq!(suitable(true, 0x10E1, 0xF1F, &hidden), Err(Unsuitable::CrossesPage));
        assert_eq!(suitable(true, 0x1FF0, 0xFFFF, &hidden), Err(Unsuitable::CrossesPage));
    }

    #[test]
    fn a_gate_is_found_by_table_and_vector() {
        const TABLE: usize = 0x200;
        for (flags, present) in [(0x8E, true), (0x80, true), (0x0E, false), (0x7F, false)] {
            let mut page = [if present { 0x7F } else { 0xFF }; PAGE_BYTES];
            page[TABLE + 0x41 * GATE_BYTES + 5] = flags;
            assert_eq!(gate_present(&page, TABLE, 0x41), present, "{flags:#x}");
            for (table, vector) in [(TABLE, 0x40), (TABLE, 0x42), (TABLE + 1, 0x41), (0, 0x41)] {
                assert_eq!(gate_present(&page, table, vector), !present, "{table:#x}, {vector:#x}");
            }
            let last = PAGE_BYTES - GATE_BYTES;
            page[last + 5] = flags;
            assert_eq!(gate_present(&page, 0, 0xFF), present);
            assert_eq!(gate_present(&page, last, 0), present);
        }
        assert!(!gate_present(&[0xFF; PAGE_BYTES], PAGE_BYTES - GATE_BYTES, 1), "beyond the page");
    }

    proptest! {
        #[test]
        #[cfg_attr(miri, ignore = "takes minutes")]
        fn hidden_gates_fault_as_not_present_and_all_else_is_the_guests(
            bytes in proptest::collection::vec(any::<u8>(), PAGE_BYTES),
            vs in proptest::collection::vec(32u8..=255, 0..8),
            shift in 0usize..16,
        ) {
            let guest: [u8; PAGE_BYTES] = bytes.try_into().unwrap();
            let hidden = VectorSet::of(&vs);
            let offset = shift * GATE_BYTES;
            let mut shadow = [0; PAGE_BYTES];
            build(&guest, offset, &hidden, &mut shadow);
            for (i, (g, s)) in guest.iter().zip(&shadow).enumerate() {
                let flags_of = (i >= offset && (i - offset) % GATE_BYTES == GATE_FLAGS)
                    .then(|| ((i - offset) / GATE_BYTES) as u8);
                match flags_of.filter(|v| hidden.contains(*v)) {
                    Some(_) => {
                        prop_assert_eq!(s & 0x9F, INTERRUPT_GATE);
                        prop_assert_eq!(s & 0x60, g & 0x60);
                    }
                    None => prop_assert_eq!(s, g),
                }
            }
        }
    }
}
