//! What a driver wants to receive (5.1.6.5.1 to 5.1.6.5.3).
use crate::{Features, Mac, VlanSet};
use arrayvec::ArrayVec;

/// Addresses that fit into each of the two tables. With more, all such frames are received: a table
/// is a help, and no driver may rely on it (5.1.6.5.2).
pub const TABLE: usize = 64;

/// One of the two tables of addresses: of stations, or of groups.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    table: ArrayVec<Mac, TABLE>,
    /// The driver had more.
    overflow: bool,
}

impl Addresses {
    /// Puts one more in.
    pub fn push(&mut self, mac: Mac) {
        self.overflow |= self.table.try_push(mac).is_err();
    }

    /// There are more, which aren't looked at.
    pub fn overflow(&mut self) {
        self.overflow = true;
    }

    fn accepts(&self, mac: Mac) -> bool {
        self.overflow || self.table.contains(&mac)
    }
}

/// A receive mode, on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// All frames.
    Promiscuous,
    /// All of groups.
    AllMulticast,
    /// All of stations.
    AllUnicast,
    /// None of groups, but broadcasts.
    NoMulticast,
    /// None of stations.
    NoUnicast,
    /// No broadcasts.
    NoBroadcast,
}

/// What is received.
#[derive(Clone, Debug)]
pub struct Filter {
    /// By modes.
    modes: [bool; 6],
    unicast: Addresses,
    multicast: Addresses,
    /// None: all.
    vlans: Option<VlanSet>,
}

impl Filter {
    /// After a reset. All frames are received until the driver says something else: drivers without
    /// CTRL_RX couldn't, and the others do so before they need it (QEMU does the same).
    pub fn new(accepted: Features) -> Filter {
        let mut modes = [false; 6];
        modes[Mode::Promiscuous as usize] = true;
        let vlans = accepted.contains(Features::CTRL_VLAN).then_some(VlanSet::EMPTY);
        let (unicast, multicast) = (Addresses::default(), Addresses::default());
        Filter { modes, unicast, multicast, vlans }
    }

    /// Switches a mode on or off.
    pub fn set_mode(&mut self, mode: Mode, on: bool) {
        if let Some(place) = self.modes.get_mut(mode as usize) {
            *place = on;
        }
    }

    /// Replaces both tables.
    pub fn set_tables(&mut self, unicast: Addresses, multicast: Addresses) {
        (self.unicast, self.multicast) = (unicast, multicast);
    }

    /// Lets a VLAN in, or no more. False if there is no such VLAN, or no filter. 0 may be said,
    /// as Linux does of each device, though no frame here has its tag: those come without one.
    pub fn set_vlan(&mut self, vlan: u16, within: bool) -> bool {
        self.vlans.as_mut().is_some_and(|vlans| vlan == 0 || vlans.set(vlan, within))
    }

    /// Whether a frame to this address, with a tag of this VLAN, is received by the device whose
    /// own address is `own`.
    pub fn accepts(&self, to: Mac, tag: Option<u16>, own: Mac) -> bool {
        let is = |mode: Mode| self.modes[mode as usize];
        if is(Mode::Promiscuous) {
            return true;
        }
        if let (Some(vlans), Some(tag)) = (&self.vlans, tag)
            && !vlans.contains(tag)
        {
            return false;
        }
        if to == Mac::BROADCAST {
            !is(Mode::NoBroadcast)
        } else if to.is_group() {
            !is(Mode::NoMulticast) && (is(Mode::AllMulticast) || self.multicast.accepts(to))
        } else {
            let wanted = to == own || is(Mode::AllUnicast) || self.unicast.accepts(to);
            !is(Mode::NoUnicast) && wanted
        }
    }

    /// The same of frames to its own address, without a tag.
    #[inline(always)]
    pub fn accepts_own(&self, own: Mac) -> bool {
        if own.is_group() {
            return self.accepts(own, None, own);
        }
        self.modes[Mode::Promiscuous as usize] || !self.modes[Mode::NoUnicast as usize]
    }
}
