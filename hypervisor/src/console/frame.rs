//! Frames, sent byte by byte on the UART.
//!
//! Guarantees: a panic on another core can find out how far core 0 got with a
//! frame and complete it, so that its own text is read as text.

use super::uart;
use core::sync::atomic::{AtomicU32, Ordering};
use proto::frame::{HEADER, MAX_PAYLOAD, header};

/// The frame being sent: bytes sent so far << 16 | channel << 8 | length; 0 between frames.
static CURRENT: AtomicU32 = AtomicU32::new(0);

/// Core 0: sends a payload as frames, each of which is begun and ended here. A frame takes a UART
/// up to 23 ms: `meanwhile` is called for each byte, and must not send.
pub fn send(channel: u8, payload: &[u8], mut meanwhile: impl FnMut()) {
    for chunk in payload.chunks(MAX_PAYLOAD) {
        let header = header(channel, chunk.len() as u8);
        let mut state = u32::from(channel) << 8 | chunk.len() as u32;
        for byte in header.iter().chain(chunk) {
            uart::send(*byte);
            meanwhile();
            state += 1 << 16;
            CURRENT.store(state, Ordering::Relaxed);
        }
        CURRENT.store(0, Ordering::Relaxed);
    }
}

/// While panicking: completes the frame that core 0 may have left open, with blanks.
pub fn complete() {
    let state = CURRENT.swap(0, Ordering::Relaxed);
    let (sent, channel, length) = (state >> 16, (state >> 8) as u8, state as u8);
    if state != 0 {
        let header = header(channel, length);
        for position in sent as usize..HEADER + usize::from(length) {
            uart::send(header.get(position).copied().unwrap_or(b' '));
        }
    }
}
