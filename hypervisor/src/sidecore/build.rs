//! At boot: which device is served by which sidecore, and what it is made of.
//!
//! Devices go to the sidecores in turn. Everything is made here, on core 0, before any guest runs;
//! afterwards nothing is allocated. The errors are sentences, or their ends.

use crate::cpu;
use crate::memory::{PAGE, allocate, available};
use crate::sidecore::backing::Backing;
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
use window::{Region, Window};

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
    /// The page of memory that the guest writes its notifications to, and nobody reads; none: they
    /// exit.
    pub notify: Option<u64>,
}

impl Sidecores {
    /// Those that the plan names.
    pub fn new(plan: &plan::Plan) -> Result<Self, String> {
        entries::init(plan.sidecores.len());
        let mut settings = ::sidecore::Settings::usual(cpu::tsc_hz());
        // It polls for ever: nobody would hear a kick.
        settings.idle = u64::MAX;
        if plan.host.whole_turns {
            settings = settings.in_whole_turns();
        }
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

    /// Makes a disk of the VM with this index and name, whose memory are these runs: guest address,
    /// physical address, bytes. `content` is what the disk holds at first.
    pub fn disk(
        &mut self,
        (index, name): (usize, &str),
        memory: impl Iterator<Item = (u64, u64, u64)>,
        disk: &plan::Disk,
        content: &[u8],
    ) -> Result<VirtualDisk, String> {
        let place = self.next % self.cores.len().max(1);
        self.next += 1;
        let core = self.cores.get_mut(place).ok_or("no sidecore serves it")?;
        let count = usize::from(disk.queues);
        let first = core.queues.len();
        if first + count > QUEUES {
            return Err(format!("its sidecore has {first} queues already, and can have {QUEUES}"));
        }
        let config = config(disk)?;
        let entries =
            entries::allocate(count + 1).ok_or("there are too many paravirtual functions")?;
        let function = entries::new_function().ok_or("there are too many paravirtual functions")?;
        let entries = entries..entries + 1 + disk.queues;
        let port: &Port = Box::leak(Box::new(Port::new(core.news, count)));
        let device = core.devices.len();
        for queue in 0..count {
            let settings = coalescing(disk.control.coalesce);
            core.queues.push(ServedQueue::new(device, queue, config, settings, disk.control));
        }
        core.devices.push(Device {
            port,
            name: String::leak(name.into()),
            vm: index,
            window: window(memory)?,
            backing: backing(disk, content)?,
            entries: entries.clone(),
            queues: first..first + count,
            order: Order::default(),
            told: Default::default(),
        });
        let page = || allocate(PAGE, PAGE).ok_or("no memory is left for its notify page");
        let notify = if disk.control.kicks { None } else { Some(page()?) };
        Ok(VirtualDisk { function, entries, config, port, notify })
    }

    /// Every device is there: room is made for the turns of their queues.
    pub fn finish(&mut self) {
        for core in &mut self.cores {
            core.schedule = Schedule::new(self.settings, core.queues.len(), self.shares.len());
            for (vm, share) in self.shares.iter().enumerate() {
                core.schedule.set_share(vm, *share);
            }
        }
    }

    /// Has every sidecore begin.
    pub fn start(self) {
        for core in self.cores.leak() {
            cpu::run_on(core.core.index, enter, core as *mut PollingCore as usize);
        }
    }
}

/// The life of a sidecore.
fn enter(core: usize) -> ! {
    // SAFETY: `start` leaks each of them and passes it to one core, once.
    let core = unsafe { &mut *(core as *mut PollingCore) };
    core.run()
}

/// vIC's thresholds for a disk.
fn coalescing(coalesce: plan::Coalesce) -> Settings {
    let usual = Settings::paper(cpu::tsc_hz());
    match coalesce {
        plan::Coalesce::Usual | plan::Coalesce::Off => usual,
        plan::Coalesce::From { in_flight, rate } => {
            Settings { cif_threshold: in_flight, iops_threshold: rate.into(), ..usual }
        }
    }
}

fn config(disk: &plan::Disk) -> Result<Config, String> {
    let mut serial = [0; SERIAL_BYTES];
    serial.iter_mut().zip(disk.serial.bytes()).for_each(|(to, byte)| *to = byte);
    let touched = (MOST_TOUCHED / SECTOR) as u32;
    let writable = if disk.read_only { 0 } else { touched };
    Config::new(Parameters {
        capacity: disk.size / SECTOR,
        queues: disk.queues,
        read_only: disk.read_only,
        discard: writable,
        write_zeroes: writable,
        serial,
        ..Parameters::default()
    })
    .map_err(|error| format!("{error}"))
}

fn backing(disk: &plan::Disk, content: &[u8]) -> Result<Backing, String> {
    if disk.backing == plan::Backing::Null {
        return Ok(Backing::Null(Null));
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
    Ok(Backing::Ram(Ram::new(span)))
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
