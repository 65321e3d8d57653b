//! A connection to a device: features, memory and rings are said by rust-vmm's `vhost`.

use crate::line::{AVAILABLE, DESCRIPTORS, ELEMENTS, USED};
use anyhow::{Context as _, Result, bail};
use daemon_os::Mapping;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserInflight, VhostUserProtocolFeatures, VhostUserVirtioFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend as _};
use vhost::{VhostBackend as _, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};
use window::Span;

/// Features of any device.
const VERSION_1: u64 = 1 << 32;
pub const EVENT_INDEX: u64 = 1 << 29;
/// Where the memory is, as the guest and this program are said to have it.
const USER: u64 = 0x7000_0000_0000;

/// A device, which is served as long as this is there.
pub struct Connection {
    front: Frontend,
    features: u64,
    memory: Mapping,
    file: OwnedFd,
}

/// How a ring's ends are told.
pub struct Told {
    kick: EventFd,
    pub call: EventFd,
    /// How often the device was kicked.
    pub kicks: u64,
}

impl Connection {
    /// Connects to a device with so many rings, which has to offer what is `needed`, and accepts
    /// what is `wished`, too. Shares so many bytes with it, and memory for records of what is in
    /// flight if it keeps some, as QEMU does.
    pub fn open(
        socket: &Path,
        rings: u64,
        (needed, wished): (u64, u64),
        bytes: u64,
    ) -> Result<Connection> {
        let shown = socket.display();
        let front = Frontend::connect(socket, rings);
        let mut front = front.with_context(|| format!("nobody is at {shown}"))?;
        front.set_owner()?;
        let offered = front.get_features()?;
        let protocol_bit = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
        let needed = needed | VERSION_1 | protocol_bit;
        if offered & needed != needed {
            bail!("{shown} offers features {offered:#x}, which aren't enough");
        }
        let features = needed | offered & wished;
        let kept = VhostUserProtocolFeatures::INFLIGHT_SHMFD;
        let known = VhostUserProtocolFeatures::CONFIG | kept;
        let protocol = front.get_protocol_features()? & known;
        front.set_protocol_features(protocol)?;
        front.set_features(features)?;
        if protocol.contains(kept) {
            let asked = VhostUserInflight::new(0, 0, rings as u16, ELEMENTS);
            let (made, file) = front.get_inflight_fd(&asked)?;
            front.set_inflight_fd(&made, file.as_raw_fd())?;
        }
        let file = memfd_create("load", MemfdFlags::CLOEXEC).context("there is no memory")?;
        ftruncate(&file, bytes)?;
        let memory = Mapping::of_file(&file, 0, bytes).context("the memory can't be mapped")?;
        let connection = Connection { front, features, memory, file };
        connection.share()?;
        Ok(connection)
    }

    /// Hands the memory over, also once more: then the device changes over to what is the same.
    pub fn share(&self) -> Result<()> {
        self.front.set_mem_table(&[VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: self.memory.bytes(),
            userspace_addr: USER,
            mmap_offset: 0,
            mmap_handle: self.file.as_raw_fd(),
        }])?;
        Ok(())
    }

    pub fn memory(&self) -> Result<Span> {
        self.memory.span().context("the memory can't be seen")
    }

    pub fn has_event_index(&self) -> bool {
        self.features & EVENT_INDEX != 0
    }

    /// The first bytes of the configuration space, of which 60 are asked for.
    pub fn config(&mut self) -> Result<[u8; 8]> {
        let flags = VhostUserConfigFlags::empty();
        let (_, space) = self.front.get_config(0, 60, flags, &[0; 60])?;
        Ok(*space.first_chunk().context("it has no configuration space")?)
    }

    /// Starts a ring that is at this offset of the memory.
    pub fn start(&mut self, ring: usize, at: u64) -> Result<Told> {
        let event = || EventFd::new(EFD_NONBLOCK).context("there is no eventfd");
        let (kick, call) = (event()?, event()?);
        self.front.set_vring_num(ring, ELEMENTS)?;
        self.front.set_vring_base(ring, 0)?;
        let data = VringConfigData {
            queue_max_size: ELEMENTS,
            queue_size: ELEMENTS,
            flags: 0,
            desc_table_addr: USER + at + DESCRIPTORS,
            used_ring_addr: USER + at + USED,
            avail_ring_addr: USER + at + AVAILABLE,
            log_addr: None,
        };
        self.front.set_vring_addr(ring, &data)?;
        self.front.set_vring_call(ring, &call)?;
        self.front.set_vring_kick(ring, &kick)?;
        self.front.set_vring_enable(ring, true)?;
        // The answer comes behind all that: a server whose thread for messages has no core while
        // this one polls has started the ring.
        self.front.get_features()?;
        Ok(Told { kick, call, kicks: 0 })
    }
}

impl Told {
    /// Kicks, if that is wanted.
    #[inline]
    pub fn kick(&mut self, wanted: bool) -> Result<()> {
        if wanted {
            self.kick.write(1)?;
            self.kicks += 1;
        }
        Ok(())
    }
}
