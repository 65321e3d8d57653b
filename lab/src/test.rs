//! `exitless test`: everything that says whether this checkout is sound, step by
//! step, with the time each took.

mod beside;
mod command;

use self::command::{Outcome, capture, judged, results};
use crate::{
    background::{self, Ended},
    bench, elf, fuzz, imports,
    selftest::{self, Choice, Emulator},
    server,
    summary::Summary,
};
use anyhow::{Result, bail};
use exitless::{
    bootable,
    context::Context,
    needs,
    qemu::Iommu,
    say::{plain, print},
};
use std::{
    env, fs,
    io::{self, IsTerminal, Write},
    process::{Command, ExitCode},
    time::{Duration, Instant},
};

/// What the hypervisor may load, in bytes.
const IMAGE_LIMIT: u64 = 1 << 20;
/// What a UEFI program without a plan may have, in bytes.
const PROGRAM_LIMIT: usize = 3 << 19;
/// What `cargo test` leaves out, for it needs programs that not everybody has.
const NBD_SERVERS: &[&str] =
    &["test", "-p", "exitless-io", "--test", "nbd", "--test", "nbd_tls", "--", "--ignored"];
const AS_ROOT: &[&str] = &["test", "-p", "exitless-io", "--", "--ignored", "as_root"];
const HUGE_PAGES: &[&str] = &["test", "-p", "daemon-os", "--", "--ignored", "huge_pages"];
const EXAMPLES: &[&str] = &["test", "-p", "exitless-io", "--test", "examples", "--", "--ignored"];
/// What makes the daemon's Debian package and tries it.
const PACKAGE: &str = "daemon/debian/try";
const UNIT_STEP: &str = "unit and property tests";
const UNIT: &[&str] = &["test", "--no-fail-fast"];
/// Seconds for each of the fuzz targets.
const FUZZ_SECONDS: u64 = 4;
/// How many changes to each crate are tried.
const CHANGES: &str = "3";

const HELP: &str = "\
Examples:
  exitless test                      all of it: some 40 minutes, on two cores
  exitless test --quick              what to run before each commit
  exitless test --only nesting/svm-  cases with this in their name
  exitless test --long               takes hours

A case that fails has behind its line what its VMs said, and the host's table of their exits.";

/// Run every check and test.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = exitless::help::flow(HELP))]
pub struct Args {
    /// Only what takes up to five minutes on an idle machine, once it is built: no Miri and no
    /// bench, fewer random cases
    #[arg(long)]
    quick: bool,
    /// Also what takes long: cases whose parts others play, each kernel in each shape, all cases
    /// with amd-vi, more random cases, fuzzing, briefly, and changes to the crates, a few in each,
    /// that their tests must notice
    #[arg(long, conflicts_with_all = ["quick", "only", "iommu", "machine"])]
    long: bool,
    /// Only the tests in the emulator whose name contains this; `*` stands for anything,
    /// `^` for the name's begin, `$` for its end
    #[arg(long, value_name = "TEXT", value_parser = part_of_a_name)]
    only: Option<String>,
    /// The tests in the emulator on machines with this IOMMU only; else all of those with vt-d,
    /// and a few with amd-vi, or all with --long
    #[arg(long, value_enum)]
    iommu: Option<Iommu>,
    /// The tests in this emulator only
    #[arg(long, value_enum, value_name = "EMULATOR", conflicts_with = "iommu")]
    machine: Option<Emulator>,
    /// Only list the tests in the emulator that would run, a name a line
    #[arg(long)]
    list: bool,
}

/// Every name has nothing in it; who has the shell put an empty variable there means no such test.
fn part_of_a_name(text: &str) -> Result<String, &'static str> {
    if text.is_empty() {
        Err("give a part of a test's name, or `*` for all")
    } else {
        Ok(text.into())
    }
}

/// Runs everything; the closing line is the summary.
pub fn test(args: &Args, cx: &Context) -> Result<ExitCode> {
    let (summary, start) = (Summary::default(), Instant::now());
    let choice = Choice {
        quick: args.quick,
        long: args.long,
        iommu: args.iommu,
        emulator: args.machine,
        only: args.only.as_deref(),
    };
    if args.list {
        print(selftest::list(choice)?.iter().map(|name| format!("{name}\n")).collect::<String>())?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut steps = Steps { cx, quick: args.quick, long: args.long, summary };
    if args.only.is_none() && args.iommu.is_none() && args.machine.is_none() {
        // They have what other steps leave of the cores.
        let lanes = steps.beside()?;
        let ((), ended) = background::beside(cx, &lanes, || {
            steps.host()?;
            steps.images()?;
            steps.emulated(choice)?;
            steps.bench()
        })?;
        ended.into_iter().for_each(|ended| steps.ended_beside(ended));
        steps.fuzz()?;
    } else {
        steps.emulated(choice)?;
    }
    if args.long {
        steps.mutants()?;
    }
    let seconds = start.elapsed().as_secs();
    println!("\n{} min {:02} s", seconds / 60, seconds % 60);
    if !steps.summary.culprits.is_empty() {
        println!("Failed: {}", steps.summary.culprits.join(", "));
    }
    println!("{}", steps.summary);
    Ok(if steps.summary.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Steps<'a> {
    cx: &'a Context,
    quick: bool,
    long: bool,
    summary: Summary,
}

impl Steps<'_> {
    fn host(&mut self) -> Result<()> {
        self.cargo("formatting", &["fmt", "--all", "--check"])?;
        self.step("no circles of imports", || {
            let wrong = imports::check(&self.cx.root)?;
            Ok((judged(wrong.is_empty()), wrong))
        })?;
        if !self.quick {
            self.cargo(UNIT_STEP, UNIT)?;
        }
        let cx = self.cx;
        self.cargo_with("NBD servers of others", NBD_SERVERS, needs::nbd_servers(cx))?;
        self.cargo_with("the daemon, by root", AS_ROOT, needs::root_and_tap())?;
        self.cargo_with("huge pages for the daemon", HUGE_PAGES, needs::huge_page())?;
        let firmware = || needs::grub(cx).and_then(|()| needs::ovmf(cx));
        let there = needs::libvirt(cx).and_then(|()| firmware());
        self.cargo_with("the docs' examples", EXAMPLES, there.map(drop))?;
        self.step("the Debian package", || {
            let mut package = Command::new(cx.root.join(PACKAGE));
            package.arg(server::packed(cx)?);
            capture(package, || cx.interrupted())
        })
    }

    /// Tests that need something that may be missing.
    fn cargo_with(&mut self, name: &str, args: &[&str], there: Result<()>) -> Result<()> {
        match there {
            Ok(()) => self.cargo(name, args),
            Err(missing) => self.skip(name, &plain(&missing)),
        }
    }

    fn ended_beside(&mut self, ended: Ended) {
        if let Some(name) = ended.name {
            let outcome = (results(&ended.output, ended.status.success()), ended.output);
            self.ended(name, ended.took, outcome);
        }
    }

    fn images(&mut self) -> Result<()> {
        let cx = self.cx;
        self.step("UEFI program under 1.5 MiB", || {
            let bytes = bootable::program(cx, None, None)?.len();
            let text = format!("without a plan it has {bytes} bytes, and may have {PROGRAM_LIMIT}");
            Ok((judged(bytes < PROGRAM_LIMIT), text))
        })?;
        self.step("hypervisor image under 1 MiB", || {
            let loaded = elf::loaded_bytes(&fs::read(cx.hypervisor()?)?)?;
            let text = format!("it loads {loaded} bytes, and may load {IMAGE_LIMIT}");
            Ok((judged(loaded < IMAGE_LIMIT), text))
        })
    }

    fn emulated(&mut self, choice: Choice) -> Result<()> {
        println!("In the emulator:");
        let result = selftest::run(self.cx, choice);
        self.stop_if_interrupted()?;
        self.summary += result.unwrap_or_else(|error| {
            println!("FAIL  {}", plain(error));
            Summary::one("the emulator's tests", false)
        });
        Ok(())
    }

    fn fuzz(&mut self) -> Result<()> {
        let name = "fuzzing, briefly";
        if !self.long {
            return self.skip(name, "--long has it, and so has `exitless fuzz`");
        }
        if let Some(missing) = fuzz::missing(self.cx) {
            return self.skip(name, missing);
        }
        let cx = self.cx;
        self.step(name, || {
            let outcomes = fuzz::run(cx, &fuzz::targets(cx)?, FUZZ_SECONDS)?;
            let found = outcomes.iter().any(|o| o.found.is_some());
            Ok((judged(!found), fuzz::table(&outcomes)))
        })
    }

    fn bench(&mut self) -> Result<()> {
        if self.quick {
            return self.skip("bench", "--quick leaves it out");
        }
        println!("A short bench:");
        let result = bench::smoke(self.cx);
        self.stop_if_interrupted()?;
        if let Err(error) = &result {
            println!("FAIL  {}", plain(error));
        }
        self.summary += Summary::one("the short bench", result.is_ok());
        Ok(())
    }

    /// A few changes to each crate; the whole list is `exitless mutants`.
    fn mutants(&mut self) -> Result<()> {
        let mut own = Command::new(env::current_exe()?);
        own.args(["mutants", "--crates", "--sample", CHANGES]);
        let cx = self.cx;
        self.step("changes to the crates", || capture(own, || cx.interrupted()))
    }

    fn cargo_command(&self, args: &[&str]) -> Command {
        let mut command = self.cx.cargo();
        command.args(args);
        if !self.long {
            command.env("PROPTEST_CASES", if self.quick { "32" } else { "128" });
        }
        command
    }

    fn cargo(&mut self, name: &str, args: &[&str]) -> Result<()> {
        let (command, cx) = (self.cargo_command(args), self.cx);
        self.step(name, || capture(command, || cx.interrupted()))
    }

    fn step(&mut self, name: &str, run: impl FnOnce() -> Result<Outcome>) -> Result<()> {
        if io::stdout().is_terminal() {
            print!("…     {name}\r");
            io::stdout().flush()?;
        }
        let start = Instant::now();
        let outcome = run().unwrap_or_else(|e| (judged(false), plain(e)));
        self.stop_if_interrupted()?;
        self.ended(name, start.elapsed(), outcome);
        Ok(())
    }

    fn ended(&mut self, name: &str, took: Duration, (summary, output): Outcome) {
        let word = if summary.failed == 0 { "ok" } else { "FAIL" };
        println!("{word:5} {name:28} {:6.1} s", took.as_secs_f64());
        if summary.failed > 0 {
            for line in command::reasons(&output) {
                println!("  | {line}");
            }
            let tests = command::failed_tests(&output);
            self.summary.culprits.push(if tests.is_empty() {
                name.into()
            } else {
                format!("{name} ({})", tests.join(", "))
            });
        }
        self.summary += summary;
    }

    fn skip(&mut self, name: &str, why: &str) -> Result<()> {
        println!("skip  {name:28} {why}");
        self.summary.skipped += 1;
        Ok(())
    }

    fn stop_if_interrupted(&self) -> Result<()> {
        if self.cx.interrupted() { bail!("stopped") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Args as _;

    /// A filter that leaves one out says nothing of it, and one that fits none passes.
    #[test]
    fn each_ignored_test_of_the_daemon_is_in_a_step() {
        let (mut folders, mut files) = (vec![Context::for_tests().root.join("daemon")], vec![]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() { folders.push(path) } else { files.push(path) }
            }
        }
        let mut seen = 0;
        for file in files.iter().filter(|file| file.extension().is_some_and(|e| e == "rs")) {
            let (path, text) = (file.to_string_lossy(), fs::read_to_string(file).unwrap());
            for part in text.split("#[ignore = \"").skip(1) {
                let name = part.split_once("fn ").unwrap().1.split('(').next().unwrap();
                let whole = |files: &[&str]| files.iter().any(|file| path.ends_with(file));
                let in_step = name.starts_with("as_root_") && AS_ROOT.ends_with(&["as_root"])
                    || whole(&["tests/nbd.rs", "tests/nbd_tls.rs"])
                        && NBD_SERVERS.ends_with(&["--ignored"])
                    || whole(&["tests/examples.rs"]) && EXAMPLES.ends_with(&["--ignored"])
                    || whole(&["os/src/tests.rs"]) && name.contains("huge_pages");
                assert!(in_step, "{path}: no step runs {name}");
                seen += 1;
            }
        }
        assert!(seen > 15, "{seen} were found");
    }

    #[test]
    fn no_name_at_all_is_refused() {
        let parse = |only: &str| {
            let command = Args::augment_args(clap::Command::new("test"));
            command.try_get_matches_from(["test", "--only", only]).map_err(|e| e.to_string())
        };
        assert!(parse("eli/hello").is_ok() && parse("*").is_ok());
        let error = parse("").unwrap_err();
        assert!(error.contains("a part of a test's name, or `*` for all"), "{error}");
    }
}
