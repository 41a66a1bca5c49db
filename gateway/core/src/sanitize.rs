//! Sanitizes untrusted text (from agents, file names, other people) for terminals and conversations: control
//! characters and bidirectional controls are shown as escapes.

use std::borrow::Cow;

/// Sanitizes text of several lines. Line feeds and tabs stay, carriage returns are removed.
pub fn text(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\r' => {}
            _ if is_unsafe(c) => out.extend(c.escape_unicode()),
            _ => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// Sanitizes a title, a name or a reason: one line of at most `chars_max` characters, with `…` where text was
/// cut. Control characters become spaces, invisible characters become escapes.
pub fn line(text: &str, chars_max: usize) -> String {
    let mut out = String::new();
    // One character beyond the limit shows that text was cut.
    for c in text.chars().take(chars_max.saturating_add(1)) {
        match c {
            _ if c.is_control() => out.push(' '),
            _ if is_invisible(c) => out.extend(c.escape_unicode()),
            _ => out.push(c),
        }
    }
    if out.chars().count() <= chars_max {
        return out;
    }
    format!("{}…", crate::message_split::head(&out, chars_max.saturating_sub(1)))
}

/// Escapes raw characters of JSON that are unsafe on a terminal; parsers read the same value.
pub fn json(json: &str) -> Cow<'_, str> {
    if !json.contains(is_unsafe) {
        return Cow::Borrowed(json);
    }
    let mut out = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        // Every unsafe character is one UTF-16 unit.
        if is_unsafe(c) { out.push_str(&format!("\\u{:04x}", u32::from(c))) } else { out.push(c) }
    }
    Cow::Owned(out)
}

/// Returns true for controls (C0, DEL, C1) other than line feed and tab, and for bidirectional controls.
fn is_unsafe(c: char) -> bool {
    (c.is_control() && c != '\n' && c != '\t') || is_direction(c)
}

/// Returns true for bidirectional marks, embeddings, overrides and isolates.
const fn is_direction(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns true for characters without a glyph and for bidirectional controls. Joiners of letters are exempt:
/// scripts need them for correct spelling.
pub fn is_hidden(c: char) -> bool {
    (c.is_control() && c != '\t') || is_invisible(c)
}

/// Returns true for bidirectional controls, zero-width separators and spaces, and tags.
const fn is_invisible(c: char) -> bool {
    is_direction(c)
        || matches!(c,
            '\u{ad}' | '\u{180e}' | '\u{200b}' | '\u{2028}' | '\u{2029}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    #[test]
    fn control_and_direction_characters_are_escaped() {
        for (input, body, one) in [
            ("plain é 😀 \u{200d}", "plain é 😀 \u{200d}", "plain é 😀 \u{200d}"),
            ("a\n\tb", "a\n\tb", "a  b"),
            ("a\r\nb\rc", "a\nbc", "a  b c"),
            ("\u{1b}[2J\u{7}", "\\u{1b}[2J\\u{7}", " [2J "),
            ("\u{9b}2J\u{7f}", "\\u{9b}2J\\u{7f}", " 2J "),
            (
                "a\u{202e}b\u{2069}\u{200f}\u{61c}",
                "a\\u{202e}b\\u{2069}\\u{200f}\\u{61c}",
                "a\\u{202e}b\\u{2069}\\u{200f}\\u{61c}",
            ),
            ("a\u{200b}b\u{ad}", "a\u{200b}b\u{ad}", "a\\u{200b}b\\u{ad}"),
            ("", "", ""),
        ] {
            assert_eq!((text(input).as_ref(), line(input, 100).as_str()), (body, one), "{input:?}");
        }
        assert_eq!(line("abcdef", 6), "abcdef");
        assert_eq!(line("abcdefg", 6), "abcde…");
        assert_eq!(line(&"x".repeat(4_000_000), 3), "xx…");
    }

    proptest! {
        #[test]
        fn sanitized_text_has_no_unsafe_characters(input in prop::collection::vec(prop_oneof![any::<char>(), prop::char::range('\0', '\u{9f}'), prop::char::range('\u{2000}', '\u{2070}')], 0..60)) {
            let input = input.into_iter().collect::<String>();
            let body = text(&input);
            prop_assert!(!body.contains(is_unsafe), "{:?}", body);
            prop_assert_eq!(text(&body), body.clone());
            let one = line(&input, 40);
            prop_assert!(!one.contains(is_hidden) && !one.contains(['\n', '\t']), "{:?}", one);
            prop_assert!(one.chars().count() <= 40);
            let quoted = serde_json::to_string(&input).unwrap();
            let safe = json(&quoted);
            prop_assert!(!safe.contains(is_unsafe), "{:?}", safe);
            prop_assert_eq!(serde_json::from_str::<Value>(&safe).unwrap(), Value::from(input));
        }
    }
}
