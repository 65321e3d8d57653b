//! Errors of the machine, put into a CPU's banks by QEMU's monitor: on the host's core, on a
//! guest's, and one that was corrected.
//!
//! QEMU (10.0) has no intercept of machine checks: one that comes while a guest runs is the
//! guest's, where hardware has the host end it. What the banks keep of it is the host's all the
//! same.

use super::case::{Case, Cue, Expect, Guest, Special};
use super::cases::{case, guest, heartbeat, nothing_by_host};
use plan::Policy;

/// VAL, UC, EN and PCC; a machine check is in progress, and could go on where it was.
const UNCORRECTED: &str = "mce 0 1 0xb200000000000000 0x5 0 0";
const PANIC: &str = "machine check, global status 0x5; bank 1, status 0xb200000000000000, \
    uncorrected, the processor's state is corrupt";
/// VAL, UC, EN and ADDRV, on the first guest's core.
const IN_GUEST: &str = "mce 1 1 0xb400000000000000 0x5 0x1234000 0";
const OF_GUEST: &str = "error: core 1: machine check, global status 0x5; bank 1, status \
    0xb400000000000000, uncorrected, address 0x1234000";
/// VAL, EN and ADDRV: no machine check comes of it.
const CORRECTED: &str = "mce 0 2 0x9400000000000135 0 0x1000 0";
const OF_CORRECTED: &str = "warning: core 0: errors that raised no machine check; bank 2, status \
    0x9400000000000135, corrected, address 0x1000";

/// All of them.
pub fn all() -> Vec<Case> {
    let of = |name: &str, guests: Vec<Guest>, when, words| {
        let machine = Special::Monitored { when, words, arguments: &[] };
        Case { machine, guests, ..case(format!("machine-check/{name}"), false, []) }
    };
    let beats = || heartbeat("", Policy::Eli);
    let host = of("host", vec![beats()], "heartbeat 2\n", UNCORRECTED);
    let host = Case { expect: Expect::Panics(PANIC), ..host };
    // The other VM's device interrupts it when the first has had its machine check and has ended.
    let in_guest = |name, policy| {
        let hit = Guest { devices: Vec::new(), ..guest("machine-check", policy) };
        let other = Guest { tests: "heartbeat,delivery", ..guest("delivery", policy) };
        let other = Guest { counts: nothing_by_host(), ..other };
        let case = of(name, vec![hit, other], "waiting for a machine check\n", IN_GUEST);
        Case { log: vec![OF_GUEST], typed: Some(Cue::Ended(1)), ..case }
    };
    let corrected = of("corrected", vec![beats()], "heartbeat 2\n", CORRECTED);
    let typed = Some(Cue::Log("raised no machine check"));
    let corrected = Case { log: vec![OF_CORRECTED], typed, ..corrected };
    let [eli, direct] = [("guest-eli", Policy::Eli), ("guest-direct", Policy::Direct)];
    vec![host, in_guest(eli.0, eli.1), in_guest(direct.0, direct.1), corrected]
}
