//! At boot: which device is served by which sidecore, and what it is made of.
//!
//! Which sidecore serves what follows from the plan: `plan::Plan::sidecore_of_switch` and
//! `sidecore_of_disk`. Everything is made here, on core 0, before any guest runs; afterwards
//! nothing is allocated. The errors are sentences, or their ends.

use crate::cpu;
use crate::iommu::guest::GuestIommu;
use crate::memory::{PAGE, allocate};
use crate::pci::Pci;
use crate::sidecore::backing::Backing;
use crate::sidecore::controller::Driven;
use crate::sidecore::counts::CoreCounts;
use crate::sidecore::device::{Device, Interface, Kind};
use crate::sidecore::disk;
use crate::sidecore::entries;
use crate::sidecore::guest_iommu::{ByExit, IommuQueue};
use crate::sidecore::listeners::Listener;
use crate::sidecore::movable::{Movable, Moves, Rule};
use crate::sidecore::moving;
use crate::sidecore::places::Places;
use crate::sidecore::polling_core::PollingCore;
use crate::sidecore::port::{Order, Port};
use crate::sidecore::queue::{CoreSwitch, Queues, ServedQueue, Work};
use crate::sidecore::signal::Signal;
use crate::sidecore::uplink::Uplink;
use crate::sidecore::views::span;
use ::iommu::Bdf;
use ::sidecore::{Delay, Place, Schedule, Share, cores_at_a_time};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use blk::Server;
use core::ops::Range;
use net::{Mac, Rate, Switch, Vlan};
use plan::{Control, Limit, Moving};
use proto::ServedDevice;
use virtio_pci::Kind as FunctionKind;
use window::Window;

/// How long a switch knows what it learned, in nanoseconds (IEEE 802.1Q recommends 300 s).
const AGEING: u64 = 300_000_000_000;
/// What a rate lets through at once: as much as it does in a hundredth of a second, or a few of the
/// largest frames.
const BURST: (u64, u64) = (100, 256 << 10);

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

    /// Makes the next of the plan's disks. `content` is what it holds at first.
    #[cold]
    pub fn disk(
        &mut self,
        owner: Owner<'_>,
        disk: &plan::Disk,
        content: &[u8],
    ) -> Result<Virtual, String> {
        let place = self.disks.pop().ok_or("no sidecore serves it")?;
        let (backing, abilities) = match disk.part() {
            Some((part, _)) => {
                let core = self.cores.get_mut(place).ok_or("no sidecore serves it")?;
                disk::cut(core, disk, part, owner.runs)?
            }
            None => disk::backing(disk, content)?,
        };
        let config = disk::config(disk, &abilities)?;
        let shape = Shape {
            kind: FunctionKind::Block,
            features: config.features().bits(),
            queues: disk.queues,
            config: Box::new(config.config_bytes()),
        };
        let work = |queue| Work::Requests(Box::new(Server::new(config, queue)));
        self.add(place, owner, Kind::Disk(backing), shape, (disk.control, &work))
    }

    /// Makes a network interface, at the port of the switch that it names.
    #[cold]
    pub fn interface(
        &mut self,
        owner: Owner<'_>,
        interface: &plan::Interface,
    ) -> Result<Virtual, String> {
        let mut switches = self.switches.iter();
        let found = switches.find(|(name, ..)| *name == interface.switch);
        let &(_, place, switch) = found.ok_or("no sidecore serves its switch")?;
        let parameters = net::Parameters {
            mac: Mac(interface.mac.0),
            mtu: interface.mtu,
            pairs: interface.queues,
            ..net::Parameters::default()
        };
        let config = net::Config::new(parameters).map_err(|error| error.to_string())?;
        let rate = interface.rate.map(|rate| {
            let (part, least) = BURST;
            Rate { bytes_per_second: rate, burst: (rate / part).max(least) }
        });
        let vlan = Vlan::Access(interface.vlan.unwrap_or(0));
        let plan = net::Plan { vlan, rate, ..net::Plan::default() };
        let core = self.cores.get_mut(place).ok_or("no sidecore serves its switch")?;
        let device = core.devices.len();
        let on = core.queues.switches.get_mut(switch).ok_or("no sidecore serves its switch")?;
        let number = on.switch.add(config, plan).map_err(|error| error.to_string())?;
        on.devices.push(Some(device));
        let shape = Shape {
            kind: FunctionKind::Net,
            features: config.features().bits(),
            queues: config.queues() as u16,
            config: Box::new(config.config_bytes(parameters.mac, true)),
        };
        let kind = Kind::Interface(Interface { switch, number, config, started: false });
        let work = |_| Work::Frames(switch, number);
        let control = Control { kicks: interface.kicks, ..Control::default() };
        self.add(place, owner, kind, shape, (control, &work))
    }

    /// Makes the guest's own IOMMU, which its VM's exits serve where there is no sidecore.
    #[cold]
    pub fn iommu(
        &mut self,
        owner: Owner<'_>,
        iommu: &'static GuestIommu,
        place: Option<usize>,
    ) -> Result<Virtual, String> {
        let shape = Shape {
            kind: FunctionKind::Iommu,
            features: viommu::FEATURES,
            queues: plan::GuestIommu::Virtio.queues() as u16,
            config: Box::new(viommu::config(iommu.last())),
        };
        let made = match place {
            Some(place) => {
                let work = |queue| match queue {
                    0 => Work::Iommu(Box::new(IommuQueue { iommu, ring: None })),
                    _ => Work::Events,
                };
                self.add(place, owner, Kind::Iommu, shape, (Control::default(), &work))?
            }
            None => {
                let count = usize::from(shape.queues);
                let (function, entries) = place_of(count)?;
                let port = Box::leak(Box::new(Port::new(self.listeners, usize::MAX, count, true)));
                let mut turns = (self.listeners.len()..).map_while(entries::turn);
                let caller = turns.find_map(|turn| turn.caller());
                let caller = caller.ok_or("a VM's turns were taken")?;
                let by_exit = Some(Box::new(ByExit::new(iommu, owner.memory, caller)));
                Virtual { function, entries, port, notify: None, shape, iommu: None, by_exit }
            }
        };
        Ok(Virtual { iommu: Some(iommu), ..made })
    }

    /// Has the core at this place serve a device, with the work of each of its queues, and what is
    /// different about it.
    #[cold]
    fn add(
        &mut self,
        place: usize,
        owner: Owner<'_>,
        kind: Kind,
        shape: Shape,
        (control, work): (Control, &dyn Fn(u16) -> Work),
    ) -> Result<Virtual, String> {
        let count = usize::from(shape.queues);
        let movable = self.number(place, &kind);
        if let Some(number) = movable {
            moving::make_room(&mut self.cores, place, number, kind.switch(), count);
        }
        let core = self.cores.get_mut(place).ok_or("no sidecore serves it")?;
        let first = core.queues.all.len();
        let (function, entries) = place_of(count)?;
        let port = Port::new(self.listeners, place, count, control.kicks);
        let port: &'static Port = Box::leak(Box::new(port));
        if let Some(movable) = movable.and_then(|number| self.movables.get_mut(number)) {
            movable.add(port, count);
        }
        let device = core.devices.len();
        for index in 0..shape.queues {
            let (work, signal) = (work(index), Signal::new(control.coalesce));
            let (index, kicks) = (index.into(), control.kicks);
            let ticks = ticks(control.latency_us);
            let delay = (ticks > 0).then(|| Delay::new(ticks));
            let given_up = false;
            let queue = ServedQueue { device, index, work, signal, kicks, delay, given_up };
            core.queues.all.push(Some(queue));
        }
        core.devices.push(Some(Device {
            port,
            name: String::leak(owner.name.into()),
            vm: owner.vm,
            which: owner.which,
            window: owner.memory,
            kind,
            entries: entries.clone(),
            queues: first..first + count,
            order: Order::default(),
            told: Default::default(),
            told_move: Default::default(),
            movable,
        }));
        let page = || allocate(PAGE, PAGE).ok_or("no memory is left for its notify page");
        let notify = if control.kicks { None } else { Some(page()?) };
        Ok(Virtual { function, entries, port, notify, shape, iommu: None, by_exit: None })
    }

    /// The number that a device goes by when it moves: of its own, or its switch's; none if it
    /// can't.
    fn number(&mut self, own: usize, kind: &Kind) -> Option<usize> {
        if matches!(self.rule, Rule::Never) {
            return None;
        }
        let next = self.movables.len();
        let number = match kind {
            Kind::Disk(Backing::Ram(_) | Backing::Null(_)) => next,
            Kind::Disk(Backing::Part(..)) => return None,
            Kind::Interface(interface) => {
                *self.moving.get_mut(interface.switch)?.get_or_insert(next)
            }
            // It is the VM's, as its exits are: it stays.
            Kind::Iommu => return None,
        };
        if number == next {
            self.movables.push(Movable::new(own));
        }
        Some(number)
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

/// A new paravirtual function's id, and its entries: of the configuration and of so many queues.
#[cold]
fn place_of(queues: usize) -> Result<(Bdf, Range<u16>), String> {
    let many = "there are too many paravirtual functions";
    let first = entries::allocate(queues + 1).ok_or(many)?;
    let function = entries::new_function().ok_or(many)?;
    Ok((function, first..first + 1 + queues as u16))
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
