//! A device: what it is, and what a front end may read of it.

use crate::clock::HERTZ;
use crate::config::Limits;
use crate::counts::Counts;
use crate::disk::Disk;
use crate::foreign::Unclosed;
use net::PortNumber;
use serde::{Deserialize, Serialize};
use vhost_user::Protocol;

/// VHOST_USER_F_PROTOCOL_FEATURES and VHOST_F_LOG_ALL, which are none of the device's.
pub const TRANSPORT: u64 = vhost_user::PROTOCOL_FEATURES | vhost_user::LOG_ALL;

/// Connections that ended with a reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    pub count: u64,
    /// The last one's: a sentence.
    pub why: String,
}

/// What is served.
pub struct Device {
    pub name: String,
    pub kind: Kind,
    pub limits: Limits,
    /// vIC decides which completions drivers are told of at once; else they are of all.
    pub coalesces: bool,
    /// Front ends at a time.
    pub front_ends: usize,
    /// Of them, those that are connected.
    pub connected: usize,
    /// Connections so far.
    pub connections: u64,
    /// Those of them that ended with a reason: what a front end did wrong, or what wasn't to be
    /// had.
    pub ended: Ended,
    /// Of rings that are gone.
    pub gone: Counts,
    /// What front ends sent and that isn't closed yet.
    pub unclosed: Unclosed,
}

/// What it is.
pub enum Kind {
    Disk(Disk),
    Port(Port),
}

/// A port of a switch.
#[derive(Clone, Copy)]
pub struct Port {
    pub switch: usize,
    pub number: PortNumber,
    pub config: net::Config,
}

impl Device {
    /// The features of the device.
    pub fn features(&self) -> u64 {
        match &self.kind {
            Kind::Disk(disk) => disk.config.features().bits(),
            Kind::Port(port) => port.config.features().bits(),
        }
    }

    /// Is something under way in its back end of a ring that is gone?
    pub fn is_hung(&self) -> bool {
        matches!(&self.kind, Kind::Disk(disk) if disk.abandoned > 0)
    }

    /// How its completions are told of.
    pub fn coalescing(&self) -> coalesce::Settings {
        if self.coalesces {
            coalesce::Settings::paper(HERTZ)
        } else {
            coalesce::Settings::all_told(HERTZ)
        }
    }

    /// What of vhost-user is offered. Front ends of networks have their configuration space and no
    /// records: QEMU warns of the one, and a lost frame is sent again.
    pub fn protocol(&self) -> Protocol {
        match &self.kind {
            Kind::Disk(_) => Protocol::all() - Protocol::RARP,
            Kind::Port(_) => Protocol::all() - Protocol::CONFIG - Protocol::INFLIGHT_SHMFD,
        }
    }

    /// Rings that it has.
    pub fn rings(&self) -> u16 {
        match &self.kind {
            Kind::Disk(disk) => disk.config.parameters().queues,
            Kind::Port(port) => port.config.queues() as u16,
        }
    }

    /// A part of the configuration space. What is beyond its end reads as 0.
    pub fn read_config(&self, offset: u32, into: &mut [u8]) {
        match &self.kind {
            Kind::Disk(disk) => disk.config.read(offset.into(), into),
            Kind::Port(port) => {
                let bytes = port.config.config_bytes(port.config.parameters().mac, true);
                let there = bytes.iter().skip(offset as usize).chain(std::iter::repeat(&0));
                into.iter_mut().zip(there).for_each(|(to, from)| *to = *from);
            }
        }
    }
}
