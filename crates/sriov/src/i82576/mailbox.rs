//! What Intel's drivers of virtual functions write to the mailbox, and the answers they expect. The
//! hardware only carries the words (8.14.3); their meaning is fixed by the drivers: `igbvf` in
//! Linux.

use super::{HASHES, Mac, WORDS};
use arrayvec::ArrayVec;

/// The first word: kind of message, something that some kinds add, and what became of it.
const KIND: u32 = 0xFFFF;
const INFO: u32 = 0xFF << 16;
const CLEAR_TO_SEND: u32 = 1 << 29;
const REFUSED: u32 = 1 << 30;
const GRANTED: u32 = 1 << 31;

const RESET: u32 = 0x01;
const SET_MAC: u32 = 0x02;
const SET_MULTICAST: u32 = 0x03;
const SET_VLAN: u32 = 0x04;
const SET_LONGEST: u32 = 0x05;
/// With [`SET_MAC`]: forget all further addresses.
const FORGET_MACS: u32 = 1 << 16;

/// A message of a guest's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The function was reset: what is its address?
    Reset,
    /// It wants this address.
    SetMac(Mac),
    /// It wants no further addresses.
    ForgetMacs,
    /// It wants frames to groups with these hashes, and no others.
    SetMulticast(ArrayVec<u16, HASHES>),
    /// It wants frames with this VLAN tag, or no longer.
    SetVlan(u32),
    /// It wants frames of up to so many bytes.
    SetLongest(u32),
    /// Anything else, by its first word.
    Other(u32),
}

/// What the host writes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    first: u32,
    mac: Mac,
}

impl Request {
    /// Reads the words of a mailbox, whatever they are.
    pub fn read(words: &[u32; WORDS]) -> Self {
        let [first, second, third, ..] = *words;
        let info = first & INFO;
        match first & KIND {
            RESET => Request::Reset,
            SET_MAC if info == FORGET_MACS => Request::ForgetMacs,
            SET_MAC if info == 0 => {
                let [a, b, c, d] = second.to_le_bytes();
                let [e, f, ..] = third.to_le_bytes();
                Request::SetMac([a, b, c, d, e, f])
            }
            SET_MULTICAST => {
                let halves = words.iter().skip(1).flat_map(|w| [*w as u16, (w >> 16) as u16]);
                // Twelve bits index the filter.
                Request::SetMulticast(
                    halves.take((info >> 16) as usize).map(|h| h & 0xFFF).take(HASHES).collect(),
                )
            }
            SET_VLAN => Request::SetVlan(second & 0xFFF),
            SET_LONGEST => Request::SetLongest(second),
            _ => Request::Other(first),
        }
    }

    fn kind(&self) -> u32 {
        match self {
            Request::Reset => RESET,
            Request::SetMac(_) | Request::ForgetMacs => SET_MAC,
            Request::SetMulticast(_) => SET_MULTICAST,
            Request::SetVlan(_) => SET_VLAN,
            Request::SetLongest(_) => SET_LONGEST,
            Request::Other(first) => first & KIND,
        }
    }

    /// It is done.
    pub fn granted(&self) -> Answer {
        Answer { first: self.kind() | GRANTED | CLEAR_TO_SEND, mac: [0; 6] }
    }

    /// It isn't; `ready` says whether the function has been reset, without which nothing is.
    pub fn refused(&self, ready: bool) -> Answer {
        let clear = if ready { CLEAR_TO_SEND } else { 0 };
        Answer { first: self.kind() | REFUSED | clear, mac: [0; 6] }
    }
}

impl Answer {
    /// To a reset: the function's address. Drivers expect no "clear to send" here.
    pub const fn reset(mac: Mac) -> Self {
        Answer { first: RESET | GRANTED, mac }
    }

    /// The words to write.
    pub fn words(&self) -> [u32; 3] {
        let [a, b, c, d, e, f] = self.mac;
        [self.first, u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, 0, 0])]
    }
}
