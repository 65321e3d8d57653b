//! What a test kernel counts itself, in instructions: the lines in which it tells, judged.
//!
//! Guarantees: each price is of all times that the kernel did it.

use super::case::Price;

/// What was told of each: a line each, or what is wrong with them.
pub fn of(prices: &[Price], consoles: &[String]) -> Result<Vec<String>, String> {
    let console = consoles.first().map_or("", String::as_str);
    let (mut lines, mut dear) = (Vec::new(), Vec::new());
    for (word, what, most) in prices {
        let (times, taken) = told(console, word).ok_or(format!("nothing was told of {what}"))?;
        let line = format!("{what}: {:.1} instructions, of {times}", taken as f64 / times as f64);
        match taken > times * most {
            true => dear.push(format!("{line}; {most} at most wanted")),
            false => lines.push(line),
        }
    }
    if dear.is_empty() { Ok(lines) } else { Err(dear.join("; ")) }
}

/// How often, and how many instructions together.
fn told(console: &str, word: &str) -> Option<(u64, u64)> {
    let begins = format!("price {word} ");
    let line = console.lines().find_map(|line| line.trim().strip_prefix(&begins))?;
    let (times, taken) = line.split_once(' ')?;
    Some((times.parse().ok().filter(|n| *n > 0)?, taken.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_judged() {
        let prices = [("cpuid", "a CPUID", 300), ("sent", "a command", 150)];
        let said = |text: &str| vec![text.to_owned()];
        let lines = of(&prices, &said("price cpuid 10 2999\r\nhello\nprice sent 1000 150000\n"));
        assert_eq!(
            lines.unwrap(),
            ["a CPUID: 299.9 instructions, of 10", "a command: 150.0 instructions, of 1000"]
        );
        let dear = of(&prices, &said("price cpuid 10 3001\nprice sent 1000 1\n")).unwrap_err();
        assert!(dear.contains("300.1") && dear.contains("300 at most"), "{dear}");
        for wrong in ["", "price cpuid 0 0\nprice sent 1 1\n", "price cpuid 10 x\nprice sent 1 1\n"]
        {
            assert!(of(&prices, &said(wrong)).is_err(), "{wrong}");
        }
        assert!(of(&prices, &[]).is_err());
        assert_eq!(of(&[], &[]), Ok(Vec::new()));
    }
}
