//! `exitless demo nested`: Debian's kernel with KVM in a VM, QEMU in it with the same kernel once
//! more, which has the machine's NVMe controller by both of them; what a read takes, in one table.

use crate::bench::{
    progress::{Course, Step},
    show::{Block, Source, Table, text, two, whole},
};
use crate::selftest::inner_linux::{self, Device, Given, Heard, Idle, Window};
use anyhow::{Result, bail};
use exitless::{context::Context, output::Output};
use ledger::Reason;
use plan::GuestIommu;
use serde::Serialize;

const DEMO: &str = "\
A VM with an unmodified Debian kernel is a hypervisor itself: its KVM and its QEMU, untouched, run \
a guest with the same kernel (L2). The NVMe controller is the VM's (L1's), and by vfio-pci L2's, \
behind the IOMMU that the VM has. L2 writes its disk, reads that back and compares it; then it reads \
4 KiB at a time, and the exits are counted that this takes: L2's that KVM is told, and all of the \
host's. Once KVM takes L2's HLT, as QEMU has it; once L2 keeps it (-overcommit cpu-pm=on); and once, \
besides, KVM has AVIC (avic=1) and L1 an AMD-Vi unit that posts the controller's interrupts to L2.";

const REASONS: &str = "\
window: L2 lets in an interrupt that waited for that; nesting: L1's VMRUN, and what else it executes of SVM; nested-reflected: an exit of L2's that L1 is \
told at once. With AVIC the host injects L1's interrupts: timer-program, timer-interrupt, timer-eoi \
and msr-write are L1's own timer, most of what is left there, and one that L1 is told counts as what \
it is. Other reasons: docs/running.md, \"Why a guest exits\". The last line divides what is counted \
of the host by what KVM was told.";

/// Reads in the long window; the short one has a fifth.
const READS: u64 = 2000;
/// What L2 says if all that it read was right.
const VERIFIED: &str = "L2: its disk same=yes complaints=0";
/// Of KVM's numbers, those that are shown.
pub(super) const KVM: [(&str, &str); 4] = [
    ("irq_exits", "an interrupt of L1's"),
    ("halt_exits", "HLT"),
    ("io_exits", "a port"),
    ("mmio_exits", "a register or doorbell of a device"),
];

/// What `demo nested` takes.
#[derive(clap::Args, Clone, Debug)]
pub struct DemoArgs {
    /// Write the rows as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<std::path::PathBuf>,
}

/// A column, as JSON has it. Numbers are for each read.
#[derive(Debug, Serialize)]
struct Column {
    idle: &'static str,
    posted: bool,
    reads: f64,
    interrupts: f64,
    ticks: f64,
    kvm_exits: f64,
    kvm_exits_for: Vec<(&'static str, f64)>,
    told: f64,
    exits: f64,
    by_reason: Vec<(&'static str, f64)>,
}

/// Who has L2's CPU while that halts, and whether its interrupts are posted.
type Way = (Idle, bool);

const WAYS: [Way; 3] = [(Idle::Kvm, false), (Idle::Guest, false), (Idle::Guest, true)];

/// Runs all ways and shows the table.
pub fn demo(args: &DemoArgs, cx: &Context) -> Result<()> {
    let json = args.json.as_deref().map(Output::claim).transpose()?;
    println!("{}\n", text::wrap(DEMO));
    println!("1 of 3: the hypervisor and the guest");
    cx.hypervisor()?;
    inner_linux::prepare(cx)?;
    println!("2 of 3: three runs, some 40 seconds each on an idle machine");
    let mut columns = Vec::new();
    let mut course = Course::new(WAYS.len(), false);
    for way in WAYS {
        let Some((_, step)) = course.next(|_| head(way)) else { break };
        let window = counted(cx, way, &step);
        step.end(if window.is_ok() { "counted" } else { "failed" });
        course.done();
        columns.push((way, window?));
    }
    println!("3 of 3: what was counted\n");
    println!("{}", text::blocks(&[Block::Table(table(&columns))]));
    println!("{}\n", text::wrap(REASONS));
    println!("{}", text::wrap(&in_short(&columns)));
    if let Some(json) = json {
        json.write_json(&columns.iter().map(Column::of).collect::<Vec<_>>())?;
    }
    Ok(())
}

/// Counts one way, and says how far it is.
fn counted(cx: &Context, (idle, posted): Way, step: &Step) -> Result<Window> {
    let iommu = if posted { GuestIommu::AmdVi } else { GuestIommu::Virtio };
    let given = Given { device: Device::Nvme, iommu, posted, times: READS, idle };
    let mut phases = Phases::default();
    let mut see = |console: &[u8]| {
        step.tick();
        while let Some(doing) = phases.next(console) {
            step.phase(doing);
        }
    };
    reads(&inner_linux::watch(cx, Some(given), &mut see)?)
}

/// What both levels come to, one after the other.
#[derive(Default)]
struct Phases {
    begun: usize,
    /// Bytes of the console that were looked at.
    looked: usize,
}

/// By what a console says of it, and what is said of it.
const PHASES: [(&str, &str); 4] = [
    ("", "L1's kernel boots"),
    ("L1: ", "L1 has QEMU start L2"),
    ("L2: ", "L2 writes its disk and compares it"),
    ("@exitless window name=warm", "L2 reads"),
];

impl Phases {
    /// The next one, if the console says that it has begun.
    fn next(&mut self, console: &[u8]) -> Option<&'static str> {
        let (mark, doing) = PHASES.get(self.begun)?;
        let unseen = String::from_utf8_lossy(console.get(self.looked..)?);
        if !unseen.contains(mark) {
            // A mark may come in two pieces.
            self.looked = console.len().saturating_sub(mark.len()).max(self.looked);
            return None;
        }
        self.begun += 1;
        Some(doing)
    }
}

/// What the reads took, if what was read was right.
fn reads(heard: &Heard) -> Result<Window> {
    if !heard.console.contains(VERIFIED) {
        bail!("the innermost guest didn't read what it had written: \"{VERIFIED}\" isn't said");
    }
    heard.window()
}

impl Column {
    fn of(((idle, posted), window): &(Way, Window)) -> Self {
        let reasons = Reason::ALL.iter().map(|reason| (reason.label(), window.of_reason(*reason)));
        Column {
            idle: idle.label(),
            posted: *posted,
            reads: window.uses,
            interrupts: window.interrupts / window.uses,
            ticks: window.ticks / window.uses,
            kvm_exits: window.by_kvm("exits"),
            kvm_exits_for: KVM.map(|(name, label)| (label, window.by_kvm(name))).into(),
            told: window.of_reason(Reason::NestedReflected),
            exits: window.all(),
            by_reason: reasons.filter(|(_, n)| *n > 0.0).collect(),
        }
    }
}

/// A way above its column.
fn head((idle, posted): Way) -> String {
    let how = if posted { "AVIC, " } else { "" };
    format!("{how}HLT: {}", idle.label())
}

fn table(columns: &[(Way, Window)]) -> Table {
    let heads = columns.iter().map(|(way, _)| head(*way));
    let mut table = Table::new("L2 reads 4 KiB from its NVMe, depth 1", heads);
    let all = |f: &dyn Fn(&Window) -> String| -> Vec<String> {
        columns.iter().map(|(_, window)| f(window)).collect()
    };
    table.section(Source::Measured, "");
    table.line("reads, 4 MiB written and compared", all(&|w| whole(w.uses)));
    table.line("L2's device interrupts per read", all(&|w| two(w.interrupts / w.uses)));
    table.line("L2's timer interrupts per read", all(&|w| two(w.ticks / w.uses)));
    table.line("L2's exits per read that KVM is told", all(&|w| two(w.by_kvm("exits"))));
    for (name, label) in KVM {
        table.part(label, all(&|w| two(w.by_kvm(name))));
    }
    let others =
        |w: &Window| w.by_kvm("exits") - KVM.map(|(name, _)| w.by_kvm(name)).iter().sum::<f64>();
    table.part("others: L2's timer, a window", all(&|w| two(others(w))));
    table.line("exits of the host's per read", all(&|w| two(w.all())));
    for reason in Reason::ALL {
        // What is shown is in one column, at least.
        if columns.iter().any(|(_, window)| window.of_reason(*reason) >= 0.005) {
            table.part(reason.label(), all(&|w| two(w.of_reason(*reason))));
        }
    }
    table.line("the same for each that KVM is told", all(&|w| two(w.all() / w.by_kvm("exits"))));
    table
}

fn in_short(columns: &[(Way, Window)]) -> String {
    let registers: f64 = columns.iter().map(|(_, window)| window.by_kvm("mmio_exits")).sum();
    let registers = if registers == 0.0 { "no exit".into() } else { format!("{registers} exits") };
    let each: Vec<_> = columns.iter().map(|(_, window)| two(window.all())).collect();
    format!(
        "In short: L2's accesses to its controller take {registers} of anybody; what its reads take \
         is for interrupts and for L2's sleep: {} exits of the host's a read. Interrupts come to L1 \
         first, which passes them to L2; in the last column those of the controller come to L2.",
        each.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::nested::documented;

    fn window(mmio: f64) -> Window {
        let mut window = Window { uses: 100.0, interrupts: 100.0, ..Window::default() };
        window.exits = vec![0.0; Reason::COUNT];
        window.exits[Reason::Nesting as usize] = 600.0;
        window.exits[Reason::NestedReflected as usize] = 300.0;
        let names = ["exits", "irq_exits", "halt_exits", "io_exits"];
        window.kvm = names.map(|name| (name.to_owned(), 300.0)).into();
        window.kvm.insert("mmio_exits".into(), mmio);
        window
    }

    #[test]
    fn the_table_has_what_was_counted_and_no_more() {
        let columns = WAYS.map(|way| (way, window(0.0)));
        let shown = text::blocks(&[Block::Table(table(&columns))]);
        assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
        for line in ["AVIC, HLT: guest", "nesting", "nested-reflected", "9.00", "3.00"] {
            assert!(shown.contains(line), "{line}: {shown}");
        }
        assert!(!shown.contains("msix-table"), "{shown}");
        assert!(in_short(&columns).contains("take no exit of anybody"));
        assert!(in_short(&[(WAYS[0], window(50.0))]).contains("take 0.5 exits of anybody"));
    }

    #[test]
    fn the_keys_of_json_are_documented() {
        let column = Column::of(&(WAYS[0], window(50.0)));
        assert_eq!(column.kvm_exits_for[3], (KVM[3].1, 0.5));
        documented::check("`demo nested`", &[column], &[]);
    }

    #[test]
    fn each_phase_is_told_once_when_it_begins() {
        let said = "[0.1] booted\nL1: 6.12\nL1: 0000:00:02.0 is vfio-pci's\nL2: 6.12\n\
                    @exitless window name=warm uses=400\n@exitless window name=long";
        let mut phases = Phases::default();
        let mut told = Vec::new();
        // However the console comes.
        for end in 0..=said.len() {
            while let Some(doing) = phases.next(&said.as_bytes()[..end]) {
                told.push((doing, said[..end].lines().last().unwrap_or_default()));
            }
        }
        let at = ["", "L1: ", "L2: ", "@exitless window name=warm"];
        let all: Vec<_> = PHASES.iter().zip(at).map(|((_, doing), at)| (*doing, at)).collect();
        assert_eq!(told, all);
    }

    #[test]
    fn reads_that_are_wrong_are_no_figures() {
        let heard = |console: &str| Heard {
            console: console.into(),
            counters: ledger::Counters::default(),
            interrupts: 0,
        };
        assert!(reads(&heard("L2: its disk same=no complaints=0")).is_err());
    }
}
