//! Nested page faults: the IDT's page, emulated registers, and memory that isn't there.
//!
//! Loads from where nothing is give all ones and stores there vanish, as on a PC's bus;
//! code there ends the VM.

use crate::cpu::vendor::VirtualCpu;
use crate::vm::Vcpu;
use crate::vm::stop::Incident;
use crate::vm::stop::{Fault, Stop};
use decode::{Device, Op, emulate_mmio};
use delivery::Interruption;
use ledger::Reason;

const IOAPIC: core::ops::Range<u64> = 0xFEC0_0000..0xFEC0_1000;

/// What an emulated instruction did: at most one load, then at most one store.
struct Access {
    loaded: u64,
    stored: Option<(u8, u64)>,
}

impl Device for Access {
    fn load(&mut self, _size: u8) -> u64 {
        self.loaded
    }

    fn store(&mut self, size: u8, value: u64) {
        self.stored = Some((size, value));
    }
}

impl<C: VirtualCpu> Vcpu<C> {
    pub(in crate::vm) fn nested_fault(
        &mut self,
        address: u64,
        fetch: bool,
        table: bool,
        event: Interruption,
    ) -> Result<Reason, (Reason, Stop)> {
        if self.vm.memory.resolve(address & !0xFFF, 4096).is_some() {
            // Its own memory is refused to the guest for a shadow IDT alone. Another vCPU may have
            // taken that away by now: then the access is right as it is.
            let stop = |f| (Reason::IdtWrite, Stop::Fault(f));
            self.with_pc(|pc, here| pc.drop_at(here, address & !0xFFF)).map_err(stop)?;
            self.cpu.flush_translations();
            self.redeliver(event);
            return Ok(Reason::IdtWrite);
        }
        let reason = self.reason_at(address);
        let fault = |f| Err((reason, Stop::Fault(f)));
        if event.valid() {
            return fault(Fault::Delivery { address, vector: event.vector() });
        }
        if fetch || table {
            return fault(Fault::Fetch(address));
        }
        match self.emulate(address, reason) {
            Ok(()) => Ok(reason),
            Err(f) => fault(f),
        }
    }

    fn reason_at(&self, address: u64) -> Reason {
        if IOAPIC.contains(&address) {
            Reason::Ioapic
        } else if platform::pci::MEM32_WINDOW.contains(&address)
            || platform::pci::MEM64_WINDOW.contains(&address)
        {
            Reason::MsixTable
        } else {
            Reason::NestedPageFault
        }
    }

    fn emulate(&mut self, address: u64, reason: Reason) -> Result<(), Fault> {
        let mut bytes = [0; 15];
        let length = self.fetch(&mut bytes).ok_or(Fault::Unreadable { address })?;
        let instruction =
            decode::decode(bytes.get(..length).unwrap_or_default(), self.cpu.code_mode())
                .map_err(|why| Fault::Instruction { address, why })?;
        if !matches!(instruction.size, 1 | 2 | 4 | 8) {
            return Err(Fault::Instruction { address, why: decode::Error::NotMemoryAccess });
        }
        let mut access = Access { loaded: 0, stored: None };
        if !matches!(instruction.op, Op::Store(_)) {
            access.loaded = self.load(address, instruction.size, reason);
        }
        emulate_mmio(&instruction, &mut self.cpu, &mut access)
            .map_err(|why| Fault::Instruction { address, why })?;
        self.cpu.resume_at(self.cpu.rip().wrapping_add(instruction.len as u64));
        match access.stored {
            Some((size, value)) => self.store(address, size, value, reason),
            None => Ok(()),
        }
    }

    fn load(&mut self, address: u64, size: u8, reason: Reason) -> u64 {
        let found = match reason {
            Reason::Ioapic => {
                Some(self.with_pc(|pc, _| pc.ioapic.read((address - IOAPIC.start) as u32)) as u64)
            }
            _ => self.with_pc(|pc, _| pc.bar_load(address, size)),
        };
        found.unwrap_or_else(|| {
            self.note_incident(Incident::Memory(address));
            u64::MAX
        })
    }

    fn store(&mut self, address: u64, size: u8, value: u64, reason: Reason) -> Result<(), Fault> {
        let vm = self.vm;
        self.with_pc(|pc, here| {
            if reason == Reason::Ioapic {
                pc.write_ioapic(vm, (address - IOAPIC.start) as u32, value as u32);
                return Ok(());
            }
            pc.bar_store(here, address, size, value).unwrap_or_else(|| {
                pc.incident = Some(Incident::Memory(address));
                Ok(())
            })
        })
    }
}
