//! Round trips, and images that someone damaged on purpose.

use super::*;
use crate::{
    AtEnd, Backing, Class, Coalesce, DeviceName, Disk, Host, Interface, Mac, Network, OnReset,
    Part, Policy, Problem, Protection, WithoutRemapping,
};
use proptest::prelude::*;

fn device() -> impl Strategy<Value = DeviceName> {
    prop_oneof![
        (any::<u16>(), any::<u8>(), 0u8..32, 0u8..8).prop_map(
            |(segment, bus, device, function)| DeviceName::Address {
                segment,
                bus,
                device,
                function
            }
        ),
        (0..Class::ALL.len(), any::<u8>())
            .prop_map(|(c, index)| DeviceName::Named { class: Class::ALL[c], index: index % 255 }),
        // No controllers that the others name, so that none is given away twice.
        (0u8..64).prop_map(|function| DeviceName::Virtual { nic: 255, function }),
    ]
}

prop_compose! {
    fn disk()(
        sectors in 20u64..1 << 39,
        queues in 1u16..17,
        serial in "[ -~]{0,20}",
        read_only: bool,
        image in prop::option::of(prop::collection::vec(any::<u8>(), 1..9000)),
        null: bool,
        (kicks, packed, rate, latency_us) in (any::<bool>(), any::<bool>(), 5u32..10_001, 0u32..1_000),
    ) -> Disk<Vec<u8>> {
        let backing = if null && image.is_none() { Backing::Null } else { Backing::Ram };
        let sectors = if backing == Backing::Ram { sectors.min(1 << 35) } else { sectors };
        let latency_us = if backing == Backing::Null { latency_us } else { 0 };
        let control = crate::Control {
            kicks,
            packed,
            coalesce: crate::Coalesce::On(crate::Coalescing { rate, adapted: packed, ..crate::Coalescing::USUAL }),
            latency_us,
        };
        Disk { size: sectors * 512, backing, read_only, serial, queues, image, control }
    }
}

prop_compose! {
    fn interfaces()(
        macs in prop::collection::btree_set(any::<[u8; 5]>(), 0..9),
        switch in "[a-z][a-z0-9_-]{0,2}",
        vlan in prop::option::of(1u16..4095),
        queues in 1u16..8,
        mtu in 1280u16..,
        rate in prop::option::of(1u64..),
        flood in prop::option::of(1u64..),
        kicks in any::<bool>(),
    ) -> Vec<Interface> {
        let interface = |(i, [b, c, d, e, f]): (usize, [u8; 5])| {
            let mac = Mac([6, b, c, d, e, f]);
            let switch = format!("{switch}{}", i % 3);
            Interface { switch, mac, vlan, queues, mtu, rate, flood, kicks }
        };
        macs.into_iter().enumerate().map(interface).collect()
    }
}

/// Of a VM with these disks, if there can be one.
fn limit_of(disks: &[Disk<Vec<u8>>], n: u64) -> crate::Limit {
    let some = |bit: u32| (!disks.is_empty() && n >> bit & 1 == 1).then_some(n);
    crate::Limit { iops: some(0), rate: some(1) }
}

prop_compose! {
    fn plans()(count in 1usize..5)(
        kernels in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..9000), count),
        initrds in prop::collection::vec(prop::option::of(prop::collection::vec(any::<u8>(), 1..9000)), count),
        memory in prop::collection::vec(32u64..100_000, count),
        cmdlines in prop::collection::vec("[^\0]{0,60}", count),
        devices in prop::collection::btree_set(device(), 0..8),
        disks in prop::collection::vec(prop::collection::vec(disk(), 0..5), count),
        policies in prop::collection::vec(0usize..3, count),
        weights in prop::collection::vec(1u32..10_001, count),
        slice_us in 100u32..100_001,
        protection in 0usize..3,
        without in 0usize..2,
        screen in prop::option::of(0u32..5),
        at_end in 0usize..3,
        macs in prop::collection::btree_set(any::<[u8; 5]>(), 0..9),
        interfaces in interfaces(),
    ) -> Plan<Vec<u8>> {
        // The uplink is nobody's.
        let devices = devices.into_iter().filter(|device| !device.to_string().starts_with("nic254"));
        let devices: Vec<_> = devices.collect();
        let vms = kernels.into_iter().enumerate().map(|(i, kernel)| Vm {
            name: format!("vm{i}"),
            cpus: vec![i as u32 / 2 + 1],
            weight: weights[i],
            limit: limit_of(&disks[i], weights[i].into()),
            memory: memory[i] << 21,
            kernel,
            initrd: initrds[i].clone(),
            cmdline: cmdlines[i].clone(),
            devices: devices.iter().skip(i).step_by(initrds.len()).copied().collect(),
            disks: disks[i].clone(),
            interfaces: interfaces.iter().skip(i).step_by(initrds.len()).take(4).cloned().collect(),
            interrupts: policies[i].checked_sub(1).map(|i| Policy::ALL[i]),
            reset: OnReset::Stop,
            nested: false,
            iommu: crate::GuestIommu::None,
        });
        let macs = macs.into_iter().map(|[b, c, d, e, f]| Mac([2, b, c, d, e, f])).collect();
        let uplink = interfaces.first().map(|one| one.switch.clone());
        let uplink = uplink.map(|to| Network { nic: 254, vfs: None, macs: vec![], uplink: Some(to), coalesce: Coalesce::Off });
        let network = Network { nic: 255, vfs: Some(64), macs, uplink: None, coalesce: Coalesce::Off };
        let networks = [network].into_iter().chain(uplink).collect();
        let host = Host {
            iommu_faults: Protection::ALL[protection].1,
            without_remapping: WithoutRemapping::ALL[without].1,
            screen: screen.filter(|vm| *vm < vms.len() as u32),
            at_end: AtEnd::ALL[at_end].1,
            whole_turns: screen.is_some(),
            moving: crate::Moving::Never,
        };
        Plan { vms: vms.collect(), networks, sidecores: (900..916).collect(), slice_us, host }
    }
}

fn one(kernel: &[u8]) -> Plan<Vec<u8>> {
    Plan::new(vec![Vm {
        limit: crate::Limit::default(),
        name: "a".into(),
        cpus: vec![1],
        weight: 100,
        memory: 64 << 20,
        kernel: kernel.to_vec(),
        initrd: None,
        cmdline: String::new(),
        devices: vec![],
        disks: vec![],
        interfaces: vec![],
        interrupts: None,
        reset: OnReset::Stop,
        nested: false,
        iommu: crate::GuestIommu::None,
    }])
}

/// An image around any plan, checked or not, with a right checksum.
fn forge(plan: &Plan, length: usize) -> Vec<u8> {
    let plan = postcard::to_allocvec(plan).unwrap();
    let mut image = MAGIC.to_vec();
    image.extend(VERSION.to_le_bytes());
    image.extend((plan.len() as u32).to_le_bytes());
    image.extend((length as u64).to_le_bytes());
    image.extend([0; 4]);
    let sum = crc32(&[&image, &plan]);
    image.extend(sum.to_le_bytes());
    image.extend(plan);
    image.resize(length, 0);
    image
}

#[test]
fn the_checksum_is_the_usual_one() {
    assert_eq!(crc32(&[b"1234", b"56789"]), 0xCBF4_3926);
}

#[test]
fn equal_kernels_are_stored_once() {
    let mut plan = one(&[7; 5000]);
    let mut second = plan.vms[0].clone();
    second.name = "b".into();
    second.cpus = vec![2];
    plan.vms.push(second);
    let image = build(&plan).unwrap();
    let parsed = parse(&image).unwrap().plan;
    assert_eq!(parsed.vms[0].kernel, parsed.vms[1].kernel);
    assert_eq!(image.len(), 4096 + 5000);
}

#[test]
fn each_vm_finds_its_own_kernel_and_its_initrd_if_it_has_one() {
    let mut plan = one(&[7; 5000]);
    let mut second = Vm { kernel: vec![8; 10], initrd: Some(vec![9; 4097]), ..plan.vms[0].clone() };
    second.name = "b".into();
    second.cpus = vec![2];
    plan.vms.push(second);
    let image = build(&plan).unwrap();
    let image = parse(&image).unwrap();
    let [a, b] = &image.plan.vms[..] else { panic!("two VMs") };
    assert_eq!((image.kernel(a), image.initrd(a)), (&[7; 5000][..], None));
    assert_eq!((image.kernel(b), image.initrd(b)), (&[8; 10][..], Some(&[9; 4097][..])));
}

fn with_disk(size: u64, image: &[u8]) -> Plan<Vec<u8>> {
    let mut plan = one(&[7; 5000]);
    plan.sidecores = vec![2];
    plan.vms[0].disks.push(Disk {
        size,
        backing: Backing::Ram,
        read_only: true,
        serial: "s".into(),
        queues: 3,
        image: Some(image.to_vec()),
        control: crate::Control::default(),
    });
    plan
}

#[test]
fn a_disk_finds_what_it_holds_at_first() {
    let mut plan = with_disk(8192, &[6; 8192]);
    let empty = Disk { image: None, ..plan.vms[0].disks[0].clone() };
    plan.vms[0].disks.push(empty);
    let image = build(&plan).unwrap();
    let image = parse(&image).unwrap();
    let [held, empty] = &image.plan.vms[0].disks[..] else { panic!("two disks") };
    assert_eq!((image.disk(held), image.disk(empty)), (&[6; 8192][..], &[][..]));
    // The same bytes are stored once, whoever has them.
    assert_eq!(build(&with_disk(8192, &[7; 5000])).unwrap().len(), 4096 + 5000);
}

#[test]
fn a_part_of_a_controller_comes_out_as_it_went_in() {
    let mut plan = with_disk(8192, &[]);
    let device = DeviceName::Named { class: Class::Nvme, index: 3 };
    let backing = Backing::Part(Part { device, offset: 1 << 40 });
    plan.vms[0].disks[0] = Disk { backing, image: None, ..plan.vms[0].disks[0].clone() };
    let bytes = build(&plan).unwrap();
    assert_eq!(backing, parse(&bytes).unwrap().plan.vms[0].disks[0].backing);
}

#[test]
fn what_a_disk_holds_fits_it() {
    let error = Error::LongDisk { vm: "a".into(), disk: 0, len: 513, size: 512 };
    assert_eq!(build(&with_disk(512, &[6; 513])), Err(error.clone()));
    assert_eq!(error.to_string(), "VM `a`: the image of disk0 has 513 bytes, the disk has 512");
    let forged = with_disk(512, &[]).try_map(|_, key, _| {
        Ok::<_, ()>(Blob { offset: 4096, len: if key == "disk" { 513 } else { 1 } })
    });
    assert_eq!(parse(&forge(&forged.unwrap(), 8192)).unwrap_err(), error);
    let outside = with_disk(512, &[]).try_map(|_, key, _| {
        Ok::<_, ()>(Blob { offset: if key == "disk" { 8192 } else { 4096 }, len: 1 })
    });
    let found = parse(&forge(&outside.unwrap(), 8192)).unwrap_err();
    assert_eq!(found, Error::Blob { vm: "a".into(), key: "disk", offset: 8192, len: 1 });
}

#[test]
fn an_empty_kernel_is_refused_when_packing() {
    assert!(matches!(build(&one(&[])), Err(Error::Blob { key: "kernel", len: 0, .. })));
}

#[test]
fn its_length_is_told_by_its_first_bytes() {
    let image = build(&one(&[1, 2, 3])).unwrap();
    assert_eq!(length(&image[..24]), Some(image.len() as u64));
    assert_eq!(length(&image[..23]), None);
    assert_eq!(length(&[0; 24]), None);
}

#[test]
fn each_damage_has_its_sentence() {
    let good = build(&one(&[1, 2, 3])).unwrap();
    let error = |bytes: &[u8]| parse(bytes).unwrap_err();
    assert_eq!(error(b""), Error::Magic);
    assert_eq!(error(b"ELF"), Error::Magic);
    assert_eq!(error(&good[..20]), Error::Truncated { found: 20, stated: 32 });
    let cut = good.len() as u64 - 1;
    assert_eq!(error(&good[..good.len() - 1]), Error::Truncated { found: cut, stated: cut + 1 });
    let spoilt = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        parse(&bytes).unwrap_err()
    };
    assert_eq!(spoilt(8, 99), Error::Version(99));
    assert_eq!(spoilt(15, 1), Error::LongPlan(0x100_0000 | u64::from(good[12])));
    assert!(matches!(spoilt(33, b'z'), Error::Checksum { .. }));
    assert!(matches!(spoilt(24, 1), Error::Checksum { .. }));
}

/// 128 KiB, whoever made the plan.
#[test]
fn a_plan_of_the_greatest_length_is_the_longest_that_is_packed_and_read() {
    let mut plan = one(&[]).try_map(|_, _, _| Ok::<_, ()>(Blob { offset: 4096, len: 1 })).unwrap();
    // With as many bytes of length before it, whatever they are.
    plan.vms[0].cmdline = "x".repeat(100_000);
    let rest = (128 << 10) - postcard::to_allocvec(&plan).unwrap().len();
    plan.vms[0].cmdline.push_str(&"x".repeat(rest));
    assert_eq!(encode(&plan).map(|bytes| bytes.len()), Ok(128 << 10));
    let read = |plan: &Plan| parse(&forge(plan, 256 << 10)).unwrap_err();
    assert!(!matches!(read(&plan), Error::LongPlan(_)), "something else is wrong with it");
    plan.vms[0].cmdline.push('x');
    let long = Error::LongPlan((128 << 10) + 1);
    assert_eq!((encode(&plan), read(&plan)), (Err(long.clone()), long));
}

#[test]
fn padding_after_the_image_is_ignored() {
    let mut image = build(&one(&[1, 2, 3])).unwrap();
    image.resize(image.len() + 99, 0xAA);
    let parsed = parse(&image).unwrap();
    assert_eq!(parsed.kernel(&parsed.plan.vms[0]), [1, 2, 3]);
}

#[test]
fn blobs_must_lie_inside_on_a_page_after_the_plan() {
    let place = |offset, len| {
        let plan = one(&[]).try_map(|_, _, _| Ok::<_, ()>(Blob { offset, len })).unwrap();
        parse(&forge(&plan, 8192)).map(|image| image.kernel(&image.plan.vms[0]).len())
    };
    assert_eq!(place(4096, 4096), Ok(4096));
    let far = u64::MAX - 4095;
    for (offset, len) in
        [(0, 1), (4097, 1), (4096, 0), (4096, 4097), (8192, 1), (far, 4096), (4096, u64::MAX)]
    {
        let error = Error::Blob { vm: "a".into(), key: "kernel", offset, len };
        assert_eq!(place(offset, len), Err(error));
    }
}

#[test]
fn a_plan_that_breaks_the_rules_is_refused_whatever_made_it() {
    let mut plan = one(&[]).try_map(|_, _, _| Ok::<_, ()>(Blob { offset: 4096, len: 1 })).unwrap();
    plan.vms[0].cpus = vec![0];
    match parse(&forge(&plan, 8192)) {
        Err(Error::Check(error)) => assert_eq!(error.problem, Problem::HostCore),
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn packing_then_reading_gives_the_same(plan in plans()) {
        let image = build(&plan).unwrap();
        let parsed = parse(&image).unwrap();
        let back = parsed.plan.clone().try_map(|_, _, blob| Ok::<_, ()>(parsed.blob(blob).to_vec()));
        prop_assert_eq!(back, Ok(plan));
    }

    #[test]
    fn no_bytes_panic(bytes: Vec<u8>) {
        let _ = parse(&bytes);
    }

    #[test]
    fn no_plan_bytes_panic(plan in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut image = MAGIC.to_vec();
        image.extend(VERSION.to_le_bytes());
        image.extend((plan.len() as u32).to_le_bytes());
        image.extend(8192u64.to_le_bytes());
        image.extend([0; 4]);
        let sum = crc32(&[&image, &plan]);
        image.extend(sum.to_le_bytes());
        image.extend(plan);
        image.resize(8192, 0);
        let _ = parse(&image);
    }

    #[test]
    fn damage_is_found_or_harmless(plan in plans(), at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let mut image = build(&plan).unwrap();
        let at = at.index(image.len());
        image[at] ^= 1 << bit;
        if let Ok(parsed) = parse(&image) {
            // Only the kernels' own bytes and the gaps between them go unsummed.
            prop_assert!(at as u64 >= HEADER as u64);
            let names: Vec<_> = parsed.plan.vms.iter().map(|v| &v.name).collect();
            prop_assert_eq!(names, plan.vms.iter().map(|v| &v.name).collect::<Vec<_>>());
        }
    }
}
