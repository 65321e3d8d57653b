//! What a guest that runs guests of its own does of SVM without an exit, where the CPU can: CLGI
//! and STGI on a virtual flag (APM vol. 2, 15.33.2), VMLOAD and VMSAVE by its own physical
//! addresses, which the nested tables translate (15.33.1).
//!
//! Guarantees: CLGI and STGI are open exactly while the CPU keeps the flag, and then each physical
//! interrupt exits that the guest's IF lets in: the virtual flag holds back none. VMLOAD and VMSAVE
//! are open exactly while the CPU translates for them.

use crate::Vcpu;
use crate::vmcb::{VIRTUAL_LOADS, int_ctl, misc1, misc2};

pub(crate) const FLAG: u32 = misc2::STGI | misc2::CLGI;
pub(crate) const LOADS: u32 = misc2::VMLOAD | misc2::VMSAVE;

impl Vcpu {
    /// Has the CPU keep the guest's global interrupt flag, which is clear. Not in injection mode.
    /// False: it can't.
    #[inline]
    pub fn keep_flag(&mut self) -> bool {
        if !self.features.virtual_gif {
            return false;
        }
        let kept = self.vmcb.int_ctl | int_ctl::V_GIF_ENABLE;
        self.vmcb.int_ctl = kept & !int_ctl::V_GIF;
        self.vmcb.intercept_misc1 |= misc1::INTR;
        self.vmcb.intercept_misc2 &= !FLAG;
        true
    }

    /// The flag, if the CPU keeps it.
    #[inline]
    pub fn flag(&self) -> Option<bool> {
        let kept = self.vmcb.int_ctl & int_ctl::V_GIF_ENABLE != 0;
        kept.then_some(self.vmcb.int_ctl & int_ctl::V_GIF != 0)
    }

    /// The flag is set, if the CPU keeps it.
    pub fn set_flag(&mut self) {
        if self.flag().is_some() {
            self.vmcb.int_ctl |= int_ctl::V_GIF;
        }
    }

    /// The same, and the CPU keeps it no more.
    pub fn take_flag(&mut self) -> Option<bool> {
        let flag = self.flag()?;
        self.vmcb.int_ctl &= !(int_ctl::V_GIF_ENABLE | int_ctl::V_GIF);
        self.vmcb.intercept_misc1 &= !misc1::INTR;
        self.vmcb.intercept_misc2 |= FLAG;
        Some(flag)
    }

    /// Lets the guest VMLOAD and VMSAVE without an exit, where the CPU can, or not.
    pub fn open_loads(&mut self, open: bool) {
        if open && self.features.virtual_loads {
            self.vmcb.other_virtualization = VIRTUAL_LOADS;
            self.vmcb.intercept_misc2 &= !LOADS;
        } else {
            self.vmcb.other_virtualization = 0;
            self.vmcb.intercept_misc2 |= LOADS;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::vcpu::tests::{HARDWARE, QEMU, setup, vcpu};
    use crate::{ALWAYS_MISC2, Features};
    use delivery::Mode;

    #[test]
    fn the_flag_is_open_while_it_is_kept() {
        let features = Features { virtual_gif: true, ..HARDWARE };
        let mut cpu = vcpu(&setup(features));
        cpu.set_exitless(Mode::Passthrough);
        let before = (cpu.vmcb.int_ctl, cpu.vmcb.intercept_misc1, cpu.vmcb.intercept_misc2);
        assert_eq!((cpu.flag(), cpu.take_flag()), (None, None));
        for set in [false, true] {
            assert!(cpu.keep_flag());
            assert_eq!((cpu.flag(), cpu.vmcb.int_ctl & 0x200_0200), (Some(false), 0x200_0000));
            assert_eq!((cpu.vmcb.intercept_misc1 & 1, cpu.vmcb.intercept_misc2 & 0x30), (1, 0));
            if set {
                cpu.set_flag();
            }
            assert_eq!((cpu.flag(), cpu.take_flag(), cpu.flag()), (Some(set), Some(set), None));
            let after = (cpu.vmcb.int_ctl, cpu.vmcb.intercept_misc1, cpu.vmcb.intercept_misc2);
            assert_eq!(after, before);
            cpu.set_flag();
            assert_eq!(cpu.vmcb.int_ctl, before.0, "nobody keeps it");
        }
        let mut without = vcpu(&setup(QEMU));
        without.set_exitless(Mode::Passthrough);
        assert!(!without.keep_flag() && without.flag().is_none());
        assert_eq!(without.vmcb.intercept_misc2, ALWAYS_MISC2);
    }

    #[test]
    fn loads_are_open_where_the_cpu_translates() {
        let mut cpu = vcpu(&setup(Features { virtual_loads: true, ..HARDWARE }));
        cpu.open_loads(true);
        assert_eq!((cpu.vmcb.other_virtualization, cpu.vmcb.intercept_misc2 & 0xC), (2, 0));
        cpu.open_loads(false);
        assert_eq!((cpu.vmcb.other_virtualization, cpu.vmcb.intercept_misc2), (0, ALWAYS_MISC2));
        let mut without = vcpu(&setup(HARDWARE));
        without.open_loads(true);
        let found = (without.vmcb.other_virtualization, without.vmcb.intercept_misc2);
        assert_eq!(found, (0, ALWAYS_MISC2));
    }

    #[test]
    fn a_reset_ends_both() {
        let features = Features { virtual_gif: true, virtual_loads: true, ..HARDWARE };
        let setup = setup(features);
        let mut cpu = vcpu(&setup);
        cpu.set_exitless(Mode::Passthrough);
        cpu.keep_flag();
        cpu.open_loads(true);
        cpu.reset(setup.start);
        assert_eq!((cpu.flag(), cpu.vmcb.other_virtualization), (None, 0));
        assert_eq!((cpu.vmcb.intercept_misc2, cpu.in_injection()), (ALWAYS_MISC2, true));
    }
}
