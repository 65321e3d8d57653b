//! The names of cases, and what `--only` means.

/// Whether a name has this text in it, `*` standing for anything.
pub fn named(name: &str, text: &str) -> bool {
    let mut rest = Some(name);
    for part in text.split('*') {
        rest = rest.and_then(|r| r.split_once(part)).map(|(_, behind)| behind);
    }
    rest.is_some()
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
}
