//! NVMe controllers that VFIO gives to this program: found, opened, and asked for disks.
//!
//! Guarantees: a controller is opened once, at the start; what keeps it from being had is said in a
//! sentence, with the command that mends it. It reaches its driver's memory and that of guests
//! whose disks are on it, for as long as those have them. At the end it is shut down.

use super::locked::{most, too_much};
use super::nvme::{Driven, NvmeStore};
use crate::clock::Clock;
use crate::config::Nvme;
use anyhow::{Context as _, Error, Result, bail};
use daemon_os::{Device, Domain, GuestRegion, Mapping, NoDevice, Registers};
use nvme::{Capabilities, Controller, MEMORY};
use plan::Size;
use rustix::event::{Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::cell::RefCell;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

/// PCI's class of NVMe controllers.
const CLASS: &str = "0x010802";
const DRIVER: &str = "vfio-pci";

/// The registers, as the driver has them.
pub struct Bar(Registers);

impl nvme::Registers for Bar {
    fn read32(&mut self, offset: u32) -> u32 {
        self.0.read32(offset)
    }

    fn read64(&mut self, offset: u32) -> u64 {
        self.0.read64(offset)
    }

    fn write32(&mut self, offset: u32, value: u32) {
        self.0.write32(offset, value);
    }

    fn write64(&mut self, offset: u32, value: u64) {
        self.0.write64(offset, value);
    }
}

/// A disk on such a controller.
pub struct Store {
    pub disk: NvmeStore<Bar>,
    reach: Reach,
}

impl Store {
    /// Lets the controller reach these regions, as long as they are there.
    ///
    /// # Errors
    ///
    /// In a sentence, if their memory can't be locked.
    pub fn share(&self, regions: Vec<GuestRegion>) -> Result<Vec<GuestRegion>> {
        let share = |region: GuestRegion| {
            let shared = match region.shared {
                Some(shared) => shared,
                None => Arc::new(self.reach.share(&region.mapping)?),
            };
            Ok(GuestRegion { shared: Some(shared), ..region })
        };
        regions.into_iter().map(share).collect()
    }
}

/// What a controller reaches.
#[derive(Clone)]
struct Reach {
    name: String,
    domain: Domain,
}

impl Reach {
    fn share(&self, mapping: &Arc<Mapping>) -> Result<daemon_os::Shared> {
        self.domain.share(mapping).map_err(|error| self.refused(mapping.bytes(), error))
    }

    fn refused(&self, bytes: u64, error: io::Error) -> Error {
        let name = &self.name;
        let errno = Errno::from_io_error(&error);
        let too_much = too_much(self.domain.bytes() + bytes, name);
        match too_much.filter(|_| errno == Some(Errno::NOMEM)) {
            Some(said) => Error::msg(said),
            None if errno == Some(Errno::FAULT) => Error::msg(format!(
                "{name} can't reach memory in a file of this kind; memory-backend-memfd, or a file \
                 in /dev/shm, can be reached"
            )),
            None => Error::new(error).context(format!("{} can't be given to {name}", Size(bytes))),
        }
    }
}

/// A controller that was opened.
struct Opened {
    driven: Rc<RefCell<Driven<Bar>>>,
    reach: Reach,
    /// What its driver shares with it.
    _own: daemon_os::Shared,
}

/// All of them.
#[derive(Default)]
pub struct Controllers {
    all: Vec<Opened>,
    /// None is opened any more.
    pub is_closed: bool,
}

impl Controllers {
    /// Is there none?
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// A disk on a controller, which is opened if it isn't.
    ///
    /// # Errors
    ///
    /// In a sentence.
    pub fn disk(&mut self, asked: &Nvme, read_only: bool) -> Result<Store> {
        let Nvme { address, offset, size } = asked;
        let at = match self.all.iter().position(|one| one.reach.name == *address) {
            Some(at) => at,
            None if self.is_closed => bail!(
                "controllers are opened at the start alone, and {address} wasn't; restart the \
                 daemon"
            ),
            None => {
                self.all.push(open(address)?);
                self.all.len() - 1
            }
        };
        let Opened { driven, reach, .. } = &self.all[at];
        let disk = NvmeStore::new(driven, *offset, *size, !read_only);
        let disk = disk.with_context(|| address.clone())?;
        Ok(Store { disk, reach: reach.clone() })
    }

    /// Has all keep what they hold, as before power is taken away.
    pub fn shut_down(&mut self) {
        for opened in &self.all {
            opened.driven.borrow_mut().shut_down(pause);
        }
        self.all.clear();
    }
}

/// A short while: a start takes some milliseconds.
fn pause() {
    let _ = poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: 50_000 }));
}

fn open(address: &str) -> Result<Opened> {
    let found = find(Path::new("/sys"), Path::new("/dev"), address)?;
    // Before the first memory is.
    most();
    let device = Device::open(found.container, found.group, address);
    let device = device.map_err(|no| refusal(no, address, &found.number))?;
    let (registers, domain) = device.enable()?;
    let reach = Reach { name: address.to_owned(), domain };
    let memory = Arc::new(Mapping::anonymous(MEMORY).context("there is no memory left")?);
    let own = reach.share(&memory)?;
    let mut bar = Bar(registers);
    let capabilities = Capabilities(nvme::Registers::read64(&mut bar, 0));
    if u64::from(capabilities.bytes()) > bar.0.bytes() {
        bail!("{address} can't be used: its doorbells lie outside of its registers");
    }
    let (span, domain) = (own.span(), reach.domain.clone());
    let make = |times, now| Controller::new(bar, span?, times, now);
    let cut_off = Box::new(move || domain.cut_off());
    let driven = Driven::start(address, Clock::system(), make, cut_off, pause);
    let driven = driven.with_context(|| format!("{address} can't be used"))?;
    Ok(Opened { driven: Rc::new(RefCell::new(driven)), reach, _own: own })
}

/// What opening a device takes.
struct Found {
    container: OwnedFd,
    group: OwnedFd,
    number: String,
}

/// Is such a controller there, for VFIO? It isn't opened, nor is its group.
///
/// # Errors
///
/// A sentence that says what is wrong, and what mends it.
pub fn found(address: &str) -> Result<()> {
    group_of(Path::new("/sys"), address).map(|_| ())
}

/// The number of a controller's group.
fn group_of(sys: &Path, address: &str) -> Result<String> {
    let device = sys.join("bus/pci/devices").join(address);
    if !device.exists() {
        bail!("there is no PCI device {address}; `lspci -D -d ::0108` shows those that are NVMe");
    }
    let class = fs::read_to_string(device.join("class")).unwrap_or_default();
    if class.trim() != CLASS {
        bail!("{address} is no NVMe controller; `lspci -D -d ::0108` shows those that are");
    }
    let Some(number) = linked(&device.join("iommu_group")) else {
        bail!(
            "{address} is behind no IOMMU, which keeps it from all other memory; switch it on in \
             the firmware (VT-d, AMD-Vi), and start Linux with intel_iommu=on"
        );
    };
    let driver = linked(&device.join("driver"));
    if driver.as_deref() != Some(DRIVER) {
        let of = driver.as_deref().unwrap_or("no driver");
        bail!("{address} has {of}, and has to have {DRIVER}: {}", bind(address));
    }
    Ok(number)
}

/// Finds the device and its group.
///
/// # Errors
///
/// A sentence that says what is wrong, and what mends it.
fn find(sys: &Path, dev: &Path, address: &str) -> Result<Found> {
    let number = group_of(sys, address)?;
    let path = dev.join("vfio/vfio");
    let container = opened(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error::msg("there is no VFIO here: `modprobe vfio-pci`"),
        io::ErrorKind::PermissionDenied => not_ours(&path),
        _ => Error::new(error).context(format!("{} can't be opened", path.display())),
    })?;
    let path = dev.join("vfio").join(&number);
    let group = opened(&path).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => not_ours(&path),
        io::ErrorKind::ResourceBusy => Error::msg(format!(
            "{address} is in use: another program has {}; `fuser {0}` shows which",
            path.display()
        )),
        _ => Error::new(error).context(format!("{} can't be opened", path.display())),
    })?;
    Ok(Found { container, group, number })
}

fn opened(path: &Path) -> io::Result<OwnedFd> {
    Ok(fs::File::options().read(true).write(true).open(path)?.into())
}

/// The last name of where a link leads.
fn linked(link: &Path) -> Option<String> {
    Some(fs::read_link(link).ok()?.file_name()?.to_string_lossy().into_owned())
}

fn not_ours(path: &Path) -> Error {
    let shown = path.display();
    Error::msg(format!("this user may not open {shown}: `chown $USER {shown}`, as root"))
}

/// What gives a device to VFIO.
fn bind(address: &str) -> String {
    let at = format!("/sys/bus/pci/devices/{address}");
    format!(
        "`modprobe {DRIVER}; echo {DRIVER} >{at}/driver_override; echo {address} \
         >{at}/driver/unbind; echo {address} >/sys/bus/pci/drivers_probe`, as root"
    )
}

fn refusal(no: NoDevice, address: &str, group: &str) -> Error {
    match no {
        NoDevice::NotViable => {
            let others = others_of(Path::new("/sys"), group);
            let first = others.first().map_or(address, String::as_str);
            Error::msg(format!(
                "{address} can't be had alone: of its group {group}, {} must have {DRIVER}, too, \
                 or no driver: {}",
                others.join(" and "),
                bind(first)
            ))
        }
        NoDevice::Version => Error::msg("this kernel has a VFIO that isn't known"),
        NoDevice::Iommu(error) if error.kind() == io::ErrorKind::PermissionDenied => Error::msg(
            "the IOMMU doesn't remap interrupts, which VFIO wants; switch that on in the firmware, \
             or do without: `echo Y \
             >/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts`, as root",
        ),
        NoDevice::Iommu(error) => Error::new(error).context(
            "the IOMMU's VFIO for type 1 isn't there: `modprobe vfio_iommu_type1`, as root",
        ),
        NoDevice::Registers => Error::msg(format!("{address} has no registers that can be mapped")),
        NoDevice::System(what, error) => {
            Error::new(error).context(format!("{address} can't be had, as {what} fails"))
        }
    }
}

/// The devices of a group that keep others from being had.
fn others_of(sys: &Path, group: &str) -> Vec<String> {
    let devices = sys.join("kernel/iommu_groups").join(group).join("devices");
    let all = fs::read_dir(devices).into_iter().flatten().flatten();
    let is_other = |path: &PathBuf| linked(&path.join("driver")).is_some_and(|own| own != DRIVER);
    let others = all.map(|entry| entry.path()).filter(is_other);
    let mut names: Vec<_> =
        others.filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned())).collect();
    sort::by_key(&mut names, String::clone);
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    const ADDRESS: &str = "0000:01:00.0";

    fn said(folder: &Path) -> String {
        let found = find(&folder.join("sys"), &folder.join("dev"), ADDRESS);
        format!("{:#}", found.err().expect("something is missing"))
    }

    /// Each step is what the sentence before asked for.
    #[test]
    fn what_is_missing_is_said_with_what_mends_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path();
        assert!(said(folder).starts_with("there is no PCI device 0000:01:00.0; `lspci"));
        let device = folder.join("sys/bus/pci/devices").join(ADDRESS);
        fs::create_dir_all(&device).expect("a folder");
        fs::write(device.join("class"), "0x020000\n").expect("a file");
        assert!(said(folder).contains("is no NVMe controller"));
        fs::write(device.join("class"), "0x010802\n").expect("a file");
        assert!(said(folder).contains("is behind no IOMMU"));
        symlink("../../../../kernel/iommu_groups/7", device.join("iommu_group")).expect("a link");
        assert!(said(folder).contains("has no driver, and has to have vfio-pci: `modprobe"));
        symlink("../../../../bus/pci/drivers/nvme", device.join("driver")).expect("a link");
        let told = said(folder);
        assert!(told.contains("0000:01:00.0 has nvme, and has to have vfio-pci"), "{told}");
        assert!(told.contains("; echo 0000:01:00.0 >/sys/bus/pci/drivers_probe`"), "{told}");
        fs::remove_file(device.join("driver")).expect("it goes");
        symlink("../../../../bus/pci/drivers/vfio-pci", device.join("driver")).expect("a link");
        assert_eq!(said(folder), "there is no VFIO here: `modprobe vfio-pci`");
        fs::create_dir_all(folder.join("dev/vfio")).expect("a folder");
        fs::write(folder.join("dev/vfio/vfio"), "").expect("a file");
        assert!(said(folder).contains("vfio/7 can't be opened"));
        fs::write(folder.join("dev/vfio/7"), "").expect("a file");
        let found = find(&folder.join("sys"), &folder.join("dev"), ADDRESS).expect("all is there");
        assert_eq!(found.number, "7");
        // Such a file is no VFIO.
        let no = Device::open(found.container, found.group, ADDRESS).err().expect("it is none");
        let told = format!("{:#}", refusal(no, ADDRESS, "7"));
        assert!(told.contains("can't be had, as asking for VFIO's version fails"), "{told}");
    }

    #[test]
    fn none_is_opened_once_the_rights_are_given_up() {
        let mut closed = Controllers { is_closed: true, ..Controllers::default() };
        let asked = Nvme { address: ADDRESS.into(), offset: 0, size: None };
        let said = closed.disk(&asked, false).err().expect("it isn't there").to_string();
        assert!(said.starts_with("controllers are opened at the start alone"), "{said}");
    }

    #[test]
    fn who_keeps_a_group_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, driver) in [("0000:00:1f.3", "ahci"), ("0000:00:1f.2", DRIVER), ("x", "")] {
            let device = folder.path().join("kernel/iommu_groups/7/devices").join(name);
            fs::create_dir_all(&device).expect("a folder");
            if !driver.is_empty() {
                symlink(format!("../drivers/{driver}"), device.join("driver")).expect("a link");
            }
        }
        assert_eq!(others_of(folder.path(), "7"), ["0000:00:1f.3"]);
        assert_eq!(others_of(folder.path(), "8"), [""; 0]);
    }
}
