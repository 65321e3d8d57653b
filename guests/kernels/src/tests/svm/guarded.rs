//! Interrupts of the hypervisor's that end its guest, and what it does before it takes them: by the
//! manual each still comes once, with STGI and IF, and those of the highest priority first.

use super::block::{self, Frame, Guest, MASKING, exit, let_in};
use super::{begin, end, inside, waiting};
use crate::counters::{Counted, Policy, Window, policy};
use crate::{boot::Boot, console::check, cpu, idt, wait, x2apic};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
use ledger::Reason;

pub(super) const LOW: u8 = 0x51;
pub(super) const HIGH: u8 = 0x61;
/// The class of the lower one.
pub(super) const CLASS: u64 = 5;
/// Legal for an interrupt, and an exception's.
const REUSED: u8 = 0x1C;
const NMI: u8 = 2;
pub(super) const NOT_PRESENT: u8 = 11;
const PROTECTION: u8 = 13;
const ROUNDS: u64 = 50;
const EFER: u32 = 0xC000_0080;
const APIC_BASE: u32 = 0x1B;
const APIC_ON: u64 = 1 << 11;

/// Vectors in the order in which they came, the last one in the lowest byte.
static ORDER: AtomicU64 = AtomicU64::new(0);
/// Handlers that didn't find their vector in service.
pub(super) static UNSERVED: AtomicU64 = AtomicU64::new(0);
/// The guest's table of interrupts.
static TABLE: Frame = Frame::new();

fn came(frame: &mut idt::Frame) {
    let vector = frame.vector & 0xFF;
    UNSERVED.fetch_add(u64::from(!x2apic::in_service(vector as u8)), SeqCst);
    let _ = ORDER.fetch_update(SeqCst, SeqCst, |order| Some(order << 8 | vector));
    x2apic::complete();
}

/// A fault of the delivery: the table is as it was, and the interrupt, which was taken, is
/// completed.
pub(super) fn failed(_: &mut idt::Frame) {
    idt::load();
    idt::write_gate(idt::arena(0), LOW, idt::gate(LOW, true));
    x2apic::complete();
}

/// One of these pends, the guest is run, and left for it. The flag and IF are clear.
pub(super) fn told(guest: &mut Guest, vector: u8) -> bool {
    ORDER.store(0, SeqCst);
    x2apic::self_ipi(vector);
    guest.enter_open();
    guest.code() == exit::INTR
}

/// What comes with the flag and IF.
pub(super) fn taken() -> u64 {
    let_in();
    come_in()
}

/// What comes with IF.
pub(super) fn come_in() -> u64 {
    cpu::enable_interrupts();
    wait::ticks(1000);
    cpu::disable_interrupts();
    ORDER.swap(0, SeqCst)
}

/// Does the CPU keep the flag of a guest that is a hypervisor?
pub(super) fn keeps_flag() -> bool {
    cpu::cpuid(0x8000_000A).edx >> 16 & 1 == 1
}

/// Nothing is in service or pending, and the next one comes as ever.
fn sound(guest: &mut Guest) -> bool {
    let clean =
        [LOW, HIGH, REUSED].iter().all(|v| !x2apic::in_service(*v) && !x2apic::requested(*v));
    let served = UNSERVED.swap(0, SeqCst) == 0;
    clean && served && told(guest, LOW) && taken() == LOW.into() && !x2apic::in_service(LOW)
}

/// Has an interrupt end the guest, and something else come before it is taken. Was all as it is to
/// be?
pub(super) type Situation = fn(&mut Guest) -> bool;

/// All of it.
pub fn guarded(test: &str, _: &Boot) {
    if !begin(test) {
        return;
    }
    for vector in [LOW, HIGH, REUSED] {
        idt::on(vector, came);
    }
    idt::on(NMI, |_| {});
    idt::on(NOT_PRESENT, failed);
    idt::on(PROTECTION, failed);
    let guest = &mut Guest::new(inside::spins());
    check!(test, sound(guest), "one comes with STGI");
    counted(test, guest);
    let situations: [(&str, Situation); 18] = [
        ("the guest is run again before STGI", again),
        ("a higher one comes before STGI", higher),
        ("a lower one comes before STGI", lower),
        ("completed before it came", early),
        ("the table of interrupts is another", moved),
        ("the table ends before its gate", cut),
        ("its gate isn't present", absent),
        ("the task priority rises, by CR8", priority),
        ("an NMI before STGI", nmi_held),
        ("an NMI behind STGI, before STI", nmi_behind),
        ("HLT", halted),
        ("an event is injected meanwhile", injected),
        ("a guest that masks it", masking),
        ("a guest that takes it", own),
        ("the vector of an exception", reused),
        ("the timer has the vector of an exception", timer),
        ("SVM is turned off", off),
        ("the local APIC is turned off", apic_off),
    ];
    waiting::prepare();
    for (name, right) in situations.into_iter().chain(waiting::SITUATIONS) {
        check!(test, right(guest), "{name}");
        check!(test, sound(guest), "and the next one comes once");
    }
    end();
}

/// Two exits for one that ends a guest, and one for one that comes while the hypervisor runs.
fn counted(test: &str, guest: &mut Guest) {
    let mut right = 0;
    let window = Window::open();
    for _ in 0..ROUNDS {
        right += u64::from(told(guest, LOW) && taken() == LOW.into());
    }
    let exits = window.close();
    check!(test, right == ROUNDS, "{right} of {ROUNDS} came");
    guest.restart(inside::cpuids());
    let own = [1, 2, 3].map(|interrupts| {
        let window = Window::open();
        for _ in 0..ROUNDS {
            guest.enter_open();
            let_in();
            for _ in 0..interrupts {
                x2apic::self_ipi(LOW);
                come_in();
            }
        }
        window.close()
    });
    guest.restart(inside::spins());
    if policy() == Policy::Bare || !keeps_flag() {
        return;
    }
    let all = |exits: &Counted| (exits.all() - exits.of(Reason::Kick)) as f64 / ROUNDS as f64;
    let each = all(&exits);
    check!(test, each == 2.0, "{each} exits for one that ends a guest");
    // CPUID, VMRUN, and one for the interrupt; for the second one, and then for CLGI again.
    let [one, two, three] = own.each_ref().map(all);
    check!(test, one == 3.0, "{} exits for one while the hypervisor runs", one - 2.0);
    let few = two <= 5.0 && three <= 5.0;
    check!(test, few, "{} for two, {} for three", two - 2.0, three - 2.0);
}

/// VMRUN once more with the flag clear: it ends at once, for the same.
fn again(guest: &mut Guest) -> bool {
    let first = told(guest, LOW);
    let second = (0..3).all(|_| {
        guest.enter_open();
        guest.code() == exit::INTR
    });
    first && second && ORDER.load(SeqCst) == 0 && taken() == LOW.into()
}

fn higher(guest: &mut Guest) -> bool {
    let first = told(guest, LOW);
    x2apic::self_ipi(HIGH);
    first && taken() == u64::from_be_bytes([0, 0, 0, 0, 0, 0, HIGH, LOW])
}

fn lower(guest: &mut Guest) -> bool {
    let first = told(guest, HIGH);
    x2apic::self_ipi(LOW);
    first && taken() == u64::from_be_bytes([0, 0, 0, 0, 0, 0, HIGH, LOW])
}

/// EOI of one that wasn't taken: what comes of it is this kernel's own affair, but nothing stays.
fn early(guest: &mut Guest) -> bool {
    let first = told(guest, LOW);
    x2apic::complete();
    let came = taken();
    UNSERVED.store(0, SeqCst);
    first && came == LOW.into()
}

/// Another table, where its gate is that of another vector.
fn moved(guest: &mut Guest) -> bool {
    let first = told(guest, LOW);
    let other = idt::arena(idt::TABLE_BYTES);
    for vector in 0..=255 {
        idt::write_gate(other, vector, idt::read_gate(idt::arena(0), vector));
    }
    idt::write_gate(other, LOW, idt::gate(HIGH, true));
    cpu::load_idt(other, (idt::TABLE_BYTES - 1) as u16);
    let came = taken();
    UNSERVED.store(0, SeqCst);
    idt::load();
    first && came == HIGH.into()
}

/// Has the delivery fail with this exception, and the error code of its gate.
fn fails(vector: u8, spoil: impl FnOnce()) -> bool {
    let before = idt::count(vector);
    spoil();
    let came = taken();
    let error = idt::last_error(vector) & !1;
    idt::count(vector) == before + 1 && error == u64::from(LOW) * 8 + 2 && came == 0
}

fn cut(guest: &mut Guest) -> bool {
    let limit = u16::from(LOW) * 16 - 1;
    told(guest, LOW) && fails(PROTECTION, || cpu::load_idt(idt::arena(0), limit))
}

fn absent(guest: &mut Guest) -> bool {
    let gate = idt::gate(LOW, false);
    told(guest, LOW) && fails(NOT_PRESENT, || idt::write_gate(idt::arena(0), LOW, gate))
}

/// It waits for its class, and CR8 reads as it was written.
fn priority(guest: &mut Guest) -> bool {
    if policy() != Policy::Bare && !keeps_flag() {
        // The host holds it back by that very priority.
        return true;
    }
    let first = told(guest, LOW) && cpu::cr8() == 0;
    cpu::set_cr8(CLASS);
    let waits = taken() == 0 && cpu::cr8() == CLASS;
    cpu::set_cr8(0);
    first && waits && come_in() == LOW.into()
}

fn nmi_held(guest: &mut Guest) -> bool {
    nmi(guest, false)
}

fn nmi_behind(guest: &mut Guest) -> bool {
    nmi(guest, true)
}

fn nmi(guest: &mut Guest, behind: bool) -> bool {
    let before = idt::count(NMI);
    let first = told(guest, LOW);
    if behind {
        let_in();
    }
    x2apic::send(x2apic::id(), x2apic::command::NMI);
    wait::settle();
    let early = idt::count(NMI) - before;
    let vectors = taken();
    let all = idt::count(NMI) - before;
    first && early == u64::from(behind) && all == 1 && vectors == LOW.into()
}

fn halted(guest: &mut Guest) -> bool {
    let first = told(guest, LOW);
    let_in();
    cpu::halt_until_interrupt();
    first && ORDER.swap(0, SeqCst) == LOW.into()
}

/// The guest has it before it ends.
fn injected(guest: &mut Guest) -> bool {
    const VECTOR: u8 = 0x20;
    let first = told(guest, LOW);
    let handler = inside::arrives();
    by_its_own_table(guest, VECTOR);
    guest.block().put(block::EVENT_INJ, 1 << 31 | u64::from(VECTOR));
    guest.enter_open();
    let block = guest.block();
    let has = guest.code() == exit::INTR && block.get(block::RIP) == handler;
    let left = block.get(block::EVENT_INJ) | block.get(block::EXIT_INT_INFO);
    guest.restart(inside::spins());
    first && has && left >> 31 & 1 == 0 && taken() == LOW.into()
}

/// Its own table has a gate for this.
fn by_its_own_table(guest: &mut Guest, vector: u8) {
    guest.restart(inside::spins());
    let [gate, upper] = idt::gate_to(inside::arrives());
    TABLE.0[2 * usize::from(vector)].store(gate, SeqCst);
    TABLE.0[2 * usize::from(vector) + 1].store(upper, SeqCst);
    guest.block().put(block::IDTR, 0xFFF << 32);
    guest.block().put(block::IDTR + 8, TABLE.address());
}

/// Without V_INTR_MASKING it is the guest's IF that lets it end the guest.
fn masking(guest: &mut Guest) -> bool {
    let first = told(guest, LOW);
    guest.restart(inside::cpuids());
    guest.block().put(block::INT_CTL, 0);
    guest.enter_open();
    let masked = guest.code() == exit::CPUID;
    guest.restart(inside::spins());
    guest.block().put(block::RFLAGS, 0x202);
    guest.enter_open();
    let open = guest.code() == exit::INTR;
    guest.restart(inside::spins());
    guest.block().put(block::INT_CTL, MASKING);
    first && masked && open && taken() == LOW.into()
}

/// If it isn't intercepted the guest has it, by its own table, and its hypervisor completes it.
fn own(guest: &mut Guest) -> bool {
    let first = told(guest, LOW);
    by_its_own_table(guest, LOW);
    let block = guest.block();
    let wanted = block.get(block::EXCEPTIONS);
    block.put(block::EXCEPTIONS, wanted & !(1 << 32));
    block.put(block::INT_CTL, 0);
    block.put(block::RFLAGS, 0x202);
    guest.enter_open();
    let has = guest.code() == exit::VMMCALL && guest.registers.rcx == inside::spins();
    let served = x2apic::in_service(LOW);
    x2apic::complete();
    guest.restart(inside::spins());
    guest.block().put(block::EXCEPTIONS, wanted);
    guest.block().put(block::INT_CTL, MASKING);
    first && has && served && taken() == 0
}

fn reused(guest: &mut Guest) -> bool {
    told(guest, REUSED) && taken() == REUSED.into()
}

/// Then the host takes this kernel's interrupts, and gives them to it.
fn timer(guest: &mut Guest) -> bool {
    let first = told(guest, LOW);
    x2apic::start_timer(REUSED, false, 0);
    let came = taken();
    x2apic::stop_timer();
    first && came == LOW.into()
}

/// Clearing EFER.SVME while the flag is clear is undefined: not on the bare machine.
fn off(guest: &mut Guest) -> bool {
    let first = told(guest, LOW);
    if policy() != Policy::Bare {
        cpu::wrmsr(EFER, cpu::rdmsr(EFER) & !super::SVME);
        cpu::wrmsr(EFER, cpu::rdmsr(EFER) | super::SVME);
    }
    first && taken() == LOW.into()
}

/// What the local APIC has of it is lost with its state.
fn apic_off(guest: &mut Guest) -> bool {
    let first = told(guest, LOW);
    if policy() == Policy::Bare {
        return first && taken() == LOW.into();
    }
    let base = cpu::rdmsr(APIC_BASE);
    cpu::wrmsr(APIC_BASE, base & !(3 << 10));
    cpu::wrmsr(APIC_BASE, base & !(3 << 10) | APIC_ON);
    cpu::wrmsr(APIC_BASE, base);
    x2apic::init_registers();
    first && taken() == 0
}
