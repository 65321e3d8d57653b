//! The virtual local APIC against two sets of vectors: no interrupt is lost or made up, whatever
//! the guest writes, and an access that raises #GP has done nothing.
#![no_main]

use arbitrary::Arbitrary;
use delivery::{Core, Destination, LocalApic, VectorSet, WriteEffect, class};
use libfuzzer_sys::fuzz_target;
use std::collections::BTreeSet;

#[derive(Arbitrary, Debug)]
struct Input {
    id: u32,
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
    Matches(u32, u32),
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
    fn requested(&self) -> VectorSet {
        VectorSet::EMPTY
    }
    fn timer_count(&self) -> u32 {
        self.timer_count
    }
}

#[derive(Default)]
struct Model {
    requested: BTreeSet<u8>,
    in_service: BTreeSet<u8>,
}

impl Model {
    fn request(&mut self, apic: &mut LocalApic, vector: u8) {
        apic.request(vector);
        if vector >= 16 {
            self.requested.insert(vector);
        }
    }

    fn deliverable(&self) -> Option<u8> {
        let next = *self.requested.last()?;
        self.in_service.last().is_none_or(|current| class(*current) < class(next)).then_some(next)
    }

    fn check(&self, apic: &LocalApic, core: &Hardware) {
        let shown = |first: u8| {
            VectorSet::from_registers(|i| apic.read(first + i, core).expect("readable") as u32)
        };
        let set =
            |vectors: &BTreeSet<u8>| VectorSet::of(&vectors.iter().copied().collect::<Vec<u8>>());
        assert_eq!(shown(0x10), set(&self.in_service));
        assert_eq!(shown(0x20), set(&self.requested));
        assert_eq!(apic.quiet(), self.requested.is_empty() && self.in_service.is_empty());
        assert_eq!(apic.deliverable(), self.deliverable());
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
    match effect {
        WriteEffect::Completed(vector) => {
            assert_eq!((register, vector), (0x0B, model.in_service.pop_last()));
        }
        WriteEffect::Timer(setup) => {
            assert_eq!(setup.divide & !0b1011, 0);
            assert_eq!(setup.initial.is_some(), register == 0x38);
            assert_eq!(setup.masked, apic.timer_vector().is_none());
        }
        WriteEffect::Interrupt { destination, vector } => {
            assert!(vector >= 16 && matches!(register, 0x30 | 0x3F));
            let id = before[2].expect("readable") as u32;
            if destination.includes(id, id) {
                model.request(apic, vector);
            }
        }
        WriteEffect::Nmi(_) | WriteEffect::Init(_) | WriteEffect::StartUp { .. } => {
            assert_eq!(register, 0x30);
        }
        WriteEffect::None => {}
    }
}

fuzz_target!(|input: Input| {
    let mut apic = LocalApic::new(input.id);
    let mut core = Hardware { task_priority: 0, timer_count: input.timer_count };
    let mut model = Model::default();
    for step in input.steps {
        match step {
            Step::Write(register, value) => {
                write(&mut apic, &mut core, &mut model, register, value);
            }
            Step::Usual(register, value) => {
                write(&mut apic, &mut core, &mut model, register % 0x40, value.into());
            }
            Step::Request(vector) => model.request(&mut apic, vector),
            Step::Adopt(vectors) => {
                let vectors: BTreeSet<u8> = vectors.into_iter().map(|v| v | 0x20).collect();
                apic.adopt_in_service(VectorSet::of(&vectors.iter().copied().collect::<Vec<u8>>()));
                model.in_service.extend(vectors);
            }
            Step::Take => {
                let next = apic.deliverable().filter(|v| class(*v) > class(core.task_priority));
                if let Some(vector) = next {
                    apic.taken(vector);
                    assert!(model.requested.remove(&vector) && model.in_service.insert(vector));
                }
            }
            Step::Matches(id, sender) => {
                assert_eq!(Destination::Physical(id).includes(input.id, sender), id == input.id);
                assert_ne!(
                    Destination::Itself.includes(input.id, sender),
                    Destination::Others.includes(input.id, sender)
                );
                Destination::Logical(id).includes(input.id, sender);
            }
        }
        model.check(&apic, &core);
    }
});
