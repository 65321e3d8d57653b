//! Changes to the image: which are tried, and the table of what became of them.
//!
//! Each worker has a copy and a build directory of its own and takes the next change, so that one
//! builds while another one waits for the emulator. A line is printed when its change is judged;
//! the table is in the list's order.

use super::{
    args::Args,
    copy::{Copy, LISTS},
    entry::{self, Entry},
    results::{Results, Verdict, hashed},
    runner::{Runner, Shared, exactly},
};
use crate::{
    document,
    selftest::{has, named},
};
use anyhow::{Result, bail};
use exitless::{context::Context, say::print, table::Table};
use std::{
    panic::resume_unwind,
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

/// How many changes are tried at a time, where there are as many cores.
const AT_ONCE: usize = 2;

/// Runs the chosen ones; status 0 if each was caught.
pub fn run(args: &Args, cx: &Context) -> Result<ExitCode> {
    let all = entry::read(&cx.root.join(LISTS))?;
    let chosen = choose(&all, args);
    if chosen.is_empty() {
        bail!("no change has \"{}\" in its name", args.only.as_deref().unwrap_or(""));
    }
    if args.list {
        return list(&chosen, cx);
    }
    let results = Results::open(&cx.target.join("mutants/image.jsonl"), args.again)?;
    let verdicts = judge(&chosen, &Shared::new(results), cx)?;
    let mut table = Table::new(["change", "verdict", "by"]);
    for (entry, verdict) in chosen.iter().zip(&verdicts) {
        let (word, what) = match (verdict, &entry.unseen) {
            (Some(verdict), _) => verdict.words(),
            (None, why) => ("unseen", why.as_deref().unwrap_or("")),
        };
        table.row([&entry.name, word, what]);
    }
    let caught = verdicts.iter().filter(|v| matches!(v, Some(Verdict::Caught(_)))).count();
    let judged = verdicts.iter().flatten().count();
    let unseen = chosen.len() - judged;
    let total = format!("{caught} of {judged} caught, {unseen} that nothing here can show");
    print(format_args!("\n{table}\n{total}\n"))?;
    if args.write {
        let what = match args.sample {
            Some(n) => format!("`--sample {n} --seed {}` of {}", args.seed, all.len()),
            None => "All of them".into(),
        };
        let text = format!("{what}:\n\n```\n{table}```\n\n{total}.\n");
        document::write(&cx.root, "docs/mutants.md", "image", &text)?;
    }
    Ok(if caught == judged { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What became of each; nothing of those that can't be seen here.
fn judge(chosen: &[&Entry], shared: &Shared, cx: &Context) -> Result<Vec<Option<Verdict>>> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let copies =
        (1..=cores.min(AT_ONCE).min(chosen.len())).map(|i| Copy::make(cx, &format!("image-{i}")));
    let runners = copies.map(|copy| Ok(Runner::new(cx, copy?, shared)));
    let runners = runners.collect::<Result<Vec<_>>>()?;
    let unchanged = runners[0].keep_unchanged(chosen)?;
    let (next, verdicts) = (AtomicUsize::new(0), Mutex::new(vec![None; chosen.len()]));
    let work = |runner: Runner| {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(entry) = chosen.get(i) else { return Ok(()) };
            if entry.unseen.is_some() {
                continue;
            }
            let start = Instant::now();
            let verdict = runner.judge(entry, &unchanged).inspect_err(|_| {
                // The others end with what they have in hand.
                next.store(chosen.len(), Ordering::Relaxed);
            })?;
            let (word, what) = verdict.words();
            let seconds = start.elapsed().as_secs_f64();
            let (n, count, name) = (i + 1, chosen.len(), &entry.name);
            print(format_args!("{n:3}/{count} {word:7} {name:40} {what} {seconds:.0} s\n"))?;
            verdicts.lock().unwrap_or_else(PoisonError::into_inner)[i] = Some(verdict);
        }
    };
    thread::scope(|scope| -> Result<()> {
        let workers: Vec<_> = runners.into_iter().map(|r| scope.spawn(|| work(r))).collect();
        let ends: Vec<_> = workers.into_iter().map(|w| w.join()).collect();
        ends.into_iter().try_for_each(|end| end.unwrap_or_else(|panic| resume_unwind(panic)))
    })?;
    Ok(verdicts.into_inner().unwrap_or_else(PoisonError::into_inner))
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
