//! The function behind each row of [`attacks::SUBJECTS`].

use crate::{Doing, ends, exits, interrupts};

/// By subject and name.
pub const ALL: &[((&str, &str), Doing)] = &[
    (("interrupts", "off"), interrupts::off),
    (("exits", "cpuid"), exits::cpuid),
    (("triple-fault", "triple-fault"), ends::triple_fault),
    (("off-for-ever", "off-for-ever"), ends::off_for_ever),
];
