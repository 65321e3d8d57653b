//! The imports between the modules of a crate, read from its source, and the circles in them.
//!
//! A module is a file. It depends on another one if it names something of it by a path: in a `use`,
//! or in the code. A name that a module only passes on (`pub use child::Thing`) counts for the
//! module that defines it, and the module that passes it on doesn't need it. Tests (`#[cfg(test)]`,
//! files `*tests.rs`) don't count.
//!
//! It doesn't see what needs no path: methods, macros, fields.

mod source;

use anyhow::{Context as _, Result};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs,
    path::{Path, PathBuf},
};

/// A path from the crate's root, such as `vm::devices::uart`; empty for the root itself.
type ModulePath = Vec<String>;

/// The modules of a crate and what each depends on.
#[derive(Debug, Default)]
struct Imports(BTreeMap<ModulePath, BTreeSet<ModulePath>>);

/// The packages that are looked at.
const PACKAGES: [&str; 3] = ["cli", "lab", "hypervisor"];

/// The fewest modules that each of them has.
const LEAST: usize = 15;

/// What is wrong in the checkout at `root`, a line for each circle; nothing if all is well.
pub fn check(root: &Path) -> Result<String> {
    let mut wrong = String::new();
    for package in PACKAGES {
        let imports = Imports::read(&root.join(package).join("src"))?;
        for circle in imports.circles() {
            wrong += &format!("{package}: {} → {}\n", circle.join(" → "), circle[0]);
        }
        let modules = imports.0.len();
        if modules < LEAST {
            wrong += &format!("{package}: only {modules} modules were found\n");
        }
    }
    Ok(wrong)
}

impl Imports {
    /// Of the crate whose root file (`main.rs` or `lib.rs`) is in `src`.
    fn read(src: &Path) -> Result<Imports> {
        let mut files = Vec::new();
        collect(src, &mut files).with_context(|| format!("{} can't be read", src.display()))?;
        let mut texts = Vec::new();
        for file in files {
            let text = fs::read_to_string(&file)
                .with_context(|| format!("{} can't be read", file.display()))?;
            let place = file.strip_prefix(src).unwrap_or(&file);
            texts.extend(module_path(place).map(|path| (path, text)));
        }
        Ok(Imports::of(texts))
    }

    /// Of these modules' texts.
    fn of(texts: impl IntoIterator<Item = (ModulePath, String)>) -> Imports {
        let mut modules = BTreeMap::<_, Module>::new();
        for (path, text) in texts {
            // A library and a binary of one package have one root.
            modules.entry(path).or_default().add(&source::bare(&text));
        }
        let own = modules.iter().map(|(path, module)| (path.clone(), module.needs(path, &modules)));
        Imports(own.collect())
    }

    /// A shortest circle through each knot of modules, the smallest first; none is right.
    fn circles(&self) -> Vec<Vec<String>> {
        let mut circles: Vec<_> = self.0.keys().filter_map(|m| self.circle(m)).collect();
        circles.sort_by_key(Vec::len);
        let mut shown = BTreeSet::new();
        circles.retain(|circle| circle.iter().all(|module| shown.insert(module.clone())));
        circles.into_iter().map(|c| c.iter().map(name).collect()).collect()
    }

    /// The shortest way from a module back to itself.
    fn circle(&self, module: &ModulePath) -> Option<Vec<ModulePath>> {
        let mut from = BTreeMap::new();
        let mut queue = VecDeque::from([module]);
        while let Some(at) = queue.pop_front() {
            for next in self.0.get(at).into_iter().flatten() {
                if next == module {
                    let mut way = vec![at.clone()];
                    while let Some(before) = way.last().and_then(|m| from.get(m)) {
                        way.push(ModulePath::clone(before));
                    }
                    way.reverse();
                    return Some(way);
                }
                if !from.contains_key(next) {
                    from.insert(next.clone(), at.clone());
                    queue.push_back(next);
                }
            }
        }
        None
    }
}

fn name(module: &ModulePath) -> String {
    if module.is_empty() { "(root)".to_owned() } else { module.join("::") }
}

fn collect(folder: &Path, into: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, into)?;
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push(path);
        }
    }
    Ok(())
}

/// The module that a file below `src` is; none for a file of tests.
fn module_path(place: &Path) -> Option<ModulePath> {
    let mut path: ModulePath =
        place.with_extension("").iter().map(|p| p.to_string_lossy().into_owned()).collect();
    if path.iter().any(|part| part.ends_with("tests")) {
        return None;
    }
    if path.last().is_some_and(|last| last == "mod") || path == ["main"] || path == ["lib"] {
        path.pop();
    }
    Some(path)
}

/// What a module's text says of others.
#[derive(Default)]
struct Module {
    /// The name that each `use` gives, and the path behind it.
    uses: Vec<(String, Vec<String>)>,
    /// The names that are passed on and not used here.
    passed_on: BTreeSet<String>,
    /// Paths of two parts or more elsewhere in the text.
    paths: Vec<Vec<String>>,
}

impl Module {
    fn add(&mut self, text: &str) {
        let mut rest = String::new();
        let mut text = text;
        let mut public = Vec::new();
        while let Some(at) = find_use(text) {
            let (before, after) = text.split_at(at);
            rest.push_str(before);
            let end = after.find(';').unwrap_or(after.len());
            let known = self.uses.len();
            expand(&mut Vec::new(), after["use".len()..end].trim(), &mut self.uses);
            let last = before.trim_end().rsplit(char::is_whitespace).next().unwrap_or("");
            if last == "pub" || last.starts_with("pub(") || last.ends_with(')') {
                public.extend(self.uses[known..].iter().map(|(name, _)| name.clone()));
            }
            text = &after[end..];
        }
        rest.push_str(text);
        let words: BTreeSet<_> = rest.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        self.passed_on.extend(public.into_iter().filter(|name| !words.contains(name.as_str())));
        self.paths.extend(paths(&rest));
    }

    /// The modules that it depends on; `own` is its own path.
    fn needs(&self, own: &ModulePath, all: &BTreeMap<ModulePath, Module>) -> BTreeSet<ModulePath> {
        let mut needs = BTreeSet::new();
        for (name, path) in &self.uses {
            let Some(absolute) = absolute(own, path, all) else { continue };
            // A module that is imported as such is needed for what is named through it.
            let as_such = all.contains_key(&absolute) && name != "*";
            if !as_such && !self.passed_on.contains(name) {
                needs.extend(definer(absolute, all, 0));
            }
        }
        for path in &self.paths {
            let behind = self.uses.iter().find(|(name, _)| Some(name) == path.first());
            let path = match behind {
                Some((_, to)) => [to, &path[1..]].concat(),
                None => path.clone(),
            };
            needs.extend(absolute(own, &path, all).and_then(|path| definer(path, all, 0)));
        }
        needs.remove(own);
        needs
    }
}

/// The path from the root; none for what is of another crate.
fn absolute(
    own: &ModulePath,
    path: &[String],
    all: &BTreeMap<ModulePath, Module>,
) -> Option<ModulePath> {
    let first = path.first()?;
    let mut base = own.clone();
    let mut rest = path;
    match first.as_str() {
        "crate" => (base, rest) = (Vec::new(), &path[1..]),
        "self" => rest = &path[1..],
        "super" => {
            while let Some(("super", after)) = rest.split_first().map(|(f, r)| (f.as_str(), r)) {
                base.pop();
                rest = after;
            }
        }
        _ => {
            base.push(first.clone());
            all.get(&base)?;
            rest = &path[1..];
        }
    }
    base.extend_from_slice(rest);
    Some(base)
}

/// The module in which what the path names is defined.
fn definer(
    path: ModulePath,
    all: &BTreeMap<ModulePath, Module>,
    depth: usize,
) -> Option<ModulePath> {
    let length = (0..=path.len()).rev().find(|n| all.contains_key(&path[..*n]))?;
    let (module, rest) = path.split_at(length);
    let passed_on = rest.first().and_then(|first| {
        let (_, to) = all[module].uses.iter().find(|(name, _)| name == first)?;
        absolute(&module.to_vec(), &[to, &rest[1..]].concat(), all)
    });
    match passed_on {
        // Deeper than any chain of `pub use` is.
        Some(path) if depth < 8 => definer(path, all, depth + 1),
        _ => Some(module.to_vec()),
    }
}

/// Where the next `use` item begins.
fn find_use(text: &str) -> Option<usize> {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices("use ").map(|(at, _)| at).find(|at| !text[..*at].ends_with(word))
}

/// The names that a use tree gives, with their paths.
fn expand(prefix: &mut Vec<String>, tree: &str, into: &mut Vec<(String, Vec<String>)>) {
    let depth = prefix.len();
    let mut tree = tree.trim().trim_start_matches("::");
    while let Some((first, rest)) = tree.split_once("::").filter(|(first, _)| !first.contains('{'))
    {
        prefix.push(first.trim().to_owned());
        tree = rest.trim();
    }
    if let Some(group) = tree.strip_prefix('{').and_then(|t| t.trim_end().strip_suffix('}')) {
        split(group).into_iter().for_each(|part| expand(prefix, part, into));
    } else if !tree.is_empty() {
        let (item, name) = tree.split_once(" as ").unwrap_or((tree, tree));
        let (item, mut name) = (item.trim(), name.trim());
        if item == "self" {
            if name == "self" {
                name = prefix.last().map_or("self", String::as_str);
            }
            into.push((name.to_owned(), prefix.clone()));
        } else {
            let path = if item == "*" {
                prefix.clone()
            } else {
                [&prefix[..], &[item.to_owned()]].concat()
            };
            into.push((name.to_owned(), path));
        }
    }
    prefix.truncate(depth);
}

/// The parts of a list that commas outside of braces separate.
fn split(list: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[start..]);
    parts
}

/// Every path of two parts or more in a text.
fn paths(text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut parts: Vec<String> = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find(|c: char| c.is_alphabetic() || c == '_') {
        if rest[..start] != *"::" && !parts.is_empty() {
            found.push(std::mem::take(&mut parts));
        }
        rest = &rest[start..];
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        parts.push(rest[..end].to_owned());
        rest = &rest[end..];
    }
    found.push(parts);
    found.retain(|path| path.len() > 1);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(texts: &[(&str, &str)]) -> Imports {
        Imports::of(texts.iter().map(|(file, text)| {
            (module_path(Path::new(file)).expect("no file of tests"), (*text).to_owned())
        }))
    }

    fn circles(texts: &[(&str, &str)]) -> Vec<String> {
        of(texts).circles().iter().map(|c| c.join(" → ")).collect()
    }

    #[test]
    fn two_modules_that_use_each_other_are_a_circle() {
        let one_way =
            [("main.rs", "mod a; mod b; use a::A;"), ("a.rs", "use crate::b::B;"), ("b.rs", "")];
        assert!(circles(&one_way).is_empty());
        let both = [("a.rs", "use crate::{b::B, x};"), ("b.rs", "fn f() { crate::a::g() }")];
        assert_eq!(circles(&both), ["a → b"]);
        let three = [
            ("a/mod.rs", "use crate::b;\nfn f() { b::g() }"),
            ("b.rs", "use super::c::{d::{E, F}, G as H};"),
            ("c/mod.rs", ""),
            ("c/d.rs", "use crate::a::{self, A};"),
        ];
        assert_eq!(circles(&three), ["a → b → c::d"]);
    }

    #[test]
    fn a_name_that_is_passed_on_counts_for_who_defines_it() {
        let passed_on = [
            ("v/mod.rs", "mod a;\nmod b;\npub use a::A;"),
            ("v/a.rs", ""),
            ("v/b.rs", "use super::A;"),
        ];
        assert!(circles(&passed_on).is_empty());
        assert_eq!(of(&passed_on).0[&vec!["v".to_owned(), "b".to_owned()]].len(), 1);
        let facade =
            [("v/mod.rs", "pub(super) use a::A;\npub struct T;"), ("v/a.rs", "use super::T;")];
        assert!(circles(&facade).is_empty());
        let defined =
            [("v/mod.rs", "pub use a::A;\npub struct T(A);"), ("v/a.rs", "use super::T;")];
        assert_eq!(circles(&defined), ["v → v::a"]);
    }

    #[test]
    fn a_module_inside_of_a_file_is_the_file() {
        let files = [
            ("a.rs", "mod inner { use super::X; const Y: u8 = super::Z; }\nstruct X;"),
            ("main.rs", "use a::X; fn f(x: X) {}"),
        ];
        assert!(circles(&files).is_empty());
        let files = [("a.rs", "mod inner { fn f() { super::super::g() } }"), files[1]];
        assert_eq!(circles(&files), ["(root) → a"]);
    }

    #[test]
    fn comments_strings_and_tests_are_no_imports() {
        let text = r##"
            // use crate::b::B;
            /// [`crate::b`]
            const S: &str = "use crate::b::B; \" crate::b::f()";
            const R: &str = r#"crate::b::f() "quoted" "#;
            const Q: char = '"';
            fn lifetimes<'a>(x: &'a str) {}
            #[cfg(test)]
            mod tests { use crate::b::B; fn f() { crate::b::g() } }
        "##;
        let files = [("a.rs", text), ("b.rs", "use crate::a::A;")];
        assert!(circles(&files).is_empty());
        assert_eq!(module_path(Path::new("bench/html_tests.rs")), None);
        let after =
            [("a.rs", "const Q: char = '\"';\nuse crate::b::B;"), ("b.rs", "use crate::a::A;")];
        assert_eq!(circles(&after), ["a → b"]);
    }

    #[test]
    fn this_checkout_has_no_circles() {
        let wrong = check(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).unwrap();
        assert!(wrong.is_empty(), "{wrong}");
    }
}
