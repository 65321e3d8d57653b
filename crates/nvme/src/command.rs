//! Submission queue entries (NVM Express Base Specification 2.0, 3.3.3.1), as eight words.

/// Words of 64 bits of an entry.
pub const WORDS: usize = 8;
/// The namespace that means all of them, or none.
const NO_NAMESPACE: u32 = 0;

/// An entry without its identifier, which [`Command::with_id`] puts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    words: [u64; WORDS],
}

/// Where a command's data is (4.1.1): the two PRP entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prps {
    /// The first page, at any offset that is a multiple of 4.
    pub first: u64,
    /// The second page, or a list of all others; 0 if there is none.
    pub second: u64,
}

/// What Identify is asked for: CNS (5.17).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identify {
    /// Identify Namespace of this one (00h).
    Namespace(u32),
    /// Identify Controller (01h).
    Controller,
    /// The namespaces that are active, from the first on (02h).
    Active,
    /// What the NVM command set limits (06h, CSI 00h).
    Limits,
}

/// Features that are set (5.27).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// One pair of I/O queues (07h): counts are less one.
    OneQueue,
    /// The volatile write cache is on (06h).
    WriteCache,
}

impl Command {
    fn new(opcode: u8, namespace: u32, prps: Prps, tail: [u32; 6]) -> Self {
        let [d10, d11, d12, d13, d14, d15] = tail.map(u64::from);
        let first = u64::from(namespace) << 32 | u64::from(opcode);
        // Word 0 is CDW0 and NSID; 3 and 4 are the data pointer; from 5 on CDW10 to CDW15.
        let words = [
            first,
            0,
            0,
            prps.first,
            prps.second,
            d11 << 32 | d10,
            d13 << 32 | d12,
            d15 << 32 | d14,
        ];
        Self { words }
    }

    /// The entry of this identifier (CDW0, bits 31:16).
    pub fn with_id(self, id: u16) -> [u64; WORDS] {
        let mut words = self.words;
        words[0] = words[0] & !0xFFFF_0000 | u64::from(id) << 16;
        words
    }

    /// Identify (5.17) into the page at `to`.
    pub fn identify(what: Identify, to: u64) -> Self {
        let (cns, namespace) = match what {
            Identify::Namespace(namespace) => (0, namespace),
            Identify::Controller => (1, NO_NAMESPACE),
            Identify::Active => (2, NO_NAMESPACE),
            Identify::Limits => (6, NO_NAMESPACE),
        };
        Self::new(0x06, namespace, Prps { first: to, second: 0 }, [cns, 0, 0, 0, 0, 0])
    }

    /// Set Features (5.27).
    pub fn set_feature(feature: Feature) -> Self {
        let (id, value) = match feature {
            Feature::OneQueue => (0x07, 0),
            Feature::WriteCache => (0x06, 1),
        };
        Self::new(0x09, NO_NAMESPACE, Prps::default(), [id, value, 0, 0, 0, 0])
    }

    /// Create I/O Completion Queue (5.5): contiguous, and without interrupts (IEN is 0).
    pub fn create_completion_queue(queue: u16, entries: u16, at: u64) -> Self {
        let size = u32::from(entries - 1) << 16 | u32::from(queue);
        Self::new(0x05, NO_NAMESPACE, Prps { first: at, second: 0 }, [size, 1, 0, 0, 0, 0])
    }

    /// Create I/O Submission Queue (5.6): contiguous, completed in the queue of the same number.
    pub fn create_submission_queue(queue: u16, entries: u16, at: u64) -> Self {
        let size = u32::from(entries - 1) << 16 | u32::from(queue);
        let to = u32::from(queue) << 16 | 1;
        Self::new(0x01, NO_NAMESPACE, Prps { first: at, second: 0 }, [size, to, 0, 0, 0, 0])
    }

    /// Flush (7.1): of all of the namespace.
    pub fn flush(namespace: u32) -> Self {
        Self::new(0x00, namespace, Prps::default(), [0; 6])
    }

    /// Read (NVM Command Set Specification 1.0, 3.2.4) of `blocks` from `first` on: 1 to 65536.
    pub fn read(namespace: u32, first: u64, blocks: u32, prps: Prps) -> Self {
        Self::new(0x02, namespace, prps, range(first, blocks, 0))
    }

    /// Write (NVM, 3.2.6). `durable`: Force Unit Access.
    pub fn write(namespace: u32, first: u64, blocks: u32, prps: Prps, durable: bool) -> Self {
        Self::new(0x01, namespace, prps, range(first, blocks, access(durable)))
    }

    /// Write Zeroes (NVM, 3.2.8). `deallocate`: what is behind the blocks may be freed.
    pub fn write_zeroes(
        namespace: u32,
        first: u64,
        blocks: u32,
        deallocate: bool,
        durable: bool,
    ) -> Self {
        let flags = access(durable) | u32::from(deallocate) << 25;
        Self::new(0x08, namespace, Prps::default(), range(first, blocks, flags))
    }

    /// Dataset Management (NVM, 3.2.3) with the attribute Deallocate, of the one range at `ranges`.
    pub fn deallocate(namespace: u32, ranges: u64) -> Self {
        Self::new(0x09, namespace, Prps { first: ranges, second: 0 }, [0, 1 << 2, 0, 0, 0, 0])
    }
}

/// Force Unit Access, in CDW12.
fn access(durable: bool) -> u32 {
    u32::from(durable) << 30
}

/// CDW10 to CDW15 of a command on blocks.
fn range(first: u64, blocks: u32, flags: u32) -> [u32; 6] {
    [first as u32, (first >> 32) as u32, flags | (blocks.wrapping_sub(1) & 0xFFFF), 0, 0, 0]
}
