//! Systems of several CPUs: every test of the kernel for them.

use super::case::{Case, Guest, Special};
use super::cases::{case, guest};
use super::kernel::Variant;
use plan::Choice;

/// CPUs of the bare machine.
const MANY: u32 = 4;

/// The tests, in one boot of the bare machine; last what leaves an interrupt behind.
const ALL_BARE: &str = "ap-start,ap-restart,ipi-fixed,ipi-ring,ipi-all,ipi-nmi,ipi-void,shootdown,\
    bar-move-smp,affinity,idt-smp,timers,icr-storm,start-storm,init-self,ipi-exits,ipi-cost,\
    offline-interrupt";

/// All of them.
pub fn all() -> Vec<Case> {
    let bare = guest(ALL_BARE, Choice::Trap);
    let bare = Guest { says: Vec::new(), cpus: MANY, variant: Variant::Pvh, ..bare };
    let bare = case("bare/smp".to_owned(), false, [bare]);
    vec![Case { machine: Special::BareWithoutIommu, ..bare }]
}
