//! The model of an entry's checks against the processor's: every bit of every field that the model
//! is about, alone and in random pairs, in each kind of start.
//!
//! Guarantees: no instruction of a guest is executed, for the preemption timer is 0; where it
//! isn't, the guest is at a VMCALL. Left out is what the model doesn't look at, by its own word,
//! and what of the host's state could be loaded.

use super::structure::{Came, Current, long};
use crate::console::{check, println};
use core::arch::global_asm;
use machine::random::Random;
use vendor::Start;
use vmx::controls::{Controls, pin};
use vmx::field::Group;
use vmx::{Area, Field, entry, field};

/// Where a vCPU in real mode starts: the page has VMCALL and a jump back to it.
const PAGE: u8 = 8;
const CALLS: [u8; 5] = [0x0F, 0x01, 0xC1, 0xEB, 0xFB];

global_asm!(".global vmx_calls", "vmx_calls:", "vmcall", "jmp vmx_calls");

unsafe extern "C" {
    static vmx_calls: u8;
}

/// How many pairs are tried in each start.
const PAIRS: usize = 10_000;
/// How many disagreements are said.
const SAID: usize = 16;

/// Fields that name lists of MSRs: these are in memory.
const LISTS: [Field; 3] =
    [field::EXIT_MSR_STORE_COUNT, field::EXIT_MSR_LOAD_COUNT, field::ENTRY_MSR_LOAD_COUNT];

/// The bits of a field that are tried.
fn tried(field: Field) -> u64 {
    let known = |words: [u32; 4]| words.iter().fold(0, |sum, word| sum | u64::from(*word));
    let (needed, times, open) = (Controls::NEEDED, Controls::AT_TIMES, Controls::OPEN);
    match field {
        _ if LISTS.contains(&field) => 0,
        field::PIN_CONTROLS => known([needed.pin, times.pin, open.pin, 0]),
        field::PRIMARY_CONTROLS => known([needed.primary, times.primary, open.primary, 0]),
        field::SECONDARY_CONTROLS => {
            known([needed.secondary, times.secondary, Controls::OFFERED, 0])
        }
        field::EXIT_CONTROLS => known([needed.exit, times.exit, open.exit, 0]),
        // Into system management mode is an error of another number.
        field::ENTRY_CONTROLS => known([needed.entry, times.entry, 0, 0]),
        // Shutdown and wait-for-SIPI, and accessed and dirty bits, aren't used, and the model
        // refuses them.
        field::GUEST_ACTIVITY => !0b10 & field.mask(),
        field::EPT_POINTER => !0b1100_0000,
        // Each entry's own.
        field::HOST_RIP | field::HOST_RSP => 0,
        // By what the virtual APIC's page has.
        field::TPR_THRESHOLD => !0xF & field.mask(),
        _ => field.mask() & !unchecked(field),
    }
}

/// What Bochs 3.0 enters, and the manual doesn't.
fn unchecked(field: Field) -> u64 {
    match field {
        field::GUEST_DEBUGCTL => u64::MAX,
        // PG, in long mode.
        field::GUEST_CR0 => 1 << 31,
        field::GUEST_RIP => u64::MAX << 48,
        field::GUEST_PENDING_DEBUG => u64::MAX << 32,
        _ => 0,
    }
}

/// What comes of an entry, by the model.
fn expected(current: &Current) -> Came {
    match entry::check(current, &current.capabilities) {
        Ok(()) => Came::Left,
        Err(refusal) if refusal.field.group() == Group::Guest => Came::Invalid,
        Err(_) => Came::Failed(0),
    }
}

/// Errors are 7 for controls and 8 for the host's state; which of two that are wrong is named
/// first is the processor's.
fn is_same(model: Came, came: Came) -> bool {
    match (model, came) {
        (Came::Failed(_), Came::Failed(number)) => matches!(number, 7 | 8),
        (model, came) => model == came,
    }
}

struct Count {
    tried: usize,
    entered: usize,
    wrong: usize,
}

impl Count {
    /// `event`: what is to be raised, and its error code, or nothing.
    fn one(
        &mut self,
        current: &mut Current,
        start: &(&str, Start),
        event: [u64; 2],
        bits: &[(Field, u32)],
    ) {
        build(current, start.1);
        let [info, code] = event;
        current.write(field::ENTRY_INTERRUPTION, info & field::ENTRY_INTERRUPTION.mask());
        current.write(field::ENTRY_ERROR_CODE, code);
        current.write(field::ENTRY_INSTRUCTION_LENGTH, info >> 32 & 0xF);
        for (field, bit) in bits {
            let value = current.read(*field);
            current.write(*field, value ^ 1 << bit);
        }
        let refusal = entry::check(current, &current.capabilities).err();
        let model = expected(current);
        // What is loaded by an exit is tried only where nothing is left for an exit to load.
        let host = bits.iter().any(|(field, _)| field.group() == Group::Host);
        if host && model == Came::Left {
            return;
        }
        let came = current.enter();
        self.tried += 1;
        self.entered += usize::from(came == Came::Left);
        if is_same(model, came) {
            return;
        }
        self.wrong += 1;
        if self.wrong <= SAID {
            println!("in {}, {:#x} to be raised:", start.0, info as u32);
            for (field, bit) in bits {
                let name = field::ALL.iter().find(|(other, _)| other == field);
                println!("  {} bit {bit}", name.map_or("a field", |(_, name)| name));
            }
            match refusal {
                Some(refusal) => println!("  the model: {refusal}; the CPU: {came:?}"),
                None => println!("  the model enters; the CPU: {came:?}"),
            }
        }
    }
}

fn build(current: &mut Current, start: Start) {
    current.build(start);
    let word = current.read(field::PIN_CONTROLS);
    current.write(field::PIN_CONTROLS, word | u64::from(pin::PREEMPTION_TIMER));
    current.write(field::PREEMPTION_TIMER, 0);
}

/// All bits that are tried of fields of these groups.
fn bits(groups: &'static [Group]) -> impl Iterator<Item = (Field, u32)> + Clone {
    let fields = field::ALL.iter().map(|(field, _)| *field);
    fields.filter(|field| groups.contains(&field.group())).flat_map(|field| {
        let mask = tried(field);
        (0..64).filter(move |bit| mask >> bit & 1 != 0).map(move |bit| (field, bit))
    })
}

/// Something to be raised: any type, vectors of exceptions mostly, and now and then a bit that is
/// reserved. Bits 35:32 are an instruction's length.
fn event(random: &mut Random, protected: bool) -> [u64; 2] {
    let number = random.number();
    let vector = if number & 1 << 60 == 0 { number & 0x1F } else { number & 0xFF };
    let odd = if number >> 61 == 0 { 1 << (12 + (number >> 40 & 0xF)) } else { 0 };
    // Bochs takes an error code with any type, and in real mode; the manual doesn't.
    let kind = number & 0x700;
    let error_code = if kind == 3 << 8 && protected { number & 1 << 11 } else { 0 };
    // A monitor trap, which isn't used and which the model refuses.
    let vector = if kind == 7 << 8 { vector.max(1) } else { vector };
    let info = 1 << 31 | error_code | kind | vector | odd | number & 0xF << 32;
    [info, number >> 20 & if number & 1 << 59 == 0 { 0x1_FFFF } else { 0xFFFF }]
}

pub fn all(test: &str, current: &mut Current) {
    for (at, byte) in (u64::from(PAGE) << 12..).zip(CALLS) {
        crate::cpu::mmio_write8(at, byte);
    }
    let rip = &raw const vmx_calls as u64;
    let flat = Start::Kernel {
        rip,
        page_tables: None,
        gdt: (0, 0),
        selectors: (0x08, 0x10),
        registers: (0, 0, 0),
    };
    let starts = [
        ("long mode", long(rip)),
        ("protected mode", flat),
        ("real mode", Start::StartUp { page: PAGE }),
    ];
    let mut random = Random::new(16);
    for start in &starts {
        build(current, start.1);
        let (model, came) = (expected(current), current.enter());
        let right = model == Came::Left && came == Came::Left;
        check!(test, right, "{}: what is built is entered, {came:?}", start.0);
        if !right {
            continue;
        }
        let protected = !matches!(start.1, Start::StartUp { .. });
        let mut count = Count { tried: 0, entered: 0, wrong: 0 };
        for bit in bits(&[Group::Control, Group::Guest, Group::Host]) {
            count.one(current, start, [0; 2], &[bit]);
        }
        let guest = bits(&[Group::Guest]).filter(|(field, _)| *field != field::PREEMPTION_TIMER);
        let number = guest.clone().count() as u64;
        for _ in 0..PAIRS {
            let mut pick = || guest.clone().nth((random.number() % number) as usize);
            let (Some(one), Some(other)) = (pick(), pick()) else { continue };
            if one != other {
                count.one(current, start, [0; 2], &[one, other]);
                // Bochs raises anything for a sleeper; the manual doesn't.
                if one.0 != field::GUEST_ACTIVITY {
                    count.one(current, start, event(&mut random, protected), &[one]);
                }
            }
        }
        let Count { tried, entered, wrong } = count;
        check!(
            test,
            wrong == 0 && entered > 0 && entered < tried,
            "{}: of {tried} structures {entered} were entered; the model says other of {wrong}",
            start.0
        );
    }
}
