//! The states a vCPU starts in: as a boot loader enters a kernel, and as INIT and a start-up
//! interrupt leave a processor (APM vol. 2, 14.1.3 and 15.27.8). MSRs that INIT leaves alone are
//! left alone here, too.

use crate::vmcb::{Segment, Vmcb};
use vendor::PAT_AT_RESET;

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
        self.g_pat = PAT_AT_RESET;
        self.tsc_offset = 0;
        (self.star, self.lstar, self.cstar, self.sfmask) = (0, 0, 0, 0);
        (self.sysenter_cs, self.sysenter_esp, self.sysenter_eip) = (0, 0, 0);
        self.kernel_gs_base = 0;
        self.spec_ctrl = 0;
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

    /// The state that all starts have in common.
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
        self.interrupt_shadow = 0;
        self.event_inj = 0;
        self.int_ctl = 0;
    }
}

fn table(base: u64, limit: u32) -> Segment {
    Segment { selector: 0, attributes: 0, limit, base }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    /// Any values that a guest may leave in the fields that it can change.
    fn used() -> Box<Vmcb> {
        let mut v = Box::new(Vmcb::new_zeroed());
        let junk = Segment { selector: 0x77, attributes: 0xFFF, limit: 0x77, base: 0x77 };
        let v_ = &mut *v;
        for segment in [
            &mut v_.es,
            &mut v_.cs,
            &mut v_.ss,
            &mut v_.ds,
            &mut v_.fs,
            &mut v_.gs,
            &mut v_.gdtr,
            &mut v_.ldtr,
            &mut v_.idtr,
            &mut v_.tr,
        ] {
            *segment = junk;
        }
        for word in [
            &mut v_.cr0,
            &mut v_.cr2,
            &mut v_.cr3,
            &mut v_.cr4,
            &mut v_.dr6,
            &mut v_.dr7,
            &mut v_.efer,
            &mut v_.rflags,
            &mut v_.rip,
            &mut v_.rsp,
            &mut v_.rax,
            &mut v_.star,
            &mut v_.lstar,
            &mut v_.cstar,
            &mut v_.sfmask,
            &mut v_.kernel_gs_base,
            &mut v_.sysenter_cs,
            &mut v_.sysenter_esp,
            &mut v_.sysenter_eip,
            &mut v_.g_pat,
            &mut v_.spec_ctrl,
            &mut v_.interrupt_shadow,
            &mut v_.event_inj,
            &mut v_.int_ctl,
            &mut v_.tsc_offset,
        ] {
            *word = 0x7777_7777_7777;
        }
        v.cpl = 3;
        v
    }

    /// The state that INIT and reset have in common.
    fn check_common(v: &Vmcb) {
        assert_eq!((v.cr2, v.cr3, v.dr6, v.dr7), (0, 0, 0xFFFF_0FF0, 0x400));
        assert_eq!((v.rflags, v.rsp, v.rax, v.cpl), (2, 0, 0, 0));
        assert_eq!((v.interrupt_shadow, v.event_inj, v.int_ctl), (0, 0, 0));
        assert_eq!((v.tr.selector, v.tr.attributes, v.tr.base), (0, 0x8B, 0));
        assert_eq!((v.ldtr.selector, v.ldtr.attributes, v.ldtr.base), (0, 0x82, 0));
        assert_eq!((v.fs.base, v.gs.base), (0, 0));
    }

    #[test]
    fn a_start_up_is_in_real_mode_and_leaves_msrs_alone() {
        let mut v = used();
        v.start_up(0x9A);
        check_common(&v);
        assert_eq!((v.cr0, v.cr4, v.efer, v.rip), (0x10, 0, 0, 0));
        assert_eq!((v.cs.selector, v.cs.base, v.cs.limit), (0x9A00, 0x9A000, 0xFFFF));
        assert_eq!((v.idtr.base, v.idtr.limit, v.gdtr.limit), (0, 0xFFFF, 0xFFFF));
        for kept in [v.star, v.lstar, v.kernel_gs_base, v.sysenter_eip, v.g_pat, v.tsc_offset] {
            assert_eq!(kept, 0x7777_7777_7777);
        }
    }

    #[test]
    fn a_kernel_finds_nothing_of_the_one_before() {
        for tables in [None, Some(0x5000)] {
            let mut v = used();
            v.enter_kernel(0x10_0000, tables, (0x6000, 0x27), (8, 16));
            check_common_but_cr3(&v, tables);
            assert_eq!((v.star, v.lstar, v.cstar, v.sfmask, v.kernel_gs_base), (0, 0, 0, 0, 0));
            assert_eq!((v.sysenter_cs, v.sysenter_esp, v.sysenter_eip), (0, 0, 0));
            assert_eq!((v.g_pat, v.tsc_offset, v.spec_ctrl), (PAT_AT_RESET, 0, 0));
            assert_eq!((v.rip, v.cs.selector, v.ss.selector), (0x10_0000, 8, 16));
            assert_eq!((v.gdtr.base, v.gdtr.limit, v.idtr.limit), (0x6000, 0x27, 0));
            let long = tables.is_some();
            assert_eq!((v.efer, v.cr4), if long { (0x500, 0x20) } else { (0, 0) });
            assert_eq!(v.cr0, if long { 0x8000_0011 } else { 0x11 });
        }
    }

    fn check_common_but_cr3(v: &Vmcb, tables: Option<u64>) {
        assert_eq!(v.cr3, tables.unwrap_or(0));
        let mut copy = Vmcb::new_zeroed();
        copy.start_up(0);
        for (a, b) in [(v.cr2, copy.cr2), (v.dr6, copy.dr6), (v.dr7, copy.dr7)] {
            assert_eq!(a, b);
        }
        assert_eq!((v.rflags, v.rsp, v.rax, v.cpl), (2, 0, 0, 0));
        assert_eq!((v.interrupt_shadow, v.event_inj, v.int_ctl), (0, 0, 0));
        assert_eq!((v.tr, v.ldtr), (copy.tr, copy.ldtr));
    }
}
