//! The controls of how a guest runs, is left and is entered (SDM vol. 3, 25.6 to 25.8): their bits,
//! those that the host's safety needs, and the fit to what a CPU allows.
//!
//! Guarantees: [`Controls::fit`] gives controls that the CPU allows, or names the first that it
//! lacks. All of [`Controls::NEEDED`] is set in them, and nothing of [`Controls::OPEN`], which
//! would take an exit where there must be none.

use crate::capabilities::{Capabilities, Lack};

macro_rules! bits {
    ($($(#[doc = $doc:literal])* $name:ident = $bit:literal,)*) => {
        $($(#[doc = $doc])* pub const $name: u32 = 1 << $bit;)*
    };
}

/// Pin-based: what happens at events from outside.
pub mod pin {
    bits! {
        /// Physical interrupts exit: injection mode.
        EXTERNAL_INTERRUPT = 0,
        /// NMIs exit.
        NMI = 3,
        /// The CPU keeps the guest's own blocking of NMIs.
        VIRTUAL_NMIS = 5,
        /// The guest is left when a count is down.
        PREEMPTION_TIMER = 6,
        /// What is posted is delivered without an exit.
        POSTED = 7,
    }
}

/// Processor-based, the first word.
pub mod primary {
    bits! {
        /// Exit as soon as the guest lets interrupts in.
        INTERRUPT_WINDOW = 2,
        /// RDTSC gives the guest an offset.
        TSC_OFFSETTING = 3,
        /// HLT exits.
        HLT = 7,
        /// INVLPG exits.
        INVLPG = 9,
        /// MWAIT exits.
        MWAIT = 10,
        /// RDPMC exits.
        RDPMC = 11,
        /// RDTSC exits.
        RDTSC = 12,
        /// MOV to CR3 exits.
        CR3_LOAD = 15,
        /// MOV from CR3 exits.
        CR3_STORE = 16,
        /// MOV to CR8 exits.
        CR8_LOAD = 19,
        /// MOV from CR8 exits.
        CR8_STORE = 20,
        /// CR8 is a byte of the virtual-APIC page.
        TPR_SHADOW = 21,
        /// Exit as soon as the guest could take an NMI.
        NMI_WINDOW = 22,
        /// MOV to and from debug registers exits.
        MOV_DR = 23,
        /// Each access to a port exits.
        UNCONDITIONAL_IO = 24,
        /// Accesses to ports exit by a map.
        IO_BITMAPS = 25,
        /// Exit behind each instruction.
        TRAP_FLAG = 27,
        /// Accesses to MSRs exit by a map.
        MSR_BITMAPS = 28,
        /// MONITOR exits.
        MONITOR = 29,
        /// PAUSE exits.
        PAUSE = 30,
        /// The second word counts.
        SECONDARY = 31,
    }
}

/// Processor-based, the second word.
pub mod secondary {
    bits! {
        /// Accesses to the page of the local APIC are virtual.
        VIRTUALIZE_APIC = 0,
        /// Nested paging.
        EPT = 1,
        /// LGDT, LIDT, LLDT, LTR, SGDT, SIDT, SLDT and STR exit.
        DESCRIPTOR_TABLES = 2,
        /// RDTSCP and RDPID are there.
        RDTSCP = 3,
        /// Accesses to the MSRs of the local APIC are virtual.
        VIRTUALIZE_X2APIC = 4,
        /// Cached translations have a number for the guest.
        VPID = 5,
        /// WBINVD exits.
        WBINVD = 6,
        /// Real mode, and protected mode without paging.
        UNRESTRICTED = 7,
        /// Registers of the local APIC are read from a page.
        APIC_REGISTERS = 8,
        /// The CPU delivers virtual interrupts.
        VIRTUAL_DELIVERY = 9,
        /// INVPCID is there.
        INVPCID = 12,
        /// SGX's instructions for kernels exit by a map.
        ENCLS = 15,
        /// XSAVES and XRSTORS are there.
        XSAVES = 20,
    }
}

/// At an exit.
pub mod exit {
    bits! {
        /// DR7 and DEBUGCTL are saved.
        SAVE_DEBUG = 2,
        /// The host is in 64-bit mode.
        HOST_64 = 9,
        /// An interrupt that exits is taken from the local APIC by the exit.
        ACKNOWLEDGE = 15,
        /// The guest's PAT is saved.
        SAVE_PAT = 18,
        /// The host's is loaded.
        LOAD_PAT = 19,
        /// The guest's EFER is saved.
        SAVE_EFER = 20,
        /// The host's is loaded.
        LOAD_EFER = 21,
        /// What is left of the preemption timer is saved.
        SAVE_TIMER = 22,
    }
}

/// At an entry.
pub mod entry {
    bits! {
        /// DR7 and DEBUGCTL are loaded.
        LOAD_DEBUG = 2,
        /// The guest is in long mode.
        LONG_MODE = 9,
        /// Into system management mode.
        TO_SMM = 10,
        /// Ends the treatment of system management mode by two monitors.
        DEACTIVATE_DUAL = 11,
        /// The guest's PAT is loaded.
        LOAD_PAT = 14,
        /// The guest's EFER is loaded.
        LOAD_EFER = 15,
    }
}

/// The words of controls, as they stand in a control structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Controls {
    /// Pin-based.
    pub pin: u32,
    /// Processor-based, the first word.
    pub primary: u32,
    /// The second word.
    pub secondary: u32,
    /// At an exit.
    pub exit: u32,
    /// At an entry.
    pub entry: u32,
}

impl Controls {
    /// Those that every guest has, in every mode.
    pub const NEEDED: Controls = Controls {
        pin: pin::NMI | pin::VIRTUAL_NMIS,
        primary: primary::TSC_OFFSETTING
            | primary::MWAIT
            | primary::RDPMC
            | primary::TPR_SHADOW
            | primary::IO_BITMAPS
            | primary::MSR_BITMAPS
            | primary::MONITOR
            | primary::SECONDARY,
        secondary: secondary::EPT | secondary::VPID | secondary::WBINVD | secondary::UNRESTRICTED,
        exit: exit::SAVE_DEBUG
            | exit::HOST_64
            | exit::SAVE_PAT
            | exit::LOAD_PAT
            | exit::SAVE_EFER
            | exit::LOAD_EFER,
        entry: entry::LOAD_DEBUG | entry::LOAD_PAT | entry::LOAD_EFER,
    };

    /// Those that are set at times, and which the CPU must have, too.
    pub const AT_TIMES: Controls = Controls {
        pin: pin::EXTERNAL_INTERRUPT | pin::PREEMPTION_TIMER,
        primary: primary::INTERRUPT_WINDOW | primary::HLT | primary::NMI_WINDOW,
        secondary: secondary::DESCRIPTOR_TABLES,
        exit: 0,
        entry: entry::LONG_MODE,
    };

    /// Those of posted mode, which a CPU may lack ([`Capabilities::posts`]).
    pub const POSTED: Controls = Controls {
        pin: pin::POSTED,
        primary: 0,
        secondary: secondary::VIRTUALIZE_X2APIC
            | secondary::APIC_REGISTERS
            | secondary::VIRTUAL_DELIVERY,
        exit: exit::ACKNOWLEDGE,
        entry: 0,
    };

    /// Instructions that the guest has where the CPU has them: without the control they raise #UD.
    pub const OFFERED: u32 = secondary::RDTSCP | secondary::INVPCID | secondary::XSAVES;

    /// Set where the CPU has them: without, the guest would have instructions that it isn't shown.
    pub const CLOSED: u32 = secondary::ENCLS;

    /// Those that must not be set, and which a CPU may have set for good.
    pub const OPEN: Controls = Controls {
        pin: pin::EXTERNAL_INTERRUPT,
        primary: primary::INVLPG
            | primary::RDTSC
            | primary::CR3_LOAD
            | primary::CR3_STORE
            | primary::CR8_LOAD
            | primary::CR8_STORE
            | primary::MOV_DR
            | primary::UNCONDITIONAL_IO
            | primary::PAUSE,
        secondary: secondary::VIRTUALIZE_APIC | secondary::VIRTUALIZE_X2APIC,
        exit: exit::ACKNOWLEDGE,
        entry: entry::TO_SMM | entry::DEACTIVATE_DUAL,
    };

    /// The controls of a guest that takes its interrupts itself, as this CPU allows them.
    pub fn fit(capabilities: &Capabilities) -> Result<Controls, Lack> {
        capabilities.suffice()?;
        let Capabilities { pin, primary, secondary, exit, entry, .. } = capabilities;
        let needed = Self::NEEDED;
        Ok(Controls {
            pin: pin.with(needed.pin),
            primary: primary.with(needed.primary),
            secondary: secondary
                .with(needed.secondary | (Self::OFFERED | Self::CLOSED) & secondary.may_be_one()),
            exit: exit.with(needed.exit),
            entry: entry.with(needed.entry),
        })
    }
}
