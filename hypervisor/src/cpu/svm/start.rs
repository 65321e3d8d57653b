//! The states a vCPU starts in: as a boot loader enters a kernel, and as INIT and a start-up
//! interrupt leave a processor (APM vol. 2, 14.1.3 and 15.27.8). MSRs that INIT leaves alone are
//! left alone here, too.

use super::vmcb::{Segment, Vmcb};

const CR0_PE_ET: u64 = 0x11;
const CR0_PG: u64 = 1 << 31;
/// After INIT CD and NW are as they were; the guest's caches are the machine's, so they are clear.
const CR0_ET: u64 = 0x10;
const CR4_PAE: u64 = 1 << 5;
const EFER_LME_LMA: u64 = 1 << 8 | 1 << 10;

impl Vmcb {
    /// Flat segments of 32 bits, or of 64 with these page tables.
    pub fn enter_kernel(
        &mut self,
        rip: u64,
        page_tables: Option<u64>,
        (gdt, gdt_limit): (u64, u16),
        (code, data): (u16, u16),
    ) {
        self.clear(rip);
        // Attributes: present, S=1, DPL 0; code: execute/read, L or D; data: read/write, D, G.
        self.cs = Segment::flat(code, if page_tables.is_some() { 0xA9B } else { 0xC9B });
        let data = Segment::flat(data, 0xC93);
        (self.ds, self.es, self.fs, self.gs, self.ss) = (data, data, data, data, data);
        // Which an INIT leaves alone, but a reset doesn't.
        (self.star, self.lstar, self.cstar, self.sfmask) = (0, 0, 0, 0);
        (self.sysenter_cs, self.sysenter_esp, self.sysenter_eip) = (0, 0, 0);
        self.kernel_gs_base = 0;
        self.gdtr = table(gdt, u32::from(gdt_limit));
        self.idtr = table(0, 0);
        self.cr0 = CR0_PE_ET;
        if let Some(tables) = page_tables {
            self.cr0 |= CR0_PG;
            self.cr4 = CR4_PAE;
            self.cr3 = tables;
            self.efer = EFER_LME_LMA;
        }
    }

    /// Real mode at a page of the first MiB.
    pub fn start_up(&mut self, page: u8) {
        self.clear(0);
        let segment = |selector: u16, attributes| Segment {
            selector,
            attributes,
            limit: 0xFFFF,
            base: u64::from(selector) << 4,
        };
        self.cs = segment(u16::from(page) << 8, 0x9B);
        let data = segment(0, 0x93);
        (self.ds, self.es, self.fs, self.gs, self.ss) = (data, data, data, data, data);
        self.gdtr = table(0, 0xFFFF);
        self.idtr = table(0, 0xFFFF);
        self.cr0 = CR0_ET;
    }

    /// What all starts have in common.
    fn clear(&mut self, rip: u64) {
        self.tr = Segment { selector: 0, attributes: 0x8B, limit: 0x67, base: 0 };
        self.ldtr = Segment { selector: 0, attributes: 0x82, limit: 0xFFFF, base: 0 };
        self.cpl = 0;
        self.efer = 0;
        (self.cr2, self.cr3, self.cr4) = (0, 0, 0);
        self.dr6 = 0xFFFF_0FF0;
        self.dr7 = 0x400;
        self.rflags = 2;
        self.rip = rip;
        (self.rax, self.rsp) = (0, 0);
        self.g_pat = 0x0007_0406_0007_0406;
        self.interrupt_shadow = 0;
        self.event_inj = 0;
    }
}

fn table(base: u64, limit: u32) -> Segment {
    Segment { selector: 0, attributes: 0, limit, base }
}
