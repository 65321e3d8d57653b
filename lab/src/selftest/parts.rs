//! Disks that are parts of an NVMe controller: the tests of paravirtual disks on it under each
//! policy; two VMs side by side, each of whose patterns must be in its part and nowhere else, as
//! seen from outside; Debian's kernel, whose fio reads back what it wrote, alone and beside
//! another; a sector that can't be read; parts that can't be had.

use super::case::{Case, Cores, Cue, Expect, Expected, Guest, Outcome, Special};
use super::cases::{again, case, guest, heartbeat, nothing_by_host, nvme};
use super::kernel::Variant;
use super::{smp, virtio};
use exitless::report::VmReport;
use ledger::Reason;
use plan::{Backing, Coalesce, Coalescing, Control, DeviceName, Disk, Part, Policy};
use proto::Served;

/// Bytes of the namespace.
pub const BYTES: u64 = 48 << 20;
/// Bytes of each VM's part; the first one's is the second in the namespace.
const PART: u64 = virtio::SECTORS * plan::SECTOR;
/// Where the parts of the first and the second VM are.
const OFFSETS: [u64; 2] = [PART, 0];
/// What each VM's kernel is told of its disk.
const OPTIONS: [&str; 2] = [
    "sectors=32768 serial=exitless-virtio pattern=1111",
    "sectors=32768 serial=exitless-virtio pattern=2222",
];
const PATTERNS: [u64; 2] = [1111, 2222];
/// What Linux is told instead.
const LINUX: [&str; 2] = [
    "exitless.workload=verify exitless.disk=vda exitless.seed=1111",
    "exitless.workload=verify exitless.disk=vda exitless.seed=2222",
];
/// Bytes of each of its requests.
const BLOCK: u64 = 4096;
/// What it says if all that it read was as it had been written.
const VERIFIED: &str = "@exitless verified status=0 errors=0 ";
/// The same of the first VM's, with its limit.
const LIMITED: &str = "sectors=32768 serial=exitless-virtio pattern=1111 iops=500";

/// The controller with a bad sector, as QEMU has it, and the sector.
const BAD: [&str; 4] = [
    "-blockdev",
    "blkdebug,node-name=bad,inject-error.0.event=none,inject-error.0.iotype=read,inject-error.0.sector=2000,inject-error.0.errno=5,inject-error.0.once=off,image.driver=null-co,image.size=16777216,image.read-zeroes=on",
    "-device",
    "nvme,serial=bad,drive=bad,addr=0x1a",
];
const BAD_AT: DeviceName = DeviceName::Address { segment: 0, bus: 0, device: 0x1A, function: 0 };
const BAD_OPTIONS: &str = "sectors=32768 bad=2000";

/// The controller whose reads don't end before a VM says so.
const STALLED: Special = Special::Monitored {
    when: "told\n",
    words: "block_set_io_throttle slow 0 0 0 0 0 0",
    arguments: &[
        "-drive",
        "if=none,id=slow,driver=null-co,size=16777216,read-zeroes=on,throttling.bps-read=1",
        "-device",
        "nvme,serial=slow,drive=slow,addr=0x1a",
    ],
};
/// Completions are held back for 5 ms at most, and interrupts for who hasn't its core as long.
const HELD_BACK: Coalescing =
    Coalescing { rate: 200, epoch_us: 5_000, deferral_us: 5_000, ..Coalescing::USUAL };

/// The controller whose reads take a second each, until the neighbour has beaten for a while.
const SLOW: Special = Special::Monitored {
    when: "heartbeat 60\n",
    words: "block_set_io_throttle slow 0 0 0 0 0 0",
    arguments: &[
        "-drive",
        "if=none,id=slow,driver=null-co,size=16777216,read-zeroes=on,throttling.iops-read=1",
        "-device",
        "nvme,serial=slow,drive=slow,addr=0x1a",
    ],
};
const SLOW_OPTIONS: &str = "sectors=32768";

/// What an attacker's addresses reach: more than a machine with two VMs has.
const PAGES_OPTIONS: &str = "pattern=1111 reach=512";

/// Tests of one CPU, and whether the quick test has them (under `direct`).
const TESTS: [(&str, bool); 6] = [
    ("virtio", true),
    ("virtio-load", true),
    ("virtio-flags", false),
    ("virtio-poll", false),
    ("virtio-mask", false),
    ("virtio-reset", true),
];

/// All of them.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for policy in virtio::POLICIES {
        let of = |test: &'static str| on_part(virtio::with_disk(guest(test, policy)), 0);
        let quick = |quick| quick && policy == Policy::Direct;
        for (test, is_quick) in TESTS {
            cases.push(served(policy, test, quick(is_quick), [of(test)]));
        }
        let several = virtio::with_disk(smp::several("virtio-queues", policy));
        cases.push(served(policy, "virtio-queues", false, [on_part(several, 0)]));
        let restarts = || on_part(virtio::with_disk(again("virtio-restart", policy)), 0);
        cases.push(served(policy, "virtio-restart", false, [restarts()]));
        // One begins again with its ring full of reads while the other is at work.
        let two = [restarts(), on_part(of("virtio-load"), 1)];
        cases.push(served(policy, "virtio-restart-beside", quick(true), two));
        let two = [of("virtio-load"), on_part(of("virtio-load"), 1)];
        cases.push(served(policy, "virtio-two", quick(true), two));
        // Its requests are begun in turns and end in none.
        let limited = Guest { options: LIMITED, ..on_part(virtio::with_limit(policy), 0) };
        cases.push(served(policy, "virtio-limit", quick(true), [limited]));
        let mut guest = Guest { options: BAD_OPTIONS, ..of("virtio-errors") };
        place(&mut guest, BAD_AT, 0);
        let errors = served(policy, "virtio-errors", quick(true), [guest]);
        let log = vec!["00:1a.0) is shut down"];
        cases.push(Case { machine: Special::Arguments(&BAD), log, ..errors });
        cases.push(stalled(policy, "virtio-stalled", quick(true), Vec::new()));
        if policy != Policy::Direct {
            // It wants the core all the time, so that interrupts find who sleeps without it.
            let busy = heartbeat("beats=60 busy=1", policy);
            let beside = Guest { counts: Vec::new(), ..busy };
            let beside = vec![Guest { cores: Cores::First, ..beside }];
            let quick = policy == Policy::Eli;
            cases.push(stalled(policy, "virtio-stalled-on-one-core", quick, beside));
            let two = [of("virtio-load"), on_part(of("virtio-load"), 1)];
            let shared = two.map(|g| Guest { cores: Cores::First, counts: Vec::new(), ..g });
            let one = served(policy, "virtio-two-on-one-core", false, shared);
            cases.push(one);
            cases.push(slow(policy, policy == Policy::Eli));
        }
    }
    for policy in [Policy::Trap, Policy::Eli, Policy::Direct] {
        let quick = policy == Policy::Direct;
        cases.push(served(policy, "virtio-linux", false, [linux(policy, 0)]));
        cases.push(served(policy, "virtio-linux-two", quick, [linux(policy, 0), linux(policy, 1)]));
    }
    cases.push(pages());
    cases.extend(refused());
    cases
}

/// Requests that lead a controller astray which is told of too few pages, beside a neighbour whose
/// memory the controller reaches, too.
fn pages() -> Case {
    let policy = Policy::Direct;
    let beside = on_part(virtio::with_disk(heartbeat("", policy)), 1);
    let beside = Guest { options: "", ..beside };
    let attacker = on_part(virtio::with_disk(guest("virtio-pages", policy)), 0);
    let attacker = Guest { options: PAGES_OPTIONS, ..attacker };
    let case = served(policy, "virtio-pages", true, [beside, attacker]);
    Case { typed: Some(Cue::Said("heartbeat 1\n")), ..case }
}

/// Debian's kernel with fio, which writes the whole part of this number and reads it back.
fn linux(policy: Policy, number: usize) -> Guest {
    let some = 1..=u64::MAX;
    let counts = match policy {
        Policy::Trap => vec![(Reason::DeviceInterrupt, some.clone()), (Reason::DeviceEoi, some)],
        _ => nothing_by_host(),
    };
    let guest = Guest {
        tests: "",
        variant: Variant::Linux,
        devices: Vec::new(),
        end: Expected::PowerOff,
        says: vec![VERIFIED],
        counts,
        ..virtio::with_disk(guest("hello", policy))
    };
    // What one's blocks say of themselves is wrong in the other's part.
    Guest { options: LINUX[number], ..on_part(guest, number) }
}

/// What the hypervisor says that it did for a part that Linux verified: each block was written and
/// read, and no request came to the host by an exit.
pub fn reported(guest: &Guest, vm: &VmReport, wrong: &mut Vec<String>) {
    if guest.variant != Variant::Linux || guest.disks.is_empty() {
        return;
    }
    let Served { completed, bytes, calls, kicks, .. } = vm.paravirtual.total();
    let (requests, all) = (2 * PART / BLOCK, 2 * PART);
    if completed < requests || bytes < all {
        wrong.push(format!(
            "{completed} requests of {bytes} bytes were reported, {requests} of {all} wanted"
        ));
    }
    if calls == 0 || calls > completed {
        wrong.push(format!("{calls} calls were reported for {completed} requests"));
    }
    if kicks > 0 {
        wrong.push(format!("{kicks} kicks were reported, none wanted"));
    }
}

/// A VM begins again while reads are under way that take longer than its neighbour on the same core
/// needs. Were that one to wait for them, they would take so long that the controller is reset.
fn slow(policy: Policy, quick: bool) -> Case {
    let stuck = virtio::with_disk(again("virtio-stuck", policy));
    let mut stuck = Guest { cores: Cores::First, options: SLOW_OPTIONS, ..stuck };
    place(&mut stuck, BAD_AT, 0);
    let beside = heartbeat("beats=60", policy);
    let beside = Guest { cores: Cores::First, counts: Vec::new(), ..beside };
    let case = served(policy, "virtio-stuck-on-one-core", quick, [stuck, beside]);
    let log = vec!["00:1a.0) is shut down"];
    Case { machine: SLOW, log, silent: true, ..case }
}

/// Interrupts that wait for more completions when no more come.
fn stalled(policy: Policy, test: &str, quick: bool, beside: Vec<Guest>) -> Case {
    let stalled = virtio::with_disk(guest("virtio-stalled", policy));
    let mut stalled = Guest { options: SLOW_OPTIONS, counts: Vec::new(), ..stalled };
    place(&mut stalled, BAD_AT, 0);
    let control = Control { coalesce: Coalesce::On(HELD_BACK), ..Control::default() };
    stalled.disks.iter_mut().for_each(|disk| disk.control = control);
    if !beside.is_empty() {
        stalled.cores = Cores::First;
    }
    let case = served(policy, test, quick, []);
    let guests = [stalled].into_iter().chain(beside).collect();
    let log = vec!["00:1a.0) is shut down"];
    Case { machine: STALLED, guests, log, silent: true, ..case }
}

/// What can't be had.
fn refused() -> [Case; 2] {
    let of = || on_part(virtio::with_disk(guest("hello", Policy::Eli)), 0);
    let mut far = of();
    place(&mut far, nvme(0), BYTES - 4096);
    let far = served(Policy::Eli, "virtio-too-far", false, [far]);
    let words = vec!["first", "disk0", "nvme0", "namespace has"];
    let far = Case { expect: Expect::Refused(words), log: Vec::new(), ..far };
    // The same controller by its address.
    let alias = DeviceName::Address { segment: 0, bus: 0, device: 4, function: 0 };
    let alias = Guest { devices: vec![alias], ..of() };
    let alias = served(Policy::Eli, "virtio-assigned-too", false, [alias]);
    let words = vec!["00:04.0", "first", "for disks", "nvme0"];
    let alias = Case { expect: Expect::Refused(words), log: Vec::new(), ..alias };
    [far, alias]
}

fn served<const N: usize>(policy: Policy, test: &str, quick: bool, guests: [Guest; N]) -> Case {
    let short = virtio::short(test);
    let case = case(format!("virtio/nvme-{}-{short}", policy.label()), quick, guests);
    let log = vec!["nvme0 (00:04.0) is shut down"];
    Case { sidecores: 1, machine: Special::Parts, log, ..case }
}

/// The same VM with its disk on the controller, in the part of this number.
pub fn on_part(mut guest: Guest, number: usize) -> Guest {
    guest.options = OPTIONS[number];
    place(&mut guest, nvme(0), OFFSETS[number]);
    guest
}

fn place(guest: &mut Guest, device: DeviceName, offset: u64) {
    for disk in &mut guest.disks {
        *disk = Disk { backing: Backing::Part(Part { device, offset }), ..disk.clone() };
    }
}

/// What stands in a word of a sector, as the kernel's `virtio::word` has it.
fn word(sector: u64, index: u64, seed: u64) -> u64 {
    (sector << 8 | index).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ seed
}

/// What is wrong with the namespace at the end: each part in which a VM's load was must hold what
/// that wrote last, and what is nobody's must be zero.
pub fn complaints(case: &Case, outcome: &Outcome) -> Vec<String> {
    /// As the kernel's `virtio_load` has them; the seed is that of the last round of writes.
    const REGION: u64 = 1024;
    const SEED: u64 = 0xB10C_5EED + 9;
    let mut wrong = Vec::new();
    if case.machine != Special::Parts || case.expect != Expect::Ends {
        return wrong;
    }
    let words: Vec<u64> =
        outcome.disk.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
    let mut of_guests = Vec::new();
    for guest in &case.guests {
        let of_disk = guest.disks.first().and_then(Disk::part).map(|(part, _)| part.offset);
        let at = |offset| OFFSETS.iter().position(|at| *at == offset);
        let Some(number) = of_disk.and_then(at) else { continue };
        let first = OFFSETS[number] / 8;
        of_guests.push(first..first + PART / 8);
        if guest.tests != "virtio-load" {
            continue;
        }
        let differs = |at: &u64| {
            let wanted = word(at / 64, at % 64, SEED ^ PATTERNS[number]);
            words.get((first + at) as usize) != Some(&wanted)
        };
        let bad = (0..REGION * 64).filter(differs).count();
        if bad > 0 {
            wrong.push(format!("{bad} words of part {number} aren't what its VM wrote"));
        }
    }
    let nobodys = |at: &usize| !of_guests.iter().any(|part| part.contains(&(*at as u64)));
    let strange = (0..words.len()).filter(nobodys).filter(|at| words[*at] != 0).count();
    if strange > 0 {
        wrong.push(format!("{strange} words outside of the VMs' parts were written"));
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::ServedDevice;

    #[test]
    fn options_fit_the_parts() {
        for (options, pattern) in OPTIONS.iter().zip(PATTERNS) {
            assert!(options.ends_with(&format!(" pattern={pattern}")));
            assert!(options.starts_with(&format!("sectors={} ", virtio::SECTORS)));
        }
        assert!(LIMITED.starts_with(OPTIONS[0]));
        assert!(OFFSETS.iter().all(|offset| offset + PART <= BYTES));
    }
    #[test]
    fn what_linux_verified_must_have_been_served_without_kicks() {
        let complaints = |served: Served| {
            let mut vm = VmReport::default();
            vm.paravirtual.see(ServedDevice::Disk(0), 0, served);
            let mut wrong = Vec::new();
            reported(&linux(Policy::Direct, 0), &vm, &mut wrong);
            wrong.len()
        };
        let good =
            Served { completed: 8192, bytes: 2 * PART, calls: 1, kicks: 0, ..Served::default() };
        assert_eq!(complaints(good), 0);
        assert_eq!(complaints(Served { completed: 8191, ..good }), 1);
        assert_eq!(complaints(Served { bytes: PART, ..good }), 1);
        assert_eq!(complaints(Served { calls: 8193, ..good }), 1);
        assert_eq!(complaints(Served { calls: 0, ..good }), 1);
        assert_eq!(complaints(Served { kicks: 1, ..good }), 1);
    }
}
