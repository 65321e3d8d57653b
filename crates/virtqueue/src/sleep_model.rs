//! A device that sleeps in the kernel between chains, under loom: the daemon's steps with a split
//! ring, again and again, against a driver that offers whenever it wants.
//!
//! Guarantees: whatever the order, the device takes every chain; a kick that comes between its last
//! look and its sleep wakes it up. Kicks are an eventfd that epoll tells of by edge: each write
//! makes it ready, whatever its counter, and who waits takes that away. That Linux is so is assumed
//! here. One step left out, or in the wrong order, is what loom must catch.

use crate::event::passed;
use crate::{Chain, Features, Layout, Queue, State};
use loom::sync::atomic::{Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use window::{Memory, Window, model};

const LAYOUT: Layout = Layout { size: 2, descriptors: 0, driver: 0x100, device: 0x200 };
const CHAINS: u16 = 2;

/// Which step of the device is wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wrong {
    Nothing,
    /// It doesn't look again after it asked for kicks.
    Look,
    /// It forgets, as it goes to sleep, that a kick came before.
    Edge,
}

/// The eventfd, as epoll has it.
#[derive(Default)]
struct Kicks {
    state: Mutex<Told>,
    told: Condvar,
}

#[derive(Default)]
struct Told {
    is_ready: bool,
    /// No more kicks come.
    is_over: bool,
}

impl Kicks {
    fn kick(&self) {
        self.state.lock().unwrap().is_ready = true;
        self.told.notify_one();
    }

    fn end(&self) {
        self.state.lock().unwrap().is_over = true;
        self.told.notify_one();
    }

    fn forget(&self) {
        self.state.lock().unwrap().is_ready = false;
    }

    /// Who sleeps when no more kicks come sleeps for ever.
    fn wait(&self) {
        let mut state = self.state.lock().unwrap();
        while !state.is_ready && !state.is_over {
            state = self.told.wait(state).unwrap();
        }
        let is_woken = std::mem::take(&mut state.is_ready);
        drop(state);
        assert!(is_woken, "a kick is lost");
    }
}

/// The driver offers its chains, one at a time, and kicks where the device wants that.
fn drive(window: &Window, event_index: bool, kicks: &Kicks) {
    let half = |at| window.span(at, 2).unwrap();
    for index in 1..=CHAINS {
        half(0x102).store_u16_release(0, index).unwrap();
        fence(Ordering::SeqCst);
        let wanted = if event_index {
            passed(half(0x214).load_u16(0).unwrap(), index, 1)
        } else {
            half(0x200).load_u16(0).unwrap() & 1 == 0
        };
        if wanted {
            kicks.kick();
        }
    }
    kicks.end();
}

/// The device polls, sleeps, is woken up, until all chains are taken.
fn serve(window: &Window, queue: &mut Queue<2>, kicks: &Kicks, wrong: Wrong) {
    let mut chain = Chain::new();
    let mut taken = 0;
    queue.suppress_kicks();
    loop {
        while queue.take(window, &mut chain).unwrap() {
            taken += 1;
        }
        if taken == CHAINS {
            return;
        }
        let waiting = queue.enable_kicks().unwrap();
        if waiting == 0 || wrong == Wrong::Look {
            if wrong == Wrong::Edge {
                kicks.forget();
            }
            kicks.wait();
        }
        queue.suppress_kicks();
    }
}

fn check(event_index: bool, wrong: Wrong) {
    let mut runs = loom::model::Builder::new();
    runs.preemption_bound = runs.preemption_bound.or(Some(3));
    runs.check(move || {
        // Those of the run before.
        model::watch(&[]);
        let memory = Memory::new(&[(0, 0x1000)], 0);
        let window = memory.window();
        let features = Features { indirect: false, event_index, packed: false };
        for chain in 0..CHAINS {
            let place = u64::from(chain);
            window.span(16 * place, 8).unwrap().store_u64(0, 0x400).unwrap();
            window.span(16 * place + 8, 8).unwrap().store_u64(0, 8 | 2 << 32).unwrap();
            window.span(0x104 + 2 * place, 2).unwrap().store_u16(0, chain).unwrap();
        }
        let queue = Queue::new(&window, LAYOUT, features, State::at_reset(features));
        let mut queue: Queue<2> = queue.unwrap();
        model::watch(&[0x102, 0x200, 0x214].map(|at| window.span(at, 2).unwrap()));
        let kicks = Arc::new(Kicks::default());
        let told = kicks.clone();
        let driver = thread::spawn(move || drive(&window, event_index, &told));
        serve(&window, &mut queue, &kicks, wrong);
        driver.join().unwrap();
    });
}

#[test]
fn a_device_that_sleeps_takes_every_chain() {
    check(false, Wrong::Nothing);
}

#[test]
fn a_device_that_sleeps_takes_every_chain_with_the_event_index() {
    check(true, Wrong::Nothing);
}

#[test]
#[should_panic(expected = "a kick is lost")]
fn a_device_that_does_not_look_again_sleeps_for_ever() {
    check(true, Wrong::Look);
}

#[test]
#[should_panic(expected = "a kick is lost")]
fn a_device_that_forgets_a_kick_sleeps_for_ever() {
    check(true, Wrong::Edge);
}

#[test]
#[should_panic(expected = "a kick is lost")]
fn a_device_without_a_fence_sleeps_for_ever() {
    sync::without_fences();
    check(true, Wrong::Nothing);
}
