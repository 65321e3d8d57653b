//! The names of cases, and what `--only` means.

/// Whether a name has this text in it, `*` standing for anything, `^` for the name's begin and `$`
/// for its end.
pub fn named(name: &str, text: &str) -> bool {
    let begin = text.strip_prefix('^').map_or_else(|| format!("*{text}"), str::to_owned);
    let pattern = begin.strip_suffix('$').map_or_else(|| format!("{begin}*"), str::to_owned);
    fits(name, &pattern)
}

fn fits(name: &str, pattern: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return name == pattern };
    name.strip_prefix(first).is_some_and(|behind| {
        let mut places = behind.char_indices().map(|(i, _)| i).chain([behind.len()]);
        places.any(|i| fits(&behind[i..], rest))
    })
}

#[cfg(test)]
mod tests {
    use super::named;

    #[test]
    fn a_star_stands_for_anything() {
        assert!(named("smp-eli/icr-storm", "smp-*/icr-storm"));
        assert!(named("smp-eli/icr-storm", "icr"));
        assert!(named("smp-eli/icr-storm", "*"));
        assert!(!named("smp-eli/icr-storm", "storm*icr"));
        assert!(!named("eli/icr", "icr*icr"));
        assert!(!named("shared-smp/ipi-all", "smp-*/ipi-all"));
    }

    #[test]
    fn a_name_can_be_told_from_those_that_have_it_in_them() {
        assert!(named("eli/icr", "^eli/icr$"));
        assert!(!named("smp-eli/icr", "^eli/icr$"));
        assert!(!named("eli/icr-storm", "^eli/icr$"));
        assert!(named("eli/icr-storm", "^eli/icr"));
        assert!(named("smp-eli/icr", "eli/icr$"));
        assert!(named("eli/icr-icr", "icr$") && named("eli/icr-icr", "^eli*icr$"));
        assert!(!named("eli/icr-icr", "^eli/icr$") && !named("eli/icr-x", "^eli*icr$"));
    }
}
