//! The registers, as plain memory that the guest and the unit share (AMD IOMMU spec 48882, 3.4).
//!
//! Guarantees: each change is taken once, whether a guest's write exits or not. The unit keeps what
//! it has taken of the control register, and what it said in the status register, in memory of its
//! own, since a driver writes back what it read. What a guest writes to a register that it can only
//! read stands there until the unit next does something; that fools this guest alone.
//!
//! Doesn't guarantee that a driver which writes back the very word that it read of the status
//! register clears a bit of it: where no write exits that can't be seen. Linux writes the bits that
//! it clears alone, and what the unit says has one more. Nor that a control bit which is cleared
//! and set again before the unit looks is seen to have been clear: what Linux means by that, a new
//! head of the commands or the end of an overflow, it also writes to other registers.

use core::sync::atomic::{AtomicU32, Ordering};

/// Bytes of the registers.
pub const BYTES: u64 = 0x4000;
const WORDS: usize = BYTES as usize / 4;

/// Offsets.
pub const DEVICE_TABLE: usize = 0x00;
pub const COMMANDS: usize = 0x08;
pub const EVENTS: usize = 0x10;
pub const CONTROL: usize = 0x18;
pub const FEATURES: usize = 0x30;
pub const GUEST_LOG: usize = 0xE0;
pub const INTERRUPT: usize = 0x170;
pub const GUEST_INTERRUPT: usize = 0x180;
pub const COMMAND_HEAD: usize = 0x2000;
pub const COMMAND_TAIL: usize = 0x2008;
pub const EVENT_HEAD: usize = 0x2010;
pub const EVENT_TAIL: usize = 0x2018;
pub const STATUS: usize = 0x2020;
pub const GUEST_LOG_HEAD: usize = 0x2040;
pub const GUEST_LOG_TAIL: usize = 0x2048;

/// CONTROL: IommuEn, EventLogEn, EventIntEn, ComWaitIntEn, CmdBufEn, GAEn, XTEn, IntCapXTEn.
pub const ENABLE: u64 = 1 << 0;
pub const LOGS: u64 = 1 << 2;
pub const EVENT_INTERRUPT: u64 = 1 << 3;
pub const WAIT_INTERRUPT: u64 = 1 << 4;
pub const FETCHES: u64 = 1 << 12;
pub const WIDE_ENTRIES: u64 = 1 << 17;
/// The same of a unit that posts: GALogEn, GAIntEn.
pub const GUEST_LOGS: u64 = 1 << 28;
pub const GUEST_LOG_INTERRUPT: u64 = 1 << 29;
pub const X2APIC: u64 = 1 << 50;
pub const OWN_INTERRUPT: u64 = 1 << 51;

/// What of the control register is offered: besides these HtTunEn, InvTimeOut, PassPW, ResPassPW,
/// Coherent and Isoc, which make no difference. The rest reads as 0, by which a driver knows.
const OFFERED: u64 = 0x1FFF | WIDE_ENTRIES | X2APIC | OWN_INTERRUPT;

/// Of the control register as the unit has taken it: it is at something. It isn't offered.
const BUSY: u32 = 1 << 31;

/// STATUS: EventOverflow, EventLogInt, ComWaitInt, EventLogRun, CmdBufRun.
pub const OVERFLOW: u32 = 1 << 0;
pub const LOGGED: u32 = 1 << 1;
pub const WAITED: u32 = 1 << 2;
pub const LOG_RUNS: u32 = 1 << 3;
pub const COMMANDS_RUN: u32 = 1 << 4;
/// GALogRun, GALogOverflow, GALogInt.
pub const GUEST_LOG_RUNS: u32 = 1 << 8;
pub const GUEST_LOG_OVERFLOW: u32 = 1 << 9;
pub const GUEST_LOGGED: u32 = 1 << 10;
/// A reserved bit: it is the unit that said what stands there.
const SAID: u32 = 1 << 31;
/// Bits that the guest clears by writing them.
pub const CLEARABLE: u32 = OVERFLOW | LOGGED | WAITED | GUEST_LOG_OVERFLOW | GUEST_LOGGED;

/// A reserved bit of the head of the commands: the unit has stopped there for an error, and the
/// guest hasn't written since.
pub const STOPPED: u32 = 1;

/// The head and tail registers.
pub const POINTER: u32 = 0x7_FFF0;
/// The same of a log with entries of 8 bytes.
pub const POINTER_OF_8: u32 = 0x7_FFF8;

/// Base and bytes of a buffer or log by its register; `None`: its length is reserved.
pub fn ring(register: u64) -> Option<(u64, u32)> {
    let order = (register >> 56 & 0xF) as u32;
    (order >= 8).then_some((register & 0x000F_FFFF_FFFF_F000, 16 << order))
}

/// What the unit can do: XTSup, IASup, GASup; page tables of four levels (HATS = 0). The IVRS says
/// the same.
pub const fn extended_features(posts: bool) -> u64 {
    // GAMSup: guests' local APICs.
    1 << 2 | 1 << 6 | 1 << 7 | if posts { 1 << 21 } else { 0 }
}
/// The header of the capability of its PCI function (48882, 3.2.1), without a next pointer: NpCache
/// and EFRSup. The IVRS says the same.
pub const CAPABILITY: u32 = 0x0F | 3 << 16 | 1 << 19 | 1 << 26 | 1 << 27;

/// The words, and what the unit has seen and said.
#[derive(Debug)]
pub struct Page {
    words: &'static [AtomicU32; WORDS],
    control: [AtomicU32; 2],
    status: AtomicU32,
    posts: bool,
}

impl Page {
    /// Of these words; `posts`: to guests of the guest's.
    pub fn new(posts: bool, words: &'static [AtomicU32; WORDS]) -> Page {
        let control = [const { AtomicU32::new(0) }; 2];
        Page { words, control, status: AtomicU32::new(0), posts }
    }
}

/// The page as both see it.
#[derive(Clone, Copy, Debug)]
pub struct Registers<'a> {
    page: &'a Page,
}

impl<'a> Registers<'a> {
    /// Of this page.
    pub fn new(page: &'a Page) -> Self {
        Registers { page }
    }

    fn word(&self, at: usize) -> Option<&'a AtomicU32> {
        self.page.words.get(at / 4)
    }

    /// The word at this offset.
    #[inline]
    pub fn get(&self, at: usize) -> u32 {
        self.word(at).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// The same of two words; the guest may write between.
    pub fn get64(&self, at: usize) -> u64 {
        let high = u64::from(self.get(at + 4)) << 32;
        high | u64::from(self.get(at))
    }

    /// Puts a word there.
    pub fn set(&self, at: usize, value: u32) {
        if let Some(word) = self.word(at) {
            word.store(value, Ordering::Release);
        }
    }

    /// The same of two words.
    pub fn set64(&self, at: usize, value: u64) {
        self.set(at, value as u32);
        self.set(at + 4, (value >> 32) as u32);
    }

    /// Whether the unit is at something, so that there is news whatever the guest writes meanwhile.
    pub fn set_busy(&self, busy: bool) {
        let [low, _] = &self.page.control;
        let control = low.load(Ordering::Relaxed);
        low.store(if busy { control | BUSY } else { control & !BUSY }, Ordering::Relaxed);
    }

    /// What the unit has taken of the control register.
    #[inline]
    pub fn control(&self) -> u64 {
        let [low, high] = &self.page.control;
        u64::from(high.load(Ordering::Relaxed)) << 32 | u64::from(low.load(Ordering::Relaxed))
    }

    /// What the guest wants of it, if that is something else.
    #[inline]
    pub fn changed(&self) -> Option<u64> {
        Some(self.get64(CONTROL)).filter(|wanted| *wanted != self.control())
    }

    /// The unit goes by what stands there. Gives what of it is offered, which is all that stands
    /// there then.
    pub fn take_control(&self, wanted: u64) -> u64 {
        let control = wanted & self.offered();
        for (half, seen) in self.page.control.iter().enumerate() {
            let [wanted, control] = [wanted, control].map(|all| (all >> (32 * half)) as u32);
            seen.store(control, Ordering::Relaxed);
            self.replace(CONTROL + 4 * half, wanted, control);
        }
        control
    }

    /// What the unit said last of its status.
    #[inline]
    pub fn status(&self) -> u32 {
        self.page.status.load(Ordering::Relaxed)
    }

    /// The bits that the guest wrote to the status register, to clear them.
    #[inline]
    pub fn cleared(&self) -> Option<u32> {
        Some(self.get(STATUS)).filter(|word| *word != self.status())
    }

    /// Says this in the status register, if `stands` still is there. Was it?
    pub fn say(&self, stands: u32, status: u32) -> bool {
        let status = status | SAID;
        let said = self.replace(STATUS, stands, status);
        if said {
            self.page.status.store(status, Ordering::Relaxed);
        }
        said
    }

    /// Has the guest asked for something that isn't done? Also if it wrote where it can't.
    #[inline]
    pub fn is_news(&self) -> bool {
        let commands = match self.status() & COMMANDS_RUN != 0 {
            true => self.get(COMMAND_TAIL) != self.get(COMMAND_HEAD),
            false => self.fetches(self.control()),
        };
        commands || self.changed().is_some() || self.cleared().is_some()
    }

    /// Are commands to be fetched by this control register, with no error that the guest hasn't
    /// seen?
    #[inline]
    pub fn fetches(&self, control: u64) -> bool {
        const RUNS: u64 = ENABLE | FETCHES;
        control & RUNS == RUNS && self.get(COMMAND_HEAD) & STOPPED == 0
    }

    /// The command at `head` is done, or the unit stops there; the guest may have written another.
    pub fn move_head(&self, head: u32, to: u32) {
        self.replace(COMMAND_HEAD, head, to);
    }

    fn replace(&self, at: usize, from: u32, to: u32) -> bool {
        let how = (Ordering::AcqRel, Ordering::Relaxed);
        self.word(at).is_some_and(|word| word.compare_exchange(from, to, how.0, how.1).is_ok())
    }

    /// Does the unit post to guests of the guest's?
    pub fn posts(&self) -> bool {
        self.page.posts
    }

    /// What of the control register is offered.
    fn offered(&self) -> u64 {
        OFFERED | if self.page.posts { GUEST_LOGS | GUEST_LOG_INTERRUPT } else { 0 }
    }

    /// Does the unit translate DMA?
    pub fn translates(&self) -> bool {
        self.control() & ENABLE != 0
    }

    /// A guest's write that exits: `size` bytes of `value`. What it can't write stays.
    pub fn write(&self, at: u64, size: u8, value: u64) {
        let Ok(at) = usize::try_from(at) else { return };
        if !matches!(size, 4 | 8) || !at.is_multiple_of(size.into()) {
            return;
        }
        for half in 0..usize::from(size) / 4 {
            let (at, word) = (at + 4 * half, (value >> (32 * half)) as u32);
            match at {
                // What the unit says has one more.
                STATUS => self.set(at, word & CLEARABLE),
                CONTROL => self.set(at, word & self.offered() as u32),
                0x1C => self.set(at, word & (self.offered() >> 32) as u32),
                DEVICE_TABLE..=0x2C | GUEST_LOG..=0xEC | INTERRUPT..=0x184 => self.set(at, word),
                COMMAND_HEAD | COMMAND_TAIL | EVENT_HEAD | EVENT_TAIL | GUEST_LOG_HEAD => {
                    self.set(at, word);
                }
                GUEST_LOG_TAIL => self.set(at, word),
                _ => {}
            }
        }
    }

    /// As at power on.
    pub fn reset(&self) {
        for word in self.page.words {
            word.store(0, Ordering::Relaxed);
        }
        self.take_control(0);
        self.put_right();
        self.say(0, 0);
    }

    /// What the guest can only read: it may have written there.
    pub fn put_right(&self) {
        self.set64(FEATURES, extended_features(self.page.posts));
    }
}
