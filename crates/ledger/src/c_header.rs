//! The page's layout for programs in C: `guests/linux/measure/page.h`, which this test compares
//! with the definition in Rust. `UPDATE=1 cargo test -p ledger` writes it.

use crate::{PAGE_MAGIC, PAGE_VERSION, Page, WAITS};
use alloc::{format, string::String};
use core::mem::{offset_of, size_of};
use std::{env, fs, path::Path};

/// How many exits a page has room for.
const SLOTS: usize = size_of_val(&Page::new().exits) / 8;

/// Each field's name, place and C type, in the order of the struct, and how many of it there are.
fn fields() -> [(&'static str, usize, &'static str, usize); 12] {
    macro_rules! field {
        ($name:ident, $type:literal, $count:expr) => {
            (stringify!($name), offset_of!(Page, $name), $type, $count)
        };
    }
    [
        field!(magic, "uint64_t", 1),
        field!(version, "uint32_t", 1),
        field!(reasons, "uint32_t", 1),
        field!(entries, "uint64_t", 1),
        field!(host_cycles, "uint64_t", 1),
        field!(injected, "uint64_t", 1),
        field!(device_injected, "uint64_t", 1),
        field!(timer_injected, "uint64_t", 1),
        field!(slices, "uint64_t", 1),
        field!(exits, "uint64_t", SLOTS),
        field!(waits, "uint64_t", WAITS),
        field!(device_merged, "uint64_t", 1),
    ]
}

fn header() -> String {
    let mut text = format!(
        "/* The ledger page of a vCPU. Made from crates/ledger (c_header.rs): don't edit. */\n\
         #ifndef PAGE_H\n#define PAGE_H\n\n#include <stdint.h>\n\n\
         #define PAGE_MAGIC {PAGE_MAGIC:#x}ull\n#define PAGE_VERSION {PAGE_VERSION}\n\
         /* Room for reasons; the page says how many there are. */\n\
         #define REASONS {SLOTS}\n#define WAITS {WAITS}\n\nstruct page {{\n"
    );
    for (name, _, kind, count) in fields() {
        let room = match (name, count) {
            ("exits", _) => "[REASONS]",
            ("waits", _) => "[WAITS]",
            _ => "",
        };
        text += &format!("    {kind} {name}{room};\n");
    }
    text += "};\n\n";
    for (name, offset, ..) in fields() {
        text += &format!(
            "_Static_assert(__builtin_offsetof(struct page, {name}) == {offset}, \"{name}\");\n"
        );
    }
    text + "\n#endif\n"
}

#[test]
fn every_field_is_in_the_header() {
    let end = fields().iter().fold(0, |end, (name, offset, kind, count)| {
        assert_eq!(*offset, end, "before {name}");
        end + count * if *kind == "uint32_t" { 4 } else { 8 }
    });
    assert_eq!(end, size_of::<Page>());
}

#[test]
fn the_header_in_c_says_what_the_crate_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests/linux/measure/page.h");
    if env::var_os("UPDATE").is_some() {
        fs::write(&path, header()).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(found, header(), "run: UPDATE=1 cargo test -p ledger");
}
