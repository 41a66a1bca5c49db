//! Replaces the values of configured environment variables in what agents write to standard error.
//!
//! The supervisor does not know which variables an operator configured, so all variables of an agent count
//! except those that describe a login (`HOME`, `PATH` …). Their values would hide most paths and are not
//! secrets.

use acp_shared::redact::{SECRET_BYTES_MIN, Secret, is_plain_variable};
use memchr::memmem;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Longer values are recognised by their first bytes; the rest of the line is then left out.
const NEEDLE_BYTES_MAX: usize = 16 * 1024;
/// A line of a value of a variable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Needle {
    /// Name of the variable.
    name: String,
    value: Secret,
    /// True if the value is longer than `value`.
    cut: bool,
}

/// The values to replace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Redactor {
    needles: Vec<Needle>,
}

impl Redactor {
    /// Collects the values of an agent's environment. Each line of a multi-line value is a value of its own.
    #[must_use]
    pub fn of_env(env: &[(String, String)]) -> Self {
        let mut needles = Vec::new();
        for (name, value) in env.iter().filter(|(name, _)| !is_plain_variable(name)) {
            for line in value.lines().map(str::trim).filter(|line| line.len() >= SECRET_BYTES_MIN) {
                let head = crate::core::tail_buffer::head(line, NEEDLE_BYTES_MAX);
                let cut = head.len() < line.len();
                needles.push(Needle { name: name.clone(), value: Secret::new(head.to_owned()), cut });
            }
        }
        Self { needles }
    }

    /// Returns the length of the longest value in bytes: the number of bytes needed beyond the shown part of
    /// a line.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.needles.iter().map(|needle| needle.value.expose().len()).max().unwrap_or(0)
    }

    /// Returns the first `bytes_max` bytes of a line, with `[redacted:NAME]` in place of each value. `ended`:
    /// the line was cut off by the end of the stream, so its last bytes may be the beginning of a value.
    #[must_use]
    pub fn line(&self, line: &[u8], bytes_max: usize, ended: bool) -> Vec<u8> {
        if line.len() < SECRET_BYTES_MIN {
            return line.get(..bytes_max).unwrap_or(line).to_owned();
        }
        let mut found = self.find(line);
        if ended {
            found
                .extend(self.needles.iter().filter_map(|needle| Some((find_cut_off(line, needle)?, needle))));
        }
        found.sort_by_key(|(range, _)| range.start);
        let (mut out, mut from) = (Vec::with_capacity(line.len().min(bytes_max)), 0);
        for (range, needle) in found.into_iter().take_while(|(range, _)| range.start < bytes_max) {
            if range.start >= from {
                out.extend_from_slice(line.get(from..range.start).unwrap_or_default());
                out.extend_from_slice(format!("[redacted:{}]", needle.name).as_bytes());
            }
            from = from.max(range.end);
        }
        out.extend_from_slice(line.get(from..line.len().min(bytes_max)).unwrap_or_default());
        out
    }

    fn find(&self, line: &[u8]) -> Vec<(Range<usize>, &Needle)> {
        let mut found = Vec::new();
        for needle in &self.needles {
            let value = needle.value.expose().as_bytes();
            for at in memmem::find_iter(line, value) {
                let end = if needle.cut { line.len() } else { at + value.len() };
                found.push((at..end, needle));
            }
        }
        found
    }
}

/// Finds the beginning of a value at the end of a line.
fn find_cut_off(line: &[u8], needle: &Needle) -> Option<Range<usize>> {
    let value = needle.value.expose().as_bytes();
    let most = value.len().min(line.len());
    let ends = |count: &usize| value.get(..*count).is_some_and(|head| line.ends_with(head));
    let count = (SECRET_BYTES_MIN..=most).rev().find(ends)?;
    Some(line.len() - count..line.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn redactor(env: &[(&str, &str)]) -> Redactor {
        let env: Vec<_> = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Redactor::of_env(&env)
    }

    #[test]
    fn secret_values_are_redacted_and_other_text_stays() {
        let long = "0123456789abcdef".repeat(2_000);
        let redactor = redactor(&[
            ("API_KEY", "sk-hunter2"),
            ("OTHER", "hunter2-and-more"),
            ("SHORT", "seven77"),
            ("HOME", "/home/somebody"),
            ("XDG_STATE_HOME", "/home/somebody/state"),
            ("PEM", "-----BEGIN KEY-----\nAAAABBBBCCCC\n\nshort\n"),
            ("LONG", &long),
        ]);
        for (line, max, ended, want) in [
            ("key=sk-hunter2, or sk-hunter2", 99, false, "key=[redacted:API_KEY], or [redacted:API_KEY]"),
            ("sk-hunter2-and-more!", 99, false, "[redacted:API_KEY]!"),
            ("seven77 in /home/somebody/state", 99, false, "seven77 in /home/somebody/state"),
            ("| AAAABBBBCCCC", 99, false, "| [redacted:PEM]"),
            ("ends with sk-hunter", 99, false, "ends with sk-hunter"),
            ("ends with sk-hunter", 99, true, "ends with [redacted:API_KEY]"),
            ("ends with sk-hunt", 99, true, "ends with sk-hunt"),
            ("cut here sk-hunter2 and not there", 12, false, "cut here [redacted:API_KEY]"),
            ("cut before sk-hunter2", 9, false, "cut befor"),
            ("", 99, true, ""),
        ] {
            let out = redactor.line(line.as_bytes(), max, ended);
            assert_eq!(String::from_utf8_lossy(&out), want, "{line} {max} {ended}");
        }
        let line = format!("a {long} b");
        assert_eq!(
            redactor.line(line.as_bytes(), 99, false),
            b"a [redacted:LONG]",
            "the rest of the line is cut"
        );
        assert_eq!(redactor.longest(), NEEDLE_BYTES_MAX);
        assert!(!format!("{redactor:?}").contains("hunter"));
    }

    proptest! {
        /// No value remains in any line, whatever surrounds it and wherever the line is cut.
        #[test]
        fn no_secret_value_remains_in_any_line(
            values in prop::collection::vec("[ab]{8,12}", 1..4),
            parts in prop::collection::vec(("[ab |]{0,9}", 0usize..4), 0..6),
            max in 0usize..80,
        ) {
            let env: Vec<_> = values.iter().map(|value| ("X".to_owned(), value.clone())).collect();
            let redactor = Redactor::of_env(&env);
            let mut line = String::new();
            for (text, at) in &parts {
                line.push_str(text);
                line.push_str(values.get(*at).map_or("", String::as_str));
            }
            let out = String::from_utf8(redactor.line(line.as_bytes(), max, false)).unwrap_or_default();
            prop_assert!(!values.iter().any(|value| out.contains(value.as_str())), "{line} -> {out}");
        }
    }
}
