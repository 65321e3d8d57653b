//! Virtual functions of network controllers: switched on at boot as the plan says, served by core 0
//! while guests have them.
//!
//! Guarantees: a controller that has them stays the host's; each function is a function of the
//! machine like any other, with a requester id of its own; nothing is written to a controller's own
//! registers but by core 0.

use crate::cpu;
use crate::pci::room::InUse;
use crate::pci::{self, Bar, Config, Function, Pci};
use ::sriov::{Above, Capability, i82576};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use coalesce::{Map, Settings};
use iommu::Bdf;
use plan::{Class, Coalesce, Coalescing, Mac, Plan, Shared};
use spin::{Mutex, Once};
use virtual_pc::pci::BarKind;

/// After they are switched on, until they answer (SR-IOV 1.1, 3.3.3.1).
const WAKE_US: u64 = 100_000;

/// COMMAND of a controller whose functions guests have.
const SHARED: u16 = pci::COMMAND_MEMORY | pci::COMMAND_BUS_MASTER | pci::COMMAND_INTX_DISABLE;

/// What has been switched on.
#[derive(Default)]
struct Made {
    functions: Vec<Virtual>,
    /// Controllers that have virtual functions.
    shared: Vec<Bdf>,
    macs: Vec<Mac>,
}

/// A virtual function.
struct Virtual {
    nic: u8,
    index: u8,
    function: Function,
    physical: Bdf,
    bars: Vec<Bar>,
}

static MADE: Once<Made> = Once::new();
static CONTROLLERS: Mutex<Vec<i82576::Controller<Registers>>> = Mutex::new(Vec::new());

/// A controller's registers, in its BAR 0.
struct Registers(u64);

impl i82576::Registers for Registers {
    fn read(&mut self, offset: u32) -> u32 {
        // SAFETY: the driver's offsets are aligned and inside the 128 KiB of BAR 0, which `start`
        // found to be that large and mapped.
        unsafe { core::ptr::read_volatile((self.0 + offset as u64) as *const u32) }
    }

    fn write(&mut self, offset: u32, value: u32) {
        // SAFETY: as in `read`; the controller has no memory of ours to write to: it is attached to
        // nothing in the IOMMU.
        unsafe { core::ptr::write_volatile((self.0 + offset as u64) as *mut u32, value) }
    }
}

/// Configuration space of one function.
struct Space<'a>(&'a Pci, Bdf);

impl ::sriov::Config for Space<'_> {
    fn read(&self, offset: u16) -> u32 {
        self.0.read32(self.1, offset)
    }

    fn write(&mut self, offset: u16, value: u32) {
        self.0.write32(self.1, offset, value);
    }
}

/// Switches on what the plan asks for. Boot only; the error is a sentence.
pub fn enable(pci: &Pci, functions: &[Function], plan: &Plan) -> Result<(), String> {
    let mut made = Made::default();
    let mut memory = None;
    for shared in plan.shared_nics() {
        let nics = functions.iter().filter(|f| Class::Nic.matches(f.class, f.vendor, f.device));
        let Some(nic) = nics.clone().nth(shared.nic.into()) else {
            return Err(format!(
                "nic{} is to have virtual functions, but isn't in this machine; it has {} network controllers",
                shared.nic,
                nics.count()
            ));
        };
        let memory = memory.get_or_insert_with(|| InUse::find(pci, functions));
        enable_one(pci, nic, functions, shared, memory, &mut made)
            .map_err(|e| format!("nic{} ({}) can't be shared: {e}", shared.nic, nic.bdf))?;
    }
    MADE.call_once(|| made);
    Ok(())
}

fn enable_one(
    pci: &Pci,
    nic: &Function,
    functions: &[Function],
    shared: Shared<'_>,
    memory: &mut InUse,
    made: &mut Made,
) -> Result<(), String> {
    let mut space = Space(pci, nic.bdf);
    let capability = Capability::find(&space).ok_or(
        "it has no SR-IOV capability, and so no virtual functions; give the whole of it to one VM",
    )?;
    if (nic.vendor, nic.device) != i82576::IDS {
        return Err(format!(
            "its physical function ({:04x}:{:04x}) would have to be driven by the host, which knows the Intel 82576 ({:04x}:{:04x}) only",
            nic.vendor,
            nic.device,
            i82576::IDS.0,
            i82576::IDS.1
        ));
    }
    let above = match pci.bridge_to(nic.bdf, functions) {
        None => Above::Root,
        Some(port) if pci.forward_ari(port) => Above::AriPort,
        Some(_) => Above::Port,
    };
    let registers = pci.bars(nic.bdf).into_iter().find(|b| b.index == 0 && b.size >= 128 << 10);
    let registers = registers.filter(|b| b.address != 0).ok_or("its BAR 0 has no address")?;
    crate::memory::map_mmio(registers.address, registers.size);
    // Frames for its functions pass while it may access memory; what it may access is nothing.
    pci.write16(nic.bdf, pci::COMMAND, SHARED);
    let mut controller = i82576::Controller::start(Registers(registers.address), cpu::delay_us)
        .map_err(|e| e.to_string())?;
    let place = |bytes, align| memory.place(registers.address, bytes, align);
    let on = capability
        .enable(&mut space, nic.bdf.requester_id(), above, shared.vfs.into(), place, || {
            cpu::delay_us(WAKE_US)
        })
        .map_err(|e| e.to_string())?;

    let macs = addresses(Mac(controller.mac()), shared, made)?;
    for (index, id) in on.functions.iter().enumerate() {
        let bdf = Bdf::from_requester_id(*id).in_segment(nic.bdf.segment());
        let bars = on.bars.iter().map(|b| Bar {
            index: b.index,
            address: b.address + b.size * index as u64,
            kind: if b.wide { BarKind::Mem64 } else { BarKind::Mem32 },
            size: b.size,
            prefetchable: b.prefetchable,
        });
        log::info!("nic{}.vf{index} ({bdf}) has the address {}", shared.nic, macs[index]);
        made.functions.push(Virtual {
            nic: shared.nic,
            index: index as u8,
            function: Function { bdf, vendor: nic.vendor, device: on.device, class: nic.class },
            physical: nic.bdf,
            bars: bars.collect(),
        });
    }
    made.shared.push(nic.bdf);
    controller.share(&macs.iter().map(|mac| mac.0).collect::<Vec<_>>());
    if let Coalesce::On(parameters) = shared.coalesce {
        controller.hold_back(settings(parameters), cpu::rdtsc());
    }
    CONTROLLERS.lock().push(controller);
    Ok(())
}

/// The rules by which a controller's functions hold interrupts back.
fn settings(parameters: Coalescing) -> Settings {
    let Coalescing { in_flight, rate, epoch_us, adapted, .. } = parameters;
    let hz = cpu::tsc_hz();
    Settings {
        iops_threshold: rate.into(),
        cif_threshold: in_flight,
        epoch: hz.saturating_mul(epoch_us.into()) / 1_000_000,
        map: if adapted { Map::Adapted } else { Map::Paper },
        ..Settings::paper(hz)
    }
}

/// The addresses of a controller's functions: given, or made from its own.
fn addresses(own: Mac, shared: Shared<'_>, made: &mut Made) -> Result<Vec<Mac>, String> {
    let mut macs = Vec::new();
    made.macs.push(own);
    for index in 0..shared.vfs {
        let given = shared.macs.get(usize::from(index)).copied();
        let mac = given.unwrap_or_else(|| own.of_function(index));
        if made.macs.contains(&mac) {
            return Err(format!(
                "its vf{index} would have the address {mac}, which another controller or function has already; give it another in macs of [network.nic{}]",
                shared.nic
            ));
        }
        made.macs.push(mac);
        macs.push(mac);
    }
    Ok(macs)
}

fn made() -> impl Iterator<Item = &'static Virtual> {
    MADE.get().into_iter().flat_map(|made| &made.functions)
}

/// A virtual function by the name that plans have for it.
pub fn named(nic: u8, index: u8) -> Option<Function> {
    made().find(|v| (v.nic, v.index) == (nic, index)).map(|v| v.function)
}

/// A virtual function by its address.
pub fn function(bdf: Bdf) -> Option<Function> {
    made().find(|v| v.function.bdf == bdf).map(|v| v.function)
}

/// The physical function of a virtual one.
pub fn physical(bdf: Bdf) -> Option<Bdf> {
    made().find(|v| v.function.bdf == bdf).map(|v| v.physical)
}

/// A virtual function's BARs, which its own configuration space doesn't have.
pub fn bars(bdf: Bdf) -> Option<&'static [Bar]> {
    made().find(|v| v.function.bdf == bdf).map(|v| v.bars.as_slice())
}

/// All virtual functions.
pub fn functions() -> impl Iterator<Item = Function> {
    made().map(|v| v.function)
}

/// The functions that have virtual ones, and so are the host's.
pub fn shared() -> &'static [Bdf] {
    MADE.get().map(|made| made.shared.as_slice()).unwrap_or_default()
}

/// Whether a function has virtual functions, and so stays the host's.
pub fn is_shared(bdf: Bdf) -> bool {
    shared().contains(&bdf)
}

/// Core 0: answers what guests ask of the controllers. At most eight short messages each.
pub fn serve() {
    CONTROLLERS.lock().iter_mut().for_each(i82576::Controller::serve);
}

/// Core 0, now and then: has functions hold interrupts back as the plan says.
#[inline(never)]
pub fn throttle() {
    let now = cpu::rdtsc();
    CONTROLLERS.lock().iter_mut().for_each(|controller| controller.throttle(now));
}

/// At the end: tells how often functions held interrupts back.
pub fn report() {
    for (controller, physical) in CONTROLLERS.lock().iter().zip(shared()) {
        for function in made().filter(|v| v.physical == *physical) {
            let Some(counts) = controller.throttled(function.index.into()) else { continue };
            let i82576::ThrottleCounts { epochs, held, longest_us, by_guest } = counts;
            let (nic, index) = (function.nic, function.index);
            let some = if held > 0 { "" } else { "no " };
            log::info!(
                "nic{nic}.vf{index} held {some}interrupts back after {held} of {epochs} epochs, for {longest_us} us at the most; its guest set {by_guest} intervals of its own"
            );
        }
    }
}
