//! Where core 0 sends a message: the serial port and the screen, each if it is there.

use super::{frame, screen};

/// Core 0: sends a message; calls `meanwhile` as long as the serial port is busy.
pub(super) fn send(channel: u8, payload: &[u8], meanwhile: impl FnMut()) {
    screen::write(channel, payload);
    if channel != screen::CHANNEL {
        frame::send(channel, payload, meanwhile);
    }
}
