//! The driver against the model: what each call does, and what it refuses.

mod audit;
mod events;
mod ids;
mod model;
mod ports;
mod properties;
mod queue;
mod take_over;
mod unit;

use super::registers::*;
use super::{Unit, probe};
use crate::{
    Bdf, Delivery, Domain, DomainId, Error, Firmware, InterruptRoute, Message, Range, Remapping,
};
use model::{Done, FEATURES, Model};

const ROOT: u64 = 0x1234_5000;

fn enable(model: &Model, remapping: Remapping) -> Result<Unit<Model, Model>, Error> {
    Unit::enable(model.clone(), model.clone(), remapping, &Firmware::default())
}

fn on(efr: u64) -> (Model, Unit<Model, Model>) {
    let model = Model::new(efr);
    let unit = enable(&model, Remapping::On).unwrap();
    (model, unit)
}

fn bdf(id: u16) -> Bdf {
    Bdf::from_requester_id(id)
}

fn domain(id: u16, root: u64, levels: u8) -> Domain {
    Domain { id: DomainId(id), root, levels }
}

fn route(source: u16, vector: u8) -> InterruptRoute {
    let destination = 0x1200_0034;
    InterruptRoute { source: bdf(source), destination, delivery: Delivery::Fixed(vector) }
}

const REMAPS: u64 = WIDE_ENTRIES | X2APIC | X2APIC_OWN;
const RUNS: u64 = ENABLE | COMMAND_BUFFER | EVENT_LOG;

#[test]
fn switches_on_and_denies_by_default() {
    for lacks in [0, COHERENT, X2APIC_OWN] {
        let model = Model::new(FEATURES);
        model.with(|state| state.lacks = lacks);
        let unit = enable(&model, Remapping::On).unwrap();
        model.assert_settled();
        assert_eq!(unit.coherent(), lacks != COHERENT);
        model.with(|state| {
            let mode = COHERENT | REMAPS;
            assert_eq!(state.controls, [0, mode & !lacks, (mode | RUNS) & !lacks]);
            assert_eq!(state.done, [Done::All]);
            assert_eq!(state.device_table & 0xFFF, 0x1FF);
            // Every entry: valid, four levels of empty page tables, nothing allowed.
            let low = 0x10_0000 | 4 << 9 | 3;
            for at in (state.device_table & !0xFFF..).step_by(32).take(1 << 16) {
                assert_eq!([0, 8, 16, 24].map(|offset| state.ram(at + offset)), [low, 0, 1, 0]);
            }
        });
        assert!((0..=u16::MAX).all(|id| model.domain(id).is_none()));
    }
}

#[test]
fn the_flags_of_firmware_are_set() {
    let all = HT_TUNNEL | PASS_PW | RESPONSE_PASS_PW | ISOCHRONOUS;
    let control = |firmware: Firmware| {
        let model = Model::new(FEATURES);
        Unit::enable(model.clone(), model.clone(), Remapping::On, &firmware).unwrap();
        model.with(|state| state.control & all)
    };
    let none = Firmware::default;
    assert_eq!(control(none()), 0);
    assert_eq!(control(Firmware { ht_tunnel: true, ..none() }), HT_TUNNEL);
    assert_eq!(control(Firmware { pass_posted_writes: true, ..none() }), PASS_PW);
    assert_eq!(
        control(Firmware { responses_pass_posted_writes: true, ..none() }),
        RESPONSE_PASS_PW
    );
    assert_eq!(control(Firmware { isochronous: true, ..none() }), ISOCHRONOUS);
}

#[test]
fn refuses_units_that_lack_something() {
    let refusal = |efr| probe(&mut Model::new(efr), Remapping::On).unwrap_err().to_string();
    assert_eq!(
        refusal(FEATURES & !4),
        "the IOMMU lacks x2APIC interrupt destinations (XTSup) (EFR reads 0x29d3), which is needed"
    );
    assert!(refusal(FEATURES & !0x80).contains("lacks interrupt entries of 128 bits (GASup)"));
    assert!(refusal(FEATURES | 0xC00).contains("lacks host page tables (HATS)"));
    assert!(refusal(0).contains("XTSup"));
    assert_eq!(refusal(u64::MAX), "no IOMMU answers: its first register reads 0xffffffff");
    assert!(probe(&mut Model::new(0), Remapping::Off).is_ok());
    let levels = |hats: u64| {
        let found = probe(&mut Model::new(hats << 10), Remapping::Off).unwrap();
        (0..=u8::MAX).filter(|levels| found.supports_levels(*levels)).collect::<Vec<_>>()
    };
    assert_eq!(levels(0), [1, 2, 3, 4]);
    assert_eq!(levels(1), [1, 2, 3, 4, 5]);
    assert_eq!(levels(2), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn without_remapping_a_message_says_what_its_entry_says() {
    let model = Model::new(0);
    let mut unit = enable(&model, Remapping::Off).unwrap();
    model.with(|state| assert_eq!(state.control, RUNS | COHERENT));
    let index = unit.allocate_irtes(bdf(8), 1).unwrap();
    assert_eq!(unit.message(bdf(8), index), Ok(None));
    for (destination, vector, message) in [
        (0, 0x31, Some((0xFEE0_0000, 0x31))),
        (254, 255, Some((0xFEEF_E000, 255))),
        (255, 49, None),
    ] {
        let delivery = Delivery::Fixed(vector);
        unit.set_irte(index, InterruptRoute { source: bdf(8), destination, delivery }).unwrap();
        let message = message.map(|(address, data)| Message { address, data });
        assert_eq!(unit.message(bdf(8), index), Ok(message));
    }
    unit.clear_irte(bdf(8), index).unwrap();
    assert_eq!(unit.message(bdf(8), index), Ok(None));
    model.assert_settled();
    model.with(|state| {
        // It was never asked about what it doesn't know, and passes vectors alone.
        assert!(!state.done.iter().skip(3 << 16).any(|done| matches!(done, Done::Interrupts(_))));
        assert_eq!(state.ram((state.device_table & !0xFFF) + 8 * 32 + 16), 1 | 1 << 60);
    });
    // DMA is confined all the same.
    unit.attach(bdf(8), domain(1, ROOT, 4)).unwrap();
    assert_eq!(model.domain(8), Some(domain(1, ROOT, 4)));
    assert_eq!(unit.outline().audit_unit(&mut model.clone()), Ok(()));
    assert!(enable(&model, Remapping::On).is_err());
}

#[test]
fn what_isn_t_answered_ends_in_an_error() {
    for bit in [COMMAND_RUN, EVENT_RUN] {
        let model = Model::new(FEATURES);
        model.with(|state| state.deaf_to = bit);
        let error = enable(&model, Remapping::On).err().unwrap();
        assert!(matches!(error, Error::Timeout { .. }), "{bit:#x}: {error}");
    }
    // Without these, entries wouldn't mean what they say.
    for bit in [WIDE_ENTRIES, X2APIC] {
        let model = Model::new(FEATURES);
        model.with(|state| state.lacks = bit);
        let error = enable(&model, Remapping::On).err().unwrap();
        assert!(error.to_string().starts_with("the IOMMU didn't take what its control"), "{error}");
    }
}

#[test]
fn memory_that_runs_out_ends_in_an_error() {
    for frames in [0, 511, 512, 513, 514] {
        let model = Model::new(FEATURES);
        model.with(|state| state.frames_left = frames);
        let error = enable(&model, Remapping::On).err().unwrap();
        assert!(matches!(error, Error::OutOfMemory { .. }), "{frames}: {error}");
        model.with(|state| assert_eq!(state.control, 0));
    }
    let (model, mut unit) = on(FEATURES);
    model.with(|state| state.frames_left = 0);
    assert_eq!(unit.allocate_irtes(bdf(8), 1), Err(Error::OutOfMemory { frames: 1 }));
    unit.attach(bdf(8), domain(1, ROOT, 4)).unwrap();
}

#[test]
fn attaches_and_detaches() {
    for lacks in [0, COHERENT] {
        let model = Model::new(FEATURES);
        model.with(|state| state.lacks = lacks);
        let mut unit = enable(&model, Remapping::On).unwrap();
        let device = Bdf::new(3, 31, 7).unwrap();
        let id = device.requester_id();
        for levels in [3, 4] {
            model.with(|state| state.done.clear());
            unit.attach(device, domain(7, ROOT, levels)).unwrap();
            model.assert_settled();
            assert_eq!(model.domain(id), Some(domain(7, ROOT, levels)));
            let forgotten = [Done::Device(id), Done::AllPages(7)];
            model.with(|state| assert_eq!(std::mem::take(&mut state.done), forgotten));
            let again = unit.attach(device, domain(8, ROOT, 4));
            assert_eq!(again, Err(Error::Attached { device }));

            unit.detach(device).unwrap();
            model.assert_settled();
            assert_eq!(model.domain(id), None);
            model.with(|state| assert_eq!(state.done, forgotten));
            assert_eq!(unit.detach(device), Err(Error::NotAttached { device }));
        }
    }
}

#[test]
fn an_entry_is_the_manual_s() {
    let (model, mut unit) = on(FEATURES);
    unit.attach(bdf(2), domain(0xABCD, 0x000F_FFFF_FFFF_F000, 4)).unwrap();
    unit.allocate_irtes(bdf(2), 1).unwrap();
    model.with(|state| {
        let at = (state.device_table & !0xFFF) + 64;
        let table = 0x10_0000 + 516 * 0x1000;
        assert_eq!(state.ram(at), 0x600F_FFFF_FFFF_F803);
        assert_eq!([state.ram(at + 8), state.ram(at + 24)], [0xABCD, 0]);
        assert_eq!(state.ram(at + 16), 1 | 8 << 1 | table | 2 << 60);
    });
}

#[test]
fn refuses_domains_and_page_tables_it_can_t_use() {
    let (model, mut unit) = on(FEATURES & !0xC00);
    let mut attach = |id, root, levels| unit.attach(bdf(8), domain(id, root, levels));
    let refused = Err(Error::Domain { domain: DomainId(0), most: u16::MAX });
    assert_eq!(attach(0, ROOT, 4), refused);
    assert_eq!(attach(1, ROOT, 5), Err(Error::Levels { levels: 5, known: 0x1E }));
    assert_eq!(attach(1, ROOT, 0), Err(Error::Levels { levels: 0, known: 0x1E }));
    assert_eq!(attach(1, ROOT + 8, 4), Err(Error::Root { root: ROOT + 8 }));
    assert_eq!(attach(1, 1 << 52, 4), Err(Error::Root { root: 1 << 52 }));
    assert_eq!(model.domain(8), None);
    assert_eq!(attach(u16::MAX, ROOT, 3), Ok(()));
    assert_eq!(unit.flush(DomainId(0), Range::All), refused);
}

#[test]
fn an_attachment_whose_invalidation_fails_is_undone() {
    let (model, mut unit) = on(FEATURES);
    model.with(|state| state.queue_deaf = true);
    assert!(unit.attach(bdf(8), domain(1, ROOT, 4)).is_err());
    assert_eq!(model.domain(8), None);
}

#[test]
fn routes_interrupts_and_takes_them_back() {
    let (model, mut unit) = on(FEATURES);
    let device = bdf(0x18);
    model.with(|state| state.done.clear());
    let index = unit.allocate_irtes(device, 1).unwrap();
    // Its entry leads to a table from now on.
    model.with(|state| assert_eq!(state.done, [Done::Device(0x18), Done::Interrupts(0x18)]));
    assert_eq!((index, unit.irte(device, index)), (0, Ok(None)));
    assert_eq!(unit.message(device, index), Ok(None));
    unit.set_irte(index, route(0x18, 0x41)).unwrap();
    model.assert_settled();
    assert_eq!(model.route(0x18, index), Some(route(0x18, 0x41)));
    assert_eq!(unit.irte(device, index), Ok(Some(route(0x18, 0x41))));
    let message = Message { address: 0xFEE0_0000, data: 0 };
    assert_eq!(unit.message(device, index), Ok(Some(message)));
    unit.update_irte(index, route(0x18, 0x42)).unwrap();
    unit.drain().unwrap();
    model.assert_settled();
    assert_eq!(model.route(0x18, index), Some(route(0x18, 0x42)));
    unit.clear_irte(device, index).unwrap();
    model.assert_settled();
    assert_eq!(model.route(0x18, index), None);
    unit.release_irtes(device, index, 1).unwrap();
    let gone = Err(Error::NotAllocated { index });
    assert_eq!(unit.set_irte(index, route(0x18, 0x41)), gone);
    assert_eq!(unit.update_irte(index, route(0x18, 0x41)), gone);
    assert_eq!(unit.clear_irte(device, index), gone);
    assert_eq!(unit.release_irtes(device, index, 1), gone);
    assert_eq!(unit.message(device, index), Err(Error::NotAllocated { index }));
    assert_eq!(unit.irte(bdf(0x20), 0), Err(Error::NotAllocated { index: 0 }), "no table");
}

#[test]
fn a_new_vector_or_processor_leaves_no_gap() {
    let (model, mut unit) = on(FEATURES);
    let index = unit.allocate_irtes(bdf(8), 1).unwrap();
    unit.set_irte(index, route(8, 0x40)).unwrap();
    model.with(|state| (state.done.clear(), state.routes_seen.clear()));
    let moved = InterruptRoute { destination: u32::MAX - 1, ..route(8, 0x50) };
    unit.set_irte(index, moved).unwrap();
    model.assert_settled();
    model.with(|state| {
        // Cleared in between, there would be an invalidation for that too.
        assert_eq!(state.done, [Done::Interrupts(8)]);
        assert!(state.routes_seen.contains(&(8, index, moved)));
        state.done.clear();
    });
    // One that says nothing new needs none.
    unit.update_irte(index, moved).unwrap();
    unit.drain().unwrap();
    model.with(|state| assert_eq!(state.done, []));
}

#[test]
fn what_no_entry_can_say_is_refused() {
    let (_, mut unit) = on(FEATURES);
    let index = unit.allocate_irtes(bdf(8), 1).unwrap();
    assert_eq!(unit.set_irte(index, route(8, 15)), Err(Error::Vector { vector: 15 }));
    assert_eq!(unit.set_irte(index, route(8, 16)), Ok(()));
    let nmi = InterruptRoute { delivery: Delivery::Nmi, ..route(8, 16) };
    assert_eq!(unit.set_irte(index, nmi), Err(Error::NmiEntry));
    assert_eq!(unit.update_irte(index, nmi), Err(Error::NmiEntry));
    assert_eq!(unit.irte(bdf(8), index), Ok(Some(route(8, 16))), "as before");
}

#[test]
fn each_device_has_entries_from_0_on() {
    let (model, mut unit) = on(FEATURES);
    for device in [8, 0x10, 0x108].map(bdf) {
        assert_eq!(unit.allocate_irtes(device, 1), Ok(0));
        let blocks: Vec<_> = (0..7).map(|_| unit.allocate_irtes(device, 32).unwrap()).collect();
        assert_eq!(blocks, [32, 64, 96, 128, 160, 192, 224]);
        assert_eq!(unit.allocate_irtes(device, 32), Err(Error::TableFull { count: 32 }));
        assert_eq!(unit.allocate_irtes(device, 16), Ok(16));
        unit.release_irtes(device, 96, 32).unwrap();
        assert_eq!(unit.allocate_irtes(device, 32), Ok(96));
        for count in [0, 3, 64] {
            assert_eq!(unit.allocate_irtes(device, count), Err(Error::BlockSize { count }));
        }
        let past = unit.release_irtes(device, u16::MAX, 2);
        assert_eq!(past, Err(Error::NotAllocated { index: u16::MAX }));
        // The last one is one like any other.
        let source = device.requester_id();
        unit.set_irte(255, route(source, 0x41)).unwrap();
        assert_eq!(model.route(source, 255), Some(route(source, 0x41)));
        assert_eq!(unit.message(device, 255).unwrap().map(|m| m.data), Some(255));
    }
    model.assert_settled();
}
