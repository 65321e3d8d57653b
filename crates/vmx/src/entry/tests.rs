//! What is built passes the model, whatever starts and whatever is raised.

mod rules;

use super::*;
use crate::area::tests::Model;
use crate::capabilities::tests::{self as capabilities_tests, capabilities};
use crate::field::Segment;
use crate::start::rights::{BIG, PRESENT, UNUSABLE};
use crate::start::{self, Parts};
use crate::{Controls, Host};
use delivery::{Event, EventKind};
use proptest::prelude::*;
use vendor::{PAT_AT_RESET, Start};

const HOST: Host = Host {
    control: [0x8005_0033, 0x1000, 0x4_2020],
    efer: 0xD00,
    pat: PAT_AT_RESET,
    selectors: [0x08, 0x18],
    bases: [0, 0x20_0000],
    task: 0x20_1000,
    tables: [0x20_2000, 0x20_3000],
    rip: 0x20_4000,
};

const PARTS: Parts = Parts {
    nested_root: 0x10_0000,
    vpid: 1,
    ports: [0x10_1000, 0x10_2000],
    msrs: 0x10_3000,
    virtual_apic: 0x10_4000,
};

const LONG: Start = Start::Kernel {
    rip: 0x10_0000,
    page_tables: Some(0x5000),
    gdt: (0x6000, 0x27),
    selectors: (8, 16),
    registers: (0, 0, 0),
};
const FLAT: Start = Start::Kernel {
    rip: 0x10_0000,
    page_tables: None,
    gdt: (0x6000, 0x27),
    selectors: (8, 16),
    registers: (0, 0, 0),
};
const REAL: Start = Start::StartUp { page: 0x9A };

/// A vCPU at its start.
fn built(start: Start) -> Model {
    let mut area = Model::default();
    let can = capabilities();
    let made = Controls::fit(&can).unwrap();
    // Of a start-up, what a reset has left.
    for start in [LONG, start] {
        start::set_up(&mut area, &can, &made, &PARTS);
        start::reset(&mut area, &can, start);
    }
    HOST.write(&mut area);
    area
}

fn checked(area: &Model) -> Result<(), Refusal> {
    check(area, &capabilities())
}

/// What is said of `start` with these fields, by its field.
fn refused(start: Start, changes: &[(Field, u64)]) -> Option<Field> {
    let mut area = built(start);
    changes.iter().for_each(|(field, value)| area.write(*field, *value));
    checked(&area).err().map(|refusal| refusal.field)
}

fn any_start() -> impl Strategy<Value = Start> {
    let registers = (0, 0, 0);
    let kernel = (any::<u32>(), any::<Option<u16>>(), any::<(u32, u16)>(), any::<(u16, u16)>());
    let kernel = kernel.prop_map(move |(rip, tables, (gdt, limit), (code, data))| Start::Kernel {
        rip: rip.into(),
        page_tables: tables.map(|page| u64::from(page) << 12),
        gdt: (gdt.into(), limit),
        selectors: (code & !7, data & !7),
        registers,
    });
    prop_oneof![kernel, any::<u8>().prop_map(|page| Start::StartUp { page })]
}

proptest! {
    #[test]
    fn what_is_built_is_entered(start in any_start(), windows: [bool; 5]) {
        let mut area = built(start);
        prop_assert_eq!(checked(&area), Ok(()));
        // Modes, and what is waited for.
        for (on, (field, bit)) in windows.into_iter().zip([
            (field::PIN_CONTROLS, pin::EXTERNAL_INTERRUPT),
            (field::PIN_CONTROLS, pin::PREEMPTION_TIMER),
            (field::PRIMARY_CONTROLS, primary::INTERRUPT_WINDOW),
            (field::PRIMARY_CONTROLS, primary::NMI_WINDOW | primary::HLT),
            (field::SECONDARY_CONTROLS, secondary::DESCRIPTOR_TABLES),
        ]) {
            let word = area.read(field);
            area.write(field, if on { word | u64::from(bit) } else { word });
        }
        prop_assert_eq!(checked(&area), Ok(()));
    }

    /// An exception has its error code in protected mode, and an interrupt comes to who lets it in.
    #[test]
    fn what_is_raised_is_entered(
        long: bool, vector: u8, kind in 0..3u32, code: u16, asleep: bool
    ) {
        let start = if long { LONG } else { FLAT };
        let mut area = built(start);
        let event = match kind {
            0 => Event::interrupt(vector),
            1 => Event::nmi(),
            _ => {
                let vector = vector & 31;
                let code = matches!(vector, 8 | 10..=14 | 17).then_some(code.into());
                Event::exception(vector, code)
            }
        };
        let delivered = Delivered::new(event, 0);
        delivered.raise(&mut area);
        let closed = (kind == 0).then_some(field::GUEST_RFLAGS);
        prop_assert_eq!(checked(&area).err().map(|refusal| refusal.field), closed);
        area.write(field::GUEST_RFLAGS, 0x202);
        prop_assert_eq!(checked(&area), Ok(()));
        if asleep {
            area.write(field::GUEST_ACTIVITY, 1);
            let wakes = kind < 2 || matches!(vector & 31, 1 | 18);
            let field = (!wakes).then_some(field::GUEST_ACTIVITY);
            prop_assert_eq!(checked(&area).err().map(|refusal| refusal.field), field);
        }
    }

    /// Junk is refused by a field and what is in it, and never a panic.
    #[test]
    fn junk_is_looked_at(values in prop::collection::vec(any::<u64>(), field::ALL.len())) {
        let mut area = Model::default();
        for ((field, _), value) in field::ALL.iter().zip(values) {
            area.write(*field, value & field.mask());
        }
        let refusal = checked(&area).unwrap_err();
        prop_assert_eq!(refusal.value, area.read(refusal.field));
    }
}
