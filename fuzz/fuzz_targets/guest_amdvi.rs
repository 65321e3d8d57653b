//! Any words in the registers, the buffer, the log and the tables of a guest's own AMD-Vi unit.
//!
//! Whatever is written, each leaf of the real tables leads into the guest's memory, what endpoints
//! are led to is that memory or a domain of its own, a step is bounded, and when all starts again
//! every frame is back.
#![no_main]

#[path = "../model/tables.rs"]
mod tables;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use paging::audit::{Cursor, Region as Allowed};
use paging::{Access, AmdV1, Dma, Memory, PageSize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use tables::{FRAMES, Frames, Units};
use viommu_device::unit::{Fault, Model, Page, Registers, Step as Stepped, Unit};
use viommu_device::{Acting, Change, Domains, Region, Viommu};

const LEN: u64 = 2 << 20;
const GUEST: [Region; 1] = [Region { guest: 0, host: 1 << 30, len: LEN }];
const IDS: [u32; 2] = [0x08, 0x10];
/// Words that a step may read of the guest's memory, and of the tables that it changes.
const MOST: u64 = 1 << 20;
/// What a guest writes to first: the registers that mean something.
const AT: [usize; 16] = [
    0, 4, 8, 12, 0x10, 0x14, 0x18, 0x1C, 0x170, 0x174, 0x2000, 0x2008, 0x2010, 0x2018, 0x2020,
    0x2024,
];
const CONTROL: u64 = 0x18;
const HEAD: usize = 0x2000;
const TAIL: u64 = 0x2008;

/// The registers.
static WORDS: [AtomicU32; 4096] = [const { AtomicU32::new(0) }; 4096];

#[derive(Arbitrary, Debug)]
enum Step {
    /// A write that exits, and one that doesn't.
    Write(u8, bool, u64),
    Store(u8, u32),
    /// Anywhere among the registers.
    Anywhere(u16, u32),
    /// A word in the first 64 KiB.
    Memory(u16, u64),
    /// An entry of page tables: where, where to, what else.
    Entry(u16, u16, u8),
    /// A device's entry of the table at 0: root, mode, domain id.
    Device(bool, u8, u8, u8),
    /// All that a driver sets up, with these bits.
    On(u32),
    /// A command of a likely kind at the head of the buffer, and the tail behind it.
    Ask(u8, u16, u64),
    Message(u16, u32, u64),
    /// A device tries what it may not.
    Fault(u8, bool, u64),
    Close,
    Restart,
    Run(u8),
}

fuzz_target!(|steps: Vec<Step>| {
    let guest = window::Memory::new(&[(0, LEN)], 0);
    let window = guest.window();
    let page = Page::new(Model::AmdVi, true, &WORDS).unwrap();
    let registers = Registers::new(&page);
    for word in &WORDS {
        word.store(0, Ordering::Relaxed);
    }
    let free = (1..=FRAMES).map(|n| n << 12).collect();
    let mut memory = Frames { words: BTreeMap::new(), free };
    let how = (Dma::Amd(AmdV1::FourLevels), PageSize::Size2M);
    let mut domains = Domains::new(&mut memory, how, 2, (1, 0xABC << 12), 7).unwrap();
    // What is unmapped waits for a few steps, or doesn't.
    let longest = 4 * (steps.len() as u64 % 2);
    let shape = Model::AmdVi.narrowed(domains.shape(&IDS, &GUEST, FRAMES - 2));
    let mut device = Viommu::new(shape, longest);
    let mut unit = Unit::new(Model::AmdVi, &device);
    unit.reset(&device, registers);
    let mut units = Units([Some((1, 0xABC << 12)); 2]);
    for (now, step) in (0..).zip(steps) {
        let mut acting =
            Acting { domains: &mut domains, memory: &mut memory, hardware: &mut units };
        device.set_time(now);
        device.tear_down(&mut acting);
        domains.take_words();
        let mut runs = 1;
        let put = |at: u64, word: u64| {
            let _ = window.write(at, &word.to_le_bytes());
        };
        match step {
            Step::Write(at, wide, value) => {
                let at = AT[usize::from(at) % 16] as u64;
                registers.write(at, if wide { 8 } else { 4 }, value);
            }
            Step::Store(at, word) => {
                WORDS[AT[usize::from(at) % 16] / 4].store(word, Ordering::Relaxed);
            }
            Step::Anywhere(at, word) => {
                WORDS[usize::from(at) % 4096].store(word, Ordering::Relaxed);
                registers.write(4 * u64::from(at), 4, word.into());
            }
            Step::Memory(at, word) => put(u64::from(at) & !7, word),
            Step::Entry(at, to, how) => {
                let (rights, next) = (u64::from(how & 3) << 61, u64::from(how >> 2 & 7) << 9);
                put(u64::from(at) & !7, 1 | next | rights | u64::from(to) << 12 & 0x3F_F000);
            }
            Step::Device(which, root, mode, id) => {
                let at = 32 * u64::from(IDS[usize::from(which)]);
                let mode = u64::from(mode & 7) << 9 | u64::from(mode >> 3 & 3) << 61;
                put(at + 8, id.into());
                put(at, 3 | mode | u64::from(root & 0xF) << 12);
            }
            Step::On(bits) => {
                registers.write(0, 8, u64::from(bits) & 0xF000);
                registers.write(8, 8, 8 << 56 | u64::from(bits >> 4) & 0xF000);
                registers.write(0x10, 8, 8 << 56 | u64::from(bits >> 8) & 0xF000);
                let wide = u64::from(bits >> 24) << 46 | u64::from(bits & 1) << 17;
                registers.write(CONTROL, 8, 0x101D & !u64::from(bits & 8) | wide);
            }
            Step::Ask(kind, id, high) => {
                let (buffer, head) = (registers.get64(8) & 0xF_FFFF_FFFF_F000, registers.get(HEAD));
                let at = buffer.wrapping_add(head.into());
                let low = u64::from(kind & 0xF) << 60 | u64::from(id & 0xFF) << 32;
                put(at, low | u64::from(kind >> 4 & 3) << 3);
                put(at.wrapping_add(8), high);
                registers.write(TAIL, 4, u64::from(head) + 16 & 0xFF0);
            }
            Step::Message(source, data, entry) => {
                let _ = unit.remapping().of_msi(&window, source, (entry, data));
                let _ = unit.remapping().of_redirection(&window, entry);
            }
            Step::Fault(endpoint, is_write, address) => {
                let fault = Fault { endpoint: endpoint.into(), is_write, address };
                unit.record(&device, registers, &window, fault);
                let _ = unit.take_interrupt(registers);
                assert!(unit.take_interrupt(registers).is_none());
            }
            Step::Close => {
                let mut acting =
                    Acting { domains: &mut domains, memory: &mut memory, hardware: &mut units };
                device.change(&mut acting, Change::Close);
                device.change(&mut acting, Change::Restart);
                unit.reset(&device, registers);
            }
            Step::Restart => {
                let mut acting =
                    Acting { domains: &mut domains, memory: &mut memory, hardware: &mut units };
                device.change(&mut acting, Change::Restart);
                unit.reset(&device, registers);
            }
            Step::Run(more) => runs += u32::from(more),
        }
        for _ in 0..runs {
            let mut acting =
                Acting { domains: &mut domains, memory: &mut memory, hardware: &mut units };
            let news = registers.is_news();
            match unit.step(registers, &window, (&mut device, &mut acting)) {
                Stepped::Idle => {
                    assert!(!news && !registers.is_news());
                    break;
                }
                Stepped::Worked => assert!(news),
                Stepped::Reroute => unit.rerouted(),
            }
            assert!(unit.take_words() + domains.take_words() < MOST);
        }
        let roots = [0, 1].map(|place| domains.outline(place).unwrap());
        let own = |to: (u16, u64)| roots.iter().any(|(id, root, _)| to == (*id, *root));
        assert!(units.0.iter().flatten().all(|to| *to == (1, 0xABC << 12) || own(*to)));
        let both = Access::READ | Access::WRITE;
        let allowed = GUEST.map(|r| Allowed { va: None, pa: r.host, len: r.len, access: both });
        for (_, _, outline) in &roots {
            let mut at = Cursor::default();
            let is_table = |frame| !memory.free.contains(&frame);
            let read = |pa| memory.read(pa);
            while !outline.audit(read, &mut at, 100_000, &allowed, is_table, || Some(())).unwrap() {
            }
        }
    }
    let mut acting = Acting { domains: &mut domains, memory: &mut memory, hardware: &mut units };
    device.change(&mut acting, Change::Restart);
    assert_eq!(memory.free.len() as u64, FRAMES - 2);
});
