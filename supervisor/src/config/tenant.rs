//! `[[tenant]]`: some gateways, and how their agents run, as it is written.

use super::{ConfigError, nearest};
use acp_shared::ids::GatewayInstanceId;
use acp_shared::launch::Resource;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A user or group, by number or by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Id {
    /// By number.
    Number(u32),
    /// By name, or by a number in quotes.
    Name(String),
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// A resource limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Limit {
    /// The same for both.
    Both(u64),
    /// The limit in force, and how far the agent may raise it.
    Pair([u64; 2]),
    /// None at all.
    Word(Unlimited),
}

/// The word for no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unlimited {
    /// No limit.
    Unlimited,
}

/// Whether writing is confined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Switch {
    /// It is not.
    #[default]
    Off,
    /// It is.
    On,
}

/// One `[[tenant]]`. Every key may be left out, but one of `uid`, `user` and `instance_id`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TenantConfig {
    /// Gateways of the user with this number; they may connect.
    pub uid: Option<u32>,
    /// The same by name.
    pub user: Option<String>,
    /// The gateway with this id; with `uid` or `user` beside it only if it is of that user.
    pub instance_id: Option<GatewayInstanceId>,
    /// A file with the secret that these gateways must know; they name the same in `supervisor.secret_file`.
    pub secret_file: Option<PathBuf>,
    /// As whom their agents run; the supervisor must be root. Default: as the gateway's user; if that one has no
    /// entry, with the group that the gateway runs with.
    pub run_as_user: Option<Id>,
    /// Their primary group. Default: that of the user.
    pub run_as_group: Option<Id>,
    /// Their supplementary groups. Default: those of the user.
    pub groups: Option<Vec<Id>>,
    /// Their agents may run as root.
    pub allow_root: bool,
    /// Whether programs with a set-user-id bit give them nothing. Default: true if they run as another user, or confined.
    pub no_new_privs: Option<bool>,
    /// Their file mode creation mask.
    pub umask: Option<u32>,
    /// Their resource limits, see setrlimit(2).
    pub rlimits: BTreeMap<Resource, Limit>,
    /// How much sooner than others they are ended when memory runs out, -1000 to 1000.
    pub oom_score_adj: Option<i32>,
    /// Variables that they get of what the gateway sends: names, and beginnings with a `*`.
    pub env_allow: Option<Vec<String>>,
    /// `"on"`: they can write only in their session's roots, in `temp_dir` and in `write_dirs`.
    pub landlock: Switch,
    /// Their directory for temporary files (TMPDIR).
    pub temp_dir: Option<PathBuf>,
    /// Further directories that they may write in under Landlock.
    pub write_dirs: Vec<PathBuf>,
    /// Sessions work below these directories. Default: anywhere.
    pub roots: Vec<PathBuf>,
    /// Living leases of this tenant.
    pub leases_max: Option<u64>,
    /// Memory of one agent's tree, in bytes.
    pub memory_max_bytes: Option<u64>,
    /// Processes and threads of one agent's tree.
    pub pids_max: Option<u64>,
    /// Its share of the processor, 1 to 10000; others have 100.
    pub cpu_weight: Option<u64>,
}

/// Every key of a tenant.
pub(super) const KEYS: &[&str] = &[
    "uid",
    "user",
    "instance_id",
    "secret_file",
    "run_as_user",
    "run_as_group",
    "groups",
    "allow_root",
    "no_new_privs",
    "umask",
    "rlimits",
    "oom_score_adj",
    "env_allow",
    "landlock",
    "temp_dir",
    "write_dirs",
    "roots",
    "leases_max",
    "memory_max_bytes",
    "pids_max",
    "cpu_weight",
];

/// Refuses keys that no tenant has, with the one that was meant.
pub(super) fn check_keys(table: &toml::Table) -> Result<(), ConfigError> {
    let tenants = table.get("tenant").and_then(toml::Value::as_array).into_iter().flatten();
    let mut keys = tenants.filter_map(toml::Value::as_table).flat_map(toml::Table::keys);
    keys.find(|key| !KEYS.contains(&key.as_str())).map_or(Ok(()), |key| {
        let hint = nearest(key, KEYS.iter().copied());
        Err(ConfigError::UnknownKey { key: format!("tenant.{key}"), hint })
    })
}

impl TenantConfig {
    /// What can be told without looking at this machine.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.uid.is_none() && self.user.is_none() && self.instance_id.is_none() {
            return Err("names nobody; give uid, user or instance_id".into());
        }
        if self.uid.is_some() && self.user.is_some() {
            return Err("has both uid and user; give one of them".into());
        }
        if self.run_as_user.is_none() && (self.run_as_group.is_some() || self.groups.is_some()) {
            return Err("has run_as_group or groups without run_as_user; give that too".into());
        }
        if self.umask.is_some_and(|mask| mask > 0o777) {
            return Err("has an umask over 0o777; write it in octal, as 0o077".into());
        }
        if self.oom_score_adj.is_some_and(|score| !(-1000..=1000).contains(&score)) {
            return Err("has an oom_score_adj outside of -1000 to 1000".into());
        }
        if self.cpu_weight.is_some_and(|weight| !(1..=10_000).contains(&weight)) {
            return Err("has a cpu_weight outside of 1 to 10000".into());
        }
        let zero = [self.leases_max, self.memory_max_bytes, self.pids_max].contains(&Some(0));
        if zero {
            return Err("has a limit of 0; leave it out, or give a number over 0".into());
        }
        let pairs = self.rlimits.iter().filter_map(|(resource, limit)| match limit {
            Limit::Pair([soft, hard]) if soft > hard => Some(resource),
            Limit::Pair(_) | Limit::Both(_) | Limit::Word(_) => None,
        });
        if let Some(resource) = pairs.into_iter().next() {
            return Err(format!("has a limit of {resource:?} that is over the one it may be raised to"));
        }
        let patterns = self.env_allow.iter().flatten();
        if let Some(pattern) =
            patterns.into_iter().find(|p| p.is_empty() || p.trim_end_matches('*').contains(['*', '=']))
        {
            return Err(format!(
                "allows the variable {pattern:?}; a name, or a beginning with one * at its end"
            ));
        }
        let dirs = self.roots.iter().chain(&self.write_dirs).chain(&self.temp_dir).chain(&self.secret_file);
        dirs.into_iter()
            .find(|dir| !dir.is_absolute())
            .map_or(Ok(()), |dir| Err(format!("has the path {}, which is not absolute", dir.display())))
    }
}
