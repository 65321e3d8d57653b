//! What confines a vCPU on its core: its control block, its permission maps, its core's local
//! interrupt sources, and what confines its guests' guests.
//!
//! Guarantees: a finding in memory is told only if it stood, the same word with the same value, at
//! every look for a while: a core may be in the middle of changing a vCPU's mode. Who looks waits
//! for nobody.

use crate::cpu::VendorOutline;
use crate::cpu::vendor::audit::{self as controls, Outline as _};
use crate::host::audit::inner::Inner;
use crate::host::audit::read::{Looked, Suspected, word};
use crate::vm::Vm;
use crate::vm::stop::Finding;

/// A vCPU, and how far the looking is.
pub struct Confined {
    vm: &'static Vm,
    vcpu: usize,
    outline: VendorOutline,
    part: u32,
    suspected: Suspected<controls::Finding>,
    inner: Option<Inner>,
}

impl Confined {
    /// Of a vCPU of this VM, by its id.
    pub fn new((vm, vcpu, outline): (&'static Vm, usize, VendorOutline)) -> Self {
        let inner = outline.has_inner().then(|| Inner::new(vm));
        Confined { vm, vcpu, outline, part: 0, suspected: Suspected::nothing(), inner }
    }

    /// Looks at the next part. A part that is suspected stays the next one.
    pub fn look(&mut self) -> Looked {
        if self.part > self.outline.parts() {
            return self.look_at_inner_tables();
        }
        let found = match self.vm.ending.begun() {
            true => None,
            false if self.part == self.outline.parts() => self.look_at_sources(),
            false => match self.outline.audit(self.part, word) {
                Ok(()) => None,
                Err(what) if self.suspected.stands(what) => Some(self.finding(what)),
                Err(_) => return (false, None),
            },
        };
        self.suspected = Suspected::nothing();
        let last = self.outline.parts() + u32::from(self.inner.is_some());
        self.part = if self.part < last { self.part + 1 } else { 0 };
        (self.part == 0, found)
    }

    fn look_at_inner_tables(&mut self) -> Looked {
        let tables = self.outline.inner_tables(word).filter(|_| !self.vm.ending.begun());
        let (ended, found) = match self.inner.as_mut().zip(tables) {
            Some((inner, tables)) => inner.look(&tables),
            None => (true, None),
        };
        if ended {
            self.part = 0;
        }
        let (vm, vcpu) = (&self.vm.guest.name, self.vcpu);
        (ended, found.map(|what| Finding::Inner { vm, vcpu, what }))
    }

    fn finding(&self, what: controls::Finding) -> Finding {
        Finding::Controls { vm: &self.vm.guest.name, vcpu: self.vcpu, what }
    }

    fn look_at_sources(&self) -> Option<Finding> {
        let (register, value) = self.vm.guest.remotes.get(self.vcpu)?.audit_sources()?;
        Some(Finding::Source { vm: &self.vm.guest.name, vcpu: self.vcpu, register, value })
    }
}
