//! The keys that this version accepts and does not use. They are the source document's, and stay under its names
//! so that a file written for it is read; whoever sets one is told that nothing comes of it.

use super::source::Source;
use std::collections::BTreeMap;

/// A key that nothing reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unused {
    /// The key.
    pub(crate) key: &'static str,
    /// What happens instead.
    pub(crate) instead: &'static str,
}

const fn unused(key: &'static str, instead: &'static str) -> Unused {
    Unused { key, instead }
}

/// All of them. A test holds this table against the code: a key is read somewhere, or it is here.
pub(crate) const UNUSED: [Unused; 8] = [
    unused(
        "acp.control_plane.checkpoint.flush_every_events",
        "every checkpoint is committed with its message",
    ),
    unused("acp.control_plane.checkpoint.flush_every_ms", "every checkpoint is committed with its message"),
    unused("acp.control_plane.store", "sqlite is the only store"),
    unused("acp.control_plane.store_path", "the database is gateway.db in the state directory"),
    unused("acp.stream.coalesce_idle_ms", "conversations get whole answers, viewers get every chunk at once"),
    unused("acp.stream.max_chunk_chars", "each channel has its own longest message"),
    unused("channels.discord.thread_bindings.spawn_acp_sessions", "there is no Discord channel"),
    unused("channels.discord.thread_bindings.spawn_subagent_sessions", "there is no Discord channel"),
];

/// What is said about a key, if nothing reads it.
pub(crate) fn note(key: &str) -> Option<String> {
    let found = UNUSED.iter().find(|unused| unused.key == key)?;
    Some(format!("not used in this version: {}", found.instead))
}

/// What is said about those keys that somebody set, in their order.
pub(crate) fn set(sources: &BTreeMap<Vec<String>, Source>) -> Vec<String> {
    let said = sources.iter().filter_map(|(path, source)| {
        let key = path.join(".");
        note(&key).map(|note| format!("{source}: {key} is {note}"))
    });
    said.collect()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::super::source::{Shape, schema};
    use super::*;
    use std::path::Path;

    /// The product code outside of the configuration itself.
    fn code(dir: &Path, out: &mut String) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() {
                if name != "config" && name != "tests" {
                    code(&path, out);
                }
            } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
                out.push_str(&std::fs::read_to_string(&path).unwrap());
            }
        }
    }

    fn keys() -> Vec<Vec<String>> {
        let schema = schema().unwrap();
        let mut keys: Vec<Vec<String>> = schema.leaves().into_iter().map(|(key, _)| key).collect();
        let Shape::Section(sections) = &schema else { panic!("{schema:?}") };
        let Some(Shape::Named(agent)) = sections.get("agents") else { panic!("{schema:?}") };
        keys.extend(agent.leaves().into_iter().map(|(key, _)| vec!["agent".to_owned(), key[0].clone()]));
        keys
    }

    #[test]
    fn a_key_is_read_or_it_is_said_that_it_is_not() {
        let mut text = String::new();
        code(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut text);
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines = text.lines().filter(|line| !line.trim_start().starts_with("//")).map(words);
        // A chain of calls may go over several lines.
        let code = lines.collect::<Vec<_>>().join("\n").replace("\n.", ".");
        let keys = keys();
        for key in &keys {
            let name = key.join(".");
            let [section, last] = &key[key.len() - 2..] else { panic!("{name} is no key of a section") };
            let field = format!("{section}.{last}");
            let reads = |text: &str| {
                text.match_indices(&field).any(|(at, _)| {
                    let after = text[at + field.len()..].chars().next();
                    let before = text[..at].chars().next_back();
                    // A quoted key in a message is no use of it.
                    before.is_none_or(|c| c == '.' || c.is_whitespace() || c == '(' || c == '&')
                        && after.is_none_or(|c| !c.is_alphanumeric() && c != '_')
                })
            };
            assert_eq!(
                reads(&code),
                note(&name).is_none(),
                "{name}: read by the code, or in UNUSED; not both"
            );
        }
        for unused in UNUSED {
            assert!(keys.iter().any(|key| key.join(".") == unused.key), "{} is no key", unused.key);
        }
    }

    #[test]
    fn whoever_sets_one_is_told() {
        let source = Source::Env { name: "ACP_HOST_ACP__STREAM__MAX_CHUNK_CHARS".to_owned() };
        let path = |key: &str| key.split('.').map(str::to_owned).collect::<Vec<_>>();
        let sources = BTreeMap::from([
            (path("acp.stream.max_chunk_chars"), source),
            (path("acp.enabled"), Source::Default),
        ]);
        assert_eq!(
            set(&sources),
            [
                "ACP_HOST_ACP__STREAM__MAX_CHUNK_CHARS: acp.stream.max_chunk_chars is not used in this version: \
              each channel has its own longest message"
            ]
        );
    }
}
