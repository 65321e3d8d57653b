//! The handshake: fixed newstyle, TLS if it is asked for, structured replies if the server has
//! them, then GO.
use crate::error::Error;
use crate::{u16_at, u32_at, u64_at};
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use bitflags::bitflags;

const MAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Of both sides: fixed newstyle, no zeroes behind the export.
const FIXED: u16 = 1;
const NO_ZEROES: u16 = 2;
/// Options.
const STARTTLS: u32 = 5;
const GO: u32 = 7;
const STRUCTURED_REPLY: u32 = 8;
/// Replies to options, and the kinds of information.
const ACK: u32 = 1;
const INFO: u32 = 3;
const ERROR: u32 = 1 << 31;
const TLS_REQUIRED: u32 = ERROR | 5;
const INFO_EXPORT: u16 = 0;
const INFO_BLOCK_SIZE: u16 = 3;
/// The most bytes of a reply.
const LIMIT: u32 = 16 << 10;

bitflags! {
    /// What the server says of an export.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ExportFlags: u16 {
        /// There are flags.
        const HAS_FLAGS = 1 << 0;
        /// It can't be written.
        const READ_ONLY = 1 << 1;
        /// It has a flush.
        const FLUSH = 1 << 2;
        /// A write may say that it is to be durable.
        const FUA = 1 << 3;
        /// Sectors can be given up.
        const TRIM = 1 << 5;
        /// Sectors can be made zeroes.
        const WRITE_ZEROES = 1 << 6;
        /// A flush on one connection is for all.
        const MULTI_CONN = 1 << 8;
    }
}

/// The export, as the server says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Export {
    /// Bytes.
    pub size: u64,
    /// What it has.
    pub flags: ExportFlags,
    /// The smallest unit of requests, in bytes.
    pub minimum_block: u32,
    /// Whether replies are structured.
    pub structured: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Greeting,
    StartTls,
    Structured,
    Go,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It goes on.
    Shaking,
    /// TLS begins with the server's next byte, and with what is to be sent from here on.
    StartTls,
    /// It is done.
    Done(Export),
}

/// A handshake that goes on.
#[derive(Clone, Debug)]
pub struct Handshake {
    name: String,
    tls: bool,
    step: Step,
    structured: bool,
    size: Option<(u64, ExportFlags)>,
    minimum_block: u32,
}

impl Handshake {
    /// For this export; with TLS, or not at all.
    pub fn new(name: &str, tls: bool) -> Self {
        Handshake {
            name: name.to_string(),
            tls,
            step: Step::Greeting,
            structured: false,
            size: None,
            minimum_block: 1,
        }
    }

    /// Takes what has come of the server: how many bytes of it are done with, and what to send, and
    /// how far it is. With no bytes done with, more must come.
    ///
    /// # Errors
    ///
    /// What ends the connection.
    pub fn hear(&mut self, bytes: &[u8], send: &mut Vec<u8>) -> Result<(usize, Progress), Error> {
        if self.step == Step::Greeting {
            let (Some(magic), Some(option)) = (u64_at(bytes, 0), u64_at(bytes, 8)) else {
                return Ok((0, Progress::Shaking));
            };
            let Some(flags) = u16_at(bytes, 16) else { return Ok((0, Progress::Shaking)) };
            if magic != MAGIC || option != OPTION_MAGIC || flags & FIXED == 0 {
                return Err(Error::Magic);
            }
            send.extend(u32::from(FIXED | flags & NO_ZEROES).to_be_bytes());
            let (option, step) = match self.tls {
                true => (STARTTLS, Step::StartTls),
                false => (STRUCTURED_REPLY, Step::Structured),
            };
            ask(send, option, &[]);
            self.step = step;
            return Ok((18, Progress::Shaking));
        }
        let (Some(magic), Some(option)) = (u64_at(bytes, 0), u32_at(bytes, 8)) else {
            return Ok((0, Progress::Shaking));
        };
        let (Some(kind), Some(len)) = (u32_at(bytes, 12), u32_at(bytes, 16)) else {
            return Ok((0, Progress::Shaking));
        };
        if magic != REPLY_MAGIC {
            return Err(Error::Magic);
        }
        if len > LIMIT {
            return Err(Error::TooLong(len));
        }
        let end = 20 + len as usize;
        let Some(data) = bytes.get(20..end) else { return Ok((0, Progress::Shaking)) };
        if kind == TLS_REQUIRED {
            return Err(Error::Tls);
        }
        match self.step {
            Step::StartTls if option == STARTTLS && kind == ACK => {
                ask(send, STRUCTURED_REPLY, &[]);
                self.step = Step::Structured;
                Ok((end, Progress::StartTls))
            }
            Step::StartTls if option == STARTTLS && kind & ERROR != 0 => {
                Err(Error::NoTls(reason(kind, data)))
            }
            Step::Structured if option == STRUCTURED_REPLY => {
                self.structured = kind == ACK;
                let mut go = Vec::new();
                go.extend((self.name.len() as u32).to_be_bytes());
                go.extend(self.name.as_bytes());
                go.extend(1u16.to_be_bytes());
                go.extend(INFO_BLOCK_SIZE.to_be_bytes());
                ask(send, GO, &go);
                self.step = Step::Go;
                Ok((end, Progress::Shaking))
            }
            Step::Go if option == GO && kind == INFO => {
                self.note(data);
                Ok((end, Progress::Shaking))
            }
            Step::Go if option == GO && kind == ACK => {
                let (size, flags) = self.size.ok_or(Error::NoSize)?;
                let (minimum_block, structured) = (self.minimum_block, self.structured);
                Ok((end, Progress::Done(Export { size, flags, minimum_block, structured })))
            }
            Step::Go if option == GO && kind & ERROR != 0 => {
                Err(Error::Refused(reason(kind, data)))
            }
            _ => Err(Error::Reply),
        }
    }

    fn note(&mut self, data: &[u8]) {
        match u16_at(data, 0) {
            Some(INFO_EXPORT) => {
                if let (Some(size), Some(flags)) = (u64_at(data, 2), u16_at(data, 10)) {
                    self.size = Some((size, ExportFlags::from_bits_truncate(flags)));
                }
            }
            Some(INFO_BLOCK_SIZE) => {
                let minimum = u32_at(data, 2).filter(|size| size.is_power_of_two());
                self.minimum_block = minimum.unwrap_or(self.minimum_block);
            }
            _ => {}
        }
    }
}

fn ask(send: &mut Vec<u8>, option: u32, data: &[u8]) {
    send.extend(OPTION_MAGIC.to_be_bytes());
    send.extend(option.to_be_bytes());
    send.extend((data.len() as u32).to_be_bytes());
    send.extend(data);
}

/// What the server says, or what its number means.
fn reason(kind: u32, data: &[u8]) -> String {
    let said = core::str::from_utf8(data).unwrap_or("");
    if !said.is_empty() && !said.chars().any(char::is_control) {
        return said.to_string();
    }
    match kind & !ERROR {
        1 => "it doesn't know of it",
        2 => "it is against its policy",
        6 => "there is none of that name",
        7 => "it is shutting down",
        8 => "it wants block sizes of its own",
        _ => "it says no reason",
    }
    .to_string()
}
