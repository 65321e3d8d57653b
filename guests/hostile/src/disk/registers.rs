//! The function's registers: resets, queues and features that change under way, its BAR, the window
//! that configuration space has into it, its notify page.

use super::{afterwards, collect, fill, idle, needed, raw::Raw, start};
use core::arch::asm;
use machine::{
    boot::Boot,
    console::check,
    cpu, pci,
    random::Random,
    virtio::{Virtio, field, status},
    virtio_blk as blk,
    virtqueue::{Descriptor, NEXT, WRITE, get, put},
    wait,
};

const SEED: u64 = 0x4E61;
/// Resets with all slots under way, and toggles of bus mastering.
const RESETS: u64 = 60;
const TOGGLES: u64 = 500;
/// Long reads in whose middle it is switched off, their bytes, and what no sector holds.
const MIDWAY: u64 = 60;
const LONG: u64 = 2 << 20;
const UNREAD: u64 = 0x0FF5_1DE5_0FF5_1DE5;
/// Rounds of BARs that move, stores of noise, and kicks.
const MOVES: u64 = 60;
const NOISE: u64 = 2500;
const KICKS: u64 = 100_000;
/// TSC ticks in which a device that goes on after its reset would show it.
const SETTLED: u64 = 2_000_000;
/// Places that the window is pointed at.
const STEPS: u32 = 80;
/// Bytes of its BAR.
const BAR_BYTES: u64 = 0x8000;
/// Places in the window that guests have for BARs.
const PLACES: [u32; 4] = [0xD000_0000, 0xD100_0000, 0xDFFF_8000, 0xD000_8000];

/// Resets with requests under way, and registers of a queue that runs.
pub fn resets(test: &str, boot: &Boot) {
    let Some(disk) = needed(test) else { return };
    let mut random = Random::new(SEED);
    let (mut begun, mut resets, mut kept, mut late) = (0, 0, 0, 0);
    let queue = blk::queue(0);
    for _ in 0..RESETS {
        if !start(&disk, 1, boot) {
            break;
        }
        let features = disk.offered();
        begun += fill(queue, random.number());
        let r = random.number();
        wait::ticks(r % 30_000);
        // What is locked now: another ring, its size, its end, other features, a second start.
        let areas = [0, 0x1000, r & !0xFFF];
        disk.place(0, 8, areas, r as u16);
        cpu::mmio_write16(disk.registers() + field::QUEUE_ENABLE, 0);
        for select in 0..3 {
            cpu::mmio_write(disk.registers() + field::DRIVER_FEATURE_SELECT, select);
            cpu::mmio_write(disk.registers() + field::DRIVER_FEATURE, r as u32);
        }
        disk.add_status(status::DRIVER_OK | (r >> 8) as u8 | 0xF);
        kept += u64::from(disk.offered() == features && disk.vectors(0).2);
        resets += u64::from(disk.reset());
        // From the moment on at which it says that it is reset.
        let served = queue.ring.waiting();
        wait::ticks(SETTLED);
        late += u64::from(queue.ring.waiting() != served);
    }
    let good = resets == RESETS && kept == RESETS && begun >= RESETS * blk::DEPTH as u64;
    check!(
        test,
        good && late == 0,
        "{resets} resets of {RESETS} with {begun} requests, {kept} times unmoved, {late} served after it"
    );
    afterwards(test, &disk, boot);
}

/// Bus mastering off and on as fast as it goes, with requests always under way; while it is off
/// none is served.
pub fn bus_master(test: &str, boot: &Boot) {
    let Some(disk) = needed(test) else { return };
    let count = usize::from(disk.queues()).min(blk::QUEUES);
    if !start(&disk, count, boot) {
        return check!(test, false, "{count} queues don't start");
    }
    let queues = || (0..count).map(blk::queue);
    let master = |on: bool| {
        let memory = pci::MEMORY_AND_MASTER & 2;
        disk.function.write(pci::COMMAND, if on { pci::MEMORY_AND_MASTER } else { memory });
    };
    let (mut begun, mut done) = (0, 0);
    for toggle in 0..TOGGLES {
        for queue in queues() {
            done += collect(queue);
            begun += fill(queue, toggle);
        }
        master(false);
        master(true);
    }
    let ended = idle(queues());
    done += queues().map(collect).sum::<u64>();
    master(false);
    // What was ordered last is followed by then.
    wait::settle();
    let refilled: u64 = queues().map(|queue| fill(queue, 0)).sum();
    wait::settle();
    let early: u64 = queues().map(collect).sum();
    master(true);
    let late = if idle(queues()) { queues().map(collect).sum() } else { 0 };
    let good = ended && done == begun && early == 0 && late == refilled;
    check!(
        test,
        good,
        "{done} of {begun} requests in {TOGGLES} toggles; while it was off {early} of {refilled}, then {late}"
    );
    let (halfway, went_on, ended) = midway(&disk, boot, master);
    check!(
        test,
        // How often is the machine's to say: another may keep this CPU from running.
        halfway > 0 && went_on == 0 && ended == MIDWAY,
        "off {halfway} times in the middle of a read, which went on {went_on} times; {ended} ended"
    );
    afterwards(test, &disk, boot);
}

/// Bus mastering off while a long read is under way: from the store on nothing is written to the
/// guest's memory. How often it was under way then, went on, and ended when it was on again.
fn midway(disk: &Virtio, boot: &Boot, master: impl Fn(bool)) -> (u64, u64, u64) {
    let raw = Raw::new(boot, 0);
    let data = boot.memory_end() - LONG;
    let pages = || (0..LONG).step_by(0x1000).map(|at| data + at);
    // It goes on from its start to its end. By few looks: one piece may be done meanwhile.
    let read = || {
        let (mut from, mut to) = (0, LONG / 0x1000);
        while from < to {
            let middle = (from + to) / 2;
            match get::<u64>(data + 0x1000 * middle) {
                UNREAD => to = middle,
                _ => from = middle + 1,
            }
        }
        from
    };
    let mut random = Random::new(SEED);
    let (mut halfway, mut went_on, mut ended) = (0, 0, 0);
    for _ in 0..MIDWAY {
        raw.clear();
        raw.put_good();
        Descriptor { address: data, bytes: LONG as u32, flags: NEXT | WRITE, next: 2 }
            .put(raw.areas[0], 1);
        pages().for_each(|page| put(page, UNREAD));
        if !raw.start(disk, 0) {
            break;
        }
        raw.offer(0);
        let page = data + random.number() % (LONG / 0x2000) * 0x1000;
        let begun = wait::until(|| get::<u64>(page) != UNREAD);
        master(false);
        let before = read();
        wait::ticks(SETTLED);
        halfway += u64::from(begun && raw.used() == 0 && before < LONG / 0x1000);
        went_on += u64::from(read() != before);
        master(true);
        ended += u64::from(raw.uses(1) && read() == LONG / 0x1000);
    }
    (halfway, went_on, ended)
}

/// Its BAR moved, sized, over memory and registers, and not decoded, with requests under way.
pub fn bars(test: &str, boot: &Boot) {
    let Some(disk) = needed(test) else { return };
    let home = disk.function.read(pci::BAR0);
    let memory = boot.memory_end() as u32;
    let mut random = Random::new(SEED);
    let (mut begun, mut done, mut lost, mut found) = (0, 0, 0, 0);
    if !start(&disk, 1, boot) {
        return check!(test, false, "it doesn't start");
    }
    let queue = blk::queue(0);
    for _ in 0..MOVES {
        done += collect(queue);
        begun += fill(queue, random.number());
        let r = random.number();
        let over = [memory - 0x8000, memory - 0x1000, 0xFEC0_0000, 0xFED0_0000, 0xFEE0_0000, 0, !0];
        disk.function.write(pci::BAR0, over[(r % 7) as usize]);
        disk.function.read(pci::BAR0);
        disk.function.write(pci::COMMAND, (r >> 8 & 7) as u32);
        disk.function.write(pci::COMMAND, pci::MEMORY_AND_MASTER & 4);
        let to = PLACES[(r >> 16) as usize % PLACES.len()];
        disk.function.write(pci::BAR0, to);
        disk.function.write(pci::COMMAND, pci::MEMORY_AND_MASTER);
        found += u64::from(answers(to.into()));
        lost += u64::from(answers(disk.registers()));
        // Its notify page, and what follows.
        (0..BAR_BYTES).step_by(0x1000).skip(3).for_each(|page| {
            cpu::mmio_write(u64::from(to) + page + (r >> 32 & 0xFFC), r as u32 & !0xFF);
        });
    }
    disk.function.write(pci::COMMAND, pci::MEMORY_AND_MASTER & 4);
    disk.function.write(pci::BAR0, home);
    disk.function.write(pci::COMMAND, pci::MEMORY_AND_MASTER);
    let ended = idle([queue].into_iter());
    done += collect(queue);
    let good = ended && done == begun && found == MOVES && lost == 0;
    check!(
        test,
        good,
        "{done} of {begun} requests, found {found} of {MOVES} times, {lost} where it was"
    );
    (0..disk.entries()).for_each(|entry| disk.mask(entry, true));
    afterwards(test, &disk, boot);
}

/// Whether the running device's registers are there.
fn answers(at: u64) -> bool {
    let status = cpu::mmio_read8(at + field::DEVICE_STATUS);
    status != 0xFF && status & status::DRIVER_OK != 0
}

/// The window's capability (virtio 1.2, 4.1.4.9): its type, and its fields.
const WINDOW: u8 = 5;

/// Configuration space's window, with every offset of note, every length, loads and stores of each
/// width; the same of a BAR that isn't decoded.
pub fn window(test: &str, boot: &Boot) {
    let Some(disk) = needed(test) else { return };
    let function = disk.function;
    let mut all = function.capabilities(pci::VENDOR);
    let Some(at) = all.find(|at| (function.read(*at) >> 24) as u8 == WINDOW) else {
        return check!(test, false, "no window");
    };
    let queues = disk.queues();
    let mut random = Random::new(SEED);
    let (mut accesses, mut through) = (0, 0);
    for command in [pci::MEMORY_AND_MASTER, 4] {
        function.write(pci::COMMAND, command);
        for step in 0..STEPS {
            let r = random.number();
            let offset = match step {
                0..36 => step,
                36..60 => (step - 36) / 4 * 0x1000 + 0xFFD + (step % 4),
                _ => r as u32 & [0x7FFF, 0xFFFF, u32::MAX][step as usize % 3],
            };
            // Ring addresses that are this kernel's own memory would be its own end.
            let value = (r >> 32) as u32 | 0x9000_0000;
            for length in [0, 1, 2, 3, 4, 8, u32::MAX] {
                function.write(at + 4, if step % 16 == 15 { r as u32 } else { 0 });
                function.write(at + 8, offset);
                function.write(at + 12, length);
                function.read(at + 16);
                if !(0x20..0x38).contains(&offset) || length == 4 {
                    function.write(at + 16, value);
                }
                accesses += 2;
            }
            function.write(at + 4, 0);
            function.write(at + 8, field::NUM_QUEUES as u32);
            function.write(at + 12, 2);
            through += u32::from(function.read(at + 16) as u16 == queues);
        }
    }
    function.write(pci::COMMAND, pci::MEMORY_AND_MASTER);
    (0..disk.entries()).for_each(|entry| disk.mask(entry, true));
    let right = through == 2 * STEPS;
    check!(test, right, "{accesses} accesses, {through} of {} in between were right", 2 * STEPS);
    afterwards(test, &disk, boot);
}

/// Noise in all of its BAR by every width, across pages and beyond its end; a storm of kicks of
/// queues that there are and aren't.
pub fn noise(test: &str, boot: &Boot) {
    let Some(disk) = needed(test) else { return };
    let base = disk.registers();
    let mut random = Random::new(SEED);
    let (mut seen, mut resets) = (0u32, 0);
    for _ in 0..NOISE {
        let r = random.number();
        // Half of it to the registers.
        let reach = if r >> 62 & 1 == 0 { 0x40 } else { BAR_BYTES + 0x10 };
        let offset = (r & 0xFFFF) % reach;
        let ring = (0x19..0x38).contains(&offset);
        let value = r >> 16;
        // SAFETY: device registers, or nothing: no address of a ring that is this kernel's memory
        // can come of whole words with high bits.
        unsafe {
            match r >> 59 & 7 {
                0 => asm!("mov [{}], {:l}", in(reg) base + offset, in(reg_abcd) value),
                1 => asm!("mov [{}], {:x}", in(reg) base + offset, in(reg) value),
                2 | 3 if ring => cpu::mmio_write(base + (offset & !3), value as u32 | 0x9000_0000),
                2 | 3 => cpu::mmio_write(base + offset, value as u32),
                4 if !ring => asm!("mov [{}], {}", in(reg) base + offset, in(reg) value),
                _ => seen ^= u32::from(cpu::mmio_read8(base + offset)),
            }
        }
        if r >> 40 & 0x1FF == 0 {
            resets += u32::from(disk.reset());
        }
    }
    (0..disk.entries()).for_each(|entry| disk.mask(entry, true));
    let started = disk.reset() && start(&disk, 1, boot);
    for i in 0..KICKS {
        let page = disk.kicks() & !0xFFF;
        cpu::mmio_write16(page + 2 * (i % 0x800), i as u16);
        if i % 64 == 0 {
            // The pages before and after it.
            cpu::mmio_write16(page + 0x1000 - 2 + (i >> 6 & 4), i as u16);
            cpu::mmio_write16(page.wrapping_sub(2), i as u16);
        }
    }
    check!(
        test,
        started && resets > 0,
        "{NOISE} accesses, {resets} resets, {KICKS} kicks ({seen:#x})"
    );
    afterwards(test, &disk, boot);
}
