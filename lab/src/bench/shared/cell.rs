//! What was measured of two guests on a core under one policy.

use super::figures::Together;
use crate::bench::column::Column;

/// What was measured under a policy.
pub struct Cell {
    /// Which.
    pub policy: Column,
    /// Both guests, or the bare machine's only one, in each run.
    pub runs: Vec<Together>,
    /// All of these together.
    pub together: Together,
}
