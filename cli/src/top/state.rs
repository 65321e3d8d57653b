//! What `exitless run` tells `exitless top`: lines of JSON on a socket.
//!
//! The run says [`Message::Hello`] to whoever connects. Each line that it is sent then
//! is a question, to which the answer is [`Message::State`]; when the run ends it says
//! [`Message::End`] unasked. Guarantees: none across versions; [`PROTOCOL`] tells them apart.

use ledger::Counters;
use proto::{End, Policy, Record, Served, ServedDevice};
use serde::{Deserialize, Serialize};

/// Grows when a message changes.
pub const PROTOCOL: u32 = 3;
/// More vCPUs than any plan has, so that a damaged record doesn't fill memory.
const MAX_VCPUS: usize = 64;
/// More sidecores than any plan has.
const MAX_SIDECORES: usize = 256;

/// A line from the run.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub enum Message {
    /// The first one.
    Hello {
        /// [`PROTOCOL`].
        protocol: u32,
        /// The VMs' names.
        vms: Vec<String>,
    },
    /// Where the VMs are now.
    State(Snapshot),
    /// The run is over.
    End {
        /// How it ended, in a sentence.
        how: String,
    },
}

/// Where the VMs of a run are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// TSC ticks per second of the machine; 0 before it was probed.
    pub tsc_hz: u64,
    /// By index in the plan.
    pub vms: Vec<VmState>,
    /// In the order in which they were first heard of.
    pub sidecores: Vec<SidecoreState>,
}

/// Where one VM is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VmState {
    /// Its name.
    pub name: String,
    /// The policy in force, once it started.
    pub policy: Option<String>,
    /// `starting`, `running`, or how it ended: `power-off`, `reset`, `debug-exit` or `fault`.
    pub state: String,
    /// By index; none before the first counters came.
    pub vcpus: Vec<VcpuState>,
    /// Those of its paravirtual devices; none before the first counts came.
    pub queues: Vec<QueueState>,
}

/// What was done for a queue of a VM's paravirtual device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueueState {
    /// Which of its devices.
    pub device: ServedDevice,
    /// Which of the device's queues.
    pub queue: u32,
    /// The core that serves it.
    pub core: u32,
    /// What the driver accepted of the device's features; 0 while it drives none.
    pub features: u64,
    /// What was counted since the VM started.
    pub served: Served,
}

/// What a sidecore did since it began.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SidecoreState {
    /// The core.
    pub core: u32,
    /// Looks at all its queues.
    pub passes: u64,
    /// Those that found work.
    pub found: u64,
    /// TSC ticks of work.
    pub busy: u64,
    /// Times that it fell asleep, and whether it sleeps.
    pub sleeps: u64,
    /// See [`Self::sleeps`].
    pub asleep: bool,
    /// The host core's TSC when this was read.
    pub now: u64,
}

/// Where one vCPU is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VcpuState {
    /// The core that runs it.
    pub core: u32,
    /// The host core's TSC when its counters were read.
    pub now: u64,
    /// What was counted since its VM started.
    pub counters: Counters,
}

impl Snapshot {
    /// Before anything was reported.
    pub fn new(names: impl IntoIterator<Item = String>) -> Snapshot {
        let state = "starting".to_owned();
        let vm = |name| VmState { name, state: state.clone(), ..VmState::default() };
        let vms = names.into_iter().map(vm).collect();
        Snapshot { tsc_hz: 0, vms, sidecores: Vec::new() }
    }

    /// Takes a record in; true if with it the answer to a question is complete.
    pub fn see(&mut self, record: &Record) -> bool {
        match record {
            Record::Machine { tsc_hz, .. } => self.tsc_hz = *tsc_hz,
            Record::Started { vm, policy, .. } => {
                if let Some(vm) = self.vm(*vm) {
                    vm.policy = Some(Policy::label(*policy).to_owned());
                    vm.state = "running".to_owned();
                }
            }
            Record::Live { vm, vcpu, core, counters, now, left } => {
                let vcpu = *vcpu as usize;
                if let Some(vm) = self.vm(*vm).filter(|_| vcpu < MAX_VCPUS) {
                    let count = vm.vcpus.len().max(vcpu + 1);
                    vm.vcpus.resize_with(count, VcpuState::default);
                    vm.vcpus[vcpu] =
                        VcpuState { core: *core, now: *now, counters: counters.clone() };
                }
                return *left == 0;
            }
            Record::Ended { vm, end } => {
                if let Some(vm) = self.vm(*vm) {
                    vm.state = match end {
                        End::PowerOff => "power-off",
                        End::Reset => "reset",
                        End::DebugExit(_) => "debug-exit",
                        End::Fault(_) => "fault",
                    }
                    .to_owned();
                }
            }
            Record::Paravirtual { vm, device, queue, core, features, served } => {
                let known = plan::may_have(*device, *queue);
                if let Some(vm) = self.vm(*vm)
                    && known
                {
                    let (device, queue, core) = (*device, *queue, *core);
                    let (features, served) = (*features, *served);
                    let of = QueueState { device, queue, core, features, served };
                    put(&mut vm.queues, of, usize::MAX, |q| (q.device, q.queue));
                }
            }
            Record::Sidecore { core, passes, found, busy, sleeps, asleep, now } => {
                let (core, passes, found, busy, now) = (*core, *passes, *found, *busy, *now);
                let (sleeps, asleep) = (*sleeps, *asleep);
                let of = SidecoreState { core, passes, found, busy, sleeps, asleep, now };
                put(&mut self.sidecores, of, MAX_SIDECORES, |s| s.core);
            }
            Record::Refused { .. }
            | Record::Counters { .. }
            | Record::Incident { .. }
            | Record::Paused { .. }
            | Record::Leaving
            | Record::Offer(_)
            | Record::Audit { .. } => {}
        }
        false
    }

    /// Whether the hypervisor is far enough to answer questions.
    pub fn is_up(&self) -> bool {
        self.vms.iter().any(|vm| vm.policy.is_some())
    }

    fn vm(&mut self, index: u32) -> Option<&mut VmState> {
        self.vms.get_mut(index as usize)
    }
}

/// In the place of the one with the same key; a new one only while there are fewer than `most`.
fn put<T, K: PartialEq>(all: &mut Vec<T>, new: T, most: usize, key: impl Fn(&T) -> K) {
    let wanted = key(&new);
    match all.iter().position(|one| key(one) == wanted) {
        Some(place) => all[place] = new,
        None if all.len() < most => all.push(new),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live(vm: u32, vcpu: u32, left: u32) -> Record {
        Record::Live { vm, vcpu, core: 3, counters: Counters::default(), now: 7, left }
    }

    #[test]
    fn records_make_the_state() {
        let mut s = Snapshot::new(["a", "b"].map(str::to_owned));
        assert!(!s.is_up() && s.vms[0].state == "starting");
        let (name, policy, why) = ("a".to_owned(), Policy::Direct, String::new());
        s.see(&Record::Started { vm: 0, name, policy, why, memory: 0, overhead: 0, now: 0 });
        assert!(s.is_up());
        assert!(!s.see(&live(0, 1, 1)) && s.see(&live(1, 0, 0)));
        s.see(&Record::Ended { vm: 1, end: End::PowerOff });
        assert_eq!(
            (s.vms[0].policy.as_deref(), s.vms[0].state.as_str()),
            (Some("direct"), "running")
        );
        assert_eq!((s.vms[0].vcpus.len(), s.vms[0].vcpus[1].core), (2, 3));
        assert_eq!(s.vms[1].state, "power-off");
    }

    #[test]
    fn what_sidecores_did_is_kept_by_queue_and_core() {
        let mut s = Snapshot::new(["a".to_owned()]);
        let served = |completed| Served { completed, ..Served::default() };
        for (vm, queue, requests) in [(0, 0, 1), (0, 1, 2), (0, 0, 3), (1, 0, 4), (0, 16, 5)] {
            let served = served(requests);
            assert!(!s.see(&Record::Paravirtual {
                vm,
                device: ServedDevice::Disk(0),
                queue,
                core: 2,
                features: 0,
                served
            }));
        }
        let seen: Vec<_> = s.vms[0].queues.iter().map(|q| (q.queue, q.served.completed)).collect();
        assert_eq!(seen, [(0, 3), (1, 2)]);
        for core in 0..1_000 {
            let (passes, found, busy, sleeps, asleep, now) = (3, 2, 1, 0, false, 9);
            s.see(&Record::Sidecore { core, passes, found, busy, sleeps, asleep, now });
        }
        assert_eq!(s.sidecores.len(), MAX_SIDECORES);
    }

    #[test]
    fn what_is_not_in_the_plan_is_left_out() {
        let mut s = Snapshot::new(["a".to_owned()]);
        assert!(s.see(&live(9, 0, 0)) && s.see(&live(0, u32::MAX, 0)));
        assert_eq!(s, Snapshot::new(["a".to_owned()]));
    }
}
