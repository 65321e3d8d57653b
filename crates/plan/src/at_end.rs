//! What becomes of the machine when every VM has ended.

use serde::{Deserialize, Serialize};

/// What the host does at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AtEnd {
    /// It stands still, so that what is on the screen can be read. QEMU ends.
    #[default]
    Stay,
    /// It switches the machine off, where the firmware lets it.
    PowerOff,
    /// It resets the machine.
    Reset,
}

impl AtEnd {
    /// Every choice with the name it has in `vm.toml`.
    pub const ALL: [(&'static str, AtEnd); 3] =
        [("stay", AtEnd::Stay), ("power-off", AtEnd::PowerOff), ("reset", AtEnd::Reset)];
}
