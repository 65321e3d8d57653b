//! One front end: what it has said, and what follows for its rings.

mod begin;
mod quiet;
mod refused;
mod running;
mod said;
#[cfg(test)]
mod tests;

pub use quiet::Gone;

use crate::device::{Device, Kind};
use crate::event::{Told, event};
use crate::foreign::{Foreign, Lent};
use crate::inflight::Kept;
use crate::log::Changes;
use crate::memory::{fits, map};
use crate::rings::{MAX_RING, Rings};
use crate::socket::{Message, Received, Socket};
use crate::waits::{Source, Waits};
use anyhow::{Context as _, Result};
use daemon_os::GuestMemory;
use quiet::Waiting;
use rustix::fd::AsFd as _;
use std::sync::Arc;
use vhost_user::{Effect, Session};

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
    files: Vec<(u64, Arc<Lent>)>,
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
                sort::by_key(&mut regions, |region| region.guest);
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
}
