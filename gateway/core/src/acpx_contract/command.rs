//! Agents that a caller names by their command instead of a configured name (`--agent COMMAND`).

use acp_shared::ids::{AgentName, IdError};
use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

/// Number of bytes of the hash in the name of an agent.
const HASH_BYTES: usize = 12;

/// Splits a command into words as acpx 0.19.1 does: like a shell, without expansion. Returns `None` if a quote or an escape
/// is not closed, or if there is no program.
pub fn split_command(text: &str) -> Option<Vec<String>> {
    let (mut words, mut word) = (Vec::new(), None::<String>);
    let (mut quote, mut is_escaped) = (None, false);
    for c in text.chars() {
        let is_space = c.is_whitespace() || c == '\u{feff}';
        match quote {
            _ if std::mem::take(&mut is_escaped) => word.get_or_insert_default().push(c),
            None | Some('"') if c == '\\' => is_escaped = true,
            Some(open) if c == open => quote = None,
            Some(_) => word.get_or_insert_default().push(c),
            None if c == '\'' || c == '"' => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            None if is_space => words.extend(word.take()),
            None => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    let is_whole = !is_escaped && quote.is_none();
    (is_whole && words.first().is_some_and(|program| !program.is_empty())).then_some(words)
}

/// Returns the name of the agent with a command. Commands with the same words have the same name.
///
/// # Errors
/// None for any words.
pub fn command_agent(words: &[String]) -> Result<AgentName, IdError> {
    let mut hash = Sha256::new();
    for word in words {
        hash.update(word.len().to_le_bytes());
        hash.update(word);
    }
    let hash = hash.finalize();
    AgentName::parse(&format!("command-{}", HEXLOWER.encode(hash.get(..HASH_BYTES).unwrap_or_default())))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[test]
    fn command_is_split_as_acpx_does() {
        for (text, words) in [
            ("agent --acp", Some(vec!["agent", "--acp"])),
            (r#" env 'A=a b'  "x\" y" c\ d '' "#, Some(vec!["env", "A=a b", "x\" y", "c d", ""])),
            (r"a'\'b $HOME #x;y", Some(vec![r"a\b", "$HOME", "#x;y"])),
            ("", None),
            (" '' x", None),
            ("a 'b", None),
            ("a \\", None),
        ] {
            let words = words.map(|words| words.into_iter().map(str::to_owned).collect::<Vec<_>>());
            assert_eq!(split_command(text), words, "{text}");
        }
    }

    #[test]
    fn agent_has_the_name_of_its_words() {
        let name = |text| command_agent(&split_command(text).unwrap()).unwrap();
        assert_eq!(name("a 'b c'"), name(r"a  b\ c"));
        assert_ne!(name("a b c"), name("a 'b c'"));
        assert_ne!(name("ab c"), name("a bc"));
        assert!(name("a").as_str().starts_with("command-"));
    }
}
