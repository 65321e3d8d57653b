//! The screen: what is to be shown, who writes where, and what of it is drawn already.
//!
//! Guarantees are the crate's.

use crate::draw;
use crate::escape::Parser;
use crate::layout::MAX_CELLS;
use crate::pane::{Line, Pane, Prefix};
use crate::style::{Cell, Style};
use crate::{Layout, Pixels};
use proto::frame::MAX_VMS;

/// Work that drawing a cell counts for, if looking at one is 1.
const DRAWING: usize = 32;

/// Whose console is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Show {
    /// Every VM's, line by line, with its name before each.
    #[default]
    All,
    /// That of the VM with this index, as it writes.
    One(usize),
}

/// The screen; closed until it has a frame.
pub struct Screen {
    layout: Option<Layout>,
    show: Show,
    host: Pane,
    guests: Pane,
    log: Writer,
    log_style: Style,
    vms: [Writer; MAX_VMS],
    /// The cells of the host's rows, the guests', and the status line.
    wanted: [Cell; MAX_CELLS],
    /// What was drawn, by its place.
    drawn: [Cell; MAX_CELLS],
    /// The next cell to look at, and how many until all that is wanted is drawn.
    next: usize,
    left: usize,
}

/// One who writes.
struct Writer {
    parser: Parser,
    line: Line,
    name: Prefix,
}

impl Writer {
    const NEW: Writer = Writer { parser: Parser::NEW, line: Line::NEW, name: Prefix::new_const() };

    fn write(&mut self, bytes: &[u8], style: Style, named: bool, to: (&mut Pane, &mut [Cell])) {
        let Writer { parser, line, name } = self;
        let prefix = if named { &name[..] } else { &[] };
        for byte in bytes {
            parser.push(*byte, |event| to.0.put(to.1, line, prefix, style, event));
        }
    }
}

impl Screen {
    /// A closed one: what is written to it is lost. All of its bytes are 0, so that a static one
    /// takes no room in an image's file.
    pub const fn new() -> Screen {
        Screen {
            layout: None,
            show: Show::All,
            host: Pane::EMPTY,
            guests: Pane::EMPTY,
            log: Writer::NEW,
            log_style: Style::LOG,
            vms: [Writer::NEW; MAX_VMS],
            wanted: [Cell::UNKNOWN; MAX_CELLS],
            drawn: [Cell::UNKNOWN; MAX_CELLS],
            next: 0,
            left: 0,
        }
    }

    /// Opens it on a frame, which is cleared.
    pub fn open(&mut self, layout: Layout, pixels: &mut impl Pixels) {
        let pane = |rows: usize| Pane::new(rows, layout.columns);
        (self.host, self.guests) = (pane(layout.host().len()), pane(layout.guests().len()));
        self.wanted.fill(Cell::BLANK);
        self.drawn.fill(Cell::BLANK);
        self.layout = Some(layout);
        draw::clear(layout.frame(), pixels);
        self.status("");
    }

    /// Its grid; none while it is closed.
    pub fn layout(&self) -> Option<&Layout> {
        self.layout.as_ref()
    }

    /// Nothing is drawn any more.
    pub fn close(&mut self) {
        self.layout = None;
        self.left = 0;
    }

    /// Names a VM; of more than 32 characters the first ones are shown.
    pub fn name(&mut self, vm: usize, name: &str) {
        let Some(writer) = self.vms.get_mut(vm) else { return };
        let style = Style::name(vm);
        let room = writer.name.capacity() - 2;
        writer.name = name.chars().take(room).map(|c| Cell::new(c, style)).collect();
        writer.name.extend("| ".chars().map(|c| Cell::new(c, style)));
    }

    /// Says whose console is shown from now on.
    pub fn show(&mut self, show: Show) {
        self.show = show;
    }

    /// What the status line says; cut at the frame's edge.
    pub fn status(&mut self, text: &str) {
        let Some(layout) = self.layout.filter(|l| l.status_row().is_some()) else { return };
        let start = (layout.rows - 1) * layout.columns;
        let row = self.wanted.get_mut(start..start + layout.columns).unwrap_or_default();
        let blanks = core::iter::repeat(' ');
        for (cell, c) in row.iter_mut().zip(text.chars().chain(blanks)) {
            *cell = Cell::new(c, Style::STATUS);
        }
        self.left = layout.cells();
    }

    /// The host's log: a line's kind is told by how it begins, which must be in one piece.
    pub fn log(&mut self, text: &[u8]) {
        let Some(layout) = self.layout else { return };
        let rows = layout.host().len() * layout.columns;
        let cells = self.wanted.get_mut(..rows).unwrap_or_default();
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            if self.log.line.is_new() {
                self.log_style = Style::of_log(line);
            }
            self.log.write(line, self.log_style, false, (&mut self.host, cells));
        }
        self.left = layout.cells();
    }

    /// What a guest writes.
    pub fn guest(&mut self, vm: usize, bytes: &[u8]) {
        let Some(layout) = self.layout else { return };
        if matches!(self.show, Show::One(shown) if shown != vm) {
            return;
        }
        let (host, guests) = (layout.host().len(), layout.guests().len());
        let range = host * layout.columns..(host + guests) * layout.columns;
        let cells = self.wanted.get_mut(range).unwrap_or_default();
        let Some(writer) = self.vms.get_mut(vm) else { return };
        let named = self.show == Show::All;
        writer.write(bytes, Style::GUEST, named, (&mut self.guests, cells));
        self.left = layout.cells();
    }

    /// Where in `wanted` the cell is that is shown at this place.
    fn source(&self, layout: &Layout, place: usize) -> usize {
        let (row, column) = (place / layout.columns, place % layout.columns);
        let (host, guests) = (layout.host(), layout.guests());
        column
            + if host.contains(&row) {
                self.host.shown(row)
            } else if guests.contains(&row) {
                host.len() * layout.columns + self.guests.shown(row - guests.start)
            } else {
                (layout.rows - 1) * layout.columns
            }
    }

    /// Draws what has changed, until that has cost this much: looking at a cell costs 1, drawing
    /// one 32. True when all is drawn.
    pub fn paint(&mut self, pixels: &mut impl Pixels, work: usize) -> bool {
        let Some(layout) = self.layout else { return true };
        let mut spent = 0;
        while self.left > 0 && spent < work {
            let place = self.next;
            self.next = (place + 1) % layout.cells();
            self.left -= 1;
            spent += 1;
            let source = self.source(&layout, place);
            let (Some(wanted), Some(drawn)) = (self.wanted.get(source), self.drawn.get_mut(place))
            else {
                continue;
            };
            if wanted != drawn {
                *drawn = *wanted;
                draw::cell(&layout, pixels, place % layout.columns, place / layout.columns, *drawn);
                spent += DRAWING;
            }
        }
        self.left == 0
    }

    /// Whether all is drawn.
    pub fn is_painted(&self) -> bool {
        self.left == 0
    }
}

impl Default for Screen {
    fn default() -> Self {
        Screen::new()
    }
}
