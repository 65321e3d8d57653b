//! Drawing a cell: the font's glyph in two colours, each of its pixels as large as the scale says.

use crate::style::Cell;
use crate::{Frame, Layout, Pixels};
use arrayvec::ArrayVec;
use core::convert::Infallible;
use embedded_graphics::{
    Pixel,
    draw_target::DrawTarget,
    geometry::{OriginDimensions, Point, Size},
    mono_font::{MonoFont, MonoTextStyleBuilder, iso_8859_1::FONT_8X13},
    pixelcolor::Rgb888,
    primitives::Rectangle,
    text::{Baseline, renderer::TextRenderer},
};

const FONT: MonoFont = FONT_8X13;
/// Pixels of a cell, before it is scaled.
pub const CELL_WIDTH: u32 = FONT.character_size.width;
pub const CELL_HEIGHT: u32 = FONT.character_size.height;
/// The largest scale; a frame of 61,440 pixels is filled with it.
pub const MAX_SCALE: u32 = 32;
/// Bytes of a line of a cell's pixels.
const LINE: usize = (CELL_WIDTH * MAX_SCALE * 4) as usize;

/// Draws a cell of the grid; nothing if it isn't in the grid.
pub fn cell(layout: &Layout, pixels: &mut impl Pixels, column: usize, row: usize, cell: Cell) {
    if column >= layout.columns || row >= layout.rows {
        return;
    }
    let scale = layout.scale;
    let (left, top) = (column as u32 * CELL_WIDTH * scale, row as u32 * layout.row_height());
    let mut target = Target { frame: &layout.frame, pixels, scale, left, top };
    let (text, background) = cell.style.colours();
    let style = MonoTextStyleBuilder::new()
        .font(&FONT)
        .text_color(text)
        .background_color(background)
        .build();
    let text = char::from(cell.glyph);
    let Ok(_) =
        style.draw_string(text.encode_utf8(&mut [0; 4]), Point::zero(), Baseline::Top, &mut target);
}

/// Makes the whole frame black.
pub fn clear(frame: &Frame, pixels: &mut impl Pixels) {
    let line = [0; LINE];
    let most = (LINE / 4) as u32;
    for y in 0..frame.height() {
        for x in (0..frame.width()).step_by(most as usize) {
            let count = most.min(frame.width() - x) as usize;
            frame.store(pixels, x, y, &line[..count * frame.pixel_bytes()]);
        }
    }
}

/// The pixels of one cell.
struct Target<'a, P> {
    frame: &'a Frame,
    pixels: &'a mut P,
    scale: u32,
    /// The cell's place in the frame.
    left: u32,
    top: u32,
}

impl<P: Pixels> Target<'_, P> {
    /// A part of one of the cell's lines, as often as the scale says.
    fn line(&mut self, at: Point, colours: impl Iterator<Item = Rgb888>) {
        let (Ok(x), Ok(y)) = (u32::try_from(at.x), u32::try_from(at.y)) else { return };
        let mut line = ArrayVec::<u8, LINE>::new();
        for colour in colours {
            let pixel = self.frame.encode(colour);
            let pixel = pixel.get(..self.frame.pixel_bytes()).unwrap_or_default();
            for _ in 0..self.scale {
                // There is room for all pixels of a line.
                let _ = line.try_extend_from_slice(pixel);
            }
        }
        for copy in 0..self.scale {
            let (x, y) = (self.left + x * self.scale, self.top + y * self.scale + copy);
            self.frame.store(self.pixels, x, y, &line);
        }
    }
}

impl<P> OriginDimensions for Target<'_, P> {
    fn size(&self) -> Size {
        FONT.character_size
    }
}

impl<P: Pixels> DrawTarget for Target<'_, P> {
    type Color = Rgb888;
    type Error = Infallible;

    fn draw_iter<I>(&mut self, pixels: I) -> Result<(), Infallible>
    where
        I: IntoIterator<Item = Pixel<Rgb888>>,
    {
        for Pixel(at, colour) in pixels {
            self.line(at, core::iter::once(colour));
        }
        Ok(())
    }

    /// How glyphs come: line by line.
    fn fill_contiguous<I>(&mut self, area: &Rectangle, colours: I) -> Result<(), Infallible>
    where
        I: IntoIterator<Item = Rgb888>,
    {
        let mut colours = colours.into_iter();
        let width = area.size.width.min(CELL_WIDTH) as usize;
        for y in area.rows() {
            self.line(Point::new(area.top_left.x, y), colours.by_ref().take(width));
        }
        Ok(())
    }
}
