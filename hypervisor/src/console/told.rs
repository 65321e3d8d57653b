//! What records tell a person, as lines of the log.
//!
//! Guarantees: a line is made of the record itself, where that is made, so that nobody here reads
//! records back.

use super::names;
use alloc::format;
use alloc::string::String;
use proto::{End, Record};

/// The line for a screen, on which nobody decodes records.
#[cold]
#[inline(never)]
pub(super) fn line(record: &Record) -> Option<String> {
    Some(match record {
        Record::Started { name, policy, why, .. } => {
            format!("VM {name} starts with interrupts by {}: {why}\n", policy.label())
        }
        Record::Ended { vm, end: end @ End::Fault(_) } => {
            format!("error: VM {} {end}\n", names::of(*vm))
        }
        Record::Ended { vm, end } => format!("VM {} {end}\n", names::of(*vm)),
        Record::Incident { vm, what } => {
            format!("warning: VM {}: {what}\n", names::of(*vm))
        }
        Record::Leaving => "every VM has ended: the machine is reset or switched off\n".into(),
        // The log has what matters of these.
        Record::Refused { .. }
        | Record::Machine { .. }
        | Record::Counters { .. }
        | Record::Live { .. }
        | Record::Audit { .. }
        | Record::Offer(_)
        | Record::Paravirtual { .. }
        | Record::Paused { .. }
        | Record::Sidecore { .. } => return None,
    })
}
