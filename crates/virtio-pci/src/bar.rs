//! What lies where in the function's one BAR.

use crate::MAX_QUEUES;
use virtual_pc::msix::{pending_bytes, table_bytes};
use virtual_pc::pci::MsixLayout;

/// The index of the BAR: 32-bit memory, not prefetchable.
pub const INDEX: u8 = 0;
/// Its size in bytes.
pub const SIZE: u64 = 0x8000;
/// Bytes of each structure's page.
pub const PAGE: u64 = 0x1000;

/// The common configuration (4.1.4.3).
pub const COMMON: u64 = 0;
/// ISR status (4.1.4.5).
pub const ISR: u64 = PAGE;
/// The device configuration (4.1.4.6).
pub const DEVICE: u64 = 2 * PAGE;
/// The notification page (4.1.4.4): to be mapped writable into the guest, without traps.
pub const NOTIFY: u64 = 3 * PAGE;
/// The MSI-X table.
pub const TABLE: u64 = 4 * PAGE;
/// The pending bits of MSI-X.
pub const PENDING: u64 = 5 * PAGE;

/// Bytes of the common configuration: up to queue_device. What follows it in the standard exists
/// only with features that aren't offered.
pub const COMMON_BYTES: u32 = 0x38;
/// notify_off_multiplier: each queue has a word of the notify page.
pub const NOTIFY_MULTIPLIER: u32 = 4;

const _: () = assert!(SIZE.is_power_of_two() && PENDING + PAGE <= SIZE);
const _: () = assert!(MAX_QUEUES as u64 * NOTIFY_MULTIPLIER as u64 <= PAGE);
const _: () = assert!(table_bytes(MAX_QUEUES as u64 + 1) <= PAGE);
/// The pending bits are one word.
const _: () = assert!(pending_bytes(MAX_QUEUES as u64 + 1) == 8);

/// Where the MSI-X structures of a function with this many queues are: an entry for each queue and
/// one for changes of the configuration.
pub const fn msix(queues: u16) -> MsixLayout {
    MsixLayout {
        entries: queues + 1,
        table_bar: INDEX,
        table_offset: TABLE as u32,
        pba_bar: INDEX,
        pba_offset: PENDING as u32,
    }
}

/// What an access reaches, and the offset in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Common(u64),
    Isr(u64),
    Device(u64),
    Notify(u64),
    Table(u64),
    Pending(u64),
    Nothing,
}

impl Place {
    /// An access that runs over the end of a page reaches nothing.
    pub fn of(offset: u64, size: u8) -> Place {
        let at = offset % PAGE;
        if at + u64::from(size) > PAGE {
            return Place::Nothing;
        }
        match offset - at {
            COMMON => Place::Common(at),
            ISR => Place::Isr(at),
            DEVICE => Place::Device(at),
            NOTIFY => Place::Notify(at),
            TABLE => Place::Table(at),
            PENDING => Place::Pending(at),
            _ => Place::Nothing,
        }
    }
}
