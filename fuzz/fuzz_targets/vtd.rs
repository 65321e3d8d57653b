//! A VT-d unit, from its registers' answers to what its tables say after any calls: a unit may
//! answer anything and is then refused in a sentence. What an honest one's tables hold is what was
//! asked for, as the look from outside sees it, too; and a table that somebody else wrote to is
//! found out.
#![no_main]

use arbitrary::Arbitrary;
use fuzz::{Frames, one_line};
use iommu::audit::{Cursor, Entry};
use iommu::vtd::{Unit, probe};
use iommu::{Bdf, Delivery, Domain, DomainId, InterruptRoute, Memory, Range, Registers, Remapping};
use libfuzzer_sys::fuzz_target;
use std::{cell::RefCell, collections::HashMap, rc::Rc};

const CAP: u64 = 0x08;
const ECAP: u64 = 0x10;
const GCMD: u32 = 0x18;
const GSTS: u64 = 0x1C;
const IQT: u32 = 0x88;
const IQA: u64 = 0x90;
const IRTA: u64 = 0xB8;

#[derive(Arbitrary, Debug)]
struct Input {
    /// What registers read, besides those that make a unit.
    registers: Vec<(u8, u64)>,
    honest: bool,
    caching: bool,
    coherent: bool,
    steps: Vec<Step>,
    /// An interrupt entry that somebody writes to at the end.
    scribble: Option<(u8, u64, u64)>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Attach(u16, u16, u64, u8),
    Detach(u16),
    Flush(u16, u64, u64),
    Allocate(u16),
    Release(u16),
    Route(u16, u16, u32, u8, bool),
    Block(u16),
    Fault(u64, u64),
    Aim(u16, u16, u32, u8),
    Drain,
}

#[derive(Default)]
struct State {
    registers: HashMap<u64, u64>,
    memory: Frames,
    honest: bool,
    /// Where the unit reads the queue, in bytes.
    head: u64,
    /// Requests that were done with no wait after them yet.
    unwaited: usize,
}

#[derive(Clone, Default)]
struct Model(Rc<RefCell<State>>);

impl Registers for Model {
    fn read32(&mut self, offset: u32) -> u32 {
        let word = Registers::read64(self, offset & !7);
        (word >> (8 * (offset & 4))) as u32
    }

    fn read64(&mut self, offset: u32) -> u64 {
        assert!(offset.is_multiple_of(8) && offset < 32 << 10);
        self.0.borrow().registers.get(&offset.into()).copied().unwrap_or(0)
    }

    fn write32(&mut self, offset: u32, value: u32) {
        let old = Registers::read64(self, offset & !7);
        let shift = 8 * (offset & 4);
        // A bit that is set, or set once, is answered at once; fault records clear what is written.
        let value = match offset {
            GCMD => return self.answer(value),
            0x34 | 0x220.. => 0,
            _ => value,
        };
        Registers::write64(
            self,
            offset & !7,
            old & !(0xFFFF_FFFF << shift) | u64::from(value) << shift,
        );
    }

    fn write64(&mut self, offset: u32, value: u64) {
        self.0.borrow_mut().registers.insert(offset.into(), value);
        if offset == IQT && self.0.borrow().honest {
            self.work();
        }
    }
}

impl Model {
    fn memory(&self) -> Frames {
        self.0.borrow().memory.clone()
    }

    fn answer(&self, value: u32) {
        let mut state = self.0.borrow_mut();
        let once = state.registers.get(&(GSTS & !7)).map_or(0, |w| w >> 32) & (1 << 30 | 1 << 24);
        state.registers.insert(GSTS & !7, (u64::from(value) | once) << 32);
    }

    /// Does what stands in the queue, as soon as the tail is moved.
    fn work(&self) {
        let mut state = self.0.borrow_mut();
        let register = |at: u64| state.registers.get(&at).copied().unwrap_or(0);
        let (base, tail) = (register(IQA) & !0xFFF, register(IQT.into()));
        let mut memory = state.memory.clone();
        while state.head != tail {
            let at = base + state.head;
            let (low, high) = (memory.read64(at), memory.read64(at + 8));
            if low & 0xF == 5 {
                memory.write64(high, low >> 32);
                state.unwaited = 0;
            } else {
                state.unwaited += 1;
            }
            state.head = (state.head + 16) % 0x1000;
        }
    }
}

type Attached = HashMap<Bdf, Domain>;

fn look(
    unit: &mut Unit<Model, Frames>,
    model: &Model,
    routes: &HashMap<u16, InterruptRoute>,
    attached: &Attached,
) -> bool {
    let (outline, mut memory) = (unit.outline(), model.memory());
    let judge = |entry: Entry| Some(move |route| routes.get(&entry.index) == Some(&route));
    let good = |device: Bdf, domain| attached.get(&device) == Some(&domain);
    let interrupts = outline.audit_interrupts(&mut memory, &mut Cursor::default(), 256, judge);
    let contexts = outline.audit_devices(&mut memory, &mut Cursor::default(), 1 << 16, good);
    for finding in [&interrupts, &contexts].into_iter().filter_map(|found| found.as_ref().err()) {
        one_line(finding);
    }
    interrupts == Ok(true) && contexts == Ok(true)
}

fuzz_target!(|input: Input| {
    let model = Model::default();
    {
        let mut state = model.0.borrow_mut();
        state.honest = input.honest;
        let cap = 0xD2_008C_222F_0606 | u64::from(input.caching) << 7;
        let ecap = 0xF0_0F5A | u64::from(input.coherent);
        state.registers = [(0, 0x10), (CAP, cap), (ECAP, ecap)].into();
        if !input.honest {
            let any = input.registers.iter().map(|(at, value)| (u64::from(*at) << 3, *value));
            state.registers.extend(any);
        }
    }
    match probe(&mut model.clone(), Remapping::On) {
        // It answers nothing more, and waiting for it takes its time.
        Ok(found) if !input.honest => {
            assert!(found.register_bytes() <= 32 << 10);
            return assert!((3..6).any(|levels| found.supports_levels(levels)));
        }
        Ok(_) => {}
        Err(refusal) => return one_line(&refusal),
    }
    let mut unit =
        Unit::enable(model.clone(), model.memory(), 256, Remapping::On).expect("an honest unit");
    let mut allocated: Vec<u16> = Vec::new();
    let (mut routes, mut attached) = (HashMap::new(), Attached::new());
    for step in input.steps.iter().take(1024) {
        // Some devices of two buses, often the same.
        let device = |id: u16| Bdf::from_requester_id(id & 0x0107);
        let unwaited = model.0.borrow().unwaited;
        let result = match *step {
            Step::Attach(source, domain, root, levels) => {
                let (id, root) = (DomainId(domain), root << 12 >> 12 & !0xFFF);
                let to = Domain { id, root, levels: levels % 8 };
                let result = unit.attach(device(source), to);
                if result.is_ok() {
                    assert_eq!(attached.insert(device(source), to), None);
                }
                result
            }
            Step::Detach(id) => {
                let result = unit.detach(device(id));
                assert_eq!(result.is_ok(), attached.remove(&device(id)).is_some());
                result
            }
            Step::Flush(domain, address, bytes) => {
                unit.flush(DomainId(domain), Range::Bytes { address, bytes })
            }
            Step::Allocate(count) => unit.allocate_irtes(count % 40).map(|first| {
                let block = first..first + count % 40;
                assert!(block.clone().all(|index| !allocated.contains(&index) && index < 256));
                allocated.extend(block);
            }),
            Step::Release(index) => {
                let index = index % 256;
                let result = unit.release_irtes(index, 1);
                assert_eq!(result.is_ok(), allocated.contains(&index));
                allocated.retain(|other| *other != index);
                routes.remove(&index);
                result
            }
            Step::Route(index, source, destination, vector, nmi) => {
                let delivery = if nmi { Delivery::Nmi } else { Delivery::Fixed(vector) };
                let route = InterruptRoute { source: device(source), destination, delivery };
                let result = unit.set_irte(index % 256, route);
                if result.is_ok() {
                    assert!(allocated.contains(&(index % 256)) && (nmi || vector >= 16));
                    routes.insert(index % 256, route);
                }
                result
            }
            Step::Block(index) => {
                let result = unit.clear_irte(index % 256);
                assert_eq!(result.is_ok(), allocated.contains(&(index % 256)));
                routes.remove(&(index % 256));
                result
            }
            Step::Fault(low, high) => {
                let mut state = model.0.borrow_mut();
                state.registers.insert(0x30, 2 << 32);
                state.registers.insert(0x220, low);
                state.registers.insert(0x228, high);
                drop(state);
                unit.faults(|fault| one_line(&fault));
                Ok(())
            }
            Step::Aim(index, source, destination, vector) => {
                let delivery = Delivery::Fixed(vector);
                let route = InterruptRoute { source: device(source), destination, delivery };
                let result = unit.update_irte(index % 256, route);
                if result.is_ok() {
                    assert!(allocated.contains(&(index % 256)) && vector >= 16);
                    routes.insert(index % 256, route);
                }
                result
            }
            Step::Drain => unit.drain(),
        };
        let after = model.0.borrow().unwaited;
        let left = after <= unwaited || matches!(step, Step::Aim(..));
        assert!(left, "a request of {step:?} isn't waited for");
        if let Err(refusal) = result {
            one_line(&refusal);
        }
    }
    assert!(look(&mut unit, &model, &routes, &attached));
    assert_eq!(unit.drain(), Ok(()));
    assert_eq!(model.0.borrow().unwaited, 0);
    let Some((index, low, high)) = input.scribble else { return };
    let at = (model.0.borrow().registers[&IRTA] & !0xFFF) + u64::from(index) * 16;
    let mut memory = model.memory();
    let (low, high) = (low ^ memory.read64(at), high ^ memory.read64(at + 8));
    let before = routes.get(&index.into()).copied();
    memory.write64(at, low);
    memory.write64(at + 8, high);
    let same = before.is_some_and(|route| unit.irte(index.into()) == Ok(Some(route)));
    assert_eq!(look(&mut unit, &model, &routes, &attached), same || low & 1 == 0);
});
