//! The server, for another process: what is told of it, and what comes along.

use super::{NbdStore, Reached, waits};
use crate::config::Server;
use crate::storage::tls;
use anyhow::{Context as _, Result};
use nbd::Export;
use rustix::fd::{AsFd as _, OwnedFd};

impl NbdStore {
    /// The server, for another process, with the connections at which nothing is under way and
    /// which aren't over TLS. For one that can't open files nor make all that it needs, that comes
    /// along, too.
    ///
    /// # Errors
    ///
    /// The system's; in a sentence, if a file can't be opened.
    pub fn for_another(&self, confined: Option<&Server>) -> Result<(Reached, Vec<OwnedFd>)> {
        let Export { size, flags, minimum_block, structured } = self.export;
        let addresses = self.addresses.clone();
        let flags = flags.bits();
        let files = confined.map(tls::copies).transpose()?;
        let prepared = files.as_ref().map(Vec::len);
        let reached = Reached { addresses, size, flags, minimum_block, structured, prepared };
        let is_busy = |at: usize| self.jobs.iter().any(|(_, job)| job.link == Some(at));
        let mut all = Vec::new();
        for (at, link) in self.links.iter().enumerate() {
            if let Some(link) = link.as_ref().filter(|link| link.can_be_given() && !is_busy(at)) {
                all.push(link.as_fd().try_clone_to_owned().context("there are too many files")?);
            }
        }
        if let Some(files) = files {
            all.extend(files);
            all.extend(waits()?);
        }
        Ok((reached, all))
    }
}
