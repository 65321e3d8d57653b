//! The framebuffer: where a pixel is, and what its bytes are.
//!
//! Guarantees that [`Frame::store`], through which all drawing goes, writes bytes of visible pixels
//! alone. It believes the description's address: that there is a framebuffer, and nothing else, is
//! the firmware's word.

use crate::Error;
use embedded_graphics::pixelcolor::{Rgb888, RgbColor};

/// A framebuffer as the firmware or the boot loader describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framebuffer {
    /// Physical address of the first pixel.
    pub address: u64,
    /// Pixels in a line.
    pub width: u32,
    /// Lines.
    pub height: u32,
    /// Bytes from a line to the next.
    pub pitch: u32,
    /// Bits of a pixel: 16, 24 or 32.
    pub bits: u8,
    /// Where red is in a pixel.
    pub red: Channel,
    /// Where green is.
    pub green: Channel,
    /// Where blue is.
    pub blue: Channel,
}

/// A colour's place in a pixel, which is a little-endian number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channel {
    /// Its lowest bit.
    pub shift: u8,
    /// How many bits it has, from 1 to 16.
    pub bits: u8,
}

/// The memory of a framebuffer.
pub trait Pixels {
    /// Stores bytes `offset` bytes behind the first pixel's address.
    fn store(&mut self, offset: u64, bytes: &[u8]);
}

/// A framebuffer whose description makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame(Framebuffer);

impl Channel {
    /// Eight bits from this one on.
    pub const fn byte(shift: u8) -> Channel {
        Channel { shift, bits: 8 }
    }

    fn check(self, colour: &'static str, pixel: u8) -> Result<(), Error> {
        let Channel { shift, bits } = self;
        let fits = shift.checked_add(bits).is_some_and(|end| end <= pixel);
        match fits && (1..=16).contains(&bits) {
            true => Ok(()),
            false => Err(Error::Channel { colour, shift, bits }),
        }
    }

    fn encode(self, value: u8) -> u32 {
        // The highest bits count, whether there are more or fewer than eight.
        (u32::from(value) << 8) >> (16 - self.bits) << self.shift
    }
}

impl Frame {
    /// Checks the description.
    pub fn new(framebuffer: Framebuffer) -> Result<Frame, Error> {
        let Framebuffer { address, width, height, pitch, bits, red, green, blue } = framebuffer;
        if !matches!(bits, 16 | 24 | 32) {
            return Err(Error::Bits(bits));
        }
        red.check("red", bits)?;
        green.check("green", bits)?;
        blue.check("blue", bits)?;
        if width == 0 || height == 0 {
            return Err(Error::Empty { width, height });
        }
        let needed = u64::from(width) * u64::from(bits / 8);
        if u64::from(pitch) < needed {
            return Err(Error::Pitch { pitch, width, needed });
        }
        let bytes = u64::from(pitch) * u64::from(height);
        if address.checked_add(bytes).is_none() {
            return Err(Error::Address { address, bytes });
        }
        Ok(Frame(framebuffer))
    }

    /// Physical address of the first pixel.
    pub fn address(&self) -> u64 {
        self.0.address
    }

    /// Bytes from the first pixel on, up to the end of the last line.
    pub fn bytes(&self) -> u64 {
        u64::from(self.0.pitch) * u64::from(self.0.height)
    }

    /// Pixels in a line.
    pub fn width(&self) -> u32 {
        self.0.width
    }

    /// Lines.
    pub fn height(&self) -> u32 {
        self.0.height
    }

    /// Bytes of a pixel, 2 to 4.
    pub(crate) fn pixel_bytes(&self) -> usize {
        usize::from(self.0.bits / 8)
    }

    /// A pixel of this colour: the first [`pixel_bytes`](Self::pixel_bytes) of these.
    pub(crate) fn encode(&self, colour: Rgb888) -> [u8; 4] {
        let Framebuffer { red, green, blue, .. } = self.0;
        let pixel = red.encode(colour.r()) | green.encode(colour.g()) | blue.encode(colour.b());
        pixel.to_le_bytes()
    }

    /// Where the bytes of so many pixels are, from this one to the right.
    #[cfg(any(test, feature = "read"))]
    pub(crate) fn range(&self, x: u32, y: u32, pixels: u32) -> core::ops::Range<usize> {
        let start = self.offset(x, y) as usize;
        start..start + pixels as usize * self.pixel_bytes()
    }

    fn offset(&self, x: u32, y: u32) -> u64 {
        u64::from(y) * u64::from(self.0.pitch) + u64::from(x) * self.pixel_bytes() as u64
    }

    /// Stores whole pixels from this one to the right. None is stored if they don't all lie in the
    /// line.
    pub(crate) fn store(&self, pixels: &mut impl Pixels, x: u32, y: u32, bytes: &[u8]) {
        let size = self.pixel_bytes();
        let end = u64::from(x) + (bytes.len() / size) as u64;
        if y < self.0.height && end <= u64::from(self.0.width) && bytes.len().is_multiple_of(size) {
            pixels.store(self.offset(x, y), bytes);
        }
    }
}
