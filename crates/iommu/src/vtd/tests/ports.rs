//! The model's registers and its memory, as the driver reaches them.

use super::model::Model;
use crate::vtd::registers::{self, *};
use crate::{Memory, Registers};

impl Registers for Model {
    fn read32(&mut self, offset: u32) -> u32 {
        self.with(|state| match offset {
            VER => state.ver,
            GSTS => state.status(),
            FSTS => {
                state.work();
                let pending = state.records.iter().any(|record| record.1 >> 63 != 0);
                state.fsts | if pending { PPF } else { 0 }
            }
            PMEN => state.pmen,
            _ => panic!("32-bit read of {offset:#x}"),
        })
    }

    fn read64(&mut self, offset: u32) -> u64 {
        self.with(|state| match offset {
            registers::CAP => state.cap,
            registers::ECAP => state.ecap,
            RTADDR => state.rtaddr,
            IRTA => state.irta,
            IQH => state.iqh,
            IQT => state.iqt,
            IQERCD => state.iqercd,
            _ => {
                let first = (state.cap >> 24 & 0x3FF) as u32 * 16;
                let at = offset.checked_sub(first).expect("a fault record");
                let record = state.records[at as usize / 16];
                if at.is_multiple_of(16) { record.0 } else { record.1 }
            }
        })
    }

    fn write32(&mut self, offset: u32, value: u32) {
        self.with(|state| match offset {
            GCMD => state.command(value),
            FSTS => {
                assert_eq!(value & !state.fsts, 0, "bits cleared that aren't set");
                state.fsts &= !value;
            }
            FECTL => state.fectl = value,
            FEDATA => state.fedata = value,
            FEADDR => state.feaddr = value,
            FEUADDR => state.feuaddr = value,
            PMEN => state.pmen = value,
            _ => {
                let first = (state.cap >> 24 & 0x3FF) as u32 * 16;
                let at = offset.checked_sub(first).expect("a fault record") as usize;
                assert_eq!((at % 16, value), (12, 1 << 31), "only F is cleared");
                state.records[at / 16].1 &= !(1 << 63);
            }
        });
    }

    fn write64(&mut self, offset: u32, value: u64) {
        self.with(|state| match offset {
            RTADDR => {
                let changes = (state.rtaddr ^ value) & TTM != 0;
                assert!(!changes || state.gsts & TE == 0, "another mode while in use");
                state.rtaddr = value;
            }
            IQA => state.iqa = value,
            IRTA => {
                let changes = (state.irta ^ value) & EIME != 0;
                assert!(!changes || state.gsts & IRE == 0, "other destinations while in use");
                state.irta = value;
            }
            IQT => {
                assert!(value.is_multiple_of(16) && value < 0x1000);
                state.iqt = value;
            }
            _ => panic!("64-bit write of {offset:#x}"),
        });
    }
}

impl Memory for Model {
    fn read64(&mut self, pa: u64) -> u64 {
        self.with(|state| state.cpu[&pa])
    }

    fn write64(&mut self, pa: u64, value: u64) {
        self.with(|state| {
            assert!(state.cpu.insert(pa, value).is_some(), "write to {pa:#x}, not allocated");
            if state.coherent() {
                state.set_ram(pa, value);
            }
        });
    }

    fn write128(&mut self, pa: u64, _: u64, _: u64) {
        panic!("a store of 128 bits to {pa:#x}, which no entry of this unit's needs");
    }

    fn write_back(&mut self, pa: u64, bytes: u64) {
        self.with(|state| {
            for pa in (pa..pa + bytes).step_by(8) {
                let value = state.cpu[&pa];
                state.set_ram(pa, value);
            }
        });
    }

    fn allocate(&mut self, frames: u64) -> Option<u64> {
        self.with(|state| {
            state.frames_left = state.frames_left.checked_sub(frames)?;
            let start = state.next_frame;
            state.next_frame += frames * 0x1000;
            // Zeroes that are still in the CPU's caches aren't what the unit sees.
            let stale = if state.coherent() { 0 } else { u64::MAX };
            for pa in (start..state.next_frame).step_by(8) {
                state.cpu.insert(pa, 0);
                state.ram.insert(pa, stale);
            }
            Some(start)
        })
    }
}
