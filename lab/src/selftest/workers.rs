//! Several machines at a time.
//!
//! Guarantees: no more run than the gate lets in, however many lists are worked off together.

use crate::summary::Summary;
use anyhow::{Result, bail};
use exitless::context::Context;
use std::{
    panic::resume_unwind,
    sync::{
        Condvar, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

/// How many machines run side by side that keep one CPU busy each.
pub const AT_ONCE: usize = 2;

/// Lets in so many at a time, whoever they work for.
pub struct Gate {
    free: Mutex<usize>,
    left: Condvar,
}

/// One who is in.
struct Inside<'a>(&'a Gate);

impl Gate {
    pub const fn new(free: usize) -> Gate {
        Gate { free: Mutex::new(free), left: Condvar::new() }
    }

    fn enter(&self) -> Inside<'_> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |free: &mut usize| *free == 0;
        let mut free = self.left.wait_while(free, full).unwrap_or_else(PoisonError::into_inner);
        *free -= 1;
        Inside(self)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.left.notify_one();
    }
}

/// Runs `parts`, so many at once and as the gate lets them in, each begun in their order, and sums
/// what came of them.
pub fn side_by_side<T: Sync>(
    cx: &Context,
    gate: &Gate,
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
            let _inside = gate.enter();
            if !cx.interrupted() {
                summary += run(part)?;
            }
        }
        anyhow::Ok(summary)
    };
    let summary = together((0..at_once).map(|_| work).collect())?;
    if cx.interrupted() {
        bail!("stopped");
    }
    Ok(summary)
}

/// Does all of this at once, and sums what came of it.
pub fn together(all: Vec<impl FnOnce() -> Result<Summary> + Send>) -> Result<Summary> {
    thread::scope(|scope| {
        let workers: Vec<_> = all.into_iter().map(|one| scope.spawn(one)).collect();
        let mut summary = Summary::default();
        for worker in workers {
            summary += worker.join().unwrap_or_else(|panic| resume_unwind(panic))?;
        }
        Ok(summary)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_counts_those_of_all() {
        let (cx, gate) = (Context::for_tests(), Gate::new(2));
        let (inside, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let one = |_: &u8| {
            most.fetch_max(1 + inside.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
            thread::yield_now();
            inside.fetch_sub(1, Ordering::SeqCst);
            Ok(Summary::one("one", true))
        };
        let lane = || side_by_side(&cx, &gate, &[0; 20], 2, one);
        let summary = together(vec![lane; 3]).unwrap();
        assert_eq!(summary.passed, 60);
        assert!((1..=2).contains(&most.into_inner()));
    }
}
