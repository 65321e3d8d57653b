//! An AMD-Vi unit, from its registers' answers to what its tables say after any calls: a unit may
//! answer anything and is then refused in a sentence, and an honest one may tell any events, and be
//! left in any state. What its tables hold is what was asked for, as the look from outside sees it,
//! too; and a table that somebody else wrote to is found out.
#![no_main]

use arbitrary::Arbitrary;
use fuzz::{Frames, one_line};
use iommu::amdvi::{Unit, fault_pending, probe};
use iommu::audit::{Cursor, Entry};
use iommu::{
    Alias, Bdf, Delivery, Domain, DomainId, Error, Firmware, InterruptRoute, Memory, Range,
    Registers, Remapping,
};
use libfuzzer_sys::fuzz_target;
use std::{cell::RefCell, collections::HashMap, rc::Rc};

const DEVICE_TABLE: u32 = 0x00;
const COMMAND_BASE: u32 = 0x08;
const EVENT_BASE: u32 = 0x10;
const CONTROL: u32 = 0x18;
const EFR: u32 = 0x30;
const COMMAND_TAIL: u32 = 0x2008;
const EVENT_TAIL: u32 = 0x2018;
const STATUS: u32 = 0x2020;
const ENABLE: u64 = 1;
const FRAME: u64 = 0x000F_FFFF_FFFF_F000;
/// x2APIC ids, everything forgotten at once, entries of 128 bits, 5 levels.
const FEATURES: u64 = 0x4C4;
/// An id that no device here has: its entry denies.
const NOBODY: u16 = 0xFFFF;
/// Of a low half: levels of tables; reads and writes are allowed.
const MODE: u64 = 7 << 9;
const READ_WRITE: u64 = 3 << 61;

#[derive(Arbitrary, Debug)]
struct Input {
    /// What registers read, besides those that make a unit.
    registers: Vec<(u16, u64)>,
    honest: bool,
    /// Snooping, and a register for its own interrupt: what it may lack.
    lacks: (bool, bool),
    /// Its control register, if it was left on.
    left: Option<u64>,
    aliases: Vec<(u8, u8)>,
    steps: Vec<Step>,
    /// A half of a device's entry, or one of its interrupt entries, that somebody writes to at the
    /// end.
    scribble: Option<(u8, Option<u8>, bool, u64, u64)>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Attach(u8, u16, u64, u8),
    Detach(u8),
    Flush(u16, u64, u64),
    Allocate(u8, u16),
    Release(u8, u16),
    Route(u8, u16, u32, u8, bool),
    Aim(u8, u16, u32, u8),
    Block(u8, u16),
    Drain,
    Event(u64, u64),
    Tail(u64),
    Overflow,
    Send(u32, Option<u8>),
    Mask(bool),
    Refuse,
}

#[derive(Default)]
struct State {
    registers: HashMap<u32, u64>,
    memory: Frames,
    honest: bool,
    lacks: u64,
    /// Status bits that stay until they are cleared.
    sticky: u64,
    /// Where the unit reads commands, in bytes.
    head: u64,
    /// Requests that were done with no wait after them yet.
    unwaited: usize,
}

#[derive(Clone, Default)]
struct Model(Rc<RefCell<State>>);

impl Registers for Model {
    fn read32(&mut self, offset: u32) -> u32 {
        panic!("32 bits of {offset:#x}")
    }

    fn read64(&mut self, offset: u32) -> u64 {
        assert!(offset.is_multiple_of(8) && offset < 16 << 10);
        let state = self.0.borrow();
        match offset {
            STATUS if state.honest => {
                let control = state.register(CONTROL);
                let runs = (control >> 12 & 1) << 4 | (control >> 2 & 1) << 3;
                state.sticky | if control & ENABLE != 0 { runs } else { 0 }
            }
            _ => state.register(offset),
        }
    }

    fn write32(&mut self, offset: u32, _: u32) {
        panic!("32 bits of {offset:#x}")
    }

    fn write64(&mut self, offset: u32, value: u64) {
        let mut state = self.0.borrow_mut();
        let value = match offset {
            STATUS => {
                state.sticky &= !value;
                return;
            }
            CONTROL => {
                let off = value & ENABLE == 0 && state.register(CONTROL) & ENABLE != 0;
                assert!(!off, "switched off: devices reach everything");
                value & !state.lacks
            }
            COMMAND_BASE => {
                state.head = 0;
                value
            }
            _ => value,
        };
        state.registers.insert(offset, value);
        if offset == COMMAND_TAIL && state.honest {
            state.work();
        }
    }
}

impl State {
    fn register(&self, offset: u32) -> u64 {
        self.registers.get(&offset).copied().unwrap_or(0)
    }

    /// Does what stands in the buffer, as soon as the tail is moved.
    fn work(&mut self) {
        let (base, tail) = (self.register(COMMAND_BASE) & FRAME, self.register(COMMAND_TAIL));
        while self.head != tail {
            let at = base + self.head;
            let (low, high) = (self.memory.read64(at), self.memory.read64(at + 8));
            if low >> 60 == 1 {
                self.memory.write64(low & 0x000F_FFFF_FFFF_FFF8, high);
                self.unwaited = 0;
            } else {
                self.unwaited += 1;
            }
            self.head = (self.head + 16) % 0x1000;
        }
    }

    fn log(&mut self, low: u64, high: u64) {
        let (base, tail) = (self.register(EVENT_BASE) & FRAME, self.register(EVENT_TAIL) & 0xFF0);
        self.memory.write64(base + tail, low);
        self.memory.write64(base + tail + 8, high);
        self.registers.insert(EVENT_TAIL, (tail + 16) % 0x1000);
    }

    /// Address of an id's entry in the device table.
    fn entry(&self, id: u16) -> u64 {
        (self.register(DEVICE_TABLE) & FRAME) + u64::from(id) * 32
    }
}

type Routes = HashMap<(Bdf, u16), InterruptRoute>;
type Attached = HashMap<Bdf, Domain>;

/// Some devices of two buses, often the same.
fn device(n: u8) -> Bdf {
    Bdf::from_requester_id(u16::from(n & 0x83) << 1)
}

fn look(
    unit: &Unit<Model, Frames>,
    memory: &mut Frames,
    routes: &Routes,
    attached: &Attached,
) -> bool {
    let outline = unit.outline();
    let judge = |entry: Entry| {
        let owner = entry.table.expect("each device has a table");
        Some(move |route| routes.get(&(owner, entry.index)) == Some(&route))
    };
    let good = |device: Bdf, domain| attached.get(&device) == Some(&domain);
    let interrupts = outline.audit_interrupts(memory, &mut Cursor::default(), 1 << 16, judge);
    let devices = outline.audit_devices(memory, &mut Cursor::default(), 1 << 16, good);
    for finding in [&interrupts, &devices].into_iter().filter_map(|found| found.as_ref().err()) {
        one_line(finding);
    }
    interrupts == Ok(true) && devices == Ok(true)
}

fuzz_target!(|input: Input| {
    let model = Model::default();
    {
        let mut state = model.0.borrow_mut();
        state.honest = input.honest;
        state.lacks = u64::from(input.lacks.0) << 10 | u64::from(input.lacks.1) << 51;
        let left = input.left.map_or(0, |control| control | ENABLE) & !state.lacks;
        state.registers = [(EFR, FEATURES), (CONTROL, left)].into();
        if !input.honest {
            let any =
                input.registers.iter().map(|(at, value)| (u32::from(at % 0x800) << 3, *value));
            state.registers.extend(any);
        }
    }
    match probe(&mut model.clone(), Remapping::On) {
        // It answers nothing more, and waiting for it takes its time.
        Ok(found) if !input.honest => return assert!(found.supports_levels(4)),
        Ok(_) => {}
        Err(refusal) => return one_line(&refusal),
    }
    let alias = |(device, requester): &(u8, u8)| Alias {
        device: self::device(*device),
        requester: self::device(*requester),
    };
    let aliases = input.aliases.iter().take(16).map(alias).collect();
    let firmware = Firmware { aliases, ..Firmware::default() };
    let mut memory = model.0.borrow().memory.clone();
    let mut unit = Unit::enable(model.clone(), memory.clone(), Remapping::On, &firmware)
        .expect("an honest unit");
    assert_eq!(unit.outline().audit_unit(&mut model.clone()), Ok(()));
    let mut allocated: Vec<(Bdf, u16)> = Vec::new();
    let (mut routes, mut attached) = (Routes::new(), Attached::new());
    for step in input.steps.iter().take(256) {
        let unwaited = model.0.borrow().unwaited;
        let result = match *step {
            Step::Attach(n, domain, root, levels) => {
                let (id, root) = (DomainId(domain % 4), root << 12 >> 12 & !0xFFF);
                let to = Domain { id, root, levels: levels % 8 };
                let result = unit.attach(device(n), to);
                if result.is_ok() {
                    assert_eq!(attached.insert(device(n), to), None);
                }
                result
            }
            Step::Detach(n) => {
                let result = unit.detach(device(n));
                assert_eq!(result.is_ok(), attached.remove(&device(n)).is_some());
                result
            }
            Step::Flush(domain, address, bytes) => {
                unit.flush(DomainId(domain), Range::Bytes { address, bytes })
            }
            Step::Allocate(n, count) => {
                let count = count % 40;
                unit.allocate_irtes(device(n), count).map(|first| {
                    let block = (first..first + count).map(|index| (device(n), index));
                    assert!(block.clone().all(|e| !allocated.contains(&e) && e.1 < 256));
                    allocated.extend(block);
                })
            }
            Step::Release(n, index) => {
                let entry = (device(n), index % 256);
                let result = unit.release_irtes(entry.0, entry.1, 1);
                assert_eq!(result.is_ok(), allocated.contains(&entry));
                allocated.retain(|other| *other != entry);
                routes.remove(&entry);
                result
            }
            Step::Route(n, index, destination, vector, nmi) => {
                let delivery = if nmi { Delivery::Nmi } else { Delivery::Fixed(vector) };
                let route = InterruptRoute { source: device(n), destination, delivery };
                let entry = (device(n), index % 256);
                let result = unit.set_irte(entry.1, route);
                let may = allocated.contains(&entry) && !nmi && vector >= 16;
                assert_eq!(result.is_ok(), may);
                if result.is_ok() {
                    routes.insert(entry, route);
                }
                result
            }
            Step::Aim(n, index, destination, vector) => {
                let delivery = Delivery::Fixed(vector);
                let route = InterruptRoute { source: device(n), destination, delivery };
                let entry = (device(n), index % 256);
                let result = unit.update_irte(entry.1, route);
                assert_eq!(result.is_ok(), allocated.contains(&entry) && vector >= 16);
                if result.is_ok() {
                    routes.insert(entry, route);
                }
                result
            }
            Step::Block(n, index) => {
                let entry = (device(n), index % 256);
                let result = unit.clear_irte(entry.0, entry.1);
                assert_eq!(result.is_ok(), allocated.contains(&entry));
                routes.remove(&entry);
                result
            }
            Step::Drain => unit.drain(),
            Step::Event(low, high) => {
                // Commands that fail are another step's.
                let code = match low >> 60 {
                    5 | 6 => 2,
                    code => code,
                };
                model.0.borrow_mut().log(low << 4 >> 4 | code << 60, high);
                unit.faults(|fault| one_line(&fault));
                Ok(())
            }
            Step::Tail(tail) => {
                model.0.borrow_mut().registers.insert(EVENT_TAIL, tail);
                let mut count = 0;
                unit.faults(|fault| {
                    one_line(&fault);
                    count += 1;
                });
                assert!(count < 256, "without end");
                Ok(())
            }
            Step::Overflow => {
                model.0.borrow_mut().sticky |= 1;
                assert!(fault_pending(&mut model.clone()));
                assert!(unit.faults(|fault| one_line(&fault)));
                assert_eq!(model.0.borrow().sticky, 0, "else it logs no more");
                Ok(())
            }
            Step::Send(destination, vector) => {
                let delivery = vector.map_or(Delivery::Nmi, Delivery::Fixed);
                let own = !input.lacks.1 && vector.is_some();
                let result = unit.send_faults(destination, delivery);
                match result {
                    Ok(message) => assert_eq!(message.is_none(), own),
                    Err(_) => assert!(!own && destination > 254),
                }
                result.map(drop)
            }
            Step::Mask(masked) => {
                unit.mask_faults(masked);
                Ok(())
            }
            Step::Refuse => {
                model.0.borrow_mut().log(5 << 60, 0);
                return nothing_succeeds(&mut unit);
            }
        };
        let after = model.0.borrow().unwaited;
        let left = after <= unwaited || matches!(step, Step::Aim(..));
        assert!(left, "a request of {step:?} isn't waited for");
        if let Err(refusal) = result {
            one_line(&refusal);
        }
    }
    assert_eq!(unit.outline().audit_unit(&mut model.clone()), Ok(()));
    assert!(look(&unit, &mut memory, &routes, &attached));
    assert_eq!(unit.drain(), Ok(()));
    assert_eq!(model.0.borrow().unwaited, 0);
    let Some((n, index, interrupts, low, high)) = input.scribble else { return };
    let half = model.0.borrow().entry(device(n).requester_id()) + if interrupts { 16 } else { 0 };
    let at = match index.map(u16::from) {
        // Through its own entry to its table.
        Some(index) if interrupts && memory.read64(half) >> 60 & 3 == 2 => {
            (memory.read64(half) & FRAME) + u64::from(index) * 16
        }
        _ => half,
    };
    let nobody = model.0.borrow().entry(NOBODY);
    let denied = (memory.read64(nobody), memory.read64(nobody + 8));
    let empty = denied.0 & FRAME;
    assert!(denied.0 & MODE != 0 && denied.0 & READ_WRITE == 0 && empty != 0);
    assert!((empty..empty + 0x1000).step_by(8).all(|word| memory.read64(word) == 0));
    let before = (memory.read64(at), memory.read64(at + 8));
    let now = (low ^ before.0, high ^ before.1);
    memory.write64(at, now.0);
    memory.write64(at + 8, now.1);
    let harmless = match (at == half, interrupts) {
        (true, false) => now == denied,
        (true, true) => false,
        (false, _) => now.0 & 1 == 0,
    };
    let fine = look(&unit, &mut memory, &routes, &attached);
    assert_eq!(fine, now == before || harmless);
});

/// Once the unit said that it couldn't carry out a command, nothing does that takes something away.
fn nothing_succeeds(unit: &mut Unit<Model, Frames>) {
    let failed = |result| matches!(result, Err(Error::InvalidationFailed { .. }));
    assert!(failed(unit.flush(DomainId(1), Range::All)));
    for n in 0..=u8::MAX {
        assert!(failed(unit.detach(device(n))) && failed(unit.clear_irte(device(n), 0)));
    }
    unit.faults(|fault| one_line(&fault));
    assert!(failed(unit.drain()));
}
