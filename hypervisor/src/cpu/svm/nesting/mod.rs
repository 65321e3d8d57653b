//! A guest, L1, that runs guests of its own, L2: what it has of SVM, and the control block by which
//! L2 runs. What is merged and who owns an exit is the crate `nested`'s.
//!
//! Guarantees, whatever L1 writes: L2 runs by a control block and maps in the host's memory, in an
//! address space of its own, by tables that map what L1's own do of its memory and of registers,
//! and nothing else, or by L1's own; nothing is allocated after boot.
//!
//! L1's global interrupt flag the CPU keeps where it can, and an interrupt that comes meanwhile is
//! guarded. Else, while the flag is clear, the task priority of the core's local APIC (in injection
//! mode the virtual one) holds every interrupt back: what comes stays pending, and nothing exits
//! for it. L1 would see that in CR8 and in the APIC's registers, and nowhere else.
//!
//! | file | is |
//! |---|---|
//! | `apic` | L2's local APIC, where L1 has it accelerated |
//! | `guarding` | an interrupt of L1's that the CPU delivers when the flag that it keeps is set |
//! | `holding` | L1's global interrupt flag, and what holds interrupts back |
//! | `inner_apic` | what is kept of L2's local APIC |
//! | `instructions` | VMRUN, VMLOAD, VMSAVE, STGI, CLGI, INVLPGA |
//! | `leaving` | the exits of L2 |
//! | `maps` | the permission maps by which L2 runs |
//! | `memory` | L1's memory, the frames of the composed tables |
//! | `serving` | what L2 does as L1's own |
//! | `switches` | what makes all this cheap, switched off to be measured |
//! | `taking` | interrupts that L2 takes itself |

mod apic;
mod guarding;
mod holding;
mod inner_apic;
mod instructions;
mod leaving;
mod maps;
mod memory;
mod serving;
mod switches;
mod taking;

pub use memory::post as post_to_inner;

use crate::memory as machine;
use alloc::vec::Vec;
use inner_apic::{InnerApic, Taking};
use memory::{Frames, LastPage};
use nested::tables::{Registers, Shadow};
use nested::{Host, Keep, MSR_WORDS, Nest, Offer, OpenWords, PORT_WORDS, UsedMaps};
use svm::maps::{MSR_BYTES, PORT_BYTES};
use svm::{EFER_SVME, Features, Inner, Maps, Vmcb};
use vendor::{GuestPages, PostedTo};

/// For the tables of each vCPU: with its memory in pages of 4 KiB, 1 GiB of L2's at a time.
const FRAMES: u64 = 512;
/// Of a vCPU with a core of its own L1 runs in 1.
const ADDRESS_SPACE: u32 = 2;

/// Pages of our own, filled with a byte; none: memory ran out.
#[cold]
#[inline(never)]
fn pages(bytes: usize, fill: u8) -> Option<u64> {
    let at = machine::allocate(bytes as u64, 4096)?;
    // SAFETY: just allocated with this size, identity-mapped, and nobody's yet.
    unsafe { core::ptr::write_bytes(at as *mut u8, fill, bytes) };
    Some(at)
}

/// What a vCPU needs for it.
pub struct Nesting {
    nest: Nest,
    /// The control block by which L2 runs, 02.
    inner: &'static mut Vmcb,
    host: Host,
    offer: Offer,
    features: Features,
    /// L2's map of MSRs; which of L1's it was last made of.
    msrs: &'static mut [u64; MSR_WORDS],
    made_of: usize,
    /// The words of L2's maps that it uses.
    used: UsedMaps,
    /// The maps of MSRs by which L1 runs, and where they are open.
    open: Vec<(u64, OpenWords)>,
    /// L2's map of ports, and where that of L1 is open.
    ports: &'static mut [u64; PORT_WORDS],
    open_to_l1: OpenWords,
    shadow: Shadow,
    /// What is in it beside L1's memory.
    registers: Registers,
    frames: Frames,
    /// The address of L2's whose fault L1 was told last, and by which tables.
    missed: Option<(u64, u64)>,
    /// The root of L1's own tables.
    own_root: u64,
    /// The machine's address of L1's control block, 12, while L2 is current.
    block: Option<u64>,
    /// Where the last one was in L1's memory, as `instructions::key` has it, and in the machine's.
    known: (u64, u64),
    /// The same of the pages of its permission maps: of MSRs, and of ports.
    known_maps: [LastPage; 2],
    /// The task priority, while L1's global interrupt flag is clear, or L1 holds interrupts back
    /// from L2.
    held: Option<u8>,
    /// For how long the CPU keeps that flag.
    keep: Keep,
    /// EFER.SVME as L1 has it.
    on: bool,
    /// Which MOVs to debug registers exit, while some don't for one entry.
    debug: Option<u16>,
    /// While 01 has L2's registers, and this block L1's: L2's CR2 as it was.
    served: Option<u64>,
    /// What L1's tables lack for that: EXITINFO1 and EXITINFO2 of L1's fault.
    lacks: Option<(u64, u64)>,
    /// L2's local APIC, if L1 has that accelerated.
    apic: Option<InnerApic>,
    /// Devices post interrupts to it: for which backing page, and how it takes them.
    posts: Option<&'static PostedTo>,
    taking: Taking,
}

impl Nesting {
    /// Of a vCPU whose maps of MSRs and nested tables are these. None: memory ran out.
    pub fn new(offer: Offer, features: Features, own: &Maps, nested_root: u64) -> Option<Self> {
        let inner = pages(size_of::<Vmcb>(), 0)?;
        let (msrs, ports) = (pages(MSR_BYTES, 0xFF)?, pages(PORT_BYTES, 0xFF)?);
        let (msrpm_base, iopm_base) = (msrs, ports);
        // SAFETY: just allocated with these sizes, aligned, identity-mapped, and ours; all zeroes
        // are a valid control block.
        let (inner, msrs, ports) = unsafe {
            let msrs = &mut *(msrs as *mut [u64; MSR_WORDS]);
            (&mut *(inner as *mut Vmcb), msrs, &mut *(ports as *mut [u64; PORT_WORDS]))
        };
        let host = Host { asid: ADDRESS_SPACE, msrpm_base, iopm_base };
        Nest::set_up(inner, &host);
        inner.nested_cr3 = nested_root;
        // SAFETY: maps of L1's have these sizes, and are aligned; they don't change any more.
        let words =
            |map: u64, bytes| unsafe { core::slice::from_raw_parts(map as *const u64, bytes / 8) };
        let mut open = Vec::with_capacity(own.msrs.len());
        for map in own.msrs {
            open.push((map, OpenWords::of(words(map, MSR_BYTES)).ok()?));
        }
        let open_to_l1 = OpenWords::of(words(own.ports, PORT_BYTES)).ok()?;
        Some(Nesting {
            nest: Nest::new(),
            inner,
            host,
            offer,
            features,
            msrs,
            made_of: 0,
            used: UsedMaps::default(),
            open,
            ports,
            open_to_l1,
            shadow: Shadow::new(),
            registers: Registers::default(),
            own_root: nested_root,
            frames: Frames::new(FRAMES)?,
            missed: None,
            block: None,
            known: (0, 0),
            known_maps: [const { LastPage::new() }; 2],
            held: None,
            keep: Keep::default(),
            on: false,
            debug: None,
            served: None,
            lacks: None,
            apic: None,
            posts: None,
            taking: Taking::default(),
        })
    }

    /// What another core looks at.
    pub fn outline(&mut self) -> Inner {
        Inner {
            vmcb: core::ptr::from_mut::<Vmcb>(self.inner) as u64,
            asid: self.host.asid,
            maps: (self.host.msrpm_base, self.host.iopm_base),
            frames: self.frames.range,
            nested_root: self.own_root,
        }
    }

    /// Devices post interrupts to its guests, for this page. Boot only.
    pub fn set_posts(&mut self, to: &'static PostedTo) {
        self.posts = Some(to);
    }

    /// EFER as L1 sees it has this of SVM.
    pub fn efer(&self) -> u64 {
        if self.on { EFER_SVME } else { 0 }
    }

    /// L1 wrote EFER. Gives whether SVM is on.
    pub fn set_efer(&mut self, value: u64) -> bool {
        self.on = value & EFER_SVME != 0;
        self.on
    }

    /// Is L1's global interrupt flag clear?
    pub fn holds(&self) -> bool {
        self.held.is_some()
    }

    /// Physical address of the control block by which L2 is to run.
    #[inline]
    pub fn block(&mut self) -> Option<u64> {
        self.block.map(|_| core::ptr::from_mut::<Vmcb>(self.inner) as u64)
    }

    /// Is L2 to run, rather than L1?
    pub fn runs_inner(&self) -> bool {
        self.block.is_some()
    }

    /// L1's permission maps, as they were at the last VMRUN.
    #[inline(always)]
    fn maps<'a>(&'a self, memory: &'a dyn GuestPages) -> memory::Maps<'a> {
        let ((msrs, ports), [of_msrs, of_ports]) = (self.nest.control().maps(), &self.known_maps);
        memory::Maps { memory, msrs: (msrs, of_msrs), ports: (ports, of_ports) }
    }

    /// Does L2's next entry inject an event?
    pub fn injects(&self) -> bool {
        svm::pending(self.inner).is_some()
    }

    /// Nothing that the CPU has cached of L2's translations is used again.
    pub fn flush(&mut self) {
        self.inner.tlb_control = 1;
    }

    /// Translations of L1's were changed. Those of its memory never are; registers may be
    /// elsewhere, or nobody's, and what L2 has of them goes.
    #[cold]
    #[inline(never)]
    pub fn own_changed(&mut self) {
        self.flush();
        if self.registers.forget() {
            self.forget_tables();
        }
    }

    /// Drops what is kept of L1's tables.
    #[cold]
    #[inline(never)]
    fn forget_tables(&mut self) {
        let runs = self.block.is_some() && self.inner.nested_cr3 != self.own_root;
        // Before its frames are another tree's.
        self.inner.nested_cr3 = self.own_root;
        self.shadow.clear(&mut self.frames);
        if runs {
            // There is one: all frames are free.
            let (key, space) = self.nest.control().tables();
            if let Ok((root, _)) = self.shadow.root(&mut self.frames, key, space) {
                self.inner.nested_cr3 = root;
            }
        }
    }

    /// The core's local APIC has nothing of L2's any more. What was in service there is in L2's
    /// page, which INIT leaves as it is; a VM that starts again clears its memory after this.
    pub fn release(&mut self) {
        self.end_taking();
        self.adopt_in_service();
        self.apic = None;
    }

    /// As after reset, with whatever ran in it forgotten. The task priority is the caller's to set.
    #[cold]
    #[inline(never)]
    pub fn reset(&mut self) {
        self.release();
        self.taking = Taking::default();
        self.nest.forget();
        self.withdraw_from_inner();
        (self.block, self.held, self.on) = (None, None, false);
        (self.served, self.lacks, self.apic) = (None, None, None);
        self.keep = Keep::default();
        self.registers.forget();
        self.forget_tables();
        self.flush();
        if let Some(debug) = self.debug.take() {
            self.inner.intercept_dr_write = debug;
        }
    }
}
