//! Sanitizes untrusted text (from agents, file names, other people): the functions of [`acp_shared::sanitize`],
//! and those that shorten.

pub use acp_shared::sanitize::{escape_hidden, is_hidden, json, text};

use acp_shared::sanitize::is_invisible;

/// Sanitizes a title, a name or a reason: one line of at most `chars_max` characters, with `…` where text was
/// cut. Control characters become spaces, invisible characters become escapes.
pub fn line(text: &str, chars_max: usize) -> String {
    // One character beyond the limit shows that text was cut.
    let out = one_line(text.chars().take(chars_max.saturating_add(1)));
    if out.chars().count() <= chars_max {
        return out;
    }
    format!("{}…", crate::message_split::head(&out, chars_max.saturating_sub(1)))
}

/// Sanitizes a path like [`line()`], but cuts in the middle: its end names the file.
pub fn path(path: &str, chars_max: usize) -> String {
    let out = one_line(path.chars());
    let count = out.chars().count();
    if count <= chars_max {
        return out;
    }
    let start = chars_max / 4;
    let end = chars_max.saturating_sub(start + 1);
    format!(
        "{}…{}",
        out.chars().take(start).collect::<String>(),
        out.chars().skip(count - end).collect::<String>()
    )
}

fn one_line(chars: impl Iterator<Item = char>) -> String {
    let mut out = String::new();
    for c in chars {
        match c {
            _ if c.is_control() => out.push(' '),
            _ if is_invisible(c) => out.extend(c.escape_unicode()),
            _ => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    #[test]
    fn line_has_no_controls_and_is_cut_at_its_end() {
        for (input, one) in [
            ("plain é 😀 \u{200d}", "plain é 😀 \u{200d}"),
            ("a\n\tb", "a  b"),
            ("a\r\nb\rc", "a  b c"),
            ("\u{1b}[2J\u{7}", " [2J "),
            ("\u{9b}2J\u{7f}", " 2J "),
            ("a\u{202e}b\u{2069}\u{200f}\u{61c}", "a\\u{202e}b\\u{2069}\\u{200f}\\u{61c}"),
            ("a\u{200b}b\u{ad}", "a\\u{200b}b\\u{ad}"),
            ("", ""),
        ] {
            assert_eq!((line(input, 100).as_str(), path(input, 100).as_str()), (one, one), "{input:?}");
        }
        assert_eq!(line("abcdef", 6), "abcdef");
        assert_eq!(line("abcdefg", 6), "abcde…");
        assert_eq!(line(&"x".repeat(4_000_000), 3), "xx…");
    }

    #[test]
    fn long_path_keeps_its_end() {
        for (input, chars_max, want) in [
            ("/home/project/notes.md", 22, "/home/project/notes.md"),
            ("/home/project/notes.md", 16, "/hom…ct/notes.md"),
            ("/home/\u{202e}x", 9, "/h…202e}x"),
            ("/home", 1, "…"),
            ("/home", 0, "…"),
        ] {
            assert_eq!(path(input, chars_max), want, "{input:?}");
        }
    }

    /// True for characters that act on a terminal.
    fn is_raw(c: char) -> bool {
        c.is_control() && !matches!(c, '\n' | '\t') || ('\u{202a}'..='\u{202e}').contains(&c)
    }

    proptest! {
        #[test]
        fn sanitized_text_has_no_unsafe_characters(input in prop::collection::vec(prop_oneof![any::<char>(), prop::char::range('\0', '\u{9f}'), prop::char::range('\u{2000}', '\u{2070}')], 0..60)) {
            let input = input.into_iter().collect::<String>();
            let body = text(&input);
            prop_assert!(!body.contains(is_raw), "{:?}", body);
            prop_assert_eq!(text(&body), body.clone());
            let one = line(&input, 40);
            prop_assert!(!one.contains(is_hidden) && !one.contains(['\n', '\t']), "{:?}", one);
            prop_assert!(one.chars().count() <= 40);
            let short = path(&input, 40);
            prop_assert!(!short.contains(is_hidden) && short.chars().count() <= 40, "{:?}", short);
            let quoted = serde_json::to_string(&input).unwrap();
            let safe = json(&quoted);
            prop_assert!(!safe.contains(is_hidden), "{:?}", safe);
            prop_assert_eq!(serde_json::from_str::<Value>(&safe).unwrap(), Value::from(input));
        }
    }
}
