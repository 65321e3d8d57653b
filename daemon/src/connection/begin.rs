//! Where a ring begins: from a base that the front end says, from the state in which it stopped, or
//! from records.
//!
//! Restarts: a front end that hands over records of what is in flight may be one that was there
//! before: the records and the ring count, whatever base it says.

use super::Connection;
use anyhow::{Context as _, Result, bail};
use virtqueue::{DEFAULT_SIZE, Features, Layout, Position, Queue, Records, State};
use window::Window;

/// The index of a used ring, in bytes from its start.
const USED_INDEX: u64 = 2;
/// In a half of a packed ring's base: the wrap counter.
const WRAP: u16 = 1 << 15;
/// A packed ring's descriptor, and its flags: available and used.
const DESCRIPTOR: u64 = 16;
const FLAGS: u64 = 14;
const EITHER: u16 = 1 << 7 | 1 << 15;

impl Connection {
    /// The queue of a ring, and its records if they are a split ring's. `state`: in which it
    /// stopped. `keeps`: its device has records.
    pub(super) fn begin(
        &self,
        ring: u16,
        layout: Layout,
        features: Features,
        state: Option<State>,
        keeps: bool,
    ) -> Result<(Queue, Option<Records<DEFAULT_SIZE>>)> {
        let window = self.memory.window();
        let base = || {
            let said = self.session.ring(ring).context("there is no such ring")?;
            match state {
                Some(state) => Ok(state),
                None if features.packed && said.base == 0 && is_new(window, layout) => {
                    Ok(State::at_reset(features))
                }
                None => self.state_of(said.base, features),
            }
        };
        let served = || format!("ring {ring} can't be served");
        let gone_on_with = || format!("ring {ring} can't be gone on with");
        let Some(kept) = self.kept.as_ref().filter(|_| keeps) else {
            let queue = Queue::new(window, layout, features, base()?);
            return Ok((queue.with_context(served)?, None));
        };
        if features.packed {
            let records = kept.of_packed(ring)?;
            let queue = Queue::recorded(window, layout, features, base()?, records);
            return Ok((queue.with_context(gone_on_with)?, None));
        }
        let mut used = [0; 2];
        let at = layout.device.saturating_add(USED_INDEX);
        window.read(at, &mut used).context("a used ring is outside of memory")?;
        let opened = kept.open(ring, layout.size, u16::from_le_bytes(used));
        let (records, state) = opened.with_context(gone_on_with)?;
        let queue = Queue::new(window, layout, features, state).with_context(served)?;
        Ok((queue, Some(records)))
    }

    /// A state as the word of SET_VRING_BASE: the available index, or for packed rings both places
    /// with their wrap counters, that of used descriptors in the high half.
    pub(super) fn base_of(&self, state: &State) -> u32 {
        let half = |at: Position| at.index | if at.wrap { WRAP } else { 0 };
        match self.is_packed() {
            true => u32::from(half(state.used)) << 16 | u32::from(half(state.available)),
            false => state.available.index.into(),
        }
    }

    /// The state that such a word says, of a ring with nothing in flight.
    fn state_of(&self, base: u32, features: virtqueue::Features) -> Result<State> {
        let half = |half: u16| Position { index: half & !WRAP, wrap: half & WRAP != 0 };
        let (available, used) = match (features.packed, u16::try_from(base)) {
            (true, _) => (half(base as u16), half((base >> 16) as u16)),
            (false, Ok(index)) => (Position { index, wrap: true }, Position { index, wrap: true }),
            (false, Err(_)) => bail!("a split ring is to begin at {base}"),
        };
        Ok(State { available, used, ..State::at_reset(features) })
    }
}

/// Whether nothing was ever offered in the last place of this packed ring. libblkio says 0 for a
/// ring that it has just set up, which is the first place in an even round: its wrap counters are
/// false. But whoever has come there has offered every place in the round before, and has left a
/// flag in each.
fn is_new(window: &Window, layout: Layout) -> bool {
    let last = DESCRIPTOR * u64::from(layout.size.saturating_sub(1)) + FLAGS;
    let mut flags = [0; 2];
    let read = window.read(layout.descriptors.saturating_add(last), &mut flags);
    read.is_ok() && u16::from_le_bytes(flags) & EITHER == 0
}
