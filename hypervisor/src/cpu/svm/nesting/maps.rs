//! The permission maps by which L2 runs: what both L1's and the host's open, opened when L2 first
//! uses it.
//!
//! Guarantees: what L1 has closed exits from its next VMRUN on, for the maps are merged anew there,
//! as far as they are used; nothing is open that the host hasn't open for L1 by the map by which
//! that runs.

use super::Nesting;
use super::memory::{InPage, Words};
use nested::tables::L1Memory as _;
use nested::{Block as _, Used, UsedMaps};
use svm::Vmcb;
use svm::maps::msr_bit;
use svm::vmcb::exit;
use vendor::{GuestPages, PortAccess};

impl Nesting {
    /// L2 accesses a register that L1 lets it access. False: the host doesn't.
    pub(super) fn open_msr(
        &mut self,
        v01: &Vmcb,
        memory: &dyn GuestPages,
        msr: u32,
        write: bool,
    ) -> bool {
        self.merge_maps(v01, memory);
        let Some((_, open)) = self.open.get(self.made_of) else { return false };
        let bit = msr_bit(msr).map(|bit| bit + usize::from(write));
        let opens = bit.is_some_and(|bit| open.add(&mut self.used.msrs, bit));
        self.merge_maps(v01, memory);
        opens
    }

    /// The same of ports.
    pub(super) fn open_ports(
        &mut self,
        v01: &Vmcb,
        memory: &dyn GuestPages,
        access: &PortAccess,
    ) -> bool {
        let first = usize::from(access.port);
        let mut ports = first..first + usize::from(access.size);
        let opens = ports.all(|port| self.open_to_l1.add(&mut self.used.ports, port));
        self.merge_maps(v01, memory);
        opens
    }

    /// As if L2 used all that is open to L1.
    #[cold]
    pub(super) fn use_all(&mut self) {
        let msrs = self.open.get(self.made_of).map(|(_, open)| open.all());
        let (ports, msrs) = (self.open_to_l1.all(), msrs.unwrap_or_default());
        self.used = UsedMaps { ports, msrs };
    }

    /// L2's maps: of L1's that are in force, and of those in its memory.
    #[inline(never)]
    pub(super) fn merge_maps(&mut self, v01: &Vmcb, memory: &dyn GuestPages) {
        self.merge_ports(memory);
        if self.open.get(self.made_of).is_none_or(|(map, _)| *map != v01.msrpm_base) {
            // Another mode of L1's: what was open by the other map is closed.
            self.msrs.fill(u64::MAX);
            self.used.msrs = Used::default();
            let at = self.open.iter().position(|(map, _)| *map == v01.msrpm_base);
            self.made_of = at.unwrap_or(usize::MAX);
        }
        let Some((_, open)) = self.open.get(self.made_of) else { return };
        let control = self.nest.control();
        let (base, all) = (control.maps().0, !control.has(exit::MSR));
        let first = memory.page(base);
        let word = |page: Option<u64>, at| page.map_or(u64::MAX, |page| InPage(page).read(at * 8));
        open.merge(&mut self.used.msrs, self.msrs, |at| match at {
            _ if all => 0,
            0..512 => word(first, at),
            _ => word(memory.page(base.wrapping_add(4096)), at),
        });
        self.close_registers();
    }

    fn merge_ports(&mut self, memory: &dyn GuestPages) {
        let control = self.nest.control();
        let (base, all) = (control.maps().1, !control.has(exit::IOIO));
        self.open_to_l1.merge(&mut self.used.ports, self.ports, |at| match all {
            true => 0,
            false => Words(memory).read(base.wrapping_add(at as u64 * 8)).unwrap_or(u64::MAX),
        });
    }
}
