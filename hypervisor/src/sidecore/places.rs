//! Places that something is in, or may come to: of a sidecore's devices and their queues.
//!
//! Guarantees: what is in a place stays there until it is taken out; a place that nobody is in
//! looks like one that there isn't. Places are made at boot; later nothing is allocated.

use alloc::vec::Vec;
use core::iter::Flatten;
use core::slice;

/// The places.
pub struct Places<T> {
    all: Vec<Option<T>>,
    present: usize,
}

impl<T> Places<T> {
    /// None yet.
    pub const fn new() -> Self {
        Places { all: Vec::new(), present: 0 }
    }

    /// Boot only: one more, with this in it or nothing.
    pub fn push(&mut self, content: Option<T>) {
        self.present += usize::from(content.is_some());
        self.all.push(content);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Is nothing in any of them?
    pub const fn are_empty(&self) -> bool {
        self.present == 0
    }

    /// What is in this one.
    #[inline]
    pub fn get(&self, place: usize) -> Option<&T> {
        self.all.get(place)?.as_ref()
    }

    /// The same, to be changed.
    #[inline]
    pub fn get_mut(&mut self, place: usize) -> Option<&mut T> {
        self.all.get_mut(place)?.as_mut()
    }

    /// Puts in what is there and takes out what is here, either of which may be nothing.
    pub fn exchange(&mut self, place: usize, content: &mut Option<T>) {
        if let Some(here) = self.all.get_mut(place) {
            core::mem::swap(here, content);
            self.present += usize::from(here.is_some());
            self.present -= usize::from(content.is_some());
        }
    }

    /// What is in them.
    pub fn iter(&self) -> Flatten<slice::Iter<'_, Option<T>>> {
        self.all.iter().flatten()
    }

    /// The same, to be changed.
    pub fn iter_mut(&mut self) -> Flatten<slice::IterMut<'_, Option<T>>> {
        self.all.iter_mut().flatten()
    }
}
