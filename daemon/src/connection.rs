//! One front end: what it has said, and what follows for its rings.

mod begin;
mod quiet;
mod refused;
mod said;
#[cfg(test)]
mod tests;

pub use quiet::Gone;

use crate::device::{Device, Kind, TRANSPORT};
use crate::event::{Told, event};
use crate::foreign::Foreign;
use crate::inflight::Kept;
use crate::log::Changes;
use crate::memory::{fits, map};
use crate::rings::{MAX_RING, Rings};
use crate::socket::{Message, Received, Socket};
use crate::waits::{Source, Waits};
use anyhow::{Context as _, Result, bail};
use daemon_os::{GuestMemory, GuestRegion};
use net::config::QueueKind;
use quiet::Waiting;
use rustix::fd::{AsFd as _, OwnedFd};
use vhost_user::{Addresses, Effect, LOG_ALL, Session};
use virtqueue::{Layout, State};

/// VIRTIO_F_INDIRECT_DESC and VIRTIO_F_EVENT_IDX.
const INDIRECT_DESC: u64 = 1 << 28;
const EVENT_IDX: u64 = 1 << 29;
/// VIRTIO_F_RING_PACKED.
const RING_PACKED: u64 = 1 << 34;
/// Messages that are taken before others have their turn.
const MESSAGES: u32 = 4;

/// A front end.
pub struct Connection {
    /// Its device's place.
    pub device: usize,
    /// Its own.
    place: usize,
    socket: Socket,
    session: Session,
    /// The places of its rings.
    pub rings: Vec<usize>,
    memory: GuestMemory,
    /// The files of the memory, by its guest-physical addresses.
    files: Vec<(u64, OwnedFd)>,
    /// Records of what is in flight.
    kept: Option<Kept>,
    /// Which pages were changed.
    changes: Option<Changes>,
    /// By rings: the log that it was started with, and as what its used ring is logged.
    logged: Vec<Option<(u64, Option<u64>)>>,
    /// A request of it was refused, and the log says so.
    is_refused: bool,
    /// What waits for rings that are to stop.
    waiting: Option<Waiting>,
}

/// What a connection changes.
pub struct Hands<'a> {
    pub rings: &'a mut Rings,
    pub waits: &'a Waits,
}

impl Connection {
    /// A front end came in at this socket. `place`: the connection's.
    pub fn new(socket: Socket, device: usize, place: usize, rings: &mut Rings) -> Result<Self> {
        let served = rings.served.devices.get(device).context("the device is gone")?;
        let count = served.rings();
        let session = Session::new(served.features(), served.protocol(), count, MAX_RING);
        let mut connection = Connection {
            device,
            place,
            socket,
            session,
            rings: Vec::new(),
            memory: GuestMemory::new(Vec::new())?,
            files: Vec::new(),
            kept: None,
            changes: None,
            logged: vec![None; count.into()],
            is_refused: false,
            waiting: None,
        };
        for index in 0..count {
            match rings.add(device, index, place) {
                Ok(ring) => connection.rings.push(ring),
                Err(error) => {
                    connection.rings.drain(..).for_each(|ring| rings.remove(ring));
                    return Err(error);
                }
            }
        }
        Ok(connection)
    }

    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Did its memory become shorter while it was in use?
    pub fn has_shrunk(&self) -> bool {
        self.memory.has_shrunk()
            || self.kept.as_ref().is_some_and(Kept::has_shrunk)
            || self.changes.as_ref().is_some_and(Changes::has_shrunk)
    }

    /// What was wrong with a call, if it was.
    pub fn wrong_call(&self, rings: &Rings) -> Option<Told> {
        let ring = |place: &usize| rings.served.all.get(*place);
        self.rings.iter().filter_map(ring).map(|ring| ring.told).find(|told| *told != Told::Well)
    }

    /// Takes what the front end says. False: it left.
    ///
    /// # Errors
    ///
    /// What it did that ends its connection.
    pub fn hear(&mut self, hands: &mut Hands<'_>) -> Result<bool> {
        for _ in 0..MESSAGES {
            if self.is_waiting() {
                break;
            }
            match self.socket.receive()? {
                Received::Message(message) => {
                    if let Some(message) = self.now_or_later(message, hands) {
                        self.handle(message, hands)?;
                    }
                }
                Received::Nothing => break,
                Received::End => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Stops and gives up all its rings.
    pub fn close(&mut self, hands: &mut Hands<'_>) {
        self.silence(hands.rings);
        self.release(hands.rings);
        if self.stop_all(hands).is_err() {
            // The back end may still access it.
            std::mem::forget(self.memory.clone());
        }
        hands.rings.reset(self.place);
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

    /// Closes what is the front end's, once its rings are gone.
    pub fn leave(self) {
        self.socket.leave();
    }

    fn handle(&mut self, message: Message, hands: &mut Hands<'_>) -> Result<()> {
        let Message { header, payload, descriptors } = message;
        let effect = match self.session.handle(&header, &payload, descriptors) {
            Ok(effect) => effect,
            Err(error) => return self.refuse(&header, error, hands),
        };
        let mut handle = None;
        let reply = match effect {
            Effect::Reply(reply) => reply,
            Effect::Stop(ring) => {
                let stopped = self.stop(ring, hands)?.map(|state| self.base_of(&state));
                let said = self.session.ring(ring).map_or(0, |ring| ring.base);
                self.session.base_reply(ring, stopped.unwrap_or(said))
            }
            Effect::ReadConfig { offset, size } => {
                let mut bytes = vec![0; size as usize];
                self.device(hands)?.read_config(offset, &mut bytes);
                Session::config_reply(offset, &bytes)
            }
            Effect::SetLog(..) => {
                self.carry_out(effect, hands)?;
                vec![0; 8]
            }
            Effect::MakeInflight { rings, size } => {
                let (made, file) = Kept::make(rings, size, self.count())?;
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
    fn carry_out(&mut self, effect: Effect<Foreign>, hands: &mut Hands<'_>) -> Result<()> {
        match effect {
            Effect::Memory(regions) => {
                fits(regions.iter().map(|(region, _)| region.len))?;
                let mapped = regions.into_iter().map(|(region, file)| map(region, file));
                let mapped = mapped.collect::<Result<Vec<_>>>()?;
                let (mapped, files): (Vec<_>, Vec<_>) = mapped.into_iter().unzip();
                self.files = mapped.iter().map(|one| one.guest).zip(files).collect();
                self.set_memory(mapped, hands)
            }
            Effect::AddMemory(region, file) => {
                fits(self.session.regions().iter().map(|region| region.len))?;
                let mut regions = self.memory.regions().to_vec();
                let (mapped, file) = map(region, file)?;
                regions.push(mapped);
                self.files.push((region.guest, file));
                regions.sort_by_key(|region| region.guest);
                self.set_memory(regions, hands)
            }
            Effect::RemoveMemory(gone) => {
                let mut regions = self.memory.regions().to_vec();
                regions.retain(|region| region.guest != gone.guest);
                self.files.retain(|(guest, _)| *guest != gone.guest);
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
                // A kick that came by the one before may not have been heard.
                hands.rings.poll_now(place);
                self.start_if_ready(ring, None, hands)
            }
            Effect::Call(ring, call) => {
                let call = call.map(event).transpose()?;
                hands.rings.get(self.place(ring)?)?.set_call(call);
                Ok(())
            }
            Effect::Enable(ring, true) | Effect::Changed(ring) => self.start_or_log(ring, hands),
            // It goes on, and nothing goes out.
            Effect::Enable(ring, false) if self.is_emptied(ring, hands)? => {
                self.start_or_log(ring, hands)
            }
            Effect::Enable(ring, false) => {
                if let Some(state) = self.stop(ring, hands)? {
                    self.session.base_reply(ring, self.base_of(&state));
                }
                Ok(())
            }
            Effect::Announce(mac) => match &self.device(hands)?.kind {
                Kind::Port(port) => hands.rings.announce(*port, net::Mac(mac)),
                Kind::Disk(_) => Ok(()),
            },
            Effect::DisableAll => (0..self.count())
                .filter(|ring| !self.session.is_enabled(*ring))
                .collect::<Vec<_>>()
                .into_iter()
                .try_for_each(|ring| self.carry_out(Effect::Enable(ring, false), hands)),
            Effect::SetInflight(described, file) => {
                let kept = Kept::map(described, file, self.count())?;
                self.with_stopped(hands, |connection, _| {
                    connection.kept = Some(kept);
                    Ok(())
                })
            }
            Effect::Reset => {
                self.stop_all(hands)?;
                hands.rings.reset(self.place);
                self.forget(hands)
            }
            Effect::Features(_) => {
                (0..self.count()).try_for_each(|ring| self.start_or_log(ring, hands))
            }
            Effect::SetLog(described, file) => {
                let number = self.changes.as_ref().map_or(0, |changes| changes.number + 1);
                let changes = Changes::map(described, file, number)?;
                // Rings that log go over to it before the one before is gone.
                let before = self.changes.replace(changes);
                let done = (0..self.count()).try_for_each(|ring| self.start_or_log(ring, hands));
                if done.is_err() && self.stop_all(hands).is_err() {
                    // One that hangs may still have it.
                    std::mem::forget(before);
                }
                done
            }
            // What isn't used is an eventfd nevertheless: of other descriptors there would be no
            // end.
            Effect::Error(_, said) => said.map(event).transpose().map(|_| ()),
            Effect::LogCall(said) => event(said).map(|_| ()),
            _ => Ok(()),
        }
    }

    fn count(&self) -> u16 {
        self.rings.len() as u16
    }

    fn is_packed(&self) -> bool {
        self.session.features() & RING_PACKED != 0
    }

    /// Stops a ring: its state, if it ran.
    fn stop(&mut self, ring: u16, hands: &mut Hands<'_>) -> Result<Option<State>> {
        let place = self.place(ring)?;
        let state = hands.rings.stop(place);
        if hands.rings.get(place)?.is_hung {
            bail!("ring {ring} can't stop: the disk hasn't ended what it was asked for");
        }
        Ok(state)
    }

    /// Stops all that run, whatever becomes of others.
    fn stop_all(&mut self, hands: &mut Hands<'_>) -> Result<()> {
        let stopped = (0..self.count()).map(|ring| self.stop(ring, hands).map(|_| ()));
        stopped.fold(Ok(()), Result::and)
    }

    /// What was said of rings, which have stopped, is to be said anew.
    fn forget(&mut self, hands: &mut Hands<'_>) -> Result<()> {
        for place in &self.rings {
            let ring = hands.rings.get(*place)?;
            ring.set_call(None);
            if let Some(kick) = ring.kick.take() {
                hands.waits.remove(&kick);
            }
        }
        (self.kept, self.changes) = (None, None);
        self.logged.fill(None);
        Ok(())
    }

    /// All memory is this from now on. Rings that run go on there.
    fn set_memory(&mut self, regions: Vec<GuestRegion>, hands: &mut Hands<'_>) -> Result<()> {
        let seen = GuestMemory::new(regions.clone())?;
        self.with_stopped(hands, |connection, device| match &device.kind {
            Kind::Disk(disk) => {
                // What goes is the controller's no more before it is given anything: all of both
                // may be more than may be locked.
                connection.memory = seen;
                let regions = disk.store.share(regions).context("the guest's memory")?;
                connection.memory = GuestMemory::new(regions)?;
                Ok(())
            }
            Kind::Port(_) => {
                connection.memory = seen;
                Ok(())
            }
        })
    }

    /// Changes what rings that run have spans of: they stop before, and go on after it. If one
    /// can't stop, nothing changes.
    fn with_stopped(
        &mut self,
        hands: &mut Hands<'_>,
        change: impl FnOnce(&mut Self, &Device) -> Result<()>,
    ) -> Result<()> {
        let mut running = Vec::new();
        for ring in 0..self.count() {
            running.extend(self.stop(ring, hands)?.map(|state| (ring, state)));
        }
        change(self, hands.rings.served.devices.get(self.device).context("the device is gone")?)?;
        let mut running = running.into_iter();
        running.try_for_each(|(ring, state)| self.start_if_ready(ring, Some(state), hands))
    }

    /// The log that a ring is to have, and as what its used ring is logged.
    fn log_of(&self, ring: u16) -> Option<(u64, Option<u64>)> {
        let changes = self.changes.as_ref()?;
        let addresses = self.session.ring(ring)?.addresses?;
        let is_on = self.session.features() & LOG_ALL != 0;
        is_on.then_some((changes.number, addresses.log))
    }

    /// Starts a ring as below; one that runs goes on with another log, if that was said.
    fn start_or_log(&mut self, ring: u16, hands: &mut Hands<'_>) -> Result<()> {
        let is_running = hands.rings.get(self.place(ring)?)?.running;
        let there = self.logged.get(usize::from(ring)).copied().flatten();
        let state = match is_running && self.log_of(ring) != there {
            true => self.stop(ring, hands)?,
            false => None,
        };
        self.start_if_ready(ring, state, hands)
    }

    /// Starts a ring, if all that it needs was said and it doesn't run.
    fn start_if_ready(
        &mut self,
        ring: u16,
        state: Option<State>,
        hands: &mut Hands<'_>,
    ) -> Result<()> {
        let place = self.place(ring)?;
        let is_enabled = self.session.is_enabled(ring);
        let runs = is_enabled || self.is_emptied(ring, hands)?;
        if !runs || !self.session.is_started(ring) {
            return Ok(());
        }
        if hands.rings.get(place)?.running {
            hands.rings.set_discards(place, !is_enabled);
            return Ok(());
        }
        let said = *self.session.ring(ring).context("there is no such ring")?;
        let Some(Addresses { descriptors, used, available, .. }) = said.addresses else {
            return Ok(());
        };
        let guest = |user| {
            let found = self.session.guest_address(user);
            found.with_context(|| {
                let hint = match self.session.regions() {
                    [] => {
                        "; the front end shares no memory: QEMU needs memory-backend-memfd,share=on"
                    }
                    _ => "",
                };
                format!("ring {ring} lies at {user:#x}, where no memory is{hint}")
            })
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
            packed: self.is_packed(),
        };
        let window = *self.memory.window();
        let is_disk = matches!(self.device(hands)?.kind, Kind::Disk(_));
        let (mut queue, records) = self.begin(ring, layout, features, state, is_disk)?;
        let logged = self.log_of(ring);
        if let Some((changes, (_, at))) = self.changes.as_ref().zip(logged) {
            queue = queue.logged(layout, changes.of_ring(at, !is_disk, self.session.regions())?);
        }
        if let Some(place) = self.logged.get_mut(usize::from(ring)) {
            *place = logged;
        }
        hands.rings.get(place)?.records = records;
        let started = hands.rings.start(place, queue, window, accepted);
        started.with_context(|| format!("ring {ring} can't be served"))?;
        hands.rings.set_discards(place, !is_enabled);
        Ok(())
    }

    /// Is the ring one of a network that sends? What is in it is thrown away while it is disabled.
    fn is_emptied(&self, ring: u16, hands: &Hands<'_>) -> Result<bool> {
        let Kind::Port(port) = &self.device(hands)?.kind else { return Ok(false) };
        let accepted = net::Features::from_bits_retain(self.session.features());
        Ok(matches!(port.config.queue(ring, accepted), Some(QueueKind::Transmit(_))))
    }
}
