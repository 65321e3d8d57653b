//! [`crate::Unit`] and [`crate::audit::Outline`] with this driver behind them: each call reaches
//! it.

use super::model::{FEATURES, Model};
use super::{ROOT, bdf, domain, route};
use crate::amdvi::registers::*;
use crate::audit::{Cursor, Entry, Finding};
use crate::{
    Alias, Delivery, Error, Firmware, InterruptRoute, Message, PageSizes, Remapping, Unit, Vendor,
    fault_pending,
};

fn enable(model: &Model, remapping: Remapping) -> Result<Unit<Model, Model>, Error> {
    let aliases = vec![Alias { device: bdf(0x120), requester: bdf(0x100) }];
    let firmware = Firmware { aliases, ..Firmware::default() };
    let (regs, mem) = (model.clone(), model.clone());
    Unit::enable(Vendor::Amd, regs, mem, 256, remapping, &firmware)
}

fn on(remapping: Remapping) -> (Model, Unit<Model, Model>) {
    let model = Model::new(FEATURES);
    let unit = enable(&model, remapping).unwrap();
    (model, unit)
}

#[test]
fn it_says_what_the_unit_can_do() {
    let (_, unit) = on(Remapping::On);
    assert_eq!(unit.remapping(), Remapping::On);
    assert!(unit.coherent());
    assert_eq!([2, 3, 6, 7].map(|levels| unit.supports_levels(levels)), [true, true, true, false]);
    assert_eq!(unit.page_sizes(), PageSizes { pages_2m: true, pages_1g: true });
    let model = Model::new(0);
    model.with(|state| state.lacks = COHERENT);
    let unit = enable(&model, Remapping::Off).unwrap();
    assert_eq!(unit.remapping(), Remapping::Off);
    assert!(!unit.coherent() && !unit.supports_levels(5));
    assert!(matches!(enable(&model, Remapping::On).err(), Some(Error::Lacks { .. })));
}

#[test]
fn devices_are_attached_and_routed() {
    let (model, mut unit) = on(Remapping::On);
    let device = bdf(0x120);
    unit.attach(device, domain(3, ROOT, 4)).unwrap();
    assert_eq!([0x120, 0x100].map(|id| model.domain(id)), [Some(domain(3, ROOT, 4)); 2]);
    let indices = [4, 1, 1].map(|count| unit.allocate_irtes(device, count).unwrap());
    assert_eq!(indices, [0, 4, 5]);
    let index = indices[2];
    assert_eq!(unit.message(device, index), Ok(None));
    unit.set_irte(index, route(0x120, 0x41)).unwrap();
    model.assert_settled();
    assert_eq!(model.route(0x120, index), Some(route(0x120, 0x41)));
    let message = Message { address: 0xFEE0_0000, data: 5 };
    assert_eq!(unit.message(device, index), Ok(Some(message)));
    unit.update_irte(index, route(0x120, 0x42)).unwrap();
    unit.drain().unwrap();
    model.assert_settled();
    assert_eq!(model.route(0x120, index), Some(route(0x120, 0x42)));
    unit.clear_irte(device, index).unwrap();
    assert_eq!(model.route(0x120, index), None);
    unit.release_irtes(device, index, 1).unwrap();
    assert_eq!(unit.clear_irte(device, index), Err(Error::NotAllocated { index }));
    unit.detach(device).unwrap();
    assert_eq!(model.domain(0x120), None);
}

#[test]
fn faults_come_through() {
    let (model, mut unit) = on(Remapping::On);
    let pending = || fault_pending(Vendor::Amd, &mut model.clone());
    assert!(!pending());
    model.with(|state| state.log(2 << 60 | 0x18, 0x7000));
    assert!(pending());
    let mut found = Vec::new();
    assert!(!unit.faults(|fault| found.push(fault.source)));
    assert_eq!(found, [bdf(0x18)]);
    model.with(|state| state.sticky = EVENT_OVERFLOW);
    assert!(pending());
    assert!(unit.faults(|fault| panic!("{fault}")));
    assert_eq!(unit.send_faults(7, Delivery::Fixed(0x31)), Ok(None));
    model.with(|state| assert_eq!(state.xt_interrupt, 0x31_0000_0700));
    let message = unit.send_faults(7, Delivery::Nmi).unwrap().map(|m| m.data);
    assert_eq!(message, Some(0x400));
    unit.mask_faults(true);
    model.with(|state| assert_eq!(state.control & EVENT_INTERRUPT, 0));
    unit.mask_faults(false);
    model.with(|state| assert_ne!(state.control & EVENT_INTERRUPT, 0));
}

#[test]
fn its_tables_are_looked_over() {
    let (model, mut unit) = on(Remapping::On);
    unit.attach(bdf(0x120), domain(3, ROOT, 4)).unwrap();
    let index = unit.allocate_irtes(bdf(0x120), 1).unwrap();
    unit.set_irte(index, route(0x120, 0x41)).unwrap();
    let (outline, mut mem) = (unit.outline(), model.clone());
    assert_eq!(outline.audit_unit(&mut model.clone()), Ok(()));
    let mut interrupts = |entries, right: bool| {
        let judge = |_| Some(move |_: InterruptRoute| right);
        outline.audit_interrupts(&mut mem, &mut Cursor::default(), entries, judge)
    };
    assert_eq!((interrupts(256, true), interrupts(255, true)), (Ok(true), Ok(false)));
    let entry = Entry { table: Some(bdf(0x120)), index };
    let wrong = Finding::Route { entry, route: route(0x120, 0x41) };
    assert_eq!(interrupts(256, false), Err(wrong));
    let mut mem = model.clone();
    let mut devices = |entries, right: bool| {
        outline.audit_devices(&mut mem, &mut Cursor::default(), entries, |_, _| right)
    };
    assert_eq!((devices(1 << 16, true), devices(65535, true)), (Ok(true), Ok(false)));
    assert!(matches!(devices(1 << 16, false), Err(Finding::Domain { .. })));
    model.with(|state| state.control &= !ENABLE);
    assert!(matches!(outline.audit_unit(&mut model.clone()), Err(Finding::Open { .. })));
}
