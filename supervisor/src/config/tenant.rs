//! `[[tenant]]` sections of the configuration: selection of gateways, and settings for their agents.

use super::{ConfigError, nearest};
use acp_shared::identity::{Holder, Identity};
use acp_shared::ids::GatewayInstanceId;
use acp_shared::launch::Resource;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// User or group, by number or name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a number or a name")]
pub enum UserOrGroup {
    /// By number.
    Number(u32),
    /// By name, or by a number in quotes.
    Name(String),
}

impl std::fmt::Display for UserOrGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// Resource limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a number, [soft, hard] or \"unlimited\"")]
pub enum ResourceLimitValue {
    /// Soft and hard limit with the same value.
    Both(u64),
    /// Soft and hard limit.
    Pair([u64; 2]),
    /// No limit.
    Word(Unlimited),
}

/// Keyword for no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unlimited {
    /// No limit.
    Unlimited,
}

/// Setting that confines writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Switch {
    /// Not confined.
    #[default]
    Off,
    /// Confined.
    On,
}

/// Defines the keys of a tenant.
macro_rules! tenant_keys {
    ($(#[$meta:meta])+ pub struct $name:ident { $($(#[$doc:meta])+ pub $key:ident: $type:ty,)+ }) => {
        $(#[$meta])+
        #[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name { $($(#[$doc])+ pub $key: $type,)+ }

        /// All keys of a tenant.
        pub(super) const KEYS: &[&str] = &[$(stringify!($key)),+];
    };
}

tenant_keys! {
    /// `[[tenant]]` section. All keys are optional, but one of `uid`, `user`, `cell` and `instance_id` is required.
    pub struct TenantConfig {
        /// User id of the gateways; this user may connect.
        pub uid: Option<u32>,
        /// User name of the gateways; alternative to `uid`.
        pub user: Option<String>,
        /// URI name of a cell on other machines, `acp://PLANE/cell/ID`; alternative to `uid` and `user`. Its gateways
        /// may connect to `listen`.
        pub cell: Option<String>,
        /// Instance id of the gateway; together with `uid` or `user` it must also belong to that user.
        pub instance_id: Option<GatewayInstanceId>,
        /// File with the secret that these gateways must present; gateways name the same file in
        /// `supervisor.secret_file`.
        pub secret_file: Option<PathBuf>,
        /// User that their agents run as; the supervisor must be root. Default: the gateway's user; if that user
        /// has no passwd entry, with the group of the gateway's process.
        pub run_as_user: Option<UserOrGroup>,
        /// Primary group of their agents. Default: that of the user.
        pub run_as_group: Option<UserOrGroup>,
        /// Supplementary groups of their agents. Default: those of the user.
        pub groups: Option<Vec<UserOrGroup>>,
        /// Permits agents to run as root.
        pub allow_root: bool,
        /// Setting of `no_new_privs` for their agents. Default: true for agents of another user, and for confined
        /// ones.
        pub no_new_privs: Option<bool>,
        /// File mode creation mask of their agents.
        pub umask: Option<u32>,
        /// Resource limits of their agents, see setrlimit(2).
        pub rlimits: BTreeMap<Resource, ResourceLimitValue>,
        /// Adjustment of the out-of-memory killer's score, -1000 to 1000. A higher value is killed sooner.
        pub oom_score_adj: Option<i32>,
        /// Variables of the gateway's environment that agents get: names, or prefixes followed by a `*`.
        pub env_allow: Option<Vec<String>>,
        /// `"on"`: agents can write only in their session's roots, in `temp_dir` and in `write_dirs`.
        pub landlock: Switch,
        /// Directory for temporary files of their agents (TMPDIR).
        pub temp_dir: Option<PathBuf>,
        /// Additional directories that agents may write to under Landlock.
        pub write_dirs: Vec<PathBuf>,
        /// Directories that sessions must lie beneath. Default: any directory.
        pub roots: Vec<PathBuf>,
        /// Maximum number of living leases of this tenant.
        pub leases_max: Option<u64>,
        /// Memory limit of one agent's process tree, in bytes.
        pub memory_max_bytes: Option<u64>,
        /// Maximum number of processes and threads of one agent's process tree.
        pub pids_max: Option<u64>,
        /// CPU weight of one agent, 1 to 10000; the default of others is 100.
        pub cpu_weight: Option<u64>,
    }
}

/// Refuses unknown keys in tenants, with a hint about the most similar key.
pub(super) fn check_keys(table: &toml::Table) -> Result<(), ConfigError> {
    let tenants = table.get("tenant").and_then(toml::Value::as_array).into_iter().flatten();
    let mut keys = tenants.filter_map(toml::Value::as_table).flat_map(toml::Table::keys);
    keys.find(|key| !KEYS.contains(&key.as_str())).map_or(Ok(()), |key| {
        let hint = nearest(key, KEYS.iter().copied());
        Err(ConfigError::UnknownKey { key: format!("tenant.{key}"), hint })
    })
}

impl TenantConfig {
    /// Checks everything that does not depend on this machine.
    pub(super) fn check(&self) -> Result<(), String> {
        let names = [self.uid.is_some(), self.user.is_some(), self.cell.is_some()];
        match names.into_iter().filter(|is_set| *is_set).count() {
            0 if self.instance_id.is_none() => {
                return Err("selects no gateway; set uid, user, cell or instance_id".into());
            }
            0 | 1 => {}
            _ => return Err("has more than one of uid, user and cell; give one of them".into()),
        }
        if let Some(cell) = &self.cell {
            match cell.parse::<Identity>() {
                Ok(Identity { holder: Holder::Cell, .. }) => {}
                Ok(Identity { holder: Holder::Host, .. }) => {
                    return Err(format!("has cell = {cell:?}, which is a host"));
                }
                Err(error) => return Err(format!("has a wrong cell: {error}")),
            }
            if self.secret_file.is_some() {
                return Err(
                    "has cell and secret_file; a cell shows its certificate instead, remove secret_file"
                        .into(),
                );
            }
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
            ResourceLimitValue::Pair([soft, hard]) if soft > hard => Some(resource),
            ResourceLimitValue::Pair(_) | ResourceLimitValue::Both(_) | ResourceLimitValue::Word(_) => None,
        });
        if let Some(resource) = pairs.into_iter().next() {
            return Err(format!("has a soft limit of {resource:?} above its hard limit"));
        }
        let patterns = self.env_allow.iter().flatten();
        if let Some(pattern) =
            patterns.into_iter().find(|p| p.is_empty() || p.trim_end_matches('*').contains(['*', '=']))
        {
            return Err(format!(
                "allows the variable {pattern:?}; use a name, or a prefix with one * at its end"
            ));
        }
        let dirs = self.roots.iter().chain(&self.write_dirs).chain(&self.temp_dir).chain(&self.secret_file);
        dirs.into_iter()
            .find(|dir| !dir.is_absolute())
            .map_or(Ok(()), |dir| Err(format!("has the path {}, which is not absolute", dir.display())))
    }
}
