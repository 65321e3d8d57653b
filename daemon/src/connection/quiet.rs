//! Rings that a message stops, or the connection's end: they are held until their back end has
//! ended what it was asked for, while the loop goes on with all others.
//!
//! Guarantees: what stops rings is only carried out when nothing of them is under way, or when
//! that takes too long; messages behind it wait.

use super::{Connection, Hands};
use crate::rings::Rings;
use crate::socket::Message;
use crate::waits::Source;
use anyhow::{Error, Result};
use vhost_user::Request;

/// What waits for rings, which are held.
pub(super) struct Waiting {
    what: What,
    held: Vec<usize>,
}

/// What it is.
pub(super) enum What {
    Message(Message),
    /// The connection's end.
    End(Gone),
}

/// A connection is to end: why, unless the front end left.
pub struct Gone(pub Option<Error>);

impl Connection {
    /// Does something wait?
    pub fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// Is it the connection's end that waits?
    pub fn is_ending(&self) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| matches!(waiting.what, What::End(_)))
    }

    /// The message, unless it stops rings that are at work: then it waits.
    pub(super) fn now_or_later(
        &mut self,
        message: Message,
        hands: &mut Hands<'_>,
    ) -> Option<Message> {
        let rings = self.stopped_by(&message);
        match hands.rings.hold_if_busy(&rings) {
            false => Some(message),
            true => {
                hands.waits.remove(self.socket.as_fd());
                self.waiting = Some(Waiting { what: What::Message(message), held: rings });
                None
            }
        }
    }

    /// The connection is to end: why, if it may at once. Else it waits for its rings.
    pub fn end_later(&mut self, why: Option<Error>, hands: &mut Hands<'_>) -> Option<Gone> {
        self.silence(hands.rings);
        self.release(hands.rings);
        hands.waits.remove(self.socket.as_fd());
        match hands.rings.hold_if_busy(&self.rings) {
            false => Some(Gone(why)),
            true => {
                let held = self.rings.clone();
                self.waiting = Some(Waiting { what: What::End(Gone(why)), held });
                None
            }
        }
    }

    /// Goes on with what waited, if its rings are quiet now: with the connection's end, that is for
    /// the caller to do.
    ///
    /// # Errors
    ///
    /// As for what the front end says.
    pub fn go_on(&mut self, hands: &mut Hands<'_>) -> Result<Option<Gone>> {
        match self.take_waiting(hands.rings) {
            None => Ok(None),
            Some((What::End(gone), _)) => Ok(Some(gone)),
            Some((What::Message(message), held)) => {
                self.handle(message, hands)?;
                hands.rings.forget_draining(&held);
                hands.waits.add(self.socket.as_fd(), Source::Socket(self.place))?;
                Ok(None)
            }
        }
    }

    /// Nobody is called any more if a call was made to wait, or took too long.
    pub(super) fn silence(&self, rings: &mut Rings) {
        if self.wrong_call(rings).is_some() {
            for place in &self.rings {
                rings.get(*place).into_iter().for_each(|ring| ring.set_call(None));
            }
        }
    }

    /// What waited, if its rings are quiet now, or were waited for long enough. They run again.
    fn take_waiting(&mut self, rings: &mut Rings) -> Option<(What, Vec<usize>)> {
        if !rings.are_quiet(&self.waiting.as_ref()?.held) {
            return None;
        }
        self.release(rings)
    }

    /// Rings that were held run again.
    pub(super) fn release(&mut self, rings: &mut Rings) -> Option<(What, Vec<usize>)> {
        let Waiting { what, held } = self.waiting.take()?;
        rings.release(&held);
        Some((what, held))
    }

    /// The places of rings that may stop by this message.
    fn stopped_by(&self, message: &Message) -> Vec<usize> {
        use Request::*;
        let words = message.payload.first_chunk::<8>().map(|bytes| {
            let word = u64::from_le_bytes(*bytes);
            (word as u32, word >> 32)
        });
        match (Request::of(message.header.request), words) {
            (Some(SetVringEnable), Some((_, enabled))) if enabled != 0 => Vec::new(),
            (Some(GetVringBase | SetVringEnable | SetVringAddr), Some((ring, _))) => {
                let ring = usize::try_from(ring).ok();
                ring.and_then(|ring| self.rings.get(ring)).copied().into_iter().collect()
            }
            (
                Some(
                    SetFeatures | SetMemTable | AddMemReg | RemMemReg | SetLogBase | SetInflightFd
                    | ResetDevice | ResetOwner,
                ),
                _,
            ) => self.rings.clone(),
            _ => Vec::new(),
        }
    }
}
