//! Multi-dimensional paging (Turtles, section 3.3): L2's physical addresses through L1's nested
//! tables and through the host's for L1, compressed into one set that the CPU walks.
//!
//! Guarantees: what is translated is allowed by both; it lies in the page that the host's tables
//! have for L1, whatever L1's tables say; a page is as large as the smaller of both. What is kept
//! is as old as the last flush that L1 asked for, at most: by the manual that is what a TLB may do
//! (APM vol. 2, 15.25.7), so nothing is write-protected. Frames come from the caller's pool; where
//! that is empty, what is kept is dropped, and comes back on demand.
//!
//! Doesn't invalidate: whoever calls flushes the address space before L2 runs again where it is
//! told so. Knows L1 in long mode with four levels alone.

mod compose;
#[cfg(test)]
mod model;
mod registers;
mod shadow;
#[cfg(test)]
mod tests;
mod walk;
#[cfg(test)]
mod walk_tests;

pub use compose::{Page, compose};
pub use registers::Registers;
pub use shadow::{NoFrame, Shadow};
pub use walk::{Access, L1Memory, Miss, Rules, Walked, walk};
