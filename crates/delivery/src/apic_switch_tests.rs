//! Two vCPUs take turns on a core while interrupts are pending, nested, uncompleted, and held back
//! by the task priority: each finds in its local APIC, register by register, what it would find in
//! one of its own, and takes the same interrupts in the same order.

use crate::{Core, LocalApic, Mode, VectorSet, class, mode_for};
use proptest::prelude::*;

const PPR: u8 = 0x0A;
const EOI: u8 = 0x0B;
const TPR: u8 = 0x08;
const SVR: u8 = 0x0F;
const ISR: u8 = 0x10;
const IRR: u8 = 0x20;

/// A local APIC as hardware has it.
#[derive(Clone, Default)]
struct Hardware {
    requested: VectorSet,
    in_service: VectorSet,
    priority: u8,
}

impl Hardware {
    fn processor_priority(&self) -> u8 {
        let serving = self.in_service.highest().unwrap_or(0);
        if class(self.priority) >= class(serving) { self.priority } else { serving & 0xF0 }
    }

    fn take(&mut self) -> Option<u8> {
        let next = self.requested.highest()?;
        if class(next) <= class(self.processor_priority()) {
            return None;
        }
        self.requested.remove(next);
        self.in_service.insert(next);
        Some(next)
    }

    fn complete(&mut self) {
        if let Some(top) = self.in_service.highest() {
            self.in_service.remove(top);
        }
    }
}

/// What the guest's APIC is read through: the physical one counts while it is the guest's.
impl Core for Hardware {
    fn task_priority(&self) -> u8 {
        self.priority
    }
    fn set_task_priority(&mut self, priority: u8) {
        self.priority = priority;
    }
    fn in_service(&self) -> VectorSet {
        self.in_service
    }
    fn requested(&self, _: Option<u8>) -> VectorSet {
        self.requested
    }
    fn timer_count(&self) -> u32 {
        0
    }
}

struct Guest {
    apic: LocalApic,
    mode: Mode,
    /// Where it isn't shared with anybody.
    bare: Hardware,
}

/// The core, the vCPU that has it, and the steps of the hypervisor's loop.
struct Shared {
    guests: [Guest; 2],
    physical: Hardware,
    running: usize,
}

impl Shared {
    fn new() -> Self {
        let guest = |id| {
            let mut apic = LocalApic::new(id);
            apic.write(SVR, 0x1FF, &mut Hardware::default()).unwrap();
            Guest { apic, mode: Mode::Injection, bare: Hardware::default() }
        };
        Shared { guests: [guest(0), guest(1)], physical: Hardware::default(), running: 0 }
    }

    fn now(&mut self) -> &mut Guest {
        &mut self.guests[self.running]
    }

    /// What the running one has in service or pending in the physical APIC becomes the virtual
    /// one's.
    fn adopt(&mut self) {
        let physical = std::mem::take(&mut self.physical.in_service);
        let pending = std::mem::take(&mut self.physical.requested);
        let apic = &mut self.now().apic;
        apic.adopt_in_service(physical);
        pending.iter().for_each(|vector| apic.request(vector));
    }

    /// From an exit to the next entry.
    fn host(&mut self) {
        if self.now().mode == Mode::Injection || !self.now().apic.quiet() {
            self.adopt();
        }
        let guest = self.now();
        guest.mode = mode_for(guest.apic.quiet(), true, true);
    }

    fn switch(&mut self) {
        self.adopt();
        self.running ^= 1;
        self.physical.priority = self.now().bare.priority;
        self.host();
    }

    /// A device of this guest's sends: by its own vector if the guest runs, else by an alias.
    fn send(&mut self, to: usize, vector: u8) {
        self.guests[to].bare.requested.insert(vector);
        if to == self.running {
            self.physical.requested.insert(vector);
            if self.now().mode == Mode::Injection {
                self.host();
            }
        } else {
            self.guests[to].apic.request(vector);
        }
    }

    /// The host has an interrupt of its own making for the running one: its timer's.
    fn give(&mut self, vector: u8) {
        // Pending at either side of a mode's end it is one, on hardware too.
        if !self.now().bare.requested.contains(vector) {
            self.now().bare.requested.insert(vector);
            self.now().apic.request(vector);
            self.host();
        }
    }

    fn set_priority(&mut self, priority: u8) {
        self.now().bare.priority = priority;
        let Shared { guests, physical, running } = self;
        guests[*running].apic.write(TPR, priority.into(), physical).unwrap();
    }

    /// What the running guest takes, interrupts on.
    fn take(&mut self) -> Option<u8> {
        if self.now().mode == Mode::Eli {
            return self.physical.take();
        }
        let priority = self.physical.priority;
        let apic = &mut self.now().apic;
        let next = apic.deliverable().filter(|vector| class(*vector) > class(priority))?;
        apic.accepted(next);
        Some(next)
    }

    fn complete(&mut self) {
        self.now().bare.complete();
        if self.now().mode == Mode::Eli {
            self.physical.complete();
        } else {
            let Shared { guests, physical, running } = self;
            guests[*running].apic.write(EOI, 0, physical).unwrap();
            self.host();
        }
    }

    /// What the running guest reads is what it would read alone.
    fn same(&mut self) -> Result<(), TestCaseError> {
        let guest = &self.guests[self.running];
        let read = |register| guest.apic.read(register, &self.physical).unwrap();
        for index in 0..8 {
            let pending = guest.bare.requested.register(index);
            let serving = guest.bare.in_service.register(index);
            prop_assert_eq!(read(IRR + index), u64::from(pending), "IRR {}", index);
            prop_assert_eq!(read(ISR + index), u64::from(serving), "ISR {}", index);
        }
        prop_assert_eq!(read(TPR), u64::from(guest.bare.priority));
        prop_assert_eq!(read(PPR), u64::from(guest.bare.processor_priority()));
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_guest_finds_its_apic_as_if_it_had_never_been_away(
        steps in prop::collection::vec((0u8..12, 0x30u8..0xF0, any::<bool>()), 1..150),
    ) {
        let mut core = Shared::new();
        core.host();
        for (step, vector, other) in steps {
            match step {
                0..3 => core.send(usize::from(other), vector),
                3 => core.give(vector),
                4 => core.set_priority(vector & 0x7F),
                5 => core.set_priority(0),
                6 | 7 => core.switch(),
                8 => core.host(),
                9 | 10 => {
                    let expected = core.now().bare.take();
                    prop_assert_eq!(core.take(), expected);
                }
                _ => core.complete(),
            }
            core.same()?;
        }
        // Each completes what it owes, and gets what is left, highest first.
        for _ in 0..2 {
            core.switch();
            core.set_priority(0);
            while !core.now().bare.in_service.is_empty() || !core.now().bare.requested.is_empty() {
                let expected = core.now().bare.take();
                prop_assert_eq!(core.take(), expected);
                core.complete();
                core.same()?;
            }
            core.host();
            prop_assert!(core.now().apic.quiet() && core.now().mode == Mode::Eli);
        }
    }
}

/// Three nested, the core taken away twice on the way back: completed from the innermost.
#[test]
fn completions_owed_at_a_switch_are_made_in_nested_order() {
    let mut core = Shared::new();
    core.host();
    for vector in [0x31, 0x52, 0xE3] {
        core.send(0, vector);
        assert_eq!(core.take(), Some(vector));
        core.now().bare.take();
    }
    for served in [0xE3, 0x52, 0x31] {
        core.switch();
        assert_eq!(core.now().mode, Mode::Eli, "what one owes the other doesn't");
        core.switch();
        assert_eq!(core.now().mode, Mode::Injection, "an EOI is owed, so it has to exit");
        core.same().unwrap();
        let guest = &core.guests[0];
        let word = guest.apic.read(ISR + served / 32, &core.physical).unwrap();
        assert!(word & 1 << (served % 32) != 0);
        core.complete();
    }
    assert_eq!(core.now().mode, Mode::Eli, "nothing is owed any more");
}
