//! Linker arguments of the image: a static PIE with the sections of `link.ld`, which relocates
//! itself.

fn main() {
    let dir = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    println!("cargo:rerun-if-changed=link.ld");
    for argument in [
        &format!("-T{dir}/link.ld"),
        "--build-id=none",
        "--pack-dyn-relocs=relr",
        "-z",
        "max-page-size=4096",
        "-z",
        "norelro",
    ] {
        println!("cargo:rustc-link-arg-bins={argument}");
    }
}
