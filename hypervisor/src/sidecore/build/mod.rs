//! At boot: which device is served by which sidecore, and what it is made of.
//!
//! Which sidecore serves what follows from the plan: `plan::Plan::sidecore_of_switch` and
//! `sidecore_of_disk`. Everything is made here, on core 0, before any guest runs; afterwards
//! nothing is allocated. The errors are sentences, or their ends.

mod devices;

use crate::cpu;
use crate::iommu::guest::GuestIommu;
use crate::pci::Pci;
use crate::sidecore::controller::Driven;
use crate::sidecore::counts::CoreCounts;
use crate::sidecore::entries;
use crate::sidecore::guest_iommu::ByExit;
use crate::sidecore::listeners::Listener;
use crate::sidecore::movable::{Movable, Moves, Rule};
use crate::sidecore::moving;
use crate::sidecore::places::Places;
use crate::sidecore::polling_core::PollingCore;
use crate::sidecore::port::Port;
use crate::sidecore::queue::{CoreSwitch, Queues};
use crate::sidecore::uplink::Uplink;
use crate::sidecore::views::span;
use ::iommu::Bdf;
use ::sidecore::{Place, Schedule, Share, cores_at_a_time};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ops::Range;
use net::Switch;
use plan::{Limit, Moving};
use proto::ServedDevice;
use virtio_pci::Kind as FunctionKind;
use window::Window;

/// How long a switch knows what it learned, in nanoseconds (IEEE 802.1Q recommends 300 s).
const AGEING: u64 = 300_000_000_000;
/// The sidecores of the machine.
pub struct Sidecores {
    cores: Vec<PollingCore>,
    settings: ::sidecore::Settings,
    /// Each VM's weight and limit, by its index.
    shares: Vec<(u32, Limit)>,
    /// By the plan's disks: the place of the core that serves it, of those that aren't made yet.
    disks: Vec<usize>,
    /// The switches by name: the place of the core, and of the switch there.
    switches: Vec<(String, usize, usize)>,
    listeners: &'static [Listener],
    rule: Rule,
    /// What can move, so far; and of the switches, by which number.
    movables: Vec<Movable>,
    moving: Vec<Option<usize>>,
}

/// A device, for the paravirtual function in front of it.
pub struct Virtual {
    /// Its requester id, in the segment of paravirtual functions.
    pub function: Bdf,
    /// Its MSI-X entries: one for the configuration and one for each queue.
    pub entries: Range<u16>,
    pub port: &'static Port,
    /// The page of memory that the guest writes its notifications to, and nobody reads; none: they
    /// exit.
    pub notify: Option<u64>,
    pub shape: Shape,
    /// The guest's IOMMU, if it is that; and who serves it, if no sidecore does.
    pub iommu: Option<&'static GuestIommu>,
    pub by_exit: Option<Box<ByExit>>,
}

/// What its registers say of a device.
pub struct Shape {
    pub kind: FunctionKind,
    /// Those that are offered.
    pub features: u64,
    pub queues: u16,
    /// The device's part of the registers.
    pub config: Box<[u8]>,
}

/// Whose a device is.
#[derive(Clone, Copy)]
pub struct Owner<'a> {
    /// The VM's place in the plan, and its name.
    pub vm: usize,
    pub name: &'a str,
    pub memory: Window,
    /// The same: physical address and bytes of each of its runs.
    pub runs: &'a [(u64, u64)],
    /// Which of its devices it is.
    pub which: ServedDevice,
}

impl Sidecores {
    /// Those that the plan names, with its switches.
    #[cold]
    pub fn new(plan: &plan::Plan) -> Result<Self, String> {
        // Without a sidecore a VM with an IOMMU has a turn itself.
        let by_exit = plan.vms.iter().enumerate().filter(|(index, vm)| {
            vm.iommu != plan::GuestIommu::None && plan.sidecore_of_iommu(*index).is_none()
        });
        entries::init(plan.sidecores.len() + by_exit.count());
        let mut settings = ::sidecore::Settings::usual(cpu::tsc_hz());
        // It polls for ever: nobody would hear a kick.
        settings.idle = u64::MAX;
        if plan.host.whole_turns {
            settings = settings.in_whole_turns();
        }
        if let Moving::Rounds(_) = plan.host.moving {
            // Turns that end as soon as may be, so that there are many of them.
            settings.max_bytes = settings.min_bytes;
        }
        let rule = match plan.host.moving {
            Moving::Never => Rule::Never,
            Moving::ByLoad(us) => Rule::ByLoad(ticks(us)),
            Moving::Rounds(turns) => Rule::Rounds(turns),
        };
        let cores = plan.sidecores.iter().map(|core| {
            let found = cpu::get(*core as usize).filter(|cpu| cpu.index != 0);
            let Some(core) = found else {
                return Err(format!(
                    "core {core} can't be a sidecore: the machine has cores 0 to {}, and core 0 is the host's",
                    cpu::count() - 1
                ));
            };
            if !core.is_parked() {
                return Err(format!("core {} can't be a sidecore: it didn't start", core.index));
            }
            Ok(core)
        });
        let cores: Vec<&'static cpu::PerCpu> = cores.collect::<Result<_, _>>()?;
        let listeners: Vec<_> = cores.iter().map(|core| Listener::new(core)).collect();
        let listeners: &'static [Listener] = listeners.leak();
        let cores = cores.into_iter().enumerate().map(|(index, core)| {
            let caller = entries::turn(index).and_then(|turn| turn.caller());
            Ok(PollingCore {
                core,
                devices: Places::new(),
                controllers: Vec::new(),
                queues: Queues::new(),
                schedule: Schedule::new(settings, 0, 0),
                caller: caller.ok_or("a sidecore's turns were taken")?,
                moves: Moves::new(index, listeners, rule),
                balancer: None,
                deadline: None,
                counts: Box::leak(Box::new(CoreCounts::new(core.index as u32))),
                began: None,
                unfollowed: false,
                whole_turns: plan.host.whole_turns,
            })
        });
        let mut cores: Vec<PollingCore> = cores.collect::<Result<_, String>>()?;
        let mut switches = Vec::new();
        for name in plan.switches() {
            let Some(place) = plan.sidecore_of_switch(name) else { continue };
            let ports = plan.interfaces().filter(|(_, one)| one.switch == name).count()
                + usize::from(plan.uplink_of(name).is_some());
            switches.push((name.to_string(), place, switches.len()));
            let made = |own: bool| {
                own.then(|| CoreSwitch {
                    switch: Switch::new(ports, AGEING),
                    devices: Vec::with_capacity(ports),
                    uplink: None,
                })
            };
            let places = cores.iter_mut().enumerate();
            places.for_each(|(at, core)| core.queues.switches.push(made(at == place)));
        }
        let count = plan.disks().count();
        let disks = (0..count).rev().filter_map(|disk| plan.sidecore_of_disk(disk)).collect();
        let shares = plan.vms.iter().map(|vm| (vm.weight, vm.limit)).collect();
        let (movables, moving) = (Vec::new(), switches.iter().map(|_| None).collect());
        Ok(Sidecores {
            cores,
            settings,
            shares,
            disks,
            switches,
            listeners,
            rule,
            movables,
            moving,
        })
    }

    /// Starts these controllers, which the plan's disks are cut from. `free`: domains from this
    /// number on are nobody's.
    #[inline(never)]
    #[cold]
    pub fn drive(
        &mut self,
        plan: &plan::Plan,
        pci: &Pci,
        controllers: Vec<(plan::DeviceName, Bdf)>,
        free: u16,
    ) -> Result<(), String> {
        for (domain, (name, device)) in (free..).zip(controllers) {
            let place = plan.sidecore_of_controller(name);
            let core = place.and_then(|place| self.cores.get_mut(place));
            let core = core.ok_or("no sidecore drives it")?;
            let driven = Driven::new(pci, (name, device), domain, span);
            core.controllers.push(driven.map_err(|e| format!("{name} can't be used: {e}"))?);
        }
        Ok(())
    }

    /// Starts these controllers as uplinks of the plan's switches, before these have other ports.
    /// `free`: as in [`Self::drive`].
    #[inline(never)]
    #[cold]
    pub fn wire(
        &mut self,
        plan: &plan::Plan,
        pci: &Pci,
        controllers: Vec<(plan::DeviceName, Bdf)>,
        free: u16,
    ) -> Result<(), String> {
        for (domain, (name, device)) in (free..).zip(controllers) {
            let of = plan.uplinks().find(|(uplink, _)| *uplink == name).map(|(_, of)| of);
            let &(_, place, switch) = self
                .switches
                .iter()
                .find(|(switch, ..)| Some(switch.as_str()) == of)
                .ok_or("no sidecore serves its switch")?;
            let core = self.cores.get_mut(place).ok_or("no sidecore serves its switch")?;
            let on = core.queues.switches.get_mut(switch).ok_or("no sidecore serves its switch")?;
            let uplink = Uplink::new(pci, (name, device), domain, &mut on.switch, span)
                .map_err(|e| format!("{name} can't be used: {e}"))?;
            on.uplink = Some(uplink);
            on.devices.push(None);
            log::info!("{name} ({device}) is a sidecore's: switch {}'s uplink", of.unwrap_or(""));
        }
        Ok(())
    }

    /// Every device is there: room is made for the turns of their queues, and controllers may reach
    /// their VMs' memory.
    #[cold]
    pub fn finish(&mut self) -> Result<(), String> {
        let places = |vm| {
            self.cores.iter().enumerate().flat_map(move |(core, serves)| {
                let own = serves.devices.iter().filter(move |device| device.vm == vm);
                own.map(move |device| device.movable.map_or(Place::On(core), Place::With))
            })
        };
        let by = |vm| cores_at_a_time(places(vm), self.cores.len());
        let shares = self.shares.iter().enumerate().map(|(vm, (weight, limit))| {
            let Limit { iops, rate } = limit.of_each(by(vm));
            Share { weight: *weight, requests: iops, bytes: rate }
        });
        let shares: Vec<_> = shares.collect();
        for core in &mut self.cores {
            core.schedule = Schedule::new(self.settings, core.queues.all.len(), self.shares.len());
            for (vm, share) in shares.iter().enumerate() {
                core.schedule.set_share(vm, *share);
            }
            core.controllers.iter().try_for_each(Driven::finish)?;
        }
        moving::finish(&mut self.cores, self.rule, core::mem::take(&mut self.movables));
        Ok(())
    }

    /// Where each of them counts.
    pub fn counts(&self) -> Vec<&'static CoreCounts> {
        self.cores.iter().map(|core| core.counts).collect()
    }

    /// Has every sidecore begin.
    pub fn start(self) {
        for core in self.cores.leak() {
            cpu::run_on(core.core.index, enter, core as *mut PollingCore as usize);
        }
    }
}

/// Ticks of the TSC in so many microseconds.
fn ticks(us: u32) -> u64 {
    cpu::tsc_hz().saturating_mul(us.into()) / 1_000_000
}

/// The life of a sidecore.
fn enter(core: usize) -> ! {
    // SAFETY: `start` leaks each of them and passes it to one core, once.
    let core = unsafe { &mut *(core as *mut PollingCore) };
    core.run()
}
