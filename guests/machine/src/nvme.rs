//! As much of an NVMe controller as an attack needs: its admin queues and two commands (Identify
//! and Get Log Page, NVM Express 1.4, 5.15 and 5.14), whose answers go wherever a 64-bit address
//! says.

use crate::{cpu, pci, pci::Function, wait};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

const CLASS: u32 = 0x01_0802;
const CLASS_REGISTER: u8 = 0x08;
/// A place for its registers in the window that guests have for 32-bit BARs.
const BASE: u32 = 0xD800_0000;
const CC: u64 = 0x14;
const CSTS: u64 = 0x1C;
const AQA: u64 = 0x24;
const ASQ: u64 = 0x28;
const ACQ: u64 = 0x30;
const DOORBELLS: u64 = 0x1000;
const ENABLE: u32 = 0x46_0001;
const READY: u32 = 1;
const FATAL: u32 = 2;
const IDENTIFY: u32 = 6;
const GET_LOG_PAGE: u32 = 2;
/// Its health, of any namespace; one dword, zero-based.
const HEALTH: u64 = 2;
const SLOTS: u32 = 8;

#[repr(C, align(4096))]
struct Page([AtomicU64; 512]);
static SUBMISSION: Page = Page([const { AtomicU64::new(0) }; 512]);
static COMPLETION: Page = Page([const { AtomicU64::new(0) }; 512]);

/// A controller.
pub struct Nvme {
    /// Where it is in configuration space.
    pub function: Function,
    base: u64,
    tail: u32,
}

impl Nvme {
    /// Whether a function is one.
    pub fn is(function: Function) -> bool {
        function.read(CLASS_REGISTER) >> 8 == CLASS
    }

    /// Finds the first, and lets it reach memory.
    pub fn find() -> Option<Nvme> {
        let function = Function::all().find(|f| f.present() && Nvme::is(*f))?;
        // The identity map ends at 4 GiB, and 64-bit BARs lie above it.
        function.write(pci::COMMAND, 0);
        function.write(pci::BAR0 + 4, 0);
        function.write(pci::BAR0, BASE);
        function.write(pci::COMMAND, pci::MEMORY_AND_MASTER);
        let base = u64::from(BASE);
        (function.read(pci::BAR0) & !0xF == BASE).then_some(Nvme { function, base, tail: 0 })
    }

    /// Where its registers are.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Moves its registers and follows them; what was written may be refused.
    pub fn move_to(&mut self, address: u32) {
        self.function.write(pci::BAR0, address);
        self.base = u64::from(self.function.read(pci::BAR0) & !0xF);
    }

    /// Its MSI-X table.
    pub fn table(&self) -> Option<(u8, u64)> {
        let capability = self.function.capability(pci::MSIX)?;
        let at = self.function.read(capability + 4);
        Some((capability, self.base + u64::from(at & !7)))
    }

    /// Starts it, with its queues in this kernel's memory.
    pub fn start(&mut self) -> bool {
        let (submission, completion) = self.queues();
        self.start_at(submission, completion)
    }

    /// Where its queues are in this kernel's memory: of commands, and of completions.
    pub fn queues(&self) -> (u64, u64) {
        let queue = |page: &Page| page.0.as_ptr() as u64;
        (queue(&SUBMISSION), queue(&COMPLETION))
    }

    /// Starts it, with its queues anywhere.
    pub fn start_at(&mut self, submission: u64, completion: u64) -> bool {
        cpu::mmio_write(self.base + CC, 0);
        wait::until(|| cpu::mmio_read(self.base + CSTS) & READY == 0);
        COMPLETION.0.iter().for_each(|word| word.store(0, SeqCst));
        self.tail = 0;
        cpu::mmio_write(self.base + AQA, (SLOTS - 1) << 16 | (SLOTS - 1));
        for (register, value) in [(ASQ, submission), (ACQ, completion)] {
            cpu::mmio_write(self.base + register, value as u32);
            cpu::mmio_write(self.base + register + 4, (value >> 32) as u32);
        }
        cpu::mmio_write(self.base + CC, ENABLE);
        wait::until(|| cpu::mmio_read(self.base + CSTS) & (READY | FATAL) != 0)
    }

    /// Whether it is enabled or ready: not after a reset. Where its queues were it may go on to
    /// tell.
    pub fn is_enabled(&self) -> bool {
        [CC, CSTS].iter().any(|register| cpu::mmio_read(self.base + register) & 1 != 0)
    }

    /// Whether it has written to its completion queue, in this kernel's memory.
    pub fn has_completed(&self) -> bool {
        COMPLETION.0.iter().any(|word| word.load(SeqCst) != 0)
    }

    /// Leaves commands for it in its submission queue, and doesn't tell it.
    pub fn leave_commands(&mut self, address: u64) {
        for slot in 0..SLOTS as usize {
            self.put(slot, IDENTIFY, address, 1);
        }
    }

    /// Stops it.
    pub fn stop(&mut self) {
        cpu::mmio_write(self.base + CC, 0);
        wait::until(|| cpu::mmio_read(self.base + CSTS) & READY == 0);
    }

    /// Has it write what it is to `address`, anywhere; gives the status, if it ever completes.
    pub fn identify_to(&mut self, address: u64) -> Option<u32> {
        self.command(IDENTIFY, address, 1)
    }

    /// Has it write four bytes to `address`: the beginning of its health log.
    pub fn word_to(&mut self, address: u64) -> Option<u32> {
        self.command(GET_LOG_PAGE, address, HEALTH)
    }

    fn command(&mut self, opcode: u32, address: u64, parameter: u64) -> Option<u32> {
        let slot = (self.tail % SLOTS) as usize;
        self.put(slot, opcode, address, parameter);
        let phase = u64::from((self.tail / SLOTS).is_multiple_of(2));
        self.tail += 1;
        cpu::mmio_write(self.base + DOORBELLS, self.tail % SLOTS);
        let entry = &COMPLETION.0[slot * 2 + 1];
        let came = wait::until(|| entry.load(SeqCst) >> 48 & 1 == phase);
        cpu::mmio_write(self.base + DOORBELLS + 4, self.tail % SLOTS);
        came.then(|| (entry.load(SeqCst) >> 49) as u32)
    }

    fn put(&mut self, slot: usize, opcode: u32, address: u64, parameter: u64) {
        let command = [u64::from(opcode), 0, 0, address, 0, parameter, 0, 0];
        for (word, value) in SUBMISSION.0.iter().skip(slot * 8).zip(command) {
            word.store(value, SeqCst);
        }
    }

    /// Tells it where its admin queues end and begin, true or not: it executes what it finds there,
    /// and each completion asks for an interrupt. Doesn't wait.
    pub fn ring(&self, tail: u32, head: u32) {
        cpu::mmio_write(self.base + DOORBELLS, tail % SLOTS);
        cpu::mmio_write(self.base + DOORBELLS + 4, head % SLOTS);
    }

    /// Rings doorbells of queues that there aren't, with indices that there aren't.
    pub fn ring_all(&self) {
        for queue in 0..64 {
            cpu::mmio_write(self.base + DOORBELLS + queue * 4, 0xFFFF_FFFF);
        }
    }
}
