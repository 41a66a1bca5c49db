//! Text formatting for people: sizes, times, short ids, and escaping of untrusted text for terminals.

use acp_shared::launch::ExitStatus;
use acp_shared::sanitize;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Formats untrusted text (from a gateway or an agent) on one line, with hidden characters escaped.
pub(crate) fn plain(text: &str) -> String {
    sanitize::escape_hidden(text).replace('\t', "\\u{9}")
}

/// Formats untrusted text of several lines, with hidden characters escaped.
pub(crate) fn plain_lines(text: &str) -> String {
    text.lines().map(plain).collect::<Vec<_>>().join("\n")
}

/// Returns the number of terminal columns of a text.
pub(crate) fn width(text: &str) -> usize {
    text.width()
}

/// Cuts a text to at most `columns` columns; `…` marks a cut.
pub(crate) fn cut(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let mut kept = String::new();
    let mut used = 0;
    for c in text.chars() {
        used += c.width().unwrap_or(0);
        if used >= columns {
            break;
        }
        kept.push(c);
    }
    if columns > 0 {
        kept.push('…');
    }
    kept
}

/// Formats a size in at most five characters: `0`, `999`, `1.2K`, `34M`.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["K", "M", "G", "T", "P", "E"];
    if bytes < 1_000 {
        return bytes.to_string();
    }
    // Size in tenths of a unit, rounded down.
    let mut tenths = u128::from(bytes) * 10 / 1024;
    let mut unit = UNITS[0];
    for next in UNITS.iter().skip(1) {
        if tenths < 10_000 {
            break;
        }
        tenths /= 1024;
        unit = next;
    }
    if tenths < 100 {
        format!("{}.{}{unit}", tenths / 10, tenths % 10)
    } else {
        format!("{}{unit}", tenths / 10)
    }
}

/// Formats a duration in at most six characters: `59s`, `3m20s`, `5h02m`, `3d4h`, `120d`.
pub(crate) fn duration(ms: u64) -> String {
    let s = ms / 1_000;
    match s {
        0..60 => format!("{s}s"),
        60..3_600 => format!("{}m{:02}s", s / 60, s % 60),
        3_600..86_400 => format!("{}h{:02}m", s / 3_600, s % 3_600 / 60),
        86_400..8_640_000 => format!("{}d{}h", s / 86_400, s % 86_400 / 3_600),
        _ => format!("{}d", s / 86_400),
    }
}

/// Formats a time, to the second.
pub(crate) fn time(ms: u64) -> String {
    let ms = i64::try_from(ms).unwrap_or(i64::MAX);
    jiff::Timestamp::from_millisecond(ms).map_or_else(|_| ms.to_string(), |t| format!("{t:.0}"))
}

/// Formats a count with its noun: `1 lease`, `2 leases`.
pub(crate) fn count(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

/// Formats an optional value, `-` if missing.
pub(crate) fn or_dash(text: Option<impl std::fmt::Display>) -> String {
    text.map_or_else(|| "-".to_owned(), |text| text.to_string())
}

/// Formats the exit status of a process.
pub(crate) fn exit(status: Option<ExitStatus>) -> String {
    match status {
        Some(ExitStatus::Exited(code)) => format!("exit {code}"),
        Some(ExitStatus::Signaled(signal)) => format!("signal {signal}"),
        Some(ExitStatus::Unknown) => "unknown".to_owned(),
        None => "-".to_owned(),
    }
}

/// Abbreviation of ids that keeps them distinct: by their beginning or, if many were created at the same time
/// and share it, by their end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdAbbreviation {
    /// Number of characters kept from the start.
    Head(usize),
    /// Number of characters kept from the end.
    Tail(usize),
}

impl IdAbbreviation {
    /// Returns the shortest abbreviation that keeps these ids distinct, with at least eight characters.
    pub(crate) fn of(ids: impl Iterator<Item = String>) -> Self {
        const HEAD_MAX: usize = 13;
        let ids: Vec<String> = ids.collect();
        let head = alone(ids.clone());
        if head <= HEAD_MAX {
            return Self::Head(head);
        }
        let tail = alone(ids.iter().map(|id| id.chars().rev().collect()).collect());
        if tail < head { Self::Tail(tail) } else { Self::Head(head) }
    }

    /// Returns the abbreviated id.
    pub(crate) fn cut(self, id: &impl ToString) -> String {
        let id = id.to_string();
        let (skip, take) = match self {
            Self::Head(n) => (0, n),
            Self::Tail(n) => (id.chars().count().saturating_sub(n), n),
        };
        id.chars().skip(skip).take(take).collect()
    }
}

/// Returns the smallest number of leading characters, at least eight, that keeps these ids distinct.
fn alone(mut ids: Vec<String>) -> usize {
    const LEAST: usize = 8;
    ids.sort_unstable();
    ids.dedup();
    let common = |a: &str, b: &str| a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    let differ = ids.iter().zip(ids.iter().skip(1)).map(|(a, b)| common(a, b) + 1);
    differ.max().unwrap_or(0).max(LEAST)
}

/// True if `text` matches a pattern in which `*` is any text and `?` any character.
pub(crate) fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    // Position of the last `*` in the pattern, and the end of its match in the text.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(c) if *c == '?' || Some(c) == text.get(t) => {
                p += 1;
                t += 1;
            }
            _ => match &mut star {
                Some((at, reach)) => {
                    *reach += 1;
                    (p, t) = (*at + 1, *reach);
                }
                None => return false,
            },
        }
    }
    pattern.iter().skip(p).all(|c| *c == '*')
}

/// Parses `90s`, `1h30m`, `7d` into milliseconds.
pub(crate) fn parse_duration(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a duration; examples: 90s, 15m, 1h30m, 7d");
    let span: jiff::Span = text.parse().map_err(|_| wrong())?;
    let duration = span.to_duration(jiff::SpanRelativeTo::days_are_24_hours()).map_err(|_| wrong())?;
    u64::try_from(duration.as_millis()).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        for (text, safe) in [
            ("plain é 漢", "plain é 漢"),
            ("\u{1b}[2J\u{1b}]0;x\u{7}", "\\u{1b}[2J\\u{1b}]0;x\\u{7}"),
            ("a\nb\tc\r", "a\\u{a}b\\u{9}c\\u{d}"),
            ("\u{9b}31m\u{7f}", "\\u{9b}31m\\u{7f}"),
            ("\u{202e}gpj.exe\u{2066}\u{200b}", "\\u{202e}gpj.exe\\u{2066}\\u{200b}"),
        ] {
            assert_eq!(plain(text), safe);
        }
        assert_eq!(plain_lines("a\u{1b}\nb"), "a\\u{1b}\nb");
    }

    #[test]
    fn sizes_durations_and_widths_are_formatted() {
        for (bytes, want) in [
            (0, "0"),
            (999, "999"),
            (1_000, "0.9K"),
            (1_024, "1.0K"),
            (10_239, "9.9K"),
            (10_240, "10K"),
            (1_023_999, "999K"),
            (1_024_000, "0.9M"),
            (5 << 20, "5.0M"),
            (u64::MAX, "15E"),
        ] {
            assert_eq!(size(bytes), want, "{bytes}");
        }
        for (ms, want) in [
            (0, "0s"),
            (59_999, "59s"),
            (200_000, "3m20s"),
            (18_120_000, "5h02m"),
            (273_600_000, "3d4h"),
            (10_368_000_000, "120d"),
        ] {
            assert_eq!(duration(ms), want, "{ms}");
        }
        for (text, columns, want) in
            [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("漢字漢", 4, "漢…"), ("abc", 0, ""), ("abc", 1, "…")]
        {
            assert_eq!(cut(text, columns), want);
            assert!(width(want) <= columns);
        }
    }

    #[test]
    fn glob_patterns_match() {
        for (pattern, text, want) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("*", "", true),
            ("a*c", "abbc", true),
            ("a*c", "abcd", false),
            ("*b*", "abc", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("agent:*:acp:*1", "agent:demo:acp:0191", true),
            ("**x", "aax", true),
        ] {
            assert_eq!(matches(pattern, text), want, "{pattern} {text}");
        }
    }

    #[test]
    fn durations_are_parsed() {
        for (text, want) in [
            ("90s", Some(90_000)),
            ("1h30m", Some(5_400_000)),
            ("7d", Some(604_800_000)),
            ("2 weeks", Some(1_209_600_000)),
            ("x", None),
            ("-5s", None),
            ("5", None),
        ] {
            assert_eq!(parse_duration(text).ok(), want, "{text}");
        }
    }

    #[test]
    fn abbreviated_ids_are_distinct() {
        use IdAbbreviation::{Head, Tail};
        let abbr = |ids: &[&str]| IdAbbreviation::of(ids.iter().map(|id| (*id).to_owned()));
        for (ids, want, cut) in [
            (&[][..], Head(8), "0190b5f0"),
            (&["0190b5f0-0000-7000", "0290b5f0-0000-7000"], Head(8), "0190b5f0"),
            (&["0190b5f0-0000-7000", "0190b5f0-1000-7000"], Head(10), "0190b5f0-0"),
            (&["0190b5f0-0000-70001111aaaa", "0190b5f0-0000-70002222bbbb"], Tail(8), "0-70009a"),
            (&["0190b5f0-0000-7000111100000000", "0190b5f0-0000-7000222200000000"], Tail(9), "00-70009a"),
        ] {
            assert_eq!(
                (abbr(ids), abbr(ids).cut(&"0190b5f0-0000-70009a")),
                (want, cut.to_owned()),
                "{ids:?}"
            );
        }
    }
}
