//! The host's exit counters as the guest sees them: the ledger's page, read with
//! plain loads, so that looking changes nothing. On a machine without the
//! hypervisor there is none, and nothing is compared.

use crate::{console::check, cpu, smp};
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::SeqCst};
use ledger::{PAGE_MAGIC, PAGE_VERSION, Page, Reason};

const HYPERVISOR_LEAF: u32 = 0x4000_0000;
const LEDGER_LEAF: u32 = 0x4000_0001;
const NAME: [u32; 3] =
    [u32::from_le_bytes(*b"Exit"), u32::from_le_bytes(*b"less"), u32::from_le_bytes(*b"HypV")];

/// Each CPU's page; zero where there is none.
static PAGES: [AtomicU64; smp::MAX] = [const { AtomicU64::new(0) }; smp::MAX];
static POLICY: AtomicU8 = AtomicU8::new(0);
static SHARED: AtomicBool = AtomicBool::new(false);

/// How this machine delivers interrupts, as the command line says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Policy {
    /// No hypervisor.
    Bare = 0,
    /// Every interrupt and EOI exits.
    Trap = 1,
    /// Shadow IDT.
    Eli = 2,
    /// The local APIC and its timer are the guest's own.
    Direct = 3,
    /// The CPU delivers and completes by itself what is posted.
    Posted = 4,
}

/// Exits that a guest may have for each time slice that it has on a shared core beyond those that
/// it has on one of its own: an interrupt under way when that ends comes by the host, is completed
/// through it, and so is what the guest hasn't completed by then.
const EACH_SLICE: u64 = 4;

/// Exits for the completion of an interrupt.
const COMPLETIONS: [Reason; 3] = [Reason::DeviceEoi, Reason::TimerEoi, Reason::OtherEoi];

/// Finds the first CPU's page, and notes the policy, and whether its cores are others' too.
pub fn init(policy: Option<&str>, shared: bool) {
    init_cpu();
    let policy = match policy {
        Some("trap") => Policy::Trap,
        Some("eli") => Policy::Eli,
        Some("direct") => Policy::Direct,
        Some("posted") => Policy::Posted,
        _ => Policy::Bare,
    };
    POLICY.store(policy as u8, SeqCst);
    SHARED.store(shared, SeqCst);
}

/// Finds this CPU's page, if this is a guest of Exitless.
pub fn init_cpu() {
    if under_exitless() {
        let leaf = cpu::cpuid(LEDGER_LEAF);
        let page = u64::from(leaf.ebx) << 32 | u64::from(leaf.eax);
        PAGES[smp::index()].store(page, SeqCst);
    }
}

/// Whether CPUID names Exitless as the hypervisor.
pub fn under_exitless() -> bool {
    let leaf = cpu::cpuid(HYPERVISOR_LEAF);
    [leaf.ebx, leaf.ecx, leaf.edx] == NAME && leaf.eax > HYPERVISOR_LEAF
}

/// The policy.
pub fn policy() -> Policy {
    match POLICY.load(SeqCst) {
        1 => Policy::Trap,
        2 => Policy::Eli,
        3 => Policy::Direct,
        4 => Policy::Posted,
        _ => Policy::Bare,
    }
}

/// Whether other vCPUs have time slices on this one's core.
pub fn shared() -> bool {
    SHARED.load(SeqCst)
}

fn page(cpu: usize) -> Option<*const Page> {
    let address = PAGES[cpu].load(SeqCst);
    (address != 0).then_some(address as *const Page)
}

/// Where this CPU's page is; 0 without a hypervisor.
pub fn address() -> u64 {
    PAGES[smp::index()].load(SeqCst)
}

/// Whether this CPU's page says what it must of itself; true without a hypervisor.
pub fn page_is_sane() -> bool {
    page(smp::index()).is_none_or(|p| {
        // SAFETY: the host maps a page there, below 4 GiB, readable.
        let (magic, version) = unsafe {
            ((&raw const (*p).magic).read_volatile(), (&raw const (*p).version).read_volatile())
        };
        magic == PAGE_MAGIC && version == PAGE_VERSION
    })
}

/// Everything counted of one CPU, at one moment.
pub struct Window {
    cpu: usize,
    before: [u64; Reason::COUNT],
    slices: Slices,
}

fn snapshot(cpu: usize) -> [u64; Reason::COUNT] {
    let mut exits = [0; Reason::COUNT];
    if let Some(p) = page(cpu) {
        for (i, slot) in exits.iter_mut().enumerate() {
            // SAFETY: as above; the page has room for every reason.
            *slot = unsafe { (&raw const (*p).exits[i]).read_volatile() };
        }
    }
    exits
}

/// What was counted between two moments.
pub struct Counted {
    exits: [u64; Reason::COUNT],
    /// How often it was given its core meanwhile.
    slices: u64,
}

/// All exits that this CPU ever had, through all resets of its VM.
pub fn ever() -> Counted {
    Counted { exits: snapshot(smp::index()), slices: Slices::so_far() }
}

impl Window {
    /// Opens a window on this CPU's exits.
    pub fn open() -> Window {
        Window::of(smp::index())
    }

    /// Opens a window on the exits of a CPU.
    pub fn of(cpu: usize) -> Window {
        Window { cpu, slices: Slices::of(cpu), before: snapshot(cpu) }
    }

    /// Closes it.
    pub fn close(self) -> Counted {
        self.so_far()
    }

    /// What it would say if it were closed now.
    pub fn so_far(&self) -> Counted {
        let after = snapshot(self.cpu);
        let exits = core::array::from_fn(|i| after[i].wrapping_sub(self.before[i]));
        Counted { exits, slices: self.slices.since() }
    }
}

/// How often a CPU was given the core that it shares, up to some moment.
pub struct Slices {
    cpu: usize,
    before: u64,
}

impl Slices {
    /// Up to now.
    pub fn of(cpu: usize) -> Slices {
        // SAFETY: as above.
        let before = page(cpu).map_or(0, |p| unsafe { (&raw const (*p).slices).read_volatile() });
        Slices { cpu, before }
    }

    /// How many this CPU had.
    pub fn so_far() -> u64 {
        Slices::of(smp::index()).before
    }

    /// Since then.
    pub fn since(&self) -> u64 {
        Slices::of(self.cpu).before.wrapping_sub(self.before)
    }
}

/// Guest entries of this CPU, and virtual interrupts that the host gave it.
#[derive(Clone, Copy, Default)]
pub struct Totals {
    /// Guest entries.
    pub entries: u64,
    /// Virtual interrupts.
    pub injected: u64,
}

impl Totals {
    /// Up to now.
    pub fn so_far() -> Totals {
        page(smp::index()).map_or(Totals::default(), |p| {
            // SAFETY: as above.
            let (entries, injected) = unsafe {
                (
                    (&raw const (*p).entries).read_volatile(),
                    (&raw const (*p).injected).read_volatile(),
                )
            };
            Totals { entries, injected }
        })
    }

    /// Since then.
    pub fn since(self) -> Totals {
        let now = Totals::so_far();
        Totals {
            entries: now.entries.wrapping_sub(self.entries),
            injected: now.injected.wrapping_sub(self.injected),
        }
    }
}

impl Counted {
    /// Exits for `reason`.
    pub fn of(&self, reason: Reason) -> u64 {
        self.exits[reason as usize]
    }

    /// How often it was given its core meanwhile.
    pub fn slices(&self) -> u64 {
        self.slices
    }

    /// All exits.
    pub fn all(&self) -> u64 {
        self.exits.iter().sum()
    }

    /// Exits that the guest's own work caused: all but the host's own interrupts, and on a shared
    /// core those of others and HLT, by which it yields.
    pub fn own(&self) -> u64 {
        let always = [Reason::HostInterrupt, Reason::Kick];
        let if_shared = [Reason::OtherVcpu, Reason::SliceEnd, Reason::Halt];
        let others = always.iter().chain(if_shared.iter().filter(|_| shared()));
        self.all() - others.map(|r| self.of(*r)).sum::<u64>()
    }

    /// How many exits more, or fewer, the time slices on a shared core explain: those in the
    /// window, and the one before it, of which something may be left to complete.
    fn explained(&self) -> u64 {
        if shared() { EACH_SLICE * (self.slices + 1) } else { 0 }
    }

    /// Checks the count of `reason` against what each policy allows, give or take what these
    /// explain. With `direct` nothing that a test looks for exits but the timer's LVT entry,
    /// written to start it and to stop it. With `posted` a device's interrupts and the timer's exit
    /// as with `trap`, and no completion does. A tick that is due when a guest on a shared core
    /// exits anyway has no exit of its own.
    pub fn expect(
        &self,
        test: &str,
        reason: Reason,
        trap: RangeInclusive<u64>,
        eli: RangeInclusive<u64>,
    ) {
        let allowed = match policy() {
            Policy::Bare => return,
            Policy::Posted if COMPLETIONS.contains(&reason) => 0..=0,
            Policy::Trap | Policy::Posted => trap,
            Policy::Eli => eli,
            Policy::Direct if reason == Reason::TimerProgram => 0..=2,
            Policy::Direct => 0..=0,
        };
        let n = self.of(reason);
        let tick = matches!(reason, Reason::TimerInterrupt | Reason::TimerEoi);
        let low =
            if shared() && tick { 0 } else { allowed.start().saturating_sub(self.explained()) };
        let high = allowed.end().saturating_add(self.explained());
        let (right, label) = ((low..=high).contains(&n), reason.label());
        check!(test, right, "{n} {label} exits, {low} to {high} wanted");
        if !right {
            self.print();
        }
    }

    /// Checks that with `eli` and `direct` the guest's own work caused no exit at all.
    pub fn expect_none(&self, test: &str) {
        self.expect_few(test, 0);
    }

    /// Checks that the guest's own work caused at most `most` exits with `eli`, and none
    /// with `direct`.
    pub fn expect_few(&self, test: &str, most: u64) {
        let most = match policy() {
            Policy::Bare | Policy::Trap | Policy::Posted => return,
            Policy::Eli if most == u64::MAX => return,
            Policy::Eli => most.saturating_add(self.explained()),
            Policy::Direct => 0,
        };
        let lvt = if policy() == Policy::Direct { self.of(Reason::TimerProgram) } else { 0 };
        let n = self.own() - lvt;
        check!(test, n <= most, "{n} exits of any kind, at most {most} wanted");
        if n > most {
            self.print();
        }
    }

    /// Checks that with `eli` and `direct` the guest's own work caused at most `most` exits.
    pub fn expect_at_most(&self, test: &str, most: u64) {
        if matches!(policy(), Policy::Bare | Policy::Trap | Policy::Posted) {
            return;
        }
        let (n, most) = (self.own(), most.saturating_add(self.explained()));
        check!(test, n <= most, "{n} exits of any kind, at most {most} wanted");
        if n > most {
            self.print();
        }
    }

    /// The reasons that occurred, with their counts.
    pub fn each(&self) -> impl Iterator<Item = (Reason, u64)> {
        Reason::ALL.iter().map(|r| (*r, self.of(*r))).filter(|(_, n)| *n != 0)
    }

    /// Prints the reasons that occurred.
    pub fn print(&self) {
        for (reason, n) in self.each() {
            crate::console::println!("  {} {n}", reason.label());
        }
    }
}
