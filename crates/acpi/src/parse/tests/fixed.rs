//! The FADT, and which of several tables counts.

use super::*;

/// An FADT of so many bytes, with these in it.
fn fadt(length: usize, fields: &[(usize, &[u8])]) -> Vec<u8> {
    let mut body = vec![0; length - 36];
    for (at, bytes) in fields {
        body[at - 36..at - 36 + bytes.len()].copy_from_slice(bytes);
    }
    table(b"FACP", &body)
}

fn found(fadt: Vec<u8>) -> Machine {
    probe(&machine(&[madt(&ONE_CPU), fadt]), RSDP_AT).unwrap()
}

/// A generic address: space, width, and the address from its fourth byte on.
fn generic(space: u8, address: u64) -> [u8; 12] {
    let mut bytes = [space, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    bytes[4..].copy_from_slice(&address.to_le_bytes());
    bytes
}

const FLAGS: usize = 112;
const TIMER: usize = 76;
const TIMER_LENGTH: usize = 91;
const RESET: usize = 116;
const RESET_VALUE: usize = 128;
const EXTENDED_TIMER: usize = 208;

/// The port is opened to guests: it had better be the right one.
#[test]
fn the_timer_s_port_is_the_extended_one_if_that_is_a_port() {
    let legacy: [(usize, &[u8]); 2] = [(TIMER, &[0x08, 0x06, 0, 0]), (TIMER_LENGTH, &[4])];
    let with = |length, address: [u8; 12]| {
        // As much of it as the table has.
        let at = EXTENDED_TIMER.min(length);
        let part = &address[..address.len().min(length - at)];
        found(fadt(length, &[legacy[0], legacy[1], (at, part)])).pm_timer.map(|timer| timer.port)
    };
    assert_eq!(with(244, generic(1, 0x1234)), Some(0x1234));
    assert_eq!(with(220, generic(1, 0xFFFF)), Some(0xFFFF), "the table ends with it");
    // In memory, beyond the ports, or nowhere: then the old one.
    assert_eq!(with(244, generic(0, 0x1234)), Some(0x608));
    assert_eq!(with(244, generic(2, 0x1234)), Some(0x608));
    assert_eq!(with(244, generic(1, 0x1_0000)), Some(0x608));
    assert_eq!(with(244, generic(1, 0)), Some(0x608));
    // The table ends before it.
    assert_eq!(with(219, generic(1, 0x1234)), Some(0x608));
    assert_eq!(with(129, generic(1, 0x1234)), Some(0x608));
}

#[test]
fn a_timer_where_a_pc_has_other_things_is_none() {
    let port = |port: u64| {
        let timer = generic(1, port);
        found(fadt(244, &[(EXTENDED_TIMER, &timer)])).pm_timer.map(|timer| timer.port)
    };
    for other in [0x20, 0x60, 0x64, 0x92, 0xFF, 0xCF5, 0xCF8, 0xCF9, 0xCFC, 0xCFF] {
        assert_eq!(port(other), None, "{other:#x}");
    }
    assert_eq!([0x100, 0xCF4, 0xD00].map(port), [Some(0x100), Some(0xCF4), Some(0xD00)]);
}

#[test]
fn the_old_timer_s_port_must_be_one_of_four_bytes() {
    let port = |port: u32, length: u8| {
        let fields: [(usize, &[u8]); 2] = [(TIMER, &port.to_le_bytes()), (TIMER_LENGTH, &[length])];
        found(fadt(132, &fields)).pm_timer
    };
    assert_eq!(port(0x608, 4), Some(PmTimer { port: 0x608, bits32: false }));
    assert_eq!(port(0xFFFF, 4), Some(PmTimer { port: 0xFFFF, bits32: false }));
    assert_eq!(port(0x608, 0), None);
    assert_eq!(port(0x608, 3), None);
    assert_eq!(port(0, 4), None);
    assert_eq!(port(0x1_0608, 4), None);
}

#[test]
fn flags_say_how_wide_the_timer_is_and_whether_there_is_a_reset_register() {
    let with = |flags: u32, reset: [u8; 12]| {
        let fields: [(usize, &[u8]); 5] = [
            (TIMER, &[0x08, 0x06, 0, 0]),
            (TIMER_LENGTH, &[4]),
            (FLAGS, &flags.to_le_bytes()),
            (RESET, &reset),
            (RESET_VALUE, &[0x0E]),
        ];
        let machine = found(fadt(132, &fields));
        (machine.pm_timer.map(|timer| timer.bits32), machine.reset)
    };
    let port = generic(1, 0xCF9);
    let reset = Some(Reset { register: ResetRegister::Port(0xCF9), value: 0x0E });
    assert_eq!(with(1 << 8, port), (Some(true), None));
    assert_eq!(with(1 << 10, port), (Some(false), reset));
    assert_eq!(with(1 << 8 | 1 << 10, port), (Some(true), reset));
    assert_eq!(with(!(1 << 8 | 1 << 10), port), (Some(false), None));
    let register = |space, address| with(1 << 10, generic(space, address)).1.map(|r| r.register);
    assert_eq!(register(0, 0xFED0_0000), Some(ResetRegister::Memory(0xFED0_0000)));
    let config = ResetRegister::Config { device: 31, function: 7, offset: 0xFF };
    assert_eq!(register(2, 0x1F_0007_00FF), Some(config));
    for wrong in [0x20_0007_00FF, 0x1F_0008_00FF, 0x1F_0007_0100, 0x1_001F_0007_00FF] {
        assert_eq!(register(2, wrong), None, "{wrong:#x}");
    }
    for (space, address) in [(0, 0), (1, 0), (1, 0x1_0000), (3, 0xCF9), (0x7F, 0xCF9)] {
        assert_eq!(register(space, address), None, "{space} {address:#x}");
    }
}

/// Firmware that lists a table twice means the first.
#[test]
fn of_two_tables_the_first_counts() {
    let timer = |port: u8| fadt(132, &[(TIMER, &[port, 6, 0, 0]), (TIMER_LENGTH, &[4])]);
    let ecam = |base: u8| {
        let entry = [0, 0, 0, base, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0];
        table(b"MCFG", &[&[0; 8][..], &entry].concat())
    };
    let dmar = |width: u8| table(b"DMAR", &[width, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let ivrs = |base: u64| {
        let unit = [&[0x10, 0, 24, 0, 2, 0, 0x40, 0][..], &base.to_le_bytes(), &[0; 8]].concat();
        table(b"IVRS", &[&[0; 12][..], &unit].concat())
    };
    let other_cpu = [0, 8, 1, 1, 1, 0, 0, 0];
    let tables = [
        madt(&ONE_CPU),
        madt(&other_cpu),
        timer(0x08),
        timer(0x0C),
        ecam(0xB0),
        ecam(0xC0),
        dmar(38),
        dmar(45),
        ivrs(0xFD20_0000),
        ivrs(0xFD30_0000),
    ];
    let found = probe(&machine(&tables), RSDP_AT).unwrap();
    assert_eq!(found.cpus[..], [Cpu { apic_id: 0, acpi_uid: 0 }]);
    assert_eq!(found.pm_timer.map(|timer| timer.port), Some(0x608));
    let ecams: Vec<_> = found.ecams.iter().map(|ecam| (ecam.base, ecam.bus_end)).collect();
    assert_eq!(ecams, [(0xB000_0000, 9)]);
    assert_eq!(found.dmar.map(|dmar| dmar.host_address_width), Some(39));
    assert_eq!(found.ivrs.map(|ivrs| ivrs.hardware[0].base), Some(0xFD20_0000));
}

#[test]
fn flags_of_the_dmar_are_told_apart() {
    let flags = |flags: u8| {
        let dmar = table(b"DMAR", &[38, flags, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let found = probe(&machine(&[madt(&ONE_CPU), dmar]), RSDP_AT).unwrap().dmar.unwrap();
        (found.interrupt_remapping, found.x2apic_opt_out)
    };
    assert_eq!(flags(0), (false, false));
    assert_eq!(flags(1), (true, false));
    // Without interrupt remapping the second has no meaning (VT-d 8.1).
    assert_eq!(flags(2), (false, false));
    assert_eq!(flags(3), (true, true));
    assert_eq!(flags(0xFC), (false, false));
}

/// Since ACPI 2.0 the root table's entries have 64 bits, and tables may lie above 4 GiB.
#[test]
fn tables_above_4_gib_are_found_by_the_xsdt() {
    const HIGH: u64 = 0x12_3456_7000;
    let xsdt_at = HIGH + 0x1000;
    let mut rsdp = b"RSD PTR \0BOCHS \x02".to_vec();
    rsdp.extend([0; 4]);
    fix_sum(&mut rsdp, 8);
    rsdp.extend(36u32.to_le_bytes());
    rsdp.extend(xsdt_at.to_le_bytes());
    rsdp.extend([0; 4]);
    fix_sum(&mut rsdp, 32);
    let xsdt = table(b"XSDT", &[0u64.to_le_bytes(), HIGH.to_le_bytes()].concat());
    let pieces = vec![(RSDP_AT, rsdp.clone()), (xsdt_at, xsdt), (HIGH, madt(&ONE_CPU))];
    let found = probe(&Pieces(pieces), RSDP_AT).unwrap();
    assert_eq!(found.cpus[..], [Cpu { apic_id: 0, acpi_uid: 0 }]);
    // Its second sum counts, too.
    rsdp[33] ^= 1;
    let error = probe(&Pieces(vec![(RSDP_AT, rsdp)]), RSDP_AT).unwrap_err();
    assert!(matches!(error, Error::Checksum { table: "RSDP", length: 36, .. }), "{error}");
}
