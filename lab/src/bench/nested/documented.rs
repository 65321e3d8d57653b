//! The keys of JSON, as `docs/nesting.md` has them: for tests.
//!
//! Guarantees: what [`check`] accepts are rows all of whose keys are documented, and that have all
//! keys that are.

use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeSet;

const DOCUMENT: &str = include_str!("../../../../docs/nesting.md");

/// Fails unless the rows that these commands write have the keys of their table, but for `others`,
/// which one of the commands doesn't have.
pub fn check(commands: &str, rows: &impl Serialize, others: &[&str]) {
    let mut written = BTreeSet::new();
    keys("", &serde_json::to_value(rows).unwrap(), &mut written);
    written.extend(others.iter().map(|key| (*key).to_owned()));
    assert_eq!(documented(DOCUMENT, commands), written, "{commands}");
}

/// Where each value is that isn't an object or a list of some.
fn keys(at: &str, value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(of) => {
            for (key, value) in of {
                let dot = if at.is_empty() { "" } else { "." };
                keys(&format!("{at}{dot}{key}"), value, found);
            }
        }
        Value::Array(list) if has_objects(value) => {
            // The outermost list is the file.
            let at = if at.is_empty() { String::new() } else { format!("{at}[]") };
            list.iter().for_each(|value| keys(&at, value, found));
        }
        _ => _ = found.insert(at.to_owned()),
    }
}

fn has_objects(value: &Value) -> bool {
    match value {
        Value::Array(list) => list.iter().any(has_objects),
        other => other.is_object(),
    }
}

/// The keys of a table: of several in a row, all are beside the first.
fn documented(document: &str, commands: &str) -> BTreeSet<String> {
    let (_, rest) = document.split_once(&format!("\n{commands}: ")).unwrap();
    let rows = rest.lines().skip_while(|line| !line.starts_with('|'));
    let rows = rows.take_while(|line| line.starts_with('|')).filter(|line| line.starts_with("| `"));
    let of = |row: &str| {
        let cell = row.split('|').nth(1).unwrap_or_default().to_owned();
        let names: Vec<_> = cell.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        let beside = names[0].rfind('.').map_or(String::new(), |dot| names[0][..=dot].to_owned());
        let full = |(n, name): (usize, &String)| match n {
            0 => name.clone(),
            _ => format!("{beside}{name}"),
        };
        names.iter().enumerate().map(full).collect::<Vec<_>>()
    };
    rows.flat_map(of).collect()
}

#[test]
fn keys_are_found_wherever_they_are() {
    let document = "# A\n\n`x`: a list\n\n| key | is |\n|---|---|\n| `a` | `no` |\n\
                    | `b[].c`, `d` | |\n| `e[][].f` | |\n\n| `g` | another |\n";
    let rows = serde_json::json!([
        {"a": [["pair", 1.0]], "b": [{"c": 1, "d": null}], "e": [[{"f": 2}]]}
    ]);
    let mut written = BTreeSet::new();
    keys("", &rows, &mut written);
    assert_eq!(written, ["a", "b[].c", "b[].d", "e[][].f"].map(str::to_owned).into());
    assert_eq!(documented(document, "`x`"), written);
}
