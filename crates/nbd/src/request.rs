//! Requests, as bytes.

const MAGIC: u32 = 0x2560_9513;
const FUA: u16 = 1;
const NO_HOLE: u16 = 2;

/// Bytes of a request, before the data of a write.
pub const REQUEST_BYTES: usize = 28;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Data, from the export.
    Read,
    /// Data, to the export: it follows.
    Write {
        /// It is answered when it is durable.
        durable: bool,
    },
    /// The end of the connection; there is no reply.
    Disconnect,
    /// All that was answered before is durable when it is answered.
    Flush,
    /// The bytes aren't needed.
    Trim,
    /// The bytes become zeroes.
    WriteZeroes {
        /// What is behind them may be given up.
        may_free: bool,
        /// It is answered when it is durable.
        durable: bool,
    },
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What.
    pub command: Command,
    /// What the reply says again.
    pub cookie: u64,
    /// Where, in bytes.
    pub offset: u64,
    /// How many bytes.
    pub len: u32,
}

impl Request {
    /// As it is sent.
    pub fn bytes(&self) -> [u8; REQUEST_BYTES] {
        let (number, flags) = match self.command {
            Command::Read => (0u16, 0),
            Command::Write { durable } => (1, if durable { FUA } else { 0 }),
            Command::Disconnect => (2, 0),
            Command::Flush => (3, 0),
            Command::Trim => (4, 0),
            Command::WriteZeroes { may_free, durable } => {
                (6, if may_free { 0 } else { NO_HOLE } | if durable { FUA } else { 0 })
            }
        };
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..4].copy_from_slice(&MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&number.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }
}
