//! Boot images: any bytes, any plan under a fitting header, and packed plans with damage.
//!
//! What is accepted can be run: it passes the check, each kernel, initrd and disk's content lies
//! inside the image as stated, and packing it again gives an image of the same content.
#![no_main]

use arbitrary::Arbitrary;
use fuzz::one_line;
use libfuzzer_sys::fuzz_target;
use plan::{
    AtEnd, Backing, Class, Coalesce, Coalescing, Control, DeviceName, Disk, Host, Interface, Limit,
    Mac, Moving, Network, OnReset, Part, Plan, Policy, Protection, Vm, WithoutRemapping, image,
};

#[derive(Arbitrary, Debug)]
enum Input<'a> {
    Bytes(&'a [u8]),
    /// An encoded plan, and how many pages for kernels follow it.
    Encoded(&'a [u8], u8),
    /// A plan, packed, and bytes of it to change.
    Packed(Vec<VmInput<'a>>, Vec<NetworkInput<'a>>, HostInput, Vec<(u16, u8)>),
}

#[derive(Arbitrary, Debug)]
struct VmInput<'a> {
    name: &'a str,
    cores: Vec<u16>,
    weight: u16,
    limit: (Option<u64>, Option<u64>),
    /// In units of the page that guests' memory is mapped with.
    memory: u32,
    kernel: &'a [u8],
    initrd: Option<&'a [u8]>,
    cmdline: &'a str,
    addresses: Vec<(u8, u8, u8)>,
    names: Vec<(u8, u8)>,
    functions: Vec<(u8, u8)>,
    disks: Vec<DiskInput<'a>>,
    interfaces: Vec<InterfaceInput<'a>>,
    interrupts: u8,
    reset: u8,
}

#[derive(Arbitrary, Debug)]
struct DiskInput<'a> {
    size: u64,
    null: bool,
    /// A device of this kind and number, and the place there.
    part: Option<(u8, u8, u64)>,
    read_only: bool,
    serial: &'a str,
    queues: u16,
    image: Option<&'a [u8]>,
    kicks: bool,
    coalesce: Option<(u16, u32)>,
    latency_us: u32,
}

impl DiskInput<'_> {
    fn disk(&self) -> Disk<Vec<u8>> {
        Disk {
            size: self.size,
            backing: match self.part {
                Some((class, index, offset)) => {
                    let class = Class::ALL[class as usize % Class::ALL.len()];
                    Backing::Part(Part { device: DeviceName::Named { class, index }, offset })
                }
                None if self.null => Backing::Null,
                None => Backing::Ram,
            },
            read_only: self.read_only,
            serial: self.serial.into(),
            queues: self.queues,
            image: self.image.map(Into::into),
            control: Control {
                kicks: self.kicks,
                packed: self.null,
                coalesce: match self.coalesce {
                    Some((0, _)) => Coalesce::Off,
                    Some((in_flight, rate)) => Coalesce::On(Coalescing {
                        in_flight,
                        // Mostly one that the usual epoch and deferral fit.
                        rate: rate % 12_000,
                        adapted: self.kicks,
                        ..Coalescing::USUAL
                    }),
                    None => Coalesce::default(),
                },
                latency_us: self.latency_us,
            },
        }
    }
}

#[derive(Arbitrary, Debug)]
struct InterfaceInput<'a> {
    switch: &'a str,
    mac: [u8; 6],
    vlan: Option<u16>,
    queues: u16,
    mtu: u16,
    rate: Option<u64>,
    flood: Option<u64>,
    kicks: bool,
}

impl InterfaceInput<'_> {
    fn interface(&self) -> Interface {
        let InterfaceInput { switch, mac, vlan, queues, mtu, rate, flood, kicks } = *self;
        Interface { switch: switch.into(), mac: Mac(mac), vlan, queues, mtu, rate, flood, kicks }
    }
}

#[derive(Arbitrary, Debug)]
struct HostInput {
    sidecores: Vec<u16>,
    slice_us: u32,
    iommu_faults: u8,
    trusting: bool,
    moving: (u8, u32),
    screen: Option<u32>,
    at_end: u8,
}

#[derive(Arbitrary, Debug)]
struct NetworkInput<'a> {
    nic: u8,
    vfs: Option<u8>,
    uplink: Option<&'a str>,
    coalesce: Option<(u16, u32)>,
    macs: Vec<[u8; 6]>,
}

impl NetworkInput<'_> {
    fn network(&self) -> Network {
        let macs = self.macs.iter().copied().map(Mac).collect();
        let uplink = self.uplink.map(Into::into);
        let coalesce = match self.coalesce {
            None => Coalesce::Off,
            Some((in_flight, rate)) => {
                Coalesce::On(Coalescing { in_flight, rate, ..Coalescing::USUAL })
            }
        };
        Network { nic: self.nic, vfs: self.vfs, macs, uplink, coalesce }
    }
}

impl VmInput<'_> {
    fn vm(&self) -> Vm<Vec<u8>> {
        let address = |&(bus, device, function): &(u8, u8, u8)| DeviceName::Address {
            segment: u16::from(bus) << 3,
            bus,
            device,
            function,
        };
        let named = |&(class, index): &(u8, u8)| DeviceName::Named {
            class: Class::ALL[class as usize % Class::ALL.len()],
            index,
        };
        let function = |&(nic, function): &(u8, u8)| DeviceName::Virtual { nic, function };
        Vm {
            name: self.name.into(),
            cpus: self.cores.iter().copied().map(Into::into).collect(),
            weight: self.weight.into(),
            limit: Limit { iops: self.limit.0, rate: self.limit.1 },
            memory: u64::from(self.memory) << 21,
            kernel: self.kernel.into(),
            initrd: self.initrd.map(Into::into),
            cmdline: self.cmdline.into(),
            devices: self
                .addresses
                .iter()
                .map(address)
                .chain(self.names.iter().map(named))
                .chain(self.functions.iter().map(function))
                .collect(),
            disks: self.disks.iter().map(DiskInput::disk).collect(),
            interfaces: self.interfaces.iter().map(InterfaceInput::interface).collect(),
            interrupts: Policy::ALL
                .get(self.interrupts as usize % (1 + Policy::ALL.len()))
                .copied(),
            reset: OnReset::ALL[self.reset as usize % OnReset::ALL.len()].1,
            nested: false,
            iommu: plan::GuestIommu::None,
        }
    }
}

/// CRC-32 by the definition: division of polynomials, bit by bit.
fn crc32(bytes: impl Iterator<Item = u8>) -> u32 {
    !bytes
        .flat_map(|byte| (0..8).map(move |bit| u32::from(byte >> bit & 1)))
        .fold(!0, |crc, bit| (crc >> 1) ^ if (crc ^ bit) & 1 == 1 { 0xEDB8_8320 } else { 0 })
}

/// Makes the checksum right, if the header leads to a plan.
fn seal(image: &mut [u8]) {
    let Some(length) = image.get(12..16) else { return };
    let length = u32::from_le_bytes(length.try_into().unwrap()) as usize;
    let Some(plan) = image.get(32..32_usize.saturating_add(length)) else { return };
    let sum = crc32(image[..28].iter().chain(plan).copied());
    image[28..32].copy_from_slice(&sum.to_le_bytes());
}

fn under_a_header(plan: &[u8], pages: u8) -> Vec<u8> {
    let length = (32 + plan.len()).next_multiple_of(4096) + 4096 * usize::from(pages % 16);
    let mut image = b"EXITLESS".to_vec();
    image.extend(image::VERSION.to_le_bytes());
    image.extend((plan.len() as u32).to_le_bytes());
    image.extend((length as u64).to_le_bytes());
    image.extend([0; 8]);
    image.extend(plan);
    image.resize(length, 0x90);
    seal(&mut image);
    image
}

fn contents(image: &image::Image) -> Plan<Vec<u8>> {
    let bytes = |_: &str, _, blob| Ok::<_, ()>(image.blob(blob).to_vec());
    image.plan.clone().try_map(bytes).unwrap()
}

fn check(bytes: &[u8]) {
    let image = match image::parse(bytes) {
        Ok(image) => image,
        Err(refusal) => return one_line(&refusal),
    };
    assert_eq!(image.plan.check(), Ok(()));
    for vm in &image.plan.vms {
        let blobs = [Some((vm.kernel, image.kernel(vm))), vm.initrd.zip(image.initrd(vm))];
        let disks = vm.disks.iter().filter_map(|disk| Some((disk.image?, image.disk(disk))));
        assert!(vm.disks.iter().all(|disk| image.disk(disk).len() as u64 <= disk.size));
        for (blob, found) in blobs.into_iter().flatten().chain(disks) {
            assert!(blob.len > 0 && blob.offset % 4096 == 0);
            assert_eq!(found, &bytes[blob.offset as usize..][..blob.len as usize]);
        }
    }
    let contents = contents(&image);
    let again = image::build(&contents).expect("what was read can be packed");
    assert_eq!(
        self::contents(&image::parse(&again).expect("what was packed can be read")),
        contents
    );
}

fuzz_target!(|input: Input| match input {
    Input::Bytes(bytes) => check(bytes),
    Input::Encoded(plan, pages) => check(&under_a_header(plan, pages)),
    Input::Packed(vms, networks, host, damage) => {
        let plan = Plan {
            vms: vms.iter().map(VmInput::vm).collect(),
            networks: networks.iter().map(NetworkInput::network).collect(),
            sidecores: host.sidecores.iter().copied().map(Into::into).collect(),
            slice_us: host.slice_us,
            host: Host {
                iommu_faults: Protection::ALL[host.iommu_faults as usize % 3].1,
                without_remapping: WithoutRemapping::ALL[usize::from(host.trusting)].1,
                screen: host.screen,
                at_end: AtEnd::ALL[host.at_end as usize % 3].1,
                whole_turns: host.trusting,
                moving: match host.moving {
                    (0, _) => Moving::Never,
                    (1, us) => Moving::ByLoad(us),
                    (_, turns) => Moving::Rounds(turns as u16),
                },
            },
        };
        let mut image = match image::build(&plan) {
            Ok(image) => image,
            Err(refusal) => return one_line(&refusal),
        };
        assert_eq!(contents(&image::parse(&image).expect("undamaged")), plan);
        for (at, value) in damage {
            let at = usize::from(at) % image.len();
            image[at] = value;
        }
        seal(&mut image);
        check(&image);
    }
});
