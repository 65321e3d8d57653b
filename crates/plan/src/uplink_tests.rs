use crate::{Class, DeviceName, Plan, file};

const VMS: &str = "[host]\nsidecores = [3]\n\
    [vm.a]\ncpus = [1]\nmemory = \"64M\"\nkernel = \"k\"\nnetwork = { switch = \"lan\" }\nDEVICES\n\
    [vm.b]\ncpus = [2]\nmemory = \"64M\"\nkernel = \"k\"\nnetwork = { switch = \"wan\" }\n";

fn plan(tables: &str, devices: &str) -> Result<Plan<String>, String> {
    let text = VMS.replace("DEVICES", devices) + tables;
    file::parse("vm.toml", &text).map_err(|e| e.to_string())
}

fn nic(index: u8) -> DeviceName {
    DeviceName::Named { class: Class::Nic, index }
}

#[test]
fn a_switch_has_the_uplink_that_names_it() {
    let text = "[network.nic0]\nuplink = \"wan\"\n[network.nic2]\nuplink = \"lan\"\n";
    let plan = plan(text, "").unwrap();
    assert_eq!(plan.uplinks().collect::<Vec<_>>(), [(nic(0), "wan"), (nic(2), "lan")]);
    assert_eq!(plan.uplink_of("lan"), Some(nic(2)));
    assert_eq!(plan.uplink_of("other"), None);
    assert_eq!(plan.shared_nics().count(), 0);
}

#[test]
fn uplinks_are_what_can_be() {
    let refused = |tables: &str, devices: &str| plan(tables, devices).unwrap_err();
    let one = "[network.nic0]\nuplink = \"lan\"\n";
    assert!(plan(one, "devices = [\"nic1\"]").is_ok());
    assert!(plan(one, "devices = [\"nic1.vf0\"]").is_ok());
    let said = refused("[network.nic0]\nuplink = \"lam\"\n", "");
    assert!(said.contains("no VM is at switch `lam`"), "{said}");
    let said = refused("[network.nic0]\nuplink = \"\"\n", "");
    assert!(said.contains("no VM is at switch ``"), "{said}");
    let said = refused(&format!("{one}[network.nic1]\nuplink = \"lan\"\n"), "");
    assert!(said.contains("nic0 is the uplink of switch `lan` already"), "{said}");
    let said = refused(one, "devices = [\"nic0\"]");
    assert!(said.contains("nic0 is VM `a`'s"), "{said}");
    for said in [
        refused(&format!("{one}vfs = 2\n"), ""),
        refused(&format!("{one}macs = [\"02:00:00:00:00:01\"]\n"), ""),
        refused(one, "devices = [\"nic0.vf1\"]"),
    ] {
        assert!(said.contains("nic0 is to have virtual functions"), "{said}");
    }
    let said = refused("[network.nic0]\nuplink = 1\n", "");
    assert!(said.contains("the name of a switch in quotes"), "{said}");
}
