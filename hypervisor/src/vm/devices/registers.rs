//! Loads and stores of the registers of assigned devices, for a guest.

/// A register of the device, by the width the guest used.
pub fn device_load(at: u64, size: u8) -> u64 {
    // SAFETY: callers keep `at` inside a BAR of the VM's own device, which
    // `AssignedDevice::new` mapped, and aligned to `size`; the IOMMU confines what the device may
    // do.
    unsafe {
        match size {
            1 => core::ptr::read_volatile(at as *const u8) as u64,
            2 => core::ptr::read_volatile(at as *const u16) as u64,
            4 => core::ptr::read_volatile(at as *const u32) as u64,
            _ => core::ptr::read_volatile(at as *const u64),
        }
    }
}

/// The same for a store.
pub fn device_store(at: u64, size: u8, value: u64) {
    // SAFETY: as in `device_load`.
    unsafe {
        match size {
            1 => core::ptr::write_volatile(at as *mut u8, value as u8),
            2 => core::ptr::write_volatile(at as *mut u16, value as u16),
            4 => core::ptr::write_volatile(at as *mut u32, value as u32),
            _ => core::ptr::write_volatile(at as *mut u64, value),
        }
    }
}
