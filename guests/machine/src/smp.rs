//! Further CPUs: started by INIT and start-up IPIs, given jobs, waited for.
//!
//! Guarantees: a CPU's index is its APIC id; a started CPU halts with interrupts on, on a
//! stack of its own, until it is given a job; everything waited for here has a limit. Doesn't
//! guarantee that a CPU whose job was cut off by an INIT left shared memory in order.

use crate::{boot::Boot, counters, cpu, idt, wait, x2apic, x2apic::command, xapic};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

/// CPUs there is room for; their APIC ids are below it.
pub const MAX: usize = 8;
/// Bytes of a CPU's stack, as the trampoline has it.
const STACK: u64 = 65536;
/// Pages a CPU can be started at: free on every PC, below the first 640 KiB.
pub const START_PAGES: [u8; 2] = [0x08, 0x09];
/// Wakes a CPU that has been given a job.
const WAKE: u8 = 0xFB;
/// Between INIT and start-up IPI, in TSC ticks: some microseconds.
const INIT_PAUSE: u64 = 20_000;

/// What is known of a CPU.
pub struct Cpu {
    starts: AtomicU64,
    segment: AtomicU64,
    left_over: AtomicU64,
    mode: AtomicU64,
    job: AtomicUsize,
    done: AtomicU64,
}

static CPUS: [Cpu; MAX] = [const {
    Cpu {
        starts: AtomicU64::new(0),
        segment: AtomicU64::new(0),
        left_over: AtomicU64::new(0),
        mode: AtomicU64::new(0),
        job: AtomicUsize::new(0),
        done: AtomicU64::new(0),
    }
}; MAX];

unsafe extern "C" {
    static stacks: u8;
    static trampoline: u8;
    static trampoline_end: u8;
}

/// This CPU's index, told by its stack: nothing that a test may clobber.
pub fn index() -> usize {
    let here: u64;
    // SAFETY: reads a register.
    unsafe { core::arch::asm!("mov {}, rsp", out(reg) here, options(nomem, nostack)) }
    ((here - (&raw const stacks) as u64) / STACK) as usize
}

/// How often a CPU has been started.
pub fn starts(cpu: usize) -> u64 {
    CPUS[cpu].starts.load(SeqCst)
}

/// The page at which a CPU was started last.
pub fn start_page(cpu: usize) -> u64 {
    CPUS[cpu].segment.load(SeqCst) >> 8
}

/// What a CPU found of its former life in its local APIC when it was started last: zero
/// when that was reset, as INIT must do (SDM 3A, 11.4.7.3).
pub fn left_over(cpu: usize) -> u64 {
    CPUS[cpu].left_over.load(SeqCst)
}

/// In which mode of its local APIC a CPU was started last, by bits 11:10 of IA32_APIC_BASE.
pub fn start_mode(cpu: usize) -> u64 {
    CPUS[cpu].mode.load(SeqCst)
}

/// Entered by the trampoline.
pub fn begin(id: u32, segment: u64) -> ! {
    idt::load();
    let this = &CPUS[id as usize];
    this.mode.store(xapic::mode(), SeqCst);
    xapic::forget();
    this.left_over.store(if x2apic::enabled() { x2apic::left_over() } else { 0 }, SeqCst);
    x2apic::init_cpu();
    counters::init_cpu();
    this.segment.store(segment, SeqCst);
    this.starts.fetch_add(1, SeqCst);
    loop {
        let job = this.job.swap(0, SeqCst);
        if job == 0 {
            // No job comes in between: the one who gives it sends an interrupt after it.
            cpu::halt_until_interrupt();
            continue;
        }
        // SAFETY: the cell only ever holds what `give` stored.
        let job: fn(usize) = unsafe { core::mem::transmute(job) };
        cpu::enable_interrupts();
        job(id as usize);
        cpu::disable_interrupts();
        this.done.fetch_add(1, SeqCst);
    }
}

/// APIC ids of the CPUs in the MADT, this one first; at most [`MAX`], all below it.
pub fn listed(boot: &Boot) -> impl Iterator<Item = usize> {
    let tables = crate::acpi::Tables::find(boot.rsdp);
    let mut ids = [usize::MAX; MAX];
    let listed = tables.iter().flat_map(|t| t.processors());
    for (slot, id) in ids.iter_mut().zip(listed) {
        *slot = id as usize;
    }
    ids.into_iter().filter(|id| *id < MAX)
}

/// Puts the trampoline at the pages CPUs are started at.
pub fn prepare() {
    let (from, end) = (&raw const trampoline, &raw const trampoline_end);
    for page in START_PAGES {
        let to = u64::from(page) << 12;
        // SAFETY: free memory of every PC, the code is shorter than a page.
        unsafe {
            core::ptr::copy_nonoverlapping(from, to as *mut u8, end as usize - from as usize);
        }
    }
}

/// The real-mode vector of NMIs, and where it leads: into the second start page, behind the code.
const NMI_GATE: u64 = 2 * 4;
const NMI_HANDLER: u64 = (START_PAGES[1] as u64) << 12 | 0xF00;
/// `inc word ptr cs:[0xF10]`, `iret`.
const NMI_CODE: [u8; 6] = [0x2E, 0xFF, 0x06, 0x10, 0x0F, 0xCF];
const NMI_COUNT: u64 = NMI_HANDLER + 0x10;

/// From here on counts the NMIs that CPUs take in real mode.
pub fn count_early_nmis() {
    // SAFETY: the vector's place on every PC; the page is the trampoline's own, which is shorter.
    unsafe {
        (NMI_HANDLER as *mut [u8; 6]).write_volatile(NMI_CODE);
        (NMI_COUNT as *mut u16).write_volatile(0);
        (NMI_GATE as *mut u32).write_volatile(u32::from(START_PAGES[1]) << 24 | 0xF00);
    }
}

/// How many there were.
pub fn early_nmis() -> u16 {
    // SAFETY: as above.
    unsafe { (NMI_COUNT as *const u16).read_volatile() }
}

/// Sends INIT: the CPU stops whatever it does and waits for a start-up IPI.
pub fn stop(cpu: usize) {
    CPUS[cpu].job.store(0, SeqCst);
    x2apic::send(cpu as u32, command::INIT);
    x2apic::send(cpu as u32, command::INIT_DEASSERT);
}

/// Sends a start-up IPI for one of [`START_PAGES`].
pub fn start_up(cpu: usize, page: u8) {
    x2apic::send(cpu as u32, command::START_UP | u64::from(page));
}

/// Sends a start-up IPI for a page whose code calls the BIOS: `int 0x15`, `hlt`.
pub fn start_up_in_bios(cpu: usize) {
    // SAFETY: the page is the trampoline's own.
    unsafe {
        ((u64::from(START_PAGES[0]) << 12) as *mut [u8; 3]).write_volatile([0xCD, 0x15, 0xF4])
    }
    start_up(cpu, START_PAGES[0]);
}

/// INIT and two start-up IPIs, as Linux sends them; says whether the CPU came up.
pub fn start(cpu: usize) -> bool {
    let before = starts(cpu);
    stop(cpu);
    wait::ticks(INIT_PAUSE);
    start_up(cpu, START_PAGES[0]);
    wait::ticks(INIT_PAUSE);
    start_up(cpu, START_PAGES[0]);
    wait::until(|| starts(cpu) > before)
}

/// Starts every CPU of the MADT that isn't up, and gives how many are, this one included;
/// nothing when one doesn't come, or ids aren't dense.
pub fn start_all(boot: &Boot) -> Option<usize> {
    prepare();
    for cpu in listed(boot).filter(|cpu| *cpu != index()) {
        if starts(cpu) == 0 && !start(cpu) {
            return None;
        }
    }
    let count = listed(boot).count();
    listed(boot).all(|cpu| cpu < count).then_some(count)
}

/// Gives a started CPU a job; its number, for [`finished`].
pub fn give(cpu: usize, job: fn(usize)) -> u64 {
    let number = give_silently(cpu, job);
    x2apic::send(cpu as u32, u64::from(WAKE));
    number
}

/// The same for a CPU that no interrupt reaches: it looks when something else wakes it.
pub fn give_silently(cpu: usize, job: fn(usize)) -> u64 {
    let number = CPUS[cpu].done.load(SeqCst) + 1;
    CPUS[cpu].job.store(job as usize, SeqCst);
    number
}

/// Whether a CPU has finished the job of this number.
pub fn finished(cpu: usize, number: u64) -> bool {
    CPUS[cpu].done.load(SeqCst) >= number
}

/// Has the first `count` CPUs do `job`, this one (the first) among them with its interrupts
/// on; says whether all came to its end.
pub fn all(count: usize, job: fn(usize)) -> bool {
    others(count, job, || {
        cpu::enable_interrupts();
        job(0);
        true
    })
}

/// Has the CPUs from 1 to `count` do `job`, while this one does something else; whether that
/// went well and all came to the end.
pub fn others(count: usize, job: fn(usize), here: impl FnOnce() -> bool) -> bool {
    let numbers: [u64; MAX] =
        core::array::from_fn(|cpu| if (1..count).contains(&cpu) { give(cpu, job) } else { 0 });
    let good = here();
    let done = || (1..count).all(|cpu| finished(cpu, numbers[cpu]));
    wait::patiently(done) && good
}
