//! Interrupts and requests for the vCPUs of a VM, from any core.

use crate::cpu::x2apic;
use crate::interrupts;
use crate::interrupts::vectors::host_vectors;
use crate::vm::guest::Guest;
use crate::vm::interrupts::ipi::remote::VcpuRemote;
use delivery::{Destination, STAND_IN_TOP, class, is_ordinary};
use proto::Policy;
use virtual_pc::message::Message;

/// Can a physical interrupt with the guest's own vector carry a guest's interrupt to a core
/// where the host has vectors too? Whatever mode the receiver is in, this vector means there what
/// the guest means by it: it is above the stand-ins and not the host's.
fn carries_itself(policy: Policy, vector: u8) -> bool {
    vector > STAND_IN_TOP
        && vector != interrupts::SPURIOUS
        && !host_vectors(policy).contains(vector)
}

impl Guest {
    /// Gives vCPU `target` a fixed interrupt, from any core. One that doesn't run gets none.
    pub fn interrupt(&self, target: usize, vector: u8) {
        let Some(vcpu) = self.remotes.get(target).filter(|v| v.mailbox.running()) else { return };
        // Below 16 it is an error, for the receiver to note.
        if let Some(posting) = vcpu.posting.filter(|_| class(vector) != 0) {
            return posting.post(vector);
        }
        // The receiver may be in any mode by the time it arrives: then the host takes it. Where
        // several have vectors on its core, these are others'.
        let own = self.policy == Policy::Direct && is_ordinary(vector);
        let alone = vcpu.core.slot().is_none() && !vcpu.posts();
        if alone && (own || carries_itself(self.policy, vector)) {
            x2apic::send_ipi(vcpu.apic_id, vector);
        } else {
            vcpu.mailbox.post(&vcpu.core, vector);
        }
    }

    /// Has the vCPUs of the set `who` do `requests`, and waits until they have, or don't run.
    /// `me`, the holder of the lock, is neither asked nor waited for; one that shares its core and
    /// doesn't have it now is only asked, since it looks before it enters its guest.
    pub fn ask_and_wait(&self, me: usize, who: u64, requests: u32) {
        let others = || {
            let of = |(i, _): &(usize, &VcpuRemote)| who >> i & 1 != 0 && *i != me;
            self.remotes.iter().enumerate().filter(of).map(|(_, vcpu)| vcpu)
        };
        for vcpu in others().filter(|v| v.mailbox.running()) {
            vcpu.ask(requests);
        }
        for vcpu in others() {
            vcpu.mailbox.wait_until_done(&vcpu.core, requests, core::hint::spin_loop);
        }
    }

    /// The vCPU an interrupt message is for: the first of those it names.
    pub fn receiver(&self, message: &Message) -> Option<usize> {
        let to = match message.wide {
            true => Destination::of_wide(message.destination, message.logical),
            false => Destination::of_message(message.destination as u8, message.logical),
        };
        let mut vcpus = (0..).zip(&self.remotes);
        vcpus.position(|(id, vcpu)| to.includes(id, 0, vcpu.addressing()))
    }

    /// Delivers a message of an emulated device. Where the CPU delivers what is posted, it goes by
    /// the host of the receiver's core: the completion may have to be told.
    pub fn deliver(&self, message: &Message) {
        let Some(target) = self.receiver(message) else { return };
        match self.remotes.get(target).filter(|v| v.posting.is_some() && v.mailbox.running()) {
            Some(vcpu) => vcpu.mailbox.post(&vcpu.core, message.vector),
            None => self.interrupt(target, message.vector),
        }
    }
}
