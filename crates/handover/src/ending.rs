//! The end of the firmware's boot services (UEFI 2.10, 7.4.6): asked for as often as it takes,
//! within a limit.
//!
//! ExitBootServices needs the key of the memory map as it is at that moment. Firmware that works on
//! its map meanwhile, by a timer or by what it has to do at that very call, refuses an older key:
//! then the map is read anew. Guarantees: at most [`CALLS`] calls; between the first one and the
//! last nothing else is asked of the firmware than its map, as not even its console may be used.

/// The most calls. Firmware that has work to do at the end needs two.
pub const CALLS: u32 = 8;

/// EFI_SUCCESS.
pub const SUCCESS: u64 = 0;
/// EFI_INVALID_PARAMETER: the key isn't that of the map any more.
pub const INVALID_PARAMETER: u64 = 1 << 63 | 2;

/// The two services that it takes. Errors are EFI's status codes.
pub trait BootServices {
    /// A memory map that was read.
    type Map;

    /// Reads the memory map, with its key (GetMemoryMap, 7.2.3), into memory that is there already.
    fn memory_map(&mut self) -> Result<(Self::Map, u64), u64>;

    /// Ends boot services, if the key is that of the map; the status (ExitBootServices, 7.4.6).
    fn exit(&mut self, key: u64) -> u64;
}

/// Boot services that go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unended {
    /// How often ExitBootServices was called.
    pub calls: u32,
    /// The firmware's last answer, to that call or to GetMemoryMap.
    pub status: u64,
}

/// Ends boot services; the memory map as it was then.
pub fn end<S: BootServices>(services: &mut S) -> Result<S::Map, Unended> {
    for calls in 0..CALLS {
        let (map, key) = services.memory_map().map_err(|status| Unended { calls, status })?;
        match services.exit(key) {
            SUCCESS => return Ok(map),
            INVALID_PARAMETER => {}
            status => return Err(Unended { calls: calls + 1, status }),
        }
    }
    Err(Unended { calls: CALLS, status: INVALID_PARAMETER })
}
