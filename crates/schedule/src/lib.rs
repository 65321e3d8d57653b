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

/// One core's vCPUs, by their places 0, 1, 2 …
#[derive(Clone, Debug)]
pub struct Schedule {
    /// Ticks that one runs at a stretch if another wants to.
    slice: u64,
    members: [Member; MAX],
    count: usize,
    /// How many could run or do, and how many of them [`State::Woken`].
    runnable: usize,
    woken: usize,
    running: Option<usize>,
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

#[derive(Clone, Copy, Debug)]
struct Member {
    weight: u32,
    state: State,
    time: Virtual,
    /// The remainder of the last division, so that nothing is lost to rounding.
    rest: u64,
    ran: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Blocked,
    Runnable,
    /// Runnable, was behind the running one when it woke, and hasn't run since.
    Woken,
    Removed,
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
        Member { weight, state: State::Blocked, time, rest: 0, ran: 0 }
    }

    const fn runnable(&self) -> bool {
        matches!(self.state, State::Runnable | State::Woken)
    }

    #[inline]
    fn charge(&mut self, ticks: u64) {
        // The usual weight leaves no rest.
        if self.weight == DEFAULT_WEIGHT {
            self.time = self.time.saturating_add(ticks.into());
        } else {
            self.charge_by_weight(ticks);
        }
    }

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
        self.time = self.time.saturating_add(time);
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
            runnable: 0,
            woken: 0,
            running: None,
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
        self.count += 1;
        Some(place)
    }

    /// It may run. Waking one that is awake changes nothing.
    #[inline]
    pub fn wake(&mut self, place: usize, now: u64) {
        if self.members[..self.count].get(place).is_none_or(|m| m.state != State::Blocked) {
            return;
        }
        self.charge(now);
        self.raise_floor();
        self.chosen = None;
        let least = self.floor.saturating_sub(Virtual::from(self.slice));
        let running = self.running.map_or(0, |place| self.members[place].time);
        if let Some(member) = self.member(place) {
            member.time = member.time.max(least);
            let behind = member.time < running;
            self.start(place, if behind { State::Woken } else { State::Runnable });
        }
    }

    /// It has nothing to run. The time it had until `now` is charged.
    #[inline]
    pub fn block(&mut self, place: usize, now: u64) {
        self.stop(place, now, State::Blocked);
    }

    /// It never runs again; its place stays taken.
    pub fn remove(&mut self, place: usize, now: u64) {
        self.stop(place, now, State::Removed);
    }

    /// The vCPU that has the core.
    pub fn running(&self) -> Option<usize> {
        self.running
    }

    /// Could it run, or does it?
    pub fn is_runnable(&self, place: usize) -> bool {
        self.members[..self.count].get(place).is_some_and(Member::runnable)
    }

    /// Could somebody run who isn't the running one?
    #[inline]
    pub fn contested(&self) -> bool {
        // The running one is among the runnable ones until it blocks.
        self.runnable > usize::from(self.running.is_some())
    }

    /// Would [`Schedule::pick`] give the core to another? If the running one's slice is over and it
    /// wouldn't, another slice begins.
    ///
    /// This is asked at every exit. While nothing has changed it charges nobody: a charge is the
    /// same in one piece, and whatever looks at virtual times charges first.
    pub fn should_switch(&mut self, now: u64) -> bool {
        if self.running.is_some() && !self.slice_over(now) && !self.has_woken() {
            return false;
        }
        self.charge(now);
        let next = self.next(now);
        if next == self.running {
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
        if next == self.running {
            self.renew(now);
            return next;
        }
        let cut_short = self.running.is_some() && !self.slice_over(now);
        self.running = next;
        (self.began, self.charged, self.prepaid) = (now, now, 0);
        if let Some(place) = next {
            self.last = place;
            let price = if cut_short { self.slice / MIN_TURN } else { 0 };
            if let Some(member) = self.members.get_mut(place) {
                let woke = core::mem::replace(&mut member.state, State::Runnable) == State::Woken;
                self.woken -= usize::from(woke);
                member.charge(price);
            }
            self.prepaid = price;
        }
        next
    }

    /// Is it decided who is picked next?
    #[inline]
    pub fn has_chosen(&self) -> bool {
        self.chosen.is_some()
    }

    /// When the running one's slice ends, if somebody else could run.
    pub fn deadline(&self) -> Option<u64> {
        let contested = self.running.is_some() && self.contested();
        contested.then(|| self.began.wrapping_add(self.slice))
    }

    /// Until when [`Schedule::should_switch`] says no if nobody wakes, blocks or is picked
    /// meanwhile; 0: that isn't known, since one that woke may have a claim at any time.
    pub fn stays_until(&self) -> u64 {
        let known = self.running.is_some() && !self.has_woken();
        if known { self.began.wrapping_add(self.slice) } else { 0 }
    }

    /// Ticks that it had the core, as far as charged.
    pub fn ran(&self, place: usize) -> u64 {
        self.members.get(place).map_or(0, |member| member.ran)
    }

    fn member(&mut self, place: usize) -> Option<&mut Member> {
        self.members[..self.count].get_mut(place)
    }

    /// A member that was blocked may run.
    #[inline]
    fn start(&mut self, place: usize, state: State) {
        if let Some(member) = self.member(place) {
            member.state = state;
            self.runnable += 1;
            self.woken += usize::from(state == State::Woken);
        }
    }

    /// A member doesn't run any more, whatever it did before.
    fn end(&mut self, place: usize, state: State) {
        let Some(member) = self.member(place) else { return };
        match core::mem::replace(&mut member.state, state) {
            State::Runnable => self.runnable -= 1,
            State::Woken => (self.runnable, self.woken) = (self.runnable - 1, self.woken - 1),
            State::Blocked | State::Removed => {}
        }
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
        if let Some(place) = self.running {
            let paid = ticks.min(self.prepaid);
            self.prepaid -= paid;
            if let Some(member) = self.members.get_mut(place) {
                member.ran = member.ran.saturating_add(ticks);
                member.charge(ticks - paid);
            }
        }
    }

    /// Raises the floor to the least virtual time of the runnable ones. That only grows while none
    /// becomes runnable: so it is enough to do this before one does, or before the last one isn't.
    fn raise_floor(&mut self) {
        let mut least = Virtual::MAX;
        match self.running.and_then(|place| self.members.get(place)) {
            // The running one is runnable: nobody else is.
            Some(running) if self.runnable == 1 => least = running.time,
            _ if self.runnable == 0 => return,
            _ => {
                for member in &self.members[..self.count] {
                    if member.runnable() {
                        least = least.min(member.time);
                    }
                }
            }
        }
        self.floor = self.floor.max(least);
    }

    #[inline]
    fn stop(&mut self, place: usize, now: u64, state: State) {
        self.charge(now);
        // If others stay, their least time is no less than that of all.
        if self.runnable == 1 {
            self.raise_floor();
        }
        self.chosen = None;
        if self.member(place).is_some_and(|member| member.state != State::Removed) {
            self.end(place, state);
        }
        if self.running == Some(place) {
            self.running = None;
            self.prepaid = 0;
        }
    }

    /// Could one that woke have a claim before the running one's slice is over?
    #[inline]
    fn has_woken(&self) -> bool {
        self.woken != 0
    }

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
        let Some(running) = self.running else {
            return self.least(Member::runnable);
        };
        if self.slice_over(now) {
            return self.least(Member::runnable);
        }
        let time = self.members[running].time;
        self.least(|member| member.state == State::Woken && member.time < time).or(Some(running))
    }

    /// The one of least virtual time among these; of equals the first after who ran last.
    #[inline(always)]
    fn least(&self, among: impl Fn(&Member) -> bool) -> Option<usize> {
        let (before, after) = self.members[..self.count].split_at((self.last + 1).min(self.count));
        let mut found: Option<(usize, &Member)> = None;
        for (first, members) in [(before.len(), after), (0, before)] {
            for (place, member) in (first..).zip(members) {
                if among(member) && found.is_none_or(|(_, least)| member.is_behind(least)) {
                    found = Some((place, member));
                }
            }
        }
        found.map(|(place, _)| place)
    }
}

/// Ticks from `then` to `now`; none if time went backwards.
const fn elapsed(then: u64, now: u64) -> u64 {
    let ticks = now.wrapping_sub(then);
    if ticks > i64::MAX as u64 { 0 } else { ticks }
}

#[cfg(test)]
mod tests;
