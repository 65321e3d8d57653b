//! The fields of the control structure by their encodings (SDM vol. 3, appendix B).

/// A field, as VMREAD and VMWRITE name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Field(u32);

/// How wide a field is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// 16 bits.
    Word,
    /// 64 bits in every mode.
    Quad,
    /// 32 bits.
    Double,
    /// 64 bits on a processor that has 64-bit mode.
    Natural,
}

/// What a field is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// How the guest runs, is left and is entered.
    Control,
    /// Why it was left; read-only.
    Information,
    /// The guest's state.
    Guest,
    /// The host's state.
    Host,
}

impl Field {
    /// The encoding, as the instructions want it.
    pub const fn encoding(self) -> u64 {
        self.0 as u64
    }

    /// Bits 14:13 of the encoding.
    pub const fn width(self) -> Width {
        match self.0 >> 13 & 3 {
            0 => Width::Word,
            1 => Width::Quad,
            2 => Width::Double,
            _ => Width::Natural,
        }
    }

    /// Bits 11:10 of the encoding.
    pub const fn group(self) -> Group {
        match self.0 >> 10 & 3 {
            0 => Group::Control,
            1 => Group::Information,
            2 => Group::Guest,
            _ => Group::Host,
        }
    }

    /// The bits that it has.
    pub const fn mask(self) -> u64 {
        match self.width() {
            Width::Word => 0xFFFF,
            Width::Double => 0xFFFF_FFFF,
            Width::Quad | Width::Natural => u64::MAX,
        }
    }
}

macro_rules! fields {
    ($($(#[doc = $doc:literal])* $name:ident = $encoding:literal,)*) => {
        $(
            #[allow(missing_docs, reason = "the names are the manual's")]
            $(#[doc = $doc])*
            pub const $name: Field = Field($encoding);
        )*

        /// All that are used, with their names.
        pub const ALL: &[(Field, &str)] = &[$(($name, stringify!($name)),)*];
    };
}

fields! {
    VPID = 0x0000,
    /// Of a CPU with [`crate::controls::pin::POSTED`] alone, as [`POSTED_DESCRIPTOR`].
    POSTED_VECTOR = 0x0002,
    GUEST_ES_SELECTOR = 0x0800,
    GUEST_CS_SELECTOR = 0x0802,
    GUEST_SS_SELECTOR = 0x0804,
    GUEST_DS_SELECTOR = 0x0806,
    GUEST_FS_SELECTOR = 0x0808,
    GUEST_GS_SELECTOR = 0x080A,
    GUEST_LDTR_SELECTOR = 0x080C,
    GUEST_TR_SELECTOR = 0x080E,
    /// Of a CPU with [`crate::controls::secondary::VIRTUAL_DELIVERY`] alone, as [`EOI_EXITS0`].
    GUEST_INTERRUPT_STATUS = 0x0810,
    HOST_ES_SELECTOR = 0x0C00,
    HOST_CS_SELECTOR = 0x0C02,
    HOST_SS_SELECTOR = 0x0C04,
    HOST_DS_SELECTOR = 0x0C06,
    HOST_FS_SELECTOR = 0x0C08,
    HOST_GS_SELECTOR = 0x0C0A,
    HOST_TR_SELECTOR = 0x0C0C,
    IO_BITMAP_A = 0x2000,
    IO_BITMAP_B = 0x2002,
    MSR_BITMAPS = 0x2004,
    EXIT_MSR_STORE_ADDRESS = 0x2006,
    EXIT_MSR_LOAD_ADDRESS = 0x2008,
    ENTRY_MSR_LOAD_ADDRESS = 0x200A,
    TSC_OFFSET = 0x2010,
    VIRTUAL_APIC_ADDRESS = 0x2012,
    POSTED_DESCRIPTOR = 0x2016,
    EPT_POINTER = 0x201A,
    EOI_EXITS0 = 0x201C,
    EOI_EXITS1 = 0x201E,
    EOI_EXITS2 = 0x2020,
    EOI_EXITS3 = 0x2022,
    /// Of a CPU with [`crate::controls::secondary::XSAVES`] alone.
    XSS_EXITING_BITMAP = 0x202C,
    /// Of a CPU with [`crate::controls::secondary::ENCLS`] alone.
    ENCLS_EXITING_BITMAP = 0x202E,
    GUEST_PHYSICAL_ADDRESS = 0x2400,
    VMCS_LINK_POINTER = 0x2800,
    GUEST_DEBUGCTL = 0x2802,
    GUEST_PAT = 0x2804,
    GUEST_EFER = 0x2806,
    GUEST_PDPTE0 = 0x280A,
    GUEST_PDPTE1 = 0x280C,
    GUEST_PDPTE2 = 0x280E,
    GUEST_PDPTE3 = 0x2810,
    HOST_PAT = 0x2C00,
    HOST_EFER = 0x2C02,
    PIN_CONTROLS = 0x4000,
    PRIMARY_CONTROLS = 0x4002,
    EXCEPTION_BITMAP = 0x4004,
    PAGE_FAULT_ERROR_MASK = 0x4006,
    PAGE_FAULT_ERROR_MATCH = 0x4008,
    CR3_TARGET_COUNT = 0x400A,
    EXIT_CONTROLS = 0x400C,
    EXIT_MSR_STORE_COUNT = 0x400E,
    EXIT_MSR_LOAD_COUNT = 0x4010,
    ENTRY_CONTROLS = 0x4012,
    ENTRY_MSR_LOAD_COUNT = 0x4014,
    ENTRY_INTERRUPTION = 0x4016,
    ENTRY_ERROR_CODE = 0x4018,
    ENTRY_INSTRUCTION_LENGTH = 0x401A,
    TPR_THRESHOLD = 0x401C,
    SECONDARY_CONTROLS = 0x401E,
    INSTRUCTION_ERROR = 0x4400,
    EXIT_REASON = 0x4402,
    EXIT_INTERRUPTION = 0x4404,
    EXIT_ERROR_CODE = 0x4406,
    VECTORING = 0x4408,
    VECTORING_ERROR_CODE = 0x440A,
    INSTRUCTION_LENGTH = 0x440C,
    INSTRUCTION_INFORMATION = 0x440E,
    GUEST_ES_LIMIT = 0x4800,
    GUEST_CS_LIMIT = 0x4802,
    GUEST_SS_LIMIT = 0x4804,
    GUEST_DS_LIMIT = 0x4806,
    GUEST_FS_LIMIT = 0x4808,
    GUEST_GS_LIMIT = 0x480A,
    GUEST_LDTR_LIMIT = 0x480C,
    GUEST_TR_LIMIT = 0x480E,
    GUEST_GDTR_LIMIT = 0x4810,
    GUEST_IDTR_LIMIT = 0x4812,
    GUEST_ES_RIGHTS = 0x4814,
    GUEST_CS_RIGHTS = 0x4816,
    GUEST_SS_RIGHTS = 0x4818,
    GUEST_DS_RIGHTS = 0x481A,
    GUEST_FS_RIGHTS = 0x481C,
    GUEST_GS_RIGHTS = 0x481E,
    GUEST_LDTR_RIGHTS = 0x4820,
    GUEST_TR_RIGHTS = 0x4822,
    GUEST_INTERRUPTIBILITY = 0x4824,
    GUEST_ACTIVITY = 0x4826,
    GUEST_SYSENTER_CS = 0x482A,
    PREEMPTION_TIMER = 0x482E,
    HOST_SYSENTER_CS = 0x4C00,
    CR0_MASK = 0x6000,
    CR4_MASK = 0x6002,
    CR0_SHADOW = 0x6004,
    CR4_SHADOW = 0x6006,
    QUALIFICATION = 0x6400,
    GUEST_LINEAR_ADDRESS = 0x640A,
    GUEST_CR0 = 0x6800,
    GUEST_CR3 = 0x6802,
    GUEST_CR4 = 0x6804,
    GUEST_ES_BASE = 0x6806,
    GUEST_CS_BASE = 0x6808,
    GUEST_SS_BASE = 0x680A,
    GUEST_DS_BASE = 0x680C,
    GUEST_FS_BASE = 0x680E,
    GUEST_GS_BASE = 0x6810,
    GUEST_LDTR_BASE = 0x6812,
    GUEST_TR_BASE = 0x6814,
    GUEST_GDTR_BASE = 0x6816,
    GUEST_IDTR_BASE = 0x6818,
    GUEST_DR7 = 0x681A,
    GUEST_RSP = 0x681C,
    GUEST_RIP = 0x681E,
    GUEST_RFLAGS = 0x6820,
    GUEST_PENDING_DEBUG = 0x6822,
    GUEST_SYSENTER_ESP = 0x6824,
    GUEST_SYSENTER_EIP = 0x6826,
    HOST_CR0 = 0x6C00,
    HOST_CR3 = 0x6C02,
    HOST_CR4 = 0x6C04,
    HOST_FS_BASE = 0x6C06,
    HOST_GS_BASE = 0x6C08,
    HOST_TR_BASE = 0x6C0A,
    HOST_GDTR_BASE = 0x6C0C,
    HOST_IDTR_BASE = 0x6C0E,
    HOST_SYSENTER_ESP = 0x6C10,
    HOST_SYSENTER_EIP = 0x6C12,
    HOST_RSP = 0x6C14,
    HOST_RIP = 0x6C16,
}

/// A segment register of the guest's, or its LDTR or TR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    /// ES.
    Es,
    /// CS.
    Cs,
    /// SS.
    Ss,
    /// DS.
    Ds,
    /// FS.
    Fs,
    /// GS.
    Gs,
    /// LDTR.
    Ldtr,
    /// TR.
    Tr,
}

impl Segment {
    /// The six that instructions name.
    pub const USUAL: [Segment; 6] =
        [Segment::Es, Segment::Cs, Segment::Ss, Segment::Ds, Segment::Fs, Segment::Gs];

    /// Those of the same kind stand two apart.
    const fn of(self, first: Field) -> Field {
        Field(first.0 + 2 * self as u32)
    }

    /// The value that was loaded.
    pub const fn selector(self) -> Field {
        self.of(GUEST_ES_SELECTOR)
    }

    /// Where it begins.
    pub const fn base(self) -> Field {
        self.of(GUEST_ES_BASE)
    }

    /// The last byte's offset.
    pub const fn limit(self) -> Field {
        self.of(GUEST_ES_LIMIT)
    }

    /// Its access rights ([`crate::start::rights`]).
    pub const fn rights(self) -> Field {
        self.of(GUEST_ES_RIGHTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_two_are_one_and_none_has_a_bit_that_must_be_clear() {
        let all: BTreeSet<_> = ALL.iter().map(|(field, _)| *field).collect();
        assert_eq!(all.len(), ALL.len());
        for (field, name) in ALL {
            // Bit 0: the high half of a field of 64 bits; bits 12 and 31:15 are reserved.
            assert_eq!(field.encoding() & !0x6FFE, 0, "{name}");
        }
    }

    #[test]
    fn a_name_says_the_group() {
        for (field, name) in ALL {
            let of = |word: &str| name.starts_with(word);
            let group = match () {
                // Where an EPT violation was.
                () if *field == GUEST_PHYSICAL_ADDRESS || *field == GUEST_LINEAR_ADDRESS => {
                    Group::Information
                }
                () if of("GUEST_") || of("VMCS_LINK") || of("PREEMPTION") => Group::Guest,
                () if of("HOST_") => Group::Host,
                () if of("EXIT_REASON") || of("EXIT_INTERRUPTION") || of("EXIT_ERROR") => {
                    Group::Information
                }
                () if of("VECTORING") || of("INSTRUCTION_") || of("QUALIFICATION") => {
                    Group::Information
                }
                () => Group::Control,
            };
            assert_eq!(field.group(), group, "{name}");
        }
    }

    #[test]
    fn a_name_says_the_width() {
        for (field, name) in ALL.iter().filter(|(_, name)| name.starts_with("GUEST_")) {
            let ends = |words: &[&str]| words.iter().any(|word| name.ends_with(word));
            let width = match () {
                () if ends(&["_SELECTOR", "_INTERRUPT_STATUS"]) => Width::Word,
                () if ends(&["_LIMIT", "_RIGHTS", "BILITY", "ACTIVITY", "_SYSENTER_CS"]) => {
                    Width::Double
                }
                () if ends(&["PHYSICAL_ADDRESS", "DEBUGCTL", "_PAT", "_EFER"]) => Width::Quad,
                () if name.contains("PDPTE") => Width::Quad,
                () => Width::Natural,
            };
            assert_eq!(field.width(), width, "{name}");
        }
        assert_eq!((VPID.mask(), PIN_CONTROLS.mask()), (0xFFFF, 0xFFFF_FFFF));
        assert_eq!((EPT_POINTER.mask(), GUEST_CR0.mask()), (u64::MAX, u64::MAX));
    }

    #[test]
    fn a_segment_finds_its_fields() {
        assert_eq!(Segment::Es.selector(), GUEST_ES_SELECTOR);
        assert_eq!(Segment::Tr.selector(), GUEST_TR_SELECTOR);
        assert_eq!(Segment::Gs.base(), GUEST_GS_BASE);
        assert_eq!(Segment::Ldtr.limit(), GUEST_LDTR_LIMIT);
        assert_eq!(Segment::Cs.rights(), GUEST_CS_RIGHTS);
    }
}
