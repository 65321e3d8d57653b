//! A front end with one ring, set up by rust-vmm's `vhost`.

use crate::ring::{AVAILABLE, BLOCK, BYTES, DESCRIPTORS, ELEMENTS, Pass, Ring, USED};
use anyhow::{Context as _, Result, bail};
use daemon_os::Mapping;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserProtocolFeatures, VhostUserVirtioFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend as _};
use vhost::{VhostBackend as _, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// Features of the device.
const VERSION_1: u64 = 1 << 32;
const EVENT_INDEX: u64 = 1 << 29;
const INDIRECT: u64 = 1 << 28;
/// Where the memory is, as the guest and this program are said to have it.
const USER: u64 = 0x7000_0000_0000;
/// The most bytes of a disk that are asked for.
const SPAN: u64 = 1 << 30;

/// One client of one disk.
pub struct Front {
    pub ring: Ring,
    pub call: EventFd,
    kick: EventFd,
    /// How often it kicked.
    pub kicks: u64,
    /// Open as long as the disk is to be served.
    _front: Frontend,
    _memory: Mapping,
}

/// What is asked for.
#[derive(Clone, Copy)]
pub struct Asked {
    pub depth: u16,
    pub write: bool,
    pub event_index: bool,
}

impl Front {
    /// Connects, and starts the ring without a request.
    pub fn new(socket: &Path, asked: Asked, seed: u64) -> Result<Front> {
        let shown = socket.display();
        let front = Frontend::connect(socket, 1);
        let mut front = front.with_context(|| format!("nobody is at {shown}"))?;
        front.set_owner()?;
        let offered = front.get_features()?;
        let protocol_bit = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
        if offered & VERSION_1 == 0 || offered & protocol_bit == 0 {
            bail!("{shown} offers features {offered:#x}, which aren't enough");
        }
        let wished = INDIRECT | if asked.event_index { EVENT_INDEX } else { 0 };
        let features = VERSION_1 | protocol_bit | offered & wished;
        let protocol = front.get_protocol_features()? & VhostUserProtocolFeatures::CONFIG;
        front.set_protocol_features(protocol)?;
        front.set_features(features)?;
        let (_, space) = front.get_config(0, 60, VhostUserConfigFlags::empty(), &[0; 60])?;
        let sectors = u64::from_le_bytes(*space.first_chunk().context("it has a size")?);
        let blocks = (sectors * 512).min(SPAN) / BLOCK;

        let file = memfd_create("load", MemfdFlags::CLOEXEC).context("there is no memory")?;
        ftruncate(&file, BYTES)?;
        let memory = Mapping::of_file(&file, 0, BYTES).context("the memory can't be mapped")?;
        let span = memory.span().context("the memory can't be seen")?;
        let event_index = features & EVENT_INDEX != 0;
        let ring = Ring::new(span, asked.depth, asked.write, event_index, blocks, seed)?;
        front.set_mem_table(&[VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: BYTES,
            userspace_addr: USER,
            mmap_offset: 0,
            mmap_handle: file.as_raw_fd(),
        }])?;
        let event = || EventFd::new(EFD_NONBLOCK).context("there is no eventfd");
        let (kick, call) = (event()?, event()?);
        front.set_vring_num(0, ELEMENTS)?;
        front.set_vring_base(0, 0)?;
        let data = VringConfigData {
            queue_max_size: ELEMENTS,
            queue_size: ELEMENTS,
            flags: 0,
            desc_table_addr: USER + DESCRIPTORS,
            used_ring_addr: USER + USED,
            avail_ring_addr: USER + AVAILABLE,
            log_addr: None,
        };
        front.set_vring_addr(0, &data)?;
        front.set_vring_call(0, &call)?;
        front.set_vring_kick(0, &kick)?;
        front.set_vring_enable(0, true)?;
        Ok(Front { ring, call, kick, kicks: 0, _front: front, _memory: memory })
    }

    /// Kicks, if that is wanted.
    #[inline]
    pub fn follow(&mut self, pass: Pass) -> Result<Pass> {
        if pass.kick {
            self.kick.write(1)?;
            self.kicks += 1;
        }
        Ok(pass)
    }
}
