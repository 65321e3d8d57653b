//! The machine's screen, read back from a screenshot: what is on it must be what the serial port
//! said.
//!
//! Guarantees that a row is taken for text only if every pixel of it is as the hypervisor's own
//! font has it. Rows that were scrolled away aren't missed.

use super::case::{Case, NAMES, Special};
use super::cases::{case, guest, heartbeat};
use super::verdict::PASSED;
use anyhow::{Context as _, Result, bail};
use plan::{Host, Policy};
use screen::{Layout, read};
use std::{
    fs,
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

/// The first line of the log that a screen can have.
const FIRST: &str = "booted by UEFI";
/// Lines of a console that are looked for: the others may have been scrolled away.
const ROWS: usize = 12;
/// What QEMU's monitor says when it waits for a command.
const PROMPT: &str = "(qemu) ";
/// How long it may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// The cases: a VM that ends, beside one that goes on; with the consoles of both, or the first's.
pub fn all() -> Vec<Case> {
    let shown = |name: &str, screen| {
        let guests = [guest("hello", Policy::Eli), heartbeat("", Policy::Eli)];
        let host = Host { screen, ..Host::default() };
        Case { machine: Special::Screen, host, ..case(format!("screen/{name}"), false, guests) }
    };
    vec![shown("all", None), shown("one", Some(0))]
}

/// The rows on the screen of the machine whose monitor is at `socket`; `folder` is for the picture.
pub fn rows(socket: &Path, folder: &Path) -> Result<Vec<String>> {
    let picture = folder.join("screen.ppm");
    let mut monitor = UnixStream::connect(socket).context("QEMU's monitor isn't there")?;
    monitor.set_read_timeout(Some(PATIENCE))?;
    prompt(&mut monitor)?;
    writeln!(monitor, "screendump {}", picture.display())?;
    prompt(&mut monitor)?;
    let bytes = fs::read(&picture).context("QEMU made no screenshot")?;
    text(&bytes).with_context(|| format!("{} bytes are no screenshot", bytes.len()))
}

fn prompt(monitor: &mut UnixStream) -> Result<()> {
    let (mut said, mut buffer) = (Vec::new(), [0; 256]);
    while !said.ends_with(PROMPT.as_bytes()) {
        match monitor.read(&mut buffer).context("QEMU's monitor doesn't answer")? {
            0 => bail!("QEMU's monitor closed"),
            n => said.extend_from_slice(&buffer[..n]),
        }
    }
    Ok(())
}

/// The text of a picture in the binary form of PPM, with 8 bits for each colour.
fn text(bytes: &[u8]) -> Option<Vec<String>> {
    let mut rest = bytes;
    let mut word = || {
        let end = rest.iter().position(u8::is_ascii_whitespace)?;
        let (word, after) = rest.split_at(end);
        rest = &after[1..];
        std::str::from_utf8(word).ok()
    };
    let (kind, width, height, most) = (word()?, word()?, word()?, word()?);
    let frame = read::picture(width.parse().ok()?, height.parse().ok()?)?;
    let whole = kind == "P6" && most == "255" && rest.len() as u64 == frame.bytes();
    whole.then(|| read::text(&Layout::new(frame), rest))
}

/// What the rows lack of what the serial port said: the log, and one console's last lines or, where
/// all are shown, a line of one that still goes on.
pub fn lacks(case: &Case, rows: &[String], log: &[String], consoles: &[Vec<u8>]) -> Vec<String> {
    let has = |line: &str| rows.iter().any(|row| row == line.trim_end());
    let lines = |vm: usize| {
        let bytes = consoles.get(vm).map(Vec::as_slice).unwrap_or_default();
        let text = String::from_utf8_lossy(bytes);
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let end = format!("VM {} wrote {PASSED:#x} to the debug-exit port, which ends it", NAMES[0]);
    let mut wanted: Vec<_> = log.iter().skip_while(|l| !l.starts_with(FIRST)).cloned().collect();
    wanted.push(end);
    let status = match case.host.screen {
        Some(vm) => {
            let lines = lines(vm as usize);
            wanted.extend_from_slice(&lines[lines.len().saturating_sub(ROWS)..]);
            format!("| console of VM {}", NAMES[vm as usize])
        }
        None => {
            let lines = lines(1).into_iter().map(|line| format!("{}| {line}", NAMES[1]));
            let last: Vec<_> = lines.rev().take(ROWS).collect();
            wanted.extend(last.iter().find(|line| has(line)).or(last.first()).cloned());
            format!("| consoles of {} VMs", case.guests.len())
        }
    };
    let mut lack: Vec<_> = wanted.into_iter().filter(|line| !has(line)).collect();
    if !rows.iter().any(|row| row.ends_with(&status)) {
        lack.push(status);
    }
    let mut sentences: Vec<_> =
        lack.iter().map(|line| format!("the screen doesn't show {line:?}")).collect();
    if !rows.iter().any(|row| row.starts_with(FIRST)) {
        sentences.push(format!("the screen shows {rows:?}"));
    }
    sentences
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_picture_has_no_text() {
        let good = [&b"P6\n16 26\n255\n"[..], &[0; 16 * 26 * 3]].concat();
        assert_eq!(text(&good), Some(vec![String::new(); 2]));
        for bad in
            [&good[..good.len() - 1], b"P5\n1 1\n255\n\0\0\0", b"P6\n0 1\n255\n", b"P6 1", b""]
        {
            assert_eq!(text(bad), None);
        }
    }

    #[test]
    fn what_the_screen_lacks_is_said() {
        let strings = |lines: &[&str]| lines.iter().map(|l| (*l).to_owned()).collect::<Vec<_>>();
        let log = strings(&["Exitless 0.1.0", "booted by UEFI, at 0x200000", "2 CPUs"]);
        let consoles = [b"kernel: hello\r\nok\r\n".to_vec(), b"heartbeat 1\n".to_vec()];
        let common = [
            "booted by UEFI, at 0x200000",
            "2 CPUs",
            "VM first wrote 0x20 to the debug-exit port, which ends it",
        ];
        let all = [" Exitless 0.1.0 | consoles of 2 VMs", "second| heartbeat 1"];
        let one = [" Exitless 0.1.0 | console of VM first", "kernel: hello", "ok"];
        for (case, own) in super::all().iter().zip([&all[..], &one]) {
            let mut rows = strings(&[&common[..], own].concat());
            assert_eq!(lacks(case, &rows, &log, &consoles), Vec::<String>::new());
            for row in 0..rows.len() {
                let whole = std::mem::replace(&mut rows[row], "\u{FFFD}".into());
                assert!(!lacks(case, &rows, &log, &consoles).is_empty(), "{whole}");
                rows[row] = whole;
            }
        }
    }
}
