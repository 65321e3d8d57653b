//! The tables in documents that runs write.

use anyhow::{Context as _, Result};
use std::{fs, path::Path};

/// Puts a text between the marks of its part of a document, if it is another one; says so then.
pub fn write(root: &Path, document: &str, part: &str, text: &str) -> Result<()> {
    let file = root.join(document);
    let old = fs::read_to_string(&file).with_context(|| format!("{document} can't be read"))?;
    let new = replaced(&old, part, text)
        .with_context(|| format!("{document} lost the marks around \"the {part}\""))?;
    if new != old {
        fs::write(&file, new).with_context(|| format!("{document} can't be written"))?;
        println!("      {document}: the {part} is new");
    }
    Ok(())
}

fn replaced(old: &str, part: &str, text: &str) -> Option<String> {
    let (first, last) =
        (format!("<!-- the {part} -->\n"), format!("<!-- the end of the {part} -->\n"));
    let (before, rest) = old.split_once(&first)?;
    let (_, behind) = rest.split_once(&last)?;
    Some(format!("{before}{first}{text}{last}{behind}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_between_the_marks_is_replaced() {
        let old = "a\n<!-- the x -->\nold\n<!-- the end of the x -->\nb\n";
        let new = "a\n<!-- the x -->\nnew\n<!-- the end of the x -->\nb\n";
        assert_eq!(replaced(old, "x", "new\n").as_deref(), Some(new));
        assert_eq!(replaced(old, "y", "new\n"), None);
    }

    #[test]
    fn the_documents_have_the_marks() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for (document, part) in [
            ("docs/mutants.md", "image"),
            ("docs/mutants.md", "crates"),
            ("docs/kernels.md", "table"),
            ("docs/hardware.md", "table"),
        ] {
            let text = fs::read_to_string(root.join(document)).unwrap();
            assert!(replaced(&text, part, "").is_some(), "{document}: {part}");
        }
    }
}
