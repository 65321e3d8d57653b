//! What the file says and isn't served: named with its reason, and tried again.
//!
//! Guarantees: one device that can't be had keeps no other from being served. Each is told of by
//! `list`, `top`, the metrics and the service's status for as long as the file says it and it isn't
//! there. It is tried again a second later, then after twice as long each time, a minute at most,
//! and by each reload; who is served doesn't wait for that. A reason is logged once.
//!
//! Not guaranteed: that a disk on an NVMe controller comes later, as controllers are opened at the
//! start alone.

use crate::build::Entry;
use crate::clock::HERTZ;
use crate::config::{Backing, Disk, Uplink};
use crate::home::Home;
use crate::pending::{Need, Origin};
use plan::Escaped;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Between two tries, at first and at most.
const FIRST: u64 = HERTZ;
const LAST: u64 = 60 * HERTZ;

/// What is to be served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wished {
    Device(Box<Entry>),
    Uplink(Uplink),
}

impl Wished {
    /// As people call it.
    pub fn name(&self) -> String {
        match self {
            Wished::Device(entry) => entry.name().to_owned(),
            Wished::Uplink(uplink) => format!("uplink of {}", uplink.switch),
        }
    }

    /// Can it be had later?
    fn may_come(&self) -> bool {
        let Wished::Device(entry) = self else { return true };
        !matches!(&**entry, Entry::Disk(Disk { backing: Backing::Nvme(_), .. }))
    }
}

/// One of them, and the reason in a sentence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unserved {
    pub wished: Wished,
    pub why: String,
}

/// All of them.
#[derive(Default)]
pub struct Missing {
    all: Vec<Unserved>,
    /// When they are tried again, and how long after the last time.
    again_at: Option<u64>,
    pause: u64,
}

impl Missing {
    pub fn all(&self) -> &[Unserved] {
        &self.all
    }

    /// This isn't served. It is said, and tried again.
    pub fn note(&mut self, wished: Wished, why: String) {
        let hope = match wished.may_come() {
            true => "it is tried again",
            false => "restart the daemon once that is mended",
        };
        eprintln!("exitless-io: {} isn't served: {why}; {hope}", wished.name());
        self.all.push(Unserved { wished, why });
    }

    /// From now on these are all that is missing. What was tried before keeps its reason.
    pub fn expect(&mut self, wished: impl Iterator<Item = Wished>) {
        let before = std::mem::take(&mut self.all);
        self.all.extend(wished.map(|wished| {
            let old = before.iter().find(|old| old.wished == wished);
            let why = old.map_or("it is being opened".into(), |old| old.why.clone());
            Unserved { wished, why }
        }));
    }

    /// Those that came from another program.
    pub fn take_over(&mut self, all: Vec<Unserved>) {
        self.all = all;
    }

    /// It can't be had, if it is one of these. Is the reason another one than before?
    pub fn failed(&mut self, name: &str, why: &str) -> bool {
        let own = self.all.iter_mut().find(|own| own.wished.name() == name);
        own.is_none_or(|own| std::mem::replace(&mut own.why, why.to_owned()) != why)
    }

    /// It is served, or isn't to be. Was it one of these?
    pub fn forget(&mut self, name: &str) -> bool {
        let at = self.all.iter().position(|own| own.wished.name() == name);
        at.map(|at| self.all.remove(at)).is_some()
    }

    /// When to try again.
    pub fn again_at(&self) -> Option<u64> {
        self.again_at
    }

    /// A change is done, at this time. `by_itself`: it was a try.
    pub fn changed(&mut self, now: u64, by_itself: bool) {
        self.pause = if by_itself { (2 * self.pause).clamp(FIRST, LAST) } else { FIRST };
        let may_come = self.all.iter().any(|own| own.wished.may_come());
        self.again_at = may_come.then(|| now.saturating_add(self.pause));
    }

    /// What is to be tried now. It isn't told of again before [`Self::changed`].
    pub fn due(&mut self) -> Vec<Wished> {
        self.again_at = None;
        let may_come = self.all.iter().filter(|own| own.wished.may_come());
        may_come.map(|own| own.wished.clone()).collect()
    }
}

impl Home {
    /// Tries what is missing again, unless a change is under way, after which it is due, too.
    pub(crate) fn try_missing(&mut self) {
        let wished = self.missing.due();
        if self.pending.is_ready() {
            self.change_by(Origin::Itself, wished.into_iter().map(Need::of).collect());
        }
    }

    /// Has something that is missing this socket?
    pub fn is_awaited(&self, socket: &Path) -> bool {
        self.missing.all().iter().any(|own| match &own.wished {
            Wished::Device(entry) => self.folder.join(entry.way().path()) == socket,
            Wished::Uplink(_) => false,
        })
    }

    /// What is served and what isn't, in a line.
    pub fn status(&self) -> String {
        let names: Vec<_> = self.known.iter().map(|known| known.entry.name()).collect();
        let names = match self.clients.desks() {
            [Some((control, _)), _] if names.is_empty() && self.missing.all().is_empty() => {
                format!(
                    "nothing yet; `exitless-io add FILE --control {}` adds devices",
                    control.display()
                )
            }
            _ if names.is_empty() => "nothing".into(),
            _ => names.join(", "),
        };
        let missing = self.missing.all().iter();
        let missing = missing.map(|own| format!("; not {}: {}", own.wished.name(), own.why));
        Escaped(&format!("serves {names}{}", missing.collect::<String>())).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Out;

    fn uplink(switch: &str) -> Wished {
        Wished::Uplink(Uplink { switch: switch.into(), out: Out::Tap("tap0".into()) })
    }

    #[test]
    fn tries_come_less_and_less_often() {
        let mut missing = Missing::default();
        missing.changed(0, false);
        assert_eq!(missing.again_at(), None, "nothing is missing");
        missing.note(uplink("lan"), "no TAP".into());
        missing.changed(0, false);
        let mut now = 0;
        let pauses: Vec<u64> = (0..8)
            .map(|_| {
                let at = missing.again_at().expect("it is tried");
                assert_eq!((missing.due(), missing.again_at()), (vec![uplink("lan")], None));
                missing.changed(at, true);
                (at - std::mem::replace(&mut now, at)) / HERTZ
            })
            .collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        missing.changed(now, false);
        assert_eq!(missing.again_at(), Some(now + HERTZ), "somebody mends it");
    }

    #[test]
    fn a_reason_is_news_once_and_outlasts_a_reload() {
        let mut missing = Missing::default();
        missing.note(uplink("lan"), "no TAP".into());
        assert!(!missing.failed("uplink of lan", "no TAP"));
        assert!(missing.failed("uplink of lan", "no right"));
        assert!(missing.failed("web", "it is no device of the file"));
        missing.expect([uplink("lan"), uplink("wan")].into_iter());
        let whys: Vec<_> = missing.all().iter().map(|own| own.why.as_str()).collect();
        assert_eq!(whys, ["no right", "it is being opened"]);
        assert!(missing.forget("uplink of wan") && !missing.forget("uplink of wan"));
    }
}
