//! Signals, as something that the loop can wait for.

use anyhow::{Context as _, Result};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::pipe;
use std::io::{PipeReader, pipe as new_pipe};

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM or SIGINT.
    End,
    /// SIGHUP.
    Reload,
}

/// The ends of two pipes into which the handlers write. Into sockets they would send, which is a
/// system call of its own.
pub struct Signals {
    end: PipeReader,
    reload: PipeReader,
    both: rustix::fd::OwnedFd,
}

impl Signals {
    /// Signals don't end the program from now on.
    pub fn new() -> Result<Signals> {
        let make = |signals: &[i32]| -> Result<PipeReader> {
            let (ours, theirs) = new_pipe()?;
            fcntl_setfl(&ours, fcntl_getfl(&ours)? | OFlags::NONBLOCK)?;
            for signal in signals {
                pipe::register(*signal, theirs.try_clone()?)?;
            }
            Ok(ours)
        };
        let end = make(&[SIGTERM, SIGINT]).context("the system refuses handlers of signals")?;
        let reload = make(&[SIGHUP]).context("the system refuses handlers of signals")?;
        use rustix::event::epoll;
        let both = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for pipe in [&end, &reload] {
            epoll::add(&both, pipe, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        Ok(Signals { end, reload, both })
    }

    /// Those that came.
    pub fn take(&self) -> Vec<Signal> {
        let came = |pipe: &PipeReader| is_signal(rustix::io::read(pipe, &mut [0; 64]));
        let end = came(&self.end).then_some(Signal::End);
        end.into_iter().chain(came(&self.reload).then_some(Signal::Reload)).collect()
    }
}

/// Only what was read is one: a read that was interrupted is made again when it is told of anew.
fn is_signal(read: rustix::io::Result<usize>) -> bool {
    read.is_ok_and(|count| count > 0)
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.both.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::is_signal;
    use rustix::io::Errno;

    #[test]
    fn a_read_that_failed_is_no_signal() {
        assert!(is_signal(Ok(1)));
        for read in [Ok(0), Err(Errno::AGAIN), Err(Errno::INTR), Err(Errno::IO)] {
            assert!(!is_signal(read));
        }
    }
}
