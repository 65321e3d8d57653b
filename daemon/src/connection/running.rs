//! A front end's rings that run: how they start and stop, and what changes below them.
//!
//! Guarantees: memory, records and logs that a ring has spans of go only after it has stopped. If
//! one can't stop, nothing changes.

use super::{Connection, Hands};
use crate::device::{Device, Kind, TRANSPORT};
use anyhow::{Context as _, Result, bail};
use daemon_os::{GuestMemory, GuestRegion};
use net::config::QueueKind;
use vhost_user::{Addresses, LOG_ALL};
use virtqueue::{Layout, State};

/// VIRTIO_F_INDIRECT_DESC and VIRTIO_F_EVENT_IDX.
const INDIRECT_DESC: u64 = 1 << 28;
const EVENT_IDX: u64 = 1 << 29;

impl Connection {
    /// Stops a ring: its state, if it ran.
    pub(super) fn stop(&mut self, ring: u16, hands: &mut Hands<'_>) -> Result<Option<State>> {
        let place = self.place(ring)?;
        let state = hands.rings.stop(place);
        if hands.rings.get(place)?.is_hung {
            bail!("ring {ring} can't stop: the disk hasn't ended what it was asked for");
        }
        Ok(state)
    }

    /// Stops all that run, whatever becomes of others.
    pub(super) fn stop_all(&mut self, hands: &mut Hands<'_>) -> Result<()> {
        let stopped = (0..self.count()).map(|ring| self.stop(ring, hands).map(|_| ()));
        stopped.fold(Ok(()), Result::and)
    }

    /// What was said of rings, which have stopped, is to be said anew.
    pub(super) fn forget(&mut self, hands: &mut Hands<'_>) -> Result<()> {
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
    pub(super) fn set_memory(
        &mut self,
        regions: Vec<GuestRegion>,
        hands: &mut Hands<'_>,
    ) -> Result<()> {
        let seen = GuestMemory::new(regions.clone())?;
        self.with_stopped(hands, |connection, device| match &mut device.kind {
            Kind::Disk(disk) => {
                // What goes is locked no more before anything else is: all of both may be more
                // than may be locked.
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
    pub(super) fn with_stopped(
        &mut self,
        hands: &mut Hands<'_>,
        change: impl FnOnce(&mut Self, &mut Device) -> Result<()>,
    ) -> Result<()> {
        let mut running = Vec::new();
        for ring in 0..self.count() {
            running.extend(self.stop(ring, hands)?.map(|state| (ring, state)));
        }
        let device = hands.rings.served.devices.get_mut(self.device);
        change(self, device.context("the device is gone")?)?;
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
    pub(super) fn start_or_log(&mut self, ring: u16, hands: &mut Hands<'_>) -> Result<()> {
        let is_running = hands.rings.get(self.place(ring)?)?.running;
        let there = self.logged.get(usize::from(ring)).copied().flatten();
        let state = match is_running && self.log_of(ring) != there {
            true => self.stop(ring, hands)?,
            false => None,
        };
        self.start_if_ready(ring, state, hands)
    }

    /// Starts a ring, if all that it needs was said and it doesn't run.
    pub(super) fn start_if_ready(
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
    pub(super) fn is_emptied(&self, ring: u16, hands: &Hands<'_>) -> Result<bool> {
        let Kind::Port(port) = &self.device(hands)?.kind else { return Ok(false) };
        let accepted = net::Features::from_bits_retain(self.session.features());
        Ok(matches!(port.config.queue(ring, accepted), Some(QueueKind::Transmit(_))))
    }
}
