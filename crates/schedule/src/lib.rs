//! Who runs next on a core that several vCPUs share: weighted fair by virtual time.
//!
//! A vCPU's virtual time is the time it had the core, times 100 ÷ its weight. Whenever there is a
//! choice to make, the runnable one of least virtual time gets the core, for a slice.
//!
//! Rules:
//! - The running one keeps the core until its slice is over, or until one that woke is behind it.
//! - After its slice it goes on only if it is still behind all others; equal ones take turns.
//! - Sleep can't be saved up: one that wakes is at most a slice behind the floor, the least virtual
//!   time that the runnable ones have reached so far.
//! - Cutting another's slice short has a price: [`MIN_TURN`] of a slice, whether it is used or not.
//!   So a guest that sleeps and wakes at speed pays for every switch it causes.
//!
//! Guarantees, if the caller asks [`Schedule::should_switch`] at [`Schedule::deadline`]; what it is
//! late by comes on top. `S` is a slice, `B` the sum of `S × 100 ÷ weight` over the members:
//! - Somebody is picked if somebody is runnable.
//! - Members that are always runnable have virtual times no further apart than a slice of each,
//!   and one of weight `w` waits no longer than the sum over the others of `S × (1 + weight ÷ w)`.
//! - However another sleeps and wakes, its virtual time gains no more than `B + S` on one that is
//!   always runnable; if they are two, no more than a slice of its and `S`.
//! - One that is always runnable waits for no longer than the sum over the others of
//!   `(2 B + S) × weight ÷ 100`, whatever they do.
//! - Nothing that time or the caller does makes it panic. Time that goes backwards counts as none.
//!
//! It knows no clock and no hardware: times are TSC ticks that the caller reads.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

/// vCPUs of one core.
pub const MAX: usize = 8;
/// The weight at which virtual time is time.
pub const DEFAULT_WEIGHT: u32 = 100;
/// The largest weight; the smallest is 1.
pub const MAX_WEIGHT: u32 = 10_000;
/// This part of a slice is what cutting another's slice short costs at least.
pub const MIN_TURN: u64 = 32;

/// Virtual time in ticks. 128 bits, so that 64 bits of ticks at any weight never overflow it.
type Virtual = u128;

/// A set of places: a bit for each.
type Places = u32;

/// The bit of a place; none if there is no such place.
#[inline]
const fn bit(place: usize) -> Places {
    if place < MAX { 1 << place } else { 0 }
}

/// One core's vCPUs, by their places 0, 1, 2 …
#[derive(Clone, Debug)]
pub struct Schedule {
    /// Ticks that one runs at a stretch if another wants to.
    slice: u64,
    members: [Member; MAX],
    count: usize,
    /// Those that have nothing to run; those that could run or do. Who is removed is neither.
    blocked: Places,
    runnable: Places,
    /// Of the runnable ones, those that were behind the running one when they woke, and haven't run
    /// since.
    woken: Places,
    /// The one that has the core, or none.
    running: Places,
    /// The vCPU that ran last: equal ones take turns from the next place on.
    last: usize,
    /// When the running one's slice began.
    began: u64,
    /// Up to when the running one is charged.
    charged: u64,
    /// Ticks that the running one has paid for already.
    prepaid: u64,
    /// The least virtual time of the runnable ones, at its highest.
    floor: Virtual,
    /// Whom [`Schedule::should_switch`] would give the core, until somebody wakes, blocks or is
    /// picked.
    chosen: Option<usize>,
}

/// As large as a power of two, so that a place is found by a shift.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Member {
    weight: u32,
    time: Virtual,
    /// The remainder of the last division, so that nothing is lost to rounding.
    rest: u64,
    ran: u64,
}

impl Member {
    /// By virtual time, to the last fraction: a member that is ahead by less than a unit would else
    /// be picked before one that has waited for a slice more.
    #[inline]
    fn is_behind(&self, other: &Member) -> bool {
        // A rest is less than its weight, so the products are below 2^64.
        let rests = || self.rest * u64::from(other.weight) < other.rest * u64::from(self.weight);
        self.time < other.time || self.time == other.time && rests()
    }

    const fn new(weight: u32, time: Virtual) -> Self {
        Member { weight, time, rest: 0, ran: 0 }
    }

    #[inline]
    fn charge(&mut self, ticks: u64) {
        // The usual weight leaves no rest. No sum of charges comes near to what the type holds.
        if self.weight == DEFAULT_WEIGHT {
            self.time = self.time.wrapping_add(ticks.into());
        } else {
            self.charge_by_weight(ticks);
        }
    }

    #[cold]
    fn charge_by_weight(&mut self, ticks: u64) {
        let weight = u64::from(self.weight);
        let due = ticks.checked_mul(DEFAULT_WEIGHT.into()).and_then(|d| d.checked_add(self.rest));
        let (time, rest) = match due {
            Some(due) => (Virtual::from(due / weight), due % weight),
            // Some hundred million seconds.
            None => {
                let due = u128::from(ticks) * u128::from(DEFAULT_WEIGHT) + u128::from(self.rest);
                (due / u128::from(weight), (due % u128::from(weight)) as u64)
            }
        };
        self.time = self.time.wrapping_add(time);
        self.rest = rest;
    }
}

impl Schedule {
    /// Nobody yet. `slice`: the ticks that one runs at a stretch if another wants to, at least 1.
    pub const fn new(slice: u64) -> Self {
        Schedule {
            slice: if slice == 0 { 1 } else { slice },
            members: [Member::new(DEFAULT_WEIGHT, 0); MAX],
            count: 0,
            blocked: 0,
            runnable: 0,
            woken: 0,
            running: 0,
            last: MAX - 1,
            began: 0,
            charged: 0,
            prepaid: 0,
            floor: 0,
            chosen: None,
        }
    }

    /// A new member, blocked until it is woken. Gives its place; none if there are [`MAX`] already.
    /// Weights are 1 to [`MAX_WEIGHT`]; others are brought there.
    pub fn add(&mut self, weight: u32) -> Option<usize> {
        let place = self.count;
        *self.members.get_mut(place)? = Member::new(weight.clamp(1, MAX_WEIGHT), self.floor);
        self.blocked |= bit(place);
        self.count += 1;
        Some(place)
    }

    /// It may run. Waking one that is awake changes nothing.
    #[inline]
    pub fn wake(&mut self, place: usize, now: u64) {
        if self.blocked & bit(place) == 0 {
            return;
        }
        self.charge(now);
        self.raise_floor();
        self.chosen = None;
        let least = self.floor.saturating_sub(Virtual::from(self.slice));
        let running = self.running().map_or(0, |place| self.member(place).time);
        let member = &mut self.members[place % MAX];
        member.time = member.time.max(least);
        let behind = member.time < running;
        self.blocked &= !bit(place);
        self.runnable |= bit(place);
        if behind {
            self.woken |= bit(place);
        }
    }

    /// It has nothing to run. The time it had until `now` is charged.
    #[inline]
    pub fn block(&mut self, place: usize, now: u64) {
        self.stop(place, now, Places::MAX);
    }

    /// It never runs again; its place stays taken.
    pub fn remove(&mut self, place: usize, now: u64) {
        self.stop(place, now, 0);
    }

    /// The vCPU that has the core.
    #[inline]
    pub fn running(&self) -> Option<usize> {
        places(self.running).next()
    }

    /// Could it run, or does it?
    pub fn is_runnable(&self, place: usize) -> bool {
        self.runnable & bit(place) != 0
    }

    /// Could somebody run who isn't the running one?
    #[inline]
    pub fn contested(&self) -> bool {
        // The running one is among the runnable ones until it blocks.
        self.runnable & !self.running != 0
    }

    /// Would [`Schedule::pick`] give the core to another? If the running one's slice is over and it
    /// wouldn't, another slice begins.
    ///
    /// This is asked at every exit. While nothing has changed it charges nobody: a charge is the
    /// same in one piece, and whatever looks at virtual times charges first.
    #[inline]
    pub fn should_switch(&mut self, now: u64) -> bool {
        let stays = self.running != 0 && !self.slice_over(now) && self.woken == 0;
        !stays && self.would_switch(now)
    }

    #[inline(never)]
    fn would_switch(&mut self, now: u64) -> bool {
        self.charge(now);
        let next = self.next(now);
        if next == self.running() {
            self.chosen = None;
            self.renew(now);
            return false;
        }
        self.chosen = next;
        true
    }

    /// Charges the running one, chooses and makes the chosen one the running one, which may be the
    /// same; it is the one that [`Schedule::should_switch`] spoke of, if nobody woke or blocked
    /// since. None if nobody is runnable.
    #[inline]
    pub fn pick(&mut self, now: u64) -> Option<usize> {
        self.charge(now);
        let next = self.chosen.take().or_else(|| self.next(now));
        if next == self.running() {
            self.renew(now);
            return next;
        }
        let cut_short = self.running != 0 && !self.slice_over(now);
        self.running = next.map_or(0, |place| 1 << (place % MAX));
        (self.began, self.charged, self.prepaid) = (now, now, 0);
        if let Some(place) = next {
            self.last = place;
            self.woken &= !self.running;
            if cut_short {
                self.prepaid = self.slice / MIN_TURN;
                self.members[place % MAX].charge(self.prepaid);
            }
        }
        next
    }

    /// Is it decided who is picked next?
    #[inline]
    pub fn has_chosen(&self) -> bool {
        self.chosen.is_some()
    }

    /// When the running one's slice ends, if somebody else could run.
    #[inline]
    pub fn deadline(&self) -> Option<u64> {
        let contested = self.running != 0 && self.contested();
        contested.then(|| self.began.wrapping_add(self.slice))
    }

    /// Until when [`Schedule::should_switch`] says no if nobody wakes, blocks or is picked
    /// meanwhile; 0: that isn't known, since one that woke may have a claim at any time.
    #[inline]
    pub fn stays_until(&self) -> u64 {
        let known = self.running != 0 && self.woken == 0;
        if known { self.began.wrapping_add(self.slice) } else { 0 }
    }

    /// Ticks that it had the core, as far as charged.
    pub fn ran(&self, place: usize) -> u64 {
        self.members.get(place).map_or(0, |member| member.ran)
    }

    #[inline]
    fn member(&self, place: usize) -> &Member {
        &self.members[place % MAX]
    }

    /// Charges the running one up to `now`.
    #[inline]
    fn charge(&mut self, now: u64) {
        let ticks = elapsed(self.charged, now);
        self.charged = now;
        if ticks != 0 {
            self.charge_running(ticks);
        }
    }

    #[inline(always)]
    fn charge_running(&mut self, ticks: u64) {
        if let Some(place) = self.running() {
            let paid = ticks.min(self.prepaid);
            self.prepaid -= paid;
            let member = &mut self.members[place % MAX];
            member.ran = member.ran.wrapping_add(ticks);
            member.charge(ticks - paid);
        }
    }

    /// Raises the floor to the least virtual time of the runnable ones. That only grows while none
    /// becomes runnable: so it is enough to do this before one does, or before the last one isn't.
    #[inline]
    fn raise_floor(&mut self) {
        if self.runnable == 0 {
            return;
        }
        let mut least = Virtual::MAX;
        for place in places(self.runnable) {
            least = least.min(self.member(place).time);
        }
        self.floor = self.floor.max(least);
    }

    #[inline]
    fn stop(&mut self, place: usize, now: u64, blocks: Places) {
        self.charge(now);
        // If others stay, their least time is no less than that of all.
        if self.runnable.is_power_of_two() {
            self.raise_floor();
        }
        self.chosen = None;
        let present = (self.blocked | self.runnable) & bit(place);
        self.runnable &= !present;
        self.woken &= !present;
        self.blocked = self.blocked & !present | present & blocks;
        if self.running & bit(place) != 0 {
            self.running = 0;
            self.prepaid = 0;
        }
    }

    #[inline]
    fn slice_over(&self, now: u64) -> bool {
        elapsed(self.began, now) >= self.slice
    }

    /// The running one goes on; a slice that is over begins anew.
    fn renew(&mut self, now: u64) {
        if self.slice_over(now) {
            self.began = now;
        }
    }

    /// The vCPU that is to have the core from `now` on.
    #[inline(always)]
    fn next(&self, now: u64) -> Option<usize> {
        let Some(running) = self.running() else {
            return self.least(self.runnable);
        };
        if self.slice_over(now) {
            return self.least(self.runnable);
        }
        let time = self.member(running).time;
        self.least(self.woken).filter(|place| self.member(*place).time < time).or(Some(running))
    }

    /// The one of least virtual time among these; of equals the first after who ran last.
    #[inline]
    fn least(&self, among: Places) -> Option<usize> {
        // Most often there is one, or none.
        if among & among.wrapping_sub(1) == 0 {
            return places(among).next();
        }
        self.least_of_some(among)
    }

    #[inline(never)]
    fn least_of_some(&self, among: Places) -> Option<usize> {
        let after = Places::MAX.unbounded_shl(self.last as u32 + 1);
        let (mut found, mut least) = (None, Member::new(DEFAULT_WEIGHT, 0));
        for place in places(among & after).chain(places(among & !after)) {
            let member = self.member(place);
            if found.is_none() || member.is_behind(&least) {
                (found, least) = (Some(place), *member);
            }
        }
        found
    }
}

/// The places in a set, from the first on.
#[inline]
fn places(mut set: Places) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let place = set.trailing_zeros() as usize;
        let some = set != 0;
        set &= set.wrapping_sub(1);
        some.then_some(place)
    })
}

/// Ticks from `then` to `now`; none if time went backwards.
const fn elapsed(then: u64, now: u64) -> u64 {
    let ticks = now.wrapping_sub(then);
    if ticks > i64::MAX as u64 { 0 } else { ticks }
}

#[cfg(test)]
mod tests;
