//! How a vCPU is made, at boot, and how its control structure is written, on its core.

use super::current::{self, Current};
use super::kept::Kept;
use super::{VmxCpu, supported, switch};
use crate::cpu::descriptors::{CODE, TASK};
use crate::cpu::extra::{Extra, Fresh};
use crate::cpu::vendor::Start;
use crate::cpu::{Traits, msr};
use crate::memory;
use core::sync::atomic::AtomicU8;
use delivery::Mode;
use raw_cpuid::{CpuIdResult, native_cpuid::cpuid_count};
use vendor::maps::Map;
use virtual_pc::cpuid::CpuidResult;
use vmx::start::Parts;
use vmx::{Host, Outline, Posting, Registers, Setup, Vcpu, maps};
use x86_64::instructions::tables::{sgdt, sidt};
use x86_64::registers::control::{Cr0, Cr3, Cr4};

/// In the virtual-APIC page: the task priority.
const TASK_PRIORITY: u64 = 0x80;

impl VmxCpu {
    /// Memory and state of a vCPU; `None` when memory runs out. `nested_root`: its nested page
    /// tables; `vpid`: not 0; `pm_timer`: the port at which it reads the PM timer without an exit.
    pub fn new(
        nested_root: u64,
        vpid: u16,
        pm_timer: Option<u16>,
        traits: Traits,
        start: Start,
    ) -> Option<Self> {
        let (capabilities, controls) = supported::found()?;
        let structure = memory::allocate(4096, 4096)?;
        let on = memory::allocate(4096, 4096)?;
        let virtual_apic = memory::allocate(4096, 4096)?;
        let Traits { completions_exit, shared, hides_gates, posting, .. } = traits;
        let mut msrs = [0; Map::OF_VMX.len()];
        for (map, address) in Map::OF_VMX.into_iter().zip(&mut msrs) {
            *address = memory::allocate(maps::MSR_BYTES as u64, 4096)?;
            // SAFETY: just allocated with this size, identity-mapped, and ours.
            let bytes = unsafe { &mut *(*address as *mut [u8; maps::MSR_BYTES]) };
            maps::fill_msrs(bytes, map.open(completions_exit, shared));
        }
        let ports = memory::allocate(maps::PORT_BYTES as u64, 4096)?;
        // SAFETY: as above.
        maps::fill_ports(unsafe { &mut *(ports as *mut [u8; maps::PORT_BYTES]) }, pm_timer);
        // SAFETY: a byte of a page of our own, which the CPU writes as an atomic one.
        let priority = unsafe { &*((virtual_apic + TASK_PRIORITY) as *const AtomicU8) };
        let posting = posting.map(|posting| {
            let (descriptor, at) = posting.posts().descriptor();
            // SAFETY: a page of our own, of atomics, that lives for good; the CPU reads and writes
            // it while its vCPU runs, and the vCPU's core when it doesn't.
            let registers = unsafe { &*(virtual_apic as *const Registers) };
            Posting { registers, descriptor, at }
        });
        let parts = Parts {
            nested_root,
            vpid,
            ports: [ports, ports + 4096],
            msrs: msrs[Map::Injection as usize],
            virtual_apic,
        };
        let setup = Setup {
            parts,
            maps: msrs,
            capabilities: *capabilities,
            shared,
            hides_gates,
            posting,
            cr4: offered_cr4(),
            start,
            signature: cpuid_count(1, 0).eax,
        };
        Some(VmxCpu {
            vcpu: Vcpu::new(Current, &setup, *controls, priority),
            structure,
            on,
            stack: 0,
            launched: false,
            flushed: (vmx::start::ept_pointer(nested_root), vpid),
            capabilities,
            mode: Mode::Injection,
            extra: Extra::new(false)?,
            kept: Kept::AT_RESET,
            shared,
            fresh: Fresh::Reset,
            outline: Outline { structure, msrs, ports, completions_exit, shared, pm_timer },
        })
    }

    /// VMX is on, and the vCPU's control structure is the current one, written at the first time.
    pub(super) fn have_core(&mut self) {
        current::turn_on(self.on, self.capabilities);
        if self.vcpu.is_built() {
            return current::make_current(self.structure);
        }
        current::create(self.structure, self.capabilities);
        self.vcpu.build();
        host().write(&mut self.vcpu.area);
    }
}

/// What a guest may set of CR4, by what it is shown.
fn offered_cr4() -> u64 {
    virtual_pc::cpuid::offered_cr4(|leaf| {
        let CpuIdResult { eax, ebx, ecx, edx } = cpuid_count(leaf, 0);
        CpuidResult { eax, ebx, ecx, edx }
    })
}

/// This core's state, which an exit loads.
fn host() -> Host {
    let (gdt, idt) = (sgdt(), sidt());
    let (frame, flags) = Cr3::read_raw();
    // SAFETY: long mode has these registers; the table has a descriptor of 16 bytes for the task.
    let (efer, pat, gs, task) = unsafe {
        let descriptor = (gdt.base.as_u64() + u64::from(TASK)) as *const u64;
        let [low, high] = [descriptor.read(), descriptor.add(1).read()];
        let base = low >> 16 & 0xFF_FFFF | low >> 32 & 0xFF00_0000 | high << 32;
        (msr::read(msr::EFER), msr::read(msr::PAT), msr::read(msr::GS_BASE), base)
    };
    Host {
        control: [
            Cr0::read_raw(),
            frame.start_address().as_u64() | u64::from(flags),
            Cr4::read_raw(),
        ],
        efer,
        pat,
        selectors: [CODE, TASK],
        bases: [0, gs],
        task,
        tables: [gdt.base.as_u64(), idt.base.as_u64()],
        rip: switch::left(),
    }
}
