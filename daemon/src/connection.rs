//! One front end: what it asks for, and the loop that serves it.
//!
//! The loop polls while a ring is polled, and else sleeps in `poll` on the socket and the kicks.
//!
//! Restarts: requests end in the order in which they were taken, so the ring's own used index says
//! which were answered, and everything behind it is taken again. The memory for records that a
//! front end asks for stays empty; that it hands it back means that the ring's used index counts,
//! whatever base it says.

use crate::disk::Disk;
use crate::queues::{MAX_RING, Queues};
use crate::socket::{Message, Socket, event, take};
use anyhow::{Context as _, Result, bail};
use blk::Features;
use daemon_os::{GuestMemory, GuestRegion, Mapping};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd as _, OwnedFd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use vhost_user::{Addresses, Effect, Inflight, Protocol, Region, Session};
use virtqueue::{Layout, Position, Queue, State};

/// The index of a used ring, in bytes from its start.
const USED_INDEX: u64 = 2;
/// Bytes of a record, and of what is before a ring's first.
const RECORD: u64 = 16;

/// A front end.
pub struct Connection<'a> {
    socket: Socket,
    session: Session,
    disk: &'a mut Disk,
    queues: Queues,
    memory: GuestMemory,
    /// The front end keeps records: it may be one that was there before.
    keeps_records: bool,
}

impl<'a> Connection<'a> {
    pub fn new(stream: UnixStream, disk: &'a mut Disk) -> Result<Self> {
        let config = disk.config;
        let rings = config.parameters().queues;
        let session = Session::new(config.features().bits(), Protocol::all(), rings, MAX_RING);
        Ok(Connection {
            socket: Socket::new(stream)?,
            session,
            disk,
            queues: Queues::new(config),
            memory: GuestMemory::new(Vec::new())?,
            keeps_records: false,
        })
    }

    /// Serves it until it leaves.
    ///
    /// # Errors
    ///
    /// What it did that ends its connection.
    pub fn serve(&mut self) -> Result<()> {
        loop {
            self.queues.serve(self.memory.window(), &mut self.disk.store)?;
            if self.memory.has_shrunk() {
                bail!("the guest's memory became shorter while it was in use");
            }
            let (asked, kicked) = self.wait()?;
            for place in kicked {
                self.queues.kicked(place);
            }
            if asked {
                let Some(message) = self.socket.receive()? else { break };
                self.handle(message)?;
            }
        }
        self.stop_all();
        Ok(())
    }

    /// Waits for a message or a kick, if no ring is polled. Whether there is a message, and whose
    /// kicks there were.
    fn wait(&self) -> Result<(bool, Vec<usize>)> {
        let mut places = Vec::new();
        let mut waits = vec![PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN)];
        for (place, kick) in self.queues.asleep() {
            places.push((place, kick));
            waits.push(PollFd::from_borrowed_fd(kick.as_fd(), PollFlags::IN));
        }
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let limit = self.queues.is_busy().then_some(&none);
        match poll(&mut waits, limit) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok((false, Vec::new())),
            Err(error) => return Err(error).context("the system doesn't wait"),
        }
        let mut came = waits.iter().map(|wait| !wait.revents().is_empty());
        let asked = came.next().unwrap_or(false);
        let kicked = places.iter().zip(came).filter(|(_, came)| *came).map(|((place, kick), _)| {
            take(kick);
            *place
        });
        Ok((asked, kicked.collect()))
    }

    fn handle(&mut self, message: Message) -> Result<()> {
        let Message { header, payload, descriptors } = message;
        let effect = self.session.handle(&header, &payload, descriptors)?;
        let mut handle = None;
        let reply = match effect {
            Effect::Reply(reply) => Some(reply),
            Effect::Stop(ring) => {
                let stopped = self.stop(ring).map(|state| state.available.index);
                let said = self.session.ring(ring).map_or(0, |ring| ring.base);
                Some(self.session.base_reply(ring, stopped.unwrap_or(said)))
            }
            Effect::ReadConfig { offset, size } => {
                let mut bytes = vec![0; size as usize];
                self.disk.config.read(offset.into(), &mut bytes);
                Some(Session::config_reply(offset, &bytes))
            }
            Effect::MakeInflight { rings, size } => {
                let (made, file) = records(rings, size)?;
                handle = Some(file);
                Some(Session::inflight_reply(&header, made))
            }
            other => {
                let done = self.carry_out(other);
                if let Some(word) = self.session.acknowledgement(&header, done.is_ok()) {
                    self.socket.reply(header.request, &word, None)?;
                }
                return done;
            }
        };
        let Some(reply) = reply else { return Ok(()) };
        self.socket.reply(header.request, &reply, handle.as_ref().map(|file| file.as_fd()))
    }

    /// Effects that have no reply of their own.
    fn carry_out(&mut self, effect: Effect<OwnedFd>) -> Result<()> {
        match effect {
            Effect::Memory(regions) => {
                let map = |(region, file)| map(region, &file);
                let regions = regions.into_iter().map(map).collect::<Result<_>>()?;
                self.set_memory(regions)
            }
            Effect::AddMemory(region, file) => {
                let mut regions = self.memory.regions().to_vec();
                regions.push(map(region, &file)?);
                regions.sort_by_key(|region| region.guest);
                self.set_memory(regions)
            }
            Effect::RemoveMemory(gone) => {
                let mut regions = self.memory.regions().to_vec();
                regions.retain(|region| region.guest != gone.guest);
                self.set_memory(regions)
            }
            Effect::Kick(ring, kick) => {
                self.queues.get(ring)?.kick = kick.map(event).transpose()?;
                self.start_if_ready(ring, None)
            }
            Effect::Call(ring, call) => {
                let call = call.map(event).transpose()?;
                self.queues.get(ring)?.set_call(call);
                Ok(())
            }
            Effect::Enable(ring, true) | Effect::Changed(ring) => self.start_if_ready(ring, None),
            Effect::Enable(ring, false) => {
                if let Some(state) = self.stop(ring) {
                    self.session.base_reply(ring, state.available.index);
                }
                Ok(())
            }
            Effect::SetInflight(..) => {
                self.keeps_records = true;
                Ok(())
            }
            Effect::Reset => {
                self.stop_all();
                Ok(())
            }
            Effect::Features(_) => {
                (0..self.rings()).try_for_each(|ring| self.start_if_ready(ring, None))
            }
            Effect::WriteConfig { .. } => bail!("the configuration space can't be written"),
            _ => Ok(()),
        }
    }

    fn rings(&self) -> u16 {
        self.disk.config.parameters().queues
    }

    fn stop(&mut self, ring: u16) -> Option<State> {
        self.queues.stop(ring, self.memory.window(), &mut self.disk.store)
    }

    fn stop_all(&mut self) {
        for ring in 0..self.rings() {
            self.stop(ring);
        }
    }

    /// All memory is this from now on. Rings that run go on there.
    fn set_memory(&mut self, regions: Vec<GuestRegion>) -> Result<()> {
        let memory = GuestMemory::new(regions)?;
        let running: Vec<_> =
            (0..self.rings()).filter_map(|ring| Some((ring, self.stop(ring)?))).collect();
        self.memory = memory;
        running.into_iter().try_for_each(|(ring, state)| self.start_if_ready(ring, Some(state)))
    }

    /// Starts a ring, if all that it needs was said and it doesn't run.
    fn start_if_ready(&mut self, ring: u16, state: Option<State>) -> Result<()> {
        if !self.session.is_ready(ring) || self.queues.get(ring)?.is_running() {
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
        let accepted = Features::from_bits_truncate(self.session.features());
        let features = virtqueue::Features {
            indirect: accepted.contains(Features::INDIRECT_DESC),
            event_index: accepted.contains(Features::EVENT_IDX),
            packed: false,
        };
        let window = self.memory.window();
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
        let queue = Queue::new(window, layout, features, state);
        let queue = queue.with_context(|| format!("ring {ring} can't be served"))?;
        self.queues.start(ring, queue, accepted)
    }
}

fn map(region: Region, file: &OwnedFd) -> Result<GuestRegion> {
    let mapping = Mapping::of_file(file, region.offset, region.len);
    let mapping = mapping.with_context(|| {
        format!("the memory at {:#x} of {} bytes can't be mapped", region.guest, region.len)
    })?;
    Ok(GuestRegion { guest: region.guest, mapping: Arc::new(mapping) })
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
