//! What a chain that was taken asks for: work for the back end, or an answer at once.
//!
//! Guarantees: work that comes out is within the disk, in whole blocks, and allowed.

use virtqueue::Chain;

use crate::config::{Config, SERIAL_BYTES};
use crate::pieces::{Cursor, Work};
use crate::request::{HEADER_BYTES, Header, RANGE_BYTES, Request, Rules, Status};

/// What becomes of a chain that was taken.
pub enum Taken {
    /// There is work for the back end, which writes so many bytes to the guest.
    Work(Work, u32),
    /// It is to be answered, and this many bytes were written besides the status.
    Answer(Status, u32),
}

impl Taken {
    /// Of a chain with this header, which has room for its status byte. The serial number is stored
    /// at once, if it is asked for.
    pub fn of(chain: &Chain, header: Header, rules: &Rules, config: &Config) -> Taken {
        let writable = chain.writable_len().saturating_sub(1);
        let answer = |status| Taken::Answer(status, 0);
        let readable = chain.readable_len().saturating_sub(HEADER_BYTES as u32);
        let request = match rules.request(header, readable.into(), writable.into()) {
            Ok(request) => request,
            Err(status) => return answer(status),
        };
        let work = match request {
            Request::Read { .. } if writable == 0 => return answer(Status::Ok),
            Request::Write { .. } if readable == 0 => return answer(Status::Ok),
            Request::Read { sector } => {
                let data = Cursor::new(0, writable);
                return Taken::Work(Work::Read { sector, data }, writable);
            }
            Request::Write { sector } => {
                Work::Write { sector, data: Cursor::new(HEADER_BYTES as u32, readable) }
            }
            Request::Flush => Work::Flush,
            Request::Id => {
                let serial = &config.parameters().serial;
                let count = writable.min(SERIAL_BYTES as u32);
                let written = chain.write(0, &serial[..count as usize]);
                let status = written.map_or(Status::IoError, |()| Status::Ok);
                return Taken::Answer(status, count);
            }
            Request::Range { discard } => {
                let mut range = [0; RANGE_BYTES];
                if chain.read(HEADER_BYTES as u32, &mut range).is_err() {
                    return answer(Status::IoError);
                }
                match rules.range(discard, &range) {
                    Ok((_, 0, _)) => return answer(Status::Ok),
                    Ok((sector, sectors, change)) => Work::Range { sector, sectors, change },
                    Err(status) => return answer(status),
                }
            }
        };
        Taken::Work(work, 0)
    }
}
