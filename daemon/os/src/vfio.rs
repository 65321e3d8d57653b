//! A PCI device that VFIO gives to this program: its registers, and the memory that it reaches.
//!
//! Guarantees: the device reaches the mappings that are shared with it and nothing else, each for
//! as long as its [`Shared`] is there, which keeps the mapping; registers are accessed inside of
//! their region. A device that is taken away leaves zeroes there.
//!
//! Not guaranteed: what the device does to the memory that it reaches.

use crate::iova::{Addresses, ranges};
use crate::mapping::Mapping;
use rustix::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use rustix::io::{pread, pwrite};
use std::ffi::{CString, c_ulong};
use std::fmt;
use std::io;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vfio_bindings::bindings::vfio::{
    VFIO_API_VERSION, VFIO_BASE, VFIO_DMA_MAP_FLAG_READ, VFIO_DMA_MAP_FLAG_WRITE,
    VFIO_GROUP_FLAGS_VIABLE, VFIO_IOMMU_INFO_CAPS, VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE,
    VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX, VFIO_REGION_INFO_FLAG_MMAP,
    VFIO_TYPE, VFIO_TYPE1v2_IOMMU, vfio_group_status, vfio_iommu_type1_dma_map,
    vfio_iommu_type1_dma_unmap, vfio_iommu_type1_info, vfio_region_info,
};
use window::{ALIGNMENT, Span};

/// `linux/vfio.h`: the numbers of the calls.
const fn number(call: u32) -> c_ulong {
    (VFIO_TYPE as c_ulong) << 8 | (VFIO_BASE + call) as c_ulong
}
const GET_API_VERSION: c_ulong = number(0);
const SET_IOMMU: c_ulong = number(2);
const GROUP_GET_STATUS: c_ulong = number(3);
const GROUP_SET_CONTAINER: c_ulong = number(4);
const GROUP_GET_DEVICE_FD: c_ulong = number(6);
const DEVICE_GET_REGION_INFO: c_ulong = number(8);
const IOMMU_GET_INFO: c_ulong = number(12);
const IOMMU_MAP_DMA: c_ulong = number(13);
const IOMMU_UNMAP_DMA: c_ulong = number(14);

/// The calls that memory takes which comes and goes.
pub const CALLS_FOR_MEMORY: [u64; 2] = [IOMMU_MAP_DMA, IOMMU_UNMAP_DMA];

/// In PCI's configuration space: the command, with accesses to memory, accesses by the device, no
/// pin interrupt.
const COMMAND: u64 = 4;
const MEMORY: u16 = 1 << 1;
const MASTER: u16 = 1 << 2;
const NO_PIN: u16 = 1 << 10;

/// Bytes of what an IOMMU says of itself.
const SAID: usize = 4096;

/// Why a device can't be had.
#[derive(Debug)]
pub enum NoDevice {
    /// Another device of its group has another driver.
    NotViable,
    /// The kernel's VFIO is another one.
    Version,
    /// The IOMMU isn't one for type 1.
    Iommu(io::Error),
    /// Its registers can't be mapped.
    Registers,
    /// What else the system refuses: doing what.
    System(&'static str, io::Error),
}

/// A device, which doesn't access memory yet.
pub struct Device {
    registers: Registers,
    domain: Domain,
    /// Where its configuration space is in its file.
    config: u64,
}

impl Device {
    /// Takes the device of this name from its group, in a container of its own.
    ///
    /// # Errors
    ///
    /// [`NoDevice`].
    pub fn open(container: OwnedFd, group: OwnedFd, name: &str) -> Result<Device, NoDevice> {
        let system = |what| move |error| NoDevice::System(what, error);
        // SAFETY: the call takes nothing.
        let version = unsafe { call(&container, GET_API_VERSION, 0) };
        if version.map_err(system("asking for VFIO's version"))? != VFIO_API_VERSION as i32 {
            return Err(NoDevice::Version);
        }
        let mut status = vfio_group_status { argsz: bytes_of::<vfio_group_status>(), flags: 0 };
        // SAFETY: the call writes to such a structure.
        unsafe { call(&group, GROUP_GET_STATUS, &raw mut status as c_ulong) }
            .map_err(system("asking for the group's state"))?;
        if status.flags & VFIO_GROUP_FLAGS_VIABLE == 0 {
            return Err(NoDevice::NotViable);
        }
        let number = container.as_raw_fd();
        // SAFETY: the call reads a descriptor.
        unsafe { call(&group, GROUP_SET_CONTAINER, &raw const number as c_ulong) }
            .map_err(system("putting the group into a container"))?;
        // SAFETY: the call takes a number.
        unsafe { call(&container, SET_IOMMU, VFIO_TYPE1v2_IOMMU.into()) }
            .map_err(NoDevice::Iommu)?;
        let ranges = iommu_ranges(&container).map_err(system("asking what the IOMMU knows"))?;
        let name = CString::new(name).map_err(|error| {
            NoDevice::System(
                "naming the device",
                io::Error::new(io::ErrorKind::InvalidInput, error),
            )
        })?;
        // SAFETY: the call reads a text with an end.
        let file = unsafe { call(&group, GROUP_GET_DEVICE_FD, name.as_ptr() as c_ulong) }
            .map_err(system("asking for the device"))?;
        // SAFETY: the descriptor is new, and nobody else's.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        let bar = region(&file, VFIO_PCI_BAR0_REGION_INDEX).map_err(system("finding registers"))?;
        let config = region(&file, VFIO_PCI_CONFIG_REGION_INDEX);
        let config = config.map_err(system("finding the configuration space"))?.offset;
        let is_whole = bar.size > 0 && bar.size.is_multiple_of(ALIGNMENT);
        if bar.flags & VFIO_REGION_INFO_FLAG_MMAP == 0 || !is_whole {
            return Err(NoDevice::Registers);
        }
        let mapping = Mapping::of_registers(file.as_fd(), bar.offset, bar.size as usize);
        let mapping = mapping.map_err(system("mapping registers"))?;
        let registers = Registers { mapping, device: file };
        let addresses = Mutex::new(Addresses::new(ranges));
        let domain = Domain(Arc::new(Inner { container, _group: group, addresses }));
        let device = Device { registers, domain, config };
        device.command(MEMORY | NO_PIN).map_err(system("keeping it from memory"))?;
        Ok(device)
    }

    /// Lets it access the memory that is shared with it. Its registers, with which it is given
    /// back, and that memory.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn enable(self) -> io::Result<(Registers, Domain)> {
        self.command(MEMORY | MASTER | NO_PIN)?;
        Ok((self.registers, self.domain))
    }

    fn command(&self, bits: u16) -> io::Result<()> {
        let (file, at) = (&self.registers.device, self.config + COMMAND);
        let mut word = [0; 2];
        let whole = |count| if count == 2 { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof) };
        whole(pread(file, &mut word, at)?)?;
        let word = u16::from_le_bytes(word) & !(MEMORY | MASTER | NO_PIN) | bits;
        whole(pwrite(file, &word.to_le_bytes(), at)?)?;
        Ok(())
    }
}

/// A device's registers in memory. An access that isn't whole and inside reads as ones, and writes
/// nothing.
#[derive(Debug)]
pub struct Registers {
    mapping: Mapping,
    /// The device is this program's as long as this is open.
    device: OwnedFd,
}

impl Registers {
    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.mapping.len() as u64
    }

    fn at<T>(&self, offset: u32) -> Option<*mut T> {
        let (offset, bytes) = (offset as usize, size_of::<T>());
        let is_in = offset.is_multiple_of(bytes) && offset + bytes <= self.mapping.len();
        is_in.then(|| self.mapping.start().as_ptr().wrapping_add(offset).cast())
    }

    /// Reads 32 bits.
    pub fn read32(&mut self, offset: u32) -> u32 {
        // SAFETY: the place is aligned and inside of the mapping, which lasts as long as this.
        self.at(offset).map_or(u32::MAX, |at| unsafe { std::ptr::read_volatile(at) })
    }

    /// Reads 64 bits.
    pub fn read64(&mut self, offset: u32) -> u64 {
        // SAFETY: as in `read32`.
        self.at(offset).map_or(u64::MAX, |at| unsafe { std::ptr::read_volatile(at) })
    }

    /// Writes 32 bits, after all stores to memory before.
    pub fn write32(&mut self, offset: u32, value: u32) {
        fence(Ordering::Release);
        if let Some(at) = self.at(offset) {
            // SAFETY: as in `read32`; whatever the write makes the device do, its domain bounds
            // what memory it does it to.
            unsafe { std::ptr::write_volatile(at, value) }
        }
    }

    /// Writes 64 bits, as well.
    pub fn write64(&mut self, offset: u32, value: u64) {
        fence(Ordering::Release);
        if let Some(at) = self.at(offset) {
            // SAFETY: as in `write32`.
            unsafe { std::ptr::write_volatile(at, value) }
        }
    }
}

/// What a device reaches.
#[derive(Clone, Debug)]
pub struct Domain(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    container: OwnedFd,
    /// The container has its IOMMU as long as this is open.
    _group: OwnedFd,
    addresses: Mutex<Addresses>,
}

impl Domain {
    /// Lets the device reach a mapping, whose pages are locked for that.
    ///
    /// # Errors
    ///
    /// The system's: with ENOMEM more would be locked than this program may.
    pub fn share(&self, mapping: &Arc<Mapping>) -> io::Result<Shared> {
        let (start, len) = (mapping.start(), mapping.len() as u64);
        let mut addresses = self.0.addresses();
        let at = addresses.take(len);
        let at = at.ok_or_else(|| io::Error::other("its IOMMU has no addresses left for it"))?;
        let map = vfio_iommu_type1_dma_map {
            argsz: bytes_of::<vfio_iommu_type1_dma_map>(),
            flags: VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE,
            vaddr: start.as_ptr().expose_provenance() as u64,
            iova: at,
            size: len,
        };
        // SAFETY: the call reads such a structure. The pages at these addresses are a mapping's,
        // which is accessed as memory that others write to; they stay the device's, whatever is
        // mapped there later, until that is taken back.
        let mapped = unsafe { call(&self.0.container, IOMMU_MAP_DMA, &raw const map as c_ulong) };
        if let Err(error) = mapped {
            addresses.give_back(at);
            return Err(error);
        }
        Ok(Shared { domain: self.0.clone(), mapping: mapping.clone(), at })
    }

    /// Bytes that are shared.
    pub fn bytes(&self) -> u64 {
        self.0.addresses().bytes()
    }

    /// Takes all memory from the device, for good.
    ///
    /// # Errors
    ///
    /// The system's: it may have some of it still.
    pub fn cut_off(&self) -> io::Result<()> {
        let taken = self.0.addresses().taken().to_vec();
        taken.into_iter().try_for_each(|(at, bytes)| self.0.unmap(at, bytes))
    }
}

impl Inner {
    fn addresses(&self) -> MutexGuard<'_, Addresses> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a mapping from the device, if it has it.
    fn unmap(&self, at: u64, bytes: u64) -> io::Result<()> {
        let mut addresses = self.addresses();
        if !addresses.taken().contains(&(at, bytes)) {
            return Ok(());
        }
        let mut unmap = vfio_iommu_type1_dma_unmap {
            argsz: bytes_of::<vfio_iommu_type1_dma_unmap>(),
            iova: at,
            size: bytes,
            ..Default::default()
        };
        // SAFETY: the call reads such a structure, and writes how much it unmapped.
        unsafe { call(&self.container, IOMMU_UNMAP_DMA, &raw mut unmap as c_ulong) }?;
        addresses.give_back(at);
        Ok(())
    }
}

/// A mapping that a device reaches, as long as this is there.
pub struct Shared {
    domain: Arc<Inner>,
    mapping: Arc<Mapping>,
    at: u64,
}

impl Shared {
    /// The address that the device has it at.
    pub fn address(&self) -> u64 {
        self.at
    }

    /// All of its bytes, with the address that the device has them at.
    pub fn span(&self) -> Option<Span> {
        self.mapping.span_at(self.at)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.domain.unmap(self.at, self.mapping.len() as u64).is_err() {
            // The device's for good: nothing else is to come there.
            std::mem::forget(self.mapping.clone());
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shared at {:#x}", self.at)
    }
}

fn bytes_of<T>() -> u32 {
    size_of::<T>() as u32
}

/// A call of VFIO's: what it gives.
///
/// # Safety
///
/// The argument is what the call takes: a number, or the address of what it reads and writes.
unsafe fn call(file: &OwnedFd, call: c_ulong, argument: c_ulong) -> io::Result<i32> {
    // SAFETY: by the caller's word.
    match unsafe { libc::ioctl(file.as_raw_fd(), call, argument) } {
        -1 => Err(io::Error::last_os_error()),
        given => Ok(given),
    }
}

fn region(device: &OwnedFd, index: u32) -> io::Result<vfio_region_info> {
    let argsz = bytes_of::<vfio_region_info>();
    let mut info = vfio_region_info { argsz, index, ..Default::default() };
    // SAFETY: the call writes to such a structure.
    unsafe { call(device, DEVICE_GET_REGION_INFO, &raw mut info as c_ulong) }?;
    Ok(info)
}

/// The addresses that the container's IOMMU has, if it says so.
fn iommu_ranges(container: &OwnedFd) -> io::Result<Vec<(u64, u64)>> {
    let mut said = [0u64; SAID / 8];
    let info = vfio_iommu_type1_info { argsz: SAID as u32, ..Default::default() };
    let place = said.as_mut_ptr().cast::<vfio_iommu_type1_info>();
    // SAFETY: there is room for the structure, and it is aligned.
    unsafe { place.write(info) };
    // SAFETY: the call writes to the structure, and behind it as much as `argsz` says at most,
    // which is all that there is.
    unsafe { call(container, IOMMU_GET_INFO, place as c_ulong) }?;
    // SAFETY: it was written there, and any bytes are one.
    let info = unsafe { place.read() };
    if info.flags & VFIO_IOMMU_INFO_CAPS == 0 {
        return Ok(Vec::new());
    }
    let bytes: Vec<u8> = said.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let kind = VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE as u16;
    Ok(ranges(&bytes, info.cap_offset as usize, kind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    #[test]
    fn registers_are_accessed_inside_of_them() {
        let device = memfd_create("registers", MemfdFlags::CLOEXEC).expect("a file");
        ftruncate(&device, 3 * ALIGNMENT).expect("it is longer");
        pwrite(&device, &0x1122_3344_5566_7788u64.to_ne_bytes(), ALIGNMENT).expect("a register");
        let mapping = Mapping::of_registers(device.as_fd(), ALIGNMENT, 2 * ALIGNMENT as usize);
        let mut registers = Registers { mapping: mapping.expect("it is mapped"), device };
        assert_eq!(registers.read64(0), 0x1122_3344_5566_7788);
        assert_eq!((registers.read32(0), registers.read32(4)), (0x5566_7788, 0x1122_3344));
        registers.write32(4, 1);
        registers.write64(0x1ff8, 2);
        assert_eq!((registers.read64(0), registers.read64(0x1ff8)), (0x1_5566_7788, 2));
        for (offset, ones) in [(0x1ffc, u32::MAX), (0x2000, u32::MAX), (2, u32::MAX)] {
            registers.write64(offset, 3);
            assert_eq!(registers.read64(offset), u64::MAX);
            let is_last = offset == 0x1ffc;
            assert_eq!(registers.read32(offset), if is_last { 0 } else { ones });
        }
        registers.write32(u32::MAX, 3);
        assert_eq!(registers.read32(u32::MAX), u32::MAX);
    }

    /// `linux/vfio.h` in numbers.
    #[test]
    fn the_calls_have_their_numbers() {
        assert_eq!(CALLS_FOR_MEMORY, [0x3b71, 0x3b72]);
        assert_eq!(GROUP_GET_DEVICE_FD, 0x3b6a);
    }
}
