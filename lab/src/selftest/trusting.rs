//! A machine whose IOMMU remaps no interrupts, under a plan that trusts every guest: what devices
//! send is what the host wrote into them, DMA is confined all the same, and cores aren't shared.

use super::case::{Case, Cores, Expect, Guest};
use super::cases::{case, guest};
use super::{network, smp};
use plan::{Host, Policy, WithoutRemapping};

/// All of them.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for policy in [Policy::Trap, Policy::Eli, Policy::Direct] {
        // MSI, at one CPU and from CPU to CPU.
        for guest in [guest("delivery", policy), smp::several("affinity", policy)] {
            let name = format!("{}-{}", guest.tests, policy.label());
            cases.push(trusting(&name, vec![guest]));
        }
    }
    // MSI-X, of a driver that doesn't know; what devices are given doesn't depend on the policy.
    for policy in [Policy::Eli, Policy::Direct] {
        let name = format!("moving-{}", policy.label());
        let moving = trusting(&name, vec![network::moving(policy)]);
        cases.push(Case { audited: true, ..moving });
    }
    cases.push(trusting("delivery-auto", vec![guest("delivery", None)]));
    cases.push(trusting("msi-program", vec![guest("msi-program", Policy::Eli)]));
    cases.push(trusting("dma-confine", vec![guest("dma-confine", Policy::Eli)]));
    let two = ["hello", "hello"].map(|test| Guest {
        cores: Cores::First,
        devices: Vec::new(),
        ..guest(test, Policy::Eli)
    });
    let expect = Expect::Refused(vec!["core 1", "interrupt remapping"]);
    cases.push(Case { expect, ..trusting("shared", two.into()) });
    cases
}

fn trusting(name: &str, guests: Vec<Guest>) -> Case {
    let host = Host { without_remapping: WithoutRemapping::TrustEveryGuest, ..Host::default() };
    let log = vec!["the plan trusts every guest"];
    let quick = name == "delivery-auto";
    Case { host, log, guests, ..case(format!("trusting/{name}"), quick, []) }
}
