//! Each rule of a plan, broken alone.

use super::*;
use crate::sample::vm;
use crate::{Mac, Policy, Vm};
use proptest::prelude::*;

fn two() -> Plan<()> {
    Plan::new(vec![vm("web", 1), vm("db", 2)])
}

/// The sentence that a plan gets after `spoil` changed its second VM.
fn sentence(spoil: impl FnOnce(&mut Vm<()>)) -> String {
    let mut plan = two();
    spoil(&mut plan.vms[1]);
    plan.check().expect_err("the spoilt plan must be refused").to_string()
}

#[test]
fn a_sound_plan_passes() {
    assert_eq!(two().check(), Ok(()));
}

/// Each limit as it is written, in one plan that just keeps to all of them.
#[test]
fn what_just_keeps_to_every_limit_passes() {
    let mut plan = two();
    let vm = &mut plan.vms[0];
    vm.name = "a-b_c-d_e-f_g-h_i-j_k-l_m-n_o-pQ".into();
    assert_eq!(vm.name.len(), 32);
    vm.cpus = (960..=1023).collect();
    vm.weight = 1;
    vm.memory = 64 << 20;
    vm.cmdline = "x".repeat(2047);
    let address = |bus| DeviceName::Address { segment: 0, bus, device: 31, function: 7 };
    vm.devices = (0..31).map(address).collect();
    let vm = &mut plan.vms[1];
    (vm.name, vm.weight, vm.memory) = ("0".into(), 10_000, 254 << 30);
    let macs = |nic, count: u8| (0..count).map(|last| Mac([2, 0, 0, 0, nic, last])).collect();
    plan.networks = vec![
        Network { nic: 0, vfs: Some(64), macs: macs(0, 64), uplink: None, coalesce: Coalesce::Off },
        Network { nic: 1, vfs: None, macs: macs(1, 64), uplink: None, coalesce: Coalesce::Off },
    ];
    assert_eq!(plan.check(), Ok(()));
    plan.networks[1].macs = macs(1, 65);
    let problem = Problem::ManyMacs { macs: 65, vfs: 64 };
    assert_eq!(plan.check().unwrap_err().problem, problem);
}

#[test]
fn a_vm_with_guests_of_its_own_has_its_cores_and_its_interrupts() {
    for interrupts in [None, Some(Policy::Direct)] {
        let mut plan = two();
        (plan.vms[1].nested, plan.vms[1].interrupts) = (true, interrupts);
        assert_eq!(plan.check(), Ok(()));
    }
    let shared = sentence(|vm| (vm.nested, vm.cpus) = (true, vec![1]));
    assert!(shared.contains("nested: other vCPUs run on core 1, too"), "{shared}");
    let policy = sentence(|vm| (vm.nested, vm.interrupts) = (true, Some(Policy::Eli)));
    assert!(policy.contains("as \"direct\" has it, not \"eli\""), "{policy}");
    // With a unit that posts to its guests its own are injected.
    let device = DeviceName::Address { segment: 0, bus: 0, device: 3, function: 0 };
    for (iommu, interrupts, is_right) in [
        (GuestIommu::AmdVi, Policy::Trap, true),
        (GuestIommu::AmdViOptimistic, Policy::Direct, true),
        (GuestIommu::AmdVi, Policy::Eli, false),
        (GuestIommu::VtD, Policy::Trap, false),
        (GuestIommu::None, Policy::Trap, false),
    ] {
        let mut plan = two();
        let vm = &mut plan.vms[1];
        (vm.nested, vm.iommu, vm.interrupts) = (true, iommu, Some(interrupts));
        vm.devices = vec![device];
        let wrong = plan.check().err().map(|error| error.problem);
        let wanted = Problem::NestedPolicy(interrupts);
        assert_eq!(wrong == Some(wanted), !is_right, "{iommu:?} {interrupts:?}");
    }
}

#[test]
fn a_guest_s_own_iommu_has_a_device_and_a_place_on_the_bus() {
    let alone = sentence(|vm| vm.iommu = GuestIommu::Virtio);
    assert!(alone.contains("[vm.db] iommu: nothing would be behind"), "{alone}");
    let address = |device| DeviceName::Address { segment: 0, bus: 0, device, function: 0 };
    for (_, iommu) in GuestIommu::ALL.into_iter().filter(|(_, i)| *i != GuestIommu::None) {
        let many = sentence(|vm| (vm.iommu, vm.devices) = (iommu, (0..9).map(address).collect()));
        assert!(many.contains("9 devices would be behind"), "{iommu:?}: {many}");
    }
    let full = sentence(|vm| {
        vm.devices = (0..32).map(address).collect();
    });
    assert!(full.contains("32"), "{full}");
    let mut plan = two();
    (plan.vms[1].iommu, plan.vms[1].devices) = (GuestIommu::Virtio, vec![address(3)]);
    assert_eq!((plan.check(), plan.sidecore_of_iommu(1)), (Ok(()), None));
    let core = plan.vms[1].cpus[0];
    plan.vms[1].cpus.push(core);
    let shared = plan.check().unwrap_err().to_string();
    assert!(shared.contains(&format!("keep core {core} from the other vCPUs")), "{shared}");
    plan.sidecores = vec![7, 8];
    assert_eq!(plan.check(), Ok(()));
    assert_eq!((plan.served_queues(), plan.sidecore_of_iommu(1)), (vec![0, 2], Some(1)));
}

#[test]
fn a_plan_has_one_to_32_vms() {
    assert_eq!(
        Plan::<()>::new(vec![]).check().unwrap_err().to_string(),
        "the plan has no VM; it needs at least one, such as [vm.web]"
    );
    let many = |n: u32| Plan::new((1..=n).map(|i| vm(&format!("v{i}"), i)).collect());
    assert_eq!(many(32).check(), Ok(()));
    assert_eq!(many(33).check().unwrap_err().problem, Problem::ManyVms(33));
}

#[test]
fn names_are_plain_and_unique() {
    assert_eq!(
        sentence(|v| v.name = "web".into()),
        "[vm.web]: another VM has this name; each needs its own"
    );
    for bad in ["", "a b", "-a", "_a", "ä", "a/b", "abcdefghijklmnopqrstuvwxyz0123456"] {
        assert!(sentence(|v| v.name = bad.into()).contains("can't name a VM"), "{bad}");
    }
}

#[test]
fn a_vm_has_a_core_that_is_not_the_hosts() {
    assert_eq!(
        sentence(|v| v.cpus.clear()),
        "[vm.db] cpus: no core is given; name one, such as [1]"
    );
    assert_eq!(
        sentence(|v| v.cpus = vec![0]),
        "[vm.db] cpus: core 0 is the host's own; use core 1 or above"
    );
    assert_eq!(
        sentence(|v| v.cpus = (2..67).collect()),
        "[vm.db] cpus: 65 cores are given; a VM may have at most 64 vCPUs"
    );
    assert_eq!(
        sentence(|v| v.cpus = vec![1024]),
        "[vm.db] cpus: core 1024 is out of range; use 1 to 1023"
    );
}

#[test]
fn a_core_is_shared_by_up_to_eight_vcpus_but_not_with_direct() {
    let mut plan = two();
    plan.vms[1].cpus = vec![1, 2, 1];
    assert_eq!(plan.check(), Ok(()));
    assert_eq!([0, 1, 2].map(|core| plan.shares(core)), [0, 3, 1]);
    plan.vms[1].cpus = vec![1; 7];
    assert_eq!(plan.check(), Ok(()));
    plan.vms[1].cpus = vec![1; 8];
    let error = plan.check().unwrap_err().to_string();
    assert_eq!(error, "[vm.web] cpus: core 1 is given to 9 vCPUs; at most 8 can share one");
    let direct = "other vCPUs run on core 1, too, and \"direct\" gives its local APIC away; \
                  use \"eli\", or a core of its own";
    let shared = |v: &mut Vm<()>| (v.cpus, v.interrupts) = (vec![2, 1], Some(Policy::Direct));
    assert_eq!(sentence(shared), format!("[vm.db] interrupts: {direct}"));
    let posted = "other vCPUs run on core 1, too, and the CPU delivers by itself to one alone, \
                  as \"posted\" has it; use \"eli\", or a core of its own";
    let shared = |v: &mut Vm<()>| (v.cpus, v.interrupts) = (vec![2, 1], Some(Policy::Posted));
    assert_eq!(sentence(shared), format!("[vm.db] interrupts: {posted}"));
    plan = two();
    (plan.vms[0].interrupts, plan.vms[1].interrupts) = (Some(Policy::Direct), Some(Policy::Direct));
    assert_eq!(plan.check(), Ok(()), "on cores of their own");
    plan.vms[0].cpus = vec![1, 1];
    assert_eq!(plan.check().unwrap_err().to_string(), format!("[vm.web] interrupts: {direct}"));
}

#[test]
fn the_screen_s_vm_is_there() {
    let with = |screen| {
        let mut plan = two();
        plan.host.screen = screen;
        plan.check().map_err(|error| error.to_string())
    };
    assert_eq!([with(None), with(Some(1))], [Ok(()), Ok(())]);
    assert_eq!(with(Some(2)), Err("[host] screen: the plan has no VM 2; VMs count from 0".into()));
}

#[test]
fn weights_and_the_slice_are_in_range() {
    for weight in [0, 10_001] {
        let said = format!("[vm.db] weight: {weight} is out of range; use 1 to 10000");
        assert_eq!(sentence(|v| v.weight = weight), said);
    }
    for (slice_us, shown) in [(99, "99us"), (1_001_000, "1001ms")] {
        let plan = Plan { slice_us, ..two() };
        let said = format!("slice: {shown} is out of range; use 100us to 1s");
        assert_eq!(plan.check().unwrap_err().to_string(), said);
    }
    for slice_us in [100, 1_000_000] {
        assert_eq!(Plan { slice_us, ..two() }.check(), Ok(()));
    }
}

#[test]
fn memory_is_enough_even_and_below_the_pci_window() {
    assert_eq!(
        sentence(|v| v.memory = 62 << 20),
        "[vm.db] memory: 62M is too little; a VM needs at least 64M"
    );
    assert_eq!(
        sentence(|v| v.memory = 255 << 30),
        "[vm.db] memory: 255G is too much; a VM may have at most 254G"
    );
    assert!(sentence(|v| v.memory = 65 << 20).contains("65M is not a multiple of 2M"));
    assert!(sentence(|v| v.memory = (64 << 20) - 1).contains("too little"));
    assert!(sentence(|v| v.memory = (254 << 30) + 1).contains("too much"));
}

#[test]
fn the_command_line_is_what_the_kernel_reads() {
    assert!(sentence(|v| v.cmdline = "x".repeat(2048)).contains("2048 bytes"));
    assert!(sentence(|v| v.cmdline = "a\0b".into()).contains("zero byte"));
    let mut plan = two();
    plan.vms[0].cmdline = "x".repeat(2047);
    assert_eq!(plan.check(), Ok(()));
}

#[test]
fn a_device_belongs_to_one_vm_once() {
    let device: DeviceName = "nvme0".parse().unwrap();
    assert_eq!(
        sentence(|v| v.devices = vec![device, device]),
        "[vm.db] devices: nvme0 is VM `db`'s already; a device belongs to one VM, once"
    );
    let mut plan = two();
    plan.vms[0].devices = vec![device];
    plan.vms[1].devices = vec![device];
    let problem = plan.check().unwrap_err().problem;
    assert_eq!(problem, Problem::DeviceTaken { device, by: "web".into() });
    let odd = DeviceName::Address { segment: 0, bus: 0, device: 32, function: 0 };
    assert!(sentence(|v| v.devices = vec![odd]).contains("00:20.0 is not a PCI address"));
    let all = |n: u8| {
        (0..n).map(|i| DeviceName::Address { segment: 0, bus: i, device: 0, function: 0 }).collect()
    };
    assert!(sentence(|v| v.devices = all(32)).contains("32 devices are given"));
}

/// What is said of a plan with these networks and these devices of its second VM.
fn network(networks: &[(u8, Option<u8>, &[u8])], devices: &[&str]) -> Result<(), String> {
    let mac = |last: &u8| Mac([2, 0, 0, 0, 0, *last]);
    let network = |(nic, vfs, macs): &(u8, Option<u8>, &[u8])| Network {
        nic: *nic,
        vfs: *vfs,
        macs: macs.iter().map(mac).collect(),
        uplink: None,
        coalesce: Coalesce::Off,
    };
    let mut plan = two();
    plan.networks = networks.iter().map(network).collect();
    plan.vms[1].devices = devices.iter().map(|d| d.parse().unwrap()).collect();
    plan.check().map_err(|e| e.to_string())
}

#[test]
fn virtual_functions_are_made_as_asked_or_as_named() {
    assert_eq!(network(&[], &["nic0.vf0", "nic0.vf63", "nic1"]), Ok(()));
    assert_eq!(network(&[(0, Some(2), &[1, 2]), (3, None, &[3])], &["nic0.vf1"]), Ok(()));
    let mut plan = two();
    plan.networks = vec![Network {
        nic: 4,
        vfs: None,
        macs: vec![Mac([2; 6]); 3],
        uplink: None,
        coalesce: Coalesce::Off,
    }];
    plan.vms[0].devices = vec![DeviceName::Virtual { nic: 9, function: 1 }];
    let shared: Vec<_> = plan.shared_nics().map(|s| (s.nic, s.vfs, s.macs.len())).collect();
    assert_eq!(shared, [(4, 3, 3), (9, 2, 0)]);
}

#[test]
fn a_plan_has_at_most_16_networks() {
    let many = |n: u8| -> Vec<_> { (0..n).map(|nic| (nic, Some(1), &[][..])).collect() };
    assert_eq!(network(&many(16), &[]), Ok(()));
    assert_eq!(
        network(&many(17), &[]),
        Err("the plan has tables for 17 network controllers; it may have at most 16".into())
    );
}

#[test]
fn networks_ask_for_what_can_be() {
    let refusal = |networks: &[_], devices: &[_]| network(networks, devices).unwrap_err();
    assert_eq!(
        refusal(&[(0, Some(4), &[])], &["nic0.vf4"]),
        "[vm.db] devices: nic0.vf4 isn't there: [network.nic0] has vfs = 4, and they count from vf0"
    );
    assert_eq!(
        refusal(&[], &["nic0.vf64"]),
        "[vm.db] devices: nic0.vf64 can't be there: a controller has at most 64 virtual functions, vf0 to vf63"
    );
    assert!(
        refusal(&[], &["nic0.vf0", "nic0"]).starts_with(
            "[vm.db] devices: nic0 is to have virtual functions, so it stays the host's"
        )
    );
    assert!(refusal(&[(0, Some(1), &[])], &["nic0"]).contains("stays the host's"));
    let nothing = "it makes no virtual function; say how many (vfs = 2), or leave the table out";
    assert_eq!(refusal(&[(0, Some(0), &[])], &[]), format!("[network.nic0] vfs: {nothing}"));
    assert_eq!(refusal(&[(7, None, &[])], &[]), format!("[network.nic7]: {nothing}"));
    assert!(refusal(&[(0, Some(65), &[])], &[]).contains("65 virtual functions are asked for"));
    assert_eq!(
        refusal(&[(0, Some(1), &[1, 2])], &[]),
        "[network.nic0] macs: 2 addresses are given; vfs = 1 leaves room for 1"
    );
    assert!(refusal(&[(0, Some(1), &[]), (0, Some(1), &[])], &[]).contains("two tables"));
    assert!(refusal(&[(0, Some(1), &[1]), (1, Some(1), &[1])], &[]).contains("is given twice"));
    let many: Vec<_> = (0..17).map(|nic| (nic, Some(1), &[][..])).collect();
    assert_eq!(
        refusal(&many, &[]),
        "the plan has tables for 17 network controllers; it may have at most 16"
    );
    let mut plan = two();
    plan.networks = vec![Network {
        nic: 0,
        vfs: None,
        macs: vec![Mac([0xFF; 6])],
        uplink: None,
        coalesce: Coalesce::Off,
    }];
    let error = plan.check().unwrap_err().to_string();
    assert!(error.starts_with("[network.nic0] macs: ff:ff:ff:ff:ff:ff can't be"), "{error}");
}

proptest! {
    /// Whatever a sound plan says, every function that it names is made, once.
    #[test]
    fn what_is_named_is_made(
        tables in prop::collection::vec((0u8..3, prop::option::of(0u8..70), 0u8..4), 0..3),
        named in prop::collection::vec((0u8..3, 0u8..70), 0..4),
    ) {
        let mut plan = two();
        plan.networks = tables.iter().map(|&(nic, vfs, macs)| Network {
            nic,
            vfs,
            macs: (0..macs).map(|last| Mac([2, 0, 0, 0, nic, last])).collect(),
            uplink: None, coalesce: Coalesce::Off,
        }).collect();
        plan.vms[0].devices =
            named.iter().map(|&(nic, function)| DeviceName::Virtual { nic, function }).collect();
        if plan.check().is_ok() {
            for (nic, function) in named {
                let shared = plan.shared_nic(nic).unwrap();
                prop_assert!(function < shared.vfs && shared.vfs <= MAX_VFS);
                prop_assert!(shared.macs.len() <= shared.vfs.into());
            }
        }
    }
}
