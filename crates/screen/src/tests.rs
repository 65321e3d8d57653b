//! The screen on frames of any geometry, against a terminal of plain strings.

mod model;

use crate::read::{Reader, picture, text};
use crate::style::Style;
use crate::*;
use core::fmt::Write as _;
use model::Terminal;
use proptest::prelude::*;
use proto::frame::MAX_VMS;

/// A frame's memory; a store outside of its visible pixels fails the test.
struct Memory {
    frame: Framebuffer,
    bytes: Vec<u8>,
    stores: usize,
}

impl Memory {
    fn new(frame: Framebuffer) -> Memory {
        let bytes = frame.pitch as usize * frame.height as usize;
        Memory { frame, bytes: vec![0xA5; bytes], stores: 0 }
    }
}

impl Pixels for Memory {
    fn store(&mut self, offset: u64, bytes: &[u8]) {
        let line = u64::from(self.frame.width) * u64::from(self.frame.bits / 8);
        let pitch = u64::from(self.frame.pitch);
        let (start, row) = (offset % pitch, offset / pitch);
        assert!(start + bytes.len() as u64 <= line && row < u64::from(self.frame.height));
        self.bytes[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        self.stores += 1;
    }
}

fn rgb(width: u32, height: u32) -> Framebuffer {
    let [red, green, blue] = [16, 8, 0].map(Channel::byte);
    Framebuffer { address: 0, width, height, pitch: 4 * width, bits: 32, red, green, blue }
}

/// A frame with so many cells.
fn cells(columns: u32, rows: u32) -> Framebuffer {
    rgb(columns * 8, rows * 13)
}

struct Test {
    screen: Box<Screen>,
    memory: Memory,
}

impl Test {
    fn on(frame: Framebuffer) -> Test {
        let mut test = Test { screen: Box::default(), memory: Memory::new(frame) };
        test.screen.open(Layout::new(Frame::new(frame).unwrap()), &mut test.memory);
        test
    }

    fn layout(&self) -> Layout {
        *self.screen.layout().unwrap()
    }

    fn paint(&mut self) {
        assert!(self.screen.paint(&mut self.memory, usize::MAX) && self.screen.is_painted());
    }

    fn text(&mut self) -> Vec<String> {
        self.paint();
        text(&self.layout(), &self.memory.bytes)
    }
}

#[test]
fn the_log_is_above_and_guests_are_below() {
    let mut test = Test::on(cells(24, 9));
    test.screen.name(0, "web");
    test.screen.name(1, "db");
    test.screen.status("Exitless");
    test.screen.log(b"2 CPUs\nwarning: hot\nerror: ");
    test.screen.log(b"no more\n");
    test.screen.guest(0, b"boot\r\n# ");
    test.screen.guest(1, "größer €\n".as_bytes());
    test.screen.guest(0, b"ls");
    let expected = [
        "2 CPUs",
        "warning: hot",
        "error: no more",
        "",
        "Exitless",
        "web| boot",
        "web| # ls",
        "db| größer ?",
        "",
    ];
    assert_eq!(test.text(), expected);
    let layout = test.layout();
    let reader = Reader::new(&layout, &test.memory.bytes);
    let style = |column, row| reader.cell(column, row).unwrap().style;
    let rows = [Style::LOG, Style::WARNING, Style::ERROR];
    (0..3).for_each(|row| assert_eq!((style(0, row), style(7, row)), (rows[row], rows[row])));
    assert_eq!((style(7, 4), style(23, 4)), (Style::STATUS, Style::STATUS));
    assert_eq!((style(0, 5), style(5, 5)), (Style::name(0), Style::GUEST));
    assert_ne!(Style::name(0), Style::name(1));
}

#[test]
fn one_console_is_shown_without_names() {
    let mut test = Test::on(cells(20, 6));
    test.screen.name(0, "web");
    test.screen.show(Show::One(1));
    test.screen.guest(0, b"no\n");
    test.screen.guest(1, b"yes\n");
    assert_eq!(test.text(), ["", "", "", "", "yes", ""]);
}

#[test]
fn long_lines_and_long_names_wrap() {
    let mut test = Test::on(cells(48, 9));
    test.screen.name(0, &"n".repeat(50));
    test.screen.guest(0, b"0123456789abcdef");
    let name = "n".repeat(32) + "| ";
    let rows = [name.clone() + "0123456789abcd", name + "ef"];
    assert_eq!(test.text()[5..7], rows);
    // A frame that is narrower than the name shows nothing of the VM's.
    let mut test = Test::on(cells(34, 9));
    test.screen.name(0, &"n".repeat(50));
    test.screen.guest(0, b"0123\n456");
    assert_eq!(test.text(), [""; 9]);
}

#[test]
fn a_guest_can_t_scroll_the_log_away() {
    let mut test = Test::on(cells(80, 25));
    test.screen.log(b"the boot log\n");
    for line in 0..10_000 {
        test.screen.guest(line % MAX_VMS, format!("\x1b[2J\x1b[1;1Hline {line}\n").as_bytes());
    }
    test.screen.guest(MAX_VMS, b"nobody\n");
    let text = test.text();
    assert_eq!(text[0], "the boot log");
    assert_eq!((&text[23], &text[24]), (&"line 9998".into(), &"line 9999".into()));
}

#[test]
fn painting_does_what_it_is_told_and_no_more() {
    let mut test = Test::on(cells(80, 25));
    test.paint();
    test.memory.stores = 0;
    test.screen.log(&[b'x'; 80 * 13]);
    let mut rounds = 0;
    while !test.screen.paint(&mut test.memory, 330) {
        rounds += 1;
        // Ten cells of thirteen lines; the last one may go beyond what it was told.
        assert!(test.memory.stores <= 11 * 13, "{}", test.memory.stores);
        test.memory.stores = 0;
    }
    assert!(rounds > 80, "{rounds}");
    // What stays as it is isn't drawn again.
    test.screen.status("");
    test.screen.guest(0, b" ");
    test.paint();
    assert!(test.memory.stores <= 11 * 13 + 13, "{}", test.memory.stores);
}

#[test]
fn last_words_are_below_the_log() {
    let mut test = Test::on(cells(20, 9));
    test.screen.log(b"one\ntwo\n");
    test.screen.guest(0, b"a\nb\nc\nd\n");
    test.paint();
    let layout = test.layout();
    let mut words = LastWords::new(layout, &mut test.memory);
    words.write_str("\npanic at here:\nthe reason is long").unwrap();
    drop(words);
    let expected = ["one", "two", "", "", "", "panic at here:", "the reason is long", "c", "d"];
    let shown = text(&layout, &test.memory.bytes);
    assert_eq!(shown, expected);
    let mut words = LastWords::new(layout, &mut test.memory);
    assert!(write!(words, "{}", "x\n".repeat(100)).is_err(), "no more than there is room for");
    drop(words);
    let shown = text(&layout, &test.memory.bytes);
    assert_eq!(shown, ["one", "two", "", "", "x", "x", "x", "x", "x"]);
    let reader = Reader::new(&layout, &test.memory.bytes);
    assert_eq!(reader.cell(19, 8).unwrap().style, Style::LAST_WORDS);
}

#[test]
fn a_closed_screen_draws_nothing() {
    let mut test = Test::on(cells(20, 9));
    test.screen.close();
    test.memory.stores = 0;
    test.screen.log(b"x\n");
    test.screen.guest(0, b"x\n");
    test.screen.status("x");
    assert!(test.screen.paint(&mut test.memory, usize::MAX) && test.screen.layout().is_none());
    assert_eq!(test.memory.stores, 0);
}

#[test]
fn characters_grow_with_the_frame() {
    for ((width, height), size, scale) in [
        ((7, 100), (0, 7), 1),
        ((8, 12), (1, 0), 1),
        ((640, 480), (80, 36), 1),
        ((1920, 1080), (240, 83), 1),
        ((1928, 1080), (120, 41), 2),
        ((1080, 1920), (67, 73), 2),
        ((3840, 2160), (240, 83), 2),
        ((u32::MAX / 4, 100_000), (240, 84), 32),
    ] {
        let layout = Layout::new(Frame::new(rgb(width, height)).unwrap());
        assert_eq!((layout.size(), layout.scale), (size, scale), "{width} by {height}");
    }
    let rows = |rows| {
        let layout = Layout::new(Frame::new(cells(80, rows)).unwrap());
        (layout.host(), layout.status_row(), layout.guests())
    };
    assert_eq!(rows(1), (0..1, None, 1..1));
    assert_eq!(rows(4), (0..2, None, 2..4));
    assert_eq!(rows(5), (0..2, Some(2), 3..5));
    assert_eq!(rows(58), (0..29, Some(29), 30..58));
}

#[test]
fn a_picture_is_read_or_said_to_be_unreadable() {
    let frame = picture(16, 26).unwrap();
    let layout = Layout::new(frame);
    let mut bytes = vec![0; 16 * 26 * 3];
    assert_eq!(text(&layout, &bytes), ["", ""]);
    bytes[0] = 1;
    assert_eq!(text(&layout, &bytes), ["\u{FFFD}", ""]);
    assert_eq!(text(&layout, &bytes[..13 * 16 * 3]), ["\u{FFFD}", "\u{FFFD}\u{FFFD}"]);
    assert_eq!((picture(0, 1), picture(u32::MAX, 1)), (None, None));
}

#[test]
fn pixels_are_as_the_channels_say() {
    use embedded_graphics::pixelcolor::Rgb888;
    let colour = Rgb888::new(0xFF, 0x81, 0x12);
    let frame = |bits, channels: [(u8, u8); 3]| {
        let [red, green, blue] = channels.map(|(shift, bits)| Channel { shift, bits });
        let (width, height, pitch) = (1, 1, 4);
        Frame::new(Framebuffer { address: 0, width, height, pitch, bits, red, green, blue })
    };
    for (bits, channels, pixel) in [
        (32, [(16, 8), (8, 8), (0, 8)], [0x12, 0x81, 0xFF, 0]),
        (24, [(0, 8), (8, 8), (16, 8)], [0xFF, 0x81, 0x12, 0]),
        (16, [(11, 5), (5, 6), (0, 5)], [0x02, 0xFC, 0, 0]),
        (32, [(20, 10), (10, 10), (0, 10)], [0x48, 0x10, 0xC8, 0x3F]),
    ] {
        assert_eq!(frame(bits, channels).unwrap().encode(colour), pixel, "{channels:?}");
    }
    let refused = |bits, channels| frame(bits, channels).unwrap_err().to_string();
    let good = [(16, 8), (8, 8), (0, 8)];
    assert_eq!(refused(8, good), "has 8 bits for a pixel; 16, 24 or 32 are needed");
    for (shift, bits) in [(25, 8), (8, 0), (8, 17), (255, 255)] {
        let expected = format!(
            "has its green in {bits} bits from bit {shift}; 1 to 16 within a pixel are needed"
        );
        assert_eq!(refused(32, [good[0], (shift, bits), good[2]]), expected);
    }
}

#[test]
fn a_frame_that_can_t_be_is_refused() {
    let refused = |change: fn(&mut Framebuffer)| {
        let mut frame = rgb(100, 10);
        change(&mut frame);
        Frame::new(frame).unwrap_err().to_string()
    };
    assert_eq!(
        refused(|f| f.pitch = 399),
        "has 399 bytes from line to line; a line of 100 pixels needs 400"
    );
    assert_eq!(refused(|f| f.width = 0), "has 0 by 10 pixels; one of each is needed at least");
    assert_eq!(refused(|f| f.height = 0), "has 100 by 0 pixels; one of each is needed at least");
    assert_eq!(
        refused(|f| f.address = u64::MAX - 3999),
        "has 4000 bytes from 0xfffffffffffff060, which is beyond the last address"
    );
    assert!(Frame::new(Framebuffer { address: u64::MAX - 4000, ..rgb(100, 10) }).is_ok());
}

/// One thing that is done with a screen.
#[derive(Clone, Debug)]
enum Step {
    Log(Vec<model::Piece>),
    Guest(usize, Vec<model::Piece>),
    Status(String),
    Paint(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pieces = || prop::collection::vec(model::piece(), 0..8);
    let step = prop_oneof![
        2 => pieces().prop_map(Step::Log),
        4 => (0usize..3, pieces()).prop_map(|(vm, pieces)| Step::Guest(vm, pieces)),
        1 => "[ -~]{0,30}".prop_map(Step::Status),
        1 => (0usize..4000).prop_map(Step::Paint),
    ];
    prop::collection::vec(step, 0..30)
}

prop_compose! {
    /// Small and odd ones; those of many pixels cost too much time to be drawn often.
    fn frames()(
        width in prop_oneof![1u32..40, 100u32..300],
        height in prop_oneof![1u32..40, 40u32..160],
        padding in 0u32..40,
        kind in 0usize..4,
    ) -> Framebuffer {
        let (bits, channels) = [
            (32, [(16, 8), (8, 8), (0, 8)]),
            (32, [(0, 8), (8, 8), (16, 8)]),
            (24, [(16, 8), (8, 8), (0, 8)]),
            (16, [(11, 5), (5, 6), (0, 5)]),
        ][kind];
        let [red, green, blue] = channels.map(|(shift, bits)| Channel { shift, bits });
        let pitch = width * u32::from(bits / 8) + padding;
        Framebuffer { address: 0, width, height, pitch, bits, red, green, blue }
    }
}

proptest! {
    // Each draws thousands of cells.
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// What is read from the pixels is what a terminal of strings shows.
    #[test]
    fn what_is_shown_can_be_read(frame in frames(), steps in steps(), named: bool) {
        let mut test = Test::on(frame);
        let layout = test.layout();
        test.screen.show(if named { Show::All } else { Show::One(1) });
        let name = |vm: usize| ["a", "two", "guest-3"][vm];
        (0..3).for_each(|vm| test.screen.name(vm, name(vm)));
        let (columns, _) = layout.size();
        let mut host = Terminal::new(columns, layout.host().len());
        let mut guests = Terminal::new(columns, layout.guests().len());
        let mut status = String::new();
        for step in steps {
            match step {
                Step::Log(pieces) => {
                    test.screen.log(&model::bytes(&pieces));
                    host.write(0, "", &pieces);
                }
                Step::Guest(vm, pieces) => {
                    test.screen.guest(vm, &model::bytes(&pieces));
                    match named {
                        true => guests.write(vm, &format!("{}| ", name(vm)), &pieces),
                        false if vm == 1 => guests.write(vm, "", &pieces),
                        false => {}
                    }
                }
                Step::Status(text) => {
                    test.screen.status(&text);
                    status = text;
                }
                Step::Paint(work) => {
                    test.screen.paint(&mut test.memory, work);
                }
            }
        }
        let mut expected = host.shown();
        if layout.status_row().is_some() {
            let cut: String = status.chars().take(columns).collect();
            expected.push(cut.trim_end().into());
        }
        expected.extend(guests.shown());
        prop_assert_eq!(test.text(), expected);
    }

    /// Any bytes: nothing is stored outside of the visible pixels ([`Memory`] looks), and the log
    /// stays.
    #[test]
    fn any_bytes_stay_in_the_frame(
        frame in frames(),
        writes in prop::collection::vec((0usize..40, prop::collection::vec(any::<u8>(), 0..60)), 0..20),
        words in ".{0,300}",
    ) {
        let mut test = Test::on(frame);
        test.screen.log(b"ok\n");
        let layout = test.layout();
        for (vm, bytes) in &writes {
            test.screen.guest(*vm, bytes);
            test.screen.paint(&mut test.memory, 500);
        }
        let (columns, _) = layout.size();
        if columns > 1 && !layout.host().is_empty() {
            prop_assert_eq!(&test.text()[0], "ok");
        }
        let mut last = LastWords::new(layout, &mut test.memory);
        // Words that find no room are cut.
        let _ = write!(last, "{words}");
        drop(last);
        for (_, bytes) in &writes {
            test.screen.log(bytes);
        }
        test.paint();
    }

    /// Any description: refused, or all that is drawn lies in it.
    #[test]
    fn any_description_is_refused_or_safe(
        (address, width, height, pitch) in any::<(u64, u32, u32, u32)>(),
        bits in prop_oneof![Just(32u8), Just(24u8), Just(16u8), any::<u8>()],
        shift in 0u8..20,
        channel in 0u8..20,
    ) {
        struct Bounds(u64);
        impl Pixels for Bounds {
            fn store(&mut self, offset: u64, bytes: &[u8]) {
                assert!(offset + bytes.len() as u64 <= self.0);
            }
        }
        let [red, green, blue] = [Channel { shift, bits: channel }; 3];
        let frame = Framebuffer { address, width, height, pitch, bits, red, green, blue };
        let Ok(frame) = Frame::new(frame) else { return Ok(()) };
        let layout = Layout::new(frame);
        let mut bounds = Bounds(frame.bytes());
        let mut words = LastWords::new(layout, &mut bounds);
        // As many as there is room for.
        let _ = write!(words, "{}", "a word ".repeat(200));
    }
}
