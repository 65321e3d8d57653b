//! L2's local APIC as AVIC has it (APM vol. 2, 15.29), for a CPU that has none: its registers lie
//! in the *backing page*, in L1's memory, where L1 puts interrupts for L2, too.
//!
//! Guarantees: what isn't accelerated is told to L1 as the CPU would; each word of the page is read
//! once where it decides something; no loop depends on what L1 wrote, who may write at any moment.
//!
//! Of what may be accelerated these are: reads, the task priority, completions of what is edge
//! triggered, and interrupts that L2 sends itself by the register for that. What L2 sends by ICR is
//! told as one that the CPU doesn't send.

/// What L1 wants of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avic {
    /// Guest-physical address of the backing page.
    pub page: u64,
    /// Where L2 has the registers, if it isn't in x2APIC mode.
    pub bar: Option<u64>,
}

/// The backing page, which L1's CPUs write meanwhile.
pub trait ApicPage {
    /// The word at this offset, a multiple of 16 below 4096.
    fn read(&self, at: u16) -> u32;
    /// Puts one there.
    fn write(&self, at: u16, value: u32);
    /// Sets bits of one, at once.
    fn set(&self, at: u16, bits: u32);
    /// Clears bits of one, at once.
    fn clear(&self, at: u16, bits: u32);
}

/// What an access comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// This is read.
    Value(u64),
    /// It is done.
    Done,
    /// #GP.
    Refused,
    /// It isn't done: L1 is told, and does it.
    Fault(Told),
    /// It is done, and L1 is told.
    Trap(Told),
}

/// An exit of AVIC's: its code, EXITINFO1 and EXITINFO2.
pub type Told = (u32, u64, u64);

const INCOMPLETE_IPI: u32 = 0x401;
const UNACCELERATED: u32 = 0x402;
/// Of EXITINFO1 of the latter: a write.
const WRITE: u64 = 1 << 32;

/// Registers, by the number of their MSR, and sixteenths of their offset.
mod register {
    pub const ID: u8 = 0x02;
    pub const VERSION: u8 = 0x03;
    pub const TPR: u8 = 0x08;
    pub const PPR: u8 = 0x0A;
    pub const EOI: u8 = 0x0B;
    pub const LDR: u8 = 0x0D;
    pub const DFR: u8 = 0x0E;
    pub const SVR: u8 = 0x0F;
    pub const ISR: u8 = 0x10;
    pub const TMR: u8 = 0x18;
    pub const IRR: u8 = 0x20;
    pub const ESR: u8 = 0x28;
    pub const ICR: u8 = 0x30;
    pub const ICR_HIGH: u8 = 0x31;
    pub const LVT_FIRST: u8 = 0x32;
    pub const TIMER_INITIAL: u8 = 0x38;
    pub const TIMER_CURRENT: u8 = 0x39;
    pub const TIMER_DIVIDE: u8 = 0x3E;
    pub const SELF_IPI: u8 = 0x3F;
}
use register::*;

const fn at(register: u8) -> u16 {
    (register as u16) << 4
}

/// A vector's bit in the registers from this one on.
const fn bit(first: u8, vector: u8) -> (u16, u32) {
    (at(first + vector / 32), 1 << (vector % 32))
}

/// The highest vector in eight registers.
fn highest(page: &impl ApicPage, first: u8) -> Option<u8> {
    (0..8u8).rev().find_map(|n| {
        let word = page.read(at(first + n));
        Some(n * 32 + word.checked_ilog2()? as u8)
    })
}

/// Brings the processor priority up to date; gives it.
fn prioritize(page: &impl ApicPage) -> u8 {
    let task = page.read(at(TPR)) as u8;
    let in_service = highest(page, ISR).unwrap_or(0) & 0xF0;
    let priority = if task & 0xF0 >= in_service { task } else { in_service };
    page.write(at(PPR), priority.into());
    priority
}

/// L2's task priority (CR8).
pub fn task_priority(page: &impl ApicPage) -> u8 {
    page.read(at(TPR)) as u8 >> 4
}

/// L2 may have written CR8.
pub fn set_task_priority(page: &impl ApicPage, cr8: u8) {
    if task_priority(page) != cr8 & 0xF {
        page.write(at(TPR), u32::from(cr8 & 0xF) << 4);
        prioritize(page);
    }
}

/// What waits for L2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Nothing that L2 could take before it completes another one.
    Nothing,
    /// One that its task priority holds back.
    Held,
    /// This one is L2's to take. It doesn't wait in the page any more: if it comes again from now
    /// on, that is another one.
    Offered(u8),
}

/// Does nothing wait, and is nothing in service or held back by the task priority? That of Linux is
/// 10h, so that no exception's vector is an interrupt's.
pub fn is_quiet(page: &impl ApicPage) -> bool {
    let none = |first| highest(page, first).is_none();
    page.read(at(TPR)) & 0xE0 == 0 && none(IRR) && none(ISR)
}

/// This vector waits for L2.
pub fn post(page: &impl ApicPage, vector: u8) {
    let (pending, mask) = bit(IRR, vector);
    page.set(pending, mask);
}

/// L2 has taken this one, by other means.
pub fn adopt(page: &impl ApicPage, vector: u8) {
    let (in_service, mask) = bit(ISR, vector);
    page.set(in_service, mask);
    prioritize(page);
}

/// Before L2 runs: what it is to be offered.
pub fn offer(page: &impl ApicPage) -> Waiting {
    let Some(vector) = highest(page, IRR) else { return Waiting::Nothing };
    let in_service = highest(page, ISR).unwrap_or(0) >> 4;
    if vector >> 4 <= in_service {
        return Waiting::Nothing;
    }
    if vector >> 4 <= task_priority(page) {
        return Waiting::Held;
    }
    let (pending, mask) = bit(IRR, vector);
    page.clear(pending, mask);
    Waiting::Offered(vector)
}

/// L2 took what it was offered.
pub fn accept(page: &impl ApicPage, vector: u8) {
    let (in_service, mask) = bit(ISR, vector);
    page.set(in_service, mask);
    prioritize(page);
}

/// L2 didn't: it waits again.
pub fn withdraw(page: &impl ApicPage, vector: u8) {
    let (pending, mask) = bit(IRR, vector);
    page.set(pending, mask);
}

/// L2 reads a register; `by_page`: from memory, else as an MSR.
pub fn read(page: &impl ApicPage, register: u8, by_page: bool) -> Access {
    let word = |register| u64::from(page.read(at(register)));
    match register {
        // What it counts down from is L1's.
        TIMER_CURRENT => Access::Fault((UNACCELERATED, at(register).into(), 0)),
        PPR => {
            prioritize(page);
            Access::Value(word(PPR))
        }
        ICR if !by_page => Access::Value(word(ICR) | word(ICR_HIGH) << 32),
        EOI | ICR_HIGH | DFR | SELF_IPI.. if !by_page => Access::Refused,
        ID | VERSION | TPR | LDR | SVR..=ESR | ICR | LVT_FIRST..=TIMER_INITIAL | TIMER_DIVIDE => {
            Access::Value(word(register))
        }
        DFR | ICR_HIGH => Access::Value(word(register)),
        _ if by_page => Access::Value(0),
        _ => Access::Refused,
    }
}

/// L2 writes one.
pub fn write(page: &impl ApicPage, register: u8, value: u64, by_page: bool) -> Access {
    let told = |code, info1, info2| Access::Trap((code, info1, info2));
    let wide = !by_page && register != ICR && value >> 32 != 0;
    match register {
        _ if wide => Access::Refused,
        TPR if !by_page && value > 0xFF => Access::Refused,
        TPR => {
            page.write(at(TPR), value as u32 & 0xFF);
            prioritize(page);
            Access::Done
        }
        EOI | ESR if !by_page && value != 0 => Access::Refused,
        EOI => complete(page),
        SELF_IPI if !by_page && value > 0xFF => Access::Refused,
        SELF_IPI if !by_page => {
            let (pending, mask) = bit(IRR, value as u8);
            page.set(pending, mask);
            Access::Done
        }
        ICR => {
            if !by_page {
                page.write(at(ICR_HIGH), (value >> 32) as u32);
            }
            page.write(at(ICR), value as u32);
            let high = u64::from(page.read(at(ICR_HIGH)));
            // Of a kind that isn't accelerated (cause 0).
            told(INCOMPLETE_IPI, high << 32 | value & 0xFFFF_FFFF, 0)
        }
        ICR_HIGH if by_page => {
            page.write(at(ICR_HIGH), value as u32);
            Access::Done
        }
        ID | LDR | DFR if !by_page => Access::Refused,
        ID | LDR | DFR | SVR | ESR | LVT_FIRST..=TIMER_INITIAL | TIMER_DIVIDE => {
            page.write(at(register), value as u32);
            told(UNACCELERATED, u64::from(at(register)) | WRITE, 0)
        }
        // Those that can only be read, and none.
        _ if by_page => Access::Done,
        _ => Access::Refused,
    }
}

/// L2 completes the interrupt that is in service. L1 completes a level-triggered one.
fn complete(page: &impl ApicPage) -> Access {
    let Some(vector) = highest(page, ISR) else { return Access::Done };
    let (mode, mask) = bit(TMR, vector);
    if page.read(mode) & mask != 0 {
        return Access::Trap((UNACCELERATED, u64::from(at(EOI)) | WRITE, vector.into()));
    }
    page.clear(bit(ISR, vector).0, mask);
    prioritize(page);
    Access::Done
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    struct Page(RefCell<[u32; 256]>);

    impl Page {
        fn new() -> Self {
            Page(RefCell::new([0; 256]))
        }

        fn vectors(&self, first: u8) -> BTreeSet<u8> {
            let has = |v: &u8| self.read(bit(first, *v).0) & bit(first, *v).1 != 0;
            (0..=255).filter(has).collect()
        }
    }

    impl ApicPage for Page {
        fn read(&self, at: u16) -> u32 {
            assert_eq!(at % 16, 0);
            self.0.borrow()[usize::from(at) / 16]
        }

        fn write(&self, at: u16, value: u32) {
            self.0.borrow_mut()[usize::from(at) / 16] = value;
        }

        fn set(&self, at: u16, bits: u32) {
            self.0.borrow_mut()[usize::from(at) / 16] |= bits;
        }

        fn clear(&self, at: u16, bits: u32) {
            self.0.borrow_mut()[usize::from(at) / 16] &= !bits;
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Post(u8),
        /// Whether it takes what it is offered, and whether that comes again before.
        Take(bool, bool),
        Complete,
        Priority(u8),
        SelfIpi(u8),
        Mode(u8, bool),
    }

    fn steps() -> impl Strategy<Value = Step> {
        prop_oneof![
            (16u8..).prop_map(Step::Post),
            any::<(bool, bool)>().prop_map(|(takes, again)| Step::Take(takes, again)),
            Just(Step::Complete),
            any::<u8>().prop_map(Step::Priority),
            (16u8..).prop_map(Step::SelfIpi),
            (16u8.., any::<bool>()).prop_map(|(v, level)| Step::Mode(v, level)),
        ]
    }

    proptest! {
        /// Against a local APIC by the book: sets of vectors.
        #[test]
        fn interrupts_go_by_priority(steps in prop::collection::vec(steps(), 1..80)) {
            let page = Page::new();
            let (mut pending, mut in_service) = (BTreeSet::new(), BTreeSet::new());
            let (mut level, mut task) = (BTreeSet::new(), 0u8);
            for step in steps {
                match step {
                    Step::Post(v) => {
                        page.set(bit(IRR, v).0, bit(IRR, v).1);
                        pending.insert(v);
                    }
                    Step::SelfIpi(v) => {
                        prop_assert_eq!(write(&page, SELF_IPI, v.into(), false), Access::Done);
                        pending.insert(v);
                    }
                    Step::Priority(p) => {
                        task = p;
                        prop_assert_eq!(write(&page, TPR, p.into(), false), Access::Done);
                    }
                    Step::Mode(v, is_level) => {
                        let (at, mask) = bit(TMR, v);
                        if is_level { page.set(at, mask); level.insert(v) }
                        else { page.clear(at, mask); level.remove(&v) };
                    }
                    Step::Take(takes, again) => {
                        let top = in_service.last().copied().unwrap_or(0);
                        let next = pending.last().copied().filter(|v| v >> 4 > top >> 4);
                        let wanted = match next {
                            None => Waiting::Nothing,
                            Some(v) if v >> 4 <= task >> 4 => Waiting::Held,
                            Some(v) => Waiting::Offered(v),
                        };
                        prop_assert_eq!(offer(&page), wanted);
                        if let Waiting::Offered(v) = wanted {
                            pending.remove(&v);
                            prop_assert_eq!(page.vectors(IRR), pending.clone());
                            if again {
                                page.set(bit(IRR, v).0, bit(IRR, v).1);
                                pending.insert(v);
                            }
                            if takes {
                                accept(&page, v);
                                in_service.insert(v);
                            } else {
                                withdraw(&page, v);
                                pending.insert(v);
                            }
                        }
                    }
                    Step::Complete => match in_service.last().copied() {
                        None => prop_assert_eq!(write(&page, EOI, 0, false), Access::Done),
                        Some(v) if level.contains(&v) => {
                            let told = Access::Trap((0x402, 0xB0 | 1 << 32, v.into()));
                            prop_assert_eq!(write(&page, EOI, 0, false), told);
                        }
                        Some(v) => {
                            prop_assert_eq!(write(&page, EOI, 0, true), Access::Done);
                            in_service.remove(&v);
                        }
                    },
                }
                prop_assert_eq!(page.vectors(IRR), pending.clone());
                prop_assert_eq!(page.vectors(ISR), in_service.clone());
                let top = in_service.last().copied().unwrap_or(0) & 0xF0;
                let priority = if task & 0xF0 >= top { task } else { top };
                prop_assert_eq!(read(&page, PPR, false), Access::Value(priority.into()));
            }
        }

        #[test]
        fn any_access_to_any_page_is_answered(
            words in prop::collection::vec(any::<u32>(), 256),
            register: u8, value: u64, by_page: bool,
        ) {
            let page = Page::new();
            page.0.borrow_mut().copy_from_slice(&words);
            // A page has 256 registers, an MSR's number fewer.
            let register = if by_page { register } else { register % 64 };
            read(&page, register, by_page);
            write(&page, register, value, by_page);
            offer(&page);
            accept(&page, value as u8);
        }
    }

    #[test]
    fn what_is_not_accelerated_is_told_as_the_cpu_tells_it() {
        let page = Page::new();
        let icr = 0x2_000C_0041;
        let told = Access::Trap((0x401, icr, 0));
        assert_eq!(write(&page, ICR, icr, false), told);
        assert_eq!(read(&page, ICR, false), Access::Value(icr));
        assert_eq!((page.read(0x300), page.read(0x310)), (0xC_0041, 2));
        assert_eq!(write(&page, ICR_HIGH, 0x300_0000, true), Access::Done);
        assert_eq!(
            write(&page, ICR, 0x4041, true),
            Access::Trap((0x401, 0x300_0000 << 32 | 0x4041, 0))
        );
        for (register, by_page) in [
            (SVR, false),
            (ESR, true),
            (LVT_FIRST, false),
            (0x37, true),
            (TIMER_INITIAL, false),
            (LDR, true),
        ] {
            let told = (0x402, u64::from(register) << 4 | 1 << 32, 0);
            assert_eq!(write(&page, register, 0x1FF, by_page), Access::Trap(told));
            assert_eq!(read(&page, register, by_page), Access::Value(0x1FF), "{register:#x}");
        }
        assert_eq!(read(&page, TIMER_CURRENT, false), Access::Fault((0x402, 0x390, 0)));
    }

    #[test]
    fn what_is_no_register_is_refused_to_msrs_and_nothing_in_memory() {
        let page = Page::new();
        for register in [0, 4, 7, 9, 0xC, 0x29, 0x2E, 0x31, 0x3A, 0x3D] {
            let refused = (read(&page, register, false), write(&page, register, 0, false));
            assert_eq!(refused, (Access::Refused, Access::Refused), "{register:#x}");
        }
        for register in [0x00, 0x09, 0x3F, 0x40, 0xFF] {
            let nothing = (read(&page, register, true), write(&page, register, 7, true));
            assert_eq!(nothing, (Access::Value(0), Access::Done), "{register:#x}");
        }
        for (register, value) in [
            (TPR, 0x100),
            (EOI, 1),
            (ESR, 1),
            (SELF_IPI, 0x100),
            (ID, 0),
            (LDR, 0),
            (DFR, 0),
            (PPR, 0),
            (IRR, 0),
            (SVR, 1 << 32),
        ] {
            assert_eq!(write(&page, register, value, false), Access::Refused, "{register:#x}");
        }
        assert!([EOI, SELF_IPI, DFR].iter().all(|r| read(&page, *r, false) == Access::Refused));
        assert_eq!(page.0.into_inner(), [0; 256]);
    }

    #[test]
    fn cr8_is_the_upper_half_of_the_task_priority() {
        let page = Page::new();
        write(&page, TPR, 0x47, false);
        set_task_priority(&page, 4);
        assert_eq!((task_priority(&page), page.read(0x80)), (4, 0x47), "it isn't another");
        set_task_priority(&page, 9);
        assert_eq!((page.read(0x80), page.read(0xA0)), (0x90, 0x90));
    }
}
