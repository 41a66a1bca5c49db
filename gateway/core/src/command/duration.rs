//! Parser of time spans for binding timeouts. Source: openclaw.md §2 "/session idle|max-age".

use crate::command::tokenizer::quote_word;

/// Maximum time span: a year, as in configuration.
const LONGEST_MS: u64 = 365 * 86_400_000;
/// Words that remove a timeout.
const OFF: [&str; 5] = ["off", "disable", "disabled", "none", "0"];
const UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// Parses a time span to milliseconds: `90m`, `1h30m`, `2d`, a bare number of hours; `None` for `off` and the
/// like.
///
/// # Errors
/// A sentence for the person, if the text is not a duration or too long.
pub fn parse(text: &str) -> Result<Option<u64>, String> {
    let text = text.trim().to_lowercase();
    if OFF.contains(&text.as_str()) {
        return Ok(None);
    }
    let wrong =
        || format!("{} is not a duration: use 90m, 1h30m, 2d, a number of hours, or off.", quote_word(&text));
    let mut total: u64 = 0;
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, tail) = rest.split_at(digits);
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let letters = tail.len() - tail.trim_start_matches(|c: char| c.is_ascii_alphabetic()).len();
        let (unit, tail) = tail.split_at(letters);
        let unit = if unit.is_empty() && tail.is_empty() && total == 0 { "h" } else { unit };
        let (_, size) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
        total = number.checked_mul(*size).and_then(|ms| total.checked_add(ms)).ok_or_else(wrong)?;
        rest = tail;
    }
    if text.is_empty() {
        return Err(wrong());
    }
    if total > LONGEST_MS {
        return Err("A timeout can be at most 365 days; off removes it.".to_owned());
    }
    Ok((total > 0).then_some(total))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeouts::format_duration;
    use proptest::prelude::*;

    #[test]
    fn durations_are_parsed() {
        let hour = 3_600_000;
        for (text, want) in [
            ("off", None),
            ("Disable", None),
            ("disabled", None),
            ("none", None),
            ("0", None),
            ("0h", None),
            ("24", Some(24 * hour)),
            ("250ms", Some(250)),
            ("45s", Some(45_000)),
            ("90m", Some(90 * 60_000)),
            ("1h30m", Some(90 * 60_000)),
            ("2D", Some(48 * hour)),
            ("365d", Some(LONGEST_MS)),
        ] {
            assert_eq!(parse(text), Ok(want), "{text}");
        }
        for text in
            ["", "soon", "1w", "h", "-1h", "1.5h", "1h30", "99999999999999999999", "18446744073709551615d"]
        {
            assert!(parse(text).is_err_and(|why| why.contains("is not a duration")), "{text}");
        }
        assert!(parse("366d").is_err_and(|why| why.contains("at most 365 days")));
    }

    proptest! {
        #[test]
        fn formatted_durations_round_trip(ms in 1..LONGEST_MS) {
            prop_assert_eq!(parse(&format_duration(ms)), Ok(Some(ms)));
        }
    }
}
