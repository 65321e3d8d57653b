//! A connection as what its front end might have said to be there: for another program, and from
//! another program.

use super::{Connection, Hands};
use crate::foreign::Foreign;
use crate::rings::Rings;
use anyhow::Result;
use rustix::fd::{AsFd as _, BorrowedFd};
use vhost_user::{Handle, Header, Holder, Inflight, LogArea, Said};

/// What a session doesn't know of itself.
struct Held<'a> {
    connection: &'a Connection,
    rings: &'a Rings,
    /// Where the rings go on that are held.
    held: Vec<Option<u32>>,
}

impl<'a> Held<'a> {
    fn descriptor(&self, handle: Handle) -> Option<BorrowedFd<'a>> {
        let ring = |ring: u16| {
            let place = self.connection.rings.get(usize::from(ring))?;
            self.rings.served.all.get(*place)
        };
        match handle {
            Handle::Memory(guest) => {
                let mut files = self.connection.files.iter();
                files.find(|(at, _)| *at == guest).and_then(|(_, file)| file.borrow())
            }
            Handle::Inflight => self.connection.kept.as_ref().map(|kept| kept.handed().1),
            Handle::Log => self.connection.changes.as_ref().map(|changes| changes.handed().1),
            Handle::Kick(index) => ring(index)?.kick.as_ref().map(|kick| kick.as_fd()),
            Handle::Call(index) => ring(index)?.call().map(|call| call.as_fd()),
        }
    }
}

impl Holder for Held<'_> {
    fn inflight(&self) -> Option<Inflight> {
        self.connection.kept.as_ref().map(|kept| kept.handed().0)
    }

    fn log(&self) -> Option<LogArea> {
        self.connection.changes.as_ref().map(|changes| changes.handed().0)
    }

    fn has(&self, handle: Handle) -> bool {
        self.descriptor(handle).is_some()
    }

    fn base(&self, ring: u16) -> Option<u32> {
        self.held.get(usize::from(ring)).copied().flatten()
    }
}

impl Connection {
    /// What the front end might have said to be here, for another program: messages, and what
    /// comes along with them. The rings are held.
    pub fn said<'a>(&'a self, rings: &'a mut Rings) -> (Vec<Said>, Vec<BorrowedFd<'a>>) {
        let held = self.rings.iter().map(|place| rings.held_at(*place));
        let held = held.map(|state| state.map(|state| self.base_of(&state))).collect();
        let holder = Held { connection: self, rings, held };
        let said = self.session.said(&holder);
        let handles = said.iter().flat_map(|said| said.handles.iter());
        let handles = handles.filter_map(|handle| holder.descriptor(*handle)).collect();
        (said, handles)
    }

    /// Takes what another program says that the front end said, as if it said it.
    ///
    /// # Errors
    ///
    /// As for any front end.
    pub fn believe(
        &mut self,
        header: Header,
        payload: &[u8],
        descriptors: Vec<Foreign>,
        hands: &mut Hands<'_>,
    ) -> Result<()> {
        let effect = self.session.handle(&header, payload, descriptors)?;
        self.carry_out(effect, hands)
    }
}
