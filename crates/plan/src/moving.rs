//! Which disks and switches move from one sidecore to another while VMs run, and why.
//!
//! Guarantees: only what can move does (a disk that is no controller's, or a switch with all its
//! ports: they share nothing with others); there are sidecores for it to move to, and each has
//! places for all that may come.

use crate::{Backing, Disk, Error, MAX_SIDECORES, Micros, Place, Plan};
use core::ops::RangeInclusive;
use serde::{Deserialize, Serialize};

/// The bounds on waits that a plan may have, in microseconds.
pub const LATENCIES: RangeInclusive<u32> = 5..=1_000_000;

/// Whether disks and switches move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Moving {
    /// Each stays where the plan's order puts it.
    #[default]
    Never,
    /// The first sidecore serves all, and others help while a queue waits for its turn for longer
    /// than so many microseconds.
    ByLoad(u32),
    /// For tests: each goes on to the next sidecore after so many turns, which are of 4 KiB.
    Rounds(u16),
}

/// What is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MovingProblem {
    /// Nowhere to go.
    #[error("with {0} of them no disk can move; have two, with sidecores = 2, or leave {1} out")]
    FewSidecores(usize, &'static str),
    /// A bound that nothing keeps, or everything.
    #[error(
        "{} is out of range; use {} to {}",
        Micros(*.0), Micros(*LATENCIES.start()), Micros(*LATENCIES.end())
    )]
    Latency(u32),
    /// No turns.
    #[error("0 turns are none; leave it out for disks that stay")]
    NoTurns,
    /// Two reasons to move.
    #[error("disks move by load or in rounds; leave one of the two out")]
    Both,
}

impl<F> Disk<F> {
    /// Is it one that can be served by any sidecore?
    pub fn can_move(&self) -> bool {
        matches!(self.backing, Backing::Ram | Backing::Null)
    }
}

impl<F> Plan<F> {
    /// Does this disk move?
    pub fn moves(&self, disk: &Disk<F>) -> bool {
        self.host.moving != Moving::Never && disk.can_move()
    }

    /// Queues that may come to any sidecore.
    pub(crate) fn moving_queues(&self) -> usize {
        let moving = self.disks().filter(|(_, disk)| self.moves(disk));
        let disks = moving.map(|(_, disk)| usize::from(disk.queues));
        let all = self.interfaces().filter(|_| self.host.moving != Moving::Never);
        let interfaces = all.map(|(_, interface)| interface.all_queues());
        disks.chain(interfaces).fold(0, usize::saturating_add)
    }

    /// What must hold of what the host is to do.
    pub(crate) fn check_moving(&self) -> Result<(), Error> {
        let (key, problem) = match self.host.moving {
            Moving::Never => return Ok(()),
            Moving::ByLoad(us) if !LATENCIES.contains(&us) => {
                ("sidecore_latency", MovingProblem::Latency(us))
            }
            Moving::Rounds(0) => ("sidecore_rounds", MovingProblem::NoTurns),
            Moving::ByLoad(_) | Moving::Rounds(_) => {
                let by_load = matches!(self.host.moving, Moving::ByLoad(_));
                let asked = if by_load { "sidecore_latency" } else { "sidecore_rounds" };
                match self.sidecores.len() {
                    2..=MAX_SIDECORES => return Ok(()),
                    few => ("sidecores", MovingProblem::FewSidecores(few, asked)),
                }
            }
        };
        Err(Error { place: Place::Host, key, problem: problem.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MAX_SERVED;
    use crate::file::parse;
    use alloc::format;
    use alloc::string::String;

    fn read(host: &str, disks: &str) -> Result<Plan<String>, String> {
        let text = format!("[host]\n{host}\n[vm.a]\nkernel='k'\ndisk=[{disks}]\n");
        parse("f", &text).map_err(|error| format!("{error}"))
    }

    fn refused(host: &str) -> String {
        read(host, "{size='1M'}").unwrap_err()
    }

    #[test]
    fn disks_move_by_load_or_in_rounds() {
        let moving = |host: &str| {
            let plan = read(&format!("sidecores=2\n{host}"), "{size='1M'}").unwrap();
            (plan.host.moving, plan.moves(&plan.vms[0].disks[0]))
        };
        assert_eq!(moving(""), (Moving::Never, false));
        assert_eq!(moving("sidecore_latency='50us'"), (Moving::ByLoad(50), true));
        assert_eq!(moving("sidecore_rounds=4"), (Moving::Rounds(4), true));
    }

    #[test]
    fn by_load_all_that_can_move_begins_with_the_first() {
        let disks = "{size='1M',queues=2},{size='1M',device='nvme0'},{size='1M',queues=3}";
        let places = |host: &str| {
            let plan = read(host, disks).unwrap();
            let of = [0, 1, 2].map(|disk| plan.sidecore_of_disk(disk).unwrap());
            (of, plan.served_queues())
        };
        // A controller's goes where it went.
        let (of, queues) = places("sidecores=2");
        assert_eq!((of, queues), ([1, 0, 0], vec_of([4, 2])));
        let (of, queues) = places("sidecores=2\nsidecore_latency='1ms'");
        assert_eq!((of, queues), ([0, 0, 0], vec_of([6, 5])));
        let (of, queues) = places("sidecores=2\nsidecore_rounds=9");
        assert_eq!((of, queues), ([1, 0, 0], vec_of([6, 5])));
    }

    #[test]
    fn switches_move_with_all_their_ports() {
        let places = |host: &str| {
            let vm = "[vm.a]\nkernel='k'\nnetwork=[{switch='x'},{switch='y'},{switch='y'}]\n";
            let plan = parse("f", &format!("[host]\nsidecores=2\n{host}\n{vm}")).unwrap();
            let of = ["x", "y"].map(|name| plan.sidecore_of_switch(name).unwrap());
            (of, plan.served_queues())
        };
        // Two queues and one for commands each.
        assert_eq!(places(""), ([0, 1], vec_of([3, 6])));
        assert_eq!(places("sidecore_latency='1ms'"), ([0, 0], vec_of([9, 9])));
        assert_eq!(places("sidecore_rounds=1"), ([0, 1], vec_of([9, 9])));
    }

    fn vec_of(queues: [usize; 2]) -> alloc::vec::Vec<usize> {
        queues.into()
    }

    #[test]
    fn what_cannot_be_is_told() {
        for (host, said) in [
            (
                "sidecores=1\nsidecore_rounds=1",
                "f:2: [host] sidecores: with 1 of them no disk can move; have two, with sidecores = 2, or leave sidecore_rounds out",
            ),
            (
                "sidecores=2\nsidecore_latency='4us'",
                "f:3: [host] sidecore_latency: 4us is out of range; use 5us to 1s",
            ),
            (
                "sidecores=2\nsidecore_latency=4",
                "f:3: [host] sidecore_latency: this is a number, but it has to be a time in quotes, such as \"100us\"",
            ),
            (
                "sidecores=2\nsidecore_rounds=0",
                "f:3: [host] sidecore_rounds: 0 turns are none; leave it out for disks that stay",
            ),
            (
                "sidecores=2\nsidecore_rounds=70000",
                "f:3: [host] sidecore_rounds: `70000` is out of range; use 0 to 65535",
            ),
            (
                "sidecores=2\nsidecore_rounds=3\nsidecore_latency='5us'",
                "f:4: [host] sidecore_latency: disks move by load or in rounds; leave one of the two out",
            ),
        ] {
            assert_eq!(refused(host), said);
        }
    }

    #[test]
    fn every_sidecore_has_places_for_all_that_may_come() {
        let disks = ["{size='1M',queues=16}"; 4].join(",");
        let vms: String =
            (0..3).map(|vm| format!("[vm.v{vm}]\nkernel='k'\ndisk=[{disks}]\n")).collect();
        let plan = |moves: &str| parse("f", &format!("[host]\nsidecores=2\n{moves}\n{vms}"));
        assert!(plan("").is_ok());
        let said = format!("{}", plan("sidecore_rounds=1").unwrap_err());
        assert!(said.contains("192 queues") && said.contains(&format!("{MAX_SERVED}")));
    }
}
