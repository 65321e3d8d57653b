//! What PAE paging begins with: VMX wants it in the control structure, and it stands in the guest's
//! memory.

use crate::cpu::vendor::GuestPages;

/// The pointers of PAE paging at the guest's CR3; none is present, where there is no memory.
pub fn pointers(cr3: u64, memory: &dyn GuestPages) -> [u64; 4] {
    let at = cr3 & 0xFFFF_FFE0;
    let Some(page) = memory.page(at) else { return [0; 4] };
    // SAFETY: the page is the guest's memory, identity-mapped; four words from a multiple of 32
    // lie in it. The guest may change them meanwhile: each is read once.
    core::array::from_fn(|n| unsafe {
        ((page + (at & 0xFFF)) as *const u64).add(n).read_volatile()
    })
}
