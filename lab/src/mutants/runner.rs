//! A change to the image: made in a copy, built, and the fitting tests run.
//!
//! A change counts as caught only by a test that passes without it, and that failed by itself: a
//! build that fails or a test that isn't there doesn't count.

use super::{
    copy::Copy,
    entry::Entry,
    results::{Results, Verdict, hashed},
};
use crate::selftest::is_alone;
use anyhow::{Context as _, Result, bail};
use exitless::context::Context;
use std::{
    collections::HashMap,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError, RwLock},
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

/// The images without any change, by their features.
pub type Unchanged = HashMap<Vec<String>, PathBuf>;

/// What all workers have in common.
pub struct Shared {
    results: Mutex<Results>,
    /// The machine that tests run on: held by each, by one alone that must have it for itself.
    machine: RwLock<()>,
}

impl Shared {
    /// With these results.
    pub fn new(results: Results) -> Self {
        Shared { results: Mutex::new(results), machine: RwLock::new(()) }
    }
}

/// Who tries one change at a time.
pub struct Runner<'a> {
    cx: &'a Context,
    copy: Copy,
    shared: &'a Shared,
}

impl<'a> Runner<'a> {
    /// One that makes its changes in this copy.
    pub fn new(cx: &'a Context, copy: Copy, shared: &'a Shared) -> Self {
        Runner { cx, copy, shared }
    }

    /// What becomes of a change.
    pub fn judge(&self, entry: &Entry, unchanged: &Unchanged) -> Result<Verdict> {
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
            && !self.passes_unchanged(test, &entry.features, unchanged)?
        {
            verdict = Verdict::Unfit(test.clone());
        }
        if self.cx.interrupted() {
            bail!("stopped; the same command goes on with {}", entry.name);
        }
        self.results().put(&entry.name, key, verdict.clone())?;
        Ok(verdict)
    }

    fn results(&self) -> MutexGuard<'a, Results> {
        self.shared.results.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// That it was caught, made as it would be now; what was missed is tried again.
    fn known(&self, entry: &Entry) -> Option<Verdict> {
        let place = entry.place(&self.copy.root).ok()?;
        let known = self.results().get(&entry.name, hashed((entry, &place.changed))).cloned();
        known.filter(|known| matches!(known, Verdict::Caught(_)))
    }

    /// Keeps the image without any change, with each set of features that these need.
    pub fn keep_unchanged(&self, chosen: &[&Entry]) -> Result<Unchanged> {
        let mut unchanged = Unchanged::new();
        for entry in chosen.iter().filter(|e| !e.tests.is_empty() && e.unseen.is_none()) {
            if unchanged.contains_key(&entry.features) || self.known(entry).is_some() {
                continue;
            }
            let built = self.build(&entry.features)?.map_err(anyhow::Error::msg)?;
            let kept = built.with_file_name(format!("unchanged-{}", entry.features.join("+")));
            fs::copy(built, &kept).context("the image can't be kept")?;
            unchanged.insert(entry.features.clone(), kept);
        }
        Ok(unchanged)
    }

    /// Whether a test passes without any change. That it did is kept as long as the code is the
    /// same.
    fn passes_unchanged(
        &self,
        test: &str,
        features: &[String],
        unchanged: &Unchanged,
    ) -> Result<bool> {
        let name = format!("without/{}/{test}", features.join("+"));
        if self.results().get(&name, self.copy.key) == Some(&Verdict::Passes) {
            return Ok(true);
        }
        let image = unchanged.get(features).context("the image without any change is missing")?;
        let passes = self.passes(test, image)?;
        if passes {
            self.results().put(&name, self.copy.key, Verdict::Passes)?;
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

    /// The build directory, beside the copy.
    fn target(&self) -> PathBuf {
        self.copy.root.with_extension("target")
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

    /// Whether the tests of this name pass with this image; each must be there. While one runs that
    /// must have the machine for itself, no other worker's does.
    fn passes(&self, test: &str, image: &Path) -> Result<bool> {
        let machine = &self.shared.machine;
        let alone = is_alone(&exactly(test))
            .then(|| machine.write().unwrap_or_else(PoisonError::into_inner));
        let _beside =
            alone.is_none().then(|| machine.read().unwrap_or_else(PoisonError::into_inner));
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
pub fn exactly(test: &str) -> String {
    format!("^{test}$")
}
