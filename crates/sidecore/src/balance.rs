//! Which sidecore serves which device, and how many are awake: by load, against a bound on how long
//! a queue waits for its turn.
//!
//! What is asked once in an epoch says of each sidecore how long it was busy, and of each device
//! that can move how long it was served and whether a queue of its waited longer than the bound.
//! Then at most one device moves:
//! - **Spread.** The bound was broken in [`LATE`] epochs in a row: a device leaves a sidecore where
//!   that was. It goes to one that is awake and stays at most half busy, else to the one that has
//!   the least to do, which may be one that sleeps. The busier of the two has to become less busy
//!   by an eighth; so a device that has a sidecore for itself stays.
//! - **Stay.** A device that was spread stays for [`STAY`] epochs, and twice as long each time that
//!   it is spread again soon after that, up to [`LONGEST_STAY`] epochs. So load that changes all
//!   the time moves each device once in so long. Others may go meanwhile.
//! - **Gather.** The bound was kept for [`CALM`] epochs in a row: the sidecore with the least to do
//!   gives its devices away, one an epoch, if another does both and is at most half busy by that.
//!   One without devices sleeps.
//! - **Patience.** If the bound is broken soon after devices were gathered, the next time takes
//!   twice as long, up to [`MOST_PATIENCE`] times. So what doesn't change moves a number of devices
//!   that grows with the logarithm of the time alone. Devices that had nothing at all for [`CALM`]
//!   epochs don't wait for that: they break no bound.
//!
//! Guarantees: a device goes to a sidecore that there is and that isn't its own; the first sidecore
//! and those that serve what can't move are never emptied to sleep; whatever the numbers are,
//! nothing panics or overflows. It knows no clock: epochs are the caller's. It says nothing of how
//! a device moves ([`handover`](crate::handover)).

use alloc::boxed::Box;

/// Epochs in a row in which the bound has to be broken.
pub const LATE: u32 = 2;
/// Epochs in a row in which it has to be kept.
pub const CALM: u32 = 20;
/// Epochs for which a device that was spread isn't spread again.
pub const STAY: u32 = 20;
/// Doublings of [`STAY`] at most.
const MOST_DOUBLED: u32 = 6;
/// See "Stay".
pub const LONGEST_STAY: u32 = STAY << MOST_DOUBLED;
/// Doublings of [`CALM`] at most.
const MOST_STRIKES: u32 = 10;
/// See "Patience".
pub const MOST_PATIENCE: u32 = 1 << MOST_STRIKES;

/// What a sidecore did in an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreLoad {
    /// Ticks for which it was busy.
    pub busy: u64,
    /// It serves something that can't move.
    pub keeps: bool,
}

/// What was done for a device that can move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceLoad {
    /// The sidecore that serves it.
    pub at: usize,
    /// Ticks for which it was served.
    pub busy: u64,
    /// Turns that began later than the bound allows.
    pub late: u64,
}

/// A device is to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Its place among the devices that can.
    pub device: usize,
    /// The sidecore that is to serve it.
    pub to: usize,
}

/// How long a device that was spread stays.
#[derive(Clone, Copy, Debug)]
struct Stay {
    /// Epochs for which it still does.
    left: u32,
    /// Epochs since it was spread; the most: it wasn't.
    since: u32,
    doubled: u32,
}

impl Stay {
    /// Of a device that wasn't spread.
    const NONE: Stay = Stay { left: 0, since: u32::MAX, doubled: 0 };

    fn epoch(&mut self) {
        (self.left, self.since) = (self.left.saturating_sub(1), self.since.saturating_add(1));
    }

    /// The device is spread.
    fn begin(&mut self) {
        let soon = self.since < 4 * (STAY << self.doubled);
        self.doubled = if soon { (self.doubled + 1).min(MOST_DOUBLED) } else { 0 };
        (self.left, self.since) = (STAY << self.doubled, 0);
    }
}

/// What is known of earlier epochs.
#[derive(Clone, Debug)]
pub struct Balance {
    /// Epochs in a row in which the bound was broken, and in which it was kept.
    late: u32,
    calm: u32,
    /// Epochs in a row in which no sidecore that may sleep served a device.
    idle: u32,
    /// Epochs since devices were gathered; none: they weren't.
    gathered: Option<u32>,
    strikes: u32,
    /// By devices.
    stays: Box<[Stay]>,
}

impl Balance {
    /// For so many devices that can move.
    pub fn new(devices: usize) -> Self {
        let stays = (0..devices).map(|_| Stay::NONE).collect();
        Balance { late: 0, calm: 0, idle: 0, gathered: None, strikes: 0, stays }
    }

    /// After an epoch of so many ticks.
    pub fn next(&mut self, ticks: u64, cores: &[CoreLoad], devices: &[DeviceLoad]) -> Option<Move> {
        self.gathered = self.gathered.map(|epochs| epochs.saturating_add(1));
        self.stays.iter_mut().for_each(Stay::epoch);
        let patience = CALM << self.strikes;
        let may_sleep = |load: &&DeviceLoad| may_sleep(load.at, cores);
        let is_idle = devices.iter().filter(may_sleep).all(|device| device.busy == 0);
        self.idle = if is_idle { self.idle.saturating_add(1) } else { 0 };
        if devices.iter().any(|device| device.late > 0) {
            self.calm = 0;
            self.late = self.late.saturating_add(1);
            if self.late < LATE {
                return None;
            }
            let spread = spread(ticks, cores, devices, &self.stays)?;
            self.late = 0;
            self.stays.get_mut(spread.device).into_iter().for_each(Stay::begin);
            if self.gathered.take().is_some_and(|epochs| epochs < 2 * patience) {
                self.strikes = (self.strikes + 1).min(MOST_STRIKES);
            }
            return Some(spread);
        }
        self.late = 0;
        self.calm = self.calm.saturating_add(1);
        if self.calm >= 4 * patience {
            self.strikes = 0;
        }
        if self.calm < patience && self.idle.min(self.calm) < CALM {
            return None;
        }
        let gather = gather(ticks, cores, devices)?;
        self.gathered = Some(0);
        Some(gather)
    }
}

/// Does it serve anything, or is it the first?
fn is_awake(core: usize, cores: &[CoreLoad], devices: &[DeviceLoad]) -> bool {
    let keeps = cores.get(core).is_some_and(|load| load.keeps);
    core == 0 || keeps || devices.iter().any(|device| device.at == core)
}

/// Sleeps if it serves nothing.
fn may_sleep(core: usize, cores: &[CoreLoad]) -> bool {
    core != 0 && cores.get(core).is_some_and(|load| !load.keeps)
}

fn spread(ticks: u64, cores: &[CoreLoad], devices: &[DeviceLoad], stays: &[Stay]) -> Option<Move> {
    let stays = |device: usize| stays.get(device).is_some_and(|stay| stay.left > 0);
    let is_late = |core| devices.iter().any(|device| device.at == core && device.late > 0);
    // What its core does beside may be what the device costs: to move it there would gain nothing.
    let is_alone = |at| devices.iter().filter(|device| device.at == at).count() == 1;
    // Whether it wakes a sidecore or makes one more than half busy; how busy the two are then.
    let mut best: Option<((bool, u64), Move)> = None;
    for (number, device) in devices.iter().enumerate() {
        let Some(from) = cores.get(device.at).filter(|_| is_late(device.at)) else { continue };
        if stays(number) || is_alone(device.at) && !from.keeps {
            continue;
        }
        let left = from.busy.saturating_sub(device.busy);
        for (to, there) in cores.iter().enumerate().filter(|(to, _)| *to != device.at) {
            let then = there.busy.saturating_add(device.busy);
            let busier = then.max(left);
            if device.busy == 0 || busier > from.busy - from.busy / 8 {
                continue;
            }
            let costs = then > ticks / 2 || !is_awake(to, cores, devices);
            let key = (costs, busier);
            if best.is_none_or(|(other, _)| key < other) {
                best = Some((key, Move { device: number, to }));
            }
        }
    }
    best.map(|(_, go)| go)
}

fn gather(ticks: u64, cores: &[CoreLoad], devices: &[DeviceLoad]) -> Option<Move> {
    let awake = || (0..cores.len()).filter(|core| is_awake(*core, cores, devices));
    let busy = |core: usize| cores.get(core).map_or(u64::MAX, |load| load.busy);
    // Among those with as little to do, the last.
    let from =
        awake().filter(|core| may_sleep(*core, cores)).rev().min_by_key(|core| busy(*core))?;
    let to = awake().filter(|core| *core != from).min_by_key(|core| busy(*core))?;
    if busy(from).saturating_add(busy(to)) > ticks / 2 {
        return None;
    }
    let device = devices.iter().position(|device| device.at == from)?;
    Some(Move { device, to })
}

#[cfg(test)]
#[path = "balance_tests.rs"]
mod tests;
