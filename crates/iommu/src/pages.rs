//! Which of a domain's translations to forget.

/// What part of a domain's addresses to forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    /// All of them.
    All,
    /// `bytes` bytes from `address` on, and what else shares their pages.
    Bytes {
        /// First address.
        address: u64,
        /// How many bytes; none if 0.
        bytes: u64,
    },
}

/// What to ask the unit to forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    None,
    All,
    /// 2^`order` pages from `page`, a multiple of that many.
    Block {
        page: u64,
        order: u8,
    },
}

/// The smallest aligned block of pages around `range`, or all if the unit can't do so large a one.
pub fn pages(range: Range, max_order: Option<u8>) -> Pages {
    let Range::Bytes { address, bytes } = range else { return Pages::All };
    let Some(length) = bytes.checked_sub(1) else { return Pages::None };
    let (Some(last), Some(max_order)) = (address.checked_add(length), max_order) else {
        return Pages::All;
    };
    let (first, last) = (address >> 12, last >> 12);
    let order = (u64::BITS - (first ^ last).leading_zeros()) as u8;
    match order {
        order if order <= max_order.min(51) => {
            Pages::Block { page: first >> order << order, order }
        }
        _ => Pages::All,
    }
}
