//! How a server is reached: the first connection, those that are lost and made again, what comes
//! at them.
//!
//! Guarantees: of a connection that hasn't shaken hands nothing is waited for longer than
//! `Bounds::shake`, and of one that was asked and says nothing, no longer than `Bounds::silence`;
//! while there is one of these, or none that has shaken hands, the timer runs, so that what waits
//! is given up in time. What came before a connection ended counts.

use super::{NbdStore, SILENCES};
use crate::storage::link::Link;
use anyhow::{Error, Result, bail};
use blk::Failure;
use nbd::{Command, Export};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::time::{Itimerspec, TimerfdTimerFlags, timerfd_settime};
use std::time::{Duration, Instant};

/// How long a server may take to answer at the start.
const FIRST: Duration = Duration::from_secs(10);
/// Between two tries to reach it, and the same if there is another connection.
const AGAIN: Duration = Duration::from_millis(200);
const SPARE_AGAIN: Duration = Duration::from_secs(5);
/// The shortest time that a timer is set to: none at all would stop it.
const SOON: Duration = Duration::from_millis(1);

impl NbdStore {
    /// Waits for the first connection.
    pub(super) fn first(&mut self) -> Result<()> {
        let began = Instant::now();
        let mut wrong = Error::msg("the server doesn't answer");
        while began.elapsed() < FIRST {
            if self.links[0].is_none() {
                let address = &self.addresses[self.tries % self.addresses.len()];
                self.tries += 1;
                match Link::new(address, &self.export_name, self.identity.as_ref()) {
                    Ok(link) => {
                        self.watch(0, &link)?;
                        self.links[0] = Some(link);
                    }
                    // A host may have others.
                    Err(error) if self.tries < self.addresses.len() => {
                        wrong = error;
                        continue;
                    }
                    Err(error) => return Err(error),
                }
            }
            let limit = Timespec { tv_sec: 1, tv_nsec: 0 };
            let _ = poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&limit));
            match self.hear(0) {
                Ok(()) if self.links[0].as_ref().is_some_and(Link::is_ready) => return Ok(()),
                Ok(()) => {}
                Err(error) => {
                    self.links[0] = None;
                    wrong = error;
                    if self.tries >= self.addresses.len() {
                        break;
                    }
                }
            }
        }
        Err(wrong)
    }

    /// Goes on with connections that another process made, which have shaken hands.
    pub(super) fn go_on_with(&mut self, sockets: Vec<OwnedFd>) -> Result<()> {
        self.links.resize_with(sockets.len().max(1), || None);
        for (at, socket) in sockets.into_iter().enumerate() {
            let link = Link::ready(socket, self.export.structured);
            self.watch(at, &link)?;
            self.links[at] = Some(link);
        }
        Ok(())
    }

    /// Takes what came at a connection.
    pub(super) fn hear(&mut self, at: usize) -> Result<()> {
        let Some(link) = self.links.get_mut(at).and_then(Option::as_mut) else { return Ok(()) };
        let mut wrong = link.push();
        let mut flags = EventFlags::IN;
        flags.set(EventFlags::OUT, link.is_sending());
        epoll::modify(&self.epoll, &*link, EventData::new_u64(at as u64), flags)?;
        // What came before a connection ended counts.
        wrong = wrong.and(link.read_some());
        let reached = link.shake()?;
        wrong = wrong.and(link.push());
        if let Some(export) = reached {
            self.reached(export)?;
        }
        if let Some(link) = self.links.get_mut(at).and_then(Option::as_mut) {
            let mut ended = Vec::new();
            wrong = wrong.and(link.replies(at, &mut self.jobs, &mut ended));
            ended.into_iter().for_each(|key| self.end(key));
        }
        wrong
    }

    /// A connection is there: what waits is asked for.
    fn reached(&mut self, export: Export) -> Result<()> {
        let old = &self.export;
        if old.size > export.size || !export.flags.contains(old.flags) {
            bail!("the export isn't what it was: it has {} bytes", export.size);
        }
        if old.size == 0 {
            self.export = export;
        }
        self.gone_since = None;
        if std::mem::take(&mut self.is_gone_said) {
            eprintln!("exitless-io: {}: the server is there again", self.name);
        }
        let waiting = self.jobs.iter().filter(|(_, job)| job.link.is_none());
        let waiting: Vec<usize> = waiting.map(|(key, _)| key).collect();
        waiting.into_iter().for_each(|key| self.send(key));
        Ok(())
    }

    /// A connection ended: what was asked for there is asked for anew.
    pub(super) fn lose(&mut self, at: usize, why: &Error) {
        let Some(link) = self.links.get_mut(at).and_then(Option::take) else { return };
        let _ = epoll::delete(&self.epoll, &link);
        let was_ready = link.is_ready();
        if was_ready {
            self.is_lost |= self.answered > self.flushed;
            self.flushed = self.answered;
        }
        if !self.links.iter().flatten().any(Link::is_ready) {
            self.miss(why);
        }
        let own = self.jobs.iter().filter(|(_, job)| job.link == Some(at));
        let own: Vec<usize> = own.map(|(key, _)| key).collect();
        let mut has_told = false;
        for key in own {
            let Some(job) = self.jobs.get_mut(key) else { continue };
            (job.link, job.result) = (None, Ok(()));
            let is_told = self.is_lost && job.command == Command::Flush && !job.is_abandoned;
            if is_told || job.is_abandoned {
                job.result = Err(Failure::Io);
                has_told |= is_told;
                self.end(key);
            } else {
                self.send(key);
            }
        }
        self.is_lost &= !has_told;
        self.set_timer();
    }

    /// There is no connection that has shaken hands. Why is said once.
    fn miss(&mut self, why: &Error) {
        self.gone_since.get_or_insert_with(Instant::now);
        if !std::mem::replace(&mut self.is_gone_said, true) {
            eprintln!("exitless-io: {}: the server is gone: {why:#}", self.name);
        }
    }

    /// Sets the timer to when there is something to do: a connection to make, or one that has been
    /// silent for too long. None: it is stopped.
    pub(super) fn set_timer(&mut self) {
        let now = Instant::now();
        let is_ready = |link: &Option<Link>| link.as_ref().is_some_and(Link::is_ready);
        let again = match self.links.iter().filter(|link| is_ready(link)).count() {
            0 => Some(now + AGAIN),
            count if count < self.links.len() => Some(now + SPARE_AGAIN),
            _ => None,
        };
        let links = self.links.iter().flatten();
        let silent = links.filter_map(|link| link.silent_at(self.bounds.silence));
        self.timer_at = silent.chain(again).min();
        let left = self.timer_at.map_or(Duration::ZERO, |at| at.duration_since(now).max(SOON));
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let it_value =
            Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        let when = Itimerspec { it_interval: none, it_value };
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &when);
    }

    /// A connection didn't answer in time. What wasn't answered so often fails, and the rest is
    /// asked for anew.
    fn lose_silent(&mut self, at: usize) {
        let mut failed = Vec::new();
        for (key, job) in self.jobs.iter_mut().filter(|(_, job)| job.link == Some(at)) {
            job.silences += 1;
            if job.silences >= SILENCES {
                (job.link, job.result, job.then_flush) = (None, Err(Failure::Io), false);
                failed.push(key);
            }
        }
        failed.into_iter().for_each(|key| self.end(key));
        self.lose(at, &Error::msg("it doesn't answer"));
    }

    /// Makes the connections that aren't there, or don't shake hands; gives up what has waited for
    /// too long.
    pub(super) fn try_again(&mut self) {
        let now = Instant::now();
        let mut wrong = None;
        for at in 0..self.links.len() {
            let takes_too_long =
                self.links[at].as_ref().is_some_and(|link| link.shakes_for(self.bounds.shake));
            if takes_too_long {
                self.lose(at, &Error::msg("it doesn't shake hands"));
            }
            let silent_at =
                self.links[at].as_ref().and_then(|link| link.silent_at(self.bounds.silence));
            if silent_at.is_some_and(|at| at <= now) {
                self.lose_silent(at);
            }
            if self.links[at].is_some() {
                continue;
            }
            let address = &self.addresses[self.tries % self.addresses.len()];
            self.tries = self.tries.wrapping_add(1);
            let link = Link::new(address, &self.export_name, self.identity.as_ref());
            match link.and_then(|link| self.watch(at, &link).map(|()| link)) {
                Ok(link) => self.links[at] = Some(link),
                Err(error) => wrong = Some(error),
            }
        }
        if let Some(why) = wrong.filter(|_| self.links.iter().all(Option::is_none)) {
            self.miss(&why);
        }
        if self.is_given_up() {
            let all: Vec<usize> = self.jobs.iter().map(|(key, _)| key).collect();
            for key in all {
                if let Some(job) = self.jobs.get_mut(key) {
                    job.result = Err(Failure::Io);
                    self.end(key);
                }
            }
        }
        self.set_timer();
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.gone_since.is_some_and(|since| since.elapsed() > self.bounds.give_up)
    }

    /// For how long there has been no server, and what that means for requests.
    pub fn trouble(&self) -> Option<String> {
        let seconds = self.gone_since?.elapsed().as_secs();
        let requests = if self.is_given_up() { "fail" } else { "wait" };
        Some(format!("its server has been gone for {seconds} s, and requests {requests}"))
    }

    fn watch(&self, at: usize, link: &Link) -> Result<()> {
        let flags = EventFlags::IN | EventFlags::OUT;
        epoll::add(&self.epoll, link, EventData::new_u64(at as u64), flags)?;
        Ok(())
    }
}
