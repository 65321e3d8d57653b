//! Signals, as something that the loop can wait for.

use anyhow::{Context as _, Result};
use rustix::fd::{AsFd, BorrowedFd};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::pipe;
use std::io::ErrorKind;
use std::os::unix::net::UnixStream;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM or SIGINT.
    End,
    /// SIGHUP.
    Reload,
}

/// The ends of two sockets into which the handlers write.
pub struct Signals {
    end: UnixStream,
    reload: UnixStream,
    both: rustix::fd::OwnedFd,
}

impl Signals {
    /// Signals don't end the program from now on.
    pub fn new() -> Result<Signals> {
        let make = |signals: &[i32]| -> Result<UnixStream> {
            let (ours, theirs) = UnixStream::pair()?;
            ours.set_nonblocking(true)?;
            for signal in signals {
                pipe::register(*signal, theirs.try_clone()?)?;
            }
            Ok(ours)
        };
        let end = make(&[SIGTERM, SIGINT]).context("the system refuses handlers of signals")?;
        let reload = make(&[SIGHUP]).context("the system refuses handlers of signals")?;
        use rustix::event::epoll;
        let both = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for socket in [&end, &reload] {
            epoll::add(&both, socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        Ok(Signals { end, reload, both })
    }

    /// Those that came.
    pub fn take(&self) -> Vec<Signal> {
        // By `read`, which every sandbox allows; what std reads sockets by is refused in some.
        let came = |socket: &UnixStream| match rustix::io::read(socket, &mut [0; 64]) {
            Err(error) => error.kind() != ErrorKind::WouldBlock,
            Ok(count) => count > 0,
        };
        let end = came(&self.end).then_some(Signal::End);
        end.into_iter().chain(came(&self.reload).then_some(Signal::Reload)).collect()
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.both.as_fd()
    }
}
