//! The boot image as a file beside the loader, where the loader has none in itself.

use crate::pages::{REACH, below};
use alloc::{format, string::String};
use uefi::{
    CStr16, Status, boot, cstr16, println,
    proto::{
        loaded_image::LoadedImage,
        media::file::{File, FileAttribute, FileInfo, FileMode},
        media::fs::SimpleFileSystem,
    },
    runtime::{self, VariableVendor},
};

const PLAN: &CStr16 = cstr16!("\\exitless\\plan.img");

/// Whether firmware starts only what is signed. It isn't taken to be off but for a clear answer.
fn secure_boot() -> bool {
    let mut value = [0; 1];
    let vendor = VariableVendor::GLOBAL_VARIABLE;
    match runtime::get_variable(cstr16!("SecureBoot"), &vendor, &mut value) {
        Ok((value, _)) => value != [0],
        Err(error) => error.status() != Status::NOT_FOUND,
    }
}

/// The file's bytes, at a page's start; nothing if there is none, or none may be taken.
pub fn plan(own: &LoadedImage) -> Result<&'static [u8], String> {
    if secure_boot() {
        println!("exitless: Secure Boot is on, so no boot image is read from {PLAN}");
        return Ok(&[]);
    }
    // What was loaded over the network has no file system beside it.
    let Some(mut volume) = own
        .device()
        .and_then(|device| boot::open_protocol_exclusive::<SimpleFileSystem>(device).ok())
    else {
        return Ok(&[]);
    };
    let broken = |error: uefi::Error| format!("{PLAN} can't be read: {error}");
    let mut root = volume.open_volume().map_err(broken)?;
    let file = match root.open(PLAN, FileMode::Read, FileAttribute::empty()) {
        Err(error) if error.status() == Status::NOT_FOUND => return Ok(&[]),
        file => file.map_err(broken)?,
    };
    let mut file =
        file.into_regular_file().ok_or_else(|| format!("{PLAN} is a folder, not a boot image"))?;
    let size = file.get_boxed_info::<FileInfo>().map_err(broken)?.file_size();
    if size == 0 {
        return Ok(&[]);
    }
    let image = below(REACH, size, "the boot image")?;
    let mut read = 0;
    while read < image.len() {
        match file.read(&mut image[read..]).map_err(broken)? {
            0 => return Err(format!("{PLAN} ends at byte {read}; the disk says {size}")),
            count => read += count,
        }
    }
    Ok(image)
}
