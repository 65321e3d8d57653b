//! The attacker's own machine: set up so that interrupts come without exits, put in order again
//! after each attack, and tried.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use machine::edu::{self, Edu};
use machine::{
    console::{check, println, typed},
    counters::Counted,
    cpu, idt,
    nvme::Nvme,
    pci, wait, x2apic,
};

/// The device's vector.
pub const VECTOR: u8 = 0x40;
/// Interrupts that are tried after an attack.
pub const SAMPLE: u64 = 5;
/// The IOAPIC's registers, the local APIC's page of xAPIC mode, and the host's counters.
pub const IOAPIC: u64 = 0xFEC0_0000;
/// As above.
pub const LOCAL_APIC: u64 = 0xFEE0_0000;
/// As above.
pub const LEDGER: u64 = 0xFED0_0000;
const TICK: u8 = 0x50;
/// Ticks of the APIC's timer between two looks at the console.
const LOOK: u32 = 50_000_000;

/// Where the device's registers were at the start; zero without a device.
static HOME: AtomicU32 = AtomicU32::new(0);

/// The machine has no devices.
static ALONE: AtomicBool = AtomicBool::new(false);

/// Whether the machine has no devices: interrupts are then those that the CPU sends itself.
pub fn is_alone() -> bool {
    ALONE.load(SeqCst)
}

/// Notes where things are, and lets the device's interrupts come. `alone`: there are none.
pub fn prepare(alone: bool) {
    if alone {
        ALONE.store(true, SeqCst);
        edu::stand_in(VECTOR);
        x2apic::spare_spurious(true);
    }
    if let Some(edu) = Edu::find() {
        HOME.store(edu.function.read(pci::BAR0), SeqCst);
    }
    restore();
}

/// Sleeps until a byte is typed.
pub fn wait_for_order() {
    idt::on(TICK, |_| x2apic::complete());
    x2apic::start_timer(TICK, true, LOOK);
    while typed().is_none() {
        cpu::halt_until_interrupt();
    }
    x2apic::stop_timer();
}

/// The device, if this VM has one.
pub fn device() -> Option<Edu> {
    if HOME.load(SeqCst) == 0 { None } else { Edu::find() }
}

/// The device, for an attack that needs it; without one that fails, or isn't played.
pub fn needed_device(test: &str) -> Option<Edu> {
    needed(test, device(), "no edu device answers")
}

/// The NVMe controller, for an attack that needs it; without one that fails, or isn't played.
pub fn needed_controller(test: &str) -> Option<Nvme> {
    needed(test, Nvme::find(), "no NVMe controller answers")
}

fn needed<T>(test: &str, device: Option<T>, why: &str) -> Option<T> {
    match device {
        None if is_alone() => skip(why),
        None => check!(test, false, "{why}"),
        Some(_) => {}
    }
    device
}

/// Whether the attack that was carried out last wasn't, for there is nothing to attack.
static SKIPPED: AtomicBool = AtomicBool::new(false);

/// Says why an attack isn't played: it won't count as one.
pub fn skip(why: &str) {
    SKIPPED.store(true, SeqCst);
    println!("  not played: {why}");
}

/// Whether [`skip`] was called since the last time.
pub fn take_skipped() -> bool {
    SKIPPED.swap(false, SeqCst)
}

/// Puts tables, APIC and device back as [`prepare`] left them, with interrupts off; what is pending
/// comes before that.
pub fn restore() {
    cpu::disable_interrupts();
    idt::init();
    idt::reset();
    idt::on(2, |_| {});
    x2apic::init_cpu();
    for _ in 0..=255 {
        x2apic::complete();
    }
    let home = HOME.load(SeqCst);
    if home != 0
        && let Some(function) = pci::Function::all().find(|f| f.read(0) == machine::edu::IDENTITY)
    {
        function.write(pci::COMMAND, 0);
        function.write(pci::BAR0, home);
        if let Some(edu) = Edu::find() {
            edu.silence();
            cpu::enable_interrupts();
            wait::settle();
            cpu::disable_interrupts();
            edu.aim_handled(VECTOR);
        }
    }
}

/// How many of [`SAMPLE`] interrupts of the device come; all, without one.
pub fn interrupts() -> u64 {
    if is_alone() {
        return own_interrupts();
    }
    let Some(edu) = device() else { return SAMPLE };
    let before = idt::count(VECTOR);
    edu.aim_handled(VECTOR);
    cpu::enable_interrupts();
    let n = edu.raise_and_wait(VECTOR, SAMPLE) - before;
    cpu::disable_interrupts();
    n
}

/// The same of those that the CPU sends itself.
fn own_interrupts() -> u64 {
    cpu::enable_interrupts();
    let came = |_: &u64| {
        let before = idt::count(VECTOR);
        edu::raise();
        wait::until(|| idt::count(VECTOR) > before)
    };
    let n = (0..SAMPLE).filter(came).count() as u64;
    cpu::disable_interrupts();
    n
}

/// Says what the ledger counted of an attack.
pub fn print_ledger(place: &str, name: &str, counted: &Counted) {
    use core::fmt::Write as _;
    let mut console = machine::console::Console;
    // The console never fails.
    let _ = write!(console, "ledger {place}/{name}");
    for (reason, n) in counted.each() {
        let _ = write!(console, " {}={n}", reason.label());
    }
    println!();
}
