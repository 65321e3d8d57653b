//! What `exitless check` says of sidecores, and of the disks and networks that they serve.

use crate::{
    load::File,
    table::{rounded, thousands},
};
use plan::{
    Backing, Class, Coalesce, Coalescing, Control, DEFAULT_MTU, DeviceName, Disk, Escaped,
    Interface, Micros, Moving, Plan, Shared, Size, Vm,
};
use std::collections::BTreeMap;

/// Who serves paravirtual devices, a line for each of them, and who reaches whom. What a plan says
/// may be anybody's.
pub fn lines(plan: &Plan<File>) -> String {
    let mut text = sidecores(plan);
    if plan.host.whole_turns {
        text += "Each queue is served to its end or 512K, whoever waits (whole_turns).\n";
    }
    text += &moving(plan);
    // Disks of the VMs before.
    let mut first = 0;
    for vm in &plan.vms {
        let disks = vm.disks.iter().enumerate().map(|(i, one)| {
            let core = core_of_disk(plan, first + i).filter(|_| !plan.moves(one));
            disk(vm, i, one, core)
        });
        let interfaces = vm.interfaces.iter().enumerate().map(|(i, one)| interface(vm, i, one));
        text.extend(disks.chain(interfaces));
        text += &same_serials(vm);
        text += &limit(vm);
        first += vm.disks.len();
    }
    text.extend(plan.switches().into_iter().map(|name| switch(plan, name)));
    text
}

fn sidecores(plan: &Plan<File>) -> String {
    let cores: Vec<_> = plan.sidecores.iter().map(u32::to_string).collect();
    let has_iommu = plan.vms.iter().any(|vm| vm.iommu != plan::GuestIommu::None);
    let there = [
        ("disks", plan.disks().next().is_some()),
        ("networks", plan.interfaces().next().is_some()),
        ("VMs' own IOMMUs", has_iommu),
    ];
    let there: Vec<_> = there.iter().filter(|(_, is)| *is).map(|(kind, _)| *kind).collect();
    let kinds = match &there[..] {
        [] => None,
        [one] => Some((*one).to_owned()),
        [all @ .., last] => Some(format!("{} and {last}", all.join(", "))),
    };
    let kinds = kinds.as_deref();
    match (&cores[..], kinds) {
        ([], _) => String::new(),
        ([one], None) => format!("Core {one} is a sidecore and has nothing to serve.\n"),
        ([one], Some(kinds)) => {
            format!("Core {one} is a sidecore: it serves {kinds} and runs no guest.\n")
        }
        (cores, kinds) => {
            let serve =
                if kinds.is_none() { "and have nothing to serve" } else { "that run no guest" };
            let line = format!("Cores {} are sidecores {serve}.\n", cores.join(", "));
            if kinds.is_none() { line } else { line + &idle(plan) }
        }
    }
}

/// Those of several sidecores that nothing falls to, now or later.
fn idle(plan: &Plan<File>) -> String {
    let served = plan.sidecores.iter().zip(plan.served_queues());
    let idle: Vec<_> =
        served.filter(|(_, queues)| *queues == 0).map(|(core, _)| core.to_string()).collect();
    match &idle[..] {
        [] => String::new(),
        [one] => {
            format!("Core {one} has nothing to serve: there are more sidecores than need be.\n")
        }
        cores => format!(
            "Cores {} have nothing to serve: there are more sidecores than need be.\n",
            cores.join(", ")
        ),
    }
}

/// How the host has a controller's functions hold interrupts back, if it does.
pub fn held_back(shared: Shared<'_>) -> String {
    let Coalesce::On(Coalescing { in_flight, rate, epoch_us, adapted, .. }) = shared.coalesce
    else {
        return String::new();
    };
    let map = if adapted { ", by a map that is adapted" } else { "" };
    format!(
        "nic{}: its functions hold interrupts back from {in_flight} in flight and {} frames a second on{map}, as the host sets their throttle each {}; what their drivers set holds if it is longer.\n",
        shared.nic,
        thousands(rate.into()),
        Micros(epoch_us)
    )
}

/// A line for each VM with devices whose throttles are their drivers' to set: a whole device is its
/// guest's, its interrupts' throttle with it (NVMe's feature 08h is set by the admin queue).
pub fn by_drivers(plan: &Plan<File>) -> String {
    let is_held_back = |device: &DeviceName| match device {
        DeviceName::Virtual { nic, .. } => {
            plan.shared_nic(*nic).is_some_and(|shared| shared.coalesce != Coalesce::Off)
        }
        DeviceName::Named { class, .. } => !matches!(class, Class::Nvme | Class::Nic),
        DeviceName::Address { .. } => false,
    };
    let line = |vm: &Vm<File>| {
        let own = vm.devices.iter().filter(|device| !is_held_back(device));
        let names: Vec<_> = own.map(ToString::to_string).collect();
        let (holds, drivers) = match names.len() {
            0 => return String::new(),
            1 => ("holds", "its own driver says"),
            _ => ("hold", "their own drivers say"),
        };
        format!("{}: {} {holds} interrupts back as {drivers}.\n", vm.name, names.join(", "))
    };
    plan.vms.iter().map(line).collect()
}

/// The most that a VM is served, if there is a limit.
fn limit(vm: &Vm<File>) -> String {
    let requests = vm.limit.iops.map(|iops| format!("{} requests", thousands(iops)));
    let bytes = vm.limit.rate.map(|rate| Size(rate).to_string());
    let limits: Vec<_> = requests.into_iter().chain(bytes).collect();
    match limits.is_empty() {
        true => String::new(),
        false => format!("{} is served at most {} a second.\n", vm.name, limits.join(" and ")),
    }
}

/// Which disks go to other sidecores, and why.
fn moving(plan: &Plan<File>) -> String {
    let first = plan.sidecores.first().copied().unwrap_or_default();
    let networks = plan.interfaces().count() > 0;
    let (disks, all) = match networks {
        true => ("the disks and networks, but for disks", "Disks and switches"),
        false => ("the disks, but for those", "Disks"),
    };
    match plan.host.moving {
        Moving::Never => String::new(),
        Moving::ByLoad(us) => format!(
            "Core {first} serves {disks} on a controller; while they wait for longer than {} for a turn, the other sidecores help, and else they sleep.\n",
            Micros(us)
        ),
        Moving::Rounds(turns) => {
            format!(
                "{all} go on to the next sidecore after {turns} turns of 4K (sidecore_rounds).\n"
            )
        }
    }
}

/// The core that serves the disk of this number, of all disks in the plan's order.
fn core_of_disk(plan: &Plan<File>, number: usize) -> Option<u32> {
    plan.sidecores.get(plan.sidecore_of_disk(number)?).copied()
}

/// A line for each serial number that two disks of a VM have.
fn same_serials(vm: &Vm<File>) -> String {
    let mut disks: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (index, disk) in vm.disks.iter().enumerate().filter(|(_, disk)| !disk.serial.is_empty()) {
        disks.entry(&disk.serial).or_default().push(format!("disk{index}"));
    }
    let same = disks.into_iter().filter(|(_, disks)| disks.len() > 1);
    let line = |(serial, disks): (&str, Vec<String>)| {
        let (name, disks) = (&vm.name, disks.join(", "));
        format!(
            "{name}: {disks} have the same serial number, `{}`: its guest can't tell them apart by it.\n",
            Escaped(serial)
        )
    };
    same.map(line).collect()
}

/// `core` is where it is always served, if it stays.
fn disk(vm: &Vm<File>, index: usize, disk: &Disk<File>, core: Option<u32>) -> String {
    let (name, size, queues) = (&vm.name, Size(disk.size), disk.queues);
    let kind = match disk.backing {
        Backing::Ram => "in memory".to_owned(),
        Backing::Null => "that holds nothing".to_owned(),
        Backing::Part(part) => match part.offset {
            0 => format!("on {}, from its beginning on", part.device),
            offset => format!("on {}, from {} on", part.device, Size(offset)),
        },
    };
    let mut text = format!("{name}: disk{index} is a disk of {size} {kind}, ");
    text += &if queues == 1 { "1 queue".to_owned() } else { format!("{queues} queues") };
    text += if disk.read_only { ", read-only" } else { "" };
    text += &controls(&disk.control);
    if let Some(image) = &disk.image {
        let file = image.path.file_name().unwrap_or_default().to_string_lossy();
        let bytes = rounded(image.bytes.len() as u64);
        text += &format!(", begins with {} ({bytes})", Escaped(&file));
    }
    text += &core.map_or(String::new(), |core| format!(", served on core {core}"));
    text + ".\n"
}

/// What is different about how a disk is served.
fn controls(control: &Control) -> String {
    let mut text = String::new();
    if control.latency_us > 0 {
        text += &format!(", {} for each request", Micros(control.latency_us));
    }
    text += if control.kicks { ", each kick an exit" } else { "" };
    text += if control.packed { ", packed rings too" } else { "" };
    match control.coalesce {
        Coalesce::Off => text + ", no interrupt withheld",
        Coalesce::On(Coalescing::USUAL) => text,
        Coalesce::On(Coalescing { in_flight, rate, epoch_us, deferral_us, adapted }) => {
            let (epoch, deferral) = (Micros(epoch_us), Micros(deferral_us));
            let rate = thousands(rate.into());
            let map = if adapted { ", by a map that is adapted" } else { "" };
            text + &format!(
                ", interrupts withheld from {in_flight} in flight and {rate} I/Os a second on{map} \
                 (epochs of {epoch}, {deferral} between those for a vCPU that waits for its core)"
            )
        }
    }
}

fn interface(vm: &Vm<File>, index: usize, interface: &Interface) -> String {
    let Interface { switch, mac, queues, mtu, .. } = interface;
    let mut text = format!("{}: network{index} has the address {mac}, {queues} ", vm.name);
    text += if *queues == 1 { "pair of queues" } else { "pairs of queues" };
    if *mtu != DEFAULT_MTU {
        text += &format!(", an MTU of {mtu}");
    }
    if let Some(rate) = interface.rate {
        text += &format!(", sends {}/s at most", Size(rate));
    }
    if let Some(flood) = interface.flood {
        text += &format!(", {}/s of copies for several at most", Size(flood));
    }
    text + &format!(", and is at switch {switch}.\n")
}

/// Who reaches whom: those of each VLAN.
fn switch(plan: &Plan<File>, name: &str) -> String {
    let mut vlans: BTreeMap<Option<u16>, Vec<(String, u16)>> = BTreeMap::new();
    for vm in &plan.vms {
        let own = vm.interfaces.iter().enumerate().filter(|(_, one)| one.switch == name);
        for (index, one) in own {
            vlans
                .entry(one.vlan)
                .or_default()
                .push((format!("{} network{index}", vm.name), one.mtu));
        }
    }
    let place = plan.sidecore_of_switch(name);
    let core = place.and_then(|place| plan.sidecores.get(place)).copied().unwrap_or_default();
    let on = match plan.host.moving {
        Moving::Never => format!(", on core {core}"),
        Moving::ByLoad(_) | Moving::Rounds(_) => String::new(),
    };
    let uplink = plan.uplink_of(name);
    let line = |(vlan, ports): (Option<u16>, Vec<(String, u16)>)| {
        let differ = ports.iter().any(|(_, mtu)| Some(*mtu) != ports.first().map(|one| one.1));
        let mtus: Vec<_> = ports.iter().map(|(port, mtu)| format!("{port} {mtu}")).collect();
        let ports: Vec<_> = ports.into_iter().map(|(port, _)| port).collect();
        let vlan = vlan.map_or(String::new(), |vlan| format!(", VLAN {vlan}"));
        let reach = match ports.len() {
            1 if uplink.is_some() => "is alone here",
            1 => "is alone and reaches nobody",
            _ => "reach each other",
        };
        let line = format!("Switch {name}{vlan}{on}: {} {reach}.\n", ports.join(", "));
        let note = format!("Switch {name}{vlan}: the MTUs differ: {}.\n", mtus.join(", "));
        if differ { line + &note } else { line }
    };
    let wire = uplink.map(|device| {
        format!("Switch {name} has {device} as its uplink: its ports reach what is on that wire.\n")
    });
    vlans.into_iter().map(line).chain(wire).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load;
    use std::fs;

    #[test]
    fn who_holds_interrupts_back_is_said() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("k"), load::tests::tiny_kernel()).unwrap();
        let file = dir.path().join("vm.toml");
        let shown = |coalesce: &str| {
            let vm = "[vm.a]\nkernel='k'\ndevices=['nic0.vf0','nvme0','sata0']\n";
            fs::write(&file, format!("{vm}[network.nic0]\nvfs=1\n{coalesce}\n")).unwrap();
            let plan = load::plan(&file).unwrap();
            plan.shared_nics().map(held_back).collect::<String>() + &by_drivers(&plan)
        };
        assert_eq!(
            shown(""),
            "a: nic0.vf0, nvme0 hold interrupts back as their own drivers say.\n"
        );
        assert_eq!(
            shown("coalesce = { in_flight = 8, map = 'adapted' }"),
            "nic0: its functions hold interrupts back from 8 in flight and 2,000 frames a second on, \
             by a map that is adapted, as the host sets their throttle each 200ms; what their \
             drivers set holds if it is longer.\n\
             a: nvme0 holds interrupts back as its own driver says.\n"
        );
    }

    #[test]
    fn sidecores_and_what_they_serve_are_shown() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("k"), load::tests::tiny_kernel()).unwrap();
        fs::write(dir.path().join("i\u{1b}[2J"), [7; 1536]).unwrap();
        let file = dir.path().join("vm.toml");
        let shown = |says: &str, disk: &str| {
            let text = format!("[host]\nsidecores={says}\n[vm.a]\nkernel='k'\n{disk}");
            fs::write(&file, text).unwrap();
            load::plan(&file).map(|plan| lines(&plan))
        };
        let disks = "disk=[{size='63M',queues=3,image=\"i\\u001b[2J\"},{size='1G',backing='null',read_only=true}]\n";
        let text = shown("1", disks).unwrap();
        let notes: Vec<_> = text.lines().collect();
        assert_eq!(
            notes,
            [
                "Core 2 is a sidecore: it serves disks and runs no guest.",
                "a: disk0 is a disk of 63M in memory, 3 queues, begins with i\\u{1b}[2J (1.5K), served on core 2.",
                "a: disk1 is a disk of 1G that holds nothing, 1 queue, read-only, served on core 2.",
            ]
        );
        let idle = shown("[3, 2]", "").unwrap();
        assert!(idle.contains("Cores 3, 2 are sidecores and have nothing to serve.\n"), "{idle}");
        let long = shown("1", "disk=[{size='2K'},{size='1K',image=\"i\\u001b[2J\"}]\n");
        let error = format!("{:#}", long.unwrap_err());
        let said = "has 1536 bytes, the disk only 1024 bytes; give it size = \"2K\"";
        assert!(error.contains("vm.toml:5: [vm.a] disk1 image: "), "{error}");
        assert!(error.ends_with(said), "{error}");
        let some = shown("[3, 2, 4]", "disk=[{size='2M',serial='s'},{size='4M',serial='s'}]\n");
        let some = some.unwrap();
        for said in [
            "\nCore 4 has nothing to serve: there are more sidecores than need be.\n",
            "\na: disk0 is a disk of 2M in memory, 1 queue, served on core 3.\n",
            "\na: disk1 is a disk of 4M in memory, 1 queue, served on core 2.\n",
            "\na: disk0, disk1 have the same serial number, `s`: its guest can't tell them apart by it.\n",
        ] {
            assert!(some.contains(said), "{some}");
        }
    }

    #[test]
    fn what_is_for_measuring_is_told() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("k"), load::tests::tiny_kernel()).unwrap();
        let file = dir.path().join("vm.toml");
        let shown = |coalesce: &str| {
            let disk = "{size='1G',backing='null',latency='20ms',polled=false,coalesce=";
            let host = "[host]\nsidecores=1\nwhole_turns=true\n";
            let text = format!("{host}[vm.a]\nkernel='k'\ndisk={disk}{coalesce}}}\n");
            fs::write(&file, text).unwrap();
            lines(&load::plan(&file).unwrap())
        };
        let text = shown("false");
        let last = "a: disk0 is a disk of 1G that holds nothing, 1 queue, 20ms for each request, each kick an exit, no interrupt withheld, served on core 2.\n";
        assert!(text.contains(last) && text.contains("whoever waits (whole_turns).\n"), "{text}");
        let text = shown("{in_flight=2}");
        let last = "exit, interrupts withheld from 2 in flight and 2,000 I/Os a second on (epochs of 200ms, 100us between those for a vCPU that waits for its core), served on core 2.\n";
        assert!(text.contains(last), "{text}");
    }

    #[test]
    fn what_a_vm_is_served_at_most_is_told() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("k"), load::tests::tiny_kernel()).unwrap();
        let file = dir.path().join("vm.toml");
        for (limit, wanted) in [
            ("", None),
            ("{ iops = 20000 }", Some("a is served at most 20,000 requests a second.\n")),
            ("{ rate = '3M/s' }", Some("a is served at most 3M a second.\n")),
            (
                "{ iops = 5, rate = '1K/s' }",
                Some("a is served at most 5 requests and 1K a second.\n"),
            ),
        ] {
            let text = format!(
                "[host]\nsidecores=1\n[vm.a]\nkernel='k'\ndisk={{size='1M'}}\n{}\n",
                if limit.is_empty() { String::new() } else { format!("limit={limit}") }
            );
            fs::write(&file, text).unwrap();
            let lines = lines(&load::plan(&file).unwrap());
            assert_eq!(lines.contains("at most"), wanted.is_some(), "{lines}");
            assert!(wanted.is_none_or(|wanted| lines.ends_with(wanted)), "{lines}");
        }
    }

    #[test]
    fn what_makes_disks_move_is_told() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("k"), load::tests::tiny_kernel()).unwrap();
        let file = dir.path().join("vm.toml");
        let shown = |says: &str| {
            let host = format!("[host]\nsidecores=2\n{says}\n");
            fs::write(&file, format!("{host}[vm.a]\nkernel='k'\ndisk={{size='1G'}}\n")).unwrap();
            lines(&load::plan(&file).unwrap())
        };
        let text = shown("sidecore_latency='50us'");
        let said = "\nCore 2 serves the disks, but for those on a controller; while they wait for longer than 50us for a turn, the other sidecores help, and else they sleep.\n";
        assert!(text.contains(said), "{text}");
        assert!(!text.contains("served on core") && !text.contains("nothing to serve"), "{text}");
        let text = shown("sidecore_rounds=3");
        assert!(text.contains("after 3 turns of 4K (sidecore_rounds).\n"), "{text}");
    }

    #[test]
    fn who_reaches_whom_is_told() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("k"), load::tests::tiny_kernel()).unwrap();
        let file = dir.path().join("vm.toml");
        let text = "[host]\nsidecores=2\n
[vm.a]\nkernel='k'\nnetwork=[{switch='lan'},{switch='store',vlan=7,queues=2,mtu=9000,rate='10M/s',flood='1M/s'}]
[vm.b]\nkernel='k'\nnetwork={switch='lan',mtu=9000}
[vm.c]\nkernel='k'\nnetwork={switch='lan', vlan=7, mac='02:00:00:00:00:01'}\n";
        fs::write(&file, text).unwrap();
        let told = lines(&load::plan(&file).unwrap());
        let macs: Vec<_> = told.lines().skip(1).take(3).map(|l| &l[28..45]).collect();
        assert_eq!(
            told,
            format!(
                "Cores 4, 5 are sidecores that run no guest.
a: network0 has the address {}, 1 pair of queues, and is at switch lan.
a: network1 has the address {}, 2 pairs of queues, an MTU of 9000, sends 10M/s at most, 1M/s of copies for several at most, and is at switch store.
b: network0 has the address {}, 1 pair of queues, an MTU of 9000, and is at switch lan.
c: network0 has the address 02:00:00:00:00:01, 1 pair of queues, and is at switch lan.
Switch lan, on core 4: a network0, b network0 reach each other.
Switch lan: the MTUs differ: a network0 1500, b network0 9000.
Switch lan, VLAN 7, on core 4: c network0 is alone and reaches nobody.
Switch store, VLAN 7, on core 5: a network1 is alone and reaches nobody.
",
                macs[0], macs[1], macs[2]
            )
        );
    }
}
