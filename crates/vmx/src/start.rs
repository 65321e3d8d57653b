//! The states a vCPU starts in: as a boot loader enters a kernel, and as INIT and a start-up
//! interrupt leave a processor (SDM vol. 3, 10.1.1). MSRs that INIT leaves alone are left alone
//! here, too. What belongs to neither, controls and the host's state, is written once.
//!
//! Guarantees: on a CPU that [`Capabilities::suffice`] says yes to, what is written here passes
//! [`crate::entry::check`].

use crate::controls::{Controls, entry, secondary};
use crate::field::{self, Segment};
use crate::{Area, Capabilities};
use vendor::{PAT_AT_RESET, Start};

const CR0_PE: u64 = 1 << 0;
const CR0_TS_MP: u64 = 1 << 3 | 1 << 1;
const CR0_ET: u64 = 1 << 4;
const CR0_PG: u64 = 1 << 31;
const CR4_PAE: u64 = 1 << 5;
/// Machine checks are let in.
pub const CR4_MCE: u64 = 1 << 6;
const EFER_LME_LMA: u64 = 1 << 8 | 1 << 10;
const RFLAGS: u64 = 1 << 1;
const DR7: u64 = 0x400;

/// Bits of a segment's access rights (SDM vol. 3, table 25-2).
pub mod rights {
    /// Code or data; else the system's.
    pub const CODE_OR_DATA: u64 = 1 << 4;
    /// Present.
    pub const PRESENT: u64 = 1 << 7;
    /// 64-bit code.
    pub const LONG: u64 = 1 << 13;
    /// 32-bit code, or a stack of 32 bits.
    pub const BIG: u64 = 1 << 14;
    /// The limit counts pages.
    pub const PAGES: u64 = 1 << 15;
    /// The register holds nothing.
    pub const UNUSABLE: u64 = 1 << 16;
    /// Code, executed and read, accessed.
    pub const CODE: u64 = 0xB | CODE_OR_DATA | PRESENT;
    /// Data, read and written, accessed.
    pub const DATA: u64 = 0x3 | CODE_OR_DATA | PRESENT;
    /// A task state of 32 or 64 bits, busy.
    pub const BUSY_TASK: u64 = 0xB | PRESENT;
    /// A local descriptor table.
    pub const LOCAL_TABLE: u64 = 0x2 | PRESENT;
}

use rights::{BIG, BUSY_TASK, CODE, DATA, LOCAL_TABLE, LONG, PAGES};

/// Where the parts of a vCPU are that its control structure points to.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    /// Physical address of the first nested table, of four levels.
    pub nested_root: u64,
    /// Its number in translation caches; not 0.
    pub vpid: u16,
    /// Physical addresses of the two maps of ports.
    pub ports: [u64; 2],
    /// Of the map of MSRs.
    pub msrs: u64,
    /// Of the page with its virtual task priority.
    pub virtual_apic: u64,
}

/// #DB and #AC can recur without end inside the delivery of an event, where nothing but an exit
/// gets the core back (CVE-2015-8104, CVE-2015-5307); #MC is the host's.
pub const ALWAYS_EXCEPTIONS: u32 = 1 << 1 | 1 << 17 | 1 << 18;

/// Of CR0, what the guest changes without an exit: TS and MP, as on the other vendor.
pub const CR0_MASK: u64 = !CR0_TS_MP;

/// An EPT pointer: write-back, four levels, no accessed and dirty bits (SDM vol. 3, 25.6.11).
pub const fn ept_pointer(root: u64) -> u64 {
    root | 3 << 3 | 6
}

/// What a vCPU has for good.
pub fn set_up(area: &mut impl Area, capabilities: &Capabilities, made: &Controls, parts: &Parts) {
    let Parts { nested_root, vpid, ports, msrs, virtual_apic } = *parts;
    for (field, word) in [
        (field::PIN_CONTROLS, made.pin),
        (field::PRIMARY_CONTROLS, made.primary),
        (field::SECONDARY_CONTROLS, made.secondary),
        (field::EXIT_CONTROLS, made.exit),
        (field::ENTRY_CONTROLS, made.entry),
        (field::EXCEPTION_BITMAP, ALWAYS_EXCEPTIONS),
    ] {
        area.write(field, word.into());
    }
    area.write(field::VPID, vpid.into());
    area.write(field::EPT_POINTER, ept_pointer(nested_root));
    area.write(field::IO_BITMAP_A, ports[0]);
    area.write(field::IO_BITMAP_B, ports[1]);
    area.write(field::MSR_BITMAPS, msrs);
    area.write(field::VIRTUAL_APIC_ADDRESS, virtual_apic);
    area.write(field::VMCS_LINK_POINTER, u64::MAX);
    // VMXE and what else VMX wants is the host's, and whether machine checks are let in.
    area.write(field::CR4_MASK, hidden_cr4(capabilities));
    area.write(field::CR0_MASK, CR0_MASK);
    // A CPU without the control hasn't the field.
    for (control, map, value) in [
        (secondary::XSAVES, field::XSS_EXITING_BITMAP, 0),
        (secondary::ENCLS, field::ENCLS_EXITING_BITMAP, u64::MAX),
    ] {
        if made.secondary & control != 0 {
            area.write(map, value);
        }
    }
    for zero in [
        field::PAGE_FAULT_ERROR_MASK,
        field::PAGE_FAULT_ERROR_MATCH,
        field::CR3_TARGET_COUNT,
        field::EXIT_MSR_STORE_COUNT,
        field::EXIT_MSR_LOAD_COUNT,
        field::ENTRY_MSR_LOAD_COUNT,
        field::TPR_THRESHOLD,
        field::GUEST_DEBUGCTL,
    ] {
        area.write(zero, 0);
    }
}

/// Of CR4: what is set whatever the guest sees. VMX wants some of it. A machine check that comes
/// while MCE is clear shuts the whole machine down (SDM vol. 3, 17.7.1), whoever runs.
pub const fn hidden_cr4(capabilities: &Capabilities) -> u64 {
    capabilities.cr4.ones | CR4_MCE
}

/// CR0 for the guest, who reads `value`.
pub fn set_cr0(area: &mut impl Area, capabilities: &Capabilities, value: u64) {
    // PE and PG are its own: unrestricted guest.
    let ones = capabilities.cr0.ones & !(CR0_PE | CR0_PG);
    area.write(field::CR0_SHADOW, value);
    area.write(field::GUEST_CR0, value | ones);
}

/// CR4 for the guest, who reads `value`.
pub fn set_cr4(area: &mut impl Area, capabilities: &Capabilities, value: u64) {
    area.write(field::CR4_SHADOW, value);
    area.write(field::GUEST_CR4, value | hidden_cr4(capabilities));
}

/// EFER for the guest; its LMA is what the entry is into.
pub fn set_efer(area: &mut impl Area, value: u64) {
    let long = value & 1 << 10 != 0;
    let bit = u64::from(entry::LONG_MODE);
    let controls = area.read(field::ENTRY_CONTROLS);
    area.write(field::ENTRY_CONTROLS, if long { controls | bit } else { controls & !bit });
    area.write(field::GUEST_EFER, value);
}

/// The state of a processor at its start; registers that aren't in the control structure are the
/// caller's.
pub fn reset(area: &mut impl Area, capabilities: &Capabilities, start: Start) {
    match start {
        Start::Kernel { rip, page_tables, gdt, selectors, .. } => {
            clear(area, rip);
            kernel(area, capabilities, page_tables, gdt, selectors);
        }
        Start::StartUp { page } => {
            clear(area, 0);
            start_up(area, capabilities, page);
        }
    }
}

/// Flat segments of 32 bits, or of 64 with these page tables.
fn kernel(
    area: &mut impl Area,
    capabilities: &Capabilities,
    page_tables: Option<u64>,
    (gdt, gdt_limit): (u64, u16),
    (code, data): (u16, u16),
) {
    let flat = |area: &mut _, segment, selector, rights| {
        load(area, segment, selector, (0, 0xFFFF_FFFF), rights | PAGES);
    };
    for segment in Segment::USUAL {
        flat(area, segment, data, DATA | BIG);
    }
    flat(area, Segment::Cs, code, CODE | if page_tables.is_some() { LONG } else { BIG });
    // Which an INIT leaves alone, but a reset doesn't.
    area.write(field::GUEST_PAT, PAT_AT_RESET);
    area.write(field::TSC_OFFSET, 0);
    for zero in [field::GUEST_SYSENTER_CS, field::GUEST_SYSENTER_ESP, field::GUEST_SYSENTER_EIP] {
        area.write(zero, 0);
    }
    table(area, [field::GUEST_GDTR_BASE, field::GUEST_GDTR_LIMIT], gdt, gdt_limit);
    table(area, [field::GUEST_IDTR_BASE, field::GUEST_IDTR_LIMIT], 0, 0);
    let (paging, cr4, efer) = match page_tables {
        Some(_) => (CR0_PG, CR4_PAE, EFER_LME_LMA),
        None => (0, 0, 0),
    };
    set_cr0(area, capabilities, CR0_PE | CR0_ET | paging);
    set_cr4(area, capabilities, cr4);
    set_efer(area, efer);
    area.write(field::GUEST_CR3, page_tables.unwrap_or(0));
}

/// Real mode at a page of the first MiB. After INIT CD and NW are as they were; the guest's caches
/// are the machine's, so they are clear.
fn start_up(area: &mut impl Area, capabilities: &Capabilities, page: u8) {
    let real = |area: &mut _, segment, selector: u16, rights| {
        load(area, segment, selector, (u64::from(selector) << 4, 0xFFFF), rights);
    };
    for segment in Segment::USUAL {
        real(area, segment, 0, DATA);
    }
    real(area, Segment::Cs, u16::from(page) << 8, CODE);
    table(area, [field::GUEST_GDTR_BASE, field::GUEST_GDTR_LIMIT], 0, 0xFFFF);
    table(area, [field::GUEST_IDTR_BASE, field::GUEST_IDTR_LIMIT], 0, 0xFFFF);
    set_cr0(area, capabilities, CR0_ET);
    set_cr4(area, capabilities, 0);
    set_efer(area, 0);
    area.write(field::GUEST_CR3, 0);
}

/// The state that all starts have in common.
fn clear(area: &mut impl Area, rip: u64) {
    load(area, Segment::Tr, 0, (0, 0x67), BUSY_TASK);
    load(area, Segment::Ldtr, 0, (0, 0xFFFF), LOCAL_TABLE);
    area.write(field::GUEST_DR7, DR7);
    area.write(field::GUEST_RFLAGS, RFLAGS);
    area.write(field::GUEST_RIP, rip);
    for zero in [
        field::GUEST_RSP,
        field::GUEST_INTERRUPTIBILITY,
        field::GUEST_ACTIVITY,
        field::GUEST_PENDING_DEBUG,
        field::ENTRY_INTERRUPTION,
    ] {
        area.write(zero, 0);
    }
}

fn load(area: &mut impl Area, to: Segment, selector: u16, (base, limit): (u64, u32), rights: u64) {
    area.write(to.selector(), selector.into());
    area.write(to.base(), base);
    area.write(to.limit(), limit.into());
    area.write(to.rights(), rights);
}

fn table(area: &mut impl Area, [base, limit]: [crate::Field; 2], at: u64, last: u16) {
    area.write(base, at);
    area.write(limit, last.into());
}
