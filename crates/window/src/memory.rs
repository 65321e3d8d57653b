//! Memory for tests: zeroed, of the program's own, without `unsafe` for who uses it.
//!
//! What backs it is never freed: a span may outlive it. It is used again for the next memory
//! instead, so that a fuzzer may make any number of them one after the other. What is new and isn't
//! touched costs nothing: a test may have more of it than would be good for the machine.
use crate::{ALIGNMENT, Region, Window};
use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Mutex;

/// What isn't in use: the place and its bytes.
static FREE: Mutex<Vec<Backing>> = Mutex::new(Vec::new());

#[derive(Debug)]
struct Backing {
    host: NonNull<u8>,
    len: u64,
    /// There may be something in it.
    used: bool,
}

// SAFETY: it is an allocation that nobody else has.
unsafe impl Send for Backing {}

/// Runs of guest memory as a [`Window`] shows them.
#[derive(Debug)]
pub struct Memory {
    window: Window,
    backing: Vec<Backing>,
}

impl Memory {
    /// Zeroed memory at these guest addresses, of these lengths; devices have it from
    /// `dma_offset + guest` on.
    ///
    /// # Panics
    ///
    /// If they make no window.
    pub fn new(regions: &[(u64, u64)], dma_offset: u64) -> Memory {
        let backing: Vec<Backing> = regions.iter().map(|(_, len)| Backing::new(*len)).collect();
        let regions: Vec<Region> = regions
            .iter()
            .zip(&backing)
            .map(|((guest, len), backing)| Region {
                guest: *guest,
                len: *len,
                host: backing.host,
                dma: dma_offset.wrapping_add(*guest),
            })
            .collect();
        // SAFETY: the memory is never freed, of the right size, and nobody has references to it.
        let window = unsafe { Window::new(&regions) }.expect("the test's regions make a window");
        for (region, _) in regions.iter().zip(&backing).filter(|(_, backing)| backing.used) {
            window.span(region.guest, region.len).expect("it was just made").fill(0);
        }
        Memory { window, backing }
    }

    /// The window on it: not to be used when the memory is gone, which is then the next one's.
    pub fn window(&self) -> Window {
        self.window
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.backing.iter_mut().for_each(|backing| backing.used = true);
        FREE.lock().expect("no thread panics while it has it").append(&mut self.backing);
    }
}

impl Backing {
    fn new(len: u64) -> Backing {
        let mut free = FREE.lock().expect("no thread panics while it has it");
        let again = free.iter().position(|backing| backing.len == len);
        // Under Miri each byte that is zeroed is interpreted, and an allocation is one step.
        if let Some(place) = again.filter(|_| !cfg!(miri)) {
            return free.swap_remove(place);
        }
        // The allocator gives zeroes that it hasn't written only if no more alignment is asked for
        // than it has anyway.
        let layout = Layout::array::<u8>((len + ALIGNMENT) as usize).expect("it is less than all");
        // SAFETY: the layout isn't empty.
        let host = unsafe { alloc_zeroed(layout) };
        let host = NonNull::new(host).unwrap_or_else(|| handle_alloc_error(layout));
        let at = host.addr().get();
        let skip = at.next_multiple_of(ALIGNMENT as usize) - at;
        // SAFETY: less than the alignment, which it is longer by.
        Backing { host: unsafe { host.add(skip) }, len, used: false }
    }
}
