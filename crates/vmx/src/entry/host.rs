//! The host's state (SDM vol. 3, 27.2.2 to 27.2.4), of a host in 64-bit mode.

use super::{Look, Refusal};
use crate::controls::exit;
use crate::{Area, field};

const CR4_PAE: u64 = 1 << 5;
/// SCE, LME, LMA, NXE.
const EFER: u64 = 1 | LONG | 1 << 11;
const LONG: u64 = 1 << 8 | 1 << 10;

impl<A: Area> Look<'_, A> {
    pub(super) fn host(&self) -> Result<(), Refusal> {
        let can = self.capabilities;
        let rule = "must have what VMX wants of it";
        self.must(field::HOST_CR0, rule, can.cr0.allows(self.get(field::HOST_CR0)))?;
        self.must(field::HOST_CR4, rule, can.cr4.allows(self.get(field::HOST_CR4)))?;
        let cr3 = self.get(field::HOST_CR3) & can.beyond() == 0;
        self.must(field::HOST_CR3, "must be within the CPU's physical addresses", cr3)?;
        if self.at_exit(exit::LOAD_PAT) {
            self.pat(field::HOST_PAT)?;
        }
        if self.at_exit(exit::LOAD_EFER) {
            let efer = self.get(field::HOST_EFER);
            let holds = efer & !EFER == 0 && efer & LONG == LONG;
            self.must(field::HOST_EFER, "must be in long mode, without reserved bits", holds)?;
        }
        for selector in [
            field::HOST_ES_SELECTOR,
            field::HOST_CS_SELECTOR,
            field::HOST_SS_SELECTOR,
            field::HOST_DS_SELECTOR,
            field::HOST_FS_SELECTOR,
            field::HOST_GS_SELECTOR,
            field::HOST_TR_SELECTOR,
        ] {
            let rule = "must be of the global table and of level 0";
            self.must(selector, rule, self.get(selector) & 7 == 0)?;
        }
        for selector in [field::HOST_CS_SELECTOR, field::HOST_TR_SELECTOR] {
            self.must(selector, "must not be 0", self.get(selector) != 0)?;
        }
        for address in [
            field::HOST_SYSENTER_ESP,
            field::HOST_SYSENTER_EIP,
            field::HOST_FS_BASE,
            field::HOST_GS_BASE,
            field::HOST_TR_BASE,
            field::HOST_GDTR_BASE,
            field::HOST_IDTR_BASE,
            field::HOST_RIP,
        ] {
            self.canonical(address)?;
        }
        let wide = self.at_exit(exit::HOST_64);
        self.must(field::EXIT_CONTROLS, "the host must be in 64-bit mode", wide)?;
        let pae = self.get(field::HOST_CR4) & CR4_PAE != 0;
        self.must(field::HOST_CR4, "must have PAE", pae)
    }
}
