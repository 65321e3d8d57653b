//! Access Control Services (PCIe 6.0, 6.12 and 7.7.11): what a port or a function does with
//! requests for its peers.

/// ACS Source Validation: a port drops requests whose requester id isn't of a bus behind it.
const SOURCE_VALIDATION: u16 = 1 << 0;
/// ACS Translation Blocking: a port drops requests that claim to be translated already.
const TRANSLATION_BLOCKING: u16 = 1 << 1;
/// ACS P2P Request Redirect: requests for peers go up, to the IOMMU.
const REQUEST_REDIRECT: u16 = 1 << 2;
/// ACS P2P Completion Redirect: so do the answers.
const COMPLETION_REDIRECT: u16 = 1 << 3;
/// ACS Upstream Forwarding: what comes up and is for the same link goes up, too.
const UPSTREAM_FORWARDING: u16 = 1 << 4;

/// What keeps functions apart.
const NEEDED: u16 =
    SOURCE_VALIDATION | REQUEST_REDIRECT | COMPLETION_REDIRECT | UPSTREAM_FORWARDING;

/// The capability and control registers of a function that has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acs {
    /// ACS Capability.
    pub capability: u16,
    /// ACS Control, as it is.
    pub control: u16,
}

impl Acs {
    /// The control register by which everything goes to the IOMMU: all that the function has of
    /// what keeps functions apart, and neither egress control nor direct translated requests.
    pub fn wanted(self) -> u16 {
        self.capability & (NEEDED | TRANSLATION_BLOCKING)
    }

    /// Whether all is on that there is to switch on. What the capability lacks is something that
    /// the function doesn't do, or always does.
    pub fn isolates(self) -> bool {
        let needed = self.capability & NEEDED;
        self.control & needed == needed
    }
}

/// Offset of an extended capability in configuration space (PCIe 6.0, 7.6.3), read by `read` at
/// multiples of 4 from 0x100 on.
pub fn extended_capability(id: u16, read: impl Fn(u16) -> u32) -> Option<u16> {
    const FIRST: u16 = 0x100;
    /// So many headers and their first words fill the space: a longer list is a loop.
    const MOST: usize = (0x1000 - 0x100) / 8;
    let mut at = FIRST;
    for _ in 0..MOST {
        let header = read(at);
        // Nobody answers, or there is none.
        if header == u32::MAX || header == 0 {
            return None;
        }
        if header as u16 == id {
            return Some(at);
        }
        at = (header >> 20) as u16 & !3;
        if at < FIRST {
            return None;
        }
    }
    None
}
