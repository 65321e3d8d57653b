//! Linker arguments of the image: a static ELF at the addresses of `link.ld`.

fn main() {
    let dir = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    println!("cargo:rerun-if-changed=link.ld");
    // The target's default is a static PIE; the image runs where it is linked, so no relocations.
    for argument in
        [&format!("-T{dir}/link.ld"), "--no-pie", "--build-id=none", "-z", "max-page-size=4096"]
    {
        println!("cargo:rustc-link-arg-bins={argument}");
    }
}
