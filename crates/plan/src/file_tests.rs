//! What a person may write, and what each mistake is told.

use super::*;
use crate::{
    AtEnd, Backing, Class, Coalesce, Coalescing, DeviceName, Disk, Interface, Mac, Moving, Network,
    Protection, WithoutRemapping,
};
use proptest::prelude::*;

pub(super) fn refusal(text: &str) -> String {
    parse("vm.toml", text).expect_err(text).to_string()
}

#[test]
fn everything_but_the_kernel_has_a_default() {
    let plan = parse("vm.toml", "[vm.web]\nkernel = 'k'\n").unwrap();
    let [vm] = &plan.vms[..] else { panic!("{plan:?}") };
    assert_eq!((vm.name.as_str(), vm.kernel.as_str(), vm.memory), ("web", "k", 1 << 30));
    assert_eq!((&vm.cpus[..], vm.interrupts, vm.weight), (&[1][..], None, 100));
    assert_eq!((plan.slice_us, plan.host.iommu_faults), (5_000, Protection::Elsewhere));
    assert_eq!(plan.host.without_remapping, WithoutRemapping::Refuse);
    assert_eq!(plan.host.at_end, AtEnd::Stay);
    assert!(vm.initrd.is_none() && vm.cmdline.is_empty() && vm.devices.is_empty());
}

/// Each key has a sentence; what tables have wrong together waits for them.
#[test]
fn all_that_is_wrong_is_told_in_the_order_of_lines() {
    let text = "slice = 5\n[vm.a]\ncpus = 'x'\nkernal = 'k'\n[vm.b]\nkernel = ''\nmemory = '1Q'\n\
                [network.nic0]\nvfs = 'x'\n[host]\nscreen = 'nobody'\nat_end = 'x'\nfoo = 1\n\
                [nothing]\n";
    let told: Vec<_> = crate::file::parse_all("f", text).unwrap_err();
    let lines: Vec<_> = told.iter().map(|one| one.line).collect();
    assert_eq!(lines, [1, 3, 4, 6, 7, 9, 12, 13, 14], "{told:?}");
    assert_eq!(parse("f", text).unwrap_err(), told[0]);
    let alone = "[vm.a]\nkernel = 'k'\n[host]\nscreen = 'nobody'\n";
    assert_eq!(crate::file::parse_all("f", alone).unwrap_err().len(), 1);
}

#[test]
fn every_key_is_read() {
    let plan = parse(
        "vm.toml",
        r#"
        slice = "500us"

        [host]
        iommu_faults = "limit"
        without_interrupt_remapping = "trust-every-guest"
        screen = "web"
        at_end = "power-off"
        sidecores = [3, 0x4]
        whole_turns = true
        sidecore_latency = "1ms"

        [vm.web]
        cpus = [0x2]
        weight = 250
        limit = { iops = 20000, rate = "100M/s" }
        memory = "512M"
        kernel = "vmlinuz"
        initrd = "initrd.img"
        cmdline = "console=ttyS0"
        devices = ["nvme0", "00:04.0", "nic1.vf2"]
        interrupts = "eli"
        reset = "stop"
        iommu = "virtio"
        disk = { size = "64M", backing = "ram", read_only = true, serial = "s 1", queues = 2, image = "i", polled = false, packed = true, coalesce = { in_flight = 2, epoch = "5ms", deferral = "0us", map = "adapted" } }
        network = { switch = "lan", mac = "02:00:00:00:00:09", vlan = 7, queues = 3, mtu = 9000, polled = false, rate = "10M/s", flood = "1M/s" }

        [network.nic1]
        vfs = 4
        macs = ["02:00:00:00:00:01", "02:00:00:00:00:02"]
        coalesce = { rate = 4000, map = "adapted" }
        "#,
    );
    let macs = [1, 2].map(|last| Mac([2, 0, 0, 0, 0, last])).into();
    let coalesce = Coalesce::On(Coalescing { rate: 4_000, adapted: true, ..Coalescing::USUAL });
    let network = Network { nic: 1, vfs: Some(4), macs, uplink: None, coalesce };
    let vm = Vm {
        name: "web".into(),
        cpus: vec![2],
        weight: 250,
        limit: Limit { iops: Some(20_000), rate: Some(100 << 20) },
        memory: 512 << 20,
        kernel: "vmlinuz".into(),
        initrd: Some("initrd.img".into()),
        cmdline: "console=ttyS0".into(),
        devices: vec![
            DeviceName::Named { class: Class::Nvme, index: 0 },
            DeviceName::Address { segment: 0, bus: 0, device: 4, function: 0 },
            DeviceName::Virtual { nic: 1, function: 2 },
        ],
        disks: vec![Disk {
            size: 64 << 20,
            backing: Backing::Ram,
            read_only: true,
            serial: "s 1".into(),
            queues: 2,
            image: Some("i".into()),
            control: crate::Control {
                kicks: true,
                packed: true,
                coalesce: crate::Coalesce::On(crate::Coalescing {
                    in_flight: 2,
                    rate: 2_000,
                    epoch_us: 5_000,
                    deferral_us: 0,
                    adapted: true,
                }),
                latency_us: 0,
            },
        }],
        interfaces: vec![Interface {
            switch: "lan".into(),
            mac: Mac([2, 0, 0, 0, 0, 9]),
            vlan: Some(7),
            queues: 3,
            mtu: 9000,
            rate: Some(10 << 20),
            flood: Some(1 << 20),
            kicks: true,
        }],
        interrupts: Some(Policy::Eli),
        reset: OnReset::Stop,
        nested: false,
        iommu: crate::GuestIommu::Virtio,
    };
    let host = Host {
        iommu_faults: Protection::Limit,
        without_remapping: WithoutRemapping::TrustEveryGuest,
        screen: Some(0),
        at_end: AtEnd::PowerOff,
        whole_turns: true,
        moving: Moving::ByLoad(1_000),
    };
    let (vms, networks, sidecores) = (vec![vm], vec![network], vec![3, 4]);
    assert_eq!(plan, Ok(Plan { vms, networks, sidecores, slice_us: 500, host }));
}

#[test]
fn a_vm_may_run_guests_of_its_own_where_the_file_says_so() {
    let nested = |says: &str| {
        parse("f", &format!("[vm.web]\nkernel='k'\ncpus=[1]\n{says}\n"))
            .map(|plan| plan.vms[0].nested)
    };
    assert_eq!(
        [nested(""), nested("nested=true"), nested("nested=false")].map(Result::unwrap),
        [false, true, false]
    );
    assert!(nested("nested='yes'").is_err());
}

#[test]
fn the_screen_is_everybody_s_or_one_s() {
    let screen = |says: &str| {
        let vms = "[vm.web]\nkernel='k'\n[vm.db]\nkernel='k'\n";
        parse("f", &format!("[host]\n{says}\n{vms}")).map(|plan| plan.host.screen)
    };
    assert_eq!(screen(""), Ok(None));
    assert_eq!(screen("screen = 'all'"), Ok(None));
    assert_eq!(screen("screen = 'db'"), Ok(Some(1)));
    let refused = |says| screen(says).unwrap_err().to_string();
    assert_eq!(
        refused("screen = 'wep'"),
        "f:2: [host] screen: \"wep\" is no VM of this plan; did you mean `web`?"
    );
    assert_eq!(
        refused("screen = 1"),
        "f:2: [host] screen: this is a number, but it has to be a VM's name in quotes, or \"all\""
    );
}

#[test]
fn who_names_no_core_gets_one_that_nobody_has() {
    let vm = |name, cpus| format!("[vm.{name}]\n{cpus}\nkernel='k'\n");
    let file = [vm("a", ""), vm("b", "cpus=[1, 3]"), vm("c", ""), vm("d", "cpus=[3]")].concat();
    let plan = parse("f", &file).unwrap();
    let cpus: Vec<_> = plan.vms.into_iter().map(|vm| vm.cpus).collect();
    assert_eq!(cpus, [vec![2], vec![1, 3], vec![4], vec![3]]);
}

#[test]
fn sidecores_that_are_counted_come_after_the_vms_cores() {
    let vms = "[vm.a]\nkernel='k'\n[vm.b]\ncpus=[2, 4]\nkernel='k'\n";
    let cores = |says: &str| {
        let plan = parse("f", &format!("[host]\nsidecores = {says}\n{vms}")).unwrap();
        (plan.vms[0].cpus.clone(), plan.sidecores)
    };
    assert_eq!(cores("0"), (vec![1], vec![]));
    assert_eq!(cores("2"), (vec![1], vec![3, 5]));
    // A VM that names no core gets none of the sidecores'.
    assert_eq!(cores("[1, 7]"), (vec![3], vec![1, 7]));
}

#[test]
fn a_disk_has_a_queue_for_each_vcpu_unless_it_says_how_many() {
    let queues = |cpus: &str, says: &str| {
        let text =
            format!("[vm.a]\nkernel='k'\ndisk=[{{size='1M' {says}}}, {{size='1M'}}]\n{cpus}\n");
        let plan = parse("f", &format!("[host]\nsidecores=[1]\n{text}")).unwrap();
        [0, 1].map(|disk| plan.vms[0].disks[disk].queues)
    };
    assert_eq!(queues("", ""), [1, 1]);
    assert_eq!(queues("cpus=[2, 3, 3]", ", queues=7"), [7, 3]);
    let many: Vec<u32> = (2..40).collect();
    assert_eq!(queues(&format!("cpus={many:?}"), ", queues=1"), [1, 16]);
}

#[test]
fn vms_keep_the_order_of_the_file() {
    let plan = parse("f", "[vm.z]\nkernel='k'\n[vm.a]\ncpus=[2]\nkernel='k'\n").unwrap();
    assert_eq!(plan.vms.iter().map(|v| v.name.as_str()).collect::<Vec<_>>(), ["z", "a"]);
}

/// A file may come from somebody else: what it says is shown, not done.
#[test]
fn control_characters_are_shown_escaped() {
    let cases = [
        ("[vm.a]\nmemory = \"1\\nG\"\n", "[vm.a] memory: `1\\nG` is no size;"),
        ("[vm.a]\ndevices = [\"\\u001b[2J\"]\n", "[vm.a] devices: `\\u{1b}[2J` names no device;"),
        (
            "[vm.a]\ninterrupts = \"tr\\nap\"\n",
            "[vm.a] interrupts: \"tr\\nap\" is no interrupt policy;",
        ),
        ("[vm.\"a\\nb\"]\nmemory = 1\n", "[vm.a\\nb] memory: this is a number,"),
        ("[vm.\"ä\"]\nmemory = '1µ'\n", "[vm.ä] memory: `1µ` is no size;"),
    ];
    for (text, sentence) in cases {
        let refusal = refusal(text);
        assert!(refusal.contains(sentence), "{refusal}");
        assert!(!refusal.contains(char::is_control), "{refusal:?}");
    }
}

/// What a file says fills no screen.
#[test]
fn long_words_are_cut() {
    let long = "9".repeat(5_000);
    let cases = [
        format!("[vm.a]\nx{long} = 1\n"),
        format!("[vm.a]\ncpus = [{long}]\n"),
        format!("[vm.a]\nweight = {long}\n"),
        format!("[vm.a]\nmemory = '{long}'\n"),
        format!("[vm.a]\nmemory = '{long}x'\n"),
        format!("[vm.a]\ninterrupts = '{long}'\n"),
        format!("[vm.a]\nreset = '{long}'\n"),
        format!("[vm.a]\ndevices = ['{long}']\n"),
        format!("[vm.a{long}]\nkernel = 'k'\n"),
        format!("[vm.a{long}]\nkernel = 1\n"),
        format!("[vm.a{long}]\n[vm.a{long}]\n"),
        format!("[network.{long}]\n"),
        format!("[network.nic0]\nvfs = {long}\n"),
        format!("[network.nic0]\nmacs = ['{long}']\n"),
        format!("slice = '{long}'\n"),
        format!("[host]\niommu_faults = '{long}'\n"),
        format!("[host]\nwithout_interrupt_remapping = '{long}'\n"),
        format!("[host]\nat_end = '{long}'\n"),
        format!("[host]\nsidecores = {long}\n"),
        format!("[vm.a]\ndisk = {{ backing = '{long}' }}\n"),
        format!("[vm.a]\ndisk = {{ queues = {long} }}\n"),
    ];
    for text in cases {
        let refusal = refusal(&text);
        assert!(refusal.contains('…') && refusal.chars().count() < 300, "{refusal}");
    }
}

proptest! {
    #[test]
    fn no_text_panics(text: String) {
        let _ = parse("f", &text);
    }

    #[test]
    fn no_value_panics(key in 0..KEYS.len(), value in "[\\[\\]{}\"'0-9a-z,.\\- ]{0,30}") {
        let _ = parse("f", &format!("[vm.a]\n{} = {value}\n", KEYS[key]));
    }

    #[test]
    fn no_disk_panics(key in 0..DISK_KEYS.len(), value in "[\\[\\]{}\"'0-9a-z,.\\- ]{0,30}") {
        let _ = parse("f", &format!("[vm.a]\ndisk = {{ {} = {value} }}\n", DISK_KEYS[key]));
    }

    #[test]
    fn no_network_panics(nic: u8, vfs in "[0-9x]{0,4}", macs in prop::collection::vec("[0-9a-f:]{0,18}", 0..4)) {
        let text = format!("[vm.a]\nkernel='k'\n[network.nic{nic}]\nvfs = {vfs}\nmacs = {macs:?}\n");
        let _ = parse("f", &text);
    }

    #[test]
    fn sentences_stay_on_one_line(text in "[\\[\\]{}\"'=\n a-z0-9.]{0,60}") {
        if let Err(e) = parse("f", &text) {
            prop_assert!(!e.to_string().contains('\n'), "{}", e);
        }
    }
}
