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
}

impl<const RING: usize> Queues<RING> {
    /// Without any, with places for those of so many pairs.
    pub fn new(pairs: u16) -> Self {
        Queues {
            receive: (0..pairs).map(|_| Receive::new()).collect(),
            transmit: (0..pairs).map(|_| Served::new()).collect(),
            control: Served::new(),
        }
    }

    /// Has none any more.
    pub fn clear(&mut self) {
        self.receive.iter_mut().for_each(|receive| receive.set(None));
        self.transmit.iter_mut().for_each(|served| served.set(None));
        self.control.set(None);
    }

    /// Has this queue for this purpose from now on. None if it has no place.
    pub fn attach(&mut self, kind: QueueKind, queue: Queue<RING>) -> Option<()> {
        match kind {
            QueueKind::Receive(pair) => {
                self.receive.get_mut(usize::from(pair))?.set(Some(queue));
            }
            QueueKind::Transmit(pair) => {
                self.transmit.get_mut(usize::from(pair))?.set(Some(queue));
            }
            QueueKind::Control => self.control.set(Some(queue)),
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
            QueueKind::Control => &mut self.control,
        };
        let queue = served.queue.take();
        served.set(None);
        queue
    }

    /// The queue of this purpose.
    pub fn queue(&mut self, kind: QueueKind) -> Option<&mut Queue<RING>> {
        match kind {
            QueueKind::Receive(pair) => self.receive.get_mut(usize::from(pair))?.queue.as_mut(),
            QueueKind::Transmit(pair) => self.transmit.get_mut(usize::from(pair))?.queue.as_mut(),
            QueueKind::Control => self.control.queue.as_mut(),
        }
    }
}
