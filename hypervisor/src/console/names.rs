//! The names of the VMs that have a console. Guarantees: each is set once, while booting.

use alloc::string::String;
use proto::frame::MAX_VMS;
use spin::Once;

static NAMES: [Once<String>; MAX_VMS] = [const { Once::new() }; MAX_VMS];

/// While booting: the VM of this number has this name.
pub(super) fn set(vm: usize, name: &str) {
    if let Some(slot) = NAMES.get(vm) {
        slot.call_once(|| name.into());
    }
}

/// The name of a VM that has a console.
pub(super) fn of(vm: u32) -> &'static str {
    NAMES.get(vm as usize).and_then(Once::get).map_or("?", |name| name)
}
