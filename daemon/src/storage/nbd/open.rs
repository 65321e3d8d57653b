//! A server's disk is opened, or the server only looked at.
//!
//! Guarantees: a disk is given of a server that said what it has, to this process or to the one
//! that reached it; a server that is only looked at is said no word.

use super::{Bounds, GIVE_UP, LINKS, MOST_WRITTEN, NbdStore, Reached, TIMER, waits};
use crate::config::Server;
use crate::storage::MOST;
use crate::storage::link::Address;
use crate::storage::tls::{self, Identity};
use anyhow::{Context as _, Result, bail};
use nbd::{Export, ExportFlags, Place, Uri};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::OwnedFd;
use slab::Slab;
use std::collections::VecDeque;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

/// How long a server is waited for that is only looked at.
const LOOK: Duration = Duration::from_secs(3);
/// How long a connection may take until it has shaken hands.
const SHAKE: Duration = Duration::from_secs(10);

/// Where a server may be. The system's look-up of a name may take long.
fn addresses(place: &Place) -> Result<Vec<Address>> {
    match place {
        Place::Unix(path) => Ok(vec![Address::Unix(path.into())]),
        Place::Host(name, port) => {
            let found = (name.as_str(), *port).to_socket_addrs();
            let found = found.with_context(|| format!("{name} has no address"))?;
            Ok(found.map(Address::Host).collect())
        }
    }
}

/// Whom TLS has to find there.
fn host(place: &Place) -> &str {
    match place {
        Place::Unix(_) => "",
        Place::Host(name, _) => name,
    }
}

/// Is this server there, and what TLS with it needs? It is said no word: some end with their first
/// client.
///
/// # Errors
///
/// In a sentence.
pub fn reached(server: &Server) -> Result<()> {
    let uri = Uri::parse(&server.uri)?;
    if let Some(tls) = &server.tls {
        Identity::new(tls, host(&uri.place), tls::files(server)?)?;
    }
    let mut why = anyhow::Error::msg("it has no address");
    for address in addresses(&uri.place)? {
        let tried = match &address {
            Address::Unix(path) => crate::door::reach(path).map(|_| ()),
            Address::Host(address) => {
                TcpStream::connect_timeout(address, LOOK).map(|_| ()).map_err(Into::into)
            }
        };
        match tried {
            Ok(()) => return Ok(()),
            Err(error) => why = error,
        }
    }
    Err(why
        .context(format!("{} can't be reached; start its server, or mend the address", server.uri)))
}

impl NbdStore {
    /// Connects; or goes on with the connections that another process made.
    ///
    /// # Errors
    ///
    /// In a sentence.
    pub fn open(
        server: &Server,
        read_only: bool,
        reached: Option<(Reached, Vec<OwnedFd>)>,
    ) -> Result<NbdStore> {
        let text = &server.uri[..];
        let uri = Uri::parse(text).with_context(|| format!("{text} is no NBD address"))?;
        let (reached, mut sockets) = match reached {
            Some((reached, sockets)) => (Some(reached), sockets),
            None => (None, Vec::new()),
        };
        let (mut files, [epoll, timer]) = match reached.as_ref().and_then(|r| r.prepared) {
            Some(count) => {
                let timer = sockets.pop().context("a timer didn't come along")?;
                let epoll = sockets.pop().context("an epoll instance didn't come along")?;
                let at = sockets.len().checked_sub(count).context("files didn't come along")?;
                (sockets.split_off(at), [epoll, timer])
            }
            None => (Vec::new(), waits()?),
        };
        let identity = match &server.tls {
            None => None,
            Some(tls) => {
                if files.is_empty() {
                    files = tls::files(server)?;
                }
                Some(Identity::new(tls, host(&uri.place), files)?)
            }
        };
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN)?;
        let nothing =
            Export { size: 0, flags: ExportFlags::empty(), minimum_block: 1, structured: false };
        let was_reached = reached.is_some();
        let (addresses, export) = match reached {
            Some(Reached { addresses, size, flags, minimum_block, structured, .. }) => {
                let flags = ExportFlags::from_bits_truncate(flags);
                (addresses, Export { size, flags, minimum_block, structured })
            }
            None => (addresses(&uri.place)?, nothing),
        };
        if addresses.is_empty() {
            bail!("{text} has no address");
        }
        let mut store = NbdStore {
            name: text.to_owned(),
            export_name: uri.export,
            addresses,
            identity,
            export,
            links: vec![None],
            jobs: Slab::new(),
            written: 0,
            ended: VecDeque::new(),
            epoll,
            timer,
            timer_at: None,
            next: 0,
            tries: 0,
            answered: 0,
            flushed: 0,
            is_lost: false,
            gone_since: None,
            is_gone_said: false,
            bounds: Bounds {
                shake: SHAKE,
                silence: server.timeout,
                give_up: GIVE_UP,
                operations: MOST,
                written: MOST_WRITTEN,
            },
            settles: 0,
        };
        store.go_on_with(sockets)?;
        if store.links[0].is_none() && was_reached && store.identity.is_some() {
            // It is there, and shaking hands anew is nothing that others should wait for.
            store.gone_since = Some(Instant::now());
            store.try_again();
        } else if store.links[0].is_none() {
            store.first().with_context(|| format!("{text} can't be used"))?;
        }
        if store.export.flags.contains(ExportFlags::READ_ONLY) && !read_only {
            bail!("{text} can only be read: say --read-only");
        }
        if !read_only && !store.export.flags.contains(ExportFlags::FLUSH) {
            eprintln!("exitless-io: {text} has no flush: what is durable isn't known");
        }
        if store.export.flags.contains(ExportFlags::MULTI_CONN) {
            store.links.resize_with(LINKS.max(store.links.len()), || None);
            store.try_again();
        }
        Ok(store)
    }
}
