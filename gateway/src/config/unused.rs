//! The keys that this version accepts and does not use: their values are checked, and shown by `config show`, and
//! nothing acts on them yet. Whoever sets one is told that nothing comes of it. `cli/config_tests.rs` holds this
//! table against what the program does.

use super::source::Sources;

/// A key that nothing acts on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unused {
    /// The key, or a section; `*` stands for one name.
    pub(crate) key: &'static str,
    /// What happens instead.
    pub(crate) instead: &'static str,
}

const fn unused(key: &'static str, instead: &'static str) -> Unused {
    Unused { key, instead }
}

const SPAWNS: &str = "agents cannot spawn sessions yet";

/// All of them.
pub(crate) const UNUSED: [Unused; 4] = [
    unused("channels.console.thread_bindings.spawn_subagent_sessions", SPAWNS),
    unused("channels.console.accounts.*.thread_bindings.spawn_subagent_sessions", SPAWNS),
    unused("channels.discord.thread_bindings.spawn_subagent_sessions", SPAWNS),
    unused("channels.discord.accounts.*.thread_bindings.spawn_subagent_sessions", SPAWNS),
];

/// Whether an entry of the table speaks of a key, or of what is beneath it.
fn names(entry: &str, key: &str) -> bool {
    let mut segments = key.split('.');
    entry.split('.').all(|want| segments.next().is_some_and(|have| want == "*" || want == have))
}

/// What is said about a key, if nothing acts on it.
pub(crate) fn note(key: &str) -> Option<String> {
    let found = UNUSED.iter().find(|unused| names(unused.key, key))?;
    Some(format!("not used in this version: {}", found.instead))
}

/// What is said about those keys that somebody set, in their order.
pub(crate) fn set(sources: &Sources) -> Vec<String> {
    let said = sources.iter().filter_map(|(path, source)| {
        let key = path.join(".");
        note(&key).map(|note| format!("{source}: {key} is {note}"))
    });
    said.collect()
}

#[cfg(test)]
mod tests {
    use super::super::source::Source;
    use super::*;

    #[test]
    fn whoever_sets_one_is_told() {
        let source = Source::Env {
            name: "ACP_HOST_CHANNELS__DISCORD__THREAD_BINDINGS__SPAWN_SUBAGENT_SESSIONS".to_owned(),
        };
        let path = |key: &str| key.split('.').map(str::to_owned).collect::<Vec<_>>();
        let sources = Sources::from([
            (path("channels.discord.thread_bindings.spawn_subagent_sessions"), source),
            (path("acp.enabled"), Source::Default),
        ]);
        assert_eq!(
            set(&sources),
            ["ACP_HOST_CHANNELS__DISCORD__THREAD_BINDINGS__SPAWN_SUBAGENT_SESSIONS: \
                 channels.discord.thread_bindings.spawn_subagent_sessions is not used in this version: agents cannot \
                 spawn sessions yet"]
        );
    }

    #[test]
    fn an_entry_speaks_of_its_key_and_of_what_is_beneath() {
        for (entry, key, want) in [
            ("a.b", "a.b", true),
            ("a.b", "a.b.c", true),
            ("a.b", "a.bc", false),
            ("a.b", "a", false),
            ("a.*.b", "a.x.b", true),
            ("a.*.b", "a.x.c", false),
        ] {
            assert_eq!(names(entry, key), want, "{entry} {key}");
        }
    }
}
