//! The split ring.
use crate::{Broken, Chain, Features, Head, Layout, LayoutError, State};
use window::Window;

/// A queue with the split ring.
#[derive(Debug)]
pub struct SplitQueue<const N: usize> {
    state: State<N>,
}

#[allow(missing_docs, clippy::missing_errors_doc)]
impl<const N: usize> SplitQueue<N> {
    pub fn new(
        _window: &Window,
        _layout: Layout,
        _features: Features,
        state: State<N>,
    ) -> Result<Self, LayoutError> {
        Ok(SplitQueue { state })
    }
    pub fn available(&self) -> Result<u16, Broken> {
        todo!()
    }
    pub fn take(&mut self, _window: &Window, _chain: &mut Chain) -> Result<bool, Broken> {
        todo!()
    }
    pub fn complete(&mut self, _head: Head, _written: u32) {
        todo!()
    }
    pub fn publish(&mut self) {
        todo!()
    }
    pub fn wants_call(&mut self) -> bool {
        todo!()
    }
    pub fn call_withheld(&mut self) {
        todo!()
    }
    pub fn call_due(&self) -> bool {
        todo!()
    }
    pub fn suppress_kicks(&mut self) {
        todo!()
    }
    pub fn enable_kicks(&mut self) -> Result<u16, Broken> {
        todo!()
    }
    pub fn state(&self) -> State<N> {
        self.state
    }
    pub fn size(&self) -> u16 {
        todo!()
    }
}
