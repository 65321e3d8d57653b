//! QEMU's `edu` device (1234:11e8, docs/specs/edu): raises interrupts on a write,
//! computes factorials in the background, copies memory by DMA. One MSI vector.

use crate::{cpu, idt, idt::Frame, pci, wait, x2apic};
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering::SeqCst};

/// Its vendor and device ids.
pub const IDENTITY: u32 = 0x11E8_1234;
const FACTORIAL: u64 = 0x08;
const STATUS: u64 = 0x20;
const INTERRUPT_STATUS: u64 = 0x24;
const RAISE: u64 = 0x60;
const ACKNOWLEDGE: u64 = 0x64;
const DMA_SOURCE: u64 = 0x80;
const DMA_DESTINATION: u64 = 0x88;
const DMA_COUNT: u64 = 0x90;
const DMA_COMMAND: u64 = 0x98;
const STATUS_COMPUTING: u32 = 0x01;
const STATUS_INTERRUPT: u32 = 0x80;
const DMA_RUN: u64 = 0x01;
const DMA_TO_MEMORY: u64 = 0x02;
const DMA_INTERRUPT: u64 = 0x04;
const MSI_ENABLE: u32 = 1 << 16;
const MSI_64_BIT: u32 = 1 << 23;

/// The device's own buffer, as its DMA engine addresses it.
const BUFFER: u64 = 0x40000;
/// What the identification register reads as.
pub const IDENTIFICATION: u32 = 0x0100_00ED;

/// Where the handler finds the device; one device a machine.
static BASE: AtomicU64 = AtomicU64::new(0);

/// In its place, on a machine without it: the vector that [`raise`] sends to the CPU itself.
static STAND_IN: AtomicU8 = AtomicU8::new(0);

/// The device.
pub struct Edu {
    /// Its place in configuration space.
    pub function: pci::Function,
    msi: u8,
}

impl Edu {
    /// Finds it and turns on memory and bus master; MSI stays off.
    pub fn find() -> Option<Edu> {
        let function = pci::Function::all().find(|f| f.read(0) == IDENTITY)?;
        let msi = function.capability(pci::MSI)?;
        function.write(pci::COMMAND, pci::MEMORY_AND_MASTER);
        let edu = Edu { function, msi };
        BASE.store(edu.bar(), SeqCst);
        Some(edu)
    }

    /// Another one, of which only the MSI and [`Edu::raise`] are used.
    pub fn find_second() -> Option<Edu> {
        let function = pci::Function::all().filter(|f| f.read(0) == IDENTITY).nth(1)?;
        let msi = function.capability(pci::MSI)?;
        function.write(pci::COMMAND, pci::MEMORY_AND_MASTER);
        Some(Edu { function, msi })
    }

    /// Has this one send its interrupt now.
    pub fn raise(&self) {
        let base = self.bar();
        cpu::mmio_write(base + RAISE, 1);
        let _ = cpu::mmio_read(base + STATUS);
    }

    /// Where its BAR 0 is.
    pub fn bar(&self) -> u64 {
        u64::from(self.function.read(pci::BAR0) & !0xF)
    }

    /// Where BAR 0 is.
    pub fn base(&self) -> u64 {
        base()
    }

    /// Moves BAR 0 and follows it; what was written may be refused.
    pub fn move_to(&self, address: u32) {
        self.function.write(pci::BAR0, address);
        BASE.store(self.bar(), SeqCst);
    }

    /// A register.
    pub fn read(&self, register: u64) -> u32 {
        cpu::mmio_read(self.base() + register)
    }

    /// Programs its MSI: address, data, and whether it is enabled.
    pub fn program(&self, address: u64, data: u32, enabled: bool) {
        let control = self.function.read(self.msi);
        self.function.write(self.msi, control & !MSI_ENABLE);
        self.function.write(self.msi + 4, address as u32);
        if control & MSI_64_BIT != 0 {
            self.function.write(self.msi + 8, (address >> 32) as u32);
            self.function.write(self.msi + 12, data);
        } else {
            self.function.write(self.msi + 8, data);
        }
        if enabled {
            self.function.write(self.msi, control | MSI_ENABLE);
        }
    }

    /// Points its MSI at another CPU, in one write: an interrupt raised meanwhile goes to
    /// the old one or the new one.
    pub fn route(&self, cpu: usize) {
        self.function.write(self.msi + 4, message_address(cpu as u32) as u32);
    }

    /// Gives its MSI another vector, in one write.
    pub fn set_vector(&self, vector: u8) {
        let wide = self.function.read(self.msi) & MSI_64_BIT != 0;
        self.function.write(self.msi + if wide { 12 } else { 8 }, u32::from(vector));
    }

    /// Points its MSI at `vector` on this CPU and enables it.
    pub fn aim(&self, vector: u8) {
        self.program(message_address(x2apic::id()), u32::from(vector), true);
    }

    /// Points its MSI at `vector`, with [`handler`] behind it.
    pub fn aim_handled(&self, vector: u8) {
        idt::on(vector, handler);
        self.aim(vector);
    }

    /// Turns its MSI off.
    pub fn silence(&self) {
        self.program(message_address(x2apic::id()), 0, false);
        acknowledge();
    }

    /// Raises and waits until `vector` was handled `times` times in all; gives how
    /// often it was.
    pub fn raise_and_wait(&self, vector: u8, times: u64) -> u64 {
        for _ in 0..times {
            let before = idt::count(vector);
            raise();
            if !wait::until(|| idt::count(vector) > before) {
                break;
            }
        }
        idt::count(vector)
    }

    /// Starts a factorial; an interrupt tells its end.
    pub fn compute(&self, number: u32) {
        cpu::mmio_write(self.base() + STATUS, STATUS_INTERRUPT);
        cpu::mmio_write(self.base() + FACTORIAL, number);
    }

    /// The factorial, when done.
    pub fn result(&self) -> Option<u32> {
        (self.read(STATUS) & STATUS_COMPUTING == 0).then(|| self.read(FACTORIAL))
    }

    /// Copies `bytes` from its buffer to memory; false when it never ends.
    pub fn dma_to_memory(&self, address: u64, bytes: u64) -> bool {
        self.dma(BUFFER, address, bytes, DMA_TO_MEMORY)
    }

    /// Copies `bytes` from memory to its buffer; false when it never ends.
    pub fn dma_from_memory(&self, address: u64, bytes: u64) -> bool {
        self.dma(address, BUFFER, bytes, 0)
    }

    /// Has it begin to copy `bytes` from memory to its buffer, and doesn't wait.
    pub fn start_from_memory(&self, address: u64, bytes: u64) {
        self.start(address, BUFFER, bytes, 0);
    }

    /// The same; an interrupt tells the end, a tenth of a second later.
    pub fn start_and_tell(&self, address: u64, bytes: u64) {
        self.start(address, BUFFER, bytes, DMA_INTERRUPT);
    }

    fn dma(&self, source: u64, destination: u64, bytes: u64, direction: u64) -> bool {
        let base = self.base();
        self.start(source, destination, bytes, direction);
        wait::until(|| u64::from(cpu::mmio_read(base + DMA_COMMAND)) & DMA_RUN == 0)
    }

    fn start(&self, source: u64, destination: u64, bytes: u64, how: u64) {
        let base = self.base();
        cpu::mmio_write64(base + DMA_SOURCE, source);
        cpu::mmio_write64(base + DMA_DESTINATION, destination);
        cpu::mmio_write64(base + DMA_COUNT, bytes);
        cpu::mmio_write64(base + DMA_COMMAND, DMA_RUN | how);
    }
}

/// The MSI address that reaches an APIC id (SDM 3A, 11.11.1).
pub fn message_address(id: u32) -> u64 {
    0xFEE0_0000 | u64::from(id & 0xFF) << 12
}

/// On a machine without it: has [`raise`] send this vector to the CPU itself.
pub fn stand_in(vector: u8) {
    STAND_IN.store(vector, SeqCst);
}

/// Where the device's BAR 0 is.
pub fn base() -> u64 {
    BASE.load(SeqCst)
}

/// Makes the device send its interrupt now.
pub fn raise() {
    let (base, vector) = (BASE.load(SeqCst), STAND_IN.load(SeqCst));
    if vector != 0 {
        // In xAPIC mode there is no such register.
        let _ = cpu::try_wrmsr(x2apic::SELF_IPI, vector.into());
        return;
    }
    cpu::mmio_write(base + RAISE, 1);
    // Reading back pushes the posted write and the message before it.
    let _ = cpu::mmio_read(base + STATUS);
}

/// Clears the device's interrupt status.
pub fn acknowledge() {
    let base = BASE.load(SeqCst);
    let status = cpu::mmio_read(base + INTERRUPT_STATUS);
    cpu::mmio_write(base + ACKNOWLEDGE, status);
}

/// The usual handler: acknowledge the device, complete the interrupt.
pub fn handler(_: &mut Frame) {
    acknowledge();
    x2apic::complete();
}
