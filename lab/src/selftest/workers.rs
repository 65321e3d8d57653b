//! Several machines at a time.

use crate::summary::Summary;
use anyhow::{Result, bail};
use exitless::context::Context;
use std::{
    panic::resume_unwind,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

/// How many machines run side by side that keep one CPU busy each.
pub const AT_ONCE: usize = 2;

/// Runs `parts`, so many at once, each begun in their order, and sums what came of them.
pub fn side_by_side<T: Sync>(
    cx: &Context,
    parts: &[T],
    at_once: usize,
    run: impl Fn(&T) -> Result<Summary> + Sync,
) -> Result<Summary> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut summary = Summary::default();
        while let Some(part) = parts.get(next.fetch_add(1, Ordering::Relaxed))
            && !cx.interrupted()
        {
            summary += run(part)?;
        }
        anyhow::Ok(summary)
    };
    let mut summary = Summary::default();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..at_once).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            match worker.join() {
                Ok(part) => summary += part?,
                Err(panic) => resume_unwind(panic),
            }
        }
        anyhow::Ok(())
    })?;
    if cx.interrupted() {
        bail!("stopped");
    }
    Ok(summary)
}
