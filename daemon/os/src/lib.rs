//! What the daemon needs of Linux that isn't safe by itself: memory of other programs, mapped, and
//! file accesses on it.
//!
//! Guarantees: memory that was mapped here stays readable and writable for as long as the program
//! runs, so a window or span on it can't dangle. Memory that is given up turns into zeroes of our
//! own, and its addresses are used again for later mappings. A file that shrinks under a mapping
//! doesn't end the program: the mapping turns into zeroes, and [`Mapping::has_shrunk`] says so.
//!
//! Not guaranteed: that zeroes are what a request should have read. Who serves a mapping looks at
//! [`Mapping::has_shrunk`] and ends that connection.
//!
//! | file | is |
//! |---|---|
//! | `mapping` | shared memory, mapped and given up |
//! | `shrunk` | SIGBUS |
//! | `event` | writes of eventfds that don't wait |
//! | `tap`, `packet` | networks of the host's |
//! | `file` | reads and writes of files to and from shared memory |
//! | `uring` | the same, and more, by io_uring |
//! | `pinned` | memory that such a ring holds |
//! | `spare` | rings of io_uring, which can do nothing else |
//! | `lock` | QEMU's image locks |
//! | `thread` | one that hears no signal |
//! | `backtraces` | of errors, which aren't made |
//! | `vfio`, `iova` | a PCI device that is this program's, and the memory that it reaches |
#![deny(unsafe_op_in_unsafe_fn)]

mod backtraces;
mod event;
mod file;
mod iova;
mod lock;
mod mapping;
mod older;
mod packet;
mod pinned;
mod shrunk;
mod spare;
mod tap;
#[cfg(test)]
mod tests;
mod thread;
mod uring;
mod vfio;

pub use backtraces::forget_backtraces;
pub use event::{add_to_event, interrupted, take_late, watch_writes};
pub use file::{read_at, write_at};
pub use lock::{InUse, in_use, lock};
pub use mapping::{GuestMemory, GuestRegion, MOST, Mapping};
pub use older::wait_by_epoll;
pub use packet::{FRAMES, Outgoing, Packets};
pub use pinned::{Pinned, pinned_bytes};
pub use shrunk::{has_any as has_any_shrunk, survive, take_any as take_shrunk};
pub use spare::stock_rings;
pub use tap::{cuts_udp, tap};
pub use thread::spawn_deaf;
pub use uring::{Task, Uring};
pub use vfio::{CALLS_FOR_MEMORY, Device, Domain, NoDevice, Registers, Shared};
