//! Nonsense in every mode of the local APIC: pages of random stores, modes in random order, with a
//! device and a timer that interrupt meanwhile. The numbers repeat; the seed is printed.

use super::edu;
use crate::counters::{Policy, policy};
use crate::xapic::{self, Mode};
use crate::{boot::Boot, console::check, cpu, edu, idt, random::Random, wait, x2apic};

const SEED: u64 = 0xA61C_5EED;
const ROUNDS: u64 = 150;
/// The lower half of the interrupt command.
const COMMAND: u32 = 0x830;
const PROTECTION: u8 = 13;

/// Random registers and modes; then all is as ever.
pub fn noise(test: &str, _: &Boot) {
    let Some(edu) = edu(test) else { return };
    check!(test, true, "seed {SEED:#x}");
    let mut random = Random::new(SEED);
    let (mut refused, mut strange) = (0u32, 0u32);
    idt::on(2, |_| {});
    (16..32).filter(|v| *v != 18).for_each(|v| idt::on(v, |_| complete()));
    (32..=255).for_each(|v| idt::on(v, |_| complete()));
    edu.aim(0x40);
    for _ in 0..ROUNDS {
        edu::raise();
        let mode = [Mode::Off, Mode::Invalid, Mode::Xapic, Mode::X2apic];
        if let Err(fault) = xapic::try_mode(mode[random.number() as usize % 4]) {
            refused += 1;
            strange += u32::from(fault.vector != PROTECTION);
        }
        cpu::enable_interrupts();
        for _ in 0..20 {
            store(&mut random);
        }
        cpu::disable_interrupts();
        edu::acknowledge();
    }
    check!(test, refused > 0 && strange == 0, "{refused} refused by #GP, {strange} otherwise");
    x2apic::init_cpu();
    x2apic::complete_all();
    cpu::wrmsr(x2apic::TPR, 0);
    idt::reset();
    cpu::enable_interrupts();
    wait::settle();
    edu.aim_handled(0x40);
    let before = idt::count(0x40);
    let n = edu.raise_and_wait(0x40, 20) - before;
    check!(test, n == 20, "{n} of 20 device interrupts afterwards");
    edu.silence();
}

fn complete() {
    edu::acknowledge();
    match xapic::mode() {
        0xC00 => cpu::wrmsr(0x80B, 0),
        0x800 => xapic::write(0x80B, 0),
        _ => {}
    }
}

/// A store to the page, there or not, by the register or anywhere. Not INIT nor start-up to itself,
/// nor an exception's vector for the timer, and no period that a core without a host is caught in.
fn store(random: &mut Random) {
    let value = random.number();
    let register = 0x800 + (random.number() % 0x40) as u32;
    let data = match register {
        COMMAND => value as u32 & !0xC_0700 | 0x20,
        0x832..=0x837 => value as u32 | 0x40,
        0x838 if policy() == Policy::Bare => return,
        0x838 => value as u32 | 0x10_0000,
        _ => value as u32,
    };
    match value >> 60 {
        0 => cpu::mmio_write64(xapic::PAGE + (value >> 32 & 0xFF8), value),
        1 => {
            cpu::mmio_read(xapic::PAGE + (value >> 32 & 0xFFC));
        }
        2 if register != COMMAND => {
            let _ = cpu::try_wrmsr(register, u64::from(data));
        }
        _ => xapic::write(register, data),
    }
}
