//! Memory as the hypervisor leaves it, and each word of it changed.

use super::*;
use crate::vcpu::Vcpu;
use crate::vcpu::tests::{HARDWARE, MAPS, QEMU, setup, vcpu};
use crate::{Features, Maps};
use std::collections::BTreeMap;
use vendor::audit::Outline as _;
use zerocopy::IntoBytes;

const VMCB: u64 = 0x10_0000;
const PM_TIMER: Option<u16> = Some(0x608);

/// Words by address.
type Words = BTreeMap<u64, u64>;

fn put(words: &mut Words, at: u64, bytes: &[u8]) {
    for (i, word) in bytes.chunks_exact(8).enumerate() {
        words.insert(at + i as u64 * 8, u64::from_le_bytes(word.try_into().unwrap()));
    }
}

/// The maps of a vCPU, as they are filled.
fn maps(setup: &Setup, completions_exit: bool) -> Words {
    let mut words = Words::new();
    let Maps { msrs, ports } = setup.maps;
    for (map, at) in Map::ALL.into_iter().zip(msrs) {
        let mut bytes = [0; maps::MSR_BYTES];
        maps::fill_msrs(&mut bytes, map.open(completions_exit, setup.shared));
        put(&mut words, at, &bytes);
    }
    let mut bytes = [0; maps::PORT_BYTES];
    maps::fill_ports(&mut bytes, PM_TIMER);
    put(&mut words, ports, &bytes);
    words
}

/// The finding in the control block, if there is one.
pub fn block(cpu: &Vcpu, setup: &Setup, takes: Mode) -> Result<(), Finding> {
    let mut words = Words::new();
    put(&mut words, VMCB, cpu.vmcb.as_bytes());
    Outline::new(VMCB, *setup, takes, false, PM_TIMER).audit(0, |at| words[&at])
}

#[test]
fn each_map_is_right_as_filled_and_wrong_with_any_bit_changed() {
    for (completions_exit, shared) in [(false, false), (true, false), (false, true)] {
        let setup = Setup { shared, ..setup(HARDWARE) };
        let outline = Outline::new(VMCB, setup, Mode::Eli, completions_exit, PM_TIMER);
        let right = maps(&setup, completions_exit);
        assert_eq!(outline.parts(), 8, "the block, the ports, six maps of MSRs");
        for part in 1..outline.parts() {
            assert_eq!(outline.audit(part, |at| right[&at]), Ok(()), "{part}");
        }
        let found = |part, at: u64, bit: usize| {
            let changed = |a| right[&a] ^ if a == at { 1 << bit } else { 0 };
            outline.audit(part, changed).unwrap_err()
        };
        for (map, at) in (2..).zip(MAPS.msrs) {
            // APIC_BASE, writes; EFER, reads; a register that is open already.
            let msr = |msr, write, open| Finding::Msr { map: at, msr, write, open };
            assert_eq!(found(map, at, 0x1B * 2 + 1), msr(0x1B, true, true));
            assert_eq!(found(map, at + 0x820, 0x80 * 2 % 64), msr(0xC000_0080, false, true));
            assert_eq!(found(map, at + 0x820, 0x81 * 2 % 64), msr(0xC000_0081, false, false));
            assert_eq!(found(map, at + 0x1000, 1), msr(0xC001_0000, true, true));
            assert!(matches!(found(map, at + 0x1FF8, 63), Finding::Msr { open: true, .. }));
        }
        let port = |port, open| Finding::Port { map: MAPS.ports, port, open };
        assert_eq!(found(1, MAPS.ports + 0xC0, 4), port(0x604, true));
        assert_eq!(found(1, MAPS.ports + 0xC0, 11), port(0x60B, false));
        assert_eq!(found(1, MAPS.ports + 0x2000 - 8, 63), port(0xFFFF, true));
    }
}

#[test]
fn each_bit_that_must_be_is_missed() {
    for (features, hides_gates) in [(HARDWARE, false), (HARDWARE, true), (QEMU, true)] {
        let setup = Setup { hides_gates, ..setup(features) };
        let cpu = vcpu(&setup);
        assert_eq!(block(&cpu, &setup, Mode::Injection), Ok(()));
        let must = setup.exceptions();
        for bit in (0..32).filter(|bit| must >> bit & 1 != 0) {
            cpu.vmcb.intercept_exceptions ^= 1 << bit;
            assert!(block(&cpu, &setup, Mode::Injection).is_err(), "exception {bit}");
            cpu.vmcb.intercept_exceptions ^= 1 << bit;
        }
        // INTR is one where it never takes interrupts itself.
        for bit in (0..32).filter(|bit| (ALWAYS_MISC1 | misc1::INTR) >> bit & 1 != 0) {
            cpu.vmcb.intercept_misc1 ^= 1 << bit;
            assert!(block(&cpu, &setup, Mode::Injection).is_err(), "word 3, bit {bit}");
            cpu.vmcb.intercept_misc1 ^= 1 << bit;
        }
        for bit in (0..32).filter(|bit| ALWAYS_MISC2 >> bit & 1 != 0) {
            cpu.vmcb.intercept_misc2 ^= 1 << bit;
            assert!(block(&cpu, &setup, Mode::Injection).is_err(), "word 4, bit {bit}");
            cpu.vmcb.intercept_misc2 ^= 1 << bit;
        }
        assert_eq!(block(&cpu, &setup, Mode::Injection), Ok(()));
    }
}

#[test]
fn each_other_field_counts() {
    type Change = fn(&mut Vmcb);
    let changes: [(&str, Change); 12] = [
        ("ports", |v| v.iopm_base += 0x1000),
        ("MSRs of ELI mode", |v| v.msrpm_base = MAPS.msrs[1]),
        ("MSRs of passthrough mode", |v| v.msrpm_base = MAPS.msrs[2]),
        ("other MSRs", |v| v.msrpm_base += 8),
        ("asid", |v| v.asid = 4),
        ("no nested paging", |v| v.nested_control = 0),
        ("encryption", |v| v.nested_control |= 2),
        ("nested tables", |v| v.nested_cr3 += 0x1000),
        ("VMLOAD by the guest", |v| v.other_virtualization = 2),
        ("AVIC", |v| v.int_ctl |= 1 << 31),
        ("virtual GIF", |v| v.int_ctl |= 1 << 25),
        ("interrupts by the guest's IF", |v| v.int_ctl &= !int_ctl::V_INTR_MASKING),
    ];
    let setup = setup(HARDWARE);
    for (what, change) in changes {
        let cpu = vcpu(&setup);
        change(cpu.vmcb);
        assert!(block(&cpu, &setup, Mode::Passthrough).is_err(), "{what}");
    }
    let mut cpu = vcpu(&setup);
    cpu.show_x2apic(Mode::Injection, false);
    assert_eq!(block(&cpu, &setup, Mode::Passthrough), Ok(()));
}

#[test]
fn who_takes_interrupts_itself_must_be_one_that_may() {
    let dedicated = setup(HARDWARE);
    let mut cpu = vcpu(&dedicated);
    cpu.set_exitless(Mode::Passthrough);
    assert_eq!(block(&cpu, &dedicated, Mode::Passthrough), Ok(()));
    cpu.open_timer(Mode::Passthrough, false);
    assert_eq!(block(&cpu, &dedicated, Mode::Passthrough), Ok(()));
    assert!(block(&cpu, &dedicated, Mode::Injection).is_err());
    assert!(block(&cpu, &dedicated, Mode::Eli).is_err());
    cpu.vmcb.int_ctl |= int_ctl::V_INTR_MASKING;
    assert!(block(&cpu, &dedicated, Mode::Passthrough).is_err());

    // Through a shadow IDT: LIDT exits.
    let mut cpu = vcpu(&dedicated);
    cpu.set_exitless(Mode::Eli);
    assert!(block(&cpu, &dedicated, Mode::Eli).is_err());
    cpu.watch_idt(true);
    assert_eq!(block(&cpu, &dedicated, Mode::Eli), Ok(()));
    assert!(block(&cpu, &dedicated, Mode::Passthrough).is_err());
    cpu.lend_timer(Mode::Eli, true);
    assert_eq!(block(&cpu, &dedicated, Mode::Eli), Ok(()));
}

/// CLGI and STGI, VMLOAD and VMSAVE.
#[test]
fn what_the_cpu_keeps_is_open_to_one_that_runs_guests_of_its_own() {
    let features = Features { virtual_gif: true, virtual_loads: true, ..HARDWARE };
    let setup = setup(features);
    let look = |cpu: &Vcpu, nests: bool, takes| {
        let mut words = Words::new();
        put(&mut words, VMCB, cpu.vmcb.as_bytes());
        let outline = Outline::new(VMCB, setup, takes, false, PM_TIMER);
        let inner = Inner { vmcb: 0, asid: 2, maps: (0, 0), frames: (0, 0), nested_root: 0 };
        let outline = if nests { outline.with_inner(inner) } else { outline };
        outline.audit(0, |at| words[&at]).is_ok()
    };
    let mut cpu = vcpu(&setup);
    cpu.open_loads(true);
    assert!(look(&cpu, true, Mode::Passthrough) && !look(&cpu, false, Mode::Passthrough));
    cpu.open_loads(false);
    cpu.set_exitless(Mode::Passthrough);
    cpu.keep_flag();
    cpu.vmcb.int_ctl |= int_ctl::V_GIF;
    assert!(look(&cpu, true, Mode::Passthrough) && !look(&cpu, false, Mode::Passthrough));
    assert!(!look(&cpu, true, Mode::Injection), "it never takes interrupts itself");
    type Change = fn(&mut Vmcb);
    let changes: [(&str, Change); 6] = [
        ("interrupts don't exit", |v| v.intercept_misc1 &= !misc1::INTR),
        ("masked by the host's IF", |v| v.int_ctl |= int_ctl::V_INTR_MASKING),
        ("VMLOAD is open", |v| v.intercept_misc2 &= !4),
        ("XSETBV is open", |v| v.intercept_misc2 &= !(1 << 13)),
        ("virtual NMI", |v| v.int_ctl |= 1 << 26),
        ("branches are recorded", |v| v.other_virtualization = 1),
    ];
    for (what, change) in changes {
        change(cpu.vmcb);
        assert!(!look(&cpu, true, Mode::Passthrough), "{what}");
        cpu.take_flag();
        cpu.open_loads(false);
        cpu.set_exitless(Mode::Passthrough);
        cpu.vmcb.intercept_misc2 |= ALWAYS_MISC2;
        cpu.vmcb.int_ctl &= !int_ctl::VIRTUALIZED;
        assert!(look(&cpu, true, Mode::Passthrough), "{what}: mended");
        cpu.keep_flag();
    }
}

#[test]
fn a_cut_limit_is_cut_and_watched() {
    let shared = Setup { shared: true, ..setup(HARDWARE) };
    let mut cpu = vcpu(&shared);
    cpu.set_exitless(Mode::Eli);
    assert_eq!(block(&cpu, &shared, Mode::Eli), Ok(()));
    cpu.vmcb.idtr.limit = CUT + 1;
    let long = block(&cpu, &shared, Mode::Eli);
    assert!(matches!(long, Err(Finding::Control { at: 0x480, .. })), "{long:?}");
    cpu.vmcb.idtr.limit = CUT;
    for bit in [misc1::LIDT, misc1::SIDT] {
        cpu.vmcb.intercept_misc1 ^= bit;
        assert!(block(&cpu, &shared, Mode::Eli).is_err());
        cpu.vmcb.intercept_misc1 ^= bit;
    }
    cpu.vmcb.intercept_exceptions ^= 1 << GENERAL_PROTECTION;
    assert!(block(&cpu, &shared, Mode::Eli).is_err());
    // In injection mode the limit is the guest's own.
    cpu.vmcb.intercept_exceptions ^= 1 << GENERAL_PROTECTION;
    cpu.set_injection(0);
    cpu.vmcb.idtr.limit = 0xFFFF;
    assert_eq!(block(&cpu, &shared, Mode::Eli), Ok(()));
}

#[test]
fn a_bit_of_a_map_has_its_register_back() {
    for msr in [0, 0x1B, 0x1FFF, 0xC000_0000, 0xC000_1FFF, 0xC001_0000, 0xC001_1FFF] {
        let bit = maps::msr_bit(msr).unwrap();
        assert_eq!((maps::msr_of(bit), maps::msr_of(bit + 1)), ((msr, false), (msr, true)));
    }
}
