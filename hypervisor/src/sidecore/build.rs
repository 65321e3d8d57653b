//! At boot: which device is served by which sidecore, and what it is made of.
//!
//! Devices go to the sidecores in turn. Everything is made here, on core 0, before any guest runs;
//! afterwards nothing is allocated. The errors are sentences, or their ends.

use crate::cpu;
use crate::memory::{PAGE, allocate, available};
use crate::pci::Pci;
use crate::sidecore::backing::Backing;
use crate::sidecore::controller::Driven;
use crate::sidecore::device::Device;
use crate::sidecore::entries;
use crate::sidecore::polling_core::PollingCore;
use crate::sidecore::port::{Order, Port};
use crate::sidecore::queue::{QUEUES, ServedQueue};
use ::iommu::Bdf;
use ::sidecore::{Schedule, Share};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use blk::backend::{Null, Ram};
use blk::config::SERIAL_BYTES;
use blk::{Config, Parameters, SECTOR};
use coalesce::Settings;
use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::AtomicBool;
use nvme::Abilities;
use window::{Region, Span, Window};

const MIB_2: u64 = 2 << 20;
/// What a discard or a write-zeroes request may touch at most: it is served in pieces.
const MOST_TOUCHED: u64 = 1 << 30;

/// The sidecores of the machine.
pub struct Sidecores {
    cores: Vec<PollingCore>,
    settings: ::sidecore::Settings,
    /// What each VM may have, by its index.
    shares: Vec<Share>,
    /// The one that the next device goes to.
    next: usize,
}

/// A disk, for the paravirtual function in front of it.
pub struct VirtualDisk {
    /// Its requester id, in the segment of paravirtual functions.
    pub function: Bdf,
    /// Its MSI-X entries: one for the configuration and one for each queue.
    pub entries: Range<u16>,
    pub config: Config,
    pub port: &'static Port,
    /// The page of memory that the guest writes its notifications to, and nobody reads.
    pub notify: u64,
}

impl Sidecores {
    /// Those that the plan names.
    pub fn new(plan: &plan::Plan) -> Result<Self, String> {
        entries::init(plan.sidecores.len());
        let mut settings = ::sidecore::Settings::usual(cpu::tsc_hz());
        // It polls for ever: nobody would hear a kick.
        settings.idle = u64::MAX;
        let cores = plan.sidecores.iter().enumerate().map(|(index, core)| {
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
            let caller = entries::turn(index).and_then(|turn| turn.caller());
            Ok(PollingCore {
                core,
                devices: Vec::new(),
                controllers: Vec::new(),
                queues: Vec::new(),
                schedule: Schedule::new(settings, 0, 0),
                caller: caller.ok_or("a sidecore's turns were taken")?,
                news: Box::leak(Box::new(AtomicBool::new(false))),
                deadline: None,
            })
        });
        let cores = cores.collect::<Result<_, _>>()?;
        let share = |vm: &plan::Vm| Share { weight: vm.weight, ..Share::default() };
        Ok(Sidecores { cores, settings, shares: plan.vms.iter().map(share).collect(), next: 0 })
    }

    /// Starts these controllers, which the plan's disks are cut from. `free`: domains from this
    /// number on are nobody's.
    #[inline(never)]
    pub fn drive(
        &mut self,
        pci: &Pci,
        controllers: Vec<(plan::DeviceName, Bdf)>,
        free: u16,
    ) -> Result<(), String> {
        for (domain, (name, device)) in (free..).zip(controllers) {
            let place = self.next % self.cores.len().max(1);
            self.next += 1;
            let core = self.cores.get_mut(place).ok_or("no sidecore serves it")?;
            let driven = Driven::new(pci, (name, device), domain, span);
            core.controllers.push(driven.map_err(|e| format!("{name} can't be used: {e}"))?);
        }
        Ok(())
    }

    /// The sidecore that is to have a disk: that of its controller, if it has one; else the next.
    fn place(&mut self, disk: &plan::Disk) -> usize {
        if let Some((part, _)) = disk.part() {
            let has = |core: &PollingCore| core.controllers.iter().any(|c| c.name == part.device);
            return self.cores.iter().position(has).unwrap_or(0);
        }
        let place = self.next % self.cores.len().max(1);
        self.next += 1;
        place
    }

    /// Makes a disk of the VM with this index and name, whose memory are these runs: guest address,
    /// physical address, bytes. `content` is what the disk holds at first.
    pub fn disk(
        &mut self,
        (index, name): (usize, &str),
        memory: impl Iterator<Item = (u64, u64, u64)> + Clone,
        disk: &plan::Disk,
        content: &[u8],
    ) -> Result<VirtualDisk, String> {
        let place = self.place(disk);
        let core = self.cores.get_mut(place).ok_or("no sidecore serves it")?;
        let count = usize::from(disk.queues);
        let first = core.queues.len();
        if first + count > QUEUES {
            return Err(format!("its sidecore has {first} queues already, and can have {QUEUES}"));
        }
        let device = core.devices.len();
        let (backing, abilities) = match disk.part() {
            Some((part, _)) => {
                let runs = memory.clone().map(|(_, at, len)| (at, len));
                cut(core, disk, part, runs, device)?
            }
            None => backing(disk, content)?,
        };
        let config = config(disk, &abilities)?;
        let entries =
            entries::allocate(count + 1).ok_or("there are too many paravirtual functions")?;
        let function = entries::new_function().ok_or("there are too many paravirtual functions")?;
        let entries = entries..entries + 1 + disk.queues;
        let port: &Port = Box::leak(Box::new(Port::new(core.news, count)));
        add_queues(&mut core.queues, device, count, config);
        core.devices.push(Device {
            port,
            name: String::leak(name.into()),
            vm: index,
            window: window(memory)?,
            backing,
            entries: entries.clone(),
            queues: first..first + count,
            order: Order::default(),
            told: Default::default(),
        });
        let notify = allocate(PAGE, PAGE);
        let notify = notify.ok_or("no memory is left for its notify page")?;
        Ok(VirtualDisk { function, entries, config, port, notify })
    }

    /// Every device is there: room is made for the turns of their queues, and controllers may reach
    /// their VMs' memory.
    pub fn finish(&mut self) -> Result<(), String> {
        for core in &mut self.cores {
            core.schedule = Schedule::new(self.settings, core.queues.len(), self.shares.len());
            for (vm, share) in self.shares.iter().enumerate() {
                core.schedule.set_share(vm, *share);
            }
            core.controllers.iter().try_for_each(Driven::finish)?;
        }
        Ok(())
    }

    /// Has every sidecore begin.
    pub fn start(self) {
        for core in self.cores.leak() {
            cpu::run_on(core.core.index, enter, core as *mut PollingCore as usize);
        }
    }
}

/// Adds so many queues of a device, made where they are to be: they are too large for two of them to
/// be on core 0's stack.
#[inline(never)]
fn add_queues(queues: &mut Vec<ServedQueue>, device: usize, count: usize, config: Config) {
    let settings = Settings::paper(cpu::tsc_hz());
    queues.extend((0..count).map(|queue| ServedQueue::new(device, queue, config, settings)));
}

/// The life of a sidecore.
fn enter(core: usize) -> ! {
    // SAFETY: `start` leaks each of them and passes it to one core, once.
    let core = unsafe { &mut *(core as *mut PollingCore) };
    core.run()
}

fn config(disk: &plan::Disk, can: &Abilities) -> Result<Config, String> {
    let mut serial = [0; SERIAL_BYTES];
    serial.iter_mut().zip(disk.serial.bytes()).for_each(|(to, byte)| *to = byte);
    let touched = (MOST_TOUCHED / SECTOR) as u32;
    let if_it = |can| if can && !disk.read_only { touched } else { 0 };
    Config::new(Parameters {
        capacity: disk.size / SECTOR,
        queues: disk.queues,
        read_only: disk.read_only,
        block_size: can.block,
        discard: if_it(can.discards),
        write_zeroes: if_it(can.zeroes),
        serial,
        ..Parameters::default()
    })
    .map_err(|error| format!("{error}"))
}

/// A part of a controller of this core's, for a VM with this memory; and what it can.
fn cut(
    core: &mut PollingCore,
    disk: &plan::Disk,
    part: plan::Part,
    memory: impl Iterator<Item = (u64, u64)>,
    device: usize,
) -> Result<(Backing, Abilities), String> {
    let mut controllers = core.controllers.iter_mut().enumerate();
    let found = controllers.find(|(_, driven)| driven.name == part.device);
    let (place, driven) = found.ok_or("its controller isn't driven")?;
    let can = driven.abilities()?;
    if can.protected && !disk.read_only {
        return Err(format!("{} is write-protected: make the disk read-only", part.device));
    }
    let part = nvme::Part { first: part.offset, bytes: disk.size };
    Ok((Backing::Part(place, driven.cut(part, memory, device)?), can))
}

/// What disks can do that are nobody's but ours.
const ALL: Abilities =
    Abilities { block: SECTOR as u32, discards: true, zeroes: true, protected: false };

fn backing(disk: &plan::Disk, content: &[u8]) -> Result<(Backing, Abilities), String> {
    if disk.backing == plan::Backing::Null {
        return Ok((Backing::Null(Null), ALL));
    }
    let bytes = disk.memory();
    let at = allocate(bytes, MIB_2).ok_or_else(|| {
        format!(
            "{} MiB of memory are needed in one piece, and there are {} MiB left in all",
            bytes >> 20,
            available() >> 20
        )
    })?;
    let span = window([(0, at, bytes)].into_iter())?.span(0, disk.size);
    let span = span.ok_or("its memory isn't whole")?;
    span.write(0, content).map_err(|_| "its image is larger than the disk")?;
    Ok((Backing::Ram(Ram::new(span)), ALL))
}

/// The view of memory that was just handed out.
fn span(at: u64, bytes: u64) -> Result<Span, String> {
    let span = window([(0, at, bytes)].into_iter())?.span(0, bytes);
    span.ok_or_else(|| "its memory isn't whole".into())
}

/// The view of runs of memory: guest address, physical address, bytes.
fn window(runs: impl Iterator<Item = (u64, u64, u64)>) -> Result<Window, String> {
    let region = |(guest, at, len): (u64, u64, u64)| {
        let host = NonNull::new(at as *mut u8)?;
        Some(Region { guest, len, host, dma: at })
    };
    let regions: Option<Vec<_>> = runs.map(region).collect();
    let regions = regions.ok_or("memory at address 0 can't be used")?;
    // SAFETY: the runs are a VM's memory, or were just handed out: identity-mapped for good, and no
    // reference to them exists anywhere. Who else writes a VM's memory for its guest does it by raw
    // pointers, where the guest could have written itself.
    unsafe { Window::new(&regions) }.map_err(|error| format!("{error}"))
}
