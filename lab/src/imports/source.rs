//! Rust source without what imports nothing: comments, strings, tests.
//!
//! It is no parser: it knows as much of the language as this repository's code, formatted by
//! rustfmt, needs.

/// The text without comments, strings and tests, with inner modules' paths as the file's own.
pub fn bare(text: &str) -> String {
    flat(&without_tests(&without_comments(text)))
}

/// The text without comments and without what strings say.
fn without_comments(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['/', '"', '\'']) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let raw = out.len() - out.trim_end_matches('#').len();
        let end = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if rest.starts_with('"') && out.trim_end_matches('#').ends_with('r') {
            let close = format!("\"{}", "#".repeat(raw));
            rest[1..].find(&close).map_or(rest.len(), |end| 1 + end + close.len())
        } else if rest.starts_with('"') {
            string_end(rest)
        } else if let Some(quoted) = ["'\"'", "'\\\"'", "'/'", "'\\''", "'\\\\'", "b'\"'"]
            .iter()
            .find(|q| rest.starts_with(**q))
        {
            quoted.len()
        } else {
            out.push_str(&rest[..1]);
            1
        };
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

/// How long the string is that the text begins with.
fn string_end(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The text without the items that only tests have.
fn without_tests(text: &str) -> String {
    const MARK: &str = "#[cfg(test)]";
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(MARK) {
        out.push_str(&rest[..at]);
        rest = &rest[at + MARK.len()..];
        let mut depth = 0;
        let end = rest.char_indices().find(|(_, c)| match c {
            '{' => {
                depth += 1;
                false
            }
            '}' => {
                depth -= 1;
                depth == 0
            }
            ';' => depth == 0,
            _ => false,
        });
        rest = end.map_or("", |(end, _)| &rest[end + 1..]);
    }
    out + rest
}

/// The text with what stands in modules inside of the file as if it stood in the file itself:
/// there `super` is the file.
fn flat(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("mod ") {
        let body = at + rest[at..].find(['{', ';']).unwrap_or(rest.len() - at);
        out.push_str(&rest[..body]);
        rest = &rest[body..];
        if rest.starts_with('{') {
            let mut depth = 0;
            let end = rest.char_indices().find(|(_, c)| {
                depth += i32::from(*c == '{') - i32::from(*c == '}');
                depth == 0
            });
            let (inside, after) = rest.split_at(end.map_or(rest.len(), |(end, _)| end));
            out += &inside
                .replace("super::super::", "SUPER::")
                .replace("super::", "self::")
                .replace("SUPER::", "super::");
            rest = after;
        }
    }
    out + rest
}
