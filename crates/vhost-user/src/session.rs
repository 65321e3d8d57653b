//! The state machine: what a front end has said, and what follows.
//!
//! Front ends differ in their order: QEMU's network enables rings before it sets features, and all
//! say where a ring begins before they say where it lies. So every message is taken at any time,
//! and a ring runs once all that it needs was said: [`Session::is_ready`].

use crate::effect::Effect;
use crate::error::Error;
use crate::fields::Fields;
use crate::header::{Header, MAX_PAYLOAD, Request};
use crate::memory::{MAX_REGIONS, Region, Table};
use crate::state::{Addresses, Inflight, LogArea, Protocol, Ring};
use crate::{LOG_ALL, MAX_HANDLES, PROTOCOL_FEATURES};
use alloc::vec::Vec;

/// The bytes of a configuration request before the content.
const CONFIG_HEAD: usize = 12;
/// The most bytes of a configuration space.
const CONFIG_LIMIT: u32 = 256;
/// VHOST_VRING_F_LOG, of a ring's addresses.
const LOG_RING: u32 = 1;
/// VIRTIO_F_RING_PACKED.
const RING_PACKED: u64 = 1 << 34;
/// In the word of KICK, CALL and ERR: no descriptor comes along.
const NO_HANDLE: u64 = 1 << 8;

/// A connection's state.
#[derive(Debug)]
pub struct Session {
    offered: u64,
    protocol_offered: Protocol,
    features: u64,
    protocol: Protocol,
    max_ring: u16,
    rings: Vec<Ring>,
    memory: Table,
}

impl Session {
    /// A new connection to a device that offers these features, and has so many rings of at most
    /// `max_ring` elements.
    pub fn new(features: u64, protocol: Protocol, rings: u16, max_ring: u16) -> Self {
        let rings = (0..rings).map(|_| Ring::default()).collect();
        let log = if protocol.contains(Protocol::LOG_SHMFD) { LOG_ALL } else { 0 };
        Session {
            offered: features | PROTOCOL_FEATURES | log,
            protocol_offered: protocol,
            features: 0,
            protocol: Protocol::empty(),
            max_ring,
            rings,
            memory: Table::default(),
        }
    }

    /// The features that were accepted.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// The protocol features that were accepted.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// What was said of a ring.
    pub fn ring(&self, index: u16) -> Option<&Ring> {
        self.rings.get(usize::from(index))
    }

    /// Has all been said that the ring needs to be served?
    pub fn is_ready(&self, index: u16) -> bool {
        self.is_started(index) && self.is_enabled(index)
    }

    /// The same, but it may be disabled: a network takes what it is to send then, and throws it
    /// away.
    pub fn is_started(&self, index: u16) -> bool {
        let ring = self.ring(index);
        ring.is_some_and(|ring| ring.started && ring.size > 0 && ring.addresses.is_some())
    }

    /// Is the ring enabled?
    pub fn is_enabled(&self, index: u16) -> bool {
        let all = self.features & PROTOCOL_FEATURES == 0;
        self.ring(index).is_some_and(|ring| ring.enabled || all)
    }

    /// The regions, in the order of guest addresses.
    pub fn regions(&self) -> &[Region] {
        self.memory.regions()
    }

    /// The guest's address of what has this one in the front end.
    pub fn guest_address(&self, user: u64) -> Option<u64> {
        self.memory.guest_address(user)
    }

    /// The payload of the answer to a request that the front end waits for, if it does and the
    /// request has no reply of its own.
    pub fn acknowledgement(&self, header: &Header, well: bool) -> Option<[u8; 8]> {
        let asked = header.need_reply && self.protocol.contains(Protocol::REPLY_ACK);
        asked.then(|| u64::from(!well).to_le_bytes())
    }

    /// The payload that says where a ring stopped: [`Ring::base`].
    pub fn base_reply(&mut self, index: u16, base: u32) -> Vec<u8> {
        if let Some(ring) = self.rings.get_mut(usize::from(index)) {
            ring.base = base;
        }
        [u32::from(index).to_le_bytes(), base.to_le_bytes()].concat()
    }

    /// The payload with a part of the configuration space.
    pub fn config_reply(offset: u32, content: &[u8]) -> Vec<u8> {
        let size = content.len() as u32;
        [&offset.to_le_bytes()[..], &size.to_le_bytes(), &[0; 4], content].concat()
    }

    /// The payload that describes new memory for records. Some front ends have four bytes of
    /// padding behind it, so that its length is that of the request.
    pub fn inflight_reply(header: &Header, made: Inflight) -> Vec<u8> {
        let Inflight { len, offset, rings, size } = made;
        let mut reply = [len.to_le_bytes(), offset.to_le_bytes()].concat();
        reply.extend([rings.to_le_bytes(), size.to_le_bytes()].concat());
        reply.resize(header.size.clamp(INFLIGHT, INFLIGHT_PADDED), 0);
        reply
    }

    /// Takes a message: what follows from it.
    ///
    /// # Errors
    ///
    /// [`Error`]: the connection is to end. All handles are dropped.
    pub fn handle<F>(
        &mut self,
        header: &Header,
        payload: &[u8],
        handles: Vec<F>,
    ) -> Result<Effect<F>, Error> {
        let number = header.request;
        let request = Request::of(number).filter(|request| self.is_negotiated(*request));
        let request = request.ok_or(Error::Unknown(number))?;
        let takes = match request {
            Request::SetMemTable => 1..=MAX_HANDLES,
            Request::SetVringKick | Request::SetVringCall | Request::SetVringErr => 0..=1,
            // Some front ends send the region's descriptor along with the removal.
            Request::RemMemReg => 0..=1,
            Request::AddMemReg | Request::SetInflightFd => 1..=1,
            Request::SetLogBase | Request::SetLogFd => 1..=1,
            _ => 0..=0,
        };
        if !takes.contains(&handles.len()) {
            return Err(Error::Handles { request: number, count: handles.len() });
        }
        let size = Error::Size { request: number, size: payload.len() };
        let fields = Fields(payload);
        if payload.len() > MAX_PAYLOAD {
            return Err(size);
        }
        match request {
            Request::SetMemTable => self.table(fields, handles, size),
            Request::AddMemReg | Request::RemMemReg => self.slot(request, fields, handles, size),
            Request::SetVringKick | Request::SetVringCall | Request::SetVringErr => {
                self.descriptor(request, fields, handles, size)
            }
            Request::GetConfig | Request::SetConfig => self.config(request, payload, size),
            Request::GetInflightFd | Request::SetInflightFd => {
                inflight(request, fields, handles).ok_or(size)
            }
            Request::SetLogBase => log(fields, handles).ok_or(size),
            Request::SetLogFd => {
                let handle = handles.into_iter().next();
                handle.map(Effect::LogCall).ok_or(size)
            }
            Request::SetVringAddr => self.addresses(fields, size),
            Request::SetVringNum
            | Request::SetVringBase
            | Request::GetVringBase
            | Request::SetVringEnable => self.ring_word(request, fields, size),
            _ => self.whole(request, fields, size),
        }
    }

    /// Was the protocol feature accepted that this request is of? Before protocol features are
    /// accepted, those that only ask are answered by what is offered.
    fn is_negotiated(&self, request: Request) -> bool {
        let needs = match request {
            Request::GetQueueNum => Protocol::MQ,
            Request::SendRarp => Protocol::RARP,
            Request::GetConfig | Request::SetConfig => Protocol::CONFIG,
            Request::GetInflightFd | Request::SetInflightFd => Protocol::INFLIGHT_SHMFD,
            Request::SetLogBase => Protocol::LOG_SHMFD,
            Request::ResetDevice => Protocol::RESET_DEVICE,
            Request::GetMaxMemSlots | Request::AddMemReg | Request::RemMemReg => {
                Protocol::CONFIGURE_MEM_SLOTS
            }
            _ => Protocol::empty(),
        };
        self.protocol.contains(needs)
    }

    fn ring_at(&mut self, index: u32) -> Result<(u16, &mut Ring), Error> {
        let ring = usize::try_from(index).ok().and_then(|at| self.rings.get_mut(at));
        ring.map(|ring| (index as u16, ring)).ok_or(Error::Ring(index))
    }

    /// Requests of the whole device.
    fn whole<F>(
        &mut self,
        request: Request,
        mut fields: Fields<'_>,
        size: Error,
    ) -> Result<Effect<F>, Error> {
        let word = |word: u64| Ok(Effect::Reply(word.to_le_bytes().to_vec()));
        match request {
            Request::GetFeatures => word(self.offered),
            Request::GetProtocolFeatures => word(self.protocol_offered.bits()),
            Request::GetQueueNum => word(self.rings.len() as u64),
            Request::GetMaxMemSlots => word(MAX_REGIONS as u64),
            Request::SetFeatures => {
                let features = fields.u64().ok_or(size)?;
                if features & !self.offered != 0 {
                    return Err(Error::Features(features & !self.offered));
                }
                self.features = features;
                Ok(Effect::Features(features))
            }
            Request::SetProtocolFeatures => {
                let bits = fields.u64().ok_or(size)?;
                let wrong = bits & !self.protocol_offered.bits();
                if wrong != 0 {
                    return Err(Error::Features(wrong));
                }
                self.protocol = Protocol::from_bits_truncate(bits);
                Ok(Effect::Nothing)
            }
            Request::SendRarp => {
                let word = fields.u64().ok_or(size)?.to_le_bytes();
                Ok(Effect::Announce(word.first_chunk().copied().unwrap_or_default()))
            }
            // Once it was to forget all; few implement it, and it isn't to be used any more.
            Request::ResetOwner => {
                self.rings.iter_mut().for_each(|ring| ring.enabled = false);
                Ok(Effect::DisableAll)
            }
            Request::ResetDevice => {
                self.rings.iter_mut().for_each(|ring| *ring = Ring::default());
                Ok(Effect::Reset)
            }
            _ => Ok(Effect::Nothing),
        }
    }

    fn ring_word<F>(
        &mut self,
        request: Request,
        mut fields: Fields<'_>,
        size: Error,
    ) -> Result<Effect<F>, Error> {
        let (ring, word) = fields.pair().ok_or(size)?;
        let max = self.max_ring;
        let packed = self.offered & RING_PACKED != 0;
        let (index, state) = self.ring_at(ring)?;
        match request {
            Request::SetVringNum => {
                let elements = u16::try_from(word).ok().filter(|size| (1..=max).contains(size));
                state.size = elements.ok_or(Error::RingSize { ring, size: word })?;
            }
            Request::SetVringBase => {
                // Front ends say it before they accept features, so that it fits is seen later.
                if word > u16::MAX.into() && !packed {
                    return Err(Error::Base { ring, base: word });
                }
                state.base = word;
            }
            Request::SetVringEnable => {
                state.enabled = word != 0;
                return Ok(Effect::Enable(index, word != 0));
            }
            _ => {
                state.started = false;
                return Ok(Effect::Stop(index));
            }
        }
        Ok(Effect::Changed(index))
    }

    fn addresses<F>(&mut self, mut fields: Fields<'_>, size: Error) -> Result<Effect<F>, Error> {
        let (ring, flags) = fields.pair().ok_or(size)?;
        let mut next = || fields.u64().ok_or(size);
        let (descriptors, used, available) = (next()?, next()?, next()?);
        // Short messages were taken before anything was logged.
        let log = if flags & LOG_RING != 0 { Some(next()?) } else { None };
        let (index, state) = self.ring_at(ring)?;
        state.addresses = Some(Addresses { descriptors, used, available, log });
        Ok(Effect::Changed(index))
    }

    fn descriptor<F>(
        &mut self,
        request: Request,
        mut fields: Fields<'_>,
        mut handles: Vec<F>,
        size: Error,
    ) -> Result<Effect<F>, Error> {
        let word = fields.u64().ok_or(size)?;
        let handle = handles.pop();
        let (index, ring) = self.ring_at(word as u32 & 0xff)?;
        if handle.is_some() == (word & NO_HANDLE != 0) {
            let count = handle.iter().count();
            return Err(Error::Handles { request: request as u32, count });
        }
        Ok(match request {
            Request::SetVringKick => {
                ring.started = true;
                Effect::Kick(index, handle)
            }
            Request::SetVringCall => Effect::Call(index, handle),
            _ => Effect::Error(index, handle),
        })
    }

    fn table<F>(
        &mut self,
        mut fields: Fields<'_>,
        handles: Vec<F>,
        size: Error,
    ) -> Result<Effect<F>, Error> {
        let (count, _padding) = fields.pair().ok_or(size)?;
        if usize::try_from(count) != Ok(handles.len()) {
            let count = handles.len();
            return Err(Error::Handles { request: Request::SetMemTable as u32, count });
        }
        let mut table = Table::default();
        let mut regions = Vec::new();
        for handle in handles {
            let region = Region::parse(&mut fields).ok_or(size)?;
            table.add(region)?;
            regions.push((region, handle));
        }
        sort::by_key(&mut regions, |(region, _)| region.guest);
        self.memory = table;
        Ok(Effect::Memory(regions))
    }

    fn slot<F>(
        &mut self,
        request: Request,
        mut fields: Fields<'_>,
        mut handles: Vec<F>,
        size: Error,
    ) -> Result<Effect<F>, Error> {
        let _padding = fields.u64().ok_or(size)?;
        let region = Region::parse(&mut fields).ok_or(size)?;
        match handles.pop() {
            Some(handle) if request == Request::AddMemReg => {
                self.memory.add(region)?;
                Ok(Effect::AddMemory(region, handle))
            }
            _ => Ok(Effect::RemoveMemory(self.memory.remove(region)?)),
        }
    }

    fn config<F>(
        &mut self,
        request: Request,
        payload: &[u8],
        error: Error,
    ) -> Result<Effect<F>, Error> {
        let mut fields = Fields(payload);
        let (offset, size) = fields.pair().ok_or(error)?;
        payload.get(CONFIG_HEAD..).ok_or(error)?;
        let end = offset.checked_add(size).filter(|end| *end <= CONFIG_LIMIT);
        if end.is_none() || size == 0 {
            return Err(Error::Config { offset, size });
        }
        if request != Request::GetConfig {
            return Err(Error::WrittenConfig { offset, size });
        }
        Ok(Effect::ReadConfig { offset, size })
    }
}

fn log<F>(mut fields: Fields<'_>, mut handles: Vec<F>) -> Option<Effect<F>> {
    let (len, offset) = (fields.u64()?, fields.u64()?);
    Some(Effect::SetLog(LogArea { len, offset }, handles.pop()?))
}

/// Bytes of a description of records, without padding and with it.
const INFLIGHT: usize = 20;
const INFLIGHT_PADDED: usize = 24;

fn inflight<F>(request: Request, mut fields: Fields<'_>, mut handles: Vec<F>) -> Option<Effect<F>> {
    let (len, offset) = (fields.u64()?, fields.u64()?);
    let (rings, size) = (fields.u16()?, fields.u16()?);
    if request == Request::GetInflightFd {
        return Some(Effect::MakeInflight { rings, size });
    }
    Some(Effect::SetInflight(Inflight { len, offset, rings, size }, handles.pop()?))
}
