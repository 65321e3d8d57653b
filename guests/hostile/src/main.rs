//! The attacker: goes through the subjects named on its command line (`attack=a,b`), saying of each
//! attack when it begins and when it is over, and what the ledger counted of it.
//!
//! `ok SUBJECT/ATTACK: …` says that the attacker came through and its own machine still works. What
//! became of the host and of the other VMs is for others to say. `skipped SUBJECT/ATTACK` says that
//! there was nothing to attack, and `taken SUBJECT/ATTACK N` how many interrupts and exceptions the
//! attacker had in it. Without `order=none` it waits for a byte on its console before it begins, so
//! that its victim can be at work by then.
#![no_std]
#![no_main]

mod apic;
mod borders;
mod config;
mod control;
mod cpus;
mod disk;
mod ends;
mod exits;
mod fixture;
mod interrupts;
mod memory;
mod network;
mod registry;

mod ports;
mod random;
mod registers;
mod rings;
mod serial;
mod space;
mod tables;
mod traps;

use attacks::{Attack, Subject};
use machine::{
    boot::Boot,
    console::{self, println, verdict},
    counters::{self, Window},
    cpu, idt, lives, power,
};

machine::kernel!(main);

/// An attack: its name, for its lines, and what the loader said.
type Doing = fn(&str, &Boot);

fn main(boot: &Boot) -> ! {
    let names = boot.option("attack").unwrap_or("");
    println!("attacker: {names}, {:?}, by {}", counters::policy(), boot.protocol);
    fixture::prepare(boot.option("devices") == Some("none"));
    // A later life goes on where the one before it was.
    if boot.option("order") != Some("none") && lives::lives() == 0 {
        println!("ready");
        fixture::wait_for_order();
    }
    if attacks::chosen(names).next().is_some() && !fixture::is_alone() {
        // Most raise its interrupts, and would otherwise do so at nobody's.
        let _ = fixture::needed_device("the attacker");
    }
    for subject in attacks::chosen(names) {
        subject.attacks.iter().for_each(|attack| carry_out(subject, attack, boot));
    }
    random::run(boot);
    println!("attacks over");
    power::debug_exit(if console::failed() { power::FAILED } else { power::PASSED })
}

fn carry_out(subject: &Subject, attack: &Attack, boot: &Boot) {
    let (place, name) = (subject.name, attack.name);
    let Some((_, play)) = registry::ALL.iter().find(|(n, _)| *n == (place, name)) else {
        return verdict(false, name, format_args!("{place} has no such attack"));
    };
    println!("attack {place}/{name}");
    // Not those of its waiting for the order, nor the samples after the last attack.
    idt::clear_counts();
    let window = Window::open();
    play(name, boot);
    cpu::disable_interrupts();
    let counted = window.close();
    let taken = idt::everything();
    fixture::restore();
    fixture::print_ledger(place, name, &counted);
    if fixture::take_skipped() {
        return println!("skipped {place}/{name}");
    }
    println!("taken {place}/{name} {taken}");
    let (name, n) = (format_args!("{place}/{name}"), fixture::interrupts());
    verdict(
        n == fixture::SAMPLE,
        name,
        format_args!("{n} of {} interrupts afterwards", fixture::SAMPLE),
    );
}
