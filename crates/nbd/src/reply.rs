//! Replies, as they come: a simple one, with its data if it is to a read; or chunks of a structured
//! one. Data comes in pieces of whatever the socket had.
use crate::error::Error;
use crate::{u16_at, u32_at, u64_at};

const SIMPLE: u32 = 0x6744_6698;
const STRUCTURED: u32 = 0x668e_33ef;
const SIMPLE_BYTES: usize = 16;
const CHUNK_BYTES: usize = 20;
/// A chunk's flag: it is the last one.
const LAST: u16 = 1;
/// Kinds of chunks; those with the highest bit are errors.
const NONE: u16 = 0;
const DATA: u16 = 1;
const HOLE: u16 = 2;
const ERROR: u16 = 1 << 15;
/// The most bytes of an error chunk that is kept whole.
const ERROR_LIMIT: u32 = 4096 + 64;

/// What a request was, by its cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Bytes that it reads; 0 if it doesn't.
    pub reads: u32,
    /// Where the first of them is.
    pub offset: u64,
}

/// What came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// Data of a read: so many bytes from its start on.
    Data {
        /// Of which request.
        cookie: u64,
        /// Where, from the start of what is read.
        at: u32,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// Zeroes of a read.
    Hole {
        /// Of which request.
        cookie: u64,
        /// Where, from the start of what is read.
        at: u32,
        /// How many.
        len: u32,
    },
    /// A request failed, with this error number. Its end is still to come.
    Failed {
        /// Which request.
        cookie: u64,
        /// As the protocol has it (EIO is 5).
        error: u32,
    },
    /// A request ended.
    End {
        /// Which one.
        cookie: u64,
    },
    /// More bytes must come.
    Nothing,
}

/// Data that follows.
#[derive(Clone, Copy, Debug)]
struct Open {
    cookie: u64,
    at: u32,
    left: u32,
    is_last: bool,
}

/// The replies of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Replies {
    structured: bool,
    open: Option<Open>,
    /// A request whose last chunk was heard.
    ended: Option<u64>,
}

impl Replies {
    /// Of a connection whose replies are structured, or may not be.
    pub fn new(structured: bool) -> Self {
        Replies { structured, open: None, ended: None }
    }

    /// Takes what has come: how many bytes are done with, and what they say. With
    /// [`Event::Nothing`] more must come.
    ///
    /// # Errors
    ///
    /// What ends the connection.
    pub fn hear<'a>(
        &mut self,
        bytes: &'a [u8],
        asked: impl Fn(u64) -> Option<Asked>,
    ) -> Result<(usize, Event<'a>), Error> {
        if let Some(cookie) = self.ended.take() {
            return Ok((0, Event::End { cookie }));
        }
        if let Some(open) = self.open {
            return Ok(self.data(open, bytes));
        }
        let Some(magic) = u32_at(bytes, 0) else { return Ok((0, Event::Nothing)) };
        match magic {
            SIMPLE => self.simple(bytes, asked),
            STRUCTURED if self.structured => self.chunk(bytes, asked),
            _ => Err(Error::Reply),
        }
    }

    fn data<'a>(&mut self, open: Open, bytes: &'a [u8]) -> (usize, Event<'a>) {
        let Open { cookie, at, left, is_last } = open;
        let count = bytes.len().min(left as usize);
        if count == 0 {
            return (0, Event::Nothing);
        }
        let left = left - count as u32;
        self.open = (left > 0).then_some(Open { cookie, at: at + count as u32, left, is_last });
        if left == 0 && is_last {
            self.ended = Some(cookie);
        }
        (count, Event::Data { cookie, at, bytes: bytes.get(..count).unwrap_or_default() })
    }

    fn simple<'a>(
        &mut self,
        bytes: &'a [u8],
        asked: impl Fn(u64) -> Option<Asked>,
    ) -> Result<(usize, Event<'a>), Error> {
        let (Some(error), Some(cookie)) = (u32_at(bytes, 4), u64_at(bytes, 8)) else {
            return Ok((0, Event::Nothing));
        };
        let request = asked(cookie).ok_or(Error::Cookie)?;
        if error != 0 {
            self.ended = Some(cookie);
            return Ok((SIMPLE_BYTES, Event::Failed { cookie, error }));
        }
        if request.reads == 0 {
            return Ok((SIMPLE_BYTES, Event::End { cookie }));
        }
        // With structured replies, data comes in chunks.
        if self.structured {
            return Err(Error::Reply);
        }
        let open = Open { cookie, at: 0, left: request.reads, is_last: true };
        self.open = Some(open);
        let (count, event) = self.data(open, bytes.get(SIMPLE_BYTES..).unwrap_or_default());
        Ok((SIMPLE_BYTES + count, event))
    }

    fn chunk<'a>(
        &mut self,
        bytes: &'a [u8],
        asked: impl Fn(u64) -> Option<Asked>,
    ) -> Result<(usize, Event<'a>), Error> {
        let (Some(flags), Some(kind)) = (u16_at(bytes, 4), u16_at(bytes, 6)) else {
            return Ok((0, Event::Nothing));
        };
        let (Some(cookie), Some(len)) = (u64_at(bytes, 8), u32_at(bytes, 16)) else {
            return Ok((0, Event::Nothing));
        };
        let request = asked(cookie).ok_or(Error::Cookie)?;
        let is_last = flags & LAST != 0;
        let body = bytes.get(CHUNK_BYTES..).unwrap_or_default();
        // Where in the request a chunk's data is.
        let place = |offset: u64, count: u32| {
            let at = offset.checked_sub(request.offset).and_then(|at| u32::try_from(at).ok());
            let at = at.filter(|at| at.checked_add(count).is_some_and(|end| end <= request.reads));
            at.ok_or(Error::Data)
        };
        match kind {
            NONE if len == 0 && is_last => Ok((CHUNK_BYTES, Event::End { cookie })),
            DATA if len > 8 => {
                let Some(offset) = u64_at(body, 0) else { return Ok((0, Event::Nothing)) };
                let left = len - 8;
                let open = Open { cookie, at: place(offset, left)?, left, is_last };
                self.open = Some(open);
                let (count, event) = self.data(open, body.get(8..).unwrap_or_default());
                Ok((CHUNK_BYTES + 8 + count, event))
            }
            HOLE if len == 12 => {
                let (Some(offset), Some(count)) = (u64_at(body, 0), u32_at(body, 8)) else {
                    return Ok((0, Event::Nothing));
                };
                let at = place(offset, count)?;
                self.ended = is_last.then_some(cookie);
                Ok((CHUNK_BYTES + 12, Event::Hole { cookie, at, len: count }))
            }
            kind if kind & ERROR != 0 && (6..=ERROR_LIMIT).contains(&len) => {
                if body.len() < len as usize {
                    return Ok((0, Event::Nothing));
                }
                let error = u32_at(body, 0).ok_or(Error::Reply)?;
                self.ended = is_last.then_some(cookie);
                Ok((CHUNK_BYTES + len as usize, Event::Failed { cookie, error }))
            }
            _ => Err(Error::Reply),
        }
    }
}
