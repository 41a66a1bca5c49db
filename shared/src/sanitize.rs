//! Sanitizes untrusted text (from agents, file names, other people) for terminals and conversations: control
//! characters, bidirectional controls and invisible characters are shown as escapes.

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

/// Shows every hidden character as an escape. Tabs stay.
pub fn escape_hidden(text: &str) -> Cow<'_, str> {
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_hidden(c) { out.extend(c.escape_unicode()) } else { out.push(c) }
    }
    Cow::Owned(out)
}

/// Escapes hidden characters of JSON other than line feeds and tabs; parsers read the same value.
pub fn json(json: &str) -> Cow<'_, str> {
    let is_escaped = |c: char| is_hidden(c) && c != '\n';
    if !json.contains(is_escaped) {
        return Cow::Borrowed(json);
    }
    let mut out = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if is_escaped(c) {
            let mut units = [0; 2];
            out.extend(c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")));
        } else {
            out.push(c);
        }
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

/// Returns true for characters without a glyph and for bidirectional controls, but not for tabs. Joiners of
/// letters are exempt: scripts need them for correct spelling.
pub fn is_hidden(c: char) -> bool {
    (c.is_control() && c != '\t') || is_invisible(c)
}

/// Returns true for bidirectional controls, zero-width separators and spaces, and tags.
pub const fn is_invisible(c: char) -> bool {
    is_direction(c)
        || matches!(c,
            '\u{ad}' | '\u{180e}' | '\u{200b}' | '\u{2028}' | '\u{2029}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_become_escapes() {
        for (given, body, one) in [
            ("plain é 😀 \u{200d}", "plain é 😀 \u{200d}", "plain é 😀 \u{200d}"),
            ("a\n\tb", "a\n\tb", "a\\u{a}\tb"),
            ("a\r\nb\rc", "a\nbc", "a\\u{d}\\u{a}b\\u{d}c"),
            ("\u{1b}[2J\u{7}", "\\u{1b}[2J\\u{7}", "\\u{1b}[2J\\u{7}"),
            ("\u{9b}2J\u{7f}", "\\u{9b}2J\\u{7f}", "\\u{9b}2J\\u{7f}"),
            (
                "a\u{202e}b\u{2069}\u{200f}\u{61c}",
                "a\\u{202e}b\\u{2069}\\u{200f}\\u{61c}",
                "a\\u{202e}b\\u{2069}\\u{200f}\\u{61c}",
            ),
            ("a\u{200b}b\u{ad}", "a\u{200b}b\u{ad}", "a\\u{200b}b\\u{ad}"),
            ("", "", ""),
        ] {
            assert_eq!((text(given).as_ref(), escape_hidden(given).as_ref()), (body, one), "{given:?}");
        }
    }

    #[test]
    fn escaped_json_has_the_same_value() {
        let value = serde_json::json!({ "x": "\u{1b}\u{9b}\u{202e}\u{e0001}\u{200b}é" });
        let safe = json(&value.to_string()).into_owned();
        assert_eq!(safe, "{\"x\":\"\\u001b\\u009b\\u202e\\udb40\\udc01\\u200bé\"}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&safe).ok(), Some(value));
        assert_eq!(json("{\n\t\"x\": 1}"), "{\n\t\"x\": 1}");
    }
}
