//! QEMU's lists of options, `key=value,key=value`.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::Path,
};

/// A list that ends with the name of a file, where a comma is written twice.
pub fn file_option(options: &str, path: &Path) -> OsString {
    let mut list = OsString::from(options);
    for (i, part) in path.as_os_str().as_bytes().split(|b| *b == b',').enumerate() {
        if i > 0 {
            list.push(",,");
        }
        list.push(OsStr::from_bytes(part));
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_of_a_name_are_doubled() {
        assert_eq!(file_option("raw,file=", Path::new("a,b,,c")), "raw,file=a,,b,,,,c");
        let odd = Path::new(OsStr::from_bytes(b"\xFF"));
        assert_eq!(file_option("file=", odd).as_bytes(), b"file=\xFF");
    }
}
