//! The tables in docs/mutants.md, which runs write.

use anyhow::{Context as _, Result};
use std::{fs, path::Path};

/// Puts a text between the marks of its part of the document.
pub fn write(root: &Path, part: &str, text: &str) -> Result<()> {
    let file = root.join("docs/mutants.md");
    let old = fs::read_to_string(&file)?;
    let new = replaced(&old, part, text)
        .with_context(|| format!("docs/mutants.md lost the marks around \"the {part}\""))?;
    fs::write(&file, new)?;
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
    fn the_document_has_the_marks() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let text = fs::read_to_string(root.join("docs/mutants.md")).unwrap();
        assert!(["image", "crates"].iter().all(|part| replaced(&text, part, "").is_some()));
    }
}
