//! Virtual LANs: their numbers, and which of them a port is in.

/// The largest number that a tag can have: 4095 is reserved, 0 is none.
pub const MAX_VLAN: u16 = 4094;
/// The part of a tag's control information that is the VLAN's number.
const NUMBER: u16 = 0xfff;

/// The VLANs of a port.
#[allow(clippy::large_enum_variant, reason = "there is one for each port, and no heap")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vlan {
    /// The port is in this one, from 0 to 4094; 0 is the network of those without a VLAN, which no
    /// tag can name. Frames at the port have no tag: one with a tag is dropped.
    Access(u16),
    /// Frames at the port have a tag of one of these; one without is dropped.
    Trunk(VlanSet),
    /// The port is in all of them. Frames of VLAN 0 have no tag there, nor those that come with one
    /// for the sake of their priority alone; all others have their VLAN's.
    All,
}

impl Vlan {
    /// Which VLAN a frame is in that comes from the port with this tag, if it may.
    pub fn ingress(&self, tag: Option<u16>) -> Option<u16> {
        match (self, tag) {
            (Vlan::Access(vlan), None) => Some(*vlan),
            (Vlan::Trunk(set), Some(tag)) => Some(tag & NUMBER).filter(|vlan| set.contains(*vlan)),
            (Vlan::All, tag) => Some(tag.unwrap_or(0) & NUMBER).filter(|vlan| *vlan <= MAX_VLAN),
            _ => None,
        }
    }

    /// Whether frames of this VLAN go to the port with a tag. None: they don't go there.
    pub fn egress(&self, vlan: u16) -> Option<bool> {
        match self {
            Vlan::Access(own) => (*own == vlan).then_some(false),
            Vlan::Trunk(set) => set.contains(vlan).then_some(true),
            Vlan::All => Some(vlan != 0),
        }
    }

    /// Whether there can be such a port.
    pub(crate) fn is_valid(&self) -> bool {
        !matches!(self, Vlan::Access(vlan) if *vlan > MAX_VLAN)
    }
}

/// A set of VLANs from 1 to 4094.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VlanSet([u64; 64]);

impl VlanSet {
    /// None.
    pub const EMPTY: VlanSet = VlanSet([0; 64]);
    /// All there are.
    pub const ALL: VlanSet = {
        let mut words = [u64::MAX; 64];
        words[0] &= !1;
        words[63] &= u64::MAX >> 1;
        VlanSet(words)
    };

    /// Puts one in or takes it out. False if there is no such VLAN.
    pub fn set(&mut self, vlan: u16, within: bool) -> bool {
        if !(1..=MAX_VLAN).contains(&vlan) {
            return false;
        }
        let Some(word) = self.0.get_mut(usize::from(vlan / 64)) else { return false };
        let bit = 1 << (vlan % 64);
        *word = if within { *word | bit } else { *word & !bit };
        true
    }

    /// Whether it is in the set.
    pub fn contains(&self, vlan: u16) -> bool {
        self.0.get(usize::from(vlan / 64)).is_some_and(|word| word >> (vlan % 64) & 1 != 0)
    }
}

impl FromIterator<u16> for VlanSet {
    /// Of those that there are; others are left out.
    fn from_iter<I: IntoIterator<Item = u16>>(vlans: I) -> VlanSet {
        let mut set = VlanSet::EMPTY;
        for vlan in vlans {
            set.set(vlan, true);
        }
        set
    }
}
