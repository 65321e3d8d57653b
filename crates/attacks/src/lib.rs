//! What the attacking kernel does, in one table: read by that kernel (`guests/hostile`), which
//! names the function behind each row, and by the test that says how each must end.
//!
//! Guarantees: names are unique; an attack that ends its VM, or never ends, is the last of its
//! [`Subject`], since nothing could come after it. It doesn't guarantee that the kernel has a
//! function for each: one that it lacks fails when it is run.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod disks;
mod emulation;
mod interrupts;
mod rows;
mod table;

use ledger::Reason;
pub use table::SUBJECTS;

/// One thing that a guest shouldn't do.
#[derive(Clone, Copy, Debug)]
pub struct Attack {
    /// Unique in its subject.
    pub name: &'static str,
    /// What it does, in a few words.
    pub does: &'static str,
    /// How it may end.
    pub ends: Ends,
    /// What the ledger must show of it.
    pub shows: &'static [Shown],
    /// What the host's log must tell of it.
    pub blocked: Option<Blocked>,
    /// How many interrupts and exceptions its own handlers must have had at the least.
    pub takes: u64,
}

impl Attack {
    /// The same; its own handlers have had so many interrupts and exceptions, whatever the policy.
    pub(crate) const fn taking(self, takes: u64) -> Attack {
        Attack { takes, ..self }
    }

    /// How often it must have begun at the least.
    pub const fn begins(&self) -> usize {
        match self.ends {
            Ends::Resets => 1 + RESETS,
            _ => 1,
        }
    }
}

/// After so many resets a VM that resets again and again has shown that it does.
pub const RESETS: usize = 3;

/// How an attack may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// It has no effect outside its VM, which goes on.
    Contained,
    /// The VM is stopped for a reason that contains this text.
    Stopped(&'static str),
    /// It goes on for as long as nobody ends the machine.
    Never,
    /// It goes on in the same way, but for the resets of its VM, with each of which it begins anew.
    Resets,
}

/// A count in the ledger that tells of an attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// What the exits were for.
    pub reason: Reason,
    /// How many there are at the least under `trap` and `eli`, on a core of its own.
    pub eli: u64,
    /// Under `direct`.
    pub direct: u64,
    /// Under `trap` and `eli`, on a core that it shares.
    pub shared: u64,
    /// Without devices, by a CPU with VMX: on Bochs' machine, on a core of its own.
    pub alone: u64,
    /// Nor more.
    pub exact: bool,
}

/// DMA of the attacker's that is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// By which of its devices.
    pub device: Device,
    /// What it is to the host, in its log.
    pub what: &'static str,
}

/// The devices that an attacker has, one of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// QEMU's teaching device.
    Edu,
    /// A controller with nothing behind it.
    Nvme,
}

/// Attacks of a kind, which one VM goes through in this order.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    /// Unique.
    pub name: &'static str,
    /// They need so many vCPUs.
    pub cpus: u32,
    /// What it does.
    pub attacks: &'static [Attack],
}

/// The subjects with these names, separated by commas; a name that there isn't gives nothing.
pub fn chosen(names: &str) -> impl Iterator<Item = &'static Subject> {
    names.split(',').filter_map(|name| SUBJECTS.iter().find(|s| s.name == name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_fit_a_line() {
        let mut subjects = HashSet::new();
        for subject in SUBJECTS {
            assert!(subjects.insert(subject.name), "{} stands twice", subject.name);
            let names: HashSet<_> = subject.attacks.iter().map(|a| a.name).collect();
            assert_eq!(names.len(), subject.attacks.len(), "{}", subject.name);
            assert!(names.iter().all(|n| !n.contains([' ', ',', '/'])));
        }
    }

    #[test]
    fn nothing_follows_what_ends_a_vm() {
        for subject in SUBJECTS {
            let last = subject.attacks.iter().position(|a| a.ends != Ends::Contained);
            assert!(last.is_none_or(|i| i + 1 == subject.attacks.len()), "{}", subject.name);
        }
    }

    #[test]
    fn only_what_resets_begins_anew() {
        let begins = |ends| Attack { ends, ..SUBJECTS[0].attacks[0] }.begins();
        assert_eq!(begins(Ends::Resets), 4);
        assert_eq!([Ends::Contained, Ends::Stopped(""), Ends::Never].map(begins), [1; 3]);
    }

    /// What the table's helpers fill in, by a row of each.
    #[test]
    fn rows_have_what_they_are_made_with() {
        let subject = |name: &str| *chosen(name).next().unwrap();
        let attack = |name: &str, attack: &str| {
            *subject(name).attacks.iter().find(|a| a.name == attack).unwrap()
        };
        assert_eq!(attack("interrupts", "no-eoi").takes, 13);
        let dma = subject("dma");
        assert!(dma.attacks.iter().any(|a| a.blocked.is_some_and(|b| b.device == Device::Edu)));
        assert_eq!((subject("unmapped-idt").cpus, subject("unmapped-idt-smp").cpus), (1, 2));
        let resets = attack("reboot-loop", "now").shows;
        assert_eq!(
            resets.iter().map(|s| (s.reason, s.eli)).collect::<Vec<_>>(),
            [(Reason::PortIo, 9)]
        );
    }

    /// What is counted exactly: every access but those that `docs/design.md` names as open.
    #[test]
    fn whoever_tries_everything_exits_for_all_that_is_closed() {
        let exact = |subject: &str| {
            let subject = chosen(subject).next().unwrap();
            let shown = subject.attacks.iter().flat_map(|a| a.shows).filter(|s| s.exact);
            shown.map(|s| (s.reason, [s.eli, s.direct, s.shared])).collect::<Vec<_>>()
        };
        let wanted = [(Reason::MsrRead, [25_089; 3]), (Reason::MsrWrite, [25_090; 3])];
        assert_eq!(exact("msrs"), wanted);
        assert_eq!(exact("ports"), [(Reason::PortIo, [42_687; 3])]);
        assert_eq!(SUBJECTS.iter().filter(|s| !exact(s.name).is_empty()).count(), 2);
    }

    #[test]
    fn a_choice_has_its_subjects_in_order() {
        let names = |text| chosen(text).map(|s| s.name).collect::<Vec<_>>();
        assert_eq!(names("exits,nothing,interrupts"), ["exits", "interrupts"]);
        assert_eq!(names(""), [""; 0]);
    }
}
