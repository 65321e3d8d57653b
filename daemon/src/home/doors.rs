//! Who comes in: the sockets where front ends wait, and when a device has one more.
//!
//! Guarantees: a door is listened at if its device has room, and no longer; one that can't be had,
//! or whose device is kept out, is tried again by the clock.

use super::{Home, MAX_CONNECTIONS};
use crate::clock::HERTZ;
use crate::connection::Connection;
use crate::door::{Came, Door};
use crate::foreign::Unclosed;
use crate::socket::Socket;
use crate::waits::Source;
use anyhow::Result;
use rustix::fd::OwnedFd;

impl Home {
    /// Listens at a device's door if it may have one more front end.
    pub(crate) fn watch(&mut self, device: usize) -> Result<()> {
        let Some(Some(door)) = self.doors.get(device) else { return Ok(()) };
        let Some(listener) = door.listener() else { return Ok(()) };
        self.waits.remove(listener);
        if self.has_room(device) && door.again_at().is_none() {
            self.waits.add(listener, Source::Door(device))?;
        }
        Ok(())
    }

    pub(super) fn has_room(&self, device: usize) -> bool {
        let device = self.rings.served.devices.get(device);
        device.is_some_and(|device| device.connected < device.front_ends && !device.is_hung())
            && self.connections.len() < MAX_CONNECTIONS
    }

    /// Disks that took no front end, as what they were asked for before hadn't ended.
    pub(super) fn let_in_again(&mut self) {
        for device in self.rings.take_recovered() {
            self.say(device, "all has ended that was given up");
            if let Err(error) = self.watch(device) {
                self.say(device, &format!("{error:#}"));
            }
        }
    }

    /// Tries the doors that nobody tells of.
    pub(super) fn try_doors(&mut self) {
        if !self.doors.iter().flatten().any(|door| door.again_at().is_some()) {
            return;
        }
        let now = self.rings.look_at_clock();
        for device in 0..self.doors.len() {
            let at = self.doors[device].as_ref().and_then(Door::again_at);
            if at.is_some_and(|at| at <= now) && self.has_room(device) {
                self.let_in(device);
            }
        }
    }

    /// Lets a front end in, if there is one.
    pub(super) fn let_in(&mut self, device: usize) {
        if !self.has_room(device) {
            // Who waits there is told of again and again otherwise.
            if let Err(error) = self.watch(device) {
                self.say(device, &format!("{error:#}"));
            }
            return;
        }
        let now = self.rings.look_at_clock();
        let unclosed = self.unclosed(device).fits();
        let Some(Some(door)) = self.doors.get_mut(device) else { return };
        if let Err(why) = unclosed {
            door.pause(now + HERTZ);
            if door.is_news() {
                self.say(device, &format!("no front end is taken for now: {why:#}"));
            }
        } else if let Came::Socket(socket) = door.try_it(now)
            && let Err(error) = self.connect(device, socket)
        {
            self.say(device, &format!("a front end isn't served: {error:#}"));
        }
        if let Err(error) = self.watch(device) {
            self.say(device, &format!("{error:#}"));
        }
    }

    fn connect(&mut self, device: usize, socket: OwnedFd) -> Result<()> {
        let unclosed = self.unclosed(device);
        self.take_in(device, Socket::new(socket, unclosed))?;
        self.say(device, "a front end came");
        Ok(())
    }

    /// What a device's front ends sent and that isn't closed yet.
    pub(crate) fn unclosed(&self, device: usize) -> Unclosed {
        let device = self.rings.served.devices.get(device);
        device.map_or_else(Unclosed::default, |device| device.unclosed.clone())
    }

    /// A front end more: its place.
    pub(crate) fn take_in(&mut self, device: usize, socket: Socket) -> Result<usize> {
        let place = self.connections.vacant_key();
        let connection = Connection::new(socket, device, place, &mut self.rings)?;
        self.waits.add(connection.socket().as_fd(), Source::Socket(place))?;
        self.connections.insert(connection);
        if let Some(device) = self.rings.served.devices.get_mut(device) {
            device.connected += 1;
            device.connections += 1;
        }
        Ok(place)
    }
}
