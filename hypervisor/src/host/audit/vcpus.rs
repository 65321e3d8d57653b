//! What confines a vCPU on its core: its control block, its permission maps, its core's local
//! interrupt sources.
//!
//! Guarantees: a finding in memory is told only if it stood, the same word with the same value, at
//! every look for a while: a core may be in the middle of changing a vCPU's mode. Who looks waits
//! for nobody.

use crate::cpu::vendor::audit::{self as controls, Outline as _};
use crate::cpu::{VendorOutline, rdtsc, tsc_hz};
use crate::host::audit::read::{Looked, word};
use crate::vm::Vm;
use crate::vm::stop::Finding;

/// At how many looks, and for which part of a second, a finding must stand.
const LOOKS: u32 = 8;
const STANDS_HZ: u64 = 4;

/// A vCPU, and how far the looking is.
pub struct Confined {
    vm: &'static Vm,
    vcpu: usize,
    outline: VendorOutline,
    part: u32,
    suspected: Option<Suspected>,
}

/// A finding that may still be a change under way: since when it stands, and at how many looks.
struct Suspected {
    what: controls::Finding,
    since: u64,
    looks: u32,
}

impl Confined {
    /// Of a vCPU of this VM, by its id.
    pub fn new((vm, vcpu, outline): (&'static Vm, usize, VendorOutline)) -> Self {
        Confined { vm, vcpu, outline, part: 0, suspected: None }
    }

    /// Looks at the next part. A part that is suspected stays the next one.
    pub fn look(&mut self) -> Looked {
        let found = match self.vm.ending.begun() {
            true => None,
            false if self.part == self.outline.parts() => self.look_at_sources(),
            false => match self.outline.audit(self.part, word) {
                Ok(()) => None,
                Err(what) if self.stands(what) => Some(self.finding(what)),
                Err(_) => return (false, None),
            },
        };
        self.suspected = None;
        self.part = if self.part < self.outline.parts() { self.part + 1 } else { 0 };
        (self.part == 0, found)
    }

    fn finding(&self, what: controls::Finding) -> Finding {
        Finding::Controls { vm: &self.vm.guest.name, vcpu: self.vcpu, what }
    }

    /// Has this stood for long enough?
    fn stands(&mut self, what: controls::Finding) -> bool {
        let now = rdtsc();
        match self.suspected.as_mut().filter(|s| s.what == what) {
            Some(s) => {
                s.looks += 1;
                s.looks >= LOOKS && now.wrapping_sub(s.since) > tsc_hz() / STANDS_HZ
            }
            None => {
                self.suspected = Some(Suspected { what, since: now, looks: 1 });
                false
            }
        }
    }

    fn look_at_sources(&self) -> Option<Finding> {
        let (register, value) = self.vm.guest.remotes.get(self.vcpu)?.audit_sources()?;
        Some(Finding::Source { vm: &self.vm.guest.name, vcpu: self.vcpu, register, value })
    }
}
