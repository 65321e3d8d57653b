//! What only firmware can tell of the machine while its boot services run.

use alloc::{format, string::String, vec::Vec};
use core::{
    arch::x86_64::{__cpuid, _rdtsc},
    time::Duration,
};
use handover::{Framebuffer, PixelFormat, Transfer};
use uefi::{
    Identify,
    boot::{self, OpenProtocolAttributes, OpenProtocolParams, SearchType},
    proto::{
        console::gop::{self, GraphicsOutput},
        loaded_image::LoadedImage,
    },
    system,
    table::{self, cfg::ConfigTableEntry},
};

/// Pages of 1 GiB (CPUID 8000_0001h EDX[26]).
const PAGES_1_GIB: u32 = 1 << 26;
/// How long the TSC is measured, and how often. What comes in between makes a measurement too long
/// and never too short, so the least counts.
const MEASURE: Duration = Duration::from_millis(10);
const MEASUREMENTS: usize = 5;

/// What the way to the hypervisor needs of the CPU; the hypervisor says the rest itself.
pub fn check() -> Result<(), String> {
    if __cpuid(0x8000_0001).edx & PAGES_1_GIB == 0 {
        let needed = "which the hypervisor needs";
        return Err(format!("this CPU has no 1 GiB pages (CPUID 80000001h EDX[26]), {needed}"));
    }
    Ok(())
}

/// The command line: what of the load options is ASCII. They are text by custom only.
pub fn options(own: &LoadedImage) -> Vec<u8> {
    let text = own.load_options_as_cstr16();
    let bytes = |text: &uefi::CStr16| {
        let ascii = text.iter().filter_map(|c| u8::try_from(u32::from(char::from(*c))).ok());
        ascii.filter(u8::is_ascii).take(handover::MAX_COMMAND_LINE).collect()
    };
    text.map(bytes).unwrap_or_default()
}

/// Puts the machine's description in: tables, screen, clock.
pub fn describe(transfer: &mut Transfer) {
    transfer.rsdp = root_pointer().unwrap_or(handover::NOT_THERE);
    transfer.system_table = table::system_table_raw().map_or(0, |table| table.as_ptr() as u64);
    if let Some(screen) = screen() {
        transfer.set_framebuffer(screen);
    }
    transfer.tsc_hz = tsc_hz();
}

/// TSC ticks a second.
fn tsc_hz() -> u64 {
    let ticks = (0..MEASUREMENTS).map(|_| {
        // SAFETY: every 64-bit CPU has RDTSC, and firmware runs where it is allowed.
        let before = unsafe { _rdtsc() };
        boot::stall(MEASURE);
        // SAFETY: as above.
        unsafe { _rdtsc() }.wrapping_sub(before)
    });
    ticks.min().unwrap_or(0).saturating_mul(1000) / MEASURE.as_millis() as u64
}

/// Address of ACPI's root pointer, the newer one if there are two.
fn root_pointer() -> Option<u64> {
    system::with_config_table(|tables| {
        let find = |guid| tables.iter().find(|table| table.guid == guid);
        find(ConfigTableEntry::ACPI2_GUID)
            .or_else(|| find(ConfigTableEntry::ACPI_GUID))
            .map(|table| table.address as u64)
    })
}

/// The first screen that is a plain framebuffer.
fn screen() -> Option<Framebuffer> {
    let handles = boot::locate_handle_buffer(SearchType::ByProtocol(&GraphicsOutput::GUID)).ok()?;
    handles.iter().find_map(|handle| {
        let (agent, controller) = (boot::image_handle(), None);
        let params = OpenProtocolParams { handle: *handle, agent, controller };
        // Exclusively it would be taken from the firmware's console, which is still needed.
        let attributes = OpenProtocolAttributes::GetProtocol;
        // SAFETY: the screen isn't taken away while it is only asked for its mode.
        let mut output =
            unsafe { boot::open_protocol::<GraphicsOutput>(params, attributes) }.ok()?;
        let mode = output.current_mode_info();
        let format = match mode.pixel_format() {
            gop::PixelFormat::Rgb => PixelFormat::Rgb,
            gop::PixelFormat::Bgr => PixelFormat::Bgr,
            gop::PixelFormat::Bitmask | gop::PixelFormat::BltOnly => return None,
        };
        let (width, height) = mode.resolution();
        let screen = Framebuffer {
            address: output.frame_buffer().as_mut_ptr() as u64,
            pitch: u32::try_from(mode.stride()).ok()?.checked_mul(4)?,
            width: u32::try_from(width).ok()?,
            height: u32::try_from(height).ok()?,
            format,
        };
        screen.checked()
    })
}
