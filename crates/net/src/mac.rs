//! Addresses of Ethernet.
use core::fmt;

/// An address: of one station, or of a group of them.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// All stations.
    pub const BROADCAST: Mac = Mac([0xff; 6]);

    /// The address at this place of a frame; nobody's if it isn't there.
    pub(crate) fn at(bytes: &[u8], at: usize) -> Mac {
        bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().map_or(Mac::default(), Mac)
    }

    /// Its bytes in a word, the first one lowest.
    #[inline]
    pub(crate) fn word(self) -> u64 {
        let [a, b, c, d, e, f] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
    }

    /// Whether it is of a group, the broadcast one included.
    pub fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Whether a station can have it: no group's, and not zero.
    pub fn is_station(self) -> bool {
        !self.is_group() && self != Mac::default()
    }

    /// Whether it is one of the sixteen that no bridge forwards (802.1Q, table 8-1).
    pub fn is_reserved(self) -> bool {
        self.0[..5] == [0x01, 0x80, 0xc2, 0, 0] && self.0[5] < 16
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
