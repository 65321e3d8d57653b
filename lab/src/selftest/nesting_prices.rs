//! What each thing is worth that makes nesting cheap: the same windows with all of it, and with
//! each part switched off, in an image of its own (`hypervisor`'s feature `switches`).
//!
//! Guarantees: one that makes nothing cheaper fails the case. The figures are a few instructions
//! above those of `nesting/svm-cost`, since that image asks whether each is on.

use super::case::{Case, Special};
use super::cases::{case as usual, guest};
use super::cost::{Budget, Than};
use super::nesting::with;

/// Windows of each setting (`guests/kernels/src/tests/svm/prices.rs`): a CPUID, a touch, a turn.
const EACH: usize = 3;
const TIMES: [u64; EACH] = [1000, 64, 100];
/// Far above what any of them costs.
const BOUND: u64 = 200_000;

macro_rules! windows {
    ($($of:literal),+ $(,)?) => { [$([
        concat!("CPUID of a guest's guest, told, and VMRUN, ", $of),
        concat!("a page's first touch, told, and a call, ", $of),
        concat!("a turn of two guests by tables of their own, ", $of),
    ]),+] }
}

/// The settings, in the kernel's order.
const WHAT: [[&str; EACH]; 6] = windows![
    "with all",
    "no page put in by VMRUN",
    "no place remembered",
    "a search for the last tables",
    "whole permission maps merged",
    "tables of one guest kept",
];
/// In which of the windows each of them pays.
const PAYS: [&[usize]; 6] = [&[], &[1], &[0, 1, 2], &[0, 1], &[0, 1, 2], &[2]];

/// It.
pub fn case() -> Case {
    let mut windows = Vec::new();
    for (what, pays) in WHAT.iter().zip(PAYS) {
        for (n, (what, times)) in what.iter().zip(TIMES).enumerate() {
            let than = if pays.contains(&n) { Than::Above(n) } else { Than::Any };
            windows.push(Budget { than, ..Budget::new(what, times, BOUND) });
        }
    }
    let case = usual("nesting/svm-prices".to_owned(), false, [with(guest("svm-prices", None))]);
    Case { machine: Special::Switched, windows, long: true, ..case }
}
