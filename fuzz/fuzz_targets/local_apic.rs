//! The virtual local APIC, in every mode, against two sets of vectors: no interrupt is lost or made
//! up, whatever the guest writes, and an access that raises #GP has done nothing.
#![no_main]

use arbitrary::Arbitrary;
use delivery::{
    Addressing, ApicMode, Core, Destination, LocalApic, Refused, VectorSet, WriteEffect, class,
};
use libfuzzer_sys::fuzz_target;
use std::collections::BTreeSet;

#[derive(Arbitrary, Debug)]
struct Input {
    timer_count: u32,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Write(u8, u64),
    /// A register from the busiest part of the space, and a value of 32 bits.
    Usual(u8, u32),
    Request(u8),
    Adopt(Vec<u8>),
    /// The guest takes what it is offered, as far as its task priority lets it in.
    Take,
    Matches(u32, u32, u32),
    /// IA32_APIC_BASE, and the two bits of the mode alone.
    Base(u64),
    Mode(u8),
    /// Offset, size and value of an access to the registers' page.
    Page(u16, u8, u32),
    Init,
}

#[derive(Clone, PartialEq)]
struct Hardware {
    task_priority: u8,
    timer_count: u32,
}

impl Core for Hardware {
    fn task_priority(&self) -> u8 {
        self.task_priority
    }
    fn set_task_priority(&mut self, priority: u8) {
        self.task_priority = priority;
    }
    fn in_service(&self) -> VectorSet {
        VectorSet::EMPTY
    }
    fn requested(&self, _: Option<u8>) -> VectorSet {
        VectorSet::EMPTY
    }
    fn timer_count(&self) -> u32 {
        self.timer_count
    }
}

/// Its id.
const ID: u32 = 3;

#[derive(Default)]
struct Model {
    requested: BTreeSet<u8>,
    in_service: BTreeSet<u8>,
}

impl Model {
    fn request(&mut self, apic: &mut LocalApic, vector: u8) {
        let on = enabled(apic);
        apic.request(vector);
        if on && vector >= 16 {
            self.requested.insert(vector);
        }
    }

    fn deliverable(&self) -> Option<u8> {
        let next = *self.requested.last()?;
        self.in_service.last().is_none_or(|current| class(*current) < class(next)).then_some(next)
    }

    fn check(&self, apic: &LocalApic, core: &Hardware) {
        assert_eq!(apic.quiet(), self.requested.is_empty() && self.in_service.is_empty());
        assert_eq!(apic.deliverable(), self.deliverable());
        assert_eq!(apic.exitless(), apic.mode() == ApicMode::X2apic && enabled(apic));
        assert!(apic.mode() != ApicMode::Disabled || apic.quiet());
        if apic.mode() != ApicMode::X2apic {
            assert!((0..=255).all(|register| apic.read(register, core) == Err(Refused)));
            return;
        }
        let shown = |first: u8| {
            VectorSet::from_registers(|i| apic.read(first + i, core).expect("readable") as u32)
        };
        let set =
            |vectors: &BTreeSet<u8>| VectorSet::of(&vectors.iter().copied().collect::<Vec<u8>>());
        assert_eq!(shown(0x10), set(&self.in_service));
        assert_eq!(shown(0x20), set(&self.requested));
        let priority = apic.read(0x0A, core).expect("readable") as u8;
        let serving = self.in_service.last().copied().unwrap_or(0);
        assert_eq!(class(priority), class(serving).max(class(core.task_priority)));
    }
}

fn registers(apic: &LocalApic, core: &Hardware) -> Vec<Option<u64>> {
    let value = |register: u8| {
        let value = apic.read(register, core).ok();
        assert!(register == 0x30 || value.is_none_or(|value| value >> 32 == 0));
        value
    };
    (0..=255).map(value).collect()
}

fn write(apic: &mut LocalApic, core: &mut Hardware, model: &mut Model, register: u8, value: u64) {
    let (before, old_core) = (registers(apic, core), core.clone());
    let effect = match apic.write(register, value, core) {
        Ok(effect) => effect,
        Err(_) => {
            assert!(registers(apic, core) == before && *core == old_core);
            return;
        }
    };
    follow(apic, model, register, effect);
}

/// Software has enabled it, and so has IA32_APIC_BASE.
fn enabled(apic: &LocalApic) -> bool {
    let core = Hardware { task_priority: 0, timer_count: 0 };
    let svr = match apic.mode() {
        ApicMode::Disabled => 0,
        ApicMode::X2apic => apic.read(0x0F, &core).expect("readable"),
        ApicMode::Xapic => apic.clone().load(0xF0, 4, &core),
    };
    svr & 0x100 != 0
}

fn follow(apic: &mut LocalApic, model: &mut Model, register: u8, effect: WriteEffect) {
    match effect {
        WriteEffect::Completed(vector) => {
            assert_eq!((register, vector), (0x0B, model.in_service.pop_last()));
        }
        WriteEffect::Timer(setup) => {
            assert_eq!(setup.divide & !0b1011, 0);
            assert_eq!(setup.initial.is_some(), register == 0x38);
            assert_eq!(setup.masked, apic.timer_vector().is_none());
        }
        WriteEffect::Interrupt { destination, vector }
        | WriteEffect::OneOf { destination, vector } => {
            assert!(vector >= 16 && matches!(register, 0x30 | 0x3F));
            if destination.includes(ID, ID, apic.addressing()) {
                model.request(apic, vector);
            }
        }
        WriteEffect::Nmi(_) | WriteEffect::Init(_) | WriteEffect::StartUp { .. } => {
            assert_eq!(register, 0x30);
        }
        WriteEffect::None => {}
    }
}

/// The interrupt that tells of errors stays masked: the model doesn't know of it.
fn quiet(register: u8, value: u64) -> u64 {
    if register == 0x37 { value | 1 << 16 } else { value }
}

fn base(apic: &mut LocalApic, model: &mut Model, value: u64) {
    let before = (apic.base(), apic.mode());
    match apic.write_base(value, 40, |page| page >> 20 == 0xFED) {
        Ok(_) => {
            assert!(value >> 10 & 3 != 1 && value >> 40 == 0);
            assert_eq!(apic.base() & !0x100, value & !0x100);
            if apic.mode() == ApicMode::Disabled && before.1 != ApicMode::Disabled {
                *model = Model::default();
            }
        }
        Err(Refused) => assert_eq!((apic.base(), apic.mode()), before),
    }
}

fuzz_target!(|input: Input| {
    let mut apic = LocalApic::new(ID);
    let mut core = Hardware { task_priority: 0, timer_count: input.timer_count };
    let mut model = Model::default();
    for step in input.steps {
        match step {
            Step::Write(register, value) => {
                write(&mut apic, &mut core, &mut model, register, quiet(register, value));
            }
            Step::Usual(register, value) => {
                let register = register % 0x40;
                let value = quiet(register, value.into());
                write(&mut apic, &mut core, &mut model, register, value);
            }
            Step::Request(vector) => model.request(&mut apic, vector),
            Step::Adopt(_) if apic.mode() == ApicMode::Disabled => {}
            Step::Adopt(vectors) => {
                let vectors: BTreeSet<u8> = vectors.into_iter().map(|v| v | 0x20).collect();
                apic.adopt_in_service(VectorSet::of(&vectors.iter().copied().collect::<Vec<u8>>()));
                model.in_service.extend(vectors);
            }
            Step::Take => {
                let next = apic.deliverable().filter(|v| class(*v) > class(core.task_priority));
                if let Some(vector) = next {
                    apic.accepted(vector);
                    assert!(model.requested.remove(&vector) && model.in_service.insert(vector));
                }
            }
            Step::Matches(id, sender, word) => {
                for to in [apic.addressing(), Addressing::from_bits(word)] {
                    let includes = |d: Destination| d.includes(ID, sender, to);
                    assert_eq!(includes(Destination::Physical(id)), id == ID);
                    assert_ne!(includes(Destination::Itself), includes(Destination::Others));
                    includes(Destination::Logical(id));
                    includes(Destination::Logical8(id as u8));
                }
            }
            Step::Base(value) => base(&mut apic, &mut model, value),
            Step::Mode(bits) => {
                base(&mut apic, &mut model, 0xFEE0_0000 | u64::from(bits & 3) << 10)
            }
            Step::Page(offset, size, value) if apic.page().is_some() => {
                let (offset, register) = (offset & 0xFFF, (offset >> 4) as u8);
                let value = quiet(register, value.into());
                let effect = apic.store(offset, size, value, &mut core);
                follow(&mut apic, &mut model, register, effect);
                assert!(apic.load(offset, size, &core) <= u64::from(u32::MAX));
            }
            Step::Page(..) => {}
            Step::Init => {
                let mode = apic.mode();
                apic.init();
                model = Model::default();
                assert_eq!(apic.mode(), mode);
            }
        }
        model.check(&apic, &core);
    }
});
