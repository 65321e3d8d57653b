//! How the controller is started, watched and stopped (NVM Express Base Specification 2.0, 3.5):
//! steps that never wait.
//!
//! A controller that is late, or reports a fatal error, is reset. An Abort wouldn't do: only a
//! controller that has stopped (CSTS.RDY is 0) is known not to access the memory of a command any
//! more. So a command fails, for its disk, no sooner than that; and if the controller doesn't stop,
//! no sooner than its owner has cut it off from memory, and says so ([`Controller::cut_off`]).

use crate::command::{Command, Feature, Identify};
use crate::controller::Controller;
use crate::fault::{Fault, Unfit};
use crate::identify;
use crate::memory::{ENTRIES, IO};
use crate::registers::{
    ACQ, AQA, ASQ, CC, CONFIGURATION, CSTS, ENABLE, FATAL, GONE, INTMS, IS_SHUT_DOWN, READY,
    Registers, SHUT_DOWN, SHUTDOWN,
};
use crate::slots::{Ended, SLOTS};

/// Resets one after the other without a command that succeeds, after which a controller is given
/// up.
const MOST_RESETS: u32 = 3;
/// Admin completions that one step passes over at most.
const MOST_ADMIN: u32 = 64;

/// How long things may take, in ticks of the caller's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Half a second: the unit of CAP.TO.
    pub half_second: u64,
    /// Any command.
    pub command: u64,
    /// From one look at the controller's status to the next.
    pub look: u64,
    /// A shutdown.
    pub shutdown: u64,
}

impl Times {
    /// For a clock of so many ticks a second: 30 seconds for a command and 5 for a shutdown, as
    /// Linux has them.
    pub fn usual(hz: u64) -> Self {
        let seconds = |n| hz.saturating_mul(n);
        Self { half_second: hz / 2, command: seconds(30), look: hz / 100, shutdown: seconds(5) }
    }
}

/// What the owner is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Step on: it starts, or starts again.
    Starting,
    /// Serve disks.
    Running,
    /// It doesn't stop: take its memory away, then call [`Controller::cut_off`].
    Unstopped(Fault),
    /// It isn't used any more: everything fails.
    Dead(Fault),
    /// It is shut down, or has been told to: disks aren't served any more.
    ShutDown,
}

/// What comes after a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    Start,
    GiveUp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Made, and nothing done.
    Off,
    /// CC.EN is 0, CSTS.RDY not yet.
    Stopping {
        until: u64,
        then: Then,
    },
    /// It has stopped, and the commands from this slot on are failed.
    Failing {
        next: u16,
        then: Then,
    },
    /// CC.EN is 1, CSTS.RDY not yet.
    Enabling {
        until: u64,
    },
    /// An admin command is under way.
    Asking {
        question: Question,
        until: u64,
    },
    Running,
    /// It doesn't stop.
    Unstopped,
    Dead,
    /// CC.SHN is set, CSTS.SHST doesn't say complete yet.
    ShuttingDown {
        until: u64,
    },
    ShutDown,
}

/// The admin commands of a start, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    Controller,
    Active,
    Namespace(u32),
    Limits,
    Queues,
    Cache,
    Completions,
    Submissions,
}

impl Question {
    /// The identifier of its command.
    fn id(self) -> u16 {
        match self {
            Question::Controller => 1,
            Question::Active => 2,
            Question::Namespace(_) => 3,
            Question::Limits => 4,
            Question::Queues => 5,
            Question::Cache => 6,
            Question::Completions => 7,
            Question::Submissions => 8,
        }
    }
}

fn is_past(now: u64, until: u64) -> bool {
    now.wrapping_sub(until) as i64 >= 0
}

impl<R: Registers> Controller<R> {
    /// What the owner is to do.
    #[inline]
    pub fn state(&self) -> State {
        let fault = self.fault.unwrap_or(Fault::Gone);
        match self.phase {
            Phase::Running => State::Running,
            Phase::Unstopped => State::Unstopped(fault),
            Phase::Dead => State::Dead(fault),
            Phase::ShuttingDown { .. } | Phase::ShutDown => State::ShutDown,
            _ => State::Starting,
        }
    }

    /// Why it was reset last, or given up; none since that was last asked. For the log.
    pub fn take_fault(&mut self) -> Option<Fault> {
        self.fault.filter(|_| core::mem::take(&mut self.untold))
    }

    /// Does what is due: tells the controller of new commands, looks whether it is well, starts and
    /// stops it. To be called in each round, and after operations were asked for. It doesn't wait.
    #[inline]
    pub fn step(&mut self, now: u64) {
        self.now = now;
        if self.phase == Phase::Running {
            self.shared.io.tell(&mut self.registers, self.stride);
            if is_past(now, self.look_at) {
                self.look();
            }
        } else {
            self.step_on();
        }
    }

    /// The controller's owner has taken all memory away from it: what is under way fails now.
    pub fn cut_off(&mut self) {
        if self.phase == Phase::Unstopped {
            self.phase = Phase::Failing { next: 0, then: Then::GiveUp };
        }
    }

    /// Has the controller keep what it holds, as before power is taken away (3.6.1). To be called
    /// in each round, beside [`Controller::step`], when nothing more is asked for, until it is
    /// true: that is done, or can't be.
    pub fn shut_down(&mut self) -> bool {
        match self.phase {
            Phase::ShutDown | Phase::Dead | Phase::Unstopped | Phase::Off => return true,
            Phase::Running if self.slots.used() == 0 => {
                self.registers.write32(CC, CONFIGURATION | ENABLE | SHUT_DOWN);
                let until = self.now.wrapping_add(self.times.shutdown);
                self.phase = Phase::ShuttingDown { until };
            }
            // What is under way, or a start, ends in time.
            _ => {}
        }
        false
    }

    /// Checks what CAP says, and stops the controller, whatever it does.
    pub(crate) fn begin(&mut self) {
        let capabilities = self.capabilities;
        if capabilities.0 == u64::MAX {
            return self.lose(Fault::Gone);
        }
        let unfit = if !capabilities.has_nvm_commands() {
            Some(Unfit::Commands)
        } else if !capabilities.has_small_pages() {
            Some(Unfit::Pages)
        } else if capabilities.most_entries() < ENTRIES.into() {
            Some(Unfit::ShortQueues(capabilities.most_entries()))
        } else {
            None
        };
        match unfit {
            Some(unfit) => self.stop(unfit.into(), Then::GiveUp),
            None => self.disable(Then::Start),
        }
    }

    fn deadline(&self) -> u64 {
        let units = self.capabilities.timeout() + 1;
        self.now.wrapping_add(units.saturating_mul(self.times.half_second))
    }

    fn disable(&mut self, then: Then) {
        self.registers.write32(CC, CONFIGURATION);
        self.phase = Phase::Stopping { until: self.deadline(), then };
    }

    /// Something is wrong: stops it.
    fn stop(&mut self, fault: Fault, then: Then) {
        self.fault = Some(fault);
        self.untold = true;
        self.disable(then);
    }

    /// The same, and starts it again unless that was tried often enough.
    fn reset(&mut self, fault: Fault) {
        self.statistics.resets += 1;
        self.resets_in_a_row += 1;
        let then = if self.resets_in_a_row > MOST_RESETS { Then::GiveUp } else { Then::Start };
        self.stop(fault, then);
    }

    /// It can't be told to stop.
    fn lose(&mut self, fault: Fault) {
        self.fault = Some(fault);
        self.untold = true;
        self.phase = Phase::Unstopped;
    }

    #[cold]
    fn look(&mut self) {
        self.look_at = self.now.wrapping_add(self.times.look);
        match self.registers.read32(CSTS) {
            GONE => self.lose(Fault::Gone),
            status if status & FATAL != 0 => self.reset(Fault::Fatal),
            _ if self.slots.is_late(self.now) => self.reset(Fault::Timeout),
            _ => {}
        }
    }

    #[cold]
    fn step_on(&mut self) {
        match self.phase {
            Phase::Off | Phase::Running | Phase::Unstopped | Phase::Dead | Phase::ShutDown => {}
            // The owner's polls do it.
            Phase::Failing { .. } => {}
            Phase::Stopping { until, then } => match self.registers.read32(CSTS) {
                GONE => self.lose(Fault::Gone),
                status if status & READY == 0 => self.phase = Phase::Failing { next: 0, then },
                _ if is_past(self.now, until) => self.lose(Fault::NotStopped),
                _ => {}
            },
            Phase::Enabling { until } => match self.registers.read32(CSTS) {
                GONE => self.lose(Fault::Gone),
                status if status & FATAL != 0 => self.reset(Fault::Fatal),
                status if status & READY != 0 => self.ask(Question::Controller),
                _ if is_past(self.now, until) => self.reset(Fault::NotReady),
                _ => {}
            },
            Phase::Asking { question, until } => self.listen(question, until),
            Phase::ShuttingDown { until } => match self.registers.read32(CSTS) {
                GONE => self.lose(Fault::Gone),
                status if status & SHUTDOWN == IS_SHUT_DOWN => self.phase = Phase::ShutDown,
                _ if is_past(self.now, until) => {
                    (self.fault, self.untold) = (Some(Fault::NotShutDown), true);
                    self.phase = Phase::ShutDown;
                }
                _ => {}
            },
        }
    }

    /// The next operation that fails because the controller was stopped; behind the last one, what
    /// is to come after.
    #[cold]
    pub(crate) fn next_failed(&mut self) -> Option<Ended> {
        let Phase::Failing { next, then } = self.phase else { return None };
        for place in next..SLOTS as u16 {
            let (_, ended) = self.slots.fail_at(place as u8);
            if ended.is_some() {
                self.phase = Phase::Failing { next: place + 1, then };
                return ended;
            }
        }
        match then {
            Then::Start => self.enable(),
            Then::GiveUp => self.phase = Phase::Dead,
        }
        None
    }

    /// 3.5.1: the admin queues, then the configuration.
    fn enable(&mut self) {
        self.shared.admin.reset();
        self.shared.io.reset();
        let entries = u32::from(self.shared.admin.entries() - 1);
        let (submissions, completions) = self.shared.admin.places();
        // Neither pin nor MSI interrupts, of the admin queue's either.
        self.registers.write32(INTMS, u32::MAX);
        self.registers.write32(AQA, entries << 16 | entries);
        self.registers.write64(ASQ, submissions);
        self.registers.write64(ACQ, completions);
        self.registers.write32(CC, CONFIGURATION | ENABLE);
        self.phase = Phase::Enabling { until: self.deadline() };
    }

    fn ask(&mut self, question: Question) {
        let page = self.shared.data.dma();
        let (submissions, completions) = self.shared.io.places();
        let command = match question {
            Question::Controller => Command::identify(Identify::Controller, page),
            Question::Active => Command::identify(Identify::Active, page),
            Question::Namespace(id) => Command::identify(Identify::Namespace(id), page),
            Question::Limits => Command::identify(Identify::Limits, page),
            Question::Queues => Command::set_feature(Feature::OneQueue),
            Question::Cache => Command::set_feature(Feature::WriteCache),
            Question::Completions => Command::create_completion_queue(IO, ENTRIES, completions),
            Question::Submissions => Command::create_submission_queue(IO, ENTRIES, submissions),
        };
        self.shared.data.fill(0);
        self.shared.admin.push(command, question.id());
        self.shared.admin.tell(&mut self.registers, self.stride);
        let until = self.now.wrapping_add(self.times.command);
        self.phase = Phase::Asking { question, until };
    }

    fn listen(&mut self, question: Question, until: u64) {
        for _ in 0..MOST_ADMIN {
            let Some(entry) = self.shared.admin.take() else { break };
            if entry.queue != 0 || entry.id != question.id() {
                self.statistics.strays += 1;
                continue;
            }
            return match self.answered(question, entry.code()) {
                Ok(Some(next)) => self.ask(next),
                Ok(None) => {
                    self.shared.admin.tell(&mut self.registers, self.stride);
                    self.look_at = self.now;
                    self.phase = Phase::Running;
                }
                // It stays what it is.
                Err(Fault::Unfit(unfit)) => self.stop(unfit.into(), Then::GiveUp),
                Err(fault) => self.reset(fault),
            };
        }
        self.shared.admin.tell(&mut self.registers, self.stride);
        match self.registers.read32(CSTS) {
            GONE => self.lose(Fault::Gone),
            status if status & FATAL != 0 => self.reset(Fault::Fatal),
            _ if is_past(self.now, until) => self.reset(Fault::AdminTimeout),
            _ => {}
        }
    }

    /// Takes note of an answer. What is to be asked next, if anything.
    fn answered(&mut self, question: Question, code: u16) -> Result<Option<Question>, Fault> {
        let page = self.shared.data;
        // What it can do without.
        let optional = matches!(question, Question::Limits | Question::Cache);
        if code != 0 && !optional {
            return Err(Fault::Admin(code));
        }
        let after_limits = Question::Queues;
        Ok(Some(match question {
            Question::Controller => {
                self.traits = Some(identify::controller(&page)?);
                Question::Active
            }
            Question::Active => Question::Namespace(identify::first_active(&page)?),
            Question::Namespace(id) => {
                let found = identify::namespace(&page, id)?;
                if self.namespace.is_some_and(|before| before != found) {
                    return Err(Unfit::Changed.into());
                }
                self.namespace = Some(found);
                if self.traits.is_some_and(|traits| traits.has_limits) {
                    Question::Limits
                } else {
                    after_limits
                }
            }
            Question::Limits => {
                if code == 0 {
                    self.limit(identify::limits(&page));
                }
                after_limits
            }
            Question::Queues if self.traits.is_some_and(|traits| traits.cache) => Question::Cache,
            Question::Queues | Question::Cache => Question::Completions,
            Question::Completions => Question::Submissions,
            Question::Submissions => return Ok(None),
        }))
    }

    /// What can't be done by one command for a piece isn't offered.
    fn limit(&mut self, (zeroes, range): (u64, u64)) {
        let (Some(traits), Some(namespace)) = (&mut self.traits, &self.namespace) else { return };
        let piece = u64::from(blk::PIECE_RANGE);
        traits.zeroes &= zeroes >= piece;
        traits.deallocates &= range >= piece >> namespace.block_shift;
    }
}
