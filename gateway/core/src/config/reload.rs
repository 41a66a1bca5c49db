//! Differences between two configurations on a reload: changed keys, split into those applied at once and
//! those that need a restart.

use super::load::LoadedConfig;
use super::source::join;
use serde_json::Value;
use std::collections::BTreeMap;

/// Keys and sections that are read only at start. All others are read when needed.
const AT_START: [&str; 8] = [
    "acp.control_plane",
    // The API server reads its limits once, before listening.
    "limits.connections_max",
    "limits.prompt_bytes_max",
    "log.format",
    "metrics",
    "northbound.agents_socket",
    "remote",
    "supervisor",
];

/// True if a changed key applies only after a restart.
pub fn needs_restart(key: &str) -> bool {
    AT_START
        .iter()
        .any(|it| key.strip_prefix(it).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
}

/// Result of a reload.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReloadChanges {
    /// Keys applied now.
    pub applied: Vec<String>,
    /// Keys that differ from the configuration at start and apply after a restart.
    pub after_restart: Vec<String>,
}

/// Compares the new configuration with the live one and with the one at start.
///
/// # Errors
/// A configuration cannot be serialized as JSON: a bug in this program.
pub fn changes(
    started: &LoadedConfig,
    current: &LoadedConfig,
    next: &LoadedConfig,
) -> Result<ReloadChanges, serde_json::Error> {
    let (started, current, next) = (leaves(started)?, leaves(current)?, leaves(next)?);
    let applied = differing_keys(&current, &next).into_iter().filter(|key| !needs_restart(key)).collect();
    let after_restart =
        differing_keys(&started, &next).into_iter().filter(|key| needs_restart(key)).collect();
    Ok(ReloadChanges { applied, after_restart })
}

fn leaves(loaded: &LoadedConfig) -> Result<BTreeMap<String, Value>, serde_json::Error> {
    let mut found = BTreeMap::new();
    collect(&mut Vec::new(), serde_json::to_value(&loaded.config)?, &mut found);
    Ok(found)
}

fn collect(path: &mut Vec<String>, value: Value, found: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                path.push(key);
                collect(path, value, found);
                path.pop();
            }
        }
        value => {
            found.insert(join(path), value);
        }
    }
}

/// Keys with different values, or present in only one of the two maps. An absent value equals null.
fn differing_keys(one: &BTreeMap<String, Value>, other: &BTreeMap<String, Value>) -> Vec<String> {
    let of = |map: &BTreeMap<String, Value>, key: &str| map.get(key).cloned().unwrap_or(Value::Null);
    let mut keys: Vec<&String> = one.keys().chain(other.keys()).collect();
    keys.sort();
    keys.dedup();
    keys.into_iter().filter(|key| of(one, key) != of(other, key)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::super::load::{Inputs, load};
    use super::*;
    use std::path::Path;

    fn loaded(text: &str) -> LoadedConfig {
        load(Inputs { file: Some((Path::new("/x.toml"), text)), ..Inputs::default() }).unwrap()
    }

    #[test]
    fn restart_keys_are_reported_until_restart() {
        let started = loaded("");
        let first = loaded("[acp]\nenabled = false\n[log]\nformat = \"json\"\n");
        let names = |keys: &[&str]| keys.iter().map(|&key| key.to_owned()).collect::<Vec<_>>();
        let want = ReloadChanges { applied: names(&["acp.enabled"]), after_restart: names(&["log.format"]) };
        assert_eq!(changes(&started, &started, &first).unwrap(), want);
        let second = loaded("[log]\nformat = \"json\"\n[agents.a]\ncommand = [\"a\"]\nenv = { K = \"v\" }\n");
        let got = changes(&started, &first, &second).unwrap();
        assert_eq!(got.after_restart, ["log.format"]);
        // Empty lists are values; unset keys have none.
        let set: Vec<&str> = got.applied.iter().map(String::as_str).collect();
        assert!(set.contains(&"acp.enabled") && set.contains(&"agents.a.command"), "{set:?}");
        assert!(set.contains(&"agents.a.env.K") && !set.contains(&"agents.a.mode"), "{set:?}");
        assert_eq!(changes(&started, &started, &started).unwrap(), ReloadChanges::default());
    }

    #[test]
    fn restart_keys_match_sections_and_exact_names() {
        for (key, restart) in [
            ("acp.control_plane.durability", true),
            ("acp.control_plane.recovery.eager_actors", true),
            ("acp.enabled", false),
            ("supervisor.socket", true),
            ("supervisors", false),
            ("limits.connections_max", true),
            ("limits.queue_runs_max", false),
            ("log.level", false),
            ("notify", false),
            ("metrics.listen", true),
        ] {
            assert_eq!(needs_restart(key), restart, "{key}");
        }
    }
}
