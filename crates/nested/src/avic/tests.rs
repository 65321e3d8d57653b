//! What L2's local APIC does, against one by the book.

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
    #[cfg_attr(miri, ignore = "takes minutes")]
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
                            post(&page, v);
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
