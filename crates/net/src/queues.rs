//! The queues of a port. They are apart from what else there is of it, and emptied in place: they
//! are large, and the stack that they would be moved by may be small.
use crate::config::QueueKind;
use crate::error::Broken;
use crate::receive::Receive;
use alloc::boxed::Box;
use virtqueue::{Chain, Queue};
use window::Window;

/// A transmit or control queue.
#[derive(Debug)]
pub struct Served<const RING: usize> {
    /// The queue, while there is one.
    pub queue: Option<Queue<RING>>,
    /// Why it can't be used any more.
    pub broken: Option<Broken>,
}

impl<const RING: usize> Served<RING> {
    /// Without a queue.
    pub const fn new() -> Served<RING> {
        Served { queue: None, broken: None }
    }

    /// Has this queue from now on, or none.
    pub fn set(&mut self, queue: Option<Queue<RING>>) {
        (self.queue, self.broken) = (queue, None);
    }

    /// The queue, if it isn't broken.
    #[inline(always)]
    pub fn taking(&mut self) -> Option<&mut Queue<RING>> {
        self.queue.as_mut().filter(|_| self.broken.is_none())
    }

    /// It can't be used any more.
    #[cold]
    pub fn breaks(&mut self, broken: Broken) -> Broken {
        self.broken = Some(broken);
        broken
    }

    /// Takes the next chain, if there is one.
    #[inline]
    pub fn take(&mut self, window: &Window, chain: &mut Chain) -> Result<bool, Broken> {
        if let Some(broken) = self.broken {
            return Err(broken);
        }
        let Some(queue) = &mut self.queue else { return Ok(false) };
        queue.take(window, chain).map_err(|broken| self.breaks(broken.into()))
    }
}

/// Whether chains wait, or a ring that is broken: that is found out when one is taken.
pub fn waits<const RING: usize>(queue: &Queue<RING>) -> bool {
    !matches!(queue.available(), Ok(0))
}

/// All queues of a port.
#[derive(Debug)]
pub struct Queues<const RING: usize> {
    /// By pairs.
    pub receive: Box<[Receive<RING>]>,
    /// By pairs.
    pub transmit: Box<[Served<RING>]>,
    /// The control queue.
    pub control: Served<RING>,
    /// Its index, while it is attached.
    control_at: Option<u16>,
}

impl<const RING: usize> Queues<RING> {
    /// Without any, with places for those of so many pairs.
    pub fn new(pairs: u16) -> Self {
        Queues {
            receive: (0..pairs).map(|_| Receive::new()).collect(),
            transmit: (0..pairs).map(|_| Served::new()).collect(),
            control: Served::new(),
            control_at: None,
        }
    }

    /// Has none any more.
    pub fn clear(&mut self) {
        self.receive.iter_mut().for_each(|receive| receive.set(None));
        self.transmit.iter_mut().for_each(|served| served.set(None));
        self.control.set(None);
        self.control_at = None;
    }

    /// Has this queue for this purpose, which is that of its index, from now on. None if it has no
    /// place.
    pub fn attach(&mut self, index: u16, kind: QueueKind, queue: Queue<RING>) -> Option<()> {
        match kind {
            QueueKind::Receive(pair) => {
                self.receive.get_mut(usize::from(pair))?.set(Some(queue));
            }
            QueueKind::Transmit(pair) => {
                self.transmit.get_mut(usize::from(pair))?.set(Some(queue));
            }
            QueueKind::Control => {
                self.control.set(Some(queue));
                self.control_at = Some(index);
            }
        }
        Some(())
    }

    /// Has it no more.
    pub fn detach(&mut self, kind: QueueKind) -> Option<Queue<RING>> {
        let served = match kind {
            QueueKind::Receive(pair) => {
                let receive = self.receive.get_mut(usize::from(pair))?;
                let queue = receive.queue.take();
                receive.set(None);
                return queue;
            }
            QueueKind::Transmit(pair) => self.transmit.get_mut(usize::from(pair))?,
            QueueKind::Control => {
                self.control_at = None;
                &mut self.control
            }
        };
        let queue = served.queue.take();
        served.set(None);
        queue
    }

    /// The queue of this index. What is attached says by its place what it is for: none of its
    /// driver's wishes has to be looked at.
    #[inline]
    pub fn queue(&mut self, index: u16) -> Option<&mut Queue<RING>> {
        let pair = usize::from(index / 2);
        if self.control_at == Some(index) {
            self.control.queue.as_mut()
        } else if index.is_multiple_of(2) {
            self.receive.get_mut(pair)?.queue.as_mut()
        } else {
            self.transmit.get_mut(pair)?.queue.as_mut()
        }
    }

    /// The queue of this index if it is one that has turns, and whether it is the control queue.
    #[inline]
    pub fn with_turns(&self, index: u16) -> Option<(&Queue<RING>, bool)> {
        if self.control_at == Some(index) {
            return Some((self.control.queue.as_ref()?, true));
        }
        let is_sent_by = !index.is_multiple_of(2);
        let served = self.transmit.get(usize::from(index / 2)).filter(|_| is_sent_by)?;
        Some((served.queue.as_ref()?, false))
    }
}
