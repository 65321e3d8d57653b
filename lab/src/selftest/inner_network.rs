//! netperf at one level and at two: Linux with KVM as a guest (L1), which has a network card, and
//! then a guest of its own (L2) for each kind of card that QEMU has for it; Debian's, all of them.
//!
//! Guarantees: what is given is of runs in which every transaction and every message that netperf
//! was to have was done, at each level, and no kernel complained. All ask the same netserver, on
//! the computer that emulates the machine, by the same physical controller and QEMU's gateway.

use super::{
    inner_linux::{self, Heard, PATIENCE_WITH_LOADS, Window},
    names::named,
    tally::Tally,
    uplink::uplink,
};
use crate::{
    bench::{
        Guest,
        generator::{self, Generator},
    },
    summary::Summary,
};
use anyhow::{Context as _, Result, bail};
use exitless::{context::Context, machine::Disk};
use plan::{DEFAULT_MTU, GuestIommu, Interface, Mac, Plan};
use serde::Serialize;

/// The test that all of it works.
pub const NAME: &str = "nesting/linux-networks";
/// Transactions, and messages, of its long windows.
const TIMES: u32 = 50;
/// Exits of the host's for each, at level one, where nothing has one: an interrupt of a window's.
const FEW: f64 = 0.1;
/// The switch, and the core that serves it.
const SWITCH: &str = "lan";
const SIDECORE: u32 = 2;

/// The card that L1 has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Own {
    /// One that a sidecore serves, at a switch whose uplink is the physical controller.
    Paravirtual,
    /// A virtual function of the physical controller.
    Assigned,
    /// The same, behind an IOMMU of L1's, which gives it away.
    Given,
}

/// The card of the level that netperf runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Card {
    /// L1's own: it is level one.
    Own,
    /// One that QEMU emulates in L1.
    Emulated,
    /// One that QEMU and vhost serve in L1.
    Virtio,
    /// L1's, by vfio-pci.
    Given,
}

/// What netperf does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Exchange {
    /// TCP_RR: a byte there, a byte back.
    Rr,
    /// TCP_STREAM: messages of 16 KiB, sent.
    Stream,
}

/// What was counted of one exchange by one card.
#[derive(Debug)]
pub struct Counted {
    /// L1's card.
    pub own: Own,
    /// Whose netperf.
    pub card: Card,
    /// What it did.
    pub exchange: Exchange,
    /// What that took.
    pub window: Window,
}

impl Own {
    /// All of them; level one of the second is that of the third, too.
    pub const ALL: [Own; 3] = [Own::Paravirtual, Own::Assigned, Own::Given];

    /// Those by which netperf asks, in their order.
    const fn cards(self) -> &'static [Card] {
        match self {
            Own::Paravirtual | Own::Assigned => &[Card::Own, Card::Emulated, Card::Virtio],
            Own::Given => &[Card::Given],
        }
    }

    /// Words for the kernel.
    const fn word(self) -> &'static str {
        match self {
            Own::Paravirtual | Own::Assigned => "own",
            Own::Given => "given",
        }
    }
}

impl Card {
    /// Its name in the guests.
    const fn name(self) -> &'static str {
        match self {
            Card::Own => "L1",
            Card::Emulated => "e1000e",
            Card::Virtio => "virtio-net-pci",
            Card::Given => "given",
        }
    }
}

impl Exchange {
    /// Both.
    pub const ALL: [Exchange; 2] = [Exchange::Rr, Exchange::Stream];

    const fn name(self) -> &'static str {
        match self {
            Exchange::Rr => "rr",
            Exchange::Stream => "stream",
        }
    }
}

/// Makes the guests if need be; gives the one with netperf.
pub fn prepare(cx: &Context) -> Result<Guest> {
    inner_linux::prepare(cx)?;
    Guest::make(cx, "workloads")
}

/// Boots a machine whose L1 has this card; netperf does each exchange so often in its long windows.
pub fn boot(cx: &Context, guest: &Guest, own: Own, times: u32) -> Result<Vec<Counted>> {
    let port = generator::free_port()?;
    let mut server = Generator::start(generator::netserver(&guest.host, port))?;
    let disks = vec![Disk::File(guest.netperf.clone())];
    let heard = inner_linux::hear(cx, plan(cx, own, times, port)?, disks, PATIENCE_WITH_LOADS);
    server.check()?;
    counted(own, &heard?)
}

fn plan(cx: &Context, own: Own, times: u32, port: u16) -> Result<Plan<String>> {
    let mut vm = inner_linux::vm(cx);
    let words = own.word();
    vm.cmdline +=
        &format!(" exitless.netperf={times} exitless.port={port} exitless.network={words}");
    vm.devices = vec!["nvme0".parse()?];
    if own == Own::Paravirtual {
        vm.interfaces = vec![Interface {
            switch: SWITCH.to_owned(),
            mac: Mac([2, 0, 0, 0, 0, 1]),
            vlan: None,
            queues: 1,
            mtu: DEFAULT_MTU,
            rate: None,
            flood: None,
            kicks: false,
        }];
        let networks = vec![uplink(0, SWITCH)];
        return Ok(Plan { sidecores: vec![SIDECORE], networks, ..Plan::new(vec![vm]) });
    }
    vm.devices.push("nic0.vf0".parse()?);
    if own == Own::Given {
        vm.iommu = GuestIommu::Virtio;
    }
    Ok(Plan::new(vec![vm]))
}

fn counted(own: Own, heard: &Heard) -> Result<Vec<Counted>> {
    let mut all = Vec::new();
    for card in own.cards().iter().copied() {
        for exchange in Exchange::ALL {
            let (name, load) = (card.name(), exchange.name());
            let said = heard.said(name, load)?;
            let window = heard.window_of(&format!("{name}-{load}-"));
            let window = window.with_context(|| format!("{name}, {load}: {said}"))?;
            if card != Card::Own && window.by_kvm("exits") == 0.0 {
                bail!("{name}, {load}: KVM was told no exit, so that no guest of its ran");
            }
            all.push(Counted { own, card, exchange, window });
        }
    }
    Ok(all)
}

/// Whether the test is chosen by a part of its name, or with what takes long.
pub fn is_chosen(long: bool, only: Option<&str>) -> bool {
    only.map_or(long, |text| named(NAME, text))
}

/// Runs it, for each card that L1 can have.
pub fn run(cx: &Context, tally: &Tally) -> Result<Summary> {
    let guest = prepare(cx)?;
    tally.play(cx, NAME, || {
        let mut all = Vec::new();
        for own in Own::ALL {
            all.extend(boot(cx, &guest, own, TIMES)?);
        }
        judge(&all)
    })
}

/// That each card is what it is called, and nobody has an exit for what is his own.
fn judge(all: &[Counted]) -> Result<String> {
    for Counted { own, card, exchange, window } in all {
        let what = format!("L1's card {own:?}, {card:?}, {exchange:?}");
        let (exits, registers) = (window.all(), window.by_kvm("mmio_exits"));
        if *card == Card::Own && (exits > FEW || exits.is_nan()) {
            bail!("{what}: {exits:.2} exits of the host's for each at level one");
        }
        let right = match card {
            Card::Own => true,
            Card::Emulated => registers > 0.0,
            Card::Virtio | Card::Given => registers == 0.0,
        };
        if !right {
            bail!("{what}: each had {registers:.2} exits of its hypervisor's for registers");
        }
    }
    let through = all.iter().filter(|one| one.card == Card::Given);
    let each: Vec<_> = through.map(|one| format!("{:.2}", one.window.all())).collect();
    Ok(format!(
        "{} exits of ours for a transaction and a message of L2's by L1's virtual function",
        each.join(" and ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledger::Counters;

    fn heard(card: &str, told: u64, right: u64) -> Heard {
        let mut console = String::new();
        for load in ["rr", "stream"] {
            for (window, uses) in [("short", 10), ("long", 50)] {
                console += &format!(
                    "@exitless window name={card}-{load}-{window} uses={uses} hundredths={uses} interrupts={uses} ticks=0 kvm_exits={} exits=0,{uses}\n",
                    told * uses
                );
            }
            console += &format!("{card}: {load} right={right} of 70 complaints=0\n");
        }
        Heard { console, counters: Counters::default(), interrupts: 0 }
    }

    #[test]
    fn each_card_is_what_it_is_called() {
        let of = |card, exits: f64, registers: f64| {
            let kvm = [("mmio_exits".to_owned(), registers)].into();
            let window = Window { uses: 10.0, exits: vec![exits], kvm, ..Window::default() };
            judge(&[Counted { own: Own::Assigned, card, exchange: Exchange::Rr, window }])
        };
        assert!(of(Card::Given, 65.0, 0.0).unwrap().starts_with("6.50 exits"));
        of(Card::Own, 1.0, 0.0).unwrap();
        of(Card::Emulated, 90.0, 10.0).unwrap();
        for (card, exits, registers) in
            [(Card::Own, 10.0, 0.0), (Card::Given, 65.0, 10.0), (Card::Emulated, 65.0, 0.0)]
        {
            of(card, exits, registers).unwrap_err();
        }
    }

    #[test]
    fn only_what_was_done_is_counted() {
        let all = counted(Own::Given, &heard("given", 7, 70)).unwrap();
        let kinds: Vec<_> = all.iter().map(|one| (one.card, one.exchange)).collect();
        assert_eq!(kinds, [(Card::Given, Exchange::Rr), (Card::Given, Exchange::Stream)]);
        assert_eq!(all[0].window.by_kvm("exits"), 7.0);
        let error = |heard: &Heard| format!("{:#}", counted(Own::Given, heard).unwrap_err());
        assert!(error(&heard("given", 7, 69)).contains("right=69"));
        assert!(error(&heard("given", 0, 70)).contains("no exit"));
        assert!(error(&heard("L1", 7, 70)).contains("given"));
    }
}
