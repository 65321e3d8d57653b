//! What the command line takes as words: sizes, devices, addresses, forwarded ports. What is
//! accepted reads the same when it is written out and read again; a refusal is one line. And the
//! sizes in an ELF file: any bytes.
#![no_main]

use fuzz::one_line;
use libfuzzer_sys::fuzz_target;
use std::{fmt::Display, str::FromStr};

// Of a program, so there is no crate to name.
#[allow(dead_code, reason = "the target uses its part")]
#[path = "../../lab/src/elf.rs"]
mod elf;
#[allow(dead_code, reason = "the target uses its part")]
#[path = "../../cli/src/network.rs"]
mod network;

fn again<T: FromStr<Err: Display> + Display + PartialEq>(text: &str) {
    match text.parse::<T>() {
        Ok(value) => {
            let shown = value.to_string();
            assert!(shown.parse::<T>().is_ok_and(|again| again == value), "{text:?}: {shown:?}");
        }
        Err(refusal) => one_line(&refusal),
    }
}

fuzz_target!(|input: (&str, &[u8])| {
    let (text, bytes) = input;
    for word in [text].into_iter().chain(text.split_whitespace().take(8)) {
        again::<plan::DeviceName>(word);
        match plan::parse_size(word) {
            Ok(bytes) if bytes > 0 && bytes % 1024 == 0 => {
                assert_eq!(plan::parse_size(&plan::Size(bytes).to_string()), Ok(bytes));
            }
            Ok(bytes) => assert_eq!(bytes, 0),
            Err(refusal) => one_line(&refusal),
        }
        again::<plan::Mac>(word);
        match word.parse::<network::Forward>() {
            Ok(forward) => {
                assert!(forward.port != 0 && forward.guest_port != 0);
                // QEMU's list of options has commas and equals signs between them.
                assert!(!forward.to_string().contains([',', '=']));
            }
            Err(refusal) => one_line(&refusal),
        }
    }
    match elf::loaded_bytes(bytes) {
        Ok(_) => assert!(bytes.starts_with(b"\x7fELF")),
        Err(refusal) => one_line(&refusal),
    }
});
