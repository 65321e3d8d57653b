//! The guest's segments and tables (SDM vol. 3, 27.3.1.2 and 27.3.1.3).

use super::{Look, Refusal, is_canonical};
use crate::controls::secondary;
use crate::field::{self, Segment};
use crate::start::rights::{BIG, CODE_OR_DATA, LONG, PAGES, PRESENT, UNUSABLE};
use crate::{Area, Field};

const RESERVED: u64 = 0xF << 8 | !0x1_FFFF;
/// A segment of virtual-8086 mode.
const VIRTUAL_8086: u64 = 0xF3;
const TABLE: u16 = 1 << 2;

const fn kind(rights: u64) -> u64 {
    rights & 0xF
}

const fn level(rights: u64) -> u64 {
    rights >> 5 & 3
}

impl<A: Area> Look<'_, A> {
    fn rights(&self, segment: Segment) -> u64 {
        self.get(segment.rights())
    }

    fn is_usable(&self, segment: Segment) -> bool {
        self.rights(segment) & UNUSABLE == 0
    }

    pub(super) fn stack_level(&self) -> u64 {
        level(self.rights(Segment::Ss))
    }

    /// Is the code 64 bits wide, in long mode?
    pub(super) fn code_is_long(&self) -> bool {
        self.rights(Segment::Cs) & LONG != 0
    }

    pub(super) fn segments(&self, long_mode: bool, virtual_8086: bool) -> Result<(), Refusal> {
        let selector = |segment: Segment| self.get(segment.selector()) as u16;
        let local = |segment: Segment| selector(segment) & TABLE != 0;
        self.must(Segment::Tr.selector(), "must be of the global table", !local(Segment::Tr))?;
        let global = !self.is_usable(Segment::Ldtr) || !local(Segment::Ldtr);
        self.must(Segment::Ldtr.selector(), "must be of the global table", global)?;
        if virtual_8086 {
            Segment::USUAL.into_iter().try_for_each(|segment| self.virtual_segment(segment))?;
        } else {
            if !self.secondary(secondary::UNRESTRICTED) {
                let same = selector(Segment::Ss) & 3 == selector(Segment::Cs) & 3;
                self.must(Segment::Ss.selector(), "must be of CS' level", same)?;
            }
            Segment::USUAL.into_iter().try_for_each(|segment| self.segment(segment, long_mode))?;
        }
        self.task(long_mode)?;
        self.local_table()?;
        for (base, limit) in [
            (field::GUEST_GDTR_BASE, field::GUEST_GDTR_LIMIT),
            (field::GUEST_IDTR_BASE, field::GUEST_IDTR_LIMIT),
        ] {
            self.canonical(base)?;
            self.must(limit, "must have 16 bits", self.get(limit) <= 0xFFFF)?;
        }
        Ok(())
    }

    fn virtual_segment(&self, segment: Segment) -> Result<(), Refusal> {
        let base = self.get(segment.selector()) << 4;
        let rule = "must be as in virtual-8086 mode";
        self.must(segment.base(), rule, self.get(segment.base()) == base)?;
        self.must(segment.limit(), rule, self.get(segment.limit()) == 0xFFFF)?;
        self.must(segment.rights(), rule, self.rights(segment) == VIRTUAL_8086)
    }

    fn segment(&self, segment: Segment, long_mode: bool) -> Result<(), Refusal> {
        let base = self.get(segment.base());
        let holds = match segment {
            Segment::Fs | Segment::Gs => is_canonical(base),
            Segment::Cs => base >> 32 == 0,
            _ => !self.is_usable(segment) || base >> 32 == 0,
        };
        self.must(segment.base(), "must be a linear address of this segment", holds)?;
        if segment != Segment::Cs && !self.is_usable(segment) {
            // The level of the stack is that of the processor, all the same.
            return if segment == Segment::Ss { self.stack() } else { Ok(()) };
        }
        let rights = self.rights(segment);
        let must = |rule, holds| self.must(segment.rights(), rule, holds);
        must("must be code or data", rights & CODE_OR_DATA != 0)?;
        must("must be present", rights & PRESENT != 0)?;
        // An unusable CS is none.
        must("reserved bits must be 0", rights & (RESERVED & !UNUSABLE) == 0)?;
        self.granularity(segment.limit(), segment.rights())?;
        let unrestricted = self.secondary(secondary::UNRESTRICTED);
        match segment {
            Segment::Cs => {
                let flat = unrestricted && kind(rights) == 3;
                must("must be accessed code", flat || matches!(kind(rights), 9 | 11 | 13 | 15))?;
                let stack = self.stack_level();
                must(
                    "must be of a level that fits SS",
                    match kind(rights) {
                        3 => level(rights) == 0,
                        9 | 11 => level(rights) == stack,
                        _ => level(rights) <= stack,
                    },
                )?;
                let both = long_mode && rights & LONG != 0 && rights & BIG != 0;
                must("code can't be 64 and 32 bits wide", !both)
            }
            Segment::Ss => {
                must("must be data that is written and accessed", matches!(kind(rights), 3 | 7))?;
                self.stack()
            }
            _ => {
                must("must be accessed", kind(rights) & 1 != 0)?;
                must("code must be readable", kind(rights) & 0b1010 != 0b1000)?;
                let lower = self.get(segment.selector()) & 3 > level(rights);
                let conforms = unrestricted || kind(rights) > 11;
                must("must be of its selector's level", conforms || !lower)
            }
        }
    }

    fn stack(&self) -> Result<(), Refusal> {
        let (rights, stack) = (Segment::Ss.rights(), self.stack_level());
        let unrestricted = self.secondary(secondary::UNRESTRICTED);
        let same = unrestricted || self.get(Segment::Ss.selector()) & 3 == stack;
        self.must(rights, "must be of its selector's level", same)?;
        let real = self.get(field::GUEST_CR0) & 1 == 0 || kind(self.rights(Segment::Cs)) == 3;
        self.must(rights, "must be of level 0 in real mode", !real || stack == 0)
    }

    fn granularity(&self, limit: Field, rights: Field) -> Result<(), Refusal> {
        let (last, pages) = (self.get(limit), self.get(rights) & PAGES != 0);
        let fits = if pages { last & 0xFFF == 0xFFF } else { last >> 20 == 0 };
        self.must(limit, "must be what its granularity can say", fits)
    }

    fn task(&self, long_mode: bool) -> Result<(), Refusal> {
        let rights = self.rights(Segment::Tr);
        let must = |rule, holds| self.must(Segment::Tr.rights(), rule, holds);
        must("must be a busy task", kind(rights) == 11 || !long_mode && kind(rights) == 3)?;
        self.system(Segment::Tr)?;
        must("must be usable", self.is_usable(Segment::Tr))
    }

    fn local_table(&self) -> Result<(), Refusal> {
        if !self.is_usable(Segment::Ldtr) {
            return Ok(());
        }
        let table = kind(self.rights(Segment::Ldtr)) == 2;
        self.must(Segment::Ldtr.rights(), "must be a local table", table)?;
        self.system(Segment::Ldtr)
    }

    fn system(&self, segment: Segment) -> Result<(), Refusal> {
        let rights = self.rights(segment);
        let must = |rule, holds| self.must(segment.rights(), rule, holds);
        must("must be the system's", rights & CODE_OR_DATA == 0)?;
        must("must be present", rights & PRESENT != 0)?;
        must("reserved bits must be 0", rights & (RESERVED & !UNUSABLE) == 0)?;
        self.canonical(segment.base())?;
        self.granularity(segment.limit(), segment.rights())
    }
}
