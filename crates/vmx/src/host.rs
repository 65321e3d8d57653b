//! The host's state in a control structure: what an exit loads.

use crate::{Area, field};

/// What an exit loads, in 64-bit mode; ES, SS, DS, FS and GS get selector 0.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// CR0, CR3 and CR4.
    pub control: [u64; 3],
    /// EFER.
    pub efer: u64,
    /// PAT.
    pub pat: u64,
    /// Selectors of CS and TR.
    pub selectors: [u16; 2],
    /// FS and GS begin here.
    pub bases: [u64; 2],
    /// TR begins here.
    pub task: u64,
    /// GDT and IDT begin here; their limits become 0xFFFF.
    pub tables: [u64; 2],
    /// Where the host goes on.
    pub rip: u64,
}

impl Host {
    /// Writes it, but for the stack, which is each entry's. SYSENTER isn't used by the host.
    pub fn write(&self, area: &mut impl Area) {
        let [cr0, cr3, cr4] = self.control;
        let [code, task] = self.selectors;
        let [fs, gs] = self.bases;
        let [gdt, idt] = self.tables;
        for (field, value) in [
            (field::HOST_CR0, cr0),
            (field::HOST_CR3, cr3),
            (field::HOST_CR4, cr4),
            (field::HOST_EFER, self.efer),
            (field::HOST_PAT, self.pat),
            (field::HOST_CS_SELECTOR, code.into()),
            (field::HOST_TR_SELECTOR, task.into()),
            (field::HOST_FS_BASE, fs),
            (field::HOST_GS_BASE, gs),
            (field::HOST_TR_BASE, self.task),
            (field::HOST_GDTR_BASE, gdt),
            (field::HOST_IDTR_BASE, idt),
            (field::HOST_RIP, self.rip),
        ] {
            area.write(field, value);
        }
        for zero in [
            field::HOST_ES_SELECTOR,
            field::HOST_SS_SELECTOR,
            field::HOST_DS_SELECTOR,
            field::HOST_FS_SELECTOR,
            field::HOST_GS_SELECTOR,
            field::HOST_SYSENTER_CS,
            field::HOST_SYSENTER_ESP,
            field::HOST_SYSENTER_EIP,
        ] {
            area.write(zero, 0);
        }
    }
}
