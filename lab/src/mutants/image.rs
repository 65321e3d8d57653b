//! Changes to the image: made in a copy, built, and the fitting tests run.
//!
//! A change counts as caught only by a test that passes without it, and that failed by itself: a
//! build that fails or a test that isn't there doesn't count.

use super::{
    args::Args,
    copy::Copy,
    document,
    entry::{self, Entry},
    results::{Results, Verdict, hashed},
};
use crate::selftest::{has, named};
use anyhow::{Context as _, Result, bail};
use exitless::{context::Context, say::print, table::Table};
use std::{
    collections::HashMap,
    env, fs,
    path::PathBuf,
    process::{Command, ExitCode},
    time::Instant,
};

/// What the image is built for.
const TRIPLE: &str = "x86_64-unknown-none";
/// What cargo builds quickly; none of it is measured.
const QUICKLY: [(&str, &str); 4] = [
    ("CARGO_PROFILE_RELEASE_LTO", "off"),
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1"),
    ("CARGO_PROFILE_RELEASE_DEBUG", "none"),
    ("CARGO_PROFILE_RELEASE_INCREMENTAL", "true"),
];

/// Runs the chosen ones; status 0 if each was caught.
pub fn run(args: &Args, cx: &Context) -> Result<ExitCode> {
    let all = entry::read(&cx.root.join("lab/mutants"))?;
    let chosen = choose(&all, args);
    if chosen.is_empty() {
        bail!("no change has \"{}\" in its name", args.only.as_deref().unwrap_or(""));
    }
    if args.list {
        return list(&chosen, cx);
    }
    let copy = Copy::make(cx, "image")?;
    let results = Results::open(&cx.target.join("mutants/image.jsonl"), args.again)?;
    let mut runner = Runner { cx, copy, results, unchanged: HashMap::new() };
    runner.keep_unchanged(&chosen)?;
    let mut table = Table::new(["change", "verdict", "by"]);
    let (mut caught, mut unseen) = (0, 0);
    for (i, entry) in chosen.iter().enumerate() {
        if let Some(why) = &entry.unseen {
            unseen += 1;
            table.row([&entry.name, "unseen", why]);
            continue;
        }
        let start = Instant::now();
        let verdict = runner.judge(entry)?;
        let (word, what) = verdict.words();
        let seconds = start.elapsed().as_secs_f64();
        let (n, count, name) = (i + 1, chosen.len(), &entry.name);
        print(format_args!("{n:3}/{count} {word:7} {name:40} {what} {seconds:.0} s\n"))?;
        caught += usize::from(matches!(verdict, Verdict::Caught(_)));
        table.row([&entry.name, word, what]);
    }
    let judged = chosen.len() - unseen;
    let total = format!("{caught} of {judged} caught, {unseen} that nothing here can show");
    print(format_args!("\n{table}\n{total}\n"))?;
    if args.write {
        let what = match args.sample {
            Some(n) => format!("`--sample {n} --seed {}` of {}", args.seed, all.len()),
            None => "All of them".into(),
        };
        let text = format!("{what}:\n\n```\n{table}```\n\n{total}.\n");
        document::write(&cx.root, "image", &text)?;
    }
    Ok(if caught == judged { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Those that are asked for, in the order of the list.
fn choose<'a>(all: &'a [Entry], args: &Args) -> Vec<&'a Entry> {
    let wanted = |e: &&Entry| args.only.as_ref().is_none_or(|text| named(&e.name, text));
    let mut chosen: Vec<_> = all.iter().filter(wanted).collect();
    let Some(sample) = args.sample else { return chosen };
    chosen.sort_by_key(|e| hashed((args.seed, &e.name)));
    chosen.truncate(sample);
    chosen
}

fn list(chosen: &[&Entry], cx: &Context) -> Result<ExitCode> {
    let mut table = Table::new(["change", "where", "tests"]);
    let mut stale = 0;
    for entry in chosen {
        let place = entry.place(&cx.root);
        let mut fits = place.is_ok();
        let mut place = place.map_or_else(|e| format!("{e:#}"), |p| p.file.display().to_string());
        if let Some(test) = entry.tests.iter().find(|test| !has(&exactly(test))) {
            (fits, place) = (false, format!("there is no test {test}"));
        }
        stale += usize::from(!fits);
        let tests: Vec<_> = entry.tests.iter().chain(&entry.crates).cloned().collect();
        table.row([entry.name.clone(), place, tests.join(", ")]);
    }
    print(format_args!(
        "{table}\n{} changes, {stale} of which don't fit the code\n",
        chosen.len()
    ))?;
    Ok(if stale == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Runner<'a> {
    cx: &'a Context,
    copy: Copy,
    results: Results,
    /// The images without any change, by their features.
    unchanged: HashMap<Vec<String>, PathBuf>,
}

impl Runner<'_> {
    fn judge(&mut self, entry: &Entry) -> Result<Verdict> {
        let place = match entry.place(&self.copy.root) {
            Ok(place) => place,
            Err(why) => return Ok(Verdict::Stale(format!("{why:#}"))),
        };
        let key = hashed((entry, &place.changed));
        if let Some(known) = self.known(entry) {
            return Ok(known);
        }
        self.copy.change(&place.file, &place.changed)?;
        let verdict = self.try_out(entry);
        self.copy.restore(&place.file)?;
        let mut verdict = verdict?;
        if let Verdict::Caught(test) = &verdict
            && entry.tests.contains(test)
            && !self.passes_unchanged(test, &entry.features)?
        {
            verdict = Verdict::Unfit(test.clone());
        }
        if self.cx.interrupted() {
            bail!("stopped; the same command goes on with {}", entry.name);
        }
        self.results.put(&entry.name, key, verdict.clone())?;
        Ok(verdict)
    }

    /// That it was caught, made as it would be now; what was missed is tried again.
    fn known(&self, entry: &Entry) -> Option<Verdict> {
        let place = entry.place(&self.copy.root).ok()?;
        let known = self.results.get(&entry.name, hashed((entry, &place.changed)));
        known.filter(|known| matches!(known, Verdict::Caught(_))).cloned()
    }

    /// Keeps the image without any change, with each set of features that these need.
    fn keep_unchanged(&mut self, chosen: &[&Entry]) -> Result<()> {
        for entry in chosen.iter().filter(|e| !e.tests.is_empty() && e.unseen.is_none()) {
            if self.unchanged.contains_key(&entry.features) || self.known(entry).is_some() {
                continue;
            }
            let built = self.build(&entry.features)?.map_err(anyhow::Error::msg)?;
            let kept = built.with_file_name(format!("unchanged-{}", entry.features.join("+")));
            fs::copy(built, &kept).context("the image can't be kept")?;
            self.unchanged.insert(entry.features.clone(), kept);
        }
        Ok(())
    }

    /// Whether a test passes without any change.
    fn passes_unchanged(&mut self, test: &str, features: &[String]) -> Result<bool> {
        let name = format!("without/{}/{test}", features.join("+"));
        if self.results.get(&name, 0) == Some(&Verdict::Passes) {
            return Ok(true);
        }
        let passes = self.passes(test, &self.unchanged[features])?;
        if passes {
            self.results.put(&name, 0, Verdict::Passes)?;
        }
        Ok(passes)
    }

    fn try_out(&self, entry: &Entry) -> Result<Verdict> {
        for package in &entry.crates {
            if !self.crate_passes(package)? {
                return Ok(Verdict::Caught(format!("cargo test -p {package}")));
            }
        }
        if entry.tests.is_empty() {
            return Ok(Verdict::Missed);
        }
        let image = match self.build(&entry.features)? {
            Ok(image) => image,
            Err(why) => return Ok(Verdict::Stale(why)),
        };
        for test in &entry.tests {
            if !self.passes(test, &image)? {
                return Ok(Verdict::Caught(test.clone()));
            }
        }
        Ok(Verdict::Missed)
    }

    fn cargo(&self) -> Command {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()));
        cargo.current_dir(&self.copy.root).env("CARGO_TARGET_DIR", self.target()).envs(QUICKLY);
        cargo
    }

    fn target(&self) -> PathBuf {
        self.cx.target.join("mutants/target")
    }

    /// The image as the copy is now, or why it can't be built.
    fn build(&self, features: &[String]) -> Result<std::result::Result<PathBuf, String>> {
        let mut cargo = self.cargo();
        cargo.args(["build", "--quiet", "--release", "--target", TRIPLE, "-p", "hypervisor"]);
        cargo.args(features.iter().flat_map(|f| ["--features", f]));
        let output = cargo.output().context("cargo can't be started")?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            let error = text.lines().find(|l| l.starts_with("error")).unwrap_or("no reason given");
            return Ok(Err(format!("it can't be built: {error}")));
        }
        Ok(Ok(self.target().join(TRIPLE).join("release/hypervisor")))
    }

    /// Whether the tests of this name pass with this image; each must be there.
    fn passes(&self, test: &str, image: &PathBuf) -> Result<bool> {
        let mut own = Command::new(env::current_exe()?);
        own.args(["test", "--only", &exactly(test)]).env("EXITLESS_HYPERVISOR", image);
        let output = own.output().context("the tests can't be started")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let ran = text.lines().any(|l| l.starts_with("ok ") || l.starts_with("FAIL "));
        if !ran && !self.cx.interrupted() {
            let why = String::from_utf8_lossy(&output.stderr);
            bail!(
                "no test {test} was run: {}",
                text.lines().chain(why.lines()).last().unwrap_or("")
            );
        }
        Ok(output.status.success())
    }

    fn crate_passes(&self, package: &str) -> Result<bool> {
        let mut cargo = self.cargo();
        cargo.args(["test", "--quiet", "-p", package]).env("PROPTEST_CASES", "64");
        Ok(cargo.output().context("cargo can't be started")?.status.success())
    }
}

/// What `--only` takes for a case of this name and no other.
fn exactly(test: &str) -> String {
    format!("^{test}$")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries() -> Vec<Entry> {
        let entry = |i| format!("name = \"m{i}\"\nfind = \"a\"\nreplace = \"\"\ntests = [\"t\"]\n");
        (0..20).map(|i| toml::from_str(&entry(i)).unwrap()).collect()
    }

    #[test]
    fn every_test_of_the_list_is_there() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let all = entry::read(&root.join("lab/mutants")).unwrap();
        let missing = all.iter().flat_map(|e| &e.tests).filter(|test| !has(&exactly(test)));
        assert_eq!(missing.collect::<Vec<_>>(), [""; 0]);
    }

    #[test]
    fn a_sample_is_the_same_with_the_same_seed() {
        let all = entries();
        let args = |seed| Args {
            image: true,
            crates: false,
            only: None,
            sample: Some(5),
            seed,
            list: false,
            again: false,
            write: false,
        };
        let names = |seed| choose(&all, &args(seed)).iter().map(|e| &e.name).collect::<Vec<_>>();
        assert_eq!(names(3).len(), 5);
        assert_eq!(names(3), names(3));
        assert_ne!(names(3), names(4));
    }
}
