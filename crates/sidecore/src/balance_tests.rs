//! The rules of balancing one by one, and loads that don't change.

use super::*;
use proptest::prelude::*;
use std::vec::Vec;

const TICKS: u64 = 1_000;
const DEVICES: usize = 8;
/// Ten doublings of the patience fit in.
const EPOCHS: usize = if cfg!(miri) { 500 } else { 20_000 };

/// Sidecores and devices whose loads don't change from one epoch to the next.
#[derive(Clone, Debug)]
struct World {
    /// What can't move: the sidecore, and its load.
    kept: Vec<Option<u64>>,
    devices: Vec<(usize, u64)>,
    /// A sidecore with two busy devices at least that is as busy as this breaks the bound.
    limit: u64,
}

impl World {
    fn of(cores: usize, devices: &[(usize, u64)], limit: u64) -> World {
        World { kept: vec![None; cores], devices: devices.to_vec(), limit }
    }

    fn cores(&self) -> Vec<CoreLoad> {
        let core = |(core, kept): (usize, &Option<u64>)| {
            let own = self.devices.iter().filter(|(at, _)| *at == core).map(|(_, busy)| busy);
            CoreLoad { busy: kept.unwrap_or(0) + own.sum::<u64>(), keeps: kept.is_some() }
        };
        self.kept.iter().enumerate().map(core).collect()
    }

    fn loads(&self) -> Vec<DeviceLoad> {
        let cores = self.cores();
        let several = |core| {
            let others = self.devices.iter().filter(|(at, busy)| *at == core && *busy > 0);
            others.count() + usize::from(self.kept[core].is_some_and(|busy| busy > 0)) > 1
        };
        let load = |&(at, busy): &(usize, u64)| {
            let late = busy > 0 && several(at) && cores[at].busy >= self.limit;
            DeviceLoad { at, busy, late: late.into() }
        };
        self.devices.iter().map(load).collect()
    }

    fn step(&mut self, balance: &mut Balance) -> Option<Move> {
        let go = balance.next(TICKS, &self.cores(), &self.loads())?;
        assert!(go.to < self.kept.len() && go.to != self.devices[go.device].0);
        self.devices[go.device].0 = go.to;
        Some(go)
    }

    /// The epochs in which something moved.
    fn moves(&mut self, balance: &mut Balance, epochs: usize) -> Vec<usize> {
        (0..epochs).filter(|_| self.step(balance).is_some()).collect()
    }

    fn is_late(&self) -> bool {
        self.loads().iter().any(|load| load.late > 0)
    }

    fn awake(&self) -> usize {
        let (cores, loads) = (self.cores(), self.loads());
        (0..cores.len()).filter(|core| is_awake(*core, &cores, &loads)).count()
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn a_bound_that_is_broken_wakes_another_sidecore() {
    let mut world = World::of(2, &[(0, 300), (0, 300)], 500);
    let mut balance = Balance::new(DEVICES);
    assert_eq!(world.step(&mut balance), None, "once is chance");
    assert_eq!(world.step(&mut balance), Some(Move { device: 0, to: 1 }));
    assert!(!world.is_late());
    assert_eq!(world.moves(&mut balance, 10_000), [], "600 of 1,000 are more than half");
}

#[test]
fn one_that_is_awake_comes_before_one_that_sleeps() {
    let mut world = World::of(3, &[(0, 300), (0, 290), (2, 100)], 500);
    let mut balance = Balance::new(DEVICES);
    world.step(&mut balance);
    assert_eq!(world.step(&mut balance), Some(Move { device: 1, to: 2 }));
    // Unless it would be too busy itself.
    let mut world = World::of(3, &[(0, 300), (0, 290), (2, 250)], 500);
    let mut balance = Balance::new(DEVICES);
    world.step(&mut balance);
    assert_eq!(world.step(&mut balance).map(|go| go.to), Some(1));
}

#[test]
fn a_device_alone_on_its_sidecore_stays_however_late_it_is() {
    let loads = [DeviceLoad { at: 0, busy: 900, late: 9 }, DeviceLoad::default()];
    let cores = [CoreLoad { busy: 900, keeps: false }, CoreLoad::default()];
    let mut balance = Balance::new(DEVICES);
    assert!((0..1_000).all(|_| balance.next(TICKS, &cores, &loads).is_none()));
}

#[test]
fn without_load_all_but_the_first_sleep() {
    let mut world = World::of(4, &[(0, 0), (1, 0), (2, 0), (3, 0), (3, 0)], 500);
    let moves = world.moves(&mut Balance::new(DEVICES), 100);
    let first = CALM as usize - 1;
    assert_eq!(moves, (first..first + 4).collect::<Vec<_>>());
    assert!(world.devices.iter().all(|(at, _)| *at == 0));
}

#[test]
fn a_sidecore_with_what_cant_move_is_not_emptied() {
    let mut world = World::of(3, &[(1, 10), (2, 10)], 500);
    world.kept[1] = Some(100);
    world.moves(&mut Balance::new(DEVICES), 100);
    assert_eq!(world.devices, [(1, 10), (0, 10)]);
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn load_that_comes_and_goes_is_followed() {
    let mut world = World::of(2, &[(0, 0), (0, 0)], 500);
    let mut balance = Balance::new(DEVICES);
    for _ in 0..20 {
        world.devices.iter_mut().for_each(|(_, busy)| *busy = 400);
        assert_eq!(world.moves(&mut balance, 40).len(), 1);
        assert_eq!(world.awake(), 2);
        world.devices.iter_mut().for_each(|(_, busy)| *busy = 0);
        assert_eq!(world.moves(&mut balance, 4 * CALM as usize * 3).len(), 1);
        assert_eq!(world.awake(), 1);
    }
}

#[test]
fn what_breaks_the_bound_together_is_gathered_less_and_less_often() {
    // Together they are less than half of a sidecore, and too much for the bound all the same.
    let mut world = World::of(2, &[(0, 100), (0, 100)], 200);
    let moves = world.moves(&mut Balance::new(DEVICES), EPOCHS);
    let twice_as_long = moves.windows(5).step_by(2).all(|m| m[4] - m[2] > (m[2] - m[0]) * 3 / 2);
    assert!(twice_as_long && moves.len() < 22, "{moves:?}");
}

#[test]
fn what_has_nothing_to_do_goes_home_however_patient() {
    let mut world = World::of(2, &[(0, 100), (0, 100)], 200);
    let mut balance = Balance::new(DEVICES);
    world.moves(&mut balance, EPOCHS);
    world.devices = vec![(0, 100), (1, 0)];
    balance.calm = 0;
    assert_eq!(world.moves(&mut balance, CALM as usize).len(), 1);
    assert_eq!(world.awake(), 1);
}

/// Three on two sidecores: those two are busy that have one together, whichever these are.
#[test]
fn load_that_changes_all_the_time_moves_a_device_once_in_the_longest_stay() {
    let mut world = World::of(2, &[(0, 10), (0, 10), (1, 10)], 500);
    let mut balance = Balance::new(DEVICES);
    let mut moved = [0_usize; 3];
    for _ in 0..EPOCHS {
        let at: Vec<_> = world.devices.iter().map(|(at, _)| *at).collect();
        let together = |at| world.devices.iter().filter(|(other, _)| *other == at).count() > 1;
        let busy: Vec<_> = at.into_iter().map(|at| if together(at) { 300 } else { 10 }).collect();
        world.devices.iter_mut().zip(busy).for_each(|(device, busy)| device.1 = busy);
        if let Some(go) = world.step(&mut balance) {
            moved[go.device] += 1;
        }
    }
    let most = EPOCHS / LONGEST_STAY as usize + MOST_DOUBLED as usize + 1;
    assert!(moved.iter().all(|count| (4..=most).contains(count)), "{moved:?} of {most}");
}

/// The same by somebody who knows the rules, and has the two busy only when nothing is held against
/// the one that went last: it goes to and back in four stays.
#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn who_waits_before_the_next_change_moves_a_device_once_in_two_stays() {
    for pause in [STAY, 2 * STAY, 3 * STAY, 4 * STAY, 9 * STAY] {
        let mut world = World::of(2, &[(0, 10), (0, 10), (1, 10)], 500);
        let mut balance = Balance::new(DEVICES);
        let (mut moved, mut still) = ([0_usize; 3], 0);
        for _ in 0..EPOCHS {
            let at: Vec<_> = world.devices.iter().map(|(at, _)| *at).collect();
            let together = |at| world.devices.iter().filter(|(other, _)| *other == at).count() > 1;
            let is_busy = |at| still >= pause && together(at);
            let busy: Vec<_> =
                at.into_iter().map(|at| if is_busy(at) { 300 } else { 10 }).collect();
            world.devices.iter_mut().zip(busy).for_each(|(device, busy)| device.1 = busy);
            still += 1;
            if let Some(go) = world.step(&mut balance) {
                moved[go.device] += 1;
                still = 0;
            }
        }
        let most = EPOCHS / (2 * STAY as usize);
        assert!(moved.iter().all(|count| *count <= most), "{pause}: {moved:?} of {most}");
    }
}

/// A device that stays keeps no other one.
#[test]
fn while_one_stays_others_are_spread() {
    let mut world = World::of(3, &[(0, 300), (0, 300), (0, 300)], 500);
    let moves = world.moves(&mut Balance::new(DEVICES), 10);
    assert_eq!(moves, [1, 3]);
    assert!(!world.is_late());
}

prop_compose! {
    fn worlds()(cores in 1usize..5)(
        kept in prop::collection::vec(prop::option::of(0u64..400), cores),
        devices in prop::collection::vec((0..cores, 0u64..500), 0..8),
        limit in 50u64..1_000,
    ) -> World {
        World { kept, devices, limit }
    }
}

/// The core's time beside its device's is for the device, too: calls that were held back.
#[test]
fn a_device_that_has_a_sidecore_for_itself_stays() {
    let mut balance = Balance::new(DEVICES);
    let cores = [CoreLoad { busy: 800, keeps: false }, CoreLoad { busy: 0, keeps: false }];
    let alone = [DeviceLoad { at: 0, busy: 400, late: 9 }];
    assert!((0..100).all(|_| balance.next(TICKS, &cores, &alone).is_none()));
    let two = [DeviceLoad { at: 0, busy: 200, late: 9 }; 2];
    assert!((0..3).any(|_| balance.next(TICKS, &cores, &two).is_some()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 64 }))]

    /// Load that doesn't change: few moves, and ever fewer.
    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn constant_load_comes_to_rest(mut world in worlds()) {
        let mut balance = Balance::new(DEVICES);
        let devices = world.devices.len();
        let moves = world.moves(&mut balance, EPOCHS);
        // Each time all are gathered and spread again, by some moves each.
        prop_assert!(moves.len() <= 40 * devices + 1, "{} moves", moves.len());
        let late = moves.iter().filter(|epoch| **epoch > EPOCHS / 2).count();
        prop_assert!(late <= 8 * devices + 1, "{late} moves of the last half");
    }

    /// Where the bound is broken it is kept in the end, or nothing that may be done helps.
    #[test]
    fn a_broken_bound_leads_to_a_move_that_helps(world in worlds()) {
        let helps = spread(TICKS, &world.cores(), &world.loads(), &[]);
        let before = world.cores();
        if let Some(go) = helps {
            let mut then = world.clone();
            let from = then.devices[go.device].0;
            then.devices[go.device].0 = go.to;
            let after = then.cores();
            prop_assert!(world.loads().iter().any(|load| load.at == from && load.late > 0));
            prop_assert!(after[from].busy.max(after[go.to].busy) < before[from].busy);
        } else {
            // Whatever moves, the one that it goes to is as busy as this one was, or nearly.
            for load in world.loads() {
                let late = world.loads().iter().any(|l| l.at == load.at && l.late > 0);
                for (to, core) in before.iter().enumerate() {
                    let same = core.busy + load.busy > before[load.at].busy - before[load.at].busy / 8
                        || before[load.at].busy - load.busy > before[load.at].busy - before[load.at].busy / 8;
                    prop_assert!(!late || to == load.at || load.busy == 0 || same);
                }
            }
        }
    }

    /// When nothing is to do any more, all that can sleep do.
    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn idle_sidecores_sleep(mut world in worlds()) {
        let mut balance = Balance::new(DEVICES);
        world.moves(&mut balance, 3_000);
        world.devices.iter_mut().for_each(|(_, busy)| *busy = 0);
        world.kept.iter_mut().flatten().for_each(|busy| *busy = 0);
        let patience = (CALM * MOST_PATIENCE.min(EPOCHS as u32 / CALM)) as usize;
        world.moves(&mut balance, patience + world.devices.len());
        let keep = world.kept.iter().skip(1).flatten().count() + 1;
        prop_assert_eq!(world.awake(), keep);
    }

    #[test]
    fn anything_goes(
        steps in prop::collection::vec((
            any::<u64>(),
            prop::collection::vec((any::<u64>(), any::<bool>()), 0..4),
            prop::collection::vec((any::<usize>(), any::<u64>(), any::<u64>()), 0..4),
        ), 0..100),
    ) {
        let mut balance = Balance::new(DEVICES);
        for (ticks, cores, devices) in steps {
            let cores: Vec<_> =
                cores.into_iter().map(|(busy, keeps)| CoreLoad { busy, keeps }).collect();
            let devices: Vec<_> = devices
                .into_iter()
                .map(|(at, busy, late)| DeviceLoad { at: at % 5, busy, late: late % 2 })
                .collect();
            if let Some(go) = balance.next(ticks, &cores, &devices) {
                prop_assert!(go.to < cores.len() && go.to != devices[go.device].at);
            }
        }
    }
}
