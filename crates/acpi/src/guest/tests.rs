//! The guest's tables, read back by our own parser, and by `iasl` where it is installed.

use super::*;
use crate::{Cpu, Physical, Reset, ResetRegister, find_rsdp, probe};
use proptest::prelude::*;

/// A guest's memory: the block and nothing else.
struct Block(Vec<u8>);

impl Physical for Block {
    fn read(&self, pa: u64, buf: &mut [u8]) -> bool {
        let from = pa.checked_sub(BASE).and_then(|offset| usize::try_from(offset).ok());
        let found = from.and_then(|from| self.0.get(from..from.checked_add(buf.len())?));
        found.is_some_and(|found| {
            buf.copy_from_slice(found);
            true
        })
    }
}

const ECAM: u32 = 0xE000_0000;

fn table(block: &[u8], signature: &[u8; 4]) -> Vec<u8> {
    let at = (0..block.len()).step_by(16).find(|&at| block[at..].starts_with(signature)).unwrap();
    let length = u32::from_le_bytes(block[at + 4..at + 8].try_into().unwrap());
    block[at..at + length as usize].to_vec()
}

#[test]
fn numbers_of_vcpus_that_can_t_be_described_are_refused() {
    for vcpus in [0, 256, u32::MAX] {
        let error =
            build(&GuestConfig { vcpus, pm_timer: None, configuration_space: ECAM, iommu: None })
                .unwrap_err();
        assert_eq!(error, Error::Vcpus { found: vcpus, most: 255 });
    }
    let text =
        build(&GuestConfig { vcpus: 0, pm_timer: None, configuration_space: ECAM, iommu: None })
            .unwrap_err()
            .to_string();
    assert_eq!(text, "a guest of 0 vCPUs can't be described: 1 to 255 are needed");
}

/// The fields that our parser doesn't read, at their places in the specification (ACPI 5.2.9).
#[test]
fn the_fadt_says_how_to_switch_off() {
    let block =
        build(&GuestConfig { vcpus: 1, pm_timer: None, configuration_space: ECAM, iommu: None })
            .unwrap();
    let fadt = table(&block, b"FACP");
    assert_eq!((fadt.len(), fadt[8]), (276, 6));
    let flags = u32::from_le_bytes(fadt[112..116].try_into().unwrap());
    assert_eq!(flags, 1 << 0 | 1 << 10 | 1 << 12 | 1 << 19 | 1 << 20);
    assert_eq!(fadt[244..256], [1, 8, 0, 1, 0, 6, 0, 0, 0, 0, 0, 0]);
    assert_eq!(fadt[256..268], [1, 8, 0, 1, 1, 6, 0, 0, 0, 0, 0, 0]);
    assert_eq!(fadt[208..220], [0; 12], "no PM timer");
    assert_eq!(fadt[109..111], [0b101, 0], "devices of the PC, and no VGA");
    let dsdt = u64::from_le_bytes(fadt[140..148].try_into().unwrap());
    assert_eq!(block[(dsdt - BASE) as usize..][..4], *b"DSDT");
}

/// `_S5_` as a package of 5, 5, 0, 0 (ACPI 20.2): what a write to the sleep control register holds.
#[test]
fn the_dsdt_names_s5() {
    let dsdt = table(
        &build(&GuestConfig { vcpus: 1, pm_timer: None, configuration_space: ECAM, iommu: None })
            .unwrap(),
        b"DSDT",
    );
    assert_eq!(dsdt[36..49], *b"\x08_S5_\x12\x08\x04\x0A\x05\x0A\x05\0");
    assert_eq!((SLEEP_TYPE_S5 << 2 | SLEEP_ENABLE, SLEEP_ENABLE), (0x34, 0x20));
}

/// What Linux needs of it: the PCI bus with its ports, and the serial port (ACPI 6.4, 19.6.56).
#[test]
fn the_dsdt_names_the_bus_and_the_serial_port() {
    let dsdt = table(
        &build(&GuestConfig { vcpus: 1, pm_timer: None, configuration_space: ECAM, iommu: None })
            .unwrap(),
        b"DSDT",
    );
    let has = |bytes: &[u8]| dsdt.windows(bytes.len()).any(|found| found == bytes);
    // Ids, compressed; ports of 16 bits' decoding, so many; an edge-triggered interrupt.
    assert!(has(b"PCI0") && has(&[0x41, 0xD0, 0x0A, 0x03]));
    assert!(has(&[0x47, 1, 0xF8, 0x0C, 0xF8, 0x0C, 1, 8]), "0xCF8");
    assert!(has(b"COM1") && has(&[0x41, 0xD0, 0x05, 0x01]));
    assert!(has(&[0x47, 1, 0xF8, 0x03, 0xF8, 0x03, 1, 8]), "0x3F8");
    assert!(has(&[0x89, 6, 0, 0x03, 1, 4, 0, 0, 0]), "interrupt 4");
}

/// By which Linux believes the MCFG (PNP0C02, ACPI 6.4, 19.6.83).
#[test]
fn the_dsdt_reserves_configuration_space() {
    let block =
        build(&GuestConfig { vcpus: 1, pm_timer: None, configuration_space: ECAM, iommu: None });
    let dsdt = table(&block.unwrap(), b"DSDT");
    let has = |bytes: &[u8]| dsdt.windows(bytes.len()).any(|found| found == bytes);
    assert!(has(&[0x41, 0xD0, 0x0C, 0x02]));
    assert!(has(&[0x86, 9, 0, 1, 0, 0, 0, 0xE0, 0, 0, 0x10, 0]), "1 MiB from 0xE0000000");
}

/// Linux with `noapic` or `nosmp` calls `\_PIC(0)`, and would otherwise fail to open a port whose
/// interrupt nothing delivers.
#[test]
fn the_serial_port_has_an_interrupt_of_the_ioapic_alone() {
    let dsdt = table(
        &build(&GuestConfig { vcpus: 1, pm_timer: None, configuration_space: ECAM, iommu: None })
            .unwrap(),
        b"DSDT",
    );
    let count = |bytes: &[u8]| dsdt.windows(bytes.len()).filter(|found| *found == bytes).count();
    // Name(PICM, One); Method(_PIC, 1) { Store(Arg0, PICM) }
    assert_eq!(count(b"\x08PICM\x01\x14\x0C_PIC\x01\x70\x68PICM"), 1);
    // IO(Decode16, 0x3F8, 0x3F8, 1, 8); Interrupt(ResourceConsumer, Edge, ActiveHigh, Exclusive)
    // {4}
    let ports = b"\x47\x01\xF8\x03\xF8\x03\x01\x08".as_slice();
    let interrupt = b"\x89\x06\0\x03\x01\x04\0\0\0".as_slice();
    let end = b"\x79\0".as_slice();
    // If (LEqual(PICM, Zero)) { Return(ports alone) } Return(both)
    let polled = [b"\xA0".as_slice(), b"\x16\x93PICM\0\xA4\x11\x0D\x0A\x0A", ports, end].concat();
    let interrupting = [b"\xA4\x11\x16\x0A\x13".as_slice(), ports, interrupt, end].concat();
    assert_eq!(count(&[polled, interrupting].concat()), 1, "{:x?}", &dsdt[dsdt.len() - 80..]);
}

/// By Linux's drivers/acpi/viot.c: the nodes, and that a range leads to an IOMMU's.
#[test]
fn the_viot_puts_the_devices_behind_the_iommu() {
    let of = |iommu| {
        build(&GuestConfig { vcpus: 1, pm_timer: None, configuration_space: ECAM, iommu }).unwrap()
    };
    assert!(!of(None).windows(4).any(|found| found == b"VIOT"));
    let viot = table(&of(Some(Iommu::Virtio(3))), b"VIOT");
    assert_eq!((viot.len(), &viot[36..40]), (88, &[2, 0, 48, 0][..]));
    assert_eq!(viot[48..56], [3, 0, 16, 0, 0, 0, 0x08, 0], "the IOMMU is 00:01.0");
    assert_eq!(viot[64..72], [1, 0, 24, 0, 0x10, 0, 0, 0], "endpoints from 0x10 on");
    assert_eq!(viot[72..82], [0, 0, 0, 0, 0x10, 0, 0x20, 0, 48, 0], "00:02.0 to 00:04.0");
}

const VT_D: Iommu = Iommu::VtD { registers: 0xFED9_0000, width: 48, ioapic: 0xFFF8 };

/// What our own parser of a machine's tables finds in it.
#[test]
fn the_dmar_has_the_bus_and_the_ioapic_behind_one_unit() {
    let block = build(&GuestConfig {
        vcpus: 1,
        pm_timer: None,
        configuration_space: ECAM,
        iommu: Some(VT_D),
    })
    .unwrap();
    let dmar = table(&block, b"DMAR");
    assert_eq!((dmar.len(), &dmar[36..38]), (72, &[47, 1][..]), "48 bits, interrupts remapped");
    assert_eq!(dmar[64..72], [3, 8, 0, 0, 0, 0xFF, 0x1F, 0], "the I/O APIC is ff:1f.0");
    let found = probe(&Block(block), BASE).unwrap().dmar.unwrap();
    let [unit] = &found.units[..] else { panic!("{found:?}") };
    assert_eq!(unit.base, 0xFED9_0000);
}

const AMD_VI: Iommu = Iommu::AmdVi(AmdVi {
    function: 0x02,
    capability: 0x40,
    registers: 0xFED9_0000,
    features: 0x1234_5678_9ABC_DEF0,
    ioapic: 0xA0,
});

/// What our own parser of a machine's tables finds in it.
#[test]
fn the_ivrs_has_the_bus_and_the_ioapic_behind_one_unit() {
    let block = build(&GuestConfig {
        vcpus: 1,
        pm_timer: None,
        configuration_space: ECAM,
        iommu: Some(AMD_VI),
    })
    .unwrap();
    let ivrs = table(&block, b"IVRS");
    assert_eq!((ivrs.len(), &ivrs[48..56]), (104, &[0x11, 0, 56, 0, 2, 0, 0x40, 0][..]));
    assert_eq!(ivrs[72..80], 0x1234_5678_9ABC_DEF0u64.to_le_bytes(), "what it can do");
    let found = probe(&Block(block), BASE).unwrap().ivrs.unwrap();
    let [unit] = &found.hardware[..] else { panic!("{found:?}") };
    assert_eq!((unit.base, unit.function, unit.no_translation), (0xFED9_0000, 2, false));
    assert_eq!(unit.devices.iter().map(|d| d.ids.clone()).collect::<Vec<_>>(), [0..=0xFF]);
    let [ioapic] = &unit.special[..] else { panic!("{unit:?}") };
    assert_eq!((ioapic.kind, ioapic.id), (crate::SpecialKind::IoApic(0), 0xA0));
}

/// An independent reader finds no fault; skipped where there is none.
#[test]
fn iasl_disassembles_every_table() {
    if std::process::Command::new("iasl").arg("-v").output().is_err() {
        return;
    }
    let dir = std::env::temp_dir().join(format!("exitless-acpi-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let pm_timer = Some(PmTimer { port: 0x608, bits32: true });
    let virtio = Some(Iommu::Virtio(2));
    let block =
        build(&GuestConfig { vcpus: 3, pm_timer, configuration_space: ECAM, iommu: virtio })
            .unwrap();
    let other =
        build(&GuestConfig { vcpus: 3, pm_timer, configuration_space: ECAM, iommu: Some(VT_D) })
            .unwrap();
    let third =
        build(&GuestConfig { vcpus: 3, pm_timer, configuration_space: ECAM, iommu: Some(AMD_VI) })
            .unwrap();
    for (name, signature) in [
        ("dsdt", b"DSDT"),
        ("facp", b"FACP"),
        ("apic", b"APIC"),
        ("xsdt", b"XSDT"),
        ("mcfg", b"MCFG"),
        ("viot", b"VIOT"),
        ("dmar", b"DMAR"),
        ("ivrs", b"IVRS"),
    ] {
        let path = dir.join(format!("{name}.aml"));
        let of = match signature {
            b"DMAR" => &other,
            b"IVRS" => &third,
            _ => &block,
        };
        std::fs::write(&path, table(of, signature)).unwrap();
        let run = std::process::Command::new("iasl").arg("-d").arg(&path).output().unwrap();
        let text = String::from_utf8_lossy(&run.stdout).into_owned()
            + &String::from_utf8_lossy(&run.stderr);
        assert!(
            run.status.success() && !text.contains("Error") && !text.contains("Warning"),
            "{text}"
        );
        let source = std::fs::read_to_string(dir.join(format!("{name}.dsl"))).unwrap();
        assert!(!source.contains("Invalid") && !source.contains("Incorrect checksum"), "{source}");
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

proptest! {
    /// Our own parser sees what was asked for.
    #[test]
    fn the_parser_reads_back_what_was_built(
        vcpus in 1..=MAX_VCPUS,
        // Below are the board's own ports.
        port in 0xD00..=u16::MAX,
        bits32: bool,
        timer: bool,
    ) {
        let pm_timer = timer.then_some(PmTimer { port, bits32 });
        let block = build(&GuestConfig { vcpus, pm_timer, configuration_space: ECAM, iommu: None }).unwrap();
        prop_assert!(block.len() <= MAX_BYTES);
        let block = Block(block);
        prop_assert_eq!(find_rsdp(&block), Ok(BASE));
        let found = probe(&block, BASE).unwrap();
        let expected: Vec<_> =
            (0..vcpus).map(|id| Cpu { apic_id: id, acpi_uid: id }).collect();
        prop_assert_eq!(&found.cpus[..], &expected[..]);
        let ioapic = crate::IoApic { id: 0, address: IOAPIC_ADDRESS, gsi_base: 0 };
        prop_assert_eq!(&found.ioapics[..], &[ioapic][..]);
        prop_assert_eq!(found.pm_timer, pm_timer);
        let register = ResetRegister::Port(RESET_PORT);
        prop_assert_eq!(found.reset, Some(Reset { register, value: RESET_VALUE }));
        let bus = crate::Ecam { base: ECAM.into(), segment: 0, bus_start: 0, bus_end: 0 };
        prop_assert_eq!(&found.ecams[..], &[bus][..]);
        prop_assert_eq!((found.dmar, found.ivrs), (None, None));
    }
}
