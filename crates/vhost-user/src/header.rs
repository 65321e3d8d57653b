//! A message's header: which request, what is expected, how many bytes follow.

use crate::error::Error;
use crate::fields::Fields;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 12;
/// The most bytes that follow a header: the longest message is a table of regions.
pub const MAX_PAYLOAD: usize = 512;

/// The version, and its bits of the flags.
const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
/// Flags: the message is a reply; the sender waits for one.
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// A header that was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The request's number.
    pub request: u32,
    /// The front end waits for a word that says whether it went well, if REPLY_ACK is negotiated.
    pub need_reply: bool,
    /// Bytes that follow, at most [`MAX_PAYLOAD`].
    pub size: usize,
}

impl Header {
    /// Reads a header of a front end.
    ///
    /// # Errors
    ///
    /// [`Error::Version`], [`Error::TooLong`].
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, Error> {
        let mut fields = Fields(bytes);
        let request = fields.u32().unwrap_or(0);
        let flags = fields.u32().unwrap_or(0);
        let size = fields.u32().unwrap_or(0);
        if flags & VERSION_MASK != VERSION {
            return Err(Error::Version(flags & VERSION_MASK));
        }
        match usize::try_from(size) {
            Ok(bytes) if bytes <= MAX_PAYLOAD => {
                Ok(Header { request, need_reply: flags & NEED_REPLY != 0, size: bytes })
            }
            _ => Err(Error::TooLong { request, size }),
        }
    }

    /// The header of a reply with so many bytes.
    pub fn reply(request: u32, size: usize) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let words = [request, VERSION | REPLY, size as u32];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

macro_rules! requests {
    ($($name:ident = $number:literal,)*) => {
        /// What a front end may ask, of what is known here.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the names are the standard's")]
        pub enum Request { $($name = $number,)* }

        impl Request {
            /// The request of this number.
            pub fn of(number: u32) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }
        }
    };
}

requests! {
    GetFeatures = 1,
    SetFeatures = 2,
    SetOwner = 3,
    ResetOwner = 4,
    SetMemTable = 5,
    SetLogBase = 6,
    SetLogFd = 7,
    SetVringNum = 8,
    SetVringAddr = 9,
    SetVringBase = 10,
    GetVringBase = 11,
    SetVringKick = 12,
    SetVringCall = 13,
    SetVringErr = 14,
    GetProtocolFeatures = 15,
    SetProtocolFeatures = 16,
    GetQueueNum = 17,
    SetVringEnable = 18,
    SendRarp = 19,
    GetConfig = 24,
    SetConfig = 25,
    GetInflightFd = 31,
    SetInflightFd = 32,
    ResetDevice = 34,
    GetMaxMemSlots = 36,
    AddMemReg = 37,
    RemMemReg = 38,
}
