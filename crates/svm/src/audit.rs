//! What a control block and its permission maps must say, as another core reads them in memory
//! while the guest runs.
//!
//! Guarantees, once every part was looked at without a finding: what must exit in every mode does;
//! where the guest takes its interrupts itself, it is a vCPU that may, with the map of that mode,
//! and nothing shows or changes what keeps the host's vectors from it; address space, nested tables
//! and maps are the vCPU's own; each map opens what [`Map::open`] lists, and no more. The processor
//! writes none of these words, so memory has what the host wrote. Doesn't see what the processor
//! has cached of the block.

mod inner;

use crate::flag::{FLAG, LOADS};
use crate::maps::{self, Map, Open};
use crate::vcpu::{ALWAYS_MISC1, ALWAYS_MISC2, CUT, CUT_INTERCEPTS, GENERAL_PROTECTION, Setup};
use crate::vmcb::int_ctl::V_GIF_ENABLE;
use crate::vmcb::{VIRTUAL_LOADS, Vmcb, int_ctl, misc1};
use core::mem::offset_of;
use delivery::Mode;
pub use inner::Inner;
use vendor::audit::{self, Finding, differs};

/// Where the control block and the maps of a vCPU are, and what it was made of.
#[derive(Clone, Copy, Debug)]
pub struct Outline {
    vmcb: u64,
    setup: Setup,
    completions_exit: bool,
    pm_timer: Option<u16>,
    takes: Mode,
    inner: Option<Inner>,
}

impl Outline {
    /// Of a vCPU made of `setup` whose control block is at physical address `vmcb`. `takes`: the
    /// mode in which it takes its interrupts itself, or injection mode if it never does;
    /// `completions_exit` as in [`Map::open`], `pm_timer` as in [`maps::fill_ports`].
    pub fn new(
        vmcb: u64,
        setup: Setup,
        takes: Mode,
        completions_exit: bool,
        pm_timer: Option<u16>,
    ) -> Self {
        Outline { vmcb, setup, completions_exit, pm_timer, takes, inner: None }
    }

    /// The same of a vCPU that may run guests of its own, by this.
    pub fn with_inner(self, inner: Inner) -> Self {
        Outline { inner: Some(inner), ..self }
    }

    /// The parts that every vCPU has.
    const OWN_PARTS: u32 = 2 + Map::ALL.len() as u32;

    fn audit_block(&self, word: impl Fn(u64) -> u64) -> Result<(), Finding> {
        let Setup { nested_root, asid, maps, shared, .. } = self.setup;
        let check = |at: usize, bits: u64, right: u64| {
            let found = word(self.vmcb + at as u64);
            let at = at as u16;
            if found & bits == right {
                Ok(found)
            } else {
                Err(Finding::Control { at, found, bits, right })
            }
        };
        // Exceptions, and word 3 above them.
        let events = |exceptions: u32, misc1: u32| u64::from(exceptions) | u64::from(misc1) << 32;
        let at = offset_of!(Vmcb, intercept_exceptions);
        let always = events(self.setup.exceptions(), ALWAYS_MISC1);
        let intr = events(0, misc1::INTR);
        let wanted = check(at, always, always)? & intr != 0;
        // Of one that runs guests of its own.
        let nests = self.inner.is_some();
        let kept = opened(&word, self.vmcb, nests, offset_of!(Vmcb, int_ctl), V_GIF_ENABLE);
        let loads = offset_of!(Vmcb, other_virtualization);
        let loads = opened(&word, self.vmcb, nests, loads, VIRTUAL_LOADS);
        let injection = wanted && kept == 0;
        if kept != 0 {
            check(at, intr, intr)?;
        }
        if !injection {
            let more = match self.takes {
                Mode::Injection => events(0, misc1::INTR),
                Mode::Eli if shared => events(1 << GENERAL_PROTECTION, CUT_INTERCEPTS),
                // Its shadow IDT is in place.
                Mode::Eli => events(0, misc1::LIDT),
                Mode::Passthrough | Mode::Posted => 0,
            };
            check(at, more, more)?;
        }
        let always = instructions(kept, loads);
        check(offset_of!(Vmcb, intercept_misc2), always, always)?;
        let masking = if injection { int_ctl::V_INTR_MASKING } else { 0 };
        let bits = int_ctl::V_INTR_MASKING | int_ctl::VIRTUALIZED;
        check(offset_of!(Vmcb, int_ctl), bits & !kept, masking)?;
        let may_be = match self.takes {
            _ if injection => [Map::Injection, Map::Hidden],
            Mode::Passthrough => [Map::Passthrough, Map::Periodic],
            // Where completions exit the timer is virtual.
            _ if self.completions_exit => [Map::Eli; 2],
            _ => [Map::Eli, Map::EliTimer],
        };
        let [one, other] = may_be.map(|map| maps.msrs[map as usize]);
        let at = offset_of!(Vmcb, msrpm_base);
        check(at, u64::MAX, one)
            .or_else(|finding| check(at, u64::MAX, other).map_err(|_| finding))?;
        check(offset_of!(Vmcb, iopm_base), u64::MAX, maps.ports)?;
        check(offset_of!(Vmcb, asid), 0xFFFF_FFFF, u64::from(asid))?;
        check(offset_of!(Vmcb, nested_control), u64::MAX, 1)?;
        check(offset_of!(Vmcb, nested_cr3), u64::MAX, nested_root)?;
        check(offset_of!(Vmcb, other_virtualization), u64::MAX, loads)?;
        if shared && !injection {
            let (at, right) = (offset_of!(Vmcb, idtr), u64::from(CUT) << 32);
            let found = word(self.vmcb + at as u64);
            if found >> 32 > u64::from(CUT) {
                let bits = 0xFFFF_FFFF << 32;
                return Err(Finding::Control { at: at as u16, found, bits, right });
            }
        }
        Ok(())
    }

    fn audit_msrs(&self, map: Map, word: impl Fn(u64) -> u64) -> Result<(), Finding> {
        let at = self.setup.maps.msrs[map as usize];
        let bits = |Open { msr, read, write }: Open| {
            let of = move |offset| maps::msr_bit(msr).map(|bit| bit + offset);
            let [read, write] = [(read, 0), (write, 1)].map(|(yes, n)| of(n).filter(|_| yes));
            read.into_iter().chain(write)
        };
        let open = || map.open(self.completions_exit, self.setup.shared).flat_map(bits);
        differs(at, maps::MSR_BYTES, word, open).map_or(Ok(()), |(bit, open)| {
            let (msr, write) = maps::msr_of(bit);
            Err(Finding::Msr { map: at, msr, write, open })
        })
    }

    fn audit_ports(&self, word: impl Fn(u64) -> u64) -> Result<(), Finding> {
        let map = self.setup.maps.ports;
        let open = || maps::open_ports(self.pm_timer).map(usize::from);
        differs(map, maps::PORT_BYTES, word, open)
            .map_or(Ok(()), |(bit, open)| Err(Finding::Port { map, port: bit as u32, open }))
    }
}

/// Of a word of the block at `vmcb`, this bit, if it may be set.
fn opened(word: impl Fn(u64) -> u64, vmcb: u64, may: bool, at: usize, bit: u64) -> u64 {
    if may { word(vmcb + at as u64) & bit } else { 0 }
}

/// Word 4 of the intercepts, where the CPU keeps the flag, and translates for VMLOAD, or doesn't.
fn instructions(kept: u64, loads: u64) -> u64 {
    let open = |bit: u64, intercepts: u32| if bit != 0 { intercepts } else { 0 };
    u64::from(ALWAYS_MISC2 & !(open(kept, FLAG) | open(loads, LOADS)))
}

impl audit::Outline for Outline {
    fn parts(&self) -> u32 {
        Self::OWN_PARTS + self.inner.map_or(0, |_| Inner::PARTS)
    }

    fn audit(&self, part: u32, word: impl Fn(u64) -> u64) -> Result<(), Finding> {
        if let Some((inner, part)) = self.inner.zip(part.checked_sub(Self::OWN_PARTS)) {
            let open = |bit| inner::in_any(bit, self.completions_exit, self.setup.shared);
            return inner.audit(part, open, self.pm_timer, word);
        }
        match part.checked_sub(2).and_then(|map| Map::ALL.get(map as usize)) {
            Some(map) => self.audit_msrs(*map, word),
            None if part == 0 => self.audit_block(word),
            None => self.audit_ports(word),
        }
    }

    fn has_inner(&self) -> bool {
        self.inner.is_some()
    }

    fn inner_tables(&self, word: impl Fn(u64) -> u64) -> Option<audit::InnerTables> {
        self.inner?.tables(word)
    }

    fn control_block(&self) -> u64 {
        self.vmcb
    }
}

#[cfg(test)]
pub(crate) mod tests;
