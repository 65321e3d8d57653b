//! What follows from a message: what is to be done, or what the front end is told instead.

use crate::header::{Header, Request};
use crate::memory::Region;
use crate::session::Session;
use crate::state::{Inflight, LogArea, Protocol};
use alloc::vec::Vec;

/// What follows from a message.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect<F> {
    /// Nothing.
    Nothing,
    /// A reply with this payload is due.
    Reply(Vec<u8>),
    /// The device's features were accepted; rings go on.
    Features(u64),
    /// All memory is this from now on, in the order of guest addresses.
    Memory(Vec<(Region, F)>),
    /// This memory, too.
    AddMemory(Region, F),
    /// This memory isn't used any more.
    RemoveMemory(Region),
    /// The ring's kicks come here; polled without. It may be ready now.
    Kick(u16, Option<F>),
    /// The ring's calls go here; none without.
    Call(u16, Option<F>),
    /// The ring's errors go here.
    Error(u16, Option<F>),
    /// The ring is enabled, or isn't any more.
    Enable(u16, bool),
    /// Something that a ring needs was said: it may be ready now.
    Changed(u16),
    /// Stop the ring, then reply with [`Session::base_reply`].
    Stop(u16),
    /// Reply with [`Session::config_reply`] and this part of the configuration space.
    ReadConfig {
        /// The first byte.
        offset: u32,
        /// How many, at most 256.
        size: u32,
    },
    /// Make memory for records, and reply with [`Session::inflight_reply`] and its handle.
    MakeInflight {
        /// Rings.
        rings: u16,
        /// Elements of each.
        size: u16,
    },
    /// The records are here from now on.
    SetInflight(Inflight, F),
    /// Changed pages are logged here from now on; then a reply of a word is due.
    SetLog(LogArea, F),
    /// What is logged is told here.
    LogCall(F),
    /// The network is to be told that the station of this address is here.
    Announce([u8; 6]),
    /// All rings are disabled, if protocol features are negotiated.
    DisableAll,
    /// Reset the device: all rings stop.
    Reset,
}

/// What the protocol has for a request that is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A reply with this payload.
    Reply(Vec<u8>),
    /// Nothing: the front end doesn't ask.
    Silence,
    /// The connection ends: the front end would go on as if it was done, or waits for a reply.
    End,
}

impl Session {
    /// What follows from a request that [`Self::handle`] refused: it has changed nothing. A word
    /// says so, or no bytes where some were asked for. A write of the configuration space is the
    /// guest's wish, and none that counts on it.
    pub fn refusal(&self, header: &Header) -> Refusal {
        use Request::*;
        let request = Request::of(header.request);
        match (request, self.acknowledgement(header, false)) {
            (Some(GetConfig), _) if self.protocol().contains(Protocol::CONFIG) => {
                Refusal::Reply(Vec::new())
            }
            (
                Some(
                    GetFeatures | GetProtocolFeatures | GetVringBase | GetQueueNum | GetConfig
                    | SetLogBase | GetInflightFd | GetMaxMemSlots,
                )
                | None,
                _,
            ) => Refusal::End,
            (_, Some(word)) => Refusal::Reply(word.to_vec()),
            (Some(SetConfig), None) => Refusal::Silence,
            _ => Refusal::End,
        }
    }
}
