//! The UART against what Linux's 8250 driver does to it, and against any abuse.

use super::*;
use proptest::prelude::*;

/// The steps of Linux's `autoconfig()` and `autoconfig_16550a()` with every
/// variant probed, true when it concludes "16550A".
fn linux_finds_a_16550a(u: &mut Uart) -> bool {
    let saved = u.read(INTERRUPT_ENABLE);
    u.write(INTERRUPT_ENABLE, 0);
    let none = u.read(INTERRUPT_ENABLE) & 0xF;
    u.write(INTERRUPT_ENABLE, 0xF);
    let all = u.read(INTERRUPT_ENABLE) & 0xF;
    u.write(INTERRUPT_ENABLE, saved);
    if (none, all) != (0, 0xF) {
        return false;
    }
    let (mcr, lcr) = (u.read(MODEM_CONTROL), u.read(LINE_CONTROL));
    u.write(MODEM_CONTROL, MCR_LOOP | MCR_OUT2 | MCR_RTS);
    let lines = u.read(MODEM_STATUS) & 0xF0;
    u.write(MODEM_CONTROL, mcr);
    if lines != MSR_DCD | MSR_CTS {
        return false;
    }
    u.write(LINE_CONTROL, 0xBF);
    u.write(FIFO_CONTROL, 0); // EFR on chips that have one
    u.write(LINE_CONTROL, 0);
    u.write(FIFO_CONTROL, FCR_ENABLE);
    if u.read(INTERRUPT_IDENTIFICATION) >> 6 != 3 {
        return false;
    }
    // No EFR, with either way of reaching it.
    for mode in [0x80, 0xBF] {
        u.write(LINE_CONTROL, mode);
        if u.read(FIFO_CONTROL) == 0 {
            return false;
        }
    }
    // No National SuperIO: bit 4 at offset 2 doesn't follow MCR's loop bit.
    u.write(LINE_CONTROL, 0);
    let before = u.read(MODEM_CONTROL);
    u.write(MODEM_CONTROL, before ^ MCR_LOOP);
    u.write(LINE_CONTROL, 0xE0);
    let second = u.read(INTERRUPT_IDENTIFICATION);
    u.write(LINE_CONTROL, 0);
    u.write(MODEM_CONTROL, before);
    if (second ^ before) & MCR_LOOP != 0 {
        return false;
    }
    // No 16750: bit 5 of IIR stays clear when 64-byte FIFOs are asked for.
    for mode in [0, LCR_DIVISOR_LATCH] {
        u.write(LINE_CONTROL, mode);
        u.write(FIFO_CONTROL, FCR_ENABLE | 0x20);
        if u.read(INTERRUPT_IDENTIFICATION) & 0xE0 != 0xC0 {
            return false;
        }
    }
    u.write(LINE_CONTROL, 0);
    // No XScale: IER bit 6 can't be set.
    u.write(INTERRUPT_ENABLE, 0x40);
    let xscale = u.read(INTERRUPT_ENABLE) & 0x40 != 0;
    u.write(INTERRUPT_ENABLE, 0);
    u.write(LINE_CONTROL, lcr);
    u.write(MODEM_CONTROL, mcr);
    !xscale
}

/// `serial8250_do_startup()`, then ready to work by interrupts.
fn linux_starts_up(u: &mut Uart) {
    for clear in [FCR_ENABLE, FCR_ENABLE | 6, 0] {
        u.write(FIFO_CONTROL, clear);
    }
    for register in [LINE_STATUS, DATA, INTERRUPT_IDENTIFICATION, MODEM_STATUS] {
        u.read(register);
    }
    u.write(LINE_CONTROL, 3);
    u.write(FIFO_CONTROL, FCR_ENABLE | 0x80);
    u.write(MODEM_CONTROL, MCR_OUT2 | MCR_RTS | MCR_DTR);
}

#[test]
fn linux_finds_it_and_leaves_it_silent() {
    let mut u = Uart::new();
    assert!(linux_finds_a_16550a(&mut u));
    assert!(!u.interrupt() && !u.take_edge());
}

#[test]
fn linux_trusts_its_transmitter_interrupt() {
    let mut u = Uart::new();
    linux_starts_up(&mut u);
    // The test for UART_BUG_THRE: enabling it twice asserts it twice.
    for _ in 0..2 {
        u.write(INTERRUPT_ENABLE, IER_TRANSMITTER_EMPTY);
        assert!(u.take_edge());
        assert_eq!(u.read(INTERRUPT_IDENTIFICATION) & 0xF, IIR_TRANSMITTER_EMPTY);
        assert!(!u.interrupt());
        u.write(INTERRUPT_ENABLE, 0);
    }
    // The test for UART_BUG_TXEN reads LSR in between.
    u.write(INTERRUPT_ENABLE, IER_TRANSMITTER_EMPTY);
    assert_eq!(u.read(LINE_STATUS), 0x60);
    assert_eq!(u.read(INTERRUPT_IDENTIFICATION) & IIR_NONE, 0);
}

#[test]
fn a_driver_transmits_by_interrupts_alone() {
    let mut u = Uart::new();
    linux_starts_up(&mut u);
    let (text, mut out) = (b"a line longer than one FIFO of sixteen bytes\n", Vec::new());
    let mut left = text.iter();
    u.write(INTERRUPT_ENABLE, IER_TRANSMITTER_EMPTY | IER_RECEIVED);
    let mut interrupts = 0;
    while u.take_edge() {
        interrupts += 1;
        assert_eq!(u.read(INTERRUPT_IDENTIFICATION) & 0xF, IIR_TRANSMITTER_EMPTY);
        assert_ne!(u.read(LINE_STATUS) & 0x20, 0);
        let burst: Vec<u8> = left.by_ref().take(16).copied().collect();
        if burst.is_empty() {
            u.write(INTERRUPT_ENABLE, IER_RECEIVED);
        }
        out.extend(burst.iter().filter_map(|b| u.write(DATA, *b)));
    }
    assert_eq!(out, text);
    assert_eq!(interrupts, text.len().div_ceil(16) + 1);
    assert!(!u.interrupt());
}

#[test]
fn a_byte_sent_without_reading_iir_still_gives_an_edge() {
    let mut u = Uart::new();
    linux_starts_up(&mut u);
    u.write(INTERRUPT_ENABLE, IER_TRANSMITTER_EMPTY);
    assert!(u.take_edge() && !u.take_edge());
    assert_eq!(u.write(DATA, b'x'), Some(b'x'));
    assert!(u.take_edge());
}

#[test]
fn received_bytes_come_in_order_and_the_seventeenth_waits() {
    let mut u = Uart::new();
    linux_starts_up(&mut u);
    u.write(INTERRUPT_ENABLE, IER_RECEIVED);
    assert!(u.push_input(0));
    assert!(u.take_edge());
    assert_eq!(u.read(INTERRUPT_IDENTIFICATION), IIR_FIFOS | IIR_TIMEOUT);
    for byte in 1..16 {
        assert!(u.push_input(byte));
    }
    assert!(!u.push_input(16));
    assert_eq!(u.read(INTERRUPT_IDENTIFICATION), IIR_FIFOS | IIR_RECEIVED);
    for byte in 0..16 {
        assert_eq!(u.read(LINE_STATUS), 0x61);
        assert_eq!(u.read(DATA), byte);
    }
    assert_eq!(u.read(LINE_STATUS), 0x60);
    assert!(!u.interrupt());
    assert!(u.push_input(16) && u.take_edge());
}

#[test]
fn the_receiver_is_emptied_when_asked_and_when_fifos_change_alone() {
    let mut u = Uart::new();
    let fill = |u: &mut Uart| assert!(u.push_input(b'x'));
    let full = |u: &mut Uart| u.read(LINE_STATUS) & LSR_DATA_READY != 0;
    // What is written, and whether a byte that waits survives it.
    for (control, survives) in [
        (FCR_ENABLE, false),
        (FCR_ENABLE | 0xC0, true),
        (FCR_ENABLE, true),
        (FCR_ENABLE | FCR_CLEAR_RECEIVER, false),
        (0, false),
        (0x40, true),
        (FCR_CLEAR_RECEIVER, false),
        (FCR_ENABLE | FCR_CLEAR_RECEIVER, false),
    ] {
        if !full(&mut u) {
            fill(&mut u);
        }
        u.write(FIFO_CONTROL, control);
        assert_eq!(full(&mut u), survives, "{control:#x}");
    }
}

#[test]
fn loopback_keeps_bytes_inside_and_reports_overrun_and_modem_changes() {
    let mut u = Uart::new();
    u.write(MODEM_CONTROL, MCR_LOOP | MCR_OUT1);
    u.read(MODEM_STATUS);
    assert_eq!(u.write(DATA, b'a'), None);
    assert!(!u.push_input(b'x'), "the wire is disconnected");
    assert_eq!(u.write(DATA, b'b'), None);
    assert_eq!(u.read(LINE_STATUS), 0x60 | LSR_OVERRUN | LSR_DATA_READY);
    assert_eq!(u.read(LINE_STATUS), 0x60 | LSR_DATA_READY);
    assert_eq!(u.read(DATA), b'a');
    u.write(MODEM_CONTROL, MCR_LOOP | MCR_RTS);
    assert_eq!(u.read(MODEM_STATUS), MSR_CTS | 1 << 2 | 1, "RI fell, CTS rose");
    assert_eq!(u.read(MODEM_STATUS), MSR_CTS);
}

/// Data sheet, 8.9: CTS, DSR, RI and DCD in bits 4 to 7; in loopback they are RTS, DTR, OUT1, OUT2.
#[test]
fn modem_lines_are_those_of_the_data_sheet() {
    let mut u = Uart::new();
    assert_eq!(u.read(MODEM_STATUS), 0xB0, "the far end is there; nobody rings");
    for outputs in 0..16 {
        u.write(MODEM_CONTROL, 0x10 | outputs);
        let line = |output: u8, input: u8| if outputs >> output & 1 != 0 { 1 << input } else { 0 };
        let lines: u8 = line(1, 4) | line(0, 5) | line(2, 6) | line(3, 7);
        assert_eq!(u.read(MODEM_STATUS) & 0xF0, lines, "{outputs:#x}");
        assert_eq!(u.read(MODEM_CONTROL), 0x10 | outputs);
    }
}

#[test]
fn ri_that_never_was_has_no_trailing_edge() {
    let mut u = Uart::new();
    u.write(MODEM_CONTROL, MCR_LOOP);
    u.read(MODEM_STATUS);
    u.write(MODEM_CONTROL, MCR_LOOP | MCR_RTS);
    assert_eq!(u.read(MODEM_STATUS), MSR_CTS | 1);
    u.write(MODEM_CONTROL, MCR_LOOP | MCR_RTS | MCR_OUT1);
    assert_eq!(u.read(MODEM_STATUS), MSR_CTS | MSR_RI, "it rises: nothing is told");
}

/// Kernels without an 8250 driver use it as memory; drivers probe for it.
#[test]
fn the_scratch_register_keeps_a_byte_and_nothing_is_beyond_it() {
    let mut u = Uart::new();
    for value in [0x5A, 0xA5, 0, 0xFF] {
        u.write(SCRATCH, value);
        u.write(SCRATCH + 1, !value);
        assert_eq!((u.read(SCRATCH), u.read(SCRATCH + 1), u.read(255)), (value, 0xFF, 0xFF));
    }
}

#[test]
fn control_registers_read_as_written() {
    let mut u = Uart::new();
    for value in [0x1B, 0x7F, 0xFF, 0x80, 3] {
        u.write(LINE_CONTROL, value);
        assert_eq!(u.read(LINE_CONTROL), value);
    }
    u.write(MODEM_CONTROL, 0xFF);
    u.write(INTERRUPT_ENABLE, 0xFF);
    assert_eq!((u.read(MODEM_CONTROL), u.read(INTERRUPT_ENABLE)), (0x1F, 0x0F), "and no more");
}

/// Data sheet, 8.4: bits 7:6 of the FIFO control register.
#[test]
fn the_receiver_is_full_from_its_trigger_level_on() {
    for (control, level) in [(0x01, 1), (0x41, 4), (0x81, 8), (0xC1, 14), (0xC0, 1)] {
        let mut u = Uart::new();
        u.write(FIFO_CONTROL, control);
        u.write(INTERRUPT_ENABLE, IER_RECEIVED);
        let most = if control & 1 != 0 { 16 } else { 1 };
        for count in 1..=most {
            assert!(u.push_input(count));
            let source = u.read(INTERRUPT_IDENTIFICATION) & 0xF;
            let expected = if count < level { IIR_TIMEOUT } else { IIR_RECEIVED };
            assert_eq!(source, expected, "{count} bytes, {control:#x}");
        }
        assert!(!u.push_input(0), "it holds {most}");
    }
}

#[test]
fn the_interrupt_line_is_gated_by_out2_and_cut_by_loopback() {
    for outputs in 0..0x20 {
        let mut u = Uart::new();
        u.write(MODEM_CONTROL, outputs);
        u.write(INTERRUPT_ENABLE, IER_TRANSMITTER_EMPTY);
        let line = outputs & 0x18 == 8;
        assert_eq!((u.interrupt(), u.take_edge()), (line, line), "{outputs:#x}");
    }
}

/// By priority (data sheet, table 4): line status, received data, transmitter empty, modem status;
/// each only where it is enabled, and only while it is there.
#[test]
fn each_source_is_named_where_it_is_enabled() {
    for there in 0..16u8 {
        for enabled in 0..16u8 {
            let mut u = Uart::new();
            u.write(MODEM_CONTROL, MCR_LOOP);
            u.read(MODEM_STATUS);
            // Bits as in the enable register: received, empty, line status, modem status.
            let (received, empty) = (there & 1 != 0, there & 2 != 0);
            let (overrun, modem) = (there & 4 != 0, there & 8 != 0);
            if overrun {
                u.write(DATA, 1);
                u.write(DATA, 2);
                if !received {
                    u.read(DATA);
                }
            } else if received {
                u.write(DATA, 1);
            }
            if modem {
                u.write(MODEM_CONTROL, MCR_LOOP | MCR_DTR);
            }
            u.transmitter_empty = false;
            u.write(INTERRUPT_ENABLE, enabled & !2);
            // To enable it is to raise it.
            u.interrupt_enable = enabled;
            u.transmitter_empty = empty;
            let found = match there & enabled {
                both if both & 4 != 0 => IIR_LINE_STATUS,
                both if both & 1 != 0 => IIR_RECEIVED,
                both if both & 2 != 0 => IIR_TRANSMITTER_EMPTY,
                both if both & 8 != 0 => IIR_MODEM_STATUS,
                _ => IIR_NONE,
            };
            assert_eq!(u.source(), found, "{there:#x} {enabled:#x}");
            assert_eq!(u.read(INTERRUPT_IDENTIFICATION), found);
        }
    }
}

#[test]
fn the_divisor_latch_hides_data_and_interrupt_enable() {
    let mut u = Uart::new();
    u.write(INTERRUPT_ENABLE, 5);
    u.write(LINE_CONTROL, LCR_DIVISOR_LATCH | 3);
    assert_eq!(u.write(DATA, 1), None);
    u.write(INTERRUPT_ENABLE, 2);
    assert_eq!((u.read(DATA), u.read(INTERRUPT_ENABLE)), (1, 2));
    u.write(LINE_CONTROL, 3);
    assert_eq!((u.read(DATA), u.read(INTERRUPT_ENABLE)), (0, 5));
}

#[derive(Clone, Debug)]
enum Step {
    Read(u8),
    Write(u8, u8),
    Input(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0u8..9).prop_map(Step::Read),
        (0u8..9, any::<u8>()).prop_map(|(o, v)| Step::Write(o, v)),
        any::<u8>().prop_map(Step::Input),
    ];
    prop::collection::vec(step, 0..300)
}

proptest! {
    #[test]
    fn edges_follow_the_line_and_the_identification_agrees(steps in steps()) {
        let mut u = Uart::new();
        for step in steps {
            let before = u.interrupt();
            match step {
                Step::Read(o) => { u.read(o); }
                Step::Write(o, v) => { u.write(o, v); }
                Step::Input(b) => { u.push_input(b); }
            }
            let (after, edge) = (u.interrupt(), u.take_edge());
            prop_assert!(edge || before || !after, "a rise is never lost");
            prop_assert!(u.count <= 16);
            if after {
                prop_assert_eq!(u.clone().read(INTERRUPT_IDENTIFICATION) & IIR_NONE, 0);
            }
        }
    }

    /// However far the FIFO has gone round.
    #[test]
    fn bytes_are_received_in_order(steps in prop::collection::vec(prop::option::of(any::<u8>()), 0..200)) {
        let mut u = Uart::new();
        u.write(FIFO_CONTROL, FCR_ENABLE);
        let mut waiting = std::collections::VecDeque::new();
        for step in steps {
            match step {
                Some(byte) => {
                    let room = waiting.len() < 16;
                    prop_assert_eq!(u.push_input(byte), room);
                    waiting.extend(room.then_some(byte));
                }
                None => prop_assert_eq!(u.read(DATA), waiting.pop_front().unwrap_or(0)),
            }
            prop_assert_eq!(u.read(LINE_STATUS) & LSR_DATA_READY != 0, !waiting.is_empty());
        }
    }

    #[test]
    fn after_any_abuse_linux_still_finds_it(steps in steps()) {
        let mut u = Uart::new();
        for step in steps {
            match step {
                Step::Read(o) => { u.read(o); }
                Step::Write(o, v) => { u.write(o, v); }
                Step::Input(b) => { u.push_input(b); }
            }
        }
        u.write(LINE_CONTROL, 0);
        u.write(MODEM_CONTROL, 0);
        prop_assert!(linux_finds_a_16550a(&mut u));
    }
}
