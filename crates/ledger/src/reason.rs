//! Why a vCPU left guest mode. A reason says what the exit was *for*, not which
//! hardware exit code it had: an assigned device's interrupt is the same reason
//! whether it came as an INTR exit (`trap`) or was reflected as #NP (`eli`).

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $label:literal,)+) => {
        /// What an exit was for. The discriminant indexes [`crate::Page::exits`];
        /// new reasons are appended, existing ones never move.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Reason { $($(#[$doc])* $name,)+ }

        impl Reason {
            /// Every reason, in index order.
            pub const ALL: &'static [Reason] = &[$(Reason::$name,)+];
            /// How many reasons there are.
            pub const COUNT: usize = Self::ALL.len();

            /// The stable name used in JSON and tables.
            pub const fn label(self) -> &'static str {
                match self { $(Reason::$name => $label,)+ }
            }
        }
    };
}

reasons! {
    /// A physical interrupt of a device assigned to this VM reached the host.
    DeviceInterrupt = "device-interrupt",
    /// The guest completed (EOI) a device interrupt and the host had to see it.
    DeviceEoi = "device-eoi",
    /// The guest armed, changed or stopped its local APIC timer.
    TimerProgram = "timer-program",
    /// The physical timer behind the guest's timer fired.
    TimerInterrupt = "timer-interrupt",
    /// The guest completed (EOI) a timer interrupt and the host had to see it.
    TimerEoi = "timer-eoi",
    /// The guest completed (EOI) any other injected interrupt, or nothing.
    OtherEoi = "other-eoi",
    /// A physical interrupt that is neither of an assigned device nor the timer.
    HostInterrupt = "host-interrupt",
    /// Another core kicked this one (NMI) to get the host's attention.
    Kick = "kick",
    /// CPUID.
    Cpuid = "cpuid",
    /// RDMSR of a register the host emulates.
    MsrRead = "msr-read",
    /// WRMSR of a register the host emulates, timer and EOI apart.
    MsrWrite = "msr-write",
    /// IN or OUT on the emulated console.
    ConsoleIo = "console-io",
    /// IN or OUT on the PCI configuration ports.
    PciConfig = "pci-config",
    /// IN or OUT on any other port.
    PortIo = "port-io",
    /// A load or store to the MSI-X table or pending bits of an assigned device.
    MsixTable = "msix-table",
    /// A load or store to the emulated IOAPIC.
    Ioapic = "ioapic",
    /// A load or store to guest-physical memory that isn't there.
    NestedPageFault = "nested-page-fault",
    /// LIDT: the guest's interrupt descriptor table moved.
    IdtLoad = "idt-load",
    /// A store to the page of the guest's interrupt descriptor table.
    IdtWrite = "idt-write",
    /// HLT, where the policy intercepts it.
    Halt = "halt",
    /// XSETBV.
    Xsetbv = "xsetbv",
    /// An exception the host intercepts that was the guest's own.
    Exception = "exception",
    /// VMMCALL.
    Hypercall = "hypercall",
    /// An instruction the guest isn't offered (SVM, VMX and the like).
    RefusedInstruction = "refused-instruction",
    /// Triple fault.
    Shutdown = "shutdown",
    /// Whatever else; the report of the VM names the exit code.
    Other = "other",
    /// A write to the interrupt command register: the guest sent an interrupt to one or more
    /// of its vCPUs.
    Ipi = "ipi",
    /// On a shared core: an interrupt, or a timer, of another of its vCPUs.
    OtherVcpu = "other-vcpu",
    /// On a shared core: the end of the vCPU's time slice.
    SliceEnd = "slice-end",
    /// A load or store to the page of the local APIC's registers in xAPIC mode, unless it is an
    /// EOI, an interrupt command or for the timer.
    ApicPage = "apic-page",
    /// An instruction by which a guest runs guests of its own: VMRUN and the like.
    Nesting = "nesting",
    /// A guest of the guest's was left, and the guest was told.
    NestedReflected = "nested-reflected",
    /// A guest of the guest's touched memory whose translation wasn't there yet.
    NestedFill = "nested-fill",
    /// The guest lets in an interrupt that waited for that, on a CPU that says so by an exit.
    InterruptWindow = "interrupt-window",
    /// A store to the registers of the guest's own IOMMU.
    GuestIommu = "guest-iommu",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_unique_and_indices_dense() {
        for (i, r) in Reason::ALL.iter().enumerate() {
            assert_eq!(*r as usize, i);
            for s in &Reason::ALL[i + 1..] {
                assert_ne!(r.label(), s.label());
            }
        }
    }
}
