//! An interrupt that is in service already and that the CPU delivers as a virtual one: as soon as a
//! flag that it keeps ([`flag`](crate::Vcpu::flag)) and the guest's IF let it in.
//!
//! Guarantees: there is one only while the CPU keeps the flag, and what exits on its behalf exits
//! no longer than until [`Vcpu::end_guard`]. The task priority doesn't hold it back, since it was
//! let in before; MOV to CR8 exits meanwhile, WRMSR to the task priority doesn't.

use crate::Vcpu;
use crate::emulator::DELIVERY_FAULTS;
use crate::events;
use crate::vmcb::int_ctl;

/// MOV to CR8.
const CR8: u16 = 1 << 8;

impl Vcpu {
    /// Has the CPU deliver this one. Only while it keeps the flag.
    pub fn guard(&mut self, vector: u8) {
        events::offer(self.vmcb, Some(vector));
        self.vmcb.int_ctl |= int_ctl::IGNORES_PRIORITY;
        self.vmcb.intercept_cr_write |= CR8;
        if self.features.emulated {
            self.vmcb.intercept_exceptions |= DELIVERY_FAULTS;
        }
    }

    /// Does something exit for one, whether it was taken or not?
    #[inline(always)]
    pub fn guards(&self) -> bool {
        self.vmcb.intercept_cr_write != 0
    }

    /// None is to be delivered any more, and nothing exits for it. Gives one that wasn't taken.
    pub fn end_guard(&mut self) -> Option<u8> {
        self.flag()?;
        let vector = events::offered(self.vmcb);
        events::offer(self.vmcb, None);
        self.vmcb.int_ctl &= !int_ctl::IGNORES_PRIORITY;
        self.vmcb.intercept_cr_write &= !CR8;
        self.vmcb.intercept_exceptions &= !DELIVERY_FAULTS;
        vector
    }

    /// A fault exited: if it was taken before, the next one needn't.
    pub(crate) fn forget_guard(&mut self) {
        if events::offered(self.vmcb).is_none() {
            self.end_guard();
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Features;
    use crate::vcpu::tests::{HARDWARE, QEMU, setup, vcpu};
    use crate::vmcb::exit;
    use delivery::Mode;
    use proptest::prelude::*;

    proptest! {
        /// Whatever the vector: it is on offer whatever the task priority, once, and afterwards the
        /// block is what it was.
        #[test]
        fn one_is_delivered_and_nothing_stays(vector: u8, set: bool, taken: bool, qemu: bool) {
            let features = Features { virtual_gif: true, ..if qemu { QEMU } else { HARDWARE } };
            let mut cpu = vcpu(&setup(features));
            cpu.set_exitless(Mode::Passthrough);
            prop_assert!(cpu.keep_flag());
            cpu.vmcb.int_ctl |= u64::from(set) << 9;
            let state = |cpu: &crate::Vcpu| {
                let v = &*cpu.vmcb;
                (v.int_ctl, v.intercept_cr_write, v.intercept_exceptions, v.intercept_misc1)
            };
            let before = state(&cpu);
            prop_assert!(!cpu.guards());
            cpu.guard(vector);
            prop_assert!(cpu.guards() && cpu.delivers(vector));
            prop_assert_eq!(cpu.flag(), Some(set), "the flag stays");
            prop_assert_eq!(cpu.vmcb.int_ctl >> 20 & 1, 1, "V_IGN_TPR");
            prop_assert_eq!(cpu.vmcb.intercept_cr_write >> 8, 1, "MOV to CR8 exits");
            let faults = cpu.vmcb.intercept_exceptions & !before.2;
            prop_assert_eq!(faults, if qemu { 0x7400 } else { 0 });
            if taken {
                cpu.vmcb.int_ctl &= !(1 << 8);
            }
            prop_assert_eq!(cpu.end_guard(), (!taken).then_some(vector));
            prop_assert_eq!(state(&cpu), before);
            prop_assert!(!cpu.guards() && cpu.end_guard().is_none());
        }
    }

    #[test]
    fn what_injection_mode_offers_is_no_guards() {
        let mut cpu = vcpu(&setup(Features { virtual_gif: true, ..QEMU }));
        cpu.offer(Some(0x51));
        assert!(cpu.guards(), "it exits for that, too");
        assert_eq!(cpu.end_guard(), None);
        assert!(cpu.delivers(0x51) && cpu.vmcb.intercept_cr_write == 1 << 8);
    }

    #[test]
    fn a_fault_behind_it_exits_once() {
        let mut cpu = vcpu(&setup(Features { virtual_gif: true, ..QEMU }));
        cpu.set_exitless(Mode::Passthrough);
        cpu.keep_flag();
        cpu.guard(0x51);
        cpu.vmcb.exit_code = u64::from(exit::EXCEPTION_BASE + 14);
        let _ = cpu.exit(|_| false);
        assert!(cpu.delivers(0x51), "it may be the delivery's");
        cpu.vmcb.int_ctl &= !(1 << 8);
        let _ = cpu.exit(|_| false);
        assert!(!cpu.guards() && cpu.vmcb.intercept_exceptions & 0x7400 == 0);
    }

    #[test]
    fn a_reset_forgets_it() {
        let setup = setup(Features { virtual_gif: true, ..QEMU });
        let mut cpu = vcpu(&setup);
        cpu.set_exitless(Mode::Passthrough);
        cpu.keep_flag();
        cpu.guard(0x51);
        cpu.reset(setup.start);
        assert!(!cpu.guards() && !cpu.delivers(0x51));
        assert_eq!(cpu.vmcb.int_ctl >> 20 & 1, 0);
    }
}
