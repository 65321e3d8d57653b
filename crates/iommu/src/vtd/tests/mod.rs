//! The driver against the model: what each call does, and what it refuses.

mod audit;
mod faults;
mod model;
mod ports;
mod properties;
mod queue;
mod take_over;
mod unit;

use super::registers::*;
use super::*;
use crate::{Bdf, Delivery, Domain, DomainId, Error, InterruptRoute, Message, Range, Remapping};
use model::{CAP, Done, ECAP, Model, capabilities};

/// CAP.CM: caching mode.
const CM: u64 = 1 << 7;
/// ECAP.C: coherent.
const C: u64 = 1;

const ROOT: u64 = 0x1234_5000;

fn on(cap: u64, ecap: u64) -> (Model, Unit<Model, Model>) {
    let model = Model::new(cap, ecap);
    let unit = Unit::enable(model.clone(), model.clone(), 256, Remapping::On).unwrap();
    (model, unit)
}

fn bdf(id: u16) -> Bdf {
    Bdf::from_requester_id(id)
}

fn domain(id: u16, root: u64, levels: u8) -> Domain {
    Domain { id: DomainId(id), root, levels }
}

fn route(source: u16, vector: u8) -> InterruptRoute {
    InterruptRoute { source: bdf(source), destination: 300, delivery: Delivery::Fixed(vector) }
}

#[test]
fn switches_on_bit_by_bit_and_denies_by_default() {
    for ecap in [ECAP, ECAP | C] {
        let (model, _unit) = on(CAP, ecap);
        model.assert_settled();
        model.with(|state| {
            assert_eq!(state.commands, [SRTP, QIE, SIRTP, TE, IRE]);
            assert_eq!(state.gsts, TE | SRTP | QIE | IRE | SIRTP);
            assert_eq!(state.fectl, FECTL_IM);
        });
        assert!((0..=u16::MAX).all(|source| model.context(source).is_none()));
        assert!((0..256).all(|index| model.irte(index).is_none()));
    }
}

#[test]
fn refuses_units_that_lack_something() {
    let refusal =
        |cap, ecap| probe(&mut Model::new(cap, ecap), Remapping::On).unwrap_err().to_string();
    assert_eq!(
        refusal(CAP, ECAP & !2),
        "the IOMMU lacks queued invalidation (ECAP reads 0xf00f58), which is needed"
    );
    assert!(refusal(CAP, ECAP & !8).starts_with("the IOMMU lacks interrupt remapping ("));
    assert!(refusal(CAP, ECAP & !16).starts_with("the IOMMU lacks x2APIC interrupt destinations"));
    assert!(refusal(CAP & !0x1F00, ECAP).contains("page tables of 3, 4 or 5 levels (CAP reads "));
    assert!(refusal(CAP & !0x1E00 | 0x100, ECAP).contains("page tables of 3, 4 or 5 levels"));
    assert!(refusal(CAP | 1 << 4, ECAP).contains("a write buffer that flushes itself"));
    for version in [0, u32::MAX] {
        let mut model = Model::new(CAP, ECAP);
        model.with(|state| state.ver = version);
        assert_eq!(probe(&mut model, Remapping::On), Err(Error::Absent { read: version }));
    }
}

#[test]
fn without_remapping_a_message_says_what_its_entry_says() {
    const WITHOUT: u64 = ECAP & !0x18;
    let model = Model::new(CAP, WITHOUT);
    let mut unit = Unit::enable(model.clone(), model.clone(), 256, Remapping::Off).unwrap();
    model.with(|state| assert_eq!(state.commands, [SRTP, QIE, TE]));
    let first = unit.allocate_irtes(1).unwrap();
    assert_eq!(unit.message(first), Ok(None));
    let to = |destination, delivery| InterruptRoute { source: bdf(8), destination, delivery };
    for (destination, delivery, message) in [
        (0, Delivery::Fixed(0x31), Some((0xFEE0_0000, 0x31))),
        (254, Delivery::Fixed(0xFF), Some((0xFEEF_E000, 0xFF))),
        (7, Delivery::Nmi, Some((0xFEE0_7000, 0x400))),
        // All processors, and one that 8 bits can't name.
        (255, Delivery::Fixed(0x31), None),
        (256, Delivery::Fixed(0x31), None),
    ] {
        unit.set_irte(first, to(destination, delivery)).unwrap();
        let message = message.map(|(address, data)| Message { address, data });
        assert_eq!(unit.message(first), Ok(message), "{destination} {delivery:?}");
    }
    unit.update_irte(first, to(3, Delivery::Fixed(0x40))).unwrap();
    unit.drain().unwrap();
    assert_eq!(unit.message(first).unwrap().map(|m| m.address), Some(0xFEE0_3000));
    assert_eq!(unit.outline().audit_unit(&mut model.clone()), Ok(()));
    unit.clear_irte(first).unwrap();
    assert_eq!(unit.message(first), Ok(None));
    // It was never asked about what it doesn't know.
    let unknown = |d: &Done| matches!(d, Done::InterruptGlobal | Done::InterruptEntry(_));
    model.with(|state| assert!(!state.done.iter().any(unknown)));
    // DMA is confined all the same.
    unit.attach(bdf(8), domain(1, ROOT, 4)).unwrap();
    assert_eq!(model.context(8).map(|c| c.root), Some(ROOT));
    model.with(|state| state.gsts &= !TE);
    assert!(unit.outline().audit_unit(&mut model.clone()).is_err());
    assert!(Unit::enable(model.clone(), model, 256, Remapping::On).is_err());
}

#[test]
fn with_remapping_a_message_leads_to_its_entry() {
    let (_, mut unit) = on(CAP, ECAP);
    let first = unit.allocate_irtes(1).unwrap();
    assert_eq!(unit.message(first), Ok(None));
    unit.set_irte(first, route(8, 0x31)).unwrap();
    assert_eq!(unit.message(first), Ok(Some(message(first))));
    assert_eq!(unit.message(first + 1), Err(Error::NotAllocated { index: first + 1 }));
}

#[test]
fn reads_what_qemu_s_unit_can_do() {
    let found = capabilities(CAP, ECAP);
    assert_eq!((found.max_domain, found.address_bits, found.sagaw), (65535, 48, 6));
    assert!(found.supports_levels(3) && found.supports_levels(4) && !found.supports_levels(5));
    assert!(!found.supports_levels(0) && !found.supports_levels(2) && !found.supports_levels(255));
    assert!(found.pages_2m && found.pages_1g && !found.caching_mode && !found.coherent);
    assert_eq!((found.fault_offset, found.fault_records), (0x220, 1));
    assert_eq!(found.register_bytes(), 0x1000);
    assert_eq!(found.page_selective, Some(18));
    assert_eq!(capabilities(CAP & !(1 << 39), ECAP).page_selective, None);
    assert_eq!(capabilities(CAP | 0x3F << 48, ECAP).page_selective, Some(63));
    assert_eq!(capabilities(CAP & !7, ECAP).max_domain, 15);
    let far = capabilities(CAP | 0x3FF << 24 | 0xFF << 40, ECAP);
    assert_eq!(far.register_bytes(), 0x3FF0 + 256 * 16);
}

#[test]
fn a_command_that_isn_t_answered_ends_in_an_error() {
    for bit in [TE, SRTP, QIE, IRE, SIRTP] {
        let model = Model::new(CAP, ECAP);
        model.with(|state| state.deaf_to = bit);
        let error = Unit::enable(model.clone(), model.clone(), 256, Remapping::On).err().unwrap();
        assert!(matches!(error, Error::Timeout { .. }), "{bit:#x}: {error}");
    }
}

#[test]
fn memory_that_runs_out_ends_in_an_error_and_leaves_the_unit_off() {
    for frames in 0..4 {
        let model = Model::new(CAP, ECAP);
        model.with(|state| state.frames_left = frames);
        let error = Unit::enable(model.clone(), model.clone(), 256, Remapping::On).err().unwrap();
        assert!(matches!(error, Error::OutOfMemory { .. }), "{frames}: {error}");
        model.with(|state| assert_eq!(state.gsts & (TE | IRE), 0));
    }
    let (model, mut unit) = on(CAP, ECAP);
    model.with(|state| state.frames_left = 0);
    let error = unit.attach(bdf(8), domain(1, ROOT, 4));
    assert_eq!(error, Err(Error::OutOfMemory { frames: 1 }));
}

#[test]
fn tables_of_other_sizes_are_refused() {
    for entries in [0, 1, 128, 255, 257, 131072, u32::MAX] {
        let model = Model::new(CAP, ECAP);
        let error = Unit::enable(model.clone(), model.clone(), entries, Remapping::On).err();
        assert_eq!(error, Some(Error::TableSize { entries }));
    }
}

#[test]
fn attaches_and_detaches() {
    for (cap, ecap) in [(CAP, ECAP), (CAP, ECAP | C), (CAP | CM, ECAP), (CAP | CM, ECAP | C)] {
        let (model, mut unit) = on(cap, ecap);
        let device = Bdf::new(3, 31, 7).unwrap();
        let id = device.requester_id();
        model.with(|state| state.done.clear());
        unit.attach(device, domain(7, ROOT, 4)).unwrap();
        model.assert_settled();
        let context = model.context(id).unwrap();
        assert_eq!(context, domain(7, ROOT, 4));
        let expected: &[Done] = match cap & CM {
            0 => &[],
            _ => &[Done::ContextDevice { domain: 0, source: id }, Done::IotlbDomain(7)],
        };
        model.with(|state| assert_eq!(state.done.split_off(0), expected));

        let again = unit.attach(device, domain(8, ROOT, 4));
        assert_eq!(again, Err(Error::Attached { device }));

        unit.detach(device).unwrap();
        model.assert_settled();
        assert!(model.context(id).is_none());
        let expected = [Done::ContextDevice { domain: 7, source: id }, Done::IotlbDomain(7)];
        model.with(|state| assert_eq!(state.done, expected));
        assert_eq!(unit.detach(device), Err(Error::NotAttached { device }));
    }
}

#[test]
fn refuses_domains_and_page_tables_it_can_t_use() {
    let (model, mut unit) = on(CAP & !7 | 1, ECAP);
    let mut attach = |id, root, levels| unit.attach(bdf(8), domain(id, root, levels));
    let refused = |id| Err(Error::Domain { domain: DomainId(id), most: 63 });
    assert_eq!(attach(0, ROOT, 4), refused(0));
    assert_eq!(attach(64, ROOT, 4), refused(64));
    assert_eq!(attach(1, ROOT, 5), Err(Error::Levels { levels: 5, known: 0x18 }));
    assert_eq!(attach(1, ROOT + 8, 4), Err(Error::Root { root: ROOT + 8 }));
    assert_eq!(attach(1, 1 << 52, 4), Err(Error::Root { root: 1 << 52 }));
    assert_eq!(model.context(8), None);
    assert_eq!(attach(63, ROOT, 3), Ok(()));
    assert_eq!(unit.flush(DomainId(0), Range::All), refused(0));
}

#[test]
fn an_attachment_whose_invalidation_fails_is_undone() {
    let (model, mut unit) = on(CAP | CM, ECAP);
    model.with(|state| state.queue_deaf = true);
    assert!(unit.attach(bdf(8), domain(1, ROOT, 4)).is_err());
    assert_eq!(model.context(8), None);
}

#[test]
fn routes_interrupts_and_takes_them_back() {
    for (cap, ecap) in [(CAP, ECAP), (CAP | CM, ECAP | C)] {
        let (model, mut unit) = on(cap, ecap);
        let index = unit.allocate_irtes(1).unwrap();
        assert_eq!(unit.irte(index), Ok(None));
        unit.set_irte(index, route(0x18, 0x41)).unwrap();
        model.assert_settled();
        assert_eq!(model.irte(index), Some(route(0x18, 0x41)));
        assert_eq!(unit.irte(index), Ok(Some(route(0x18, 0x41))));
        unit.clear_irte(index).unwrap();
        model.assert_settled();
        assert_eq!(model.irte(index), None);
        let nmi = InterruptRoute { delivery: Delivery::Nmi, ..route(0x20, 0x41) };
        unit.set_irte(index, nmi).unwrap();
        assert_eq!(model.irte(index), Some(nmi));
        unit.release_irtes(index, 1).unwrap();
        model.assert_settled();
        assert_eq!(model.irte(index), None);
        let gone = Err(Error::NotAllocated { index });
        assert_eq!(unit.set_irte(index, nmi), gone);
        assert_eq!(unit.clear_irte(index), gone);
        assert_eq!(unit.release_irtes(index, 1), gone);
        assert_eq!(unit.irte(index), Err(Error::NotAllocated { index }));
    }
}

#[test]
fn a_new_vector_or_processor_for_the_same_source_leaves_no_gap() {
    let (model, mut unit) = on(CAP, ECAP);
    let index = unit.allocate_irtes(1).unwrap();
    unit.set_irte(index, route(8, 0x40)).unwrap();
    model.with(|state| (state.done.clear(), state.routes_seen.clear()));
    let moved = InterruptRoute { destination: u32::MAX - 1, ..route(8, 0x50) };
    unit.set_irte(index, moved).unwrap();
    model.assert_settled();
    model.with(|state| {
        // Cleared in between, there would be an invalidation for that too.
        assert_eq!(state.done, [Done::InterruptEntry(index)]);
        assert!(state.routes_seen.contains(&(index, moved)));
    });
}

#[test]
fn vectors_below_16_are_refused() {
    let (_, mut unit) = on(CAP, ECAP);
    let index = unit.allocate_irtes(1).unwrap();
    assert_eq!(unit.set_irte(index, route(8, 15)), Err(Error::Vector { vector: 15 }));
    assert_eq!(unit.set_irte(index, route(8, 16)), Ok(()));
}

#[test]
fn blocks_are_aligned_apart_and_given_back() {
    let (_, mut unit) = on(CAP, ECAP);
    for count in [0, 3, 31, 64, u16::MAX] {
        assert_eq!(unit.allocate_irtes(count), Err(Error::BlockSize { count }));
    }
    assert_eq!(unit.allocate_irtes(1), Ok(0));
    let blocks: Vec<_> = (0..7).map(|_| unit.allocate_irtes(32).unwrap()).collect();
    assert_eq!(blocks, [32, 64, 96, 128, 160, 192, 224]);
    assert_eq!(unit.allocate_irtes(32), Err(Error::TableFull { count: 32 }));
    assert_eq!(unit.allocate_irtes(16), Ok(16));
    unit.release_irtes(96, 32).unwrap();
    assert_eq!(unit.allocate_irtes(32), Ok(96));
    let past = unit.release_irtes(u16::MAX, 2);
    assert_eq!(past, Err(Error::NotAllocated { index: u16::MAX }));
}

#[test]
fn without_page_selective_invalidation_the_domain_is_flushed() {
    let (model, mut unit) = on(CAP & !(1 << 39), ECAP);
    unit.flush(DomainId(9), Range::Bytes { address: 0x5000, bytes: 1 }).unwrap();
    model.with(|state| assert_eq!(state.done.last(), Some(&Done::IotlbDomain(9))));
}

#[test]
fn messages_are_as_the_specification_draws_them() {
    assert_eq!(message(0), Message { address: 0xFEE0_0010, data: 0 });
    assert_eq!(message(5), Message { address: 0xFEE0_00B0, data: 0 });
    assert_eq!(message(0x8001), Message { address: 0xFEE0_0034, data: 0 });
    assert_eq!(block_message(32), Message { address: 0xFEE0_0418, data: 0 });
    assert_eq!(ioapic_entry(0x8001, 0x30), 0x0003_0000_0000_0830);
}

/// VT-d 9.11, table 9-29 and what follows: the descriptor's address is in two pieces.
#[test]
fn an_entry_in_posted_format_is_as_the_manual_has_it() {
    use super::posted::{Posted, encode};
    let posted = Posted {
        source: bdf(0x1234),
        vector: 0x51,
        urgent: false,
        descriptor: 0x0000_00AB_CDEF_0040,
    };
    let (low, high) = (0xCDEF_0040_0051_8001, 0x0000_00AB_0004_1234);
    assert_eq!(encode(posted), Some((low, high)));
    assert_eq!(encode(Posted { urgent: true, ..posted }), Some((low | 1 << 14, high)));
}
