//! Keys that this version accepts but does not use. Their values are checked and shown by `config show`, but
//! have no effect. A user who sets one gets a note. `cli/config_tests.rs` compares this table with the
//! program's behaviour.

use super::source::Sources;

/// Key without effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IgnoredKey {
    /// Key or section; `*` matches one segment.
    pub key: &'static str,
    /// Reason, and the actual behaviour.
    pub instead: &'static str,
}

/// All unused keys. At present every key is used.
pub const UNUSED: [IgnoredKey; 0] = [];

/// True if the entry matches the key or a section above it.
fn names(entry: &str, key: &str) -> bool {
    let mut segments = key.split('.');
    entry.split('.').all(|want| segments.next().is_some_and(|have| want == "*" || want == have))
}

/// Note about a key, if the key is unused.
pub fn note(key: &str) -> Option<String> {
    note_in(&UNUSED, key)
}

fn note_in(unused: &[IgnoredKey], key: &str) -> Option<String> {
    let found = unused.iter().find(|unused| names(unused.key, key))?;
    Some(format!("not used in this version: {}", found.instead))
}

/// Notes about the unused keys that are set, in the order of keys.
pub fn set(sources: &Sources) -> Vec<String> {
    set_in(&UNUSED, sources)
}

fn set_in(unused: &[IgnoredKey], sources: &Sources) -> Vec<String> {
    let said = sources.iter().filter_map(|(path, source)| {
        let key = path.join(".");
        note_in(unused, &key).map(|note| format!("{source}: {key} is {note}"))
    });
    said.collect()
}

#[cfg(test)]
mod tests {
    use super::super::source::Source;
    use super::*;

    #[test]
    fn ignored_key_is_reported_with_its_source() {
        let unused = [IgnoredKey { key: "channels.*.later", instead: "nobody can do it yet" }];
        let source = Source::Env { name: "ACP_HOST_CHANNELS__PARTY__LATER".to_owned() };
        let path = |key: &str| key.split('.').map(str::to_owned).collect::<Vec<_>>();
        let sources =
            Sources::from([(path("channels.party.later"), source), (path("acp.enabled"), Source::Default)]);
        assert_eq!(
            set_in(&unused, &sources),
            [
                "ACP_HOST_CHANNELS__PARTY__LATER: channels.party.later is not used in this version: nobody can do \
                 it yet"
            ]
        );
    }

    #[test]
    fn entry_matches_its_key_and_keys_below() {
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
