//! How a vCPU is made, at boot.

use super::SvmCpu;
use super::nesting::Nesting;
use super::supported::features;
use crate::cpu::Traits;
use crate::cpu::extra::{Extra, Fresh};
use crate::cpu::vendor::Start;
use crate::memory;
use alloc::boxed::Box;
use delivery::Mode;
use raw_cpuid::native_cpuid::cpuid_count;
use svm::maps::{self, Map};
use svm::{Maps, Outline, Setup, Vcpu, Vmcb};

impl SvmCpu {
    /// Memory and state of a vCPU; `None` when memory runs out. `nested_root`: its nested page
    /// tables; `pm_timer`: the port at which it reads the PM timer without an exit.
    pub fn new(
        nested_root: u64,
        asid: u32,
        pm_timer: Option<u16>,
        traits: Traits,
        start: Start,
    ) -> Option<Self> {
        let page = memory::allocate(4096, 4096)?;
        let host_vmcb = memory::allocate(4096, 4096)?;
        let host_save = memory::allocate(4096, 4096)?;
        let Traits { completions_exit, shared, hides_gates, takes, posts, offer, .. } = traits;
        let mut msrs = [0; Map::ALL.len()];
        for (map, address) in Map::ALL.into_iter().zip(&mut msrs) {
            *address = memory::allocate(maps::MSR_BYTES as u64, 4096)?;
            // SAFETY: just allocated with this size, identity-mapped, and ours.
            let bytes = unsafe { &mut *(*address as *mut [u8; maps::MSR_BYTES]) };
            maps::fill_msrs(bytes, map.open(completions_exit, shared));
        }
        let ports = memory::allocate(maps::PORT_BYTES as u64, 4096)?;
        // SAFETY: as above.
        maps::fill_ports(unsafe { &mut *(ports as *mut [u8; maps::PORT_BYTES]) }, pm_timer);
        // SAFETY: a zeroed page of our own, identity-mapped, aligned; all-zero is a valid Vmcb.
        let vmcb = unsafe { &mut *(page as *mut Vmcb) };
        let setup = Setup {
            nested_root,
            asid,
            maps: Maps { msrs, ports },
            shared,
            hides_gates,
            features: features(),
            start,
            signature: cpuid_count(1, 0).eax,
        };
        let mut outline = Outline::new(page, setup, takes, completions_exit, pm_timer);
        let nesting = match offer {
            Some(offer) => {
                let mut nesting =
                    Box::new(Nesting::new(offer, setup.features, &setup.maps, nested_root)?);
                outline = outline.with_inner(nesting.outline());
                if posts {
                    nesting.set_posts();
                }
                Some(nesting)
            }
            None => None,
        };
        Some(SvmCpu {
            nesting,
            outline,
            vcpu: Vcpu::new(vmcb, &setup),
            host_vmcb,
            host_save,
            mode: Mode::Injection,
            extra: Extra::new(true)?,
            shared,
            fresh: Fresh::Reset,
        })
    }
}
