//! A switch's way out: a TAP of the host's.
//!
//! Guarantees: a look brings a bounded number of frames, and no frame is waited for. Frames that
//! the TAP doesn't take are dropped, as by a wire. They have no offloads: the switch makes segments
//! and checksums.

use crate::config;
use anyhow::{Context as _, Result};
use daemon_os::Mapping;
use net::{Finish, PortNumber, Switch, UPLINK_MEMORY, WIRE_FRAME};
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::io::{read, write};

/// Frames that are taken in one look.
const FRAMES: u32 = 32;

/// A TAP at a switch.
pub struct Uplink {
    /// As the file says it.
    pub asked: config::Uplink,
    pub switch: usize,
    port: PortNumber,
    tap: OwnedFd,
    bytes: Box<[u8; WIRE_FRAME as usize]>,
    /// What the switch keeps frames in.
    _memory: Mapping,
}

impl Uplink {
    /// At the switch of this place: a TAP that another process opened, or else is opened here.
    pub fn new(
        asked: &config::Uplink,
        tap: Option<OwnedFd>,
        place: usize,
        switch: &mut Switch,
    ) -> Result<Uplink> {
        let name = &asked.tap;
        let tap = tap.map_or_else(|| daemon_os::tap(name), Ok);
        let tap = tap.with_context(|| format!("the TAP {name} can't be opened"))?;
        let memory = Mapping::anonymous(UPLINK_MEMORY).context("there is no memory for frames")?;
        let span = memory.span().context("there is no memory for frames")?;
        let port = switch.add_uplink(span, Finish::Here)?;
        switch.set_link(port, true);
        let bytes = Box::new([0; WIRE_FRAME as usize]);
        Ok(Uplink { asked: asked.clone(), switch: place, port, tap, bytes, _memory: memory })
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.tap.as_fd()
    }

    /// Has frames that came go to their receivers.
    pub fn look(&mut self, switch: &mut Switch, now: u64) {
        for _ in 0..FRAMES {
            let Ok(count) = read(&self.tap, &mut self.bytes[..]) else { return };
            let Some(inbox) = switch.inbox(self.port) else { return };
            let frame = self.bytes.get(..count).unwrap_or_default();
            if frame.is_empty() || inbox.write(0, frame).is_err() {
                return;
            }
            switch.arrived(self.port, count as u32, now);
        }
    }

    /// Sends what is to go out.
    pub fn send(&mut self, switch: &mut Switch) {
        while let Some(leaving) = switch.leaving(self.port) {
            // What the switch finishes is in one part.
            let [frame, _] = leaving.parts;
            let count = (frame.len() as usize).min(self.bytes.len());
            let Some(bytes) = self.bytes.get_mut(..count) else { return };
            if frame.read(0, bytes).is_ok() {
                let _ = write(&self.tap, bytes);
            }
        }
    }
}
