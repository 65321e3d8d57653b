//! Disks on an NVMe controller that this program drives, with the sidecore's driver: crate `nvme`.
//!
//! The controller sends no interrupt: as long as something is under way there it is looked at,
//! without a pause for [`EAGER`], then at growing distances. With nothing under way nobody looks.
//!
//! Guarantees: as the driver's; two disks have no byte in common unless neither writes; what ends
//! of a disk that is gone is nobody else's. A controller that doesn't stop is cut off from all
//! memory before what it was asked for fails.

use crate::clock::{Clock, HERTZ};
use anyhow::{Context as _, Result, bail};
use blk::{Backend as _, Completion, Operation, Submitted, Token};
use nvme::{Abilities, Controller, Part, Registers, State, Times};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

/// As long as a ring without requests is polled.
const EAGER: u64 = HERTZ / 5_000;
/// After that the next look is later by this part of the time since something ended, and at most by
/// this time: 10 ms.
const LATER: u64 = 8;
const LATEST: u64 = HERTZ / 100;
/// What is wrong is said so often at most.
const TOLD: u64 = HERTZ;

/// A disk's part, by its number.
struct Cut {
    part: Part,
    writes: bool,
    /// A disk has it.
    is_used: bool,
    /// Operations that were accepted and not polled.
    under_way: usize,
    ended: VecDeque<Completion>,
}

/// A controller, and the disks on it.
pub struct Driven<R> {
    pub name: String,
    controller: Controller<R>,
    clock: Clock,
    cuts: Vec<Cut>,
    /// Takes all memory from it.
    cut_off: Box<dyn FnMut() -> io::Result<()>>,
    is_lost: bool,
    /// Something was asked for or has ended, since it was last looked; when that was.
    is_fresh: bool,
    last: u64,
    told: Option<u64>,
}

impl<R: Registers> Driven<R> {
    /// Starts it.
    ///
    /// # Errors
    ///
    /// In a sentence, without its name.
    pub fn start(
        name: &str,
        clock: Clock,
        make: impl FnOnce(Times, u64) -> Option<Controller<R>>,
        cut_off: Box<dyn FnMut() -> io::Result<()>>,
        mut pause: impl FnMut(),
    ) -> Result<Self> {
        let controller =
            make(Times::usual(HERTZ), clock.now()).context("its memory isn't whole")?;
        let mut driven = Driven {
            name: name.to_owned(),
            controller,
            clock,
            cuts: Vec::new(),
            cut_off,
            is_lost: false,
            is_fresh: false,
            last: 0,
            told: None,
        };
        while driven.controller.state() == State::Starting {
            driven.controller.step(driven.clock.now());
            driven.controller.poll();
            pause();
        }
        match driven.controller.state() {
            State::Dead(fault) | State::Unstopped(fault) => bail!("{fault}"),
            _ => Ok(driven),
        }
    }

    /// Has it keep what it holds, as before power is taken away; it serves nothing after that.
    pub fn shut_down(&mut self, mut pause: impl FnMut()) {
        // What never ended isn't waited for: whoever gives the device back has it reset.
        while self.controller.under_way() == 0 {
            self.controller.step(self.clock.now());
            self.controller.poll();
            if self.controller.shut_down() {
                break;
            }
            pause();
        }
        self.tell();
    }

    /// Cuts a disk from it, from this byte on; without a size, all that there is. Its number, and
    /// its bytes.
    fn cut(&mut self, first: u64, size: Option<u64>, writes: bool) -> Result<(u16, u64)> {
        let namespace = self.controller.namespace().context("the controller isn't ready")?;
        let all = namespace.bytes();
        let bytes = size.unwrap_or(all.saturating_sub(first));
        if bytes == 0 {
            bail!("its offset is {first}, and the namespace has {all} bytes");
        }
        let part = Part { first, bytes };
        let end = |part: Part| part.first.saturating_add(part.bytes);
        let is_in = |cut: &&Cut| cut.part.first < end(part) && first < end(cut.part);
        let mut used = self.cuts.iter().filter(|cut| cut.is_used && (writes || cut.writes));
        if used.any(|cut| is_in(&cut)) {
            bail!("another disk has bytes of this part; move or shorten one of the two");
        }
        let same = self.cuts.iter_mut().zip(0..).find(|(cut, _)| !cut.is_used && cut.part == part);
        if let Some((cut, number)) = same {
            if cut.under_way > 0 {
                bail!("what a disk that was removed asked for hasn't ended");
            }
            (cut.is_used, cut.writes) = (true, writes);
            return Ok((number, bytes));
        }
        let number = self.controller.add_disk(part)?;
        self.cuts.push(Cut { part, writes, is_used: true, under_way: 0, ended: VecDeque::new() });
        Ok((number, bytes))
    }

    fn cut_of(&mut self, number: u16) -> Option<&mut Cut> {
        self.cuts.get_mut(usize::from(number))
    }

    fn submit(&mut self, number: u16, token: Token, operation: Operation<'_>) -> Submitted {
        if self.controller.under_way() == 0 {
            // Nobody has looked since: its time is an old one.
            self.controller.step(self.clock.now());
        }
        let submitted = self.controller.disk(number).submit(token, operation);
        if submitted == Submitted::Accepted
            && let Some(cut) = self.cut_of(number)
        {
            cut.under_way += 1;
            self.is_fresh = true;
        }
        submitted
    }

    fn step(&mut self) {
        let now = self.clock.now();
        if std::mem::take(&mut self.is_fresh) {
            self.last = now;
        }
        self.controller.step(now);
        if self.controller.state() != State::Running {
            self.not_running();
        }
    }

    #[cold]
    fn not_running(&mut self) {
        if let State::Unstopped(_) = self.controller.state()
            && !self.is_lost
        {
            match (self.cut_off)() {
                Ok(()) => self.controller.cut_off(),
                Err(error) => {
                    // What it was asked for never ends: its memory stays locked.
                    self.is_lost = true;
                    eprintln!("exitless-io: {} can't be cut off from memory: {error}", self.name);
                }
            }
        }
        self.tell();
    }

    /// What is wrong, if that is news.
    fn tell(&mut self) {
        let Some(fault) = self.controller.take_fault() else { return };
        let now = self.clock.now();
        if self.told.is_some_and(|told| now.saturating_sub(told) < TOLD) {
            return;
        }
        self.told = Some(now);
        let then = match self.controller.state() {
            State::Dead(_) | State::Unstopped(_) => "given up",
            State::ShutDown => "left as it is",
            _ => "reset",
        };
        eprintln!("exitless-io: {} is {then}: {fault}", self.name);
    }

    fn poll(&mut self, number: u16) -> Option<Completion> {
        loop {
            let cut = self.cut_of(number)?;
            if let Some(ended) = cut.ended.pop_front() {
                cut.under_way -= 1;
                return Some(ended);
            }
            let (whose, ended) = self.controller.poll()?;
            self.is_fresh = true;
            match self.cut_of(whose) {
                Some(cut) if cut.is_used => cut.ended.push_back(ended),
                // Its disk is gone.
                cut => cut.into_iter().for_each(|cut| cut.under_way -= 1),
            }
        }
    }

    /// After how long to look again, if something is under way.
    fn look_after(&self) -> u64 {
        let since = self.clock.now().saturating_sub(self.last);
        if self.is_fresh || since < EAGER { 0 } else { (since / LATER).min(LATEST) }
    }
}

/// A disk on a controller.
pub struct NvmeStore<R: Registers> {
    driven: Rc<RefCell<Driven<R>>>,
    number: u16,
    bytes: u64,
    abilities: Abilities,
}

impl<R: Registers> NvmeStore<R> {
    /// The part of it from this byte on; without a size, all that there is.
    ///
    /// # Errors
    ///
    /// In a sentence, without the controller's name.
    pub fn new(
        driven: &Rc<RefCell<Driven<R>>>,
        offset: u64,
        size: Option<u64>,
        writes: bool,
    ) -> Result<Self> {
        let mut on = driven.borrow_mut();
        let abilities = on.controller.abilities().context("the controller isn't ready")?;
        if abilities.protected && writes {
            bail!("it is write-protected: make the disk read-only");
        }
        let (number, bytes) = on.cut(offset, size, writes)?;
        Ok(NvmeStore { driven: driven.clone(), number, bytes, abilities })
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.bytes
    }

    pub fn abilities(&self) -> Abilities {
        self.abilities
    }

    /// The controller's name.
    pub fn name(&self) -> String {
        self.driven.borrow().name.clone()
    }

    /// Operations that haven't ended; one more if the controller is being started anew.
    pub fn outstanding(&self) -> usize {
        let mut driven = self.driven.borrow_mut();
        let starts = driven.controller.state() == State::Starting;
        driven.cut_of(self.number).map_or(0, |cut| cut.under_way) + usize::from(starts)
    }

    pub fn push(&mut self) {
        self.driven.borrow_mut().step();
    }

    /// After how long to look again what has ended, if something is under way.
    pub fn look_after(&self) -> u64 {
        self.driven.borrow().look_after()
    }

    pub fn submit(&mut self, token: Token, operation: Operation<'_>) -> Submitted {
        self.driven.borrow_mut().submit(self.number, token, operation)
    }

    pub fn poll(&mut self) -> Option<Completion> {
        self.driven.borrow_mut().poll(self.number)
    }
}

impl<R: Registers> Drop for NvmeStore<R> {
    fn drop(&mut self) {
        let mut driven = self.driven.borrow_mut();
        if let Some(cut) = driven.cut_of(self.number) {
            cut.is_used = false;
            cut.under_way -= cut.ended.len();
            cut.ended.clear();
        }
    }
}
