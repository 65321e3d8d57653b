//! Frames that go there and back one at a time, between two VMs whose CPUs halt until the next one
//! interrupts them: a kick, or an interrupt, that got lost would be missed by nobody else.

use super::net::{Link, Seen, VECTOR, kind, links};
use crate::{boot::Boot, console::check, cpu, idt, wait, x2apic};

const TICK: u8 = 0x71;
/// Round trips.
const ROUNDS: u64 = 2_000;
/// Ticks, of some seconds each, after which a frame doesn't come any more.
const PATIENCE: u64 = 20;

/// Each frame is told of by its interrupt, though nothing else wakes the CPU but a tick now and
/// then.
pub fn halts(test: &str, boot: &Boot) {
    let Some([link]) = links(test, boot) else { return };
    let started = link.start(boot);
    cpu::enable_interrupts();
    let met = started && link.meet();
    check!(test, met, "both are there");
    if !met {
        return;
    }
    idt::on(TICK, |_| x2apic::complete());
    x2apic::start_timer(TICK, true, u32::MAX);
    let (mut came, mut wrong, mut untold) = (0, 0, 0);
    let sends = if link.begins() { kind::NUMBER } else { kind::ECHO };
    let awaited = if link.begins() { kind::ECHO } else { kind::NUMBER };
    while came < ROUNDS {
        if link.begins() && !link.send(sends, came) {
            break;
        }
        let Some(seen) = halt(&link, awaited, &mut untold) else { break };
        let wanted =
            Seen { from: link.peer, to: link.own, kind: awaited, number: came, whole: true };
        wrong += u64::from(seen != wanted);
        if !link.begins() && !link.send(sends, came) {
            break;
        }
        came += 1;
    }
    x2apic::stop_timer();
    let ticks = idt::total(TICK);
    check!(test, came == ROUNDS && wrong == 0, "{came} of {ROUNDS} there and back, {wrong} wrong");
    check!(
        test,
        untold == 0,
        "{untold} found by a tick, of {ticks}, instead of by their interrupt"
    );
    check!(test, idt::total(VECTOR) > 0, "{} interrupts", idt::total(VECTOR));
    // A frame that was found by a tick may have its interrupt now.
    wait::settle();
    check!(test, link.part(), "both come to the end");
}

/// Halts until the next frame of this kind is there; none if it doesn't come. `untold`: so many
/// were there when a tick came, and their interrupt had not come a while later.
fn halt(link: &Link, awaited: u8, untold: &mut u64) -> Option<Seen> {
    let interface = link.interface();
    let mut last = idt::total(TICK);
    let patience = last + PATIENCE;
    loop {
        cpu::disable_interrupts();
        let seen = link.receive();
        let ticks = idt::total(TICK);
        if seen.is_none() && ticks == last {
            cpu::halt_until_interrupt();
            continue;
        }
        cpu::enable_interrupts();
        match seen {
            Some(seen) if seen.kind == awaited => return Some(seen),
            Some(_) => {}
            None if ticks > patience => return None,
            None => {
                last = ticks;
                // An interrupt that is on its way comes meanwhile.
                wait::settle();
                cpu::disable_interrupts();
                let before = interface.account().arrived;
                interface.poll();
                *untold += interface.account().arrived - before;
            }
        }
    }
}
