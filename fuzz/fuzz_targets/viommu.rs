//! Requests of any bytes to a guest's own IOMMU, on tables in the format of a real one.
//!
//! Whatever is asked, each leaf of each domain leads into the guest's memory, what endpoints are
//! led to is that memory or a domain of its own, and when all is reset every frame is back.
#![no_main]

#[path = "../model/tables.rs"]
mod tables;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use paging::audit::{Cursor, Region as Allowed};
use paging::{Access, AmdV1, Dma, Memory, PageSize};
use std::collections::BTreeMap;
use tables::{FRAMES, Frames, Units};
use viommu_device::{Acting, Change, Domains, LONGEST, PROBE_BYTES, Region, Viommu};

const GUEST: [Region; 2] = [
    Region { guest: 0, host: 1 << 30, len: 8 << 20 },
    Region { guest: 1 << 32, host: 4 << 30, len: 4 << 20 },
];
const IDS: [u32; 2] = [0x10, 0x18];

#[derive(Arbitrary, Debug)]
enum Step {
    /// Words of a request, its type first, and its length.
    Request(u8, [u64; 5], u8),
    Bypass(bool),
    Reset,
    Close,
    Restart,
    /// So many ticks pass.
    Wait(u8),
}

fuzz_target!(|input: (bool, bool, u8, Vec<Step>)| {
    let (large, all_features, longest, steps) = input;
    let mut now = 0_u64;
    let mut memory =
        Frames { words: BTreeMap::new(), free: (1..=FRAMES).map(|n| n << 12).collect() };
    let how =
        (Dma::Amd(AmdV1::FourLevels), if large { PageSize::Size1G } else { PageSize::Size4K });
    let mut domains = Domains::new(&mut memory, how, 2, (1, 0xABC << 12), 7).unwrap();
    let mut device = Viommu::new(domains.shape(&IDS, &GUEST, FRAMES - 2), longest.into());
    let mut units = Units([Some((1, 0xABC << 12)); 2]);
    let accepted = if all_features { u64::MAX } else { 0 };
    for step in steps {
        let mut acting =
            Acting { domains: &mut domains, memory: &mut memory, hardware: &mut units };
        match step {
            Step::Request(kind, words, len) => {
                let mut bytes = [0; LONGEST];
                for (to, word) in bytes.chunks_mut(8).zip(words) {
                    to.copy_from_slice(&word.to_le_bytes());
                }
                bytes[0] = kind % 7;
                let len = u32::from(len);
                device.answer(&mut acting, (bytes, len), accepted, &mut [0; PROBE_BYTES as usize]);
            }
            Step::Bypass(on) => device.change(&mut acting, Change::Bypass(on)),
            Step::Reset => device.change(&mut acting, Change::Reset),
            Step::Close => device.change(&mut acting, Change::Close),
            Step::Restart => device.change(&mut acting, Change::Restart),
            Step::Wait(ticks) => {
                now += u64::from(ticks);
                device.set_time(now);
                device.tear_down(&mut acting);
            }
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
