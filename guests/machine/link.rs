//! The build script of the kernels: links each at its fixed address, without relocations.

fn main() {
    println!("cargo:rerun-if-changed=../machine/kernel.ld");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("none") {
        let here = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
        println!("cargo:rustc-link-arg=--script={here}/../machine/kernel.ld");
        println!("cargo:rustc-link-arg=--no-pie");
        println!("cargo:rustc-link-arg=--build-id=none");
    }
}
