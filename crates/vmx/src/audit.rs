//! What the permission maps of a vCPU must say, as another core reads them in memory while the
//! guest runs.
//!
//! Guarantees, once every part was looked at without a finding: each map opens what
//! [`Map::open`] lists, and no more. Doesn't see the control structure: where a processor keeps its
//! fields no manual says (SDM vol. 3, 25.11.1), so no other core can read them.

use crate::maps;
use vendor::audit::{self, Finding, InnerTables, differs};
use vendor::maps::{Map, open_ports};

/// Where the maps of a vCPU are, and what they were made of.
#[derive(Clone, Copy, Debug)]
pub struct Outline {
    /// Physical address of its control structure.
    pub structure: u64,
    /// Of its maps of MSRs, by [`Map`].
    pub msrs: [u64; Map::OF_VMX.len()],
    /// Of its maps of ports.
    pub ports: u64,
    /// As in [`Map::open`].
    pub completions_exit: bool,
    /// As in [`Map::open`].
    pub shared: bool,
    /// As in [`maps::fill_ports`].
    pub pm_timer: Option<u16>,
}

impl audit::Outline for Outline {
    fn parts(&self) -> u32 {
        1 + Map::OF_VMX.len() as u32
    }

    fn audit(&self, part: u32, word: impl Fn(u64) -> u64) -> Result<(), Finding> {
        let Some((map, at)) = Map::OF_VMX.iter().zip(self.msrs).nth(part as usize) else {
            let map = self.ports;
            let open = || open_ports(self.pm_timer).map(usize::from);
            return differs(map, maps::PORT_BYTES, word, open)
                .map_or(Ok(()), |(bit, open)| Err(Finding::Port { map, port: bit as u32, open }));
        };
        let open = || map.open(self.completions_exit, self.shared).flat_map(maps::bits);
        differs(at, maps::MSR_BYTES, word, open).map_or(Ok(()), |(bit, open)| {
            let (msr, write) = maps::msr_of(bit);
            Err(Finding::Msr { map: at, msr, write, open })
        })
    }

    fn has_inner(&self) -> bool {
        false
    }

    fn inner_tables(&self, _word: impl Fn(u64) -> u64) -> Option<InnerTables> {
        None
    }

    fn control_block(&self) -> u64 {
        self.structure
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vendor::audit::Outline as _;

    const PM_TIMER: Option<u16> = Some(0xB008);
    const MSRS: usize = maps::MSR_BYTES;

    /// All maps, one behind the other, the ports' last.
    fn made() -> (Outline, Vec<u8>) {
        let mut memory = vec![0; MSRS * Map::OF_VMX.len() + maps::PORT_BYTES];
        let (msrs, ports) = memory.split_at_mut(MSRS * Map::OF_VMX.len());
        for (map, bytes) in Map::OF_VMX.iter().zip(msrs.chunks_exact_mut(MSRS)) {
            maps::fill_msrs(bytes.try_into().unwrap(), map.open(false, false));
        }
        maps::fill_ports(ports.try_into().unwrap(), PM_TIMER);
        let msrs = core::array::from_fn(|n| (n * MSRS) as u64);
        let ports = (MSRS * Map::OF_VMX.len()) as u64;
        let (completions_exit, shared) = (false, false);
        let (structure, pm_timer) = (0, PM_TIMER);
        (Outline { structure, msrs, ports, completions_exit, shared, pm_timer }, memory)
    }

    fn found(outline: &Outline, memory: &[u8]) -> Vec<Finding> {
        let word = |pa: u64| {
            let pa = pa as usize;
            u64::from_le_bytes(memory[pa..pa + 8].try_into().unwrap())
        };
        (0..outline.parts()).filter_map(|part| outline.audit(part, word).err()).collect()
    }

    #[test]
    fn what_is_made_is_right_and_each_wrong_bit_is_found() {
        let (outline, mut memory) = made();
        assert_eq!(found(&outline, &memory), []);
        for (map, msr, write) in
            [(0, 0xC000_0080, true), (2, 0x830, true), (3, 0x838, true), (4, 0x839, false)]
        {
            let bit = outline.msrs[map] as usize * 8 + maps::msr_bit(msr, write).unwrap();
            memory[bit / 8] ^= 1 << (bit % 8);
            let at = outline.msrs[map];
            let finding = Finding::Msr { map: at, msr, write, open: true };
            assert_eq!(found(&outline, &memory), [finding]);
            memory[bit / 8] ^= 1 << (bit % 8);
        }
        let at = outline.ports as usize + 0xB008 / 8;
        memory[at] = 0xFF;
        let finding = Finding::Port { map: outline.ports, port: 0xB008, open: false };
        assert_eq!(found(&outline, &memory), [finding]);
    }
}
