//! Any words in the registers, the queue and the tables of a guest's own VT-d unit.
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
use paging::{Access, Dma, Memory, PageSize, VtdSecondLevel};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use tables::{FRAMES, Frames, Units};
use viommu_device::unit::{Fault, Step as Stepped};
use viommu_device::vtd::{Page, Registers, Vtd};
use viommu_device::{Acting, Change, Domains, Region, Viommu};

const LEN: u64 = 2 << 20;
const GUEST: [Region; 1] = [Region { guest: 0, host: 1 << 30, len: LEN }];
const IDS: [u32; 2] = [0x08, 0x10];
/// Words that a step may read of the guest's memory, and of the tables that it changes.
const MOST: u64 = 1 << 20;

#[derive(Arbitrary, Debug)]
enum Step {
    /// A write that exits, and one that doesn't.
    Write(u8, bool, u64),
    Store(u8, u32),
    /// A word in the first 64 KiB.
    Memory(u16, u64),
    /// A descriptor of a likely kind at the head of the queue, and the tail behind it.
    Ask(u8, u16, u64),
    Message(u64, u32, u64),
    /// A device tries what it may not.
    Fault(u8, bool, u64),
    Close,
    Restart,
    Run(u8),
}

fuzz_target!(|steps: Vec<Step>| {
    let guest = window::Memory::new(&[(0, LEN)], 0);
    let window = guest.window();
    let page: Box<Page> = Box::new([const { AtomicU32::new(0) }; 1024]);
    let registers = Registers::new(&page);
    let free = (1..=FRAMES).map(|n| n << 12).collect();
    let mut memory = Frames { words: BTreeMap::new(), free };
    let how = (Dma::Vtd(VtdSecondLevel::FourLevels), PageSize::Size2M);
    let mut domains = Domains::new(&mut memory, how, 2, (1, 0xABC << 12), 7).unwrap();
    // What is unmapped waits for a few steps, or doesn't.
    let longest = 4 * (steps.len() as u64 % 2);
    let mut device = Viommu::new(domains.shape(&IDS, &GUEST, FRAMES - 2), longest);
    let mut vtd = Vtd::new(&device);
    vtd.reset(&device, registers);
    let mut units = Units([Some((1, 0xABC << 12)); 2]);
    for (now, step) in (0..).zip(steps) {
        let mut acting =
            Acting { domains: &mut domains, memory: &mut memory, hardware: &mut units };
        device.set_time(now);
        device.tear_down(&mut acting);
        domains.take_words();
        let mut runs = 1;
        match step {
            Step::Write(at, wide, value) => {
                registers.write(4 * u64::from(at), if wide { 8 } else { 4 }, value);
            }
            Step::Store(at, word) => page[usize::from(at)].store(word, Ordering::Relaxed),
            Step::Memory(at, word) => {
                let at = u64::from(at) & !7;
                window.write(at, &(word & 0x8000_0000_001F_FFFF).to_le_bytes()).unwrap();
            }
            Step::Ask(kind, id, high) => {
                let low = u64::from(kind & 0x37) | u64::from(id) << 16;
                let (queue, head) = (registers.get64(0x90) & !0xFFF, registers.get(0x80));
                let at = queue.wrapping_add(head.into());
                let _ = window.write(at, &low.to_le_bytes());
                let _ = window.write(at.wrapping_add(8), &(high & 0x1F_FFFF).to_le_bytes());
                registers.write(0x88, 4, u64::from(head) + 16);
            }
            Step::Message(address, data, entry) => {
                let _ = vtd.remapping().of_msi(&window, 8, (address, data));
                let _ = vtd.remapping().of_redirection(&window, entry);
            }
            Step::Fault(endpoint, is_write, address) => {
                let fault = Fault { endpoint: endpoint.into(), is_write, address };
                vtd.record(&device, registers, fault);
                let _ = vtd.take_interrupt(registers);
                assert!(vtd.take_interrupt(registers).is_none());
            }
            Step::Close => {
                let mut acting =
                    Acting { domains: &mut domains, memory: &mut memory, hardware: &mut units };
                device.change(&mut acting, Change::Close);
                device.change(&mut acting, Change::Restart);
                vtd.reset(&device, registers);
            }
            Step::Restart => {
                let mut acting =
                    Acting { domains: &mut domains, memory: &mut memory, hardware: &mut units };
                device.change(&mut acting, Change::Restart);
                vtd.reset(&device, registers);
            }
            Step::Run(more) => runs += u32::from(more),
        }
        for _ in 0..runs {
            let mut acting =
                Acting { domains: &mut domains, memory: &mut memory, hardware: &mut units };
            match vtd.step(registers, &window, (&mut device, &mut acting)) {
                Stepped::Idle => break,
                Stepped::Worked => {}
                Stepped::Reroute => vtd.rerouted(),
            }
            assert!(vtd.take_words() + domains.take_words() < MOST);
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
