//! The Internet checksum (RFC 1071): the sum of 16-bit words in ones' complement.

/// A sum that grows. Bytes may come in pieces of any length, odd ones, too.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    total: u64,
    /// An odd number of bytes is in it: the next one is the second of a word.
    odd: bool,
}

impl Sum {
    /// Adds bytes behind those that are in it.
    #[inline]
    pub fn add(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        if self.odd
            && let Some((first, others)) = rest.split_first()
        {
            self.total += u64::from(*first);
            self.odd = false;
            rest = others;
        }
        // Words of 32 bits: their two halves are added when the sum is folded (RFC 1071, 2 (C)).
        let (words, rest) = rest.as_chunks::<4>();
        // 2^31 bytes can't bring it to overflow, and a frame has less than 2^17.
        for word in words {
            self.total += u64::from(u32::from_be_bytes(*word));
        }
        let (words, rest) = rest.as_chunks::<2>();
        for word in words {
            self.total += u64::from(u16::from_be_bytes(*word));
        }
        if let [last] = rest {
            self.total += u64::from(*last) << 8;
            self.odd = true;
        }
    }

    /// Adds a word.
    pub fn add_word(&mut self, word: u16) {
        self.total += u64::from(word);
    }

    /// The sum, as it stands in the place of a checksum that is still to be made.
    pub fn folded(&self) -> u16 {
        let mut total = self.total;
        while total > 0xffff {
            total = (total >> 16) + (total & 0xffff);
        }
        total as u16
    }

    /// The checksum of an IPv4 header.
    pub fn checksum(&self) -> u16 {
        !self.folded()
    }

    /// The checksum for TCP and UDP: all ones instead of zero, which says with UDP that there is
    /// none (RFC 768), and with TCP is the same number.
    pub fn checksum_not_zero(&self) -> u16 {
        match self.checksum() {
            0 => 0xffff,
            checksum => checksum,
        }
    }
}
