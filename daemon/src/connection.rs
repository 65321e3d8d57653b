//! One front end: what it has said, and what follows for its rings.
//!
//! Restarts: requests end in the order in which they were taken, so the ring's own used index says
//! which were answered, and everything behind it is taken again. The memory for records that a
//! front end asks for stays empty; that it hands it back means that the ring's used index counts,
//! whatever base it says.

use crate::device::{Device, TRANSPORT};
use crate::event::event;
use crate::memory::map;
use crate::rings::{MAX_RING, Rings};
use crate::socket::{Message, Received, Socket};
use crate::waits::{Source, Waits};
use anyhow::{Context as _, Result, bail};
use daemon_os::{GuestMemory, GuestRegion};
use rustix::fd::{AsFd as _, OwnedFd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vhost_user::{Addresses, Effect, Inflight, Protocol, Session};
use virtqueue::{Layout, Position, Queue, State};

/// The index of a used ring, in bytes from its start.
const USED_INDEX: u64 = 2;
/// Bytes of a record, and of what is before a ring's first.
const RECORD: u64 = 16;
/// VIRTIO_F_INDIRECT_DESC and VIRTIO_F_EVENT_IDX.
const INDIRECT_DESC: u64 = 1 << 28;
const EVENT_IDX: u64 = 1 << 29;
/// Messages that are taken before others have their turn.
const MESSAGES: u32 = 4;

/// A front end.
pub struct Connection {
    /// Its device's place.
    pub device: usize,
    socket: Socket,
    session: Session,
    /// The places of its rings.
    pub rings: Vec<usize>,
    memory: GuestMemory,
    /// The front end keeps records: it may be one that was there before.
    keeps_records: bool,
}

/// What a connection changes.
pub struct Hands<'a> {
    pub rings: &'a mut Rings,
    pub waits: &'a Waits,
}

impl Connection {
    /// A front end came in at this socket. `place`: the connection's.
    pub fn new(socket: OwnedFd, device: usize, place: usize, rings: &mut Rings) -> Result<Self> {
        let served = rings.served.devices.get(device).context("the device is gone")?;
        let count = served.rings();
        let session = Session::new(served.features(), Protocol::all(), count, MAX_RING);
        let mut connection = Connection {
            device,
            socket: Socket::new(socket),
            session,
            rings: Vec::new(),
            memory: GuestMemory::new(Vec::new())?,
            keeps_records: false,
        };
        for index in 0..count {
            connection.rings.push(rings.add(device, index, place)?);
        }
        Ok(connection)
    }

    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Did its memory become shorter while it was in use?
    pub fn has_shrunk(&self) -> bool {
        self.memory.has_shrunk()
    }

    /// Takes what the front end says. False: it left.
    ///
    /// # Errors
    ///
    /// What it did that ends its connection.
    pub fn hear(&mut self, hands: &mut Hands<'_>) -> Result<bool> {
        for _ in 0..MESSAGES {
            match self.socket.receive()? {
                Received::Message(message) => self.handle(message, hands)?,
                Received::Nothing => break,
                Received::End => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Stops and gives up all its rings.
    pub fn close(&mut self, hands: &mut Hands<'_>) {
        self.stop_all(hands);
        for place in self.rings.drain(..) {
            if let Ok(ring) = hands.rings.get(place)
                && let Some(kick) = ring.kick.take()
            {
                hands.waits.remove(&kick);
            }
            hands.rings.remove(place);
        }
        hands.waits.remove(self.socket.as_fd());
    }

    fn handle(&mut self, message: Message, hands: &mut Hands<'_>) -> Result<()> {
        let Message { header, payload, descriptors } = message;
        let effect = self.session.handle(&header, &payload, descriptors)?;
        let mut handle = None;
        let reply = match effect {
            Effect::Reply(reply) => reply,
            Effect::Stop(ring) => {
                let stopped = self.stop(ring, hands).map(|state| state.available.index);
                let said = self.session.ring(ring).map_or(0, |ring| ring.base);
                self.session.base_reply(ring, stopped.unwrap_or(said))
            }
            Effect::ReadConfig { offset, size } => {
                let mut bytes = vec![0; size as usize];
                self.device(hands)?.read_config(offset, &mut bytes);
                Session::config_reply(offset, &bytes)
            }
            Effect::MakeInflight { rings, size } => {
                let (made, file) = records(rings, size)?;
                handle = Some(file);
                Session::inflight_reply(&header, made)
            }
            other => {
                let done = self.carry_out(other, hands);
                if let Some(word) = self.session.acknowledgement(&header, done.is_ok()) {
                    self.socket.reply(header.request, &word, None)?;
                }
                return done;
            }
        };
        self.socket.reply(header.request, &reply, handle.as_ref().map(|file| file.as_fd()))
    }

    fn device<'a>(&self, hands: &'a Hands<'_>) -> Result<&'a Device> {
        hands.rings.served.devices.get(self.device).context("the device is gone")
    }

    /// The place of a ring.
    fn place(&self, ring: u16) -> Result<usize> {
        self.rings.get(usize::from(ring)).copied().context("there is no such ring")
    }

    /// Effects that have no reply of their own.
    fn carry_out(&mut self, effect: Effect<OwnedFd>, hands: &mut Hands<'_>) -> Result<()> {
        match effect {
            Effect::Memory(regions) => {
                let map = |(region, file)| map(region, &file);
                let regions = regions.into_iter().map(map).collect::<Result<_>>()?;
                self.set_memory(regions, hands)
            }
            Effect::AddMemory(region, file) => {
                let mut regions = self.memory.regions().to_vec();
                regions.push(map(region, &file)?);
                regions.sort_by_key(|region| region.guest);
                self.set_memory(regions, hands)
            }
            Effect::RemoveMemory(gone) => {
                let mut regions = self.memory.regions().to_vec();
                regions.retain(|region| region.guest != gone.guest);
                self.set_memory(regions, hands)
            }
            Effect::Kick(ring, kick) => {
                let place = self.place(ring)?;
                let kick = kick.map(event).transpose()?;
                if let Some(old) = hands.rings.get(place)?.kick.take() {
                    hands.waits.remove(&old);
                }
                if let Some(kick) = &kick {
                    hands.waits.add(kick, Source::Kick(place))?;
                }
                hands.rings.get(place)?.kick = kick;
                self.start_if_ready(ring, None, hands)
            }
            Effect::Call(ring, call) => {
                let call = call.map(event).transpose()?;
                hands.rings.get(self.place(ring)?)?.set_call(call);
                Ok(())
            }
            Effect::Enable(ring, true) | Effect::Changed(ring) => {
                self.start_if_ready(ring, None, hands)
            }
            Effect::Enable(ring, false) => {
                if let Some(state) = self.stop(ring, hands) {
                    self.session.base_reply(ring, state.available.index);
                }
                Ok(())
            }
            Effect::SetInflight(..) => {
                self.keeps_records = true;
                Ok(())
            }
            Effect::Reset => {
                self.stop_all(hands);
                Ok(())
            }
            Effect::Features(_) => {
                (0..self.count()).try_for_each(|ring| self.start_if_ready(ring, None, hands))
            }
            Effect::WriteConfig { .. } => bail!("the configuration space can't be written"),
            _ => Ok(()),
        }
    }

    fn count(&self) -> u16 {
        self.rings.len() as u16
    }

    fn stop(&mut self, ring: u16, hands: &mut Hands<'_>) -> Option<State> {
        hands.rings.stop(self.place(ring).ok()?)
    }

    fn stop_all(&mut self, hands: &mut Hands<'_>) {
        for ring in 0..self.count() {
            self.stop(ring, hands);
        }
    }

    /// All memory is this from now on. Rings that run go on there.
    fn set_memory(&mut self, regions: Vec<GuestRegion>, hands: &mut Hands<'_>) -> Result<()> {
        let memory = GuestMemory::new(regions)?;
        let running: Vec<_> =
            (0..self.count()).filter_map(|ring| Some((ring, self.stop(ring, hands)?))).collect();
        self.memory = memory;
        let mut running = running.into_iter();
        running.try_for_each(|(ring, state)| self.start_if_ready(ring, Some(state), hands))
    }

    /// Starts a ring, if all that it needs was said and it doesn't run.
    fn start_if_ready(
        &mut self,
        ring: u16,
        state: Option<State>,
        hands: &mut Hands<'_>,
    ) -> Result<()> {
        let place = self.place(ring)?;
        if !self.session.is_ready(ring) || hands.rings.get(place)?.running {
            return Ok(());
        }
        let said = *self.session.ring(ring).context("there is no such ring")?;
        let Some(Addresses { descriptors, used, available }) = said.addresses else {
            return Ok(());
        };
        let guest = |user| {
            let found = self.session.guest_address(user);
            found.with_context(|| format!("ring {ring} lies at {user:#x}, where no memory is"))
        };
        let layout = Layout {
            size: said.size,
            descriptors: guest(descriptors)?,
            driver: guest(available)?,
            device: guest(used)?,
        };
        let accepted = self.session.features() & !TRANSPORT;
        let features = virtqueue::Features {
            indirect: accepted & INDIRECT_DESC != 0,
            event_index: accepted & EVENT_IDX != 0,
            packed: false,
        };
        let window = *self.memory.window();
        let state = match state {
            Some(state) => state,
            None => {
                let mut index = said.base;
                if self.keeps_records {
                    let mut bytes = [0; 2];
                    let at = layout.device.saturating_add(USED_INDEX);
                    window.read(at, &mut bytes).context("a used ring is outside of memory")?;
                    index = u16::from_le_bytes(bytes);
                }
                let start = Position { index, wrap: true };
                State { available: start, used: start, ..State::at_reset(features) }
            }
        };
        let queue = Queue::new(&window, layout, features, state);
        let queue = queue.with_context(|| format!("ring {ring} can't be served"))?;
        let started = hands.rings.start(place, queue, window, accepted);
        started.with_context(|| format!("ring {ring} can't be served"))
    }
}

/// Memory for records, all empty.
fn records(rings: u16, size: u16) -> Result<(Inflight, OwnedFd)> {
    if size > MAX_RING {
        bail!("records of rings of {size} elements are asked for, of at most {MAX_RING}");
    }
    let bytes = u64::from(rings) * (u64::from(size) + 1) * RECORD;
    let len = bytes.max(1).next_multiple_of(4096);
    let file = memfd_create("exitless-io-records", MemfdFlags::CLOEXEC);
    let file = file.context("the system gives no memory for records")?;
    ftruncate(&file, len).context("the system gives no memory for records")?;
    Ok((Inflight { len, offset: 0, rings, size }, file))
}
