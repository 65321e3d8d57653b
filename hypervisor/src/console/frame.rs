//! Frames on the wire: `0x01, channel, length (1..=255), payload`.
//!
//! Guarantees: a panic on another core can find out how far core 0 got with a
//! frame and complete it, so that its own text is read as text.

use super::uart;
use core::sync::atomic::{AtomicU32, Ordering};

const START: u8 = 0x01;
/// Channel of the hypervisor's own log.
pub const LOG: u8 = 0;
/// Channel of records.
pub const RECORDS: u8 = 0x7F;
/// The longest payload of a frame.
pub const MAX_PAYLOAD: usize = 255;
/// Channels of VMs are 1 + index.
pub const MAX_VMS: usize = 32;

/// The frame being sent: bytes sent so far << 16 | channel << 8 | length; 0 between frames.
static CURRENT: AtomicU32 = AtomicU32::new(0);

/// Core 0: sends a payload as frames, each of which is begun and ended here. A frame takes a UART up to 23 ms:
/// `meanwhile` is called for each byte, and must not send.
pub fn send(channel: u8, payload: &[u8], mut meanwhile: impl FnMut()) {
    for chunk in payload.chunks(MAX_PAYLOAD) {
        let header = [START, channel, chunk.len() as u8];
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
        for position in sent..3 + u32::from(length) {
            uart::send(match position {
                0 => START,
                1 => channel,
                2 => length,
                _ => b' ',
            });
        }
    }
}

/// Takes received bytes apart; bytes outside of frames are dropped.
pub struct Parser(State);

enum State {
    Outside,
    Channel,
    Length(u8),
    Payload(u8, u8),
}

impl Parser {
    pub const fn new() -> Parser {
        Parser(State::Outside)
    }

    /// Takes a byte; gives the channel it is payload of, if it is payload.
    pub fn push(&mut self, byte: u8) -> Option<u8> {
        match self.0 {
            State::Outside if byte == START => self.0 = State::Channel,
            State::Outside => {}
            State::Channel => self.0 = State::Length(byte),
            State::Length(_) if byte == 0 => self.0 = State::Outside,
            State::Length(channel) => self.0 = State::Payload(channel, byte),
            State::Payload(channel, left) => {
                self.0 = if left > 1 { State::Payload(channel, left - 1) } else { State::Outside };
                return Some(channel);
            }
        }
        None
    }
}
