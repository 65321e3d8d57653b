//! Disks, network interfaces and guests' own IOMMUs: each as a device of the sidecore that serves
//! it and a paravirtual function in front of it.

use super::{Owner, Shape, Sidecores, Virtual, ticks};
use crate::iommu::guest::GuestIommu;
use crate::memory::{PAGE, allocate};
use crate::sidecore::backing::Backing;
use crate::sidecore::device::{Device, Interface, Kind};
use crate::sidecore::disk;
use crate::sidecore::entries;
use crate::sidecore::guest_iommu::{ByExit, IommuQueue, IommuRegisters};
use crate::sidecore::movable::{Movable, Rule};
use crate::sidecore::moving;
use crate::sidecore::port::{Order, Port};
use crate::sidecore::queue::{ServedQueue, Work};
use crate::sidecore::signal::Signal;
use ::iommu::Bdf;
use ::sidecore::Delay;
use alloc::boxed::Box;
use alloc::string::{String, ToString};
use blk::Server;
use core::ops::Range;
use net::{Mac, Rate, Vlan};
use plan::Control;
use virtio_pci::Kind as FunctionKind;

/// What a rate lets through at once: as much as it does in a hundredth of a second, or a few of the
/// largest frames.
const BURST: (u64, u64) = (100, 256 << 10);

impl Sidecores {
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
        let limit = |rate: u64| {
            let (part, least) = BURST;
            Rate { bytes_per_second: rate, burst: (rate / part).max(least) }
        };
        let (rate, flood) = (interface.rate.map(limit), interface.flood.map(limit));
        let vlan = Vlan::Access(interface.vlan.unwrap_or(0));
        let plan = net::Plan { vlan, rate, flood, ..net::Plan::default() };
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

    /// Has the registers of the guest's own IOMMU be looked at, by its VM's exits where there is no
    /// sidecore.
    #[cold]
    pub fn registers(
        &mut self,
        owner: Owner<'_>,
        iommu: &'static GuestIommu,
        place: Option<usize>,
    ) -> Result<&'static Port, String> {
        // Of commands.
        let count = 1;
        let at = place.unwrap_or(usize::MAX);
        let port = Box::leak(Box::new(Port::new(self.listeners, at, count, false)));
        if let Some(place) = place {
            let work = |_| Work::Registers(IommuRegisters { iommu, runs: false });
            let parts = (&*port, count, 0..0);
            self.put(place, owner, (Kind::Iommu, None), parts, (Control::default(), &work))?;
        }
        Ok(port)
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
        let (function, entries) = place_of(count)?;
        let port = Port::new(self.listeners, place, count, control.kicks);
        let port: &'static Port = Box::leak(Box::new(port));
        if let Some(movable) = movable.and_then(|number| self.movables.get_mut(number)) {
            movable.add(port, count);
        }
        let parts = (port, count, entries.clone());
        self.put(place, owner, (kind, movable), parts, (control, work))?;
        let page = || allocate(PAGE, PAGE).ok_or("no memory is left for its notify page");
        let notify = if control.kicks { None } else { Some(page()?) };
        Ok(Virtual { function, entries, port, notify, shape, iommu: None, by_exit: None })
    }

    /// Puts a device with so many queues, and these interrupt entries, onto the core at this place.
    /// `movable`: its number, if it can move.
    #[cold]
    fn put(
        &mut self,
        place: usize,
        owner: Owner<'_>,
        (kind, movable): (Kind, Option<usize>),
        (port, count, entries): (&'static Port, usize, Range<u16>),
        (control, work): (Control, &dyn Fn(u16) -> Work),
    ) -> Result<(), String> {
        let core = self.cores.get_mut(place).ok_or("no sidecore serves it")?;
        let (first, device) = (core.queues.all.len(), core.devices.len());
        for index in 0..count {
            let (work, signal) = (work(index as u16), Signal::new(control.coalesce));
            let kicks = control.kicks;
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
            entries,
            queues: first..first + count,
            order: Order::default(),
            told: Default::default(),
            told_move: Default::default(),
            movable,
        }));
        Ok(())
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
}

/// A new paravirtual function's id, and its entries: of the configuration and of so many queues.
#[cold]
fn place_of(queues: usize) -> Result<(Bdf, Range<u16>), String> {
    let many = "there are too many paravirtual functions";
    let first = entries::allocate(queues + 1).ok_or(many)?;
    let function = entries::new_function().ok_or(many)?;
    Ok((function, first..first + 1 + queues as u16))
}
