//! The capability against a model that keeps to the standard: what is read-only stays, sizes
//! show when ones are written, nothing moves while functions are on.

use crate::{Above, Capability, Config, Error};
use proptest::prelude::*;

const AT: u16 = 0x160;

/// A physical function with an SR-IOV capability.
#[derive(Clone)]
struct Model {
    registers: Vec<u32>,
    /// Bits of the registers that can be written.
    writable: Vec<u32>,
    /// A write that the standard forbids while functions are on.
    forbidden: bool,
    /// What was written, in order.
    written: Vec<(u16, u32)>,
}

impl Model {
    /// With these BARs: bytes and flags of each register, 0 where there is none.
    fn new(total: u16, offset: u16, stride: u16, bars: [(u64, u32); 6]) -> Self {
        let mut model = Model {
            registers: vec![0; 1024],
            writable: vec![0; 1024],
            forbidden: false,
            written: Vec::new(),
        };
        // Before it in the list: error reporting.
        model.set(0x100, 0x1601_0001, 0);
        model.set(AT, 0x0001_0010, 0);
        model.set(AT + 0x08, 0, 0x19);
        model.set(AT + 0x0C, u32::from(total) << 16 | u32::from(total), 0);
        model.set(AT + 0x10, 0, 0xFFFF);
        model.set(AT + 0x14, u32::from(stride) << 16 | u32::from(offset), 0);
        model.set(AT + 0x18, 0x10CA_0000, 0);
        model.set(AT + 0x1C, 0x553, 0);
        model.set(AT + 0x20, 0x1, 0x553);
        for (i, (size, flags)) in bars.into_iter().enumerate().filter(|(_, (size, _))| *size != 0) {
            let (register, mask) = (AT + 0x24 + 4 * i as u16, !(size - 1));
            model.set(register, flags, mask as u32 & !0xF);
            if flags & 4 != 0 {
                model.set(register + 4, 0, (mask >> 32) as u32);
            }
        }
        model
    }

    fn set(&mut self, offset: u16, value: u32, writable: u32) {
        self.registers[usize::from(offset / 4)] = value;
        self.writable[usize::from(offset / 4)] = writable;
    }

    fn get(&self, offset: u16) -> u32 {
        self.registers[usize::from(offset / 4)]
    }

    fn on(&self) -> bool {
        self.get(AT + 0x08) & 1 != 0
    }
}

impl Config for Model {
    fn read(&self, offset: u16) -> u32 {
        self.get(offset)
    }

    fn write(&mut self, offset: u16, value: u32) {
        self.written.push((offset, value));
        if self.on() && offset != AT + 0x08 {
            self.forbidden = true;
        }
        let i = usize::from(offset / 4);
        self.registers[i] = self.registers[i] & !self.writable[i] | value & self.writable[i];
    }
}

/// As QEMU's igb is: two BARs of 16 KiB.
const IGB: [(u64, u32); 6] = [(0x4000, 0xC), (0, 0), (0, 0), (0x4000, 0xC), (0, 0), (0, 0)];

fn igb() -> Model {
    Model::new(8, 0x80, 2, IGB)
}

/// Addresses one after the other from 0xC000_0000 on.
fn placer() -> impl FnMut(u64, u64) -> Option<u64> {
    let mut next = 0xC000_0000u64;
    move |bytes, align| {
        let at = next.next_multiple_of(align);
        next = at + bytes;
        Some(at)
    }
}

#[test]
fn functions_are_switched_on_where_they_were_put() {
    let mut model = igb();
    let capability = Capability::find(&model).unwrap();
    assert_eq!(capability.most(&model), 8);
    let mut waited = false;
    let on =
        capability.enable(&mut model, 0x40, Above::Root, 3, placer(), || waited = true).unwrap();
    assert_eq!(on.functions, [0xC0, 0xC2, 0xC4]);
    assert_eq!(on.device, 0x10CA);
    let bars: Vec<_> = on.bars.iter().map(|b| (b.index, b.size, b.wide, b.address)).collect();
    assert_eq!(bars, [(0, 0x4000, true, 0xC000_0000), (3, 0x4000, true, 0xC000_C000)]);
    assert!(on.bars.iter().all(|b| b.prefetchable));
    assert!(waited && model.on() && !model.forbidden);
    assert_eq!((model.get(AT + 0x10), model.get(AT + 0x08)), (3, 9));
    assert_eq!((model.get(AT + 0x24), model.get(AT + 0x28)), (0xC000_000C, 0));
}

#[test]
fn a_port_passes_on_eight_functions_or_all() {
    let enable = |above, device, offset, stride, count| {
        let mut model = Model::new(8, offset, stride, IGB);
        let capability = Capability::find(&model).unwrap();
        let on = capability.enable(&mut model, device, above, count, placer(), || {});
        (on.map(|on| on.functions), model.get(AT + 0x08))
    };
    let igb = |above| enable(above, 0x100, 0x80, 2, 2);
    assert_eq!(igb(Above::Port), (Err(Error::Port(0)), 0));
    assert_eq!(igb(Above::AriPort), (Ok(vec![0x180, 0x182]), 0x19));
    assert_eq!(enable(Above::Port, 0x100, 1, 1, 7).0, Ok((0x101..0x108).collect()));
    assert_eq!(enable(Above::Port, 0x100, 1, 1, 8).0, Err(Error::Port(7)));
}

#[test]
fn functions_that_are_on_are_made_anew() {
    let mut model = igb();
    let capability = Capability::find(&model).unwrap();
    capability.enable(&mut model, 0x40, Above::Root, 3, placer(), || {}).unwrap();
    let on = capability.enable(&mut model, 0x40, Above::Root, 1, placer(), || {}).unwrap();
    assert_eq!(on.functions, [0xC0]);
    assert!(!model.forbidden);
}

/// Whatever was on before is off first, the status in the upper half isn't written (its bits clear
/// when ones are), and bits that aren't ours stay.
#[test]
fn control_is_written_as_the_standard_has_it() {
    for (above, control) in [(Above::Root, 0x6), (Above::Port, 0x6), (Above::AriPort, 0x16)] {
        let mut model = Model::new(8, 1, 1, IGB);
        model.set(AT + 0x08, 0xABCD_001F, 0x1F);
        let capability = Capability::find(&model).unwrap();
        capability.enable(&mut model, 0x100, above, 2, placer(), || {}).unwrap();
        let mut expected = vec![(AT + 0x08, 0x6)];
        if above == Above::AriPort {
            expected.push((AT + 0x08, 0x16));
        }
        expected.extend([(AT + 0x20, 1), (AT + 0x10, 2)]);
        for (bar, address) in [(0x24, 0xC000_0000), (0x30, 0xC000_8000)] {
            expected.extend([(AT + bar, u32::MAX), (AT + bar + 4, u32::MAX)]);
            // Registers that aren't there are asked for their size, too.
            expected.extend([(AT + bar, address), (AT + bar + 4, 0)]);
            let single = AT + bar + 8;
            expected.push((single, u32::MAX));
        }
        expected.push((AT + 0x08, control | 0x9));
        assert_eq!(model.written, expected);
        assert_eq!(model.get(AT + 0x08), 0xABCD_0000 | control | 0x9);
    }
}

#[test]
fn bars_of_every_kind_are_sized() {
    let enable = |bars, room: Option<u64>| {
        let mut model = Model::new(8, 0x80, 2, bars);
        // What lies behind the capability isn't a BAR.
        model.set(AT + 0x3C, 0x8, !0xFFF);
        let capability = Capability::find(&model).unwrap();
        let mut next = placer();
        let on = capability.enable(
            &mut model,
            0x40,
            Above::Root,
            1,
            |bytes, align| room.or_else(|| next(bytes, align)),
            || {},
        );
        assert!(model.written.iter().all(|(at, _)| *at < AT + 0x3C));
        let bar = |b: &crate::Bar| (b.index, b.size, b.wide, b.prefetchable);
        on.map(|on| on.bars.iter().map(bar).collect::<Vec<_>>())
    };
    const NONE: (u64, u32) = (0, 0);
    let narrow = [(0x1000, 0), (0x2000, 8), NONE, NONE, NONE, (0x8000, 0)];
    let expected =
        vec![(0, 0x1000, false, false), (1, 0x2000, false, true), (5, 0x8000, false, false)];
    assert_eq!(enable(narrow, None), Ok(expected));
    // The last register has no next one for an upper half.
    let last = [NONE, NONE, NONE, NONE, NONE, (0x4000, 0xC)];
    let mut model = Model::new(8, 0x80, 2, last);
    model.set(AT + 0x3C, 0, 0);
    let capability = Capability::find(&model).unwrap();
    let on = capability.enable(&mut model, 0x40, Above::Root, 1, placer(), || {}).unwrap();
    assert_eq!((on.bars[0].index, on.bars[0].wide), (5, false));
    assert_eq!(enable(last, None), Ok(vec![(5, 0x4000, false, true)]));
    // More than 32 bits hold.
    let large = [(1 << 33, 0x4), NONE, NONE, NONE, NONE, NONE];
    assert_eq!(enable(large, None), Err(Error::Room { index: 0, bytes: 1 << 33 }));
    let large = [NONE, NONE, (1 << 32, 0x4), NONE, NONE, NONE];
    assert_eq!(enable(large, Some(0xC000_0000)), Err(Error::Room { index: 2, bytes: 1 << 32 }));
    // The first byte, and the last below 4 GiB.
    let small = [(0x1000, 0), NONE, NONE, NONE, NONE, NONE];
    assert!(enable(small, Some(0xFFFF_F000)).is_ok());
    assert!(enable(small, Some(0x1000)).is_ok());
    assert!(enable(small, Some(0)).is_err());
}

#[test]
fn functions_are_distinct_and_at_most_so_many() {
    let enable = |total, offset, stride, count| {
        let mut model = Model::new(total, offset, stride, IGB);
        let capability = Capability::find(&model).unwrap();
        assert_eq!(capability.most(&model), total.min(256));
        let on = capability.enable(&mut model, 0x140, Above::Root, count, placer(), || {});
        on.map(|on| on.functions)
    };
    assert_eq!(enable(8, 2, 0, 1), Ok(vec![0x142]));
    assert_eq!(enable(8, 2, 0, 2), Err(Error::Bus { index: 1, bus: 1 }), "one place for two");
    assert_eq!(enable(8, 0, 1, 1), Err(Error::Bus { index: 0, bus: 1 }), "its own place");
    assert_eq!(enable(8, 0xC0, 1, 1), Err(Error::Bus { index: 0, bus: 2 }));
    assert_eq!(enable(300, 1, 1, 0), Err(Error::Many { asked: 0, most: 256 }));
    assert_eq!(enable(300, 1, 1, 257), Err(Error::Many { asked: 257, most: 256 }));
}

#[test]
fn what_cannot_be_leaves_them_off() {
    let refusal = |model: &Model, device, count, room: Option<u64>| {
        let mut model = model.clone();
        let capability = Capability::find(&model).unwrap();
        let error = capability
            .enable(&mut model, device, Above::Root, count, |_, _| room, || panic!("on"))
            .unwrap_err();
        assert!(!model.on() && model.get(AT + 0x10) == 0);
        error
    };
    let model = igb();
    assert_eq!(
        refusal(&model, 0x40, 9, Some(0xC000_0000)).to_string(),
        "it can have at most 8 virtual functions; 9 are asked for"
    );
    assert_eq!(refusal(&model, 0x40, 1, None), Error::Room { index: 0, bytes: 0x4000 });
    // Above 4 GiB, or across it.
    assert!(matches!(refusal(&model, 0x40, 1, Some(1 << 32)), Error::Room { .. }));
    assert!(matches!(refusal(&model, 0x40, 2, Some(0xFFFF_C000)), Error::Room { .. }));
    assert_eq!(refusal(&model, 0x78, 5, Some(0xC000_0000)), Error::Bus { index: 4, bus: 1 });
    let mut ports = Model::new(8, 0x80, 2, [(0x20, 1), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0)]);
    assert_eq!(refusal(&ports, 0x40, 1, Some(0xC000_0000)), Error::Ports(0));
    ports.set(AT + 0x1C, 0x552, 0);
    assert_eq!(refusal(&ports, 0x40, 1, Some(0xC000_0000)), Error::Pages(0x552));
}

#[test]
fn lists_without_it_or_without_end_have_none() {
    let list = |headers: &[(u16, u32)]| {
        let mut model = Model::new(8, 0x80, 2, IGB);
        model.set(AT, 0, 0);
        headers.iter().for_each(|(at, header)| model.set(*at, *header, 0));
        Capability::find(&model)
    };
    assert_eq!(list(&[(0x100, 0)]), None);
    assert_eq!(list(&[(0x100, u32::MAX)]), None);
    assert_eq!(list(&[(0x100, 0x0001_0001)]), None);
    assert_eq!(list(&[(0x100, 0x2001_0001), (0x200, 0x1001_0001)]), None);
    assert_eq!(list(&[(0x100, 0x0401_0001)]), None);
    assert_eq!(list(&[(0x100, 0xFF01_0001), (0xFF0, 0x0001_0010)]), None);
    assert!(list(&[(0x100, 0x2001_0001), (0x200, 0x0001_0010)]).is_some());
}

proptest! {
    /// Whatever a device says, functions are distinct, on its bus, and their BARs don't overlap.
    #[test]
    fn no_device_makes_functions_collide(
        total: u16, offset: u16, stride: u16, device: u16, count: u16,
        sizes in prop::array::uniform6((4u32..20, prop::sample::select(vec![0u32, 8]))),
    ) {
        let mut model = Model::new(total, offset, stride, sizes.map(|(s, f)| (1 << s, f)));
        let capability = Capability::find(&model).unwrap();
        if let Ok(on) = capability.enable(&mut model, device, Above::Root, count, placer(), || {}) {
            prop_assert_eq!(on.functions.len(), usize::from(count));
            for (i, function) in on.functions.iter().enumerate() {
                prop_assert_eq!(function >> 8, device >> 8);
                prop_assert!(*function != device && !on.functions[..i].contains(function));
            }
            let end = |b: &crate::Bar| b.address + b.size * u64::from(count);
            for (a, b) in on.bars.iter().zip(on.bars.iter().skip(1)) {
                prop_assert!(end(a) <= b.address && a.address.is_multiple_of(a.size));
            }
            prop_assert_eq!(on.bars.len(), 6);
        }
        prop_assert!(!model.forbidden);
    }

    #[test]
    fn no_space_panics_or_takes_for_ever(headers in prop::collection::vec((64u16..1024, any::<u32>()), 0..40)) {
        let mut model = Model::new(8, 0x80, 2, IGB);
        headers.iter().for_each(|(at, header)| model.set(at * 4, *header, u32::MAX));
        if let Some(capability) = Capability::find(&model) {
            let _ = capability.enable(&mut model, 0x40, Above::Root, 2, placer(), || {});
        }
    }
}
