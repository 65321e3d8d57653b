//! All rings held at once, for another program to go on with them; or to go on here.
//!
//! Guarantees: while they are held nothing is taken from them, nothing of them is under way, and
//! all that was completed is published and told. A ring that goes on is polled, so no kick that
//! came meanwhile is missed.

use crate::device::Kind;
use crate::ring::Work;
use crate::rings::{Rings, Served};
use anyhow::{Context as _, Result, bail};
use virtqueue::State;

impl Rings {
    /// Holds all rings that run.
    ///
    /// # Errors
    ///
    /// In a sentence, if a back end doesn't end what it was asked for, or can't make it durable.
    /// All go on then.
    pub fn settle(&mut self) -> Result<()> {
        let held = self.hold();
        if held.is_err() {
            self.resume();
        }
        held
    }

    fn hold(&mut self) -> Result<()> {
        let running = |ring: &crate::ring::Ring| ring.running;
        let places: Vec<usize> =
            self.served.all.iter().filter(|(_, ring)| running(ring)).map(|(at, _)| at).collect();
        for place in &places {
            self.schedule.leave(*place);
            let ring = self.get(*place)?;
            (ring.running, ring.is_settled) = (false, true);
        }
        for place in &places {
            if !self.drain(*place) {
                let device = self.get(*place)?.device;
                let device = self.served.devices.get(device).context("the device is gone")?;
                bail!("{}: the disk doesn't end what it was asked for", device.name);
            }
        }
        for (_, device) in &mut self.served.devices {
            if device.is_hung() {
                bail!("{}: the disk hasn't ended what it was asked for", device.name);
            }
            if let Kind::Disk(disk) = &mut device.kind {
                disk.store.settle().with_context(|| device.name.clone())?;
            }
        }
        let Served { all, switches, .. } = &mut self.served;
        for place in &places {
            let ring = all.get_mut(*place).context("the ring is gone")?;
            if let Work::Requests(server) = &mut ring.work {
                server.publish();
            } else if let Some(queue) = ring.queue(switches) {
                queue.publish();
            }
            ring.tell();
        }
        Ok(())
    }

    /// All that were held go on.
    pub fn resume(&mut self) {
        let places: Vec<usize> = self.served.all.iter().map(|(place, _)| place).collect();
        self.release(&places);
        self.forget_draining(&places);
    }

    /// Those of these that were held go on.
    pub fn release(&mut self, places: &[usize]) {
        let now = self.look_at_clock();
        let Served { all, switches, .. } = &mut self.served;
        for place in places {
            let Some(ring) = all.get_mut(*place).filter(|ring| ring.is_settled) else { continue };
            // Nobody polled it again by the clock meanwhile; from now on it is polled anyway.
            (ring.running, ring.is_settled, ring.again_at) = (true, false, None);
            ring.set_kicks(switches, false);
            ring.tell();
            if ring.has_turns(switches) {
                self.schedule.poll(*place, ring.device, now);
            }
        }
    }

    /// Where a ring that is held would go on.
    pub fn held_at(&mut self, place: usize) -> Option<State> {
        let Served { all, switches, .. } = &mut self.served;
        let ring = all.get_mut(place).filter(|ring| ring.is_settled)?;
        let is_frames = matches!(ring.work, Work::Frames(_));
        let state = ring.queue(switches)?.state();
        // Buffers for frames to come, which were in flight, are taken again.
        let again = State { available: state.used, ..State::at_reset(Default::default()) };
        Some(if is_frames { State { used: state.used, ..again } } else { state })
    }
}
