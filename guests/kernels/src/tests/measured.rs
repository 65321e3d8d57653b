//! Steady loads in windows for the counting plugin, told as the measuring guest of Linux tells
//! its own (`guests/linux/measure`): reads of a paravirtual disk, and bytes to the serial port.
//!
//! Options: `depth=N` reads under way, `warmup=N` before the first window, `length=N` operations of
//! each, `windows=N`; with `together=yes` it is one of several guests, which all open their first
//! window when each is under load, and keep that on until each has closed its last; with
//! `second=yes` it is the second of two on its core, whose windows have markers of their own. No
//! timer runs, so there are no ticks.
//!
//! Guarantees: in a window nothing is printed or looked for beside the load itself, and what is
//! said before the others' last window closes is said under load. While it waits for a completion
//! the CPU is halted. Each request is one read of 4 KiB, and one that comes to anything else fails
//! the test.

use super::virtio::started;
use super::virtio_load::VECTOR;
use crate::virtio_blk::{self as blk, Queue, Request, kind, status as outcome};
use crate::{
    boot::Boot,
    console::{Console, check, println, typed},
    counters::{Totals, Window},
    cpu, idt,
    random::Random,
    wait, x2apic,
};
use core::fmt::Write as _;
use ledger::Reason;

/// Bytes and sectors of a read, and from how many places on the disk.
const BYTES: u32 = 4096;
const SECTORS: u64 = 8;
const PLACES: u64 = 4096;
/// Completions from one look for a typed byte to the next.
const LOOK: u64 = 256;
/// Windows at the most.
const WINDOWS: usize = 8;
const SEED: u64 = 0x00E1_F500;

/// The plugin's marker (bench/plugin): a window opens or closes here.
macro_rules! marker {
    ($number:literal) => {
        // SAFETY: a NOP.
        unsafe { core::arch::asm!(".byte 0x0F, 0x1F, 0x84, 0x00", concat!(".long ", $number)) }
    };
}

fn number(boot: &Boot, key: &str, usual: u64) -> u64 {
    boot.option(key).and_then(|n| n.parse().ok()).unwrap_or(usual)
}

/// What was counted in a window.
#[derive(Clone, Copy)]
struct Told {
    operations: u64,
    interrupts: u64,
    totals: Totals,
    exits: [u64; Reason::COUNT],
}

/// A window of `work`, which says how many operations it did.
fn window(boot: &Boot, work: impl FnOnce() -> u64) -> Told {
    let second = boot.option("second").is_some();
    let (before, (totals, window)) = idt::between(VECTOR, || (Totals::so_far(), Window::open()));
    if second {
        marker!("0x45580003");
    } else {
        marker!("0x45580001");
    }
    let operations = work();
    if second {
        marker!("0x45580004");
    } else {
        marker!("0x45580002");
    }
    let (after, (totals, counted)) = idt::between(VECTOR, || (totals.since(), window.so_far()));
    let interrupts = after - before;
    let exits = core::array::from_fn(|i| Reason::ALL.get(i).map_or(0, |r| counted.of(*r)));
    Told { operations, interrupts, totals, exits }
}

/// The lines of all windows, when none is open any more.
fn tell(windows: &[Option<Told>]) {
    let mut console = Console;
    for (index, told) in windows.iter().flatten().enumerate() {
        let Told { operations, interrupts, totals, exits } = told;
        // The console never fails.
        let _ = write!(
            console,
            "@exitless window number={index} kind=long spun=0 operations={operations} interrupts={interrupts} ticks=0 nanoseconds=0 entries={} injected={} exits=",
            totals.entries, totals.injected
        );
        for (i, count) in exits.iter().enumerate() {
            let _ = write!(console, "{}{count}", if i > 0 { "," } else { "" });
        }
        println!();
    }
}

struct Reads<'a> {
    queue: &'a Queue,
    depth: u64,
    random: Random,
    under_way: u64,
    done: u64,
    wrong: u64,
}

impl Reads<'_> {
    /// Takes out what has completed, and asks for as many again; waits if there was nothing.
    fn step(&mut self) {
        while let Some(slot) = self.queue.done_slot() {
            self.wrong += u64::from(self.queue.outcome(slot) != (outcome::OK, BYTES + 1));
            self.queue.release(slot);
            self.under_way -= 1;
            self.done += 1;
        }
        let full = self.under_way >= self.depth;
        while self.under_way < self.depth
            && let Some(slot) = self.queue.free_slot()
        {
            let sector = self.random.number() % PLACES * SECTORS;
            self.queue.submit(slot, Request::new(kind::IN, sector, BYTES));
            self.under_way += 1;
        }
        if full {
            cpu::halt_until_interrupt();
        } else {
            // What came meanwhile is taken here.
            cpu::enable_interrupts();
            cpu::disable_interrupts();
        }
    }

    fn go_on(&mut self, operations: u64) -> u64 {
        let before = self.done;
        while self.done - before < operations {
            self.step();
        }
        self.done - before
    }

    /// Says something, under load.
    fn say(&mut self, text: &str) {
        for byte in text.split_inclusive(|_| true) {
            let _ = Console.write_str(byte);
            self.go_on(self.depth.div_ceil(8));
        }
    }

    /// Until somebody types.
    fn until_told(&mut self) {
        while typed().is_none() {
            self.go_on(LOOK.min(8 * self.depth));
        }
    }
}

/// Reads.
pub fn reads(test: &str, boot: &Boot) {
    let Some(disk) = started(test, boot, 0, 1) else { return };
    let queue = blk::queue(0);
    blk::handle(&disk, 0, x2apic::id() as usize, VECTOR);
    cpu::disable_interrupts();
    let depth = number(boot, "depth", 1).clamp(1, blk::WIDE as u64);
    if depth > blk::DEPTH as u64 && !queue.be_wide() {
        return check!(test, false, "the disk takes no indirect chains, which {depth} reads need");
    }
    let together = boot.option("together").is_some();
    let random = Random::new(SEED);
    let mut reads = Reads { queue, depth, random, under_way: 0, done: 0, wrong: 0 };
    println!("@exitless guest clocksource=none interrupt=PCI-MSIX ledger=yes");
    reads.go_on(number(boot, "warmup", 100));
    if together {
        reads.say("@exitless loaded\n");
        reads.until_told();
    }
    let length = number(boot, "length", 1000);
    let mut windows = [None; WINDOWS];
    for told in windows.iter_mut().take(number(boot, "windows", 2) as usize) {
        *told = Some(window(boot, || reads.go_on(length)));
    }
    if together {
        reads.say("@exitless load-over\n");
        reads.until_told();
    }
    reads.depth = 0;
    cpu::enable_interrupts();
    let over = wait::patiently(|| {
        if let Some(slot) = queue.done_slot() {
            queue.release(slot);
            reads.under_way -= 1;
        }
        reads.under_way == 0
    });
    let account = queue.account();
    let good = over && reads.wrong == 0 && account.odd == 0;
    check!(test, good, "{} reads, {} wrong, {account:?}", reads.done, reads.wrong);
    if good {
        tell(&windows);
        println!("@exitless done");
    }
}

/// Bytes, each after a look whether there is room for it.
pub fn bytes(test: &str, boot: &Boot) {
    let length = number(boot, "length", 1000);
    println!("@exitless guest clocksource=none interrupt=polled ledger=yes");
    let mut windows = [None; WINDOWS];
    for told in windows.iter_mut().take(number(boot, "windows", 2) as usize) {
        *told = Some(window(boot, || {
            for n in 1..=length {
                let byte = if n % 64 == 0 || n == length { "\n" } else { "." };
                let _ = Console.write_str(byte);
            }
            length
        }));
    }
    check!(test, true, "{length} bytes in each window");
    tell(&windows);
    println!("@exitless done");
}
