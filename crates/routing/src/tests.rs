//! Routes and how they change, step by step. The orders are loom's (`model`).

use crate::{CoreRoutes, Units, VcpuRoutes, rebind, unbind};
use delivery::{Arrived, VectorSet};
use iommu::{Bdf, Delivery, InterruptRoute};
use std::cell::{Cell, RefCell};
use std::sync::Arc;

const SHARED: u32 = 3;
const OWN: u32 = 5;
const GRACE: u64 = 20;

/// Units that note what is done; `refuses`: the call with this number is refused.
#[derive(Default)]
struct Noted {
    did: RefCell<Vec<String>>,
    refuses: Cell<Option<&'static str>>,
    now: Cell<u64>,
}

impl Noted {
    fn note(&self, call: &'static str, what: String) -> bool {
        self.did.borrow_mut().push(format!("{call}{what}"));
        self.refuses.get() != Some(call)
    }

    fn route(&self, call: &'static str, entry: u16, route: InterruptRoute) -> bool {
        let InterruptRoute { source, destination, delivery } = route;
        let of = match source {
            source if source == device() => "",
            source if source == other() => " of another",
            _ => panic!("no such device"),
        };
        let Delivery::Fixed(vector) = delivery else { panic!("an interrupt") };
        self.note(call, format!(" {entry}{of}: {vector:#x} to {destination}"))
    }

    fn did(&self) -> String {
        self.did.take().join(", ")
    }
}

impl Units for Noted {
    fn set_irte(&self, entry: u16, route: InterruptRoute) -> bool {
        self.route("set", entry, route)
    }

    fn update_irte(&self, entry: u16, route: InterruptRoute) -> bool {
        self.route("update", entry, route)
    }

    fn clear_irte(&self, _: Bdf, entry: u16) -> bool {
        self.note("clear", format!(" {entry}"))
    }

    fn drain(&self, _: Bdf) -> bool {
        self.note("drain", String::new())
    }

    fn drain_all(&self) -> bool {
        self.note("drain all", String::new())
    }

    fn now(&self) -> u64 {
        self.now.get()
    }

    fn grace(&self) -> u64 {
        GRACE
    }
}

fn device() -> Bdf {
    Bdf::from_requester_id(8)
}

/// One behind another IOMMU, whose entries count anew.
fn other() -> Bdf {
    Bdf::from_requester_id(16)
}

struct World {
    units: Noted,
    core: Arc<CoreRoutes>,
    a: VcpuRoutes<Arc<CoreRoutes>>,
    b: VcpuRoutes<Arc<CoreRoutes>>,
    own: VcpuRoutes<Arc<CoreRoutes>>,
}

fn world(sources: usize) -> World {
    let core = Arc::new(CoreRoutes::new(SHARED, VectorSet::of(&[0xF1, 0xFF]), 2));
    core.reserve(sources);
    World {
        units: Noted::default(),
        a: VcpuRoutes::shared(core.clone(), 0),
        b: VcpuRoutes::shared(core.clone(), 1),
        own: VcpuRoutes::dedicated(OWN, VectorSet::of(&[0xF1])),
        core,
    }
}

fn of(slot: usize, vector: u8) -> Arrived {
    Arrived::Of { slot, vectors: VectorSet::of(&[vector]) }
}

#[test]
fn a_vcpu_with_a_core_of_its_own_has_its_vectors_or_hidden_ones() {
    let World { units, own, .. } = world(0);
    assert_eq!(own.host_vectors(), VectorSet::of(&[0xF1]));
    let first = rebind(&units, (device(), 4), None, (&own, 0x41));
    assert_eq!((first, units.did().as_str()), (Some(0x41), "set 4: 0x41 to 5"));
    let second = rebind(&units, (device(), 5), None, (&own, 0xF1));
    assert_eq!((second, units.did().as_str()), (Some(0xEF), "set 5: 0xef to 5"));
    assert_eq!(own.guest_vector(0xEF), Some(0xF1));
    assert_eq!(own.hidden(), VectorSet::of(&[0xEF, 0xF1]));
    assert_eq!(rebind(&units, (device(), 6), None, (&own, 0x0E)), None);
    assert_eq!(units.did(), "clear 6", "an exception's vector is nobody's");
    assert!(own.expected().is_some_and(|e| e.is_for(0xEF, 0xF1) && !e.is_for(0xEF, 0xEF)));
    let moved = rebind(&units, (device(), 4), Some((&own, 0x41)), (&own, 0x42));
    assert_eq!((moved, units.did().as_str()), (Some(0x42), "set 4: 0x42 to 5"));
    unbind(&units, (device(), 4), (&own, 0x42));
    assert_eq!(units.did(), "clear 4");
    units.refuses.set(Some("set"));
    assert_eq!(rebind(&units, (device(), 4), None, (&own, 0x41)), None);
    assert_eq!(units.did(), "set 4: 0x41 to 5, clear 4", "nor does it lead where it was to");
    assert_eq!(rebind(&units, (device(), 5), Some((&own, 0xEF)), (&own, 0x41)), None);
    assert_eq!(units.did(), "set 5: 0x41 to 5, clear 5", "where it led isn't its any more");
}

#[test]
fn devices_vectors_are_told_from_others() {
    let World { own, .. } = world(0);
    assert!(!own.is_devices(0x41));
    own.set_devices(VectorSet::of(&[0x41]));
    assert!(own.is_devices(0x41) && !own.is_devices(0x42));
}

#[test]
fn the_resident_vcpu_of_a_shared_core_has_its_own_vectors() {
    let World { units, core, a, b, .. } = world(4);
    assert!(a.host_vectors().contains(0xF0) && !a.host_vectors().contains(0xEF));
    assert_eq!(a.hidden(), VectorSet::EMPTY);
    assert_eq!(rebind(&units, (device(), 4), None, (&a, 0x41)), Some(0x41));
    assert_eq!(rebind(&units, (device(), 5), None, (&b, 0x41)), Some(0x41));
    assert_eq!(units.did(), "update 4: 0xf0 to 3, drain, update 5: 0xf8 to 3, drain");
    assert!(core.retarget_to_guest(&units, 0, || panic!("nobody had it")));
    assert_eq!(units.did(), "update 4: 0x41 to 3");
    assert_eq!((core.arrived(0x41), core.arrived(0xF8)), (of(0, 0x41), of(1, 0x41)));
    assert_eq!((a.guest_vector(0x41), b.guest_vector(0x41)), (Some(0x41), None));
    assert_eq!((core.arrived(0xF1), core.arrived(0xF9)), (Arrived::Host, Arrived::Nobody));
    assert!(a.expected().is_some_and(|e| e.is_for(0x41, 0x41) && !e.is_for(0xF8, 0x41)));
    assert!(b.expected().is_some_and(|e| e.is_for(0xF8, 0x41) && !e.is_for(0x41, 0x41)));
    units.now.set(1000);
    core.retarget_to_aliases(&units, 0);
    assert_eq!(units.did(), "update 4: 0xf0 to 3, drain all");
    units.now.set(1000 + GRACE - 1);
    assert!(!core.retarget_to_guest(&units, 1, || panic!("not yet")));
    assert_eq!((units.did().as_str(), core.arrived(0x41)), ("", of(0, 0x41)));
    assert!(core.retarget_to_guest(&units, 0, || panic!("nobody else had it")));
    core.retarget_to_aliases(&units, 0);
    units.did();
    units.now.set(1000 + 2 * GRACE - 2);
    assert!(!core.retarget_to_guest(&units, 1, || panic!("the grace period began anew")));
    units.now.set(1000 + 2 * GRACE - 1);
    let drained = Cell::new(false);
    assert!(core.retarget_to_guest(&units, 1, || {
        assert_eq!(core.arrived(0x41), of(0, 0x41), "it is handed over");
        drained.set(true);
    }));
    assert!(drained.get());
    assert_eq!((units.did().as_str(), core.arrived(0x41)), ("update 5: 0x41 to 3", of(1, 0x41)));
}

#[test]
fn a_source_that_is_rebound_goes_by_an_alias_until_its_entry_leads_elsewhere() {
    let World { units, core, a, own, .. } = world(4);
    rebind(&units, (device(), 4), None, (&a, 0x41));
    assert!(core.retarget_to_guest(&units, 0, || ()));
    units.did();
    let moved = rebind(&units, (device(), 4), Some((&a, 0x41)), (&own, 0x42));
    assert_eq!(moved, Some(0x42));
    assert_eq!(units.did(), "update 4: 0xf0 to 3, set 4: 0x42 to 5");
    core.retarget_to_aliases(&units, 0);
    assert_eq!(units.did(), "drain all", "it isn't the core's any more");
    assert_eq!(rebind(&units, (device(), 4), Some((&own, 0x42)), (&a, 0x43)), Some(0x43));
    units.did();
    unbind(&units, (device(), 4), (&a, 0x43));
    assert_eq!(units.did(), "update 4: 0xf2 to 3, clear 4");
    assert_eq!(core.arrived(0xF2), of(0, 0x43), "it may be on its way");
    unbind(&units, (device(), 4), (&a, 0x43));
    assert_eq!(units.did(), "clear 4");
}

#[test]
fn a_source_is_bound_once_however_often_and_not_beyond_the_room() {
    let World { units, core, a, .. } = world(1);
    assert_eq!(rebind(&units, (device(), 4), None, (&a, 0x41)), Some(0x41));
    units.did();
    assert_eq!(rebind(&units, (device(), 5), None, (&a, 0x42)), None, "there is room for one");
    assert_eq!(units.did(), "clear 5");
    assert_eq!(rebind(&units, (device(), 5), None, (&a, 0x0E)), None);
    let again = rebind(&units, (device(), 4), Some((&a, 0x41)), (&a, 0x41));
    assert_eq!(again, Some(0x41));
    units.did();
    assert!(core.retarget_to_guest(&units, 0, || ()));
    assert_eq!(units.did(), "update 4: 0x41 to 3");
    for refused in ["update", "drain"] {
        let World { units, core, a, .. } = world(1);
        units.refuses.set(Some(refused));
        assert_eq!(rebind(&units, (device(), 4), None, (&a, 0x41)), None);
        assert!(core.retarget_to_guest(&units, 0, || ()));
        units.refuses.set(None);
        units.did();
        core.retarget_to_aliases(&units, 0);
        assert_eq!(units.did(), "drain all", "nothing is bound");
    }
}

#[test]
fn a_source_is_known_by_its_device_and_its_entry() {
    let World { units, core, a, .. } = world(4);
    for (source, guest) in [((device(), 4), 0x41), ((other(), 4), 0x42), ((device(), 5), 0x43)] {
        assert_eq!(rebind(&units, source, None, (&a, guest)), Some(guest));
    }
    assert!(core.retarget_to_guest(&units, 0, || ()));
    units.did();
    unbind(&units, (other(), 4), (&a, 0x42));
    assert_eq!(units.did(), "update 4 of another: 0xf2 to 3, clear 4");
    core.retarget_to_aliases(&units, 0);
    assert_eq!(units.did(), "update 4: 0xf0 to 3, update 5: 0xf3 to 3, drain all");
    // Bound once more without a word of the route before: that is the one from then on.
    assert_eq!(rebind(&units, (device(), 4), None, (&a, 0x44)), Some(0x44));
    units.did();
    assert!(core.retarget_to_guest(&units, 0, || ()));
    assert_eq!(units.did(), "update 5: 0x43 to 3, update 4: 0x44 to 3");
}

/// Seven aliases each; one that was given back is another vector's before one is shared.
#[test]
fn an_alias_that_is_not_used_any_more_is_used_again() {
    let World { units, core, a, .. } = world(8);
    for n in 0..7 {
        assert!(rebind(&units, (device(), n), None, (&a, 0x41 + n as u8)).is_some());
    }
    unbind(&units, (device(), 0), (&a, 0x41));
    units.did();
    assert!(rebind(&units, (device(), 7), None, (&a, 0x48)).is_some());
    assert_eq!(units.did(), "update 7: 0xf0 to 3, drain");
    assert_eq!(core.arrived(0xF7), of(0, 0x47), "shared by none");
    // And then there is none left.
    assert!(rebind(&units, (device(), 0), None, (&a, 0x49)).is_some());
    let both = VectorSet::of(&[0x47, 0x49]);
    assert_eq!(core.arrived(0xF7), Arrived::Of { slot: 0, vectors: both });
}

#[test]
#[should_panic(expected = "the IOMMU forgets a route that changed")]
fn a_unit_that_doesnt_answer_at_a_switch_ends_it() {
    let World { units, core, .. } = world(1);
    units.refuses.set(Some("drain all"));
    core.retarget_to_aliases(&units, 0);
}

#[test]
fn strays_are_counted_until_they_are_told() {
    let World { core, .. } = world(1);
    core.note_stray();
    core.note_stray();
    assert_eq!((core.take_strays(), core.take_strays()), (2, 0));
}
