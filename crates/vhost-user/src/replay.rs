//! A session as messages: what a front end might have said to be where it is. So another program
//! goes on with a connection, and checks all of it as if a front end said it.

use crate::header::Request;
use crate::session::Session;
use crate::state::{Addresses, Inflight, LogArea, Protocol};
use alloc::vec::Vec;

/// In the word of KICK and CALL: no descriptor comes along.
const NO_HANDLE: u64 = 1 << 8;

/// A descriptor that comes along with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handle {
    /// Of the region that begins at this guest-physical address.
    Memory(u64),
    /// Of the records in flight.
    Inflight,
    /// Of the log of changed pages.
    Log,
    /// Of a ring's kicks.
    Kick(u16),
    /// Of a ring's calls.
    Call(u16),
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// Which.
    pub request: Request,
    /// Its payload.
    pub payload: Vec<u8>,
    /// What comes along, in this order.
    pub handles: Vec<Handle>,
}

/// What a session doesn't know of itself.
pub trait Holder {
    /// The records in flight, if there are any.
    fn inflight(&self) -> Option<Inflight>;
    /// The log of changed pages, if there is one.
    fn log(&self) -> Option<LogArea>;
    /// Is there such a descriptor?
    fn has(&self, handle: Handle) -> bool;
    /// Where a ring is to begin, as SET_VRING_BASE says it; None: as the front end said.
    fn base(&self, ring: u16) -> Option<u32>;
}

impl Session {
    /// Messages that lead a new session to where this one is. Rings are ready at the last ones.
    pub fn said(&self, holder: &impl Holder) -> Vec<Said> {
        let say = |request, payload: Vec<u8>| Said { request, payload, handles: Vec::new() };
        let word = |word: u64| word.to_le_bytes().to_vec();
        let pair = |a: u32, b: u32| [a.to_le_bytes(), b.to_le_bytes()].concat();
        let mut said = Vec::from([
            say(Request::SetFeatures, word(self.features())),
            say(Request::SetProtocolFeatures, word(self.protocol().bits())),
        ]);
        if !self.regions().is_empty() {
            let mut payload = pair(self.regions().len() as u32, 0);
            for region in self.regions() {
                for number in [region.guest, region.len, region.user, region.offset] {
                    payload.extend(number.to_le_bytes());
                }
            }
            let handles = self.regions().iter().map(|region| Handle::Memory(region.guest));
            said.push(Said { handles: handles.collect(), ..say(Request::SetMemTable, payload) });
        }
        let keeps = self.protocol().contains(Protocol::INFLIGHT_SHMFD);
        if let Some(kept) = holder.inflight().filter(|_| keeps) {
            let Inflight { len, offset, rings, size } = kept;
            let mut payload = [len.to_le_bytes(), offset.to_le_bytes()].concat();
            payload.extend([rings.to_le_bytes(), size.to_le_bytes()].concat());
            let handles = Vec::from([Handle::Inflight]);
            said.push(Said { handles, ..say(Request::SetInflightFd, payload) });
        }
        let logs = self.protocol().contains(Protocol::LOG_SHMFD);
        if let Some(LogArea { len, offset }) = holder.log().filter(|_| logs) {
            let payload = [len.to_le_bytes(), offset.to_le_bytes()].concat();
            let handles = Vec::from([Handle::Log]);
            said.push(Said { handles, ..say(Request::SetLogBase, payload) });
        }
        let mut index = 0;
        while let Some(ring) = self.ring(index) {
            let at = u32::from(index);
            if ring.size > 0 {
                said.push(say(Request::SetVringNum, pair(at, ring.size.into())));
            }
            let base = holder.base(index).unwrap_or(ring.base);
            said.push(say(Request::SetVringBase, pair(at, base)));
            if let Some(Addresses { descriptors, used, available, log }) = ring.addresses {
                let mut payload = pair(at, log.is_some().into());
                for number in [descriptors, used, available, log.unwrap_or(0)] {
                    payload.extend(number.to_le_bytes());
                }
                said.push(say(Request::SetVringAddr, payload));
            }
            if ring.enabled {
                said.push(say(Request::SetVringEnable, pair(at, 1)));
            }
            let descriptor = |request, handle| {
                let handles = Vec::from_iter(holder.has(handle).then_some(handle));
                let none = if handles.is_empty() { NO_HANDLE } else { 0 };
                Said { handles, ..say(request, word(u64::from(index) | none)) }
            };
            if holder.has(Handle::Call(index)) {
                said.push(descriptor(Request::SetVringCall, Handle::Call(index)));
            }
            if ring.started {
                said.push(descriptor(Request::SetVringKick, Handle::Kick(index)));
            }
            index += 1;
        }
        said
    }
}
