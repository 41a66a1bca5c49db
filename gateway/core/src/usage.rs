//! Tokens of turns, as agents report them in the result of a prompt, and their sums.

use crate::sanitize;
use crate::time_format::format_utc;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Maximum number of sessions, and of people, in a report.
const SHOWN_MAX: usize = 10;
/// Maximum length of a name, in characters.
const NAME_CHARS_MAX: usize = 60;
const DAY_MS: u64 = 24 * 3_600_000;

/// Tokens of turns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Read by the model.
    pub input: u64,
    /// Written by the model.
    pub output: u64,
    /// All of them; agents may count further kinds.
    pub total: u64,
}

impl Tokens {
    /// Reads the `usage` of a prompt's result; `None` if it counts no tokens.
    pub fn of(usage: &Value) -> Option<Self> {
        let number =
            |names: [&str; 2]| names.iter().find_map(|name| usage[*name].as_u64()).unwrap_or_default();
        let input = number(["inputTokens", "input_tokens"]);
        let output = number(["outputTokens", "output_tokens"]);
        let total = number(["totalTokens", "total_tokens"]).max(input.saturating_add(output));
        (total > 0).then_some(Self { input, output, total })
    }

    const fn plus(self, other: Self) -> Self {
        Self {
            input: self.input.saturating_add(other.input),
            output: self.output.saturating_add(other.output),
            total: self.total.saturating_add(other.total),
        }
    }

    /// Formats the sum, and its parts if known: `12.3k tokens (12k in, 0.3k out)`.
    pub fn text(self) -> String {
        let total = format!("{} tokens", short(self.total));
        if self.input == 0 && self.output == 0 {
            return total;
        }
        format!("{total} ({} in, {} out)", short(self.input), short(self.output))
    }
}

/// Formats a count with three digits at most.
fn short(count: u64) -> String {
    let of = |unit: u64, name: &str| {
        let tenths = count / (unit / 10);
        if tenths < 1_000 && !tenths.is_multiple_of(10) {
            format!("{}.{}{name}", tenths / 10, tenths % 10)
        } else {
            format!("{}{name}", tenths / 10)
        }
    };
    match count {
        0..1_000 => count.to_string(),
        1_000..1_000_000 => of(1_000, "k"),
        _ => of(1_000_000, "M"),
    }
}

/// Ended turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnUsage {
    /// Session, as a person knows it.
    pub session: String,
    /// Name of the person who sent the prompt.
    pub person: String,
    /// End of the turn, in milliseconds since the Unix epoch.
    pub ended_at_ms: u64,
    /// Tokens, if the agent reported them.
    pub tokens: Option<Tokens>,
}

/// Sum of turns.
#[derive(Debug, Clone, Copy, Default)]
struct UsageSum {
    turns: u64,
    counted: u64,
    tokens: Tokens,
}

impl UsageSum {
    fn add(&mut self, turn: &TurnUsage) {
        self.turns += 1;
        if let Some(tokens) = turn.tokens {
            self.counted += 1;
            self.tokens = self.tokens.plus(tokens);
        }
    }

    fn text(self) -> String {
        let turns = if self.turns == 1 { "1 turn".to_owned() } else { format!("{} turns", self.turns) };
        match self.counted {
            0 => format!("{turns}, tokens unknown"),
            counted if counted == self.turns => format!("{turns}, {}", self.tokens.text()),
            counted => format!("{turns}, {} in {counted} of them", self.tokens.text()),
        }
    }
}

/// Builds the report on the turns of the last days: sums by day, by session and by person, the largest first.
pub fn usage_text(turns: &[TurnUsage], days: u64) -> String {
    let span = if days == 1 { "the last day".to_owned() } else { format!("the last {days} days") };
    if turns.is_empty() {
        return format!("No turn of your sessions ended in {span}.");
    }
    let mut all = UsageSum::default();
    turns.iter().for_each(|turn| all.add(turn));
    let mut out = format!("Usage in {span}: {}.", all.text());
    let by_day =
        sums(turns, |turn| format_utc(turn.ended_at_ms / DAY_MS * DAY_MS).chars().take(10).collect());
    out.push_str("\nBy day (UTC):");
    for (day, sum) in by_day.iter().rev() {
        // Writing into a String cannot fail.
        let _ = write!(out, "\n- {day}: {}", sum.text());
    }
    for (title, sums) in [
        ("By session", sums(turns, |turn| turn.session.clone())),
        ("By person", sums(turns, |turn| turn.person.clone())),
    ] {
        let _ = write!(out, "\n{title}:");
        let mut rows: Vec<(&String, &UsageSum)> = sums.iter().collect();
        rows.sort_by_key(|(_, sum)| std::cmp::Reverse((sum.tokens.total, sum.turns)));
        for (name, sum) in rows.iter().take(SHOWN_MAX) {
            let name = if name.is_empty() { "unknown" } else { name };
            let _ = write!(out, "\n- {}: {}", sanitize::line(name, NAME_CHARS_MAX), sum.text());
        }
        if rows.len() > SHOWN_MAX {
            let _ = write!(out, "\n- and {} more", rows.len() - SHOWN_MAX);
        }
    }
    out
}

fn sums(turns: &[TurnUsage], of: impl Fn(&TurnUsage) -> String) -> BTreeMap<String, UsageSum> {
    let mut sums: BTreeMap<String, UsageSum> = BTreeMap::new();
    for turn in turns {
        sums.entry(of(turn)).or_default().add(turn);
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tokens_are_read_in_both_spellings() {
        let tokens = |input, output, total| Some(Tokens { input, output, total });
        for (usage, want) in [
            (json!({"inputTokens": 10, "outputTokens": 2, "totalTokens": 15}), tokens(10, 2, 15)),
            (json!({"input_tokens": 10, "output_tokens": 2}), tokens(10, 2, 12)),
            (json!({"totalTokens": 7}), tokens(0, 0, 7)),
            (json!({"totalTokens": 1e3, "x": 1}), None),
            (json!({"inputTokens": -1}), None),
            (json!(null), None),
        ] {
            assert_eq!(Tokens::of(&usage), want, "{usage}");
        }
        for (count, want) in [
            (999, "999"),
            (1_000, "1k"),
            (1_250, "1.2k"),
            (99_950, "99.9k"),
            (123_456, "123k"),
            (2_500_000, "2.5M"),
        ] {
            assert_eq!(short(count), want);
        }
    }

    #[test]
    fn report_sums_by_day_session_and_person() {
        let turn = |session: &str, person: &str, day: u64, tokens: Option<u64>| TurnUsage {
            session: session.to_owned(),
            person: person.to_owned(),
            ended_at_ms: day * DAY_MS + 5,
            tokens: tokens.map(|total| Tokens { total, ..Tokens::default() }),
        };
        let turns = [
            turn("a", "ann", 1, Some(1_000)),
            turn("b", "bob", 2, Some(3_000)),
            turn("b", "ann", 2, None),
            turn("c", "", 2, None),
        ];
        assert_eq!(
            usage_text(&turns, 7),
            "Usage in the last 7 days: 4 turns, 4k tokens in 2 of them.\n\
             By day (UTC):\n\
             - 1970-01-03: 3 turns, 3k tokens in 1 of them\n\
             - 1970-01-02: 1 turn, 1k tokens\n\
             By session:\n\
             - b: 2 turns, 3k tokens in 1 of them\n\
             - a: 1 turn, 1k tokens\n\
             - c: 1 turn, tokens unknown\n\
             By person:\n\
             - bob: 1 turn, 3k tokens\n\
             - ann: 2 turns, 1k tokens in 1 of them\n\
             - unknown: 1 turn, tokens unknown"
        );
        assert_eq!(usage_text(&[], 1), "No turn of your sessions ended in the last day.");
    }
}
