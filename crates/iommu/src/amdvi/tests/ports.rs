//! The model's registers and its memory, as the driver reaches them.

use super::model::{FIRST_FRAME, Model};
use crate::amdvi::registers::{self, *};
use crate::{Memory, Registers};

impl Registers for Model {
    fn read32(&mut self, offset: u32) -> u32 {
        panic!("32-bit read of {offset:#x}")
    }

    fn read64(&mut self, offset: u32) -> u64 {
        self.with(|state| match offset {
            EFR => state.efr,
            CONTROL => state.control,
            STATUS => state.status(),
            DEVICE_TABLE => state.device_table,
            EXCLUSION_BASE => state.exclusion.0,
            EVENT_HEAD => state.event_head,
            EVENT_TAIL => state.event_tail,
            _ => panic!("64-bit read of {offset:#x}"),
        })
    }

    fn write32(&mut self, offset: u32, _: u32) {
        panic!("32-bit write of {offset:#x}")
    }

    fn write64(&mut self, offset: u32, value: u64) {
        self.with(|state| {
            let fetches = state.control & COMMAND_BUFFER != 0 || state.runs & COMMAND_RUN != 0;
            let logs = state.control & registers::EVENT_LOG != 0 || state.runs & EVENT_RUN != 0;
            match offset {
                CONTROL => state.write_control(value),
                STATUS => {
                    let clears = EVENT_OVERFLOW | EVENT_ARRIVED | WAIT_ARRIVED;
                    assert_eq!(value & !clears, 0, "bits that can't be cleared");
                    let full = value & EVENT_OVERFLOW & state.sticky != 0;
                    assert!(!full || !logs, "a full log is restarted while it runs");
                    state.sticky &= !value;
                }
                DEVICE_TABLE => state.device_table = value,
                EXCLUSION_BASE => state.exclusion.0 = value,
                EXCLUSION_LIMIT => state.exclusion.1 = value,
                XT_INTERRUPT => state.xt_interrupt = value,
                COMMAND_BASE | COMMAND_HEAD => {
                    assert!(!fetches, "commands are moved while they are fetched");
                    match offset {
                        COMMAND_BASE => state.command_base = value,
                        _ => state.command_head = value,
                    }
                }
                COMMAND_TAIL => {
                    assert!(value.is_multiple_of(16) && value < 0x1000);
                    assert!(fetches || value == 0, "nobody fetches");
                    state.command_tail = value;
                }
                EVENT_BASE | EVENT_TAIL => {
                    assert!(!logs, "the log is moved while it is written");
                    match offset {
                        EVENT_BASE => state.event_base = value,
                        _ => state.event_tail = value,
                    }
                }
                EVENT_HEAD => {
                    assert!(value.is_multiple_of(16) && value < 0x1000);
                    state.event_head = value;
                }
                _ => panic!("64-bit write of {offset:#x}"),
            }
        });
    }
}

fn index(pa: u64) -> usize {
    (pa - FIRST_FRAME) as usize / 8
}

impl Memory for Model {
    fn read64(&mut self, pa: u64) -> u64 {
        self.with(|state| state.cpu[index(pa)])
    }

    fn write64(&mut self, pa: u64, value: u64) {
        self.with(|state| {
            assert!(!state.is_watched(pa), "half an entry at {pa:#x}");
            state.cpu[index(pa)] = value;
            if state.coherent() {
                state.set_ram(pa, &[value]);
            }
        });
    }

    fn write128(&mut self, pa: u64, low: u64, high: u64) {
        assert_eq!(pa % 16, 0);
        self.with(|state| {
            state.cpu[index(pa)..index(pa) + 2].copy_from_slice(&[low, high]);
            if state.coherent() {
                state.set_ram(pa, &[low, high]);
            }
        });
    }

    fn write_back(&mut self, pa: u64, bytes: u64) {
        self.with(|state| {
            let words = state.cpu[index(pa)..index(pa + bytes)].to_vec();
            state.set_ram(pa, &words);
        });
    }

    fn allocate(&mut self, frames: u64) -> Option<u64> {
        self.with(|state| state.allocate(frames))
    }
}
