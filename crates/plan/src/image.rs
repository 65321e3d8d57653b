//! The boot image: a checked plan and the kernels it names in one file, which the
//! boot loader hands to the hypervisor as a module.
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | "EXITLESS" |
//! | 8..12 | version |
//! | 12..16 | length of the plan |
//! | 16..24 | length of the image |
//! | 24..28 | zero |
//! | 28..32 | CRC-32 of bytes 0..28 and of the plan |
//! | 32.. | the plan, in postcard's encoding |
//! | page-aligned | kernels, initrds and contents of disks, each on a page of its own |
//!
//! Numbers are little-endian. The checksum covers what the hypervisor interprets;
//! the rest is covered by their lengths alone, because summing tens of
//! megabytes would take longer than all the rest of the hypervisor's boot.

use crate::{Blob, Disk, Plan, Size, Vm, problem, shown::Shown};
use alloc::vec::Vec;

const MAGIC: [u8; 8] = *b"EXITLESS";
/// Of what is described above; another one isn't read.
pub const VERSION: u32 = 17;
const HEADER: usize = 32;
/// More than the largest plan that passes [`Plan::check`]; bounds what a damaged
/// image can make the reader allocate.
const MAX_PLAN: usize = 128 << 10;
const PAGE: u64 = 4096;

/// Why bytes are not a boot image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not an image at all.
    #[error("the boot module is no Exitless boot image: it doesn't start with \"EXITLESS\"")]
    Magic,
    /// Made by another version of the command line.
    #[error("the boot image has version {0}; this hypervisor reads version {VERSION}")]
    Version(u32),
    /// Cut short.
    #[error("the boot image has {found} bytes; its header says {stated}")]
    Truncated {
        /// Bytes there are.
        found: u64,
        /// Bytes there should be.
        stated: u64,
    },
    /// Damaged.
    #[error(
        "the boot image is damaged: its checksum is {found:#010x}, its header says {stated:#010x}"
    )]
    Checksum {
        /// As computed.
        found: u32,
        /// As the header has it.
        stated: u32,
    },
    /// The plan isn't a plan.
    #[error("the boot image holds no plan that can be read")]
    Plan,
    /// The plan can't be run.
    #[error("the boot image's plan is wrong: {0}")]
    Check(#[from] problem::Error),
    /// A kernel that isn't in the image.
    #[error(
        "the boot image's {key} of VM `{vm}` is at {offset:#x}, {len} bytes: not on a page of its own inside the image"
    )]
    Blob {
        /// Name of the VM.
        vm: alloc::string::String,
        /// `kernel`, `initrd` or `disk`.
        key: &'static str,
        /// As the plan has it.
        offset: u64,
        /// As the plan has it.
        len: u64,
    },
    /// A disk's content that is longer than the disk.
    #[error("VM `{}`: the image of disk{disk} has {len} bytes, the disk has {}", Shown(.vm), Size(*.size))]
    LongDisk {
        /// Name of the VM.
        vm: alloc::string::String,
        /// Which of its disks.
        disk: usize,
        /// Bytes of the content.
        len: u64,
        /// Bytes of the disk.
        size: u64,
    },
    /// A plan too large to be one.
    #[error("the boot image's plan has {0} bytes; it may have at most {MAX_PLAN}")]
    LongPlan(u64),
}

/// A boot image that has been checked.
#[derive(Clone, Debug)]
pub struct Image<'a> {
    /// The plan; its blobs lie inside `bytes`.
    pub plan: Plan,
    bytes: &'a [u8],
}

impl<'a> Image<'a> {
    /// The bytes of a blob of this image's plan; empty for any other blob out of bounds.
    pub fn blob(&self, blob: Blob) -> &'a [u8] {
        slice(self.bytes, blob).unwrap_or(&[])
    }

    /// The kernel of a VM of this image's plan.
    pub fn kernel(&self, vm: &Vm) -> &'a [u8] {
        self.blob(vm.kernel)
    }

    /// The initrd of a VM of this image's plan, if it has one.
    pub fn initrd(&self, vm: &Vm) -> Option<&'a [u8]> {
        vm.initrd.map(|blob| self.blob(blob))
    }

    /// What a disk of this image's plan holds at first; the rest of the disk is zero.
    pub fn disk(&self, disk: &Disk) -> &'a [u8] {
        disk.image.map_or(&[], |blob| self.blob(blob))
    }
}

fn slice(bytes: &[u8], blob: Blob) -> Option<&[u8]> {
    let start = usize::try_from(blob.offset).ok()?;
    let end = usize::try_from(blob.offset.checked_add(blob.len)?).ok()?;
    bytes.get(start..end)
}

/// Packs a plan with the bytes of its kernels and initrds. Equal files are stored once.
pub fn build<B: AsRef<[u8]>>(plan: &Plan<B>) -> Result<Vec<u8>, Error> {
    plan.check()?;
    // The plan's length depends on the offsets in it, so blobs start at the first page
    // after the longest plan these VMs can have: every offset at its widest.
    let widest = |_: &str, _: &'static str, b: &B| {
        Ok::<_, Error>(Blob { offset: u64::MAX, len: b.as_ref().len() as u64 })
    };
    let longest = encode(&by_ref(plan).try_map(widest)?)?.len() as u64;
    let first = (HEADER as u64).saturating_add(longest).next_multiple_of(PAGE);

    let mut blobs: Vec<(Blob, &[u8])> = Vec::new();
    let mut end = first;
    let placed = by_ref(plan).try_map(|vm, key, bytes| {
        let bytes = bytes.as_ref();
        if let Some((blob, _)) = blobs.iter().find(|(_, b)| *b == bytes) {
            return Ok(*blob);
        }
        let blob = Blob { offset: end, len: bytes.len() as u64 };
        if bytes.is_empty() {
            return Err(Error::Blob { vm: vm.into(), key, offset: blob.offset, len: 0 });
        }
        end = end.saturating_add(blob.len).next_multiple_of(PAGE);
        blobs.push((blob, bytes));
        Ok(blob)
    })?;

    check_lengths(&placed)?;
    let plan = encode(&placed)?;
    let length = blobs.last().map_or(first, |(blob, _)| blob.offset + blob.len);
    let mut image = Vec::with_capacity(length as usize);
    image.extend(MAGIC);
    image.extend(VERSION.to_le_bytes());
    image.extend((plan.len() as u32).to_le_bytes());
    image.extend(length.to_le_bytes());
    image.extend([0; 4]);
    let sum = crc32(&[&image, &plan]);
    image.extend(sum.to_le_bytes());
    image.extend(plan);
    for (blob, bytes) in blobs {
        image.resize(blob.offset as usize, 0);
        image.extend_from_slice(bytes);
    }
    Ok(image)
}

/// Whether each disk has room for what it holds at first.
fn check_lengths(plan: &Plan) -> Result<(), Error> {
    for vm in &plan.vms {
        for (disk, Disk { size, image, .. }) in vm.disks.iter().enumerate() {
            let (size, len) = (*size, image.map_or(0, |blob| blob.len));
            if len > size {
                return Err(Error::LongDisk { vm: vm.name.clone(), disk, len, size });
            }
        }
    }
    Ok(())
}

fn by_ref<B>(plan: &Plan<B>) -> Plan<&B> {
    let vms = plan.vms.iter().map(|vm| Vm {
        name: vm.name.clone(),
        cpus: vm.cpus.clone(),
        weight: vm.weight,
        limit: vm.limit,
        memory: vm.memory,
        kernel: &vm.kernel,
        initrd: vm.initrd.as_ref(),
        cmdline: vm.cmdline.clone(),
        devices: vm.devices.clone(),
        disks: vm.disks.iter().map(disk_by_ref).collect(),
        interfaces: vm.interfaces.clone(),
        interrupts: vm.interrupts,
        reset: vm.reset,
        nested: vm.nested,
        iommu: vm.iommu,
    });
    Plan {
        vms: vms.collect(),
        networks: plan.networks.clone(),
        sidecores: plan.sidecores.clone(),
        slice_us: plan.slice_us,
        host: plan.host,
    }
}

fn disk_by_ref<B>(disk: &Disk<B>) -> Disk<&B> {
    Disk {
        size: disk.size,
        backing: disk.backing,
        read_only: disk.read_only,
        serial: disk.serial.clone(),
        queues: disk.queues,
        image: disk.image.as_ref(),
        control: disk.control,
    }
}

fn encode(plan: &Plan) -> Result<Vec<u8>, Error> {
    let bytes = postcard::to_allocvec(plan).map_err(|_| Error::Plan)?;
    if bytes.len() > MAX_PLAN {
        return Err(Error::LongPlan(bytes.len() as u64));
    }
    Ok(bytes)
}

/// How long an image says it is, by its first bytes; none if it doesn't look like one.
pub fn length(head: &[u8]) -> Option<u64> {
    let stated = head.get(16..24).filter(|_| head.starts_with(&MAGIC))?;
    stated.try_into().ok().map(u64::from_le_bytes)
}

/// Reads an image. Bytes after its stated length are ignored: loaders may pad.
///
/// Allocates at most a small multiple of the plan's length, plus the megabyte that
/// serde sets aside at most for a list before it sees the elements.
pub fn parse(bytes: &[u8]) -> Result<Image<'_>, Error> {
    let truncated = |stated| Error::Truncated { found: bytes.len() as u64, stated };
    if !bytes.starts_with(&MAGIC) {
        return Err(Error::Magic);
    }
    let header = bytes.first_chunk::<HEADER>().ok_or(truncated(HEADER as u64))?;
    let [
        ..,
        v0,
        v1,
        v2,
        v3,
        p0,
        p1,
        p2,
        p3,
        l0,
        l1,
        l2,
        l3,
        l4,
        l5,
        l6,
        l7,
        _,
        _,
        _,
        _,
        c0,
        c1,
        c2,
        c3,
    ] = *header;
    let version = u32::from_le_bytes([v0, v1, v2, v3]);
    if version != VERSION {
        return Err(Error::Version(version));
    }
    let length = u64::from_le_bytes([l0, l1, l2, l3, l4, l5, l6, l7]);
    let bytes =
        usize::try_from(length).ok().and_then(|n| bytes.get(..n)).ok_or(truncated(length))?;
    let plan_length = u32::from_le_bytes([p0, p1, p2, p3]) as usize;
    if plan_length > MAX_PLAN {
        return Err(Error::LongPlan(plan_length as u64));
    }
    let plan_end = HEADER + plan_length;
    let plan = bytes.get(HEADER..plan_end).ok_or(truncated(plan_end as u64))?;

    let stated = u32::from_le_bytes([c0, c1, c2, c3]);
    let found = crc32(&[&header[..HEADER - 4], plan]);
    if stated != found {
        return Err(Error::Checksum { found, stated });
    }

    let (plan, rest) = postcard::take_from_bytes::<Plan>(plan).map_err(|_| Error::Plan)?;
    if !rest.is_empty() {
        return Err(Error::Plan);
    }
    plan.check()?;
    for vm in &plan.vms {
        let initrd = vm.initrd.map(|blob| ("initrd", blob));
        let disks = vm.disks.iter().filter_map(|disk| Some(("disk", disk.image?)));
        for (key, blob) in [("kernel", vm.kernel)].into_iter().chain(initrd).chain(disks) {
            let apart = blob.offset >= plan_end as u64 && blob.offset.is_multiple_of(PAGE);
            if !apart || blob.len == 0 || slice(bytes, blob).is_none() {
                let Blob { offset, len } = blob;
                return Err(Error::Blob { vm: vm.name.clone(), key, offset, len });
            }
        }
    }
    check_lengths(&plan)?;
    Ok(Image { plan, bytes })
}

/// CRC-32 as Ethernet and zlib compute it, bit by bit: the plan is short.
fn crc32(parts: &[&[u8]]) -> u32 {
    let mut crc = !0u32;
    for byte in parts.iter().copied().flatten() {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            let carry = if crc & 1 == 1 { 0xEDB8_8320 } else { 0 };
            crc = crc >> 1 ^ carry;
        }
    }
    !crc
}

#[cfg(test)]
#[path = "image_tests.rs"]
mod tests;
