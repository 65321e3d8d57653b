//! Commands of the control queue (5.1.6.5): class, command and data, then an answer of one byte.
use crate::Mac;
use crate::config::Features;
use crate::filter::{Addresses, Mode, TABLE};
use virtqueue::Chain;

/// The answers: VIRTIO_NET_OK and VIRTIO_NET_ERR.
pub const OK: u8 = 0;
/// The command failed, or there is none such.
pub const ERR: u8 = 1;

/// Classes.
const RX: u8 = 0;
const MAC: u8 = 1;
const VLAN: u8 = 2;
const ANNOUNCE: u8 = 3;
const MQ: u8 = 4;
/// Bytes of class and command.
const COMMAND_BYTES: u32 = 2;

/// What a driver asks for.
#[allow(clippy::large_enum_variant, reason = "there is one at a time, and no heap")]
#[derive(Clone, Debug)]
pub enum Command {
    /// VIRTIO_NET_CTRL_RX: a mode is switched.
    Mode(Mode, bool),
    /// VIRTIO_NET_CTRL_MAC_TABLE_SET: of stations, of groups.
    Tables(Addresses, Addresses),
    /// VIRTIO_NET_CTRL_MAC_ADDR_SET.
    Address(Mac),
    /// VIRTIO_NET_CTRL_VLAN_ADD and DEL.
    Vlan(u16, bool),
    /// VIRTIO_NET_CTRL_ANNOUNCE_ACK: it has announced itself.
    Announced,
    /// VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET.
    Pairs(u16),
}

impl Command {
    /// The command in the readable buffers of a chain. Each byte is read once. None if it is no
    /// command, or one of a feature that wasn't accepted.
    pub fn read(chain: &Chain, accepted: Features) -> Option<Command> {
        let [class, command] = bytes(chain, 0)?;
        let only = |feature| accepted.contains(feature).then_some(());
        let data = COMMAND_BYTES;
        match (class, command) {
            (RX, 0..=5) => {
                only(if command < 2 { Features::CTRL_RX } else { Features::CTRL_RX_EXTRA })?;
                let mode = match command {
                    0 => Mode::Promiscuous,
                    1 => Mode::AllMulticast,
                    2 => Mode::AllUnicast,
                    3 => Mode::NoMulticast,
                    4 => Mode::NoUnicast,
                    _ => Mode::NoBroadcast,
                };
                let [on] = bytes(chain, data)?;
                Some(Command::Mode(mode, on != 0))
            }
            (MAC, 0) => {
                only(Features::CTRL_RX)?;
                let (unicast, next) = addresses(chain, data)?;
                let (multicast, _) = addresses(chain, next)?;
                Some(Command::Tables(unicast, multicast))
            }
            (MAC, 1) => {
                only(Features::CTRL_MAC_ADDR)?;
                bytes(chain, data).map(|bytes| Command::Address(Mac(bytes)))
            }
            (VLAN, 0 | 1) => {
                only(Features::CTRL_VLAN)?;
                let vlan = u16::from_le_bytes(bytes(chain, data)?);
                Some(Command::Vlan(vlan, command == 0))
            }
            (ANNOUNCE, 0) => {
                only(Features::GUEST_ANNOUNCE)?;
                Some(Command::Announced)
            }
            (MQ, 0) => {
                only(Features::MQ)?;
                Some(Command::Pairs(u16::from_le_bytes(bytes(chain, data)?)))
            }
            _ => None,
        }
    }
}

/// So many bytes at this offset.
fn bytes<const N: usize>(chain: &Chain, at: u32) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    chain.read(at, &mut bytes).ok()?;
    Some(bytes)
}

/// The table at this offset, and where it ends: a number of entries, and the entries. No more than
/// [`TABLE`] are read.
fn addresses(chain: &Chain, at: u32) -> Option<(Addresses, u32)> {
    let count = u32::from_le_bytes(bytes(chain, at)?);
    let start = at.checked_add(4)?;
    let end = count.checked_mul(6).and_then(|bytes| start.checked_add(bytes))?;
    if end > chain.readable_len() {
        return None;
    }
    let mut table = Addresses::default();
    let mut entries = [[0; 6]; TABLE];
    let entries = entries.get_mut(..(count as usize).min(TABLE))?;
    // At once: each look for a place goes over the chain's spans.
    chain.read(start, entries.as_flattened_mut()).ok()?;
    entries.iter().for_each(|entry| table.push(Mac(*entry)));
    if count > TABLE as u32 {
        table.overflow();
    }
    Some((table, end))
}
