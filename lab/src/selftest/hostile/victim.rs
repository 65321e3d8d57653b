//! What Linux's `victim` says at its end, and what must be on its disk then
//! (`guests/linux/disk/victim.c`).

use anyhow::{Result, anyhow};
use ledger::Reason;
use std::collections::HashMap;

const BLOCK: usize = 4096;
/// Blocks of a round.
const PART: u64 = 64;
const PARTS: u64 = 16;

/// Its last line.
#[derive(Debug, PartialEq, Eq)]
pub struct Verified {
    /// Rounds of writing, reading back and comparing.
    pub rounds: u64,
    /// Heartbeats.
    pub beats: u64,
    /// The longest time between two, in microseconds.
    pub gap: u64,
    /// When that was, by the TSC: from and to.
    pub gap_tsc: (u64, u64),
    /// Interrupts of the disk.
    pub device: u64,
    /// Interrupts of the local timer.
    pub ticks: u64,
    /// How long it was at work, by its own clock, in nanoseconds.
    pub time: u64,
    /// Exits by reason meanwhile.
    pub exits: Vec<u64>,
}

impl Verified {
    /// From its console.
    pub fn read(console: &str) -> Result<Verified> {
        let line = console.lines().find_map(|l| l.split("@exitless verified ").nth(1));
        let line = line.ok_or_else(|| anyhow!("it didn't say that its I/O is verified"))?;
        let words: HashMap<_, _> =
            line.split_whitespace().filter_map(|word| word.split_once('=')).collect();
        let text = |key| words.get(key).ok_or_else(|| anyhow!("no {key} in \"{line}\""));
        let number = |key| anyhow::Ok(text(key)?.parse::<u64>()?);
        Ok(Verified {
            rounds: number("rounds")?,
            beats: number("beats")?,
            gap: number("gap_us")?,
            gap_tsc: (number("gap_from")?, number("gap_to")?),
            device: number("device")?,
            ticks: number("ticks")?,
            time: number("nanoseconds")?,
            exits: text("exits")?.split(',').map(str::parse).collect::<Result<_, _>>()?,
        })
    }

    /// Exits for a reason.
    pub fn of(&self, reason: Reason) -> u64 {
        self.exits.get(reason as usize).copied().unwrap_or(0)
    }
}

/// The first block on the disk that isn't as the last of so many rounds left it.
pub fn damaged(disk: &[u8], rounds: u64) -> Option<u64> {
    let oldest = rounds.saturating_sub(PARTS - 1).max(1);
    let blocks = (oldest..=rounds)
        .flat_map(|round| (0..PART).map(move |i| (round, round % PARTS * PART + i)));
    blocks.into_iter().find_map(|(round, place)| {
        let at = place as usize * BLOCK;
        let block = disk.get(at..at + BLOCK);
        (block != Some(&pattern(round, place)[..])).then_some(place)
    })
}

fn pattern(round: u64, place: u64) -> Vec<u8> {
    let mut x = round << 32 | (place + 1);
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x.to_le_bytes()
    };
    (0..BLOCK / 8).flat_map(|_| next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_read() {
        let line = "@exitless verified rounds=3 beats=9 gap_us=70 gap_from=11 gap_to=12 device=8 ticks=5 nanoseconds=6 entries=1 exits=1,0,7\r\n";
        let read = Verified::read(&format!("@exitless round 3\n{line}")).unwrap();
        assert_eq!((read.rounds, read.beats, read.gap, read.device, read.ticks), (3, 9, 70, 8, 5));
        assert_eq!((read.time, read.gap_tsc), (6, (11, 12)));
        assert_eq!(read.of(Reason::TimerProgram), 7);
        assert_eq!(read.of(Reason::Ipi), 0);
        assert!(Verified::read("@exitless round 3\n").is_err());
        assert!(Verified::read(&line.replace("beats", "beast")).is_err());
    }

    #[test]
    fn damage_to_any_block_is_seen() {
        for rounds in [1, 5, 16, 40] {
            let mut disk = vec![0; (PART * PARTS) as usize * BLOCK];
            for round in 1..=rounds {
                for i in 0..PART {
                    let place = round % PARTS * PART + i;
                    let at = place as usize * BLOCK;
                    disk[at..at + BLOCK].copy_from_slice(&pattern(round, place));
                }
            }
            assert_eq!(damaged(&disk, rounds), None);
            assert!(damaged(&disk, rounds + 1).is_some());
            let place = rounds % PARTS * PART + 3;
            disk[place as usize * BLOCK + 4000] ^= 1;
            assert_eq!(damaged(&disk, rounds), Some(place));
        }
    }
}
