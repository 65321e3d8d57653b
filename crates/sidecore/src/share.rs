//! What a VM had of the polling core, and what it may have: its virtual time and its limits.
//!
//! A VM's virtual time is the cost of what it was served, times 100 ÷ its weight. Its limits are
//! buckets of tokens, kept as the instant at which the debt is paid off: a VM may be served while
//! that instant has come. What it is served last may exceed the limit by a piece, and is paid for
//! before the next.

use crate::settings::Settings;
use alloc::vec::Vec;

/// The largest weight; the smallest is 1.
pub const MAX_WEIGHT: u32 = 10_000;

/// What a VM may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Its part of the cost under load, against the weights of others: 1 to [`MAX_WEIGHT`], what
    /// is outside is brought there.
    pub weight: u32,
    /// Requests a second at most. 0 counts as 1.
    pub requests: Option<u64>,
    /// Bytes a second at most. 0 counts as 1.
    pub bytes: Option<u64>,
}

impl Default for Share {
    /// Weight 100, no limits.
    fn default() -> Self {
        Share::DEFAULT
    }
}

impl Share {
    pub(crate) const DEFAULT: Share = Share { weight: 100, requests: None, bytes: None };
}

/// What bounds on how many cores a device may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// It stays on this core.
    On(usize),
    /// It goes from core to core with all others that go by this number.
    With(usize),
}

/// On how many of so many cores a VM's devices may be at a time: each of these cores is to keep a
/// part of its limits, and no other.
pub fn cores_at_a_time(devices: impl Iterator<Item = Place>, cores: usize) -> u64 {
    // They are few. To collect them in a set would be the one reason for another kind of sort in
    // the image.
    let mut places = Vec::new();
    for place in devices {
        if !places.contains(&place) {
            places.push(place);
        }
    }
    places.len().min(cores) as u64
}

/// Virtual time in 2^-24 of a byte at weight 100. Clocks are set back before they overflow
/// ([`Vm::set_back`]).
pub(crate) type Virtual = u64;
const VIRTUAL_FRACTION: u32 = 24;
/// A clock that is beyond twice this is set back, and by so much: 2^37 bytes at weight 100, 2^30 at
/// weight 1. No VM's credit is as much, so all that are behind it stay so. By turns out of order a
/// VM that is kicked again and again may be ahead by more. Beyond the end of time, six times this
/// ahead, nothing is counted; it is the last one all the same.
pub(crate) const SET_BACK: Virtual = 1 << 61;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Vm {
    time: Virtual,
    /// Virtual time of one byte; 0 if none is to come before the others.
    rate: u64,
    requests: Bucket,
    bytes: Bucket,
    /// The schedule's count of work when a turn of its was for nothing; 0: none was.
    pub rests: u64,
    /// For this long it saves up what its limits allow.
    pub burst: u64,
    /// The credit.
    credit: Virtual,
}

impl Vm {
    pub const fn new(share: Share, settings: &Settings) -> Self {
        let weight = match share.weight {
            0 => 1,
            weight if weight > MAX_WEIGHT => MAX_WEIGHT,
            weight => weight,
        };
        // Where none is to come before the others, all have the same virtual time.
        let rate = match settings.whole_turns {
            true => 0,
            false => (100 << VIRTUAL_FRACTION) / weight as u64,
        };
        Vm {
            time: 0,
            rate,
            requests: Bucket::new(share.requests, settings.ticks_per_second),
            bytes: Bucket::new(share.bytes, settings.ticks_per_second),
            rests: 0,
            burst: settings.burst,
            credit: settings.credit.saturating_mul(rate),
        }
    }

    /// What it was charged, as virtual time.
    #[inline]
    pub const fn time(&self) -> Virtual {
        self.time
    }

    /// Its virtual time, if the clock stands there: it is behind the clock by one turn at most.
    #[inline]
    pub fn key(&self, clock: Virtual) -> Virtual {
        if self.time >= clock { self.time } else { self.behind(clock) }
    }

    fn behind(&self, clock: Virtual) -> Virtual {
        self.time.max(clock.saturating_sub(self.credit))
    }

    /// May it be served, by its limits?
    pub const fn is_open(&self, now: u64) -> bool {
        self.requests.is_open(now) && self.bytes.is_open(now)
    }

    /// From when on it may be served, by its limits.
    pub fn opens_at(&self) -> u64 {
        let paid = self.requests.opens_at().max(self.bytes.opens_at());
        u64::try_from(paid).unwrap_or(u64::MAX)
    }

    /// Its queues had work of this cost. Its virtual time is charged that, from `floor` on at
    /// least.
    #[inline]
    pub fn charge(&mut self, floor: Virtual, cost: u64) {
        self.time = self.time.max(floor).saturating_add(cost.saturating_mul(self.rate));
    }

    /// All virtual times are set back. One that was further behind than that is behind by less.
    pub fn set_back(&mut self) {
        self.time = self.time.saturating_sub(SET_BACK);
    }

    /// Has it limits?
    #[inline]
    pub const fn is_limited(&self) -> bool {
        self.requests.price | self.bytes.price != 0
    }

    /// Counts requests and bytes against its limits. True: it may be served on.
    #[inline(never)]
    pub fn count(&mut self, requests: u32, bytes: u64, now: u64) -> bool {
        self.requests.take(requests.into(), now, self.burst);
        self.bytes.take(bytes, now, self.burst);
        self.is_open(now)
    }

    /// What it owes where the clock stands there.
    pub fn debt(&self, clock: Virtual) -> Debt {
        Debt { ahead: self.time.saturating_sub(clock), paid: [self.requests.paid, self.bytes.paid] }
    }

    /// It owes as much as this at least.
    pub fn owe(&mut self, clock: Virtual, debt: Debt) {
        // Nor has it what idle VMs may save up: it would have that at each move.
        self.time = self.time.max(clock.saturating_add(debt.ahead));
        for (bucket, paid) in [&mut self.requests, &mut self.bytes].into_iter().zip(debt.paid) {
            bucket.paid = bucket.paid.max(paid);
        }
    }
}

/// What a VM had of one polling core beyond its share, as another goes by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Debt {
    /// Virtual time by which it is ahead of the core's clock.
    ahead: Virtual,
    /// When the debts of its limits are paid.
    paid: [u128; 2],
}

/// Times in it are 2^-24 of a tick.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// Time that one token takes to come. 0: there is no limit.
    price: u64,
    /// When the bucket's debt is paid.
    paid: u128,
}

const FRACTION: u32 = 24;

impl Bucket {
    const fn new(rate: Option<u64>, ticks_per_second: u64) -> Self {
        let price = match rate {
            None => 0,
            Some(rate) => {
                let rate = if rate == 0 { 1 } else { rate as u128 };
                let price = ((ticks_per_second as u128) << FRACTION) / rate;
                if price > u64::MAX as u128 { u64::MAX } else { price as u64 }
            }
        };
        Bucket { price, paid: 0 }
    }

    #[inline]
    const fn is_open(&self, now: u64) -> bool {
        self.price == 0 || self.paid <= (now as u128) << FRACTION
    }

    /// The first tick at which it is open.
    const fn opens_at(&self) -> u128 {
        if self.price == 0 { 0 } else { self.paid.div_ceil(1 << FRACTION) }
    }

    #[inline]
    fn take(&mut self, tokens: u64, now: u64, burst: u64) {
        if self.price != 0 {
            let full = u128::from(now.saturating_sub(burst)) << FRACTION;
            let cost = u128::from(tokens) * u128::from(self.price);
            self.paid = self.paid.max(full).saturating_add(cost);
        }
    }
}
