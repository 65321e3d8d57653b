//! [`crate::Unit`] and [`crate::audit::Outline`] with this driver behind them: each call reaches
//! it.

use super::model::{CAP, ECAP, Model};
use super::{C, ROOT, bdf, domain, route};
use crate::audit::{Cursor, Entry, Finding};
use crate::vtd::registers::{FECTL_IM, PFO, TE};
use crate::{
    Delivery, DomainId, Error, Firmware, InterruptRoute, Message, PageSizes, Remapping, Unit,
    Vendor, fault_pending,
};

fn enable(model: &Model, remapping: Remapping) -> Result<Unit<Model, Model>, Error> {
    let (regs, mem, firmware) = (model.clone(), model.clone(), Firmware::default());
    Unit::enable(Vendor::Intel, regs, mem, 256, remapping, &firmware)
}

fn on(cap: u64, ecap: u64, remapping: Remapping) -> (Model, Unit<Model, Model>) {
    let model = Model::new(cap, ecap);
    let unit = enable(&model, remapping).unwrap();
    (model, unit)
}

#[test]
fn it_says_what_the_unit_can_do() {
    let (_, unit) = on(CAP, ECAP, Remapping::On);
    assert_eq!(unit.remapping(), Remapping::On);
    assert!(!unit.coherent());
    assert_eq!([2, 3, 4, 5].map(|levels| unit.supports_levels(levels)), [false, true, true, false]);
    assert_eq!(unit.page_sizes(), PageSizes { pages_2m: true, pages_1g: true });
    let (_, unit) = on(CAP & !(1 << 35), ECAP | C, Remapping::Off);
    assert_eq!(unit.remapping(), Remapping::Off);
    assert!(unit.coherent());
    assert_eq!(unit.page_sizes(), PageSizes { pages_2m: true, pages_1g: false });
    let model = Model::new(CAP, ECAP & !8);
    assert!(matches!(enable(&model, Remapping::On).err(), Some(Error::Lacks { .. })));
}

#[test]
fn devices_are_attached_and_routed() {
    let (model, mut unit) = on(CAP, ECAP, Remapping::On);
    unit.attach(bdf(8), domain(3, ROOT, 4)).unwrap();
    assert_eq!(model.context(8).map(|c| (c.id, c.root)), Some((DomainId(3), ROOT)));
    let indices = [4, 1, 1].map(|count| unit.allocate_irtes(bdf(8), count).unwrap());
    assert_eq!(indices, [0, 4, 5]);
    let index = indices[2];
    assert_eq!(unit.message(bdf(8), index), Ok(None));
    unit.set_irte(index, route(8, 0x41)).unwrap();
    model.assert_settled();
    assert_eq!(model.irte(index), Some(route(8, 0x41)));
    let message = Message { address: 0xFEE0_00B0, data: 0 };
    assert_eq!(unit.message(bdf(8), index), Ok(Some(message)));
    unit.update_irte(index, route(8, 0x42)).unwrap();
    unit.drain().unwrap();
    model.assert_settled();
    assert_eq!(model.irte(index), Some(route(8, 0x42)));
    unit.clear_irte(bdf(8), index).unwrap();
    assert_eq!(model.irte(index), None);
    unit.release_irtes(bdf(8), index, 1).unwrap();
    assert_eq!(unit.clear_irte(bdf(8), index), Err(Error::NotAllocated { index }));
    unit.detach(bdf(8)).unwrap();
    assert_eq!(model.context(8), None);
}

#[test]
fn faults_come_through() {
    let (model, mut unit) = on(CAP, ECAP, Remapping::On);
    let pending = || fault_pending(Vendor::Intel, &mut model.clone());
    assert!(!pending());
    model.with(|state| state.records[0] = (0x7000, 1 << 63 | 5 << 32 | 0x18));
    assert!(pending());
    let mut found = Vec::new();
    assert!(!unit.faults(|fault| found.push(fault.source)));
    assert_eq!(found, [bdf(0x18)]);
    model.with(|state| state.fsts = PFO);
    assert!(unit.faults(|fault| panic!("{fault}")));
    assert_eq!(unit.send_faults(7, Delivery::Fixed(0x31)), Ok(None));
    model.with(|state| assert_eq!((state.fedata, state.feaddr), (0x31, 0xFEE0_7000)));
    unit.mask_faults(true);
    model.with(|state| assert_eq!(state.fectl, FECTL_IM));
    unit.mask_faults(false);
    model.with(|state| assert_eq!(state.fectl, 0));
}

#[test]
fn its_tables_are_looked_over() {
    let (model, mut unit) = on(CAP, ECAP, Remapping::On);
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
    let entry = Entry { table: None, index };
    let wrong = Finding::Route { entry, route: route(0x120, 0x41) };
    assert_eq!(interrupts(256, false), Err(wrong));
    assert!(wrong.to_string().starts_with("interrupt entry 0 sends Fixed(65) of device 01:04.0"));
    let of = Entry { table: Some(bdf(0x120)), index: 5 };
    assert_eq!(of.to_string(), "interrupt entry 5 of device 01:04.0");
    let mut mem = model.clone();
    let mut devices = |entries, right: bool| {
        outline.audit_devices(&mut mem, &mut Cursor::default(), entries, |_, _| right)
    };
    assert_eq!((devices(1 << 16, true), devices(255, true)), (Ok(true), Ok(false)));
    assert!(matches!(devices(1 << 16, false), Err(Finding::Domain { .. })));
    model.with(|state| state.gsts &= !TE);
    assert!(matches!(outline.audit_unit(&mut model.clone()), Err(Finding::Off { .. })));
}
