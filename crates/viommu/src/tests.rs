//! The device against a model of what the standard says, on tables that remember what the real
//! unit may have cached; and what is at fixed places.

pub(crate) mod model;
mod waiting;

use super::*;
use model::{Ask, ENDPOINTS, HIGH, LAST, LOW, Model, Pages, Unit, ask, request, shape};
use proptest::prelude::*;
use std::collections::BTreeMap;
use virtqueue::{Chain, Layout};
use window::Memory;

/// Whatever a unit holds for an endpoint is the guest's memory.
fn is_inside(unit: &Unit) -> bool {
    let inside = |(frame, _): &(u64, Access)| {
        [LOW, HIGH].iter().any(|r| (r.host..r.host + r.len).contains(frame))
    };
    unit.places.iter().flat_map(BTreeMap::values).all(inside)
}

fn address() -> impl Strategy<Value = u64> {
    let edges = [0, 8 << 20, 1 << 32, (1 << 32) + (4 << 20), LAST + 1, MESSAGES.first, u64::MAX];
    let near = (prop::sample::select(edges.to_vec()), -4_i64..4)
        .prop_map(|(edge, pages)| edge.wrapping_add((pages * PAGE as i64) as u64));
    prop_oneof![8 => (0_u64..32).prop_map(|page| page * PAGE), 3 => near, 1 => any::<u64>()]
}

/// Mostly whole pages, few of them.
fn range() -> impl Strategy<Value = (u64, u64)> {
    let few = (address(), 1_u64..5).prop_map(|(at, n)| (at, at.wrapping_add(n * PAGE - 1)));
    prop_oneof![6 => few, 1 => (address(), address()), 1 => Just((0, LAST))]
}

fn asks() -> impl Strategy<Value = Ask> {
    let number = || prop_oneof![4 => 0_u32..4, 1 => Just(u32::MAX)];
    let id = || prop_oneof![9 => prop::sample::select(ENDPOINTS.to_vec()), 1 => any::<u32>()];
    prop_oneof![
        6 => (number(), id(), prop_oneof![6 => Just(0_u32), 2 => Just(1), 1 => Just(2)])
            .prop_map(|(n, id, flags)| Ask::Attach(n, id, flags)),
        2 => (number(), id()).prop_map(|(n, id)| Ask::Detach(n, id)),
        9 => (number(), range(), address(), prop_oneof![5 => 1_u32..4, 1 => any::<u32>()])
            .prop_map(|(n, (first, last), to, flags)| Ask::Map(n, first, last, to, flags)),
        5 => (number(), range()).prop_map(|(n, (first, last))| Ask::Unmap(n, first, last)),
        1 => any::<bool>().prop_map(Ask::Bypass),
        1 => prop::sample::select(vec![Ask::Reset, Ask::Close, Ask::Restart]),
    ]
}

proptest! {
    /// Answers, what each endpoint reaches, and that nothing older is cached: as the model has it.
    #[test]
    fn it_does_what_the_standard_says(
        all in prop::collection::vec(asks(), 1..60),
        most in prop_oneof![Just(6_usize), Just(100)],
    ) {
        let (mut device, mut unit, mut model) = (Viommu::new(shape(), 0), Unit::new(most), Model::new());
        for what in &all {
            // A device may touch everything at any time.
            for endpoint in 0..ENDPOINTS.len() {
                unit.cached[endpoint] = unit.translations(endpoint);
            }
            let expected = model.follow(what, most);
            prop_assert_eq!(ask(&mut device, &mut unit, what), expected, "{:x?}", what);
            prop_assert!(is_inside(&unit));
            for (endpoint, id) in ENDPOINTS.iter().enumerate() {
                let now = unit.translations(endpoint);
                prop_assert!(unit.cached[endpoint].is_subset(&now), "stale after {:x?}", what);
                let reach = unit.reach[endpoint];
                prop_assert_eq!(reach, device.reach(endpoint));
                match model.attached.get(id).map(|number| &model.domains[number]) {
                    Some((true, _)) => prop_assert_eq!(reach, Reach::Memory),
                    Some((false, pages)) => {
                        let Reach::Domain(place) = reach else { panic!("{id:#x}: {reach:?}") };
                        prop_assert_eq!(pages, &unit.places[place]);
                    }
                    None if model.bypass && !model.closed => prop_assert_eq!(reach, Reach::Memory),
                    None => prop_assert_eq!(reach, Reach::Nothing),
                }
            }
        }
    }

    /// Any bytes, any length, on a unit that may fail: no panic, nothing outside.
    #[test]
    fn no_bytes_lead_outside(
        all in prop::collection::vec((any::<[u8; LONGEST]>(), 0_u8..7, 0_u32..80, any::<bool>()), 1..40),
        asked in prop::collection::vec(asks(), 0..20),
    ) {
        let (mut device, mut unit) = (Viommu::new(shape(), 0), Unit::new(50));
        for what in &asked {
            ask(&mut device, &mut unit, what);
        }
        for (mut bytes, kind, len, fails) in all {
            bytes[0] = kind;
            unit.fails = fails;
            ask(&mut device, &mut unit, &Ask::Bytes(bytes, len));
            prop_assert!(is_inside(&unit));
        }
    }
}

#[test]
fn what_would_take_too_long_is_refused_at_once() {
    let mut large = shape();
    large.memory = [Region { guest: 0, host: 0, len: 1 << 40 }].into_iter().collect();
    let (mut device, mut unit) = (Viommu::new(large, 0), Unit::new(0));
    assert_eq!(ask(&mut device, &mut unit, &Ask::Attach(1, 0x10, 0)), Some(Status::Ok));
    let (bytes, page) = (4097 * PAGE, PAGE);
    let map = Ask::Map(1, page, page + bytes - 1, 0, 3);
    // The tables aren't asked: they would have looked at each page.
    unit.most = usize::MAX;
    assert_eq!(ask(&mut device, &mut unit, &map), Some(Status::NoMemory));
    assert!(unit.places.iter().all(Pages::is_empty));
}

#[test]
fn registers_and_properties_are_where_drivers_look() {
    let bytes = config(LAST);
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    assert_eq!((word(0), word(8), word(16)), (!0xFFF, 0, LAST));
    assert_eq!((word(24), word(32)), (0xFFFF_FFFF_0000_0000, 48 | 1 << 32));
    assert_eq!((bytes[BYPASS], FEATURES), (1, 0b101_0111));
    let (mut device, mut unit) = (Viommu::new(shape(), 0), Unit::new(0));
    let mut properties = [0; PROBE_BYTES as usize];
    let probe = |id: u32| request(5, &[&id.to_le_bytes()]);
    assert_eq!(device.answer(&mut unit, probe(0x11), FEATURES, &mut properties), Status::NoEntry);
    assert_eq!(device.answer(&mut unit, probe(0x18), FEATURES, &mut properties), Status::Ok);
    let (first, second) = properties.split_at(24);
    assert_eq!(first[..8], [1, 0, 20, 0, 1, 0, 0, 0]);
    assert_eq!(first[8..], [0, 0, 0xE0, 0xFE, 0, 0, 0, 0, 0xFF, 0xFF, 0xEF, 0xFE, 0, 0, 0, 0]);
    assert_eq!(second[..8], [1, 0, 20, 0, 0, 0, 0, 0]);
    assert_eq!(second[8..], [0, 0, 0, 0, 0xFD, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0]);
}

#[test]
fn without_the_feature_no_domain_is_a_bypass() {
    let (mut device, mut unit) = (Viommu::new(shape(), 0), Unit::new(0));
    let attach = Ask::Attach(1, 0x10, 1).request().unwrap();
    let status = device.answer(&mut unit, attach, FEATURES & !BYPASS_CONFIG, &mut [0; 48]);
    assert_eq!((status, device.reach(0)), (Status::Invalid, Reach::Memory));
}

/// Through a ring: where the answer is, and chains that can't be answered.
#[test]
fn answers_stand_at_the_end_of_what_may_be_written() {
    const REQUEST: u64 = 0x4000;
    const ANSWER: u64 = 0x5000;
    let memory = Memory::new(&[(0, 0x10000)], 0);
    let window = memory.window();
    let layout = Layout { size: 4, descriptors: 0x1000, driver: 0x2000, device: 0x3000 };
    let mut queue = super::queue(&window, layout).unwrap();
    let (mut device, mut unit) = (Viommu::new(shape(), 0), Unit::new(9));
    let mut chain = Chain::new();
    let mut offered = 0_u16;
    let mut serve = |(bytes, len): ([u8; LONGEST], u32), room: u32| {
        window.write(REQUEST, &bytes).unwrap();
        window.write(ANSWER, &[0xAA; 64]).unwrap();
        let descriptor = |address: u64, len: u32, flags: u16, next: u16| {
            [
                &address.to_le_bytes()[..],
                &len.to_le_bytes(),
                &flags.to_le_bytes(),
                &next.to_le_bytes(),
            ]
            .concat()
        };
        window.write(0x1000, &descriptor(REQUEST, len, 1, 1)).unwrap();
        window.write(0x1010, &descriptor(ANSWER, room, 2, 0)).unwrap();
        window.write(0x2004 + 2 * u64::from(offered % 4), &[0, 0]).unwrap();
        offered += 1;
        window.write(0x2002, &offered.to_le_bytes()).unwrap();
        let through = (&mut queue, &window, &mut chain);
        let mut answered = 0;
        super::serve(&mut device, &mut unit, through, FEATURES, 9, &mut answered).unwrap();
        assert_eq!(answered, 1);
        queue.publish();
        let mut used = [0; 4];
        window.read(0x3004 + 8 * u64::from((offered - 1) % 4) + 4, &mut used).unwrap();
        let written = u32::from_le_bytes(used);
        let mut answer = [0; 64];
        window.read(ANSWER, &mut answer).unwrap();
        (written, answer)
    };
    let (written, answer) = serve(Ask::Attach(7, 0x10, 0).request().unwrap(), 4);
    assert_eq!((written, &answer[..5]), (4, &[0, 0, 0, 0, 0xAA][..]));
    let (written, answer) = serve(Ask::Map(8, 0, 0xFFF, 0, 1).request().unwrap(), 9);
    assert_eq!((written, answer[0]), (4, Status::NoEntry as u8));
    let probe = request(5, &[&0x10_u32.to_le_bytes()]);
    let (written, answer) = serve(probe, 52);
    assert_eq!((written, answer[0], answer[48], answer[52]), (52, 1, 0, 0xAA));
    // No room, no such type, nothing: not a byte, and nothing is done.
    for (request, room) in [
        (probe, 51),
        (Ask::Detach(7, 0x10).request().unwrap(), 3),
        (request(6, &[&[0; 32]]), 60),
        (request(0, &[]), 60),
    ] {
        let (written, answer) = serve(request, room);
        assert_eq!((written, answer), (0, [0xAA; 64]));
    }
    let (written, answer) = serve(request(3, &[&[0; 31]]), 4);
    assert_eq!((written, answer[0]), (4, Status::Invalid as u8), "shorter than a MAP");
    assert_eq!(device.reach(0), Reach::Domain(0));
}
