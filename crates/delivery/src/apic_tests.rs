//! Tests of the virtual local APIC, among them the model check that no interrupt is
//! lost or doubled as a vCPU changes between ELI and injection mode.

use super::*;
use crate::{Mode, mode_for};
use proptest::prelude::*;

#[derive(Default)]
pub struct Bare {
    priority: u8,
}

impl Core for Bare {
    fn task_priority(&self) -> u8 {
        self.priority
    }
    fn set_task_priority(&mut self, priority: u8) {
        self.priority = priority;
    }
    fn in_service(&self) -> VectorSet {
        VectorSet::EMPTY
    }
    fn requested(&self, _: Option<u8>) -> VectorSet {
        VectorSet::EMPTY
    }
    fn timer_count(&self) -> u32 {
        77
    }
}

pub fn enabled() -> LocalApic {
    let mut a = LocalApic::new(0);
    a.write(SVR, 0x1FF, &mut Bare::default()).unwrap();
    a
}

#[test]
fn interrupts_nest_by_class_and_complete_from_the_top() {
    let (mut a, mut core) = (enabled(), Bare::default());
    a.request(0x41);
    assert_eq!(a.deliverable(), Some(0x41));
    a.accepted(0x41);
    a.request(0x4F);
    assert_eq!(a.deliverable(), None, "same class waits");
    a.request(0x51);
    assert_eq!(a.deliverable(), Some(0x51));
    a.accepted(0x51);
    assert_eq!(a.read(PPR, &core), Ok(0x50));
    assert_eq!(a.read(ISR + 2, &core), Ok(1 << 1 | 1 << 17));
    assert_eq!(a.write(EOI, 0, &mut core), Ok(WriteEffect::Completed(Some(0x51))));
    assert_eq!(a.write(EOI, 0, &mut core), Ok(WriteEffect::Completed(Some(0x41))));
    assert_eq!(a.deliverable(), Some(0x4F));
    a.accepted(0x4F);
    assert_eq!(a.write(EOI, 0, &mut core), Ok(WriteEffect::Completed(Some(0x4F))));
    assert_eq!(a.write(EOI, 0, &mut core), Ok(WriteEffect::Completed(None)));
    assert!(!a.is_pending_any());
    a.request(0x41);
    assert!(a.is_pending_any());
    a.accepted(0x41);
    assert!(!a.is_pending_any());
    assert_eq!(a.quick_complete(1), None, "which raises #GP");
    assert_eq!((a.quick_complete(0), a.quick_complete(0)), (Some(Some(0x41)), Some(None)));
    assert!(a.quiet());
}

#[test]
fn a_vector_is_pending_from_the_request_until_it_is_accepted() {
    let mut a = enabled();
    assert!(!a.is_pending(0x41));
    a.request(0x41);
    assert!(a.is_pending(0x41) && !a.is_pending(0x42));
    a.accepted(0x41);
    assert!(!a.is_pending(0x41), "in service isn't pending: one more is taken by itself");
    a.request(0x41);
    assert!(a.is_pending(0x41));
}

#[test]
fn what_is_handed_over_is_gone() {
    let mut a = enabled();
    [0x41, 0x51].into_iter().for_each(|v| a.request(v));
    a.accepted(0x51);
    assert_eq!(a.hand_over(), [VectorSet::of(&[0x41]), VectorSet::of(&[0x51])]);
    assert!(a.quiet() && a.deliverable().is_none());
    assert_eq!(a.hand_over(), [VectorSet::EMPTY; 2]);
}

#[test]
fn the_timer_follows_its_lvt_entry() {
    let (mut a, mut core) = (enabled(), Bare::default());
    assert_eq!(a.timer_vector(), None);
    let effect = a.write(LVT_TIMER, (LVT_PERIODIC | 0xEC) as u64, &mut core).unwrap();
    let mut setup = TimerSetup { divide: 0, periodic: true, masked: false, initial: None };
    assert_eq!(effect, WriteEffect::Timer(setup));
    assert_eq!(a.timer_vector(), Some(0xEC));
    setup.divide = 0b1011;
    assert_eq!(a.write(TIMER_DIVIDE, 0b1011, &mut core), Ok(WriteEffect::Timer(setup)));
    setup.initial = Some(1000);
    assert_eq!(a.write(TIMER_INITIAL, 1000, &mut core), Ok(WriteEffect::Timer(setup)));
    assert_eq!(a.read(TIMER_INITIAL, &core), Ok(1000));
    assert_eq!(a.read(TIMER_CURRENT, &core), Ok(77));
    assert_eq!(
        a.write(SVR, 0xFF, &mut core).map(|e| matches!(e, WriteEffect::Timer(t) if t.masked)),
        Ok(true)
    );
    assert_eq!(a.timer_vector(), None);
}

/// Below 16 no local APIC interrupts anybody (SDM vol. 3, 11.5.2); below 32 it is an exception's.
#[test]
fn a_timer_is_ordinary_unless_it_has_an_exceptions_vector() {
    let (mut a, mut core) = (enabled(), Bare::default());
    for (vector, ordinary) in
        [(0, true), (15, true), (16, false), (31, false), (32, true), (0xFF, true)]
    {
        a.write(LVT_TIMER, vector, &mut core).unwrap();
        assert_eq!(a.timer_is_ordinary(), ordinary, "{vector}");
        assert_eq!(LocalApic::ends_exitless(LVT_TIMER, vector), !ordinary, "{vector}");
        a.write(LVT_TIMER, vector | u64::from(LVT_MASKED), &mut core).unwrap();
        assert!(a.timer_is_ordinary(), "it interrupts nobody");
    }
    a.write(LVT_TIMER, 16, &mut core).unwrap();
    a.write(SVR, 0xFF, &mut core).unwrap();
    assert!(a.timer_is_ordinary());
    assert!(LocalApic::ends_exitless(SVR, 0xFF) && !LocalApic::ends_exitless(SVR, 0x100));
    assert!(!LocalApic::ends_exitless(TPR, 0));
}

#[test]
fn reserved_and_read_only_registers_fault() {
    let (mut a, mut core) = (enabled(), Bare::default());
    for register in
        [ID, VERSION, PPR, LDR, ISR, TMR, IRR, TIMER_CURRENT, 0x0E, 0x2F, 0x31, 0x00, 0x40, 0xFF]
    {
        assert_eq!(a.write(register, 0, &mut core), Err(Refused), "write {register:#x}");
    }
    for register in [EOI, SELF_IPI, 0x0E, 0x2F, 0x31, 0x00, 0x40, 0xFF] {
        assert_eq!(a.read(register, &core), Err(Refused), "read {register:#x}");
    }
    assert_eq!(a.write(EOI, 1, &mut core), Err(Refused));
    assert_eq!(a.write(TPR, 1 << 32, &mut core), Err(Refused));
    for bit in [13, 16, 17, 20, 31] {
        assert_eq!(a.write(ICR, 1 << bit | 0x50, &mut core), Err(Refused), "ICR bit {bit}");
    }
    assert!(a.write(ICR, 1 << 12 | 0x50, &mut core).is_ok(), "the delivery status is ignored");
}

#[test]
fn icr_decodes_every_destination_and_mode() {
    let mut a = enabled();
    let mut core = Bare::default();
    let mut write = |v: u64| a.write(ICR, v, &mut core).unwrap();
    let fixed = |destination| WriteEffect::Interrupt { destination, vector: 0x50 };
    assert_eq!(write(0x50), fixed(Destination::Physical(0)));
    assert_eq!(write(7 << 32 | 0x50), fixed(Destination::Physical(7)));
    assert_eq!(write(0xFFFF_FFFF << 32 | 0x50), fixed(Destination::All));
    assert_eq!(write(3 << 32 | 1 << 11 | 0x50), fixed(Destination::Logical(3)));
    assert_eq!(write(0xFFFF_FFFF << 32 | 1 << 11 | 0x50), fixed(Destination::All));
    assert_eq!(write(1 << 18 | 0x50), fixed(Destination::Itself));
    assert_eq!(write(2 << 18 | 0x50), fixed(Destination::All));
    assert_eq!(write(3 << 18 | 0x50), fixed(Destination::Others));
    assert_eq!(write(4 << 8), WriteEffect::Nmi(Destination::Physical(0)));
    assert_eq!(write(3 << 18 | 5 << 8), WriteEffect::Init(Destination::Others));
    assert_eq!(
        write(1 << 32 | 6 << 8 | 8),
        WriteEffect::StartUp { destination: Destination::Physical(1), page: 8 }
    );
    assert_eq!(write(0x0F), WriteEffect::None, "a vector below 16 is an error, not an interrupt");
    a.write(ESR, 0, &mut core).unwrap();
    assert_eq!(a.read(ESR, &core), Ok(ERROR_SEND_VECTOR as u64));
}

/// A core as the guest lives on it: the physical local APIC with one host vector, the
/// shadow IDT, and the vCPU loop reduced to its order of steps.
#[derive(Default)]
struct World {
    irr: VectorSet,
    isr: VectorSet,
    mode: Option<Mode>,
    injecting: Option<u8>,
    exits: u32,
    eoi_exits: u32,
}

const HOST: u8 = 0xF1;
const TIMER: u8 = 0xEC;

struct Vcpu {
    apic: LocalApic,
    world: World,
    /// The reference: one local APIC that the guest would have on bare metal.
    bare_irr: VectorSet,
    bare_isr: VectorSet,
}

impl Vcpu {
    fn new() -> Self {
        let mut apic = enabled();
        apic.write(LVT_TIMER, TIMER as u64, &mut Bare::default()).unwrap();
        Vcpu {
            apic,
            world: World::default(),
            bare_irr: VectorSet::EMPTY,
            bare_isr: VectorSet::EMPTY,
        }
    }

    fn physical_next(&self) -> Option<u8> {
        let next = self.world.irr.highest()?;
        match self.world.isr.highest() {
            Some(c) if class(c) >= class(next) => None,
            _ => Some(next),
        }
    }

    /// What the host does between an exit and the next entry.
    fn host(&mut self) {
        self.world.exits += 1;
        // Injection mode: the host takes whatever is pending.
        if self.world.mode == Some(Mode::Injection) {
            while let Some(v) = self.physical_next() {
                self.world.irr.remove(v);
                self.receive(v);
            }
        }
        let mode = mode_for(self.apic.quiet(), true, true);
        if mode == Mode::Injection && self.world.mode != Some(Mode::Injection) {
            let owned = self.world.isr;
            self.apic.adopt_in_service(owned);
            self.world.isr = VectorSet::EMPTY;
        }
        self.world.mode = Some(mode);
        self.world.injecting = self.apic.deliverable();
    }

    fn receive(&mut self, v: u8) {
        if v == HOST {
            if let Some(t) = self.apic.timer_vector() {
                self.apic.request(t);
            }
        } else {
            self.apic.request(v);
        }
    }

    /// The guest runs with interrupts on until it has taken one, or nothing comes.
    fn guest_takes(&mut self) -> Option<u8> {
        loop {
            match self.world.mode {
                None => self.host(),
                Some(Mode::Eli | Mode::Passthrough) => {
                    let v = self.physical_next()?;
                    self.world.irr.remove(v);
                    self.world.isr.insert(v);
                    if v != HOST {
                        return Some(v);
                    }
                    // Reflected as #NP: in service, completed by the host.
                    self.world.isr.remove(HOST);
                    self.receive(HOST);
                    self.host();
                }
                Some(Mode::Injection) => {
                    if self.physical_next().is_some() {
                        self.host();
                    } else if let Some(v) = self.world.injecting.take() {
                        self.apic.accepted(v);
                        return Some(v);
                    } else {
                        return None;
                    }
                }
                Some(Mode::Posted) => unreachable!("`mode_for` never says so"),
            }
        }
    }

    fn guest_completes(&mut self) {
        match self.world.mode {
            Some(Mode::Eli) => {
                if let Some(v) = self.world.isr.highest() {
                    self.world.isr.remove(v);
                }
            }
            _ => {
                self.apic.write(EOI, 0, &mut Bare::default()).unwrap();
                self.world.eoi_exits += 1;
                self.host();
            }
        }
    }

    fn bare_takes(&mut self) -> Option<u8> {
        let next = self.bare_irr.highest()?;
        if self.bare_isr.highest().is_some_and(|c| class(c) >= class(next)) {
            return None;
        }
        self.bare_irr.remove(next);
        self.bare_isr.insert(next);
        Some(next)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever mix of device interrupts, timer expiries, exits for other reasons,
    /// nesting and completions: the guest takes what it would take on bare metal, in the
    /// same order, once.
    #[test]
    fn nothing_is_lost_doubled_or_reordered(
        steps in proptest::collection::vec((0u8..6, 0x30u8..0xE0), 1..200)
    ) {
        let mut v = Vcpu::new();
        for (step, vector) in steps {
            match step {
                0 | 1 => {
                    // Coalescing differs when one is already pending at either side; a
                    // device that has one outstanding doesn't raise another.
                    if !v.bare_irr.contains(vector) {
                        v.world.irr.insert(vector);
                        v.bare_irr.insert(vector);
                    }
                }
                2 if !v.bare_irr.contains(TIMER) => {
                    v.world.irr.insert(HOST);
                    v.bare_irr.insert(TIMER);
                }
                3 => v.host(),
                4 => {
                    let expected = v.bare_takes();
                    prop_assert_eq!(v.guest_takes(), expected);
                }
                _ => {
                    if let Some(top) = v.bare_isr.highest() {
                        v.bare_isr.remove(top);
                        v.guest_completes();
                    }
                }
            }
        }
        // Drain: everything pending must still arrive.
        loop {
            let expected = v.bare_takes();
            prop_assert_eq!(v.guest_takes(), expected);
            match v.bare_isr.highest() {
                Some(top) => {
                    v.bare_isr.remove(top);
                    v.guest_completes();
                }
                None if expected.is_none() => break,
                None => {}
            }
        }
        prop_assert!(v.apic.quiet());
    }

    /// Without a timer, delivery and completion cost no exit at all.
    #[test]
    fn devices_alone_cause_no_exit(vectors in proptest::collection::vec(0x30u8..0xE0, 1..100)) {
        let mut v = Vcpu::new();
        v.host();
        let before = v.world.exits;
        for vector in vectors {
            v.world.irr.insert(vector);
            prop_assert_eq!(v.guest_takes(), Some(vector));
            v.guest_completes();
        }
        prop_assert_eq!(v.world.exits, before);
        prop_assert_eq!(v.world.eoi_exits, 0);
    }

    #[test]
    fn the_quick_way_sends_what_the_other_sends(command in any::<u64>(), valid in any::<bool>()) {
        // Most of all numbers have a bit that must be zero.
        let command = if valid { command & !(ICR_RESERVED | 0b110 << 8) } else { command };
        let (mut quick, mut slow, mut core) = (LocalApic::new(3), LocalApic::new(3), Bare::default());
        let mut one = quick.clone();
        let effect = slow.write(ICR, command, &mut core);
        if let Some((destination, vector)) = quick.quick_command(command) {
            prop_assert_eq!(effect, Ok(WriteEffect::Interrupt { destination, vector }));
            prop_assert_eq!(quick.read(ICR, &core), slow.read(ICR, &core));
        } else {
            let sends = matches!(effect, Ok(WriteEffect::Interrupt { vector: 32.., .. }));
            prop_assert!(!sends);
        }
        if let Some((id, vector)) = one.quick_physical(command) {
            let everybody = id == u32::MAX;
            let to = if everybody { Destination::All } else { Destination::Physical(id) };
            prop_assert_eq!(effect, Ok(WriteEffect::Interrupt { destination: to, vector }));
            prop_assert_eq!(one.read(ICR, &core), slow.read(ICR, &core));
        }
    }

    #[test]
    fn no_register_access_panics(writes in proptest::collection::vec((any::<u8>(), any::<u64>()), 0..200)) {
        let (mut a, mut core) = (LocalApic::new(3), Bare::default());
        for (register, value) in writes {
            let _ = a.write(register, value, &mut core);
            let _ = a.read(register, &core);
            if let Some(d) = a.deliverable() {
                a.accepted(d);
            }
        }
    }
}
