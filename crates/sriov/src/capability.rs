//! The SR-IOV capability of a physical function (SR-IOV 1.1, 3.3), and switching its functions on.

use alloc::vec::Vec;
use core::ops::Range;
use pci::extended_capability;

/// More virtual functions than any device here is asked for.
pub const MAX_FUNCTIONS: u16 = 256;

/// The extended capability's id.
const ID: u16 = 0x0010;

/// Registers, as offsets in the capability.
const CONTROL: u16 = 0x08;
const INITIAL_AND_TOTAL: u16 = 0x0C;
const NUM_VFS: u16 = 0x10;
const OFFSET_AND_STRIDE: u16 = 0x14;
const DEVICE_ID: u16 = 0x18;
const SUPPORTED_PAGES: u16 = 0x1C;
const SYSTEM_PAGE: u16 = 0x20;
const BARS: u16 = 0x24;
/// Of CONTROL: VF Enable, VF Memory Space Enable, ARI Capable Hierarchy. STATUS is its upper half.
const VF_ENABLE: u32 = 1 << 0;
const VF_MEMORY: u32 = 1 << 3;
const ARI_HIERARCHY: u32 = 1 << 4;
const CONTROL_BITS: u32 = 0xFFFF;
/// Of the page sizes: 4 KiB.
const PAGES_4K: u32 = 1;
const PAGE: u64 = 4096;

/// A function's configuration space. Offsets are multiples of 4.
pub trait Config {
    /// Reads a register; all ones where there is none.
    fn read(&self, offset: u16) -> u32;
    /// Writes a register.
    fn write(&mut self, offset: u16, value: u32);
}

/// Where a function's capability is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability(u16);

/// A BAR that every virtual function has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    /// Its index, 0 to 5.
    pub index: usize,
    /// Bytes of it in each function: a power of two, at least a page.
    pub size: u64,
    /// It takes the next register for its upper half.
    pub wide: bool,
    /// Memory without side effects of reading.
    pub prefetchable: bool,
    /// Where the first function has it; those of the others follow it without gaps.
    pub address: u64,
}

/// What is above a device, and which functions of its bus can be reached therefore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Above {
    /// The root complex: every one.
    Root,
    /// A PCI Express port: the first eight (PCIe 6.0, 7.3.1).
    Port,
    /// A port that forwards requests by alternative routing ids: every one (6.13).
    AriPort,
}

/// What [`Capability::enable`] switched on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enabled {
    /// Routing ids of the functions: bus, device and function.
    pub functions: Vec<u16>,
    /// The functions' device id; their vendor is the physical function's.
    pub device: u16,
    /// Their BARs.
    pub bars: Vec<Bar>,
}

/// Why virtual functions can't be switched on. Each is the end of a sentence about the device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// More than the device has.
    #[error("it can have at most {most} virtual functions; {asked} are asked for")]
    Many {
        /// Functions asked for.
        asked: u16,
        /// TotalVFs.
        most: u16,
    },
    /// Functions where the bus ends.
    #[error(
        "its virtual function {index} would be on bus {bus:02x}, which isn't the device's; put it in a slot that leaves room for them"
    )]
    Bus {
        /// Which one.
        index: u16,
        /// Its bus.
        bus: u16,
    },
    /// Functions that nothing reaches.
    #[error(
        "its virtual function {0} couldn't be reached through the PCIe port above it, which doesn't forward alternative routing ids (ARI)"
    )]
    Port(u16),
    /// No 4 KiB pages.
    #[error(
        "its virtual functions can't be aligned to pages of 4 KiB (supported page sizes {0:#x})"
    )]
    Pages(u32),
    /// A BAR of ports, which virtual functions mustn't have (3.3.14).
    #[error("BAR {0} of its virtual functions is one of ports, which the standard forbids")]
    Ports(usize),
    /// No addresses.
    #[error(
        "there is no room below 4 GiB for BAR {index} of its virtual functions, {bytes:#x} bytes"
    )]
    Room {
        /// Which BAR.
        index: usize,
        /// Bytes of it in all functions.
        bytes: u64,
    },
}

impl Capability {
    /// Finds it in a function's configuration space.
    pub fn find(config: &impl Config) -> Option<Self> {
        let at = extended_capability(ID, |at| config.read(at))?;
        // Its BARs still fit the space.
        (at <= 0x1000 - BARS - 24).then_some(Capability(at))
    }

    /// How many virtual functions the device can have (TotalVFs).
    pub fn most(self, config: &impl Config) -> u16 {
        ((config.read(self.0 + INITIAL_AND_TOTAL) >> 16) as u16).min(MAX_FUNCTIONS)
    }

    /// Switches `count` virtual functions of the device with routing id `device`, below `above`,
    /// on.
    ///
    /// `place` gives an address below 4 GiB for that many bytes at a multiple of the second number;
    /// `wait` spends the 100 ms that functions may take to answer (3.3.3.1).
    pub fn enable(
        self,
        config: &mut impl Config,
        device: u16,
        above: Above,
        count: u16,
        mut place: impl FnMut(u64, u64) -> Option<u64>,
        wait: impl FnOnce(),
    ) -> Result<Enabled, Error> {
        let most = self.most(config);
        if count == 0 || count > most {
            return Err(Error::Many { asked: count, most });
        }
        self.set_up(config, above);
        let supported = config.read(self.0 + SUPPORTED_PAGES);
        if supported & PAGES_4K == 0 {
            return Err(Error::Pages(supported));
        }
        config.write(self.0 + SYSTEM_PAGE, PAGES_4K);
        // The offset and stride hold for this number of functions (3.3.9, 3.3.10).
        config.write(self.0 + NUM_VFS, count.into());
        let bars = self.place(config, count, &mut place);
        let functions = self.functions(config, device, above, count);
        let (bars, functions) = match (bars, functions) {
            (Ok(bars), Ok(functions)) => (bars, functions),
            (Err(e), _) | (_, Err(e)) => {
                config.write(self.0 + NUM_VFS, 0);
                return Err(e);
            }
        };
        let control = config.read(self.0 + CONTROL) & CONTROL_BITS;
        config.write(self.0 + CONTROL, control | VF_ENABLE | VF_MEMORY);
        wait();
        let device = (config.read(self.0 + DEVICE_ID) >> 16) as u16;
        Ok(Enabled { functions, device, bars })
    }

    /// Off, and knowing whether ids of all functions are forwarded, on which theirs may depend
    /// (3.3.3.5).
    fn set_up(self, config: &mut impl Config, above: Above) {
        let control = config.read(self.0 + CONTROL) & CONTROL_BITS;
        let off = control & !(VF_ENABLE | VF_MEMORY | ARI_HIERARCHY);
        config.write(self.0 + CONTROL, off);
        if above == Above::AriPort {
            config.write(self.0 + CONTROL, off | ARI_HIERARCHY);
        }
    }

    fn functions(
        self,
        config: &impl Config,
        device: u16,
        above: Above,
        count: u16,
    ) -> Result<Vec<u16>, Error> {
        let register = config.read(self.0 + OFFSET_AND_STRIDE);
        let (offset, stride) = (register & 0xFFFF, register >> 16);
        let mut functions = Vec::new();
        for index in 0..count {
            let id = u32::from(device) + offset + stride * u32::from(index);
            if id >> 8 != u32::from(device >> 8)
                || functions.contains(&(id as u16))
                || id as u16 == device
            {
                return Err(Error::Bus { index, bus: (id >> 8) as u16 });
            }
            if above == Above::Port && id & 0xFF > 7 {
                return Err(Error::Port(index));
            }
            functions.push(id as u16);
        }
        Ok(functions)
    }

    /// Sizes the BARs and gives them addresses.
    fn place(
        self,
        config: &mut impl Config,
        count: u16,
        place: &mut impl FnMut(u64, u64) -> Option<u64>,
    ) -> Result<Vec<Bar>, Error> {
        let mut bars = Vec::new();
        let mut index = 0;
        while index < 6 {
            let register = self.0 + BARS + 4 * index as u16;
            let flags = config.read(register);
            let wide = flags & 0b110 == 0b100 && index < 5;
            let size = size(config, register, wide);
            if size != 0 {
                if flags & 1 != 0 {
                    return Err(Error::Ports(index));
                }
                let size = size.max(PAGE);
                let bytes = size.saturating_mul(count.into());
                let room: Range<u64> = 1..(1 << 32);
                let address = place(bytes, size)
                    .filter(|at| room.contains(at) && at.saturating_add(bytes) <= room.end)
                    .ok_or(Error::Room { index, bytes })?;
                config.write(register, address as u32);
                if wide {
                    config.write(register + 4, 0);
                }
                bars.push(Bar { index, size, wide, prefetchable: flags & 8 != 0, address });
            }
            index += if wide { 2 } else { 1 };
        }
        Ok(bars)
    }
}

/// A BAR's size, found by writing ones (PCI 3.0, 6.2.5.1); 0 if it isn't implemented.
fn size(config: &mut impl Config, register: u16, wide: bool) -> u64 {
    config.write(register, u32::MAX);
    let mut mask = u64::from(config.read(register) & !0xF);
    if wide {
        config.write(register + 4, u32::MAX);
        mask |= u64::from(config.read(register + 4)) << 32;
    }
    if mask == 0 { 0 } else { 1 << mask.trailing_zeros() }
}
