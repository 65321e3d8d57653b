//! The physical function of Intel's 82576 (driver `igb`), driven by the host so that guests can
//! have its virtual functions (driver `igbvf`). Section numbers are those of its datasheet,
//! revision 2.87.
//!
//! The host sends and receives nothing. It sets up the switch between the functions' queue pairs
//! and the wire, and answers the requests that guests leave in their functions' mailboxes.
//!
//! Guarantees: a function sends and receives under the address it was given and no other, untagged;
//! what one guest writes to its mailbox changes nothing of another's function; a call of
//! [`Controller::serve`] does a bounded amount of work whatever guests do.

mod mailbox;
mod registers;
mod throttle;

use arrayvec::ArrayVec;
use coalesce::Settings;
use mailbox::{Answer, Request};
use registers as r;
use throttle::Throttles;
pub use throttle::{Counts as ThrottleCounts, LONGEST_US};

/// Vendor and device id that this drives: the copper version, and what QEMU's `igb` is.
pub const IDS: (u16, u16) = (0x8086, 0x10C9);
/// Virtual functions it can have: one for each pool of queues.
pub const FUNCTIONS: usize = 8;

/// Words of a mailbox (8.14.3).
const WORDS: usize = 16;
/// Multicast hashes that one guest may ask for: what a message has room for.
const HASHES: usize = 30;
/// The largest frame that the controller receives (8.10.5).
const LONGEST: u32 = 0x2600;
/// What a VLAN tag adds to a frame.
const TAG: u32 = 4;
/// Polls of a bit that takes at most some milliseconds, a tenth of one apart.
const PATIENCE: u32 = 1000;
const POLL_US: u64 = 100;

/// The controller's registers.
pub trait Registers {
    /// Reads the register at a multiple of 4.
    fn read(&mut self, offset: u32) -> u32;
    /// Writes it.
    fn write(&mut self, offset: u32, value: u32);
}

/// An Ethernet address.
pub type Mac = [u8; 6];

/// Why a controller can't be used. Each is the end of a sentence about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It doesn't come back from a reset.
    #[error("it doesn't come out of its reset")]
    Reset,
    /// Its transceiver doesn't answer.
    #[error("its transceiver doesn't answer, so its link can't be started")]
    Phy,
}

/// A controller whose virtual functions guests have.
#[derive(Debug)]
pub struct Controller<R> {
    registers: R,
    functions: ArrayVec<Function, FUNCTIONS>,
    /// Functions with a request that found its mailbox taken.
    waiting: u32,
    /// The multicast filter as it was written last.
    multicast: [u32; r::MTA_WORDS],
    /// None, unless the functions' interrupts are held back.
    throttles: Throttles,
}

/// A virtual function, as its guest has set it up.
#[derive(Clone, Debug)]
struct Function {
    mac: Mac,
    /// Its guest has reset it, so that it may ask for more.
    ready: bool,
    multicast: ArrayVec<u16, HASHES>,
}

impl<R: Registers> Controller<R> {
    /// Resets the controller and starts its link. `delay` spends microseconds.
    pub fn start(mut registers: R, mut delay: impl FnMut(u64)) -> Result<Self, Error> {
        registers.write(r::IMC, u32::MAX);
        registers.write(r::EIMC, u32::MAX);
        registers.write(r::RCTL, 0);
        registers.write(r::TCTL, r::TCTL_PSP);
        let control = registers.read(r::CTRL);
        registers.write(r::CTRL, control | r::CTRL_RST);
        // Registers mustn't be touched for a millisecond (4.2.1.6.1).
        delay(10_000);
        wait(&mut delay, || registers.read(r::CTRL) & r::CTRL_RST == 0).ok_or(Error::Reset)?;
        registers.write(r::IMC, u32::MAX);
        registers.read(r::ICR);

        let control = registers.read(r::CTRL) & !(r::CTRL_FRCSPD | r::CTRL_FRCDPX);
        registers.write(r::CTRL, control | r::CTRL_SLU | r::CTRL_FD);
        // No firmware is asked for leave: at boot nobody else uses the transceiver.
        registers.write(r::MDIC, r::MDIC_RESTART_LINK);
        wait(&mut delay, || registers.read(r::MDIC) & r::MDIC_READY != 0).ok_or(Error::Phy)?;
        Ok(Controller {
            registers,
            functions: ArrayVec::new(),
            waiting: 0,
            multicast: [0; r::MTA_WORDS],
            throttles: Throttles::default(),
        })
    }

    /// The physical function's own address.
    pub fn mac(&mut self) -> Mac {
        let [a, b, c, d] = self.registers.read(r::ral(0)).to_le_bytes();
        let [e, f, ..] = self.registers.read(r::rah(0)).to_le_bytes();
        [a, b, c, d, e, f]
    }

    /// Gives its virtual functions, which have been switched on, these addresses, and lets
    /// their guests begin. Functions beyond [`FUNCTIONS`] aren't there.
    pub fn share(&mut self, macs: &[Mac]) {
        for &mac in macs.iter().take(FUNCTIONS) {
            self.functions.push(Function { mac, ready: false, multicast: ArrayVec::new() });
        }
        self.filter();
        self.switch();
        // Each function's interrupts are its own vectors (7.3.2.12).
        let modes = r::GPIE_MULTIPLE_MSIX | r::GPIE_EIAME | r::GPIE_PBA | r::GPIE_NSICR;
        self.registers.write(r::GPIE, modes);
        self.registers.write(r::TCTL, r::TCTL_EN | r::TCTL_PSP | r::TCTL_CT | r::TCTL_RTLC);
        // Tagged frames pass only by the VLAN filter, which is empty.
        let receive = r::RCTL_EN | r::RCTL_LPE | r::RCTL_BAM | r::RCTL_VFE | r::RCTL_SECRC;
        self.registers.write(r::RLPML, LONGEST);
        self.registers.write(r::RCTL, receive);
        let control = self.registers.read(r::CTRL_EXT);
        self.registers.write(r::CTRL_EXT, control | r::CTRL_EXT_PFRSTD);
    }

    /// From now on has the functions that there are hold interrupts back by these rules, which
    /// [`Self::throttle`] follows.
    pub fn hold_back(&mut self, settings: Settings, now: u64) {
        self.throttles = Throttles::new(self.functions.len(), settings, now);
    }

    /// Sets how far apart interrupts are of functions whose epoch is over. To be called more often
    /// than there are epochs.
    pub fn throttle(&mut self, now: u64) {
        self.throttles.look(&mut self.registers, now);
    }

    /// What that did with the function of this number; nothing if it isn't held back.
    pub fn throttled(&self, function: usize) -> Option<ThrottleCounts> {
        self.throttles.counts(function)
    }

    /// Which frames are for which function (7.10.3.3).
    fn filter(&mut self) {
        for i in 0..r::MTA_WORDS as u32 {
            self.registers.write(r::MTA + 4 * i, 0);
            self.registers.write(r::UTA + 4 * i, 0);
            self.registers.write(r::VFTA + 4 * i, 0);
        }
        for i in 0..r::VLVF_ENTRIES {
            self.registers.write(r::VLVF + 4 * i, 0);
        }
        for i in 1..r::RA_ENTRIES {
            self.registers.write(r::rah(i), 0);
            self.registers.write(r::ral(i), 0);
        }
        for (pool, function) in self.functions.iter().enumerate() {
            let [a, b, c, d, e, f] = function.mac;
            let (entry, pool) = (pool as u32 + 1, pool as u32);
            let high = u32::from_le_bytes([e, f, 0, 0]);
            self.registers.write(r::ral(entry), u32::from_le_bytes([a, b, c, d]));
            self.registers.write(r::rah(entry), high | r::RAH_POOL_0 << pool | r::RAH_AV);
        }
    }

    /// Queues in pools, one for each function; none for the host (7.10.3).
    fn switch(&mut self) {
        for pool in 0..FUNCTIONS as u32 {
            self.registers.write(
                r::vmolr(pool),
                if self.has(pool) { r::VMOLR_SET_UP } else { r::VMOLR_STRCRC },
            );
            self.registers.write(r::VMVIR + 4 * pool, 0);
        }
        // Nobody sends before its guest has reset it.
        self.registers.write(r::VFRE, 0);
        self.registers.write(r::VFTE, 0);
        // A guest that gives no buffers makes nobody wait but itself.
        self.registers.write(r::QDE, 0xFFFF);
        self.registers.write(r::RPLOLR, r::VMOLR_STRCRC | r::VMOLR_STRVLAN);
        self.registers.write(r::VT_CTL, r::VT_CTL_NO_DEFAULT_POOL | r::VT_CTL_REPLICATE);
        self.registers.write(r::MRQC, r::MRQC_POOLS);
        // Frames between functions; none with another's address, none with a tag (7.10.3.9.2).
        self.registers
            .write(r::DTXSWC, r::DTXSWC_LOOPBACK | r::DTXSWC_CHECK_MAC | r::DTXSWC_CHECK_VLAN);
    }

    fn has(&self, pool: u32) -> bool {
        (pool as usize) < self.functions.len()
    }

    /// Looks into every mailbox once, and answers what is there.
    pub fn serve(&mut self) {
        let ours = (1u32 << self.functions.len()) - 1;
        self.see_resets();
        let events = self.registers.read(r::MBVFICR);
        if events != 0 {
            self.registers.write(r::MBVFICR, events);
        }
        let requests = (events | self.waiting) & ours;
        self.waiting = 0;
        for pool in (0..FUNCTIONS as u32).filter(|pool| requests >> pool & 1 != 0) {
            if !self.answer(pool) {
                self.waiting |= 1 << pool;
            }
        }
    }

    /// Notes which functions were reset since the last time.
    fn see_resets(&mut self) {
        let ours = (1u32 << self.functions.len()) - 1;
        let resets = self.registers.read(r::VFLRE) & ours;
        if resets != 0 {
            self.registers.write(r::VFLRE, resets);
            for (pool, function) in self.functions.iter_mut().enumerate() {
                if resets >> pool & 1 != 0 {
                    function.ready = false;
                }
            }
            self.enable_ready();
        }
    }

    /// Answers the message in a mailbox; false when its guest holds it.
    fn answer(&mut self, pool: u32) -> bool {
        self.registers.write(r::p2v_mailbox(pool), r::P2V_PFU);
        if self.registers.read(r::p2v_mailbox(pool)) & r::P2V_PFU == 0 {
            return false;
        }
        let words: [u32; WORDS] =
            core::array::from_fn(|i| self.registers.read(r::mailbox_word(pool, i as u32)));
        // A reset that came before the message is over with it. Seen only next time, it would take
        // back what the message is granted now.
        self.see_resets();
        let answer = self.obey(pool, &Request::read(&words));
        for (i, word) in answer.words().into_iter().enumerate() {
            self.registers.write(r::mailbox_word(pool, i as u32), word);
        }
        // Received, answered, and free again.
        self.registers.write(r::p2v_mailbox(pool), r::P2V_ACK | r::P2V_STS);
        true
    }

    fn obey(&mut self, pool: u32, request: &Request) -> Answer {
        let Some(function) = self.functions.get_mut(pool as usize) else {
            return request.refused(false);
        };
        if let Request::Reset = request {
            function.ready = true;
            function.multicast.clear();
            let mac = function.mac;
            self.registers.write(r::vmolr(pool), r::VMOLR_SET_UP);
            self.write_multicast();
            self.enable_ready();
            return Answer::reset(mac);
        }
        if !function.ready {
            return request.refused(false);
        }
        let granted = match request {
            Request::SetMac(mac) => *mac == function.mac,
            Request::SetMulticast(hashes) => {
                function.multicast.clone_from(hashes);
                let accept = if hashes.is_empty() { 0 } else { r::VMOLR_ROMPE };
                let settings = self.registers.read(r::vmolr(pool)) & !r::VMOLR_ROMPE;
                self.registers.write(r::vmolr(pool), settings | accept);
                self.write_multicast();
                true
            }
            Request::SetLongest(bytes) => {
                let longest = bytes.saturating_add(TAG);
                let fits = longest <= LONGEST;
                if fits {
                    let settings = self.registers.read(r::vmolr(pool)) & !r::VMOLR_RLPML;
                    self.registers.write(r::vmolr(pool), settings | longest | r::VMOLR_LPE);
                }
                fits
            }
            // Linux asks for tag 0, which is none, with every function.
            Request::SetVlan(tag) => *tag == 0,
            Request::ForgetMacs => true,
            Request::Reset | Request::Other(_) => false,
        };
        if granted { request.granted() } else { request.refused(true) }
    }

    /// Lets those functions send and receive whose guests have reset them.
    fn enable_ready(&mut self) {
        let ready = self.functions.iter().enumerate().filter(|(_, f)| f.ready);
        let mask = ready.fold(0, |mask, (pool, _)| mask | 1u32 << pool);
        self.registers.write(r::VFRE, mask);
        self.registers.write(r::VFTE, mask);
    }

    /// The filter is one for all: what any of them asked for (7.1.1.2.2). It holds only hashes, and
    /// lets through to those functions alone that asked for something.
    fn write_multicast(&mut self) {
        let mut wanted = [0u32; r::MTA_WORDS];
        for hash in self.functions.iter().flat_map(|f| &f.multicast) {
            if let Some(word) = wanted.get_mut(usize::from(hash >> 5) % r::MTA_WORDS) {
                *word |= 1 << (hash & 31);
            }
        }
        for (i, (old, new)) in self.multicast.iter_mut().zip(wanted).enumerate() {
            if *old != new {
                self.registers.write(r::MTA + 4 * i as u32, new);
                *old = new;
            }
        }
    }
}

/// Polls until `done`; nothing when that takes too long.
fn wait(delay: &mut impl FnMut(u64), mut done: impl FnMut() -> bool) -> Option<()> {
    for _ in 0..PATIENCE {
        if done() {
            return Some(());
        }
        delay(POLL_US);
    }
    None
}
