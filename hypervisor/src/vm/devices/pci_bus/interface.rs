//! What a function offers to the guest's PCI bus.
//!
//! The bus has the configuration spaces (`virtual_pc::pci`), maps BARs, routes interrupts and says
//! when what happens; a function answers at what isn't mapped, and does what is physical about it.
//! The VM's lock is held in every call.

use crate::pci::reset::Reset;
use crate::vm::devices::pci_bus::placement::Placement;
use crate::vm::devices::pci_bus::source::Sources;
use crate::vm::exit_context::ExitContext;
use crate::vm::guest::Guest;
use crate::vm::stop::{DeviceFinding, Incident};
use ::iommu::Bdf;
use virtual_pc::message::Written;
use virtual_pc::pci::Function as Shown;

/// A function of the bus. `shown`: its configuration space as the guest sees it.
pub trait PciFunction: Send {
    /// The requester id of its interrupts, and its name in reports.
    fn bdf(&self) -> Bdf;

    /// Its BARs. Those that are open aren't the function's to answer.
    fn placement(&self) -> &Placement;
    /// The same, to be moved.
    fn placement_mut(&mut self) -> &mut Placement;

    /// Its interrupt sources.
    fn sources(&self) -> &Sources;
    /// The same, to be routed.
    fn sources_mut(&mut self) -> &mut Sources;

    /// The guest's load of `size` bytes at an offset in a BAR, which it has.
    fn load(&mut self, cx: &mut ExitContext, bar: usize, offset: u64, size: u8) -> u64;
    /// The guest's store there. Gives the source whose message or mask that changed.
    fn store(
        &mut self,
        cx: &mut ExitContext,
        bar: usize,
        offset: u64,
        size: u8,
        value: u64,
    ) -> Option<usize>;

    /// What a source is to write, as the guest has it; `None`: it sends nothing. The source keeps
    /// the route that it had, in that case.
    fn written(&self, shown: &Shown, source: usize) -> Option<Written>;
    /// The route of a source is about to change.
    fn hold(&mut self, source: usize);
    /// A source sends by its route from here on, or if it isn't `open` none: what happens then
    /// waits in its pending bit, if MSI-X is on.
    fn program(&mut self, shown: &Shown, source: usize, open: bool) -> Result<(), Incident>;
    /// Its command register has changed.
    fn apply_command(&mut self, shown: &Shown);
    /// MSI-X enable and function mask may have changed; all of its sources are programmed.
    fn apply_msix_control(&mut self, shown: &Shown);

    /// Begins its reset; the rest is the caller's, without the VM's lock. `None`: it is through.
    fn begin_reset(&mut self) -> Option<Reset>;
    /// What was begun is through.
    fn end_reset(&mut self);
    /// As after power on. It was reset, its interrupts go nowhere, its configuration space is as
    /// at first.
    fn restart(&mut self);
    /// Silent until the guest sets it up again: no DMA, no interrupts.
    fn quiet(&mut self);
    /// The same for good.
    fn stop(&mut self, owner: &Guest);

    /// Does it hold what the host keeps in it? For core 0, which looks now and then.
    fn audit(&self, shown: &Shown) -> Result<(), DeviceFinding>;
}
