//! The known word nearest to one that isn't known, for "did you mean".

use alloc::vec::Vec;

/// The word of `known` that takes the fewest insertions, deletions and exchanges of
/// a character to become `word`; none when even that would rewrite most of it.
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    // Longer words can't be near any key, and the cost is the product of the lengths.
    if word.len() > 64 {
        return None;
    }
    let (cost, best) = known.iter().map(|k| (distance(word, k), *k)).min_by_key(|(d, _)| *d)?;
    (cost * 2 <= best.len().max(2)).then_some(best)
}

/// Levenshtein's distance, row by row.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut left = i + 1;
        let mut next = Vec::with_capacity(row.len());
        next.push(left);
        for (cb, above) in b.iter().zip(row.windows(2)) {
            let exchange = above[0] + usize::from(ca != *cb);
            left = exchange.min(above[1] + 1).min(left + 1);
            next.push(left);
        }
        row = next;
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_levenshteins() {
        for (a, b, d) in [("", "", 0), ("", "abc", 3), ("kitten", "sitting", 3), ("abc", "abc", 0)]
        {
            assert_eq!(distance(a, b), d, "{a} {b}");
            assert_eq!(distance(b, a), d, "{b} {a}");
        }
    }

    #[test]
    fn the_near_is_found_and_the_far_is_not() {
        let known = ["cpus", "memory", "kernel", "cmdline"];
        assert_eq!(nearest("cpu", &known), Some("cpus"));
        assert_eq!(nearest("memroy", &known), Some("memory"));
        assert_eq!(nearest("command_line", &known), None);
        assert_eq!(nearest("", &[]), None);
        // Half of the best word's length may be wrong, and no more; of the shortest ones one.
        assert_eq!([nearest("meqqqy", &known), nearest("mqqqqy", &known)], [Some("memory"), None]);
        assert_eq!([nearest("a", &["b"]), nearest("ab", &["c"])], [Some("b"), None]);
        let word =
            |length| nearest(&"x".repeat(length), &["xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"]);
        assert!(word(60).is_some() && word(61).is_none());
        let long = "x".repeat(64);
        let known = [long.as_str()];
        assert_eq!(
            (nearest(&long, &known), nearest(&(long.clone() + "x"), &known)),
            (Some(&*long), None)
        );
    }
}
