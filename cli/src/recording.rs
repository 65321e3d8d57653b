//! What a machine told of itself when it started without a plan, out of a recording of its serial
//! line.
//!
//! Guarantees: of several starts in a recording the last one counts. A recording is refused where a
//! part of the inventory is a record whose line isn't in the log, or a line whose record didn't
//! come; where a record's bytes make none; and where bytes are outside of frames within the
//! inventory. A part whose record and line are both missing without a trace isn't noticed; and what
//! isn't in the line is taken as it came: the amount of memory, the interrupts of a function that
//! is refused anyway.

use crate::{
    load,
    mistaken::{self, HEAD, Place},
    report::Report,
    stream::{Demux, Piece, printable},
};
use anyhow::{Result, bail};
use plan::Escaped;
use proto::{Record, offer::Offer};
use std::path::Path;

/// How the first line of a start begins.
const BANNER: &str = "Exitless ";
/// More than any machine says of itself.
const LONGEST: u64 = 64 << 20;
/// Bytes of a line that the hypervisor's log has in any case: it cuts lines that are longer than
/// some more.
const UNCUT: usize = 500;

/// Reads what a machine told at its last start, the inventory whole.
pub fn read(path: &Path) -> Result<Report> {
    let bytes = load::read(path, LONGEST, "any recording of a start has")?;
    let name = Escaped(&path.display().to_string()).to_string();
    let Start { report, lines, damaged } = Start::last(&bytes);
    if let Some(reason) = &report.refused {
        let reason = Escaped(reason);
        bail!("{name} is of a machine on which the hypervisor refused to start: {reason}");
    }
    if report.offers.is_empty() {
        let head = &bytes[..bytes.len().min(HEAD)];
        if let Some(said) = mistaken::told(&name, head, Place::Recording) {
            bail!("{name} {said}");
        }
        bail!(
            "{name} has no inventory: it must be what came from the serial line, byte for byte, while `exitless image --without-plan` started the machine"
        );
    }
    let is_end = |line: &String| *line == Offer::Complete.to_string();
    let ended = report.offers.last() == Some(&Offer::Complete) || lines.iter().any(is_end);
    match damaged.max(unpaired(&report.offers, lines)) {
        _ if !ended => bail!("{name} isn't whole: the recording ends within the inventory"),
        0 if report.machine.is_none() => {
            bail!("{name} isn't whole: the recording begins within the inventory")
        }
        0 => Ok(report),
        1 => bail!("1 record of {name} is damaged; record it again"),
        n => bail!("{n} records of {name} are damaged; record it again"),
    }
}

/// What came since the hypervisor started.
#[derive(Default)]
struct Start {
    report: Report,
    /// Of the log, those that tell a part of the inventory.
    lines: Vec<String>,
    /// Records that came damaged.
    damaged: usize,
}

impl Start {
    /// The last one of a recording.
    fn last(bytes: &[u8]) -> Start {
        let (mut start, mut demux) = (Start::default(), Demux::default());
        let mut before = (0, 0);
        // One by one, so that what is damaged is known when a new start begins.
        for byte in bytes.chunks(1) {
            let now = (demux.damaged(), demux.outside());
            demux.push(byte, |piece| {
                match &piece {
                    Piece::Log(line) if line.starts_with(BANNER) => {
                        (start, before) = (Start::default(), now);
                    }
                    // One is all that a start has: it was another record, or the start's first line
                    // came damaged.
                    Piece::Record(Record::Machine { .. }) if start.report.machine.is_some() => {
                        start.damaged += 1;
                    }
                    // Nothing but frames comes from one of these records to the other.
                    Piece::Record(Record::Offer(Offer::Complete)) => {
                        start.damaged += usize::from(now.1 > before.1);
                    }
                    _ => {}
                }
                start.see(piece);
            });
        }
        demux.finish(|piece| start.see(piece));
        start.damaged += demux.damaged() - before.0;
        start
    }

    fn is_complete(&self) -> bool {
        self.report.offers.last() == Some(&Offer::Complete)
    }

    fn see(&mut self, piece: Piece) {
        match piece {
            Piece::Record(record) => self.report.see(&record),
            Piece::Log(line) if is_part(&line) => self.lines.push(line),
            _ if self.is_complete() => {}
            // There are no such lines, and no VMs: a frame whose head was wrong took others in.
            Piece::Log(line) => self.damaged += usize::from(line.contains(ESCAPED)),
            Piece::Console { .. } => self.damaged += 1,
        }
    }
}

/// How a control character begins, as lines show it.
const ESCAPED: &str = "\\u{";

/// Whether a line of the log tells a part of the inventory.
fn is_part(line: &str) -> bool {
    let words = [
        "processor: ",
        "of the processor: ",
        "cores for guests: ",
        "IOMMU: ",
        "no VM can run here: ",
        "no VM can have a device here: ",
        "no VM can run guests of its own here: ",
        "no VM can have interrupts posted here: ",
    ];
    if words.iter().any(|word| line.starts_with(word)) || line == Offer::Complete.to_string() {
        return true;
    }
    let mut words = line.split(' ');
    let [address, ids, class] = [(); 3].map(|()| words.next().unwrap_or_default());
    let numbers = |word: &str, separators: &str| {
        word.split(|c| separators.contains(c)).all(|n| u32::from_str_radix(n, 16).is_ok())
    };
    address.contains('.') && numbers(address, ":.") && numbers(ids, ":") && class == "class"
}

/// How many parts are records without their line, or lines without their record; the larger of
/// both, as one that changed is both.
fn unpaired(offers: &[Offer], mut lines: Vec<String>) -> usize {
    let mut alone = 0;
    for (i, offer) in offers.iter().enumerate() {
        let told = printable(offer.to_string().trim_end());
        match lines.iter().position(|line| is_same(line, &told)) {
            Some(found) => drop(lines.remove(found)),
            None => alone += 1,
        }
        // Another start's, the first record of which is missing.
        alone += usize::from(*offer == Offer::Complete && i + 1 < offers.len());
    }
    alone.max(lines.len())
}

fn is_same(line: &str, told: &str) -> bool {
    line == told || line.len() >= UNCUT && told.starts_with(line)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;
    use proto::{
        encode,
        frame::{LOG, MAX_PAYLOAD, RECORDS, header},
        offer::Function,
    };

    /// A machine with 3 CPUs and 2 GiB for VMs.
    const MACHINE: Record =
        Record::Machine { cpus: 3, memory: 3 << 30, tsc_hz: 1, host_memory: 1 << 30 };

    const FIRMWARE: &[u8] = b"BIOS\r\n";

    fn frames(channel: u8, bytes: &[u8]) -> Vec<u8> {
        let frame = |part: &[u8]| [&header(channel, part.len() as u8), part].concat();
        bytes.chunks(MAX_PAYLOAD).flat_map(frame).collect()
    }

    fn record(record: &Record) -> Vec<u8> {
        frames(RECORDS, &encode(record))
    }

    fn line(text: &str) -> Vec<u8> {
        frames(LOG, format!("{text}\n").as_bytes())
    }

    /// What the serial line of a machine carries that offers this.
    pub fn recording(offers: &[Offer]) -> Vec<u8> {
        let part = |offer: &Offer| {
            [line(&offer.to_string()), record(&Record::Offer(offer.clone()))].concat()
        };
        let start = [FIRMWARE.to_vec(), line("Exitless 0.1.0"), record(&MACHINE)].concat();
        start.into_iter().chain(offers.iter().flat_map(part)).collect()
    }

    /// Two cores for guests, a bridge, two functions that belong together, and one more.
    pub fn whole() -> Vec<Offer> {
        let function = |address: u32, name: &str| Function {
            address,
            name: (!name.is_empty()).then(|| name.to_owned()),
            msix: 4,
            ..Function::default()
        };
        let bridge = Function { refused: Some("is a bridge".into()), ..function(0, "") };
        let pair = Function { together: vec![0x21], ..function(0x20, "nvme0") };
        let other = Function { together: vec![0x20], ..function(0x21, "nvme1") };
        let mut offers = vec![Offer::Cores { ready: vec![1, 2], silent: vec![3] }];
        offers.extend([bridge, pair, other, function(0x30, "nic0")].map(Offer::Function));
        offers.push(Offer::Complete);
        offers
    }

    /// With a file of these bytes.
    pub fn with_file<R>(bytes: &[u8], look: impl FnOnce(&Path) -> R) -> R {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("look.log");
        std::fs::write(&path, bytes).unwrap();
        look(&path)
    }

    fn offers(bytes: &[u8]) -> Result<Vec<Offer>, String> {
        with_file(bytes, |path| match read(path) {
            Ok(report) => Ok(report.offers),
            Err(e) => Err(e.to_string().replace(&path.display().to_string(), "look.log")),
        })
    }

    #[test]
    fn what_is_no_recording_or_no_whole_one_is_told_apart() {
        assert_eq!(offers(&recording(&whole())), Ok(whole()));
        let error = offers(&recording(&whole()[..3])).unwrap_err();
        assert_eq!(error, "look.log isn't whole: the recording ends within the inventory");
        assert!(offers(b"hello").unwrap_err().starts_with("look.log has no inventory: "));
        let error = offers(b"[vm.a]\nkernel = 'k'\n").unwrap_err();
        assert!(error.starts_with("look.log is a plan, and what came from a machine's"), "{error}");
        let late = recording(&whole()).split_off(recording(&[]).len());
        let error = offers(&late).unwrap_err();
        assert_eq!(error, "look.log isn't whole: the recording begins within the inventory");
        let refused = record(&Record::Refused { reason: "no \u{1b}".into() });
        let error = offers(&refused).unwrap_err();
        assert!(error.ends_with("the hypervisor refused to start: no \\u{1b}"), "{error}");
    }

    #[test]
    fn the_last_of_several_starts_counts() {
        let (old, new) = (whole(), [vec![Offer::Missing("no SVM".into())], whole()].concat());
        let both = [recording(&old), recording(&new)].concat();
        assert_eq!(offers(&both), Ok(new.clone()));
        // What came before it, and how.
        let mut before = recording(&old);
        before[recording(&[]).len() + 5] ^= 4;
        before.extend(record(&Record::Refused { reason: "no".into() }));
        assert_eq!(offers(&[before, recording(&new)].concat()), Ok(new));
        // Nor are two taken for one where the first record of the second is gone.
        let second = recording(&old).split_off(recording(&[]).len());
        let late = [recording(&old), second].concat();
        assert_eq!(offers(&late).unwrap_err(), "1 record of look.log is damaged; record it again");
    }

    #[test]
    fn a_part_without_its_record_or_its_line_is_told() {
        let told = |n: &str| Err(format!("{n} of look.log is damaged; record it again"));
        for i in 0..whole().len() {
            let (before, after) = (&whole()[..i], &whole()[i + 1..]);
            let middle = &whole()[i];
            let parts = |bytes: Vec<u8>| {
                let after = recording(after).split_off(recording(&[]).len());
                offers(&[recording(before), bytes, after].concat())
            };
            assert_eq!(parts(line(&middle.to_string())), told("1 record"), "{middle}");
            let alone = parts(record(&Record::Offer(middle.clone())));
            assert_eq!(alone, told("1 record"), "{middle}");
            assert!(is_part(&middle.to_string()), "{middle}");
        }
        let bytes = [recording(&whole()), line("00:05.0 8086:10c9 class 020000: nic1")].concat();
        assert_eq!(offers(&bytes), told("1 record"));
        let bytes = [bytes, line("IOMMU: none")].concat();
        let error = offers(&bytes).unwrap_err();
        assert_eq!(error, "2 records of look.log are damaged; record it again");
    }

    #[test]
    fn every_kind_of_part_is_known_by_its_line_and_nothing_else_is_taken_for_one() {
        let elsewhere = Function { address: 0xA_0020, ..Function::default() };
        for part in [
            Offer::Processor { name: String::new(), invariant_tsc: true },
            Offer::Cores { ready: vec![], silent: vec![] },
            Offer::Iommu { kind: "AMD-Vi".into(), base: 0, remaps: true },
            Offer::Function(elsewhere),
            Offer::Missing("x".into()),
            Offer::Erratum("x".into()),
            Offer::NoDevices("x".into()),
            Offer::NoNesting("x".into()),
            Offer::NoPosting("x".into()),
            Offer::Complete,
        ] {
            assert!(is_part(&part.to_string()), "{part}");
        }
        for other in
            ["", "3 CPUs at 1 MHz", "a.x 1 class", "00:04.0 reset", "00:04.0 class 01 class"]
        {
            assert!(!is_part(other), "{other}");
        }
    }

    /// The log cuts lines of several hundred bytes, and not their records.
    #[test]
    fn a_line_that_was_cut_is_that_of_its_record() {
        let together = (0..100).collect();
        let long = Offer::Function(Function { together, ..Function::default() });
        let told = long.to_string();
        assert!(is_same(&told[..UNCUT + 11], &told) && !is_same(&told[..UNCUT - 1], &told));
        assert!(!is_same(&told[1..UNCUT + 11], &told));
        assert_eq!(unpaired(&[long], vec![told[..UNCUT + 11].to_owned()]), 0);
    }

    proptest! {
        /// A byte that was lost or came wrong takes no part away unnoticed.
        #[test]
        fn damage_hides_no_function(at: prop::sample::Index, wrong in prop::option::of(any::<u8>())) {
            let mut bytes = recording(&whole());
            let at = at.index(bytes.len());
            match wrong {
                Some(byte) => bytes[at] = byte,
                None => drop(bytes.remove(at)),
            }
            let told = |offers: Vec<Offer>| offers.iter().map(Offer::to_string).collect::<Vec<_>>();
            if let Ok(read) = offers(&bytes) {
                prop_assert_eq!(told(read), told(whole()));
            }
        }
    }
}
