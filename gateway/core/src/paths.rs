//! Hides absolute paths in text for conversations, since people there need not know the layout of the server.
//! Operators read the full text with `acp-gateway sessions show` and in the log.
//!
//! A message into which this program inserts a path has a text of its own for conversations
//! ([`crate::failure::Failure::for_conversations`]): a pattern recognizes neither a path of one component nor one
//! with spaces. [`hide_paths`] is for texts of agents and of other programs.

/// Replacement for a path.
const HIDDEN: &str = "[path]";

/// Replaces these absolute paths by `[path]`; relative ones and `/` stay.
pub fn hide_known_paths(text: &str, paths: &[&str]) -> String {
    let mut known: Vec<&str> =
        paths.iter().copied().filter(|path| path.starts_with('/') && path.len() > 1).collect();
    known.sort_by_key(|path| std::cmp::Reverse(path.len()));
    known.into_iter().fold(text.to_owned(), |text, path| text.replace(path, HIDDEN))
}

/// Replaces each absolute path of two or more components by `[path]`, also in a `file:` URI. A single component
/// (`/login`) is more likely a command. A path ends at white space, a quote or a delimiter.
pub fn hide_paths(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        let (before, path) = rest.split_at(at);
        out.push_str(before);
        let begins = out.chars().next_back().is_none_or(|c| c.is_whitespace() || "\"'`([{<=:,;|".contains(c));
        let length =
            path.find(|c: char| c.is_whitespace() || "\"'`<>|,;)]}".contains(c)).unwrap_or(path.len());
        let (word, after) = path.split_at(length);
        let path = word.trim_end_matches(['.', ':', '!', '?']);
        let is_web_address = path.starts_with("//") && !out.ends_with("file:");
        let is_path = begins && path.bytes().filter(|byte| *byte == b'/').count() > 1 && !is_web_address;
        out.push_str(if is_path { HIDDEN } else { path });
        out.push_str(word.get(path.len()..).unwrap_or_default());
        rest = after;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn paths_are_hidden_and_commands_are_not() {
        for (text, want) in [
            ("no paths, and/or 1/2", "no paths, and/or 1/2"),
            ("send /acp new, or /login.", "send /acp new, or /login."),
            (
                "The working directory /srv/a/b lies outside of x (/srv/c, /srv/d; set by /etc/acp/g.toml:12).",
                "The working directory [path] lies outside of x ([path], [path]; set by [path]).",
            ),
            (
                "/opt/agent/bin/x could not be started (exec: ENOENT)",
                "[path] could not be started (exec: ENOENT)",
            ),
            ("cwd=/home/me/p: no such directory", "cwd=[path]: no such directory"),
            ("'/a/b' and \"/c/d\" and `/e/f`", "'[path]' and \"[path]\" and `[path]`"),
            ("see https://example.org/a/b and a/b/c", "see https://example.org/a/b and a/b/c"),
            ("cannot open file:///srv/x", "cannot open file:[path]"),
            ("(file:///srv)", "(file:[path])"),
            ("/é/ü", "[path]"),
            ("", ""),
        ] {
            assert_eq!(hide_paths(text), want, "{text}");
        }
    }

    proptest! {
        #[test]
        fn path_between_words_is_hidden(a in "[a-z ]{0,9}", one in "[a-z]{1,5}", two in "[A-Z]{3,5}", b in "[a-z ]{0,9}") {
            let hidden = hide_paths(&format!("{a} /{one}/{two} {b}"));
            prop_assert!(!hidden.contains(&two) && hidden.contains(HIDDEN), "{}", hidden);
        }
    }
}
