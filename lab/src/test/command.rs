//! A command that is a step of the tests: how many tests it ran, and what of its output says why it
//! failed.
//!
//! It knows the text that Rust's libtest prints. Where that isn't found, the output's end is shown.

use crate::background::Running;
use crate::summary::Summary;
use anyhow::Result;
use std::{
    io::{Read as _, Seek as _},
    os::unix::process::CommandExt as _,
    process::{Command, Stdio},
};

/// How much of a failed step's output is shown, in lines.
const SHOWN_LINES: usize = 60;

/// How a step went: what to add to the summary, and all it printed.
pub type Outcome = (Summary, String);

/// Runs it to its end; standard output comes before standard error. Told to stop, it fails, and
/// ends all that the command started: who sends a signal to the tests alone reaches none of it.
pub fn capture(mut command: Command, stop: impl Fn() -> bool) -> Result<Outcome> {
    let mut outputs = [tempfile::tempfile()?, tempfile::tempfile()?];
    command.stdin(Stdio::null()).process_group(0);
    command.stdout(outputs[0].try_clone()?).stderr(outputs[1].try_clone()?);
    let status = Running(command.spawn()?).end(stop)?;
    let mut bytes = Vec::new();
    for output in &mut outputs {
        output.rewind()?;
        output.read_to_end(&mut bytes)?;
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Ok((results(&text, status.success()), text))
}

/// What a command that ran tests gave, by what it wrote and whether it ended well.
pub fn results(text: &str, success: bool) -> Summary {
    let mut summary = test_results(text);
    // No tests were counted: the command is the test. And a command that failed without
    // a failed test, such as a build that broke, has failed all the same.
    if summary == Summary::default() || (!success && summary.failed == 0) {
        summary += judged(success);
    }
    summary
}

/// One test, whose name its step adds.
pub fn judged(passed: bool) -> Summary {
    Summary { passed: passed.into(), failed: (!passed).into(), ..Summary::default() }
}

/// The names of the tests that failed, in the output's order.
pub fn failed_tests<'a>(output: &'a str) -> Vec<&'a str> {
    let name = |line: &'a str| line.strip_prefix("test ")?.strip_suffix(" ... FAILED");
    output.lines().filter_map(name).collect()
}

/// The lines that say why it failed: what libtest prints of each failed test; without one, the end.
/// Of a test that printed much those are shown where it panicked.
pub fn reasons(output: &str) -> Vec<&str> {
    let mut inside = false;
    let mut tests: Vec<Vec<&str>> = Vec::new();
    for line in output.lines() {
        // A list of names alone follows what they printed, below the same headline.
        match line {
            _ if line.starts_with("---- ") && line.ends_with(" stdout ----") => {
                inside = true;
                tests.push(Vec::new());
            }
            "failures:" => inside = false,
            _ => {}
        }
        if let Some(test) = tests.last_mut().filter(|_| inside) {
            test.push(line);
        }
    }
    if tests.is_empty() {
        let all: Vec<_> = output.lines().collect();
        return all[all.len().saturating_sub(SHOWN_LINES)..].to_vec();
    }
    let each = (SHOWN_LINES / tests.len()).max(2);
    let mut shown: Vec<_> = tests.iter().flat_map(|test| ends(test, each)).collect();
    shown.truncate(SHOWN_LINES);
    shown
}

/// The headline of a test and what it printed, so many lines together: from where it panicked on,
/// which a backtrace may follow, else the last ones.
fn ends<'a>(test: &[&'a str], lines: usize) -> Vec<&'a str> {
    let last = test.len().saturating_sub(lines - 1).max(1);
    let panicked = test.iter().position(|line| line.contains(" panicked at "));
    let from = panicked.map_or(last, |at| at.min(last));
    test.iter().take(1).chain(test.iter().skip(from).take(lines - 1)).copied().collect()
}

/// The sum of libtest's closing lines.
fn test_results(text: &str) -> Summary {
    let mut sum = Summary::default();
    for line in text.lines().filter_map(|l| l.strip_prefix("test result: ")) {
        let count = |word: &str| {
            let before =
                line.split_once(word).and_then(|(before, _)| before.trim().rsplit(' ').next());
            before.and_then(|n| n.parse().ok()).unwrap_or(0)
        };
        let (passed, failed, skipped) = (count(" passed"), count(" failed"), count(" ignored"));
        sum += Summary { passed, failed, skipped, ..Summary::default() };
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs::File,
        io::{BufRead as _, BufReader},
        sync::atomic::{AtomicBool, Ordering},
        thread,
        time::{Duration, Instant},
    };

    #[test]
    fn results_are_summed() {
        let text = "\
test result: ok. 35 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 3.43s
noise
test result: FAILED. 4 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out
";
        let sum = test_results(text);
        assert_eq!((sum.passed, sum.failed, sum.skipped), (39, 2, 1));
        assert_eq!(sum.to_string(), "39 passed, 2 failed, 1 skipped");
    }

    #[test]
    fn a_command_without_tests_counts_as_one() {
        let run = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            capture(command, || false).unwrap().0
        };
        let counts = |summary: Summary| (summary.passed, summary.failed, summary.skipped);
        assert_eq!(counts(run("true")), (1, 0, 0));
        assert_eq!(counts(run("exit 1")), (0, 1, 0));
        let line = "echo 'test result: ok. 3 passed; 0 failed; 0 ignored'";
        assert_eq!(counts(run(line)), (3, 0, 0));
        assert_eq!(counts(run(&format!("{line}; exit 1"))), (3, 1, 0));
    }

    /// The pipe's other end is closed when nobody of its group has it any more.
    #[test]
    fn one_that_is_stopped_leaves_nothing_running() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let mut command = Command::new("sh");
        command.args(["-c", "exec >\"$0\"; echo begun; sleep 60 & wait"]).arg(&pipe);
        let begun = AtomicBool::new(false);
        thread::scope(|scope| {
            let heard = scope.spawn(|| {
                let mut lines = BufReader::new(File::open(&pipe).unwrap()).lines();
                assert_eq!(lines.next().unwrap().unwrap(), "begun");
                begun.store(true, Ordering::Relaxed);
                let (asked, more) = (Instant::now(), lines.next());
                more.is_none() && asked.elapsed() < Duration::from_secs(30)
            });
            assert!(capture(command, || begun.load(Ordering::Relaxed)).is_err());
            assert!(heard.join().unwrap());
        });
    }

    /// Cargo's own lines come last, and hide it from who looks at the end.
    #[test]
    fn a_failed_test_is_named_and_its_reason_shown() {
        let running = "     Running tests/one.rs\n".repeat(2 * SHOWN_LINES);
        let output = format!(
            "test a::holds ... ok\ntest a::breaks ... FAILED\n\nfailures:\n\n\
             ---- a::breaks stdout ----\nleft: 1\n\n\nfailures:\n    a::breaks\n\n\
             test result: FAILED. 1 passed; 1 failed\n{running}"
        );
        assert_eq!(failed_tests(&output), ["a::breaks"]);
        assert_eq!(reasons(&output), ["---- a::breaks stdout ----", "left: 1", "", ""]);
        let all = reasons(&running);
        assert_eq!((all.len(), all[0]), (SHOWN_LINES, "     Running tests/one.rs"));
        let much = |n| "noise\n".repeat(n);
        let output = format!(
            "---- a::breaks stdout ----\n{}thread 'a' panicked at b.rs:3:\nwhy\n{}---- c stdout ----\nno\n\nfailures:\n    c\n",
            much(70),
            much(90)
        );
        let shown = reasons(&output);
        assert_eq!(
            shown[..3],
            ["---- a::breaks stdout ----", "thread 'a' panicked at b.rs:3:", "why"]
        );
        assert_eq!(shown[SHOWN_LINES / 2..], ["---- c stdout ----", "no", ""]);
    }
}
