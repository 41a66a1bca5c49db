//! Escaping of untrusted names (of a person, an option, a title) for use in a line of the gateway. A name
//! becomes one line without mentions, markup or hidden characters; next to words with a meaning (who
//! answered, and how) quotes separate it from them.

use crate::render::TITLE_CHARS_MAX;
use crate::render::tool_preview::escape_text;

/// Quotes around a name; inside a name they are replaced.
const QUOTES: [char; 2] = ['“', '”'];

/// Escapes a name that stands alone, as in a list. `is_markdown` is true if the channel renders Markdown.
pub fn escape_name(name: &str, is_markdown: bool) -> String {
    escape_text(name, TITLE_CHARS_MAX, is_markdown)
}

/// Escapes and quotes a name inside a sentence, so that it is not read as part of the sentence: a user may be
/// called “the deadline”.
pub fn quote_name(name: &str, is_markdown: bool) -> String {
    let [open, close] = QUOTES;
    format!("{open}{}{close}", escape_name(&name.replace(QUOTES, "'"), is_markdown))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_quoted_and_escaped() {
        let long = "x".repeat(900);
        let cut = format!("“{}…”", "x".repeat(TITLE_CHARS_MAX - 1));
        for (name, markdown, bare) in [
            ("ann", "“ann”", "“ann”"),
            (
                "**x** @everyone <https://a.b>",
                r"“\*\*x\*\* \@everyone \<https\://a.b\>”",
                "“**x** @everyone <https://a.b>”",
            ),
            ("`code` ```", r"“\`code\` \`\`\`”", "“`code` ```”"),
            ("a\n# b\r\n> c", r"“a # b  \> c”", "“a # b  > c”"),
            (
                "<@1> ||s|| [a](b) _i_ ~~d~~",
                r"“\<\@1\> \|\|s\|\| \[a\](b) \_i\_ \~\~d\~\~”",
                "“<@1> ||s|| [a](b) _i_ ~~d~~”",
            ),
            ("ann”). Over (by “bob", "“ann'). Over (by 'bob”", "“ann'). Over (by 'bob”"),
            ("the deadline", "“the deadline”", "“the deadline”"),
            ("a\u{202e}b\u{200b}", r"“a\\u{202e}b\\u{200b}”", r"“a\u{202e}b\u{200b}”"),
            ("\\", r"“\\”", r"“\”"),
            ("", "“”", "“”"),
            (&long, &cut, &cut),
        ] {
            assert_eq!(
                (quote_name(name, true).as_str(), quote_name(name, false).as_str()),
                (markdown, bare),
                "{name:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn quoted_name_has_no_markup(
            name in prop::collection::vec(
                prop_oneof!["\\PC{0,8}", "[`*_~|<>@:\\[\\]\\\\“”\n\r\t#-]{0,8}", any::<char>().prop_map(String::from)],
                0..20,
            ),
        ) {
            let name = name.concat();
            let shown = quote_name(&name, true);
            let inside = shown.strip_prefix('“').and_then(|rest| rest.strip_suffix('”'));
            let inside = inside.ok_or_else(|| TestCaseError::fail(shown.clone()))?;
            prop_assert!(!inside.contains(QUOTES) && !inside.chars().any(char::is_control), "{}", shown);
            prop_assert!(inside.chars().count() <= TITLE_CHARS_MAX, "{}", shown);
            let mut chars = inside.chars();
            while let Some(c) = chars.next() {
                prop_assert!(!"`*_~|<>@[]:".contains(c), "{}", shown);
                prop_assert!(c != '\\' || chars.next().is_some_and(|next| next.is_ascii_punctuation()), "{}", shown);
            }
        }
    }
}
