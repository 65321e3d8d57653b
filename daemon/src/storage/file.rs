//! A disk that is a file or block device: by io_uring, in any order; or, where the system forbids
//! that, by calls that wait.
//!
//! Guarantees: a flush succeeds when the file is durable; a file that became shorter fails all that
//! comes after that was noticed: at a read beyond its end, at a flush, at a write of its last
//! bytes, and at each [`LOOKS`]th operation. A write in between makes it longer again, but not as
//! long as it was, so that it is noticed nevertheless. Direct I/O goes around the page cache for
//! whole pages that are aligned as the file asks, and not for the rest: so no page is written both
//! ways but by a guest that writes the same sectors twice at a time. What is under way is bounded.

use super::MOST;
use super::emptying::{Emptying, Step, Ways};
use super::locked::too_much;
use super::open::{Access, Opened, open, taken_over};
use anyhow::{Context as _, Result, bail};
use blk::{Completion, Failure, Operation, SECTOR, Submitted, Token};
use daemon_os::{GuestRegion, Mapping, Task, Uring, pinned_bytes, read_at, write_at};
use plan::Size;
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, fallocate, fdatasync};
use rustix::io::{Errno, retry_on_intr};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use window::Span;

/// The ring's files, by their places.
const BUFFERED: usize = 0;
const DIRECT: usize = 1;

/// Bytes of a page of the page cache.
const PAGE: u64 = 4096;

/// Bytes that count as locked besides: those of rings, of which most are spare.
const RINGS: u64 = 4 << 20;

/// Operations between two looks at the file's size.
const LOOKS: u32 = 64;

/// The file.
pub struct FileStore {
    name: String,
    opened: Opened,
    ring: Option<Uring>,
    /// It became shorter, or the ring failed.
    has_failed: bool,
    /// What it can't is found out.
    ways: Ways,
    /// Discards and write-zeroes that are under way, by their numbers, each with its step.
    emptying: HashMap<u64, (Emptying, Step)>,
    /// A block of zeroes.
    zeroes: Mapping,
    /// Operations until the file's size is looked at.
    unseen: u32,
    /// Guests' memory is held by the ring, as far as it may be.
    pins: bool,
    /// That some may not be was said.
    is_refused: bool,
}

impl FileStore {
    /// Opens it. If there is no io_uring, the log says so.
    ///
    /// # Errors
    ///
    /// In a sentence.
    pub fn open(path: &Path, access: Access) -> Result<FileStore> {
        Self::with(path, access, true)
    }

    /// With io_uring or without.
    pub fn with(path: &Path, access: Access, by_ring: bool) -> Result<FileStore> {
        Self::of(path, open(path, access)?, by_ring)
    }

    /// Files that another program opened and locked, of this many bytes then; for it they had
    /// failed, or not.
    ///
    /// # Errors
    ///
    /// If they say nothing of themselves.
    pub fn opened(
        path: &Path,
        files: Vec<OwnedFd>,
        size: u64,
        has_failed: bool,
    ) -> Result<FileStore> {
        let file = Self::of(path, taken_over(path, files, size)?, true)?;
        Ok(FileStore { has_failed, ..file })
    }

    /// Does all fail from now on?
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Its descriptors, once more: the locks are those of all copies.
    ///
    /// # Errors
    ///
    /// If there are too many.
    pub fn copies(&self) -> io::Result<Vec<OwnedFd>> {
        let Opened { file, direct, .. } = &self.opened;
        let mut all = vec![file.as_fd().try_clone_to_owned()?];
        if let Some((direct, ..)) = direct {
            all.push(direct.as_fd().try_clone_to_owned()?);
        }
        Ok(all)
    }

    fn of(path: &Path, opened: Opened, by_ring: bool) -> Result<FileStore> {
        let name = path.display().to_string();
        let mut files = vec![opened.file.as_fd()];
        files.extend(opened.direct.iter().map(|(file, ..)| file.as_fd()));
        let ring = match Uring::new(&files) {
            _ if !by_ring => None,
            Ok(ring) => Some(ring),
            Err(error) if error.kind() == ErrorKind::QuotaExceeded => bail!(
                "{name}: all rings for files are in use that were made before this program gave \
                 up making any; `exitless-io upgrade` makes new ones"
            ),
            Err(error) => {
                eprintln!(
                    "exitless-io: the system has no io_uring ({error}), so each access to {name} \
                     is waited for"
                );
                None
            }
        };
        let zeroes = Mapping::anonymous(opened.unit.next_multiple_of(PAGE));
        let zeroes = zeroes.with_context(|| format!("{name}: there is no memory for zeroes"))?;
        Ok(FileStore {
            name,
            opened,
            ring,
            has_failed: false,
            ways: Ways { punches: true, zeroes: true },
            emptying: HashMap::new(),
            zeroes,
            unseen: LOOKS,
            pins: false,
            is_refused: false,
        })
    }

    /// Guests' memory is held by the ring from now on, or isn't.
    pub fn set_pins(&mut self, pins: bool) {
        self.pins = pins;
    }

    /// Is guests' memory held?
    pub fn pins(&self) -> bool {
        self.pins && self.ring.is_some()
    }

    /// Has the ring hold these regions, if it is to. The log says it once if some can't be: they
    /// are served as without.
    pub fn pin(&mut self, mut regions: Vec<GuestRegion>) -> Vec<GuestRegion> {
        let Some(ring) = self.ring.as_mut().filter(|_| self.pins) else { return regions };
        for region in regions.iter_mut().filter(|region| region.pinned.is_none()) {
            match ring.pin(&region.mapping) {
                Ok(pinned) => region.pinned = Some(Arc::new(pinned)),
                Err(_) if self.is_refused => {}
                Err(error) => {
                    self.is_refused = true;
                    let bytes = region.mapping.bytes();
                    let too_much = too_much(pinned_bytes() + bytes + RINGS, &self.name)
                        .filter(|_| error.raw_os_error() == Some(Errno::NOMEM.raw_os_error()));
                    let why = too_much.unwrap_or_else(|| format!("the system says: {error}"));
                    eprintln!(
                        "exitless-io: {}: {} of a guest's memory isn't pinned, and is served as \
                         without that: {why}",
                        self.name,
                        Size(bytes)
                    );
                }
            }
        }
        regions
    }

    /// Bytes of a block, if it is a block device.
    pub fn block(&self) -> Option<u64> {
        (!self.opened.is_regular).then_some(self.opened.unit)
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.opened.size
    }

    /// Is each access waited for?
    pub fn waits(&self) -> bool {
        self.ring.is_none()
    }

    pub fn outstanding(&self) -> usize {
        self.ring.as_ref().map_or(0, Uring::outstanding)
    }

    pub fn push(&mut self) {
        if let Some(ring) = &mut self.ring
            && let Err(error) = ring.push()
            && !self.has_failed
        {
            self.fail(&format!("io_uring fails: {error}"));
        }
    }

    pub fn ended(&self) -> Option<BorrowedFd<'_>> {
        self.ring.as_ref().map(|ring| ring.as_fd())
    }

    pub fn how(&self) -> &'static str {
        match (&self.ring, &self.opened.direct) {
            (Some(_), Some(_)) => "direct I/O by io_uring",
            (Some(_), None) => "by io_uring through the page cache",
            (None, _) => "by calls that wait, through the page cache",
        }
    }

    pub fn submit(&mut self, token: Token, operation: Operation<'_>) -> Submitted {
        if !self.has_failed && self.outstanding() >= MOST {
            return Submitted::Full;
        }
        let task = task(operation);
        self.unseen = self.unseen.saturating_sub(1);
        if self.unseen == 0 || task.as_ref().is_some_and(|task| self.may_hide(task)) {
            self.look_at_size();
        }
        if self.has_failed {
            return Submitted::Done(Err(Failure::Io));
        }
        let Some(task) = task else {
            return match Emptying::of(operation, self.opened.unit) {
                Some(one) => match self.empty(token.bits(), one) {
                    Some(result) => Submitted::Done(result),
                    None => Submitted::Accepted,
                },
                None => Submitted::Done(Err(Failure::Io)),
            };
        };
        let file = self.file_for(&task);
        match &mut self.ring {
            Some(ring) => {
                ring.ask(token.bits(), file, task);
                Submitted::Accepted
            }
            None => {
                let result = wait_for(&self.opened.file, task);
                Submitted::Done(self.note(result))
            }
        }
    }

    pub fn poll(&mut self) -> Option<Completion> {
        loop {
            let (number, result) = self.ring.as_mut()?.take_ended()?;
            let token = Token::from_bits(number);
            // Most are none of these.
            let emptied = match self.emptying.is_empty() {
                true => None,
                false => self.emptying.remove(&number),
            };
            let Some((mut one, step)) = emptied else {
                return Some(Completion { token, result: self.note(result) });
            };
            let ended = match one.ended(step, result, &mut self.ways) {
                Ok(()) => self.empty(number, one),
                Err(error) => Some(self.note(Err(error))),
            };
            if let Some(result) = ended {
                return Some(Completion { token, result });
            }
        }
    }

    /// Goes on with a discard or write-zeroes: how it has ended, if it has.
    fn empty(&mut self, number: u64, mut one: Emptying) -> Option<Result<(), Failure>> {
        loop {
            let step = match one.next(self.ways) {
                Ok(Some(step)) => step,
                Ok(None) => return Some(Ok(())),
                Err(_) => return Some(Err(Failure::Unsupported)),
            };
            let Some(span) = self.zeroes.span() else { return Some(Err(Failure::Io)) };
            let (mut spans, file) = ([span], &self.opened.file);
            let Some(task) = one.task(step, &mut spans) else { return Some(Err(Failure::Io)) };
            if let Some(ring) = &mut self.ring {
                ring.ask(number, BUFFERED, task);
                self.emptying.insert(number, (one, step));
                return None;
            }
            let result = wait_for(file, task);
            if let Err(error) = one.ended(step, result, &mut self.ways) {
                return Some(self.note(Err(error)));
            }
        }
    }

    /// By which descriptor a task is done.
    fn file_for(&self, task: &Task<'_>) -> usize {
        let (offset, spans) = match *task {
            Task::Read { offset, into } => (offset, into),
            Task::Write { offset, from, .. } => (offset, from),
            _ => return BUFFERED,
        };
        let direct = self.opened.direct.as_ref();
        let fits =
            direct.is_some_and(|(_, memory, unit)| goes_direct(offset, spans, *memory, *unit));
        if fits { DIRECT } else { BUFFERED }
    }

    /// What the guest is told of how a task ended.
    fn note(&mut self, result: io::Result<()>) -> Result<(), Failure> {
        let Err(error) = result else { return Ok(()) };
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::OPNOTSUPP) => return Err(Failure::Unsupported),
            _ if error.kind() == ErrorKind::UnexpectedEof => self.look_at_size(),
            _ => {}
        }
        Err(Failure::Io)
    }

    /// Whether the size must be looked at before this: it promises that all is there, or makes the
    /// file as long as it was.
    fn may_hide(&self, task: &Task<'_>) -> bool {
        match task {
            Task::Sync => true,
            Task::Write { offset, from, .. } => {
                let left = self.opened.size.saturating_sub(*offset);
                from.iter().map(Span::len).sum::<u64>() >= left
            }
            _ => false,
        }
    }

    fn look_at_size(&mut self) {
        self.unseen = LOOKS;
        if !self.opened.is_regular {
            return;
        }
        let size = self.opened.file.metadata().map_or(0, |kind| kind.len());
        if size < self.opened.size && !self.has_failed {
            let was = self.opened.size;
            self.fail(&format!("it has {size} bytes, and had {was}; all accesses fail"));
        }
    }

    fn fail(&mut self, why: &str) {
        self.has_failed = true;
        eprintln!("exitless-io: {}: {why}", self.name);
    }
}

/// Whether this is aligned as the file asks, and whole pages: a sector that is written around the
/// page cache could otherwise be lost to another one of its page that is written through it.
pub(super) fn goes_direct(offset: u64, spans: &[Span], memory: u64, unit: u64) -> bool {
    let fits = |span: &Span| {
        (span.as_ptr().addr() as u64).is_multiple_of(memory) && span.len().is_multiple_of(unit)
    };
    let len: u64 = spans.iter().map(Span::len).sum();
    let is_whole = |bytes: u64| bytes.is_multiple_of(PAGE) && bytes.is_multiple_of(unit);
    is_whole(offset) && is_whole(len) && spans.iter().all(fits)
}

/// None: it is no single task, or its bytes don't fit 64 bits.
fn task(operation: Operation<'_>) -> Option<Task<'_>> {
    let at = |sector: u64| sector.checked_mul(SECTOR);
    Some(match operation {
        Operation::Read { sector, into } => Task::Read { offset: at(sector)?, into },
        Operation::Write { sector, from, durable } => {
            Task::Write { offset: at(sector)?, from, durable }
        }
        Operation::Flush => Task::Sync,
        Operation::Discard { .. } | Operation::WriteZeroes { .. } => return None,
    })
}

/// The same task by calls that wait.
fn wait_for(file: &File, task: Task<'_>) -> io::Result<()> {
    let allocate = |mode, offset, len, durable| -> io::Result<()> {
        retry_on_intr(|| fallocate(file, mode | FallocateFlags::KEEP_SIZE, offset, len))?;
        if durable { Ok(retry_on_intr(|| fdatasync(file))?) } else { Ok(()) }
    };
    match task {
        Task::Read { offset, into } => read_at(file, offset, into),
        Task::Write { offset, from, durable } => {
            write_at(file, offset, from)?;
            if durable { Ok(retry_on_intr(|| fdatasync(file))?) } else { Ok(()) }
        }
        Task::Sync => Ok(retry_on_intr(|| fdatasync(file))?),
        Task::Punch { offset, len, durable } => {
            allocate(FallocateFlags::PUNCH_HOLE, offset, len, durable)
        }
        Task::Zero { offset, len, durable } => {
            allocate(FallocateFlags::ZERO_RANGE, offset, len, durable)
        }
    }
}
