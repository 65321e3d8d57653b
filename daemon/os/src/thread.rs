//! A thread that hears no signal: they are for the one that serves, whose calls they interrupt.

use std::io;
use std::mem::MaybeUninit;

/// Bytes of its stack.
const STACK: usize = 256 << 10;

/// Starts it; it isn't waited for.
///
/// # Errors
///
/// The system's, if it gives no thread.
pub fn spawn_deaf(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: both are places for a set of signals. What is blocked meanwhile is this thread's, and
    // the new one's from its start on.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let builder = std::thread::Builder::new().name(name.into()).stack_size(STACK);
    let made = builder.spawn(run);
    // SAFETY: the set was written above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    made.map(|_| ())
}
