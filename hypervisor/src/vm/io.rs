//! Port, CPUID and XSETBV exits, and the console's interrupt.

use super::Vm;
use super::apic::for_this_vcpu;
use super::vcpu::{GENERAL_PROTECTION, Stop};
use crate::console;
use crate::cpu::vendor::VirtualCpu;
use delivery::Mode;
use ledger::Reason;
use platform::cpuid::{CpuidContext, CpuidResult};
use platform::ports::{self, Port};
use platform::power::{self, PowerEvent};

const RAX: u8 = 0;
const RCX: u8 = 1;
const RDX: u8 = 2;
const RBX: u8 = 3;
/// IOAPIC pin of the console.
const CONSOLE_PIN: usize = 4;
const CPUID: [u8; 2] = [0x0F, 0xA2];
const XSETBV: [u8; 3] = [0x0F, 0x01, 0xD1];
const CR4_OSXSAVE: u64 = 1 << 18;
const CR4_PKE: u64 = 1 << 22;

impl<C: VirtualCpu> Vm<C> {
    pub(super) fn port_io(
        &mut self,
        port: u16,
        size: u8,
        input: bool,
        string: bool,
        next: u64,
    ) -> Result<Reason, (Reason, Stop)> {
        let to = ports::route(port, size);
        let reason = match to {
            Port::Uart(_) => Reason::ConsoleIo,
            Port::PciAddress | Port::PciData(_) => Reason::PciConfig,
            _ => Reason::PortIo,
        };
        let done = match string {
            true => self.string_io(to, size, input, next),
            false => self.register_io(to, size, input, next),
        };
        done.map(|()| reason).map_err(|stop| (reason, stop))
    }

    /// IN or OUT.
    pub(super) fn register_io(
        &mut self,
        port: Port,
        size: u8,
        input: bool,
        next: u64,
    ) -> Result<(), Stop> {
        let old = self.cpu.gpr(RAX);
        if input {
            let value = self.port_read(port, size) as u64;
            self.cpu.set_gpr(
                RAX,
                match size {
                    1 => old & !0xFF | value & 0xFF,
                    2 => old & !0xFFFF | value & 0xFFFF,
                    _ => value,
                },
            );
        } else {
            let value = old as u32 & ports::unclaimed(size);
            self.port_write(port, size, value)?;
        }
        self.cpu.resume_at(next);
        Ok(())
    }

    pub(super) fn port_read(&mut self, port: Port, size: u8) -> u32 {
        match port {
            Port::Uart(offset) => {
                let value = self.uart.read(offset) as u32;
                self.feed_console();
                value
            }
            Port::RtcData => self.rtc.read_data() as u32,
            Port::PciAddress => self.bus.read_address(),
            Port::PciData(offset) => self.bus.read_data(offset, size),
            other => power::read(other, size),
        }
    }

    pub(super) fn port_write(&mut self, port: Port, size: u8, value: u32) -> Result<(), Stop> {
        match port {
            Port::Uart(offset) => {
                if let Some(byte) = self.uart.write(offset, value as u8) {
                    console::guest_output(self.index, &[byte]);
                }
            }
            Port::RtcIndex => self.rtc.write_index(value as u8),
            Port::PciAddress => self.bus.write_address(value),
            Port::PciData(offset) => {
                if let Some((index, actions)) = self.bus.write_data(offset, size, value) {
                    self.follow(index, actions).map_err(Stop::Fault)?;
                }
            }
            other => match power::write(other, value) {
                Some(PowerEvent::Off) => return Err(Stop::PowerOff),
                Some(PowerEvent::Reset) => return Err(Stop::Reset),
                Some(PowerEvent::DebugExit(code)) => return Err(Stop::DebugExit(code)),
                None => {}
            },
        }
        Ok(())
    }

    pub(super) fn cpuid(&mut self) {
        let (leaf, subleaf) = (self.cpu.gpr(RAX) as u32, self.cpu.gpr(RCX) as u32);
        let context = CpuidContext {
            apic_id: 0,
            cpus: 1,
            osxsave: self.cpu.cr4() & CR4_OSXSAVE != 0,
            pke: self.cpu.cr4() & CR4_PKE != 0,
            max_basic: self.cpuid_limits.0,
            max_extended: self.cpuid_limits.1,
            ledger_page: super::LEDGER_PAGE,
        };
        let shown = platform::cpuid::filter(leaf, subleaf, physical_cpuid(leaf, subleaf), &context);
        self.cpu.set_gpr(RAX, shown.eax as u64);
        self.cpu.set_gpr(RBX, shown.ebx as u64);
        self.cpu.set_gpr(RCX, shown.ecx as u64);
        self.cpu.set_gpr(RDX, shown.edx as u64);
        self.skip(&CPUID);
    }

    /// XCR0 isn't switched at an exit and the host doesn't use it: the guest's value is set
    /// for real, if the CPU would take it (APM vol. 4, XSETBV).
    pub(super) fn xsetbv(&mut self) {
        let value = self.cpu.gpr(RDX) << 32 | self.cpu.gpr(RAX) & 0xFFFF_FFFF;
        let states = physical_cpuid(0xD, 0);
        let offered = (states.edx as u64) << 32 | states.eax as u64;
        let allowed = self.cpu.privilege() == 0
            && self.cpu.cr4() & CR4_OSXSAVE != 0
            && self.cpu.gpr(RCX) as u32 == 0
            && platform::cpuid::xcr0_allowed(value, offered);
        if !allowed {
            self.cpu.raise(GENERAL_PROTECTION, Some(0));
            return;
        }
        crate::cpu::control::set_xcr0(value);
        self.skip(&XSETBV);
    }

    /// Turns an edge of the console's interrupt line into an interrupt.
    pub(super) fn raise_console(&mut self) {
        if self.uart.take_edge()
            && let Some(message) = self.ioapic.raise(CONSOLE_PIN)
            && for_this_vcpu(&message)
        {
            self.give(message.vector);
            if self.mode == Mode::Dedicated {
                // The guest's EOI isn't seen there. The line is a pulse: nothing is lost.
                self.ioapic.eoi(message.vector);
            }
        }
    }

    /// Gives the console what has arrived for it, as far as it has room.
    pub(super) fn feed_console(&mut self) {
        while let Some(byte) =
            self.console_input.take().or_else(|| console::guest_input(self.index))
        {
            if !self.uart.push_input(byte) {
                self.console_input = Some(byte);
                break;
            }
        }
    }
}

/// CPUID of this core.
pub fn physical_cpuid(leaf: u32, subleaf: u32) -> CpuidResult {
    let r = raw_cpuid::native_cpuid::cpuid_count(leaf, subleaf);
    CpuidResult { eax: r.eax, ebx: r.ebx, ecx: r.ecx, edx: r.edx }
}
