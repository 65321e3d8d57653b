//! The steps beside the others: what takes minutes and nothing of the machine but a core.
//!
//! Guarantees: a step here needs no other one, and none needs it but for what it builds or fetches.

use super::{Steps, UNIT, UNIT_STEP};
use crate::{ahead, background::Job, fuzz};
use anyhow::Result;
use exitless::{context::UEFI_TARGET, needs};
use std::process::Command;

/// Packages for the bare machine, which plain `cargo` commands leave out.
const BARE_METAL: [&str; 4] = ["hypervisor", "machine", "kernels", "hostile"];
/// Crates whose tests Miri can run in a few minutes. `viommu` isn't one: it walks tables, so that a
/// single test takes minutes.
const MIRI: [&str; 6] = ["ledger", "proto", "delivery", "loader", "window", "nested"];
/// The same in a quarter of an hour, for --long.
const MIRI_LONG: [&str; 3] = ["schedule", "coalesce", "sidecore"];
/// Crates whose atomics loom can take the place of.
const LOOM: [&str; 4] = ["mailbox", "routing", "sidecore", "virtqueue"];
const LOOM_STEP: &str = "loom on mailboxes, shared cores, routes, sidecores and virtqueues";
const MIRI_STEP: &str = "Miri on the crates that fit";
const FUZZ_BUILD_STEP: &str = "the fuzz targets, linked";
/// What is hot in loom's models besides the crates; all else that they need is built quickly.
const LOOMS_OWN: [&str; 5] = ["loom", "generator", "scoped-tls", "tracing", "tracing-core"];

impl Steps<'_> {
    /// What takes minutes and nothing of the machine but a core: what later steps need, lints,
    /// loom, Miri, the fuzz targets' build, and a quick test's unit tests. And what is fetched, for
    /// which nobody needs to wait.
    pub(super) fn beside(&mut self) -> Result<Vec<Vec<Job>>> {
        needs::loader(self.cx)?;
        let mut built = ahead::built(self.cx, self.quick);
        built.extend(self.lints());
        built.push(self.fuzz_crate());
        let mut others = if self.quick {
            built.push(self.loom());
            // Half of their time they wait for clocks of their own.
            vec![Job::step(UNIT_STEP, self.cargo_command(UNIT))]
        } else {
            let mut fetched = ahead::fetched(self.cx);
            fetched.push(self.loom());
            fetched
        };
        others.extend(self.miri()?);
        if self.long && fuzz::missing(self.cx).is_none() {
            others.push(Job::step(FUZZ_BUILD_STEP, fuzz::build_command(self.cx)));
        }
        Ok(vec![built, others])
    }

    /// Clippy, in a folder of its own, so that no test waits for it.
    fn lints(&self) -> [Job; 3] {
        let bare = BARE_METAL.iter().flat_map(|p| ["-p", p]);
        let bare = ["--target", "x86_64-unknown-none"].into_iter().chain(bare).collect();
        let loader = vec!["--target", UEFI_TARGET, "-p", "exitless-loader"];
        [
            ("clippy", vec!["--all-targets"]),
            ("clippy for the bare machine", bare),
            ("clippy for UEFI firmware", loader),
        ]
        .map(|(name, of)| {
            let mut cargo = self.cx.cargo();
            cargo.args(["clippy", "--quiet"]).args(of).args(["--", "-D", "warnings"]);
            cargo.env("CARGO_TARGET_DIR", self.cx.target.join("clippy"));
            Job::step(name, cargo)
        })
    }

    /// What cores do to each other, in every order within a bound. The atomics are loom's, so that
    /// all of it is built apart.
    fn loom(&self) -> Job {
        let mut cargo = self.cx.cargo();
        cargo.args(["test", "--no-fail-fast", "--lib"]);
        cargo.args(LOOM.iter().flat_map(|p| ["-p", p]));
        cargo.env("RUSTFLAGS", "--cfg loom");
        cargo.env("CARGO_TARGET_DIR", self.cx.target.join("loom"));
        // Most of it is work: without optimisation it takes four times as long.
        cargo.env("CARGO_PROFILE_DEV_OPT_LEVEL", "2");
        let level = |of: &str, n| format!("profile.dev.package.{of}.opt-level={n}");
        cargo.args(["--config", &level("'*'", 0)]);
        cargo.args(LOOMS_OWN.iter().flat_map(|of| ["--config".into(), level(of, 2)]));
        Job::step(LOOM_STEP, cargo)
    }

    /// The fuzz targets are a workspace of their own, which needs C++ only to be linked.
    fn fuzz_crate(&self) -> Job {
        let mut cargo = self.cx.cargo();
        cargo.args(["check", "--quiet", "--manifest-path", "fuzz/Cargo.toml"]);
        cargo.env("RUSTFLAGS", "-D warnings");
        cargo.env("CARGO_TARGET_DIR", self.cx.target.join("fuzz/check"));
        cargo.env("CUSTOM_LIBFUZZER_PATH", "/nonexistent/libfuzzer.a");
        Job::step("the fuzz targets build", cargo)
    }

    /// Nothing, where there is no Miri.
    fn miri(&mut self) -> Result<Option<Job>> {
        if self.quick {
            self.skip(MIRI_STEP, "--quick leaves it out")?;
            return Ok(None);
        }
        let miri = ["run", "nightly", "cargo", "miri"];
        let version = Command::new("rustup").args(miri).arg("--version").output();
        if !version.is_ok_and(|o| o.status.success()) {
            let why = "it needs rustup's nightly toolchain with the miri component";
            self.skip(MIRI_STEP, why)?;
            return Ok(None);
        }
        let mut command = Command::new("rustup");
        command.args(miri).args(["test", "--quiet", "--no-fail-fast"]);
        let more = MIRI_LONG.iter().filter(|_| self.long);
        command.args(MIRI.iter().chain(more).flat_map(|p| ["-p", p]));
        command.current_dir(&self.cx.root).env("CARGO_TARGET_DIR", self.cx.target.join("miri"));
        // Property tests ask the system for time and files, and each case takes seconds.
        // It stops itself where atomics of several sizes meet, if it emulates weak memory: that is
        // loom's to look for.
        let flags = "-Zmiri-disable-isolation -Zmiri-disable-weak-memory-emulation";
        command.env("MIRIFLAGS", flags).env("PROPTEST_CASES", "2");
        Ok(Some(Job::step(MIRI_STEP, command)))
    }
}
