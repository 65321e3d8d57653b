//! GDT and TSS of each core.
//!
//! Guarantees: TR is always a present 64-bit TSS; double faults, NMIs and
//! machine checks run on stacks of their own, so that they are reported however
//! bad the state of the main stack is. No NMI interrupts an NMI handler that has this stack: the
//! CPU blocks it until IRET, and the handler faults nowhere. QEMU delivers a guest's *interrupt* of
//! vector 2, too, which blocks nothing: where one may arrive, another table is loaded
//! ([`load_tolerant`](crate::interrupts::load_tolerant)).

use alloc::boxed::Box;
use x86_64::{
    VirtAddr,
    instructions::{
        segmentation::{CS, DS, ES, SS, Segment},
        tables::load_tss,
    },
    structures::{
        gdt::{Descriptor, GlobalDescriptorTable, SegmentSelector},
        tss::TaskStateSegment,
    },
};

/// Selector of the host's code segment.
pub const CODE: u16 = 0x08;
/// Selector of the host's data segment.
pub const DATA: u16 = 0x10;
/// Selector of each core's TSS.
pub const TASK: u16 = 0x18;

/// IST entries (APM 2 8.9.4), counted from 1 as in gates.
pub const IST_DOUBLE_FAULT: u8 = 1;
/// For NMIs.
pub const IST_NMI: u8 = 2;
/// For machine checks.
pub const IST_MACHINE_CHECK: u8 = 3;

/// How many stacks [`Tables::new`] wants.
pub const STACKS: usize = 3;

/// One core's descriptor tables.
pub struct Tables {
    gdt: GlobalDescriptorTable<8>,
}

impl Tables {
    /// Tables with these stack tops for IST entries 1, 2, 3. They are never freed.
    pub fn new(stacks: [u64; STACKS]) -> &'static Tables {
        let mut tss = TaskStateSegment::new();
        let [double_fault, nmi, machine_check] = stacks.map(VirtAddr::new_truncate);
        let free = VirtAddr::zero();
        tss.interrupt_stack_table = [double_fault, nmi, machine_check, free, free, free, free];
        let mut gdt = GlobalDescriptorTable::empty();
        gdt.append(Descriptor::kernel_code_segment());
        gdt.append(Descriptor::kernel_data_segment());
        gdt.append(Descriptor::tss_segment(Box::leak(Box::new(tss))));
        Box::leak(Box::new(Tables { gdt }))
    }

    /// Makes them the tables of the core this runs on, which no other core may use.
    pub fn load(&'static self) {
        self.gdt.load();
        let data = SegmentSelector(DATA);
        // SAFETY: the selectors are of the table just loaded, in the order they were appended in.
        unsafe {
            CS::set_reg(SegmentSelector(CODE));
            DS::set_reg(data);
            ES::set_reg(data);
            SS::set_reg(data);
            load_tss(SegmentSelector(TASK));
        }
    }
}
