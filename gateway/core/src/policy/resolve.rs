//! Precedence of configuration levels.

use super::{
    AgentTimeouts, BindingPolicy, Effective, EffectivePolicy, FilePolicy, PermissionPolicy, PolicyScope,
    RecoveryPolicy, StreamPolicy, TimeoutPolicy, shortest_timeout,
};
use crate::config::channels::{FilesConfig as FileKeys, ThreadBindings};
use crate::config::load::{LoadedConfig, nearest_source};
use crate::config::source::{Source, join};
use crate::config::{AgentConfig, Backend, DeliveryMode, Separator};
use crate::preset::{DEFAULT, Preset, find};
use std::collections::BTreeMap;

/// Minimum grouping time of live text, in milliseconds: channels limit how often a message may be edited.
pub const LIVE_COALESCE_MS_MIN: u64 = 750;
/// Time from SIGKILL to the report of surviving processes, in milliseconds.
const KILL_MS: u64 = 5_000;
const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;
/// Number of messages above which an answer is sent as its beginning and a file.
const LONG_FINAL_PARTS: u64 = 5;
/// Maximum size of a file, in bytes: the limit of Discord without paid upgrades.
const FILE_BYTES_MAX: u64 = 10 * 1024 * 1024;
/// Kinds of update and their default visibility in a conversation.
const TAGS: [(&str, bool); 14] = [
    ("agent_message_chunk", true),
    ("agent_thought_chunk", false),
    ("available_commands_update", false),
    ("compaction_summary_chunk", false),
    ("config_option_update", false),
    ("current_mode_update", false),
    ("plan", false),
    ("plan_removed", false),
    ("plan_update", false),
    ("session_info_update", false),
    ("tool_call", false),
    ("tool_call_update", false),
    ("usage_update", false),
    ("user_message_chunk", false),
];

type KeyPath = Vec<String>;
/// Getter of an optional limit.
type Limit<T> = fn(&T) -> Option<u64>;

fn key(segments: &[&str]) -> KeyPath {
    segments.iter().map(|&segment| segment.to_owned()).collect()
}

struct Resolver<'a> {
    loaded: &'a LoadedConfig,
    scope: &'a PolicyScope,
}

/// Effective value of a key that always has a value, possibly its default.
fn of<T>(loaded: &LoadedConfig, path: &[&str], value: T) -> Effective<T> {
    let path = key(path);
    let source = nearest_source(&path, &loaded.sources);
    Effective { value, key: join(&path), source, note: None }
}

impl Resolver<'_> {
    fn plain<T>(&self, path: &str, value: T) -> Effective<T> {
        of(self.loaded, &path.split('.').collect::<Vec<_>>(), value)
    }

    /// Returns the value of the first level that sets one, otherwise `last`.
    fn pick<T>(&self, levels: Vec<(KeyPath, Option<T>)>, last: Effective<T>) -> Effective<T> {
        let found = levels.into_iter().find_map(|(key, value)| Some((key, value?)));
        found.map_or(last, |(key, value)| {
            let source = nearest_source(&key, &self.loaded.sources);
            Effective { value, key: join(&key), source, note: None }
        })
    }

    /// Values set by the account and by the channel of the scope, in this order.
    fn bindings_of<T>(
        &self,
        name: &str,
        get: impl Fn(&ThreadBindings) -> Option<T>,
    ) -> Vec<(KeyPath, Option<T>)> {
        let Some(channel) = &self.scope.channel else { return Vec::new() };
        let Some(section) = self.loaded.config.channels.get(channel) else { return Vec::new() };
        let mut levels = Vec::new();
        if let Some((id, _, bindings)) = self.scope.account.as_ref().and_then(|id| section.account(id)) {
            let path = ["channels", channel, "accounts", id, "thread_bindings", name];
            levels.push((key(&path), get(bindings)));
        }
        levels.push((key(&["channels", channel, "thread_bindings", name]), get(section.thread_bindings)));
        levels
    }

    fn bindings(&self) -> BindingPolicy {
        let session = &self.loaded.config.session.thread_bindings;
        let window = |name: &str, get: fn(&ThreadBindings) -> Option<u64>, last: u64| {
            let last = self.plain(&format!("session.thread_bindings.{name}"), last);
            self.pick(self.bindings_of(name, get), last).map(|hours| set(hours, HOUR_MS))
        };
        let spawn = |name: &str, get: fn(&ThreadBindings) -> Option<bool>| {
            let channel = self.scope.channel.as_deref().unwrap_or("NAME");
            let path = key(&["channels", channel, "thread_bindings", name]);
            let value = channel != "discord";
            let last = Effective { value, key: join(&path), source: Source::Default, note: None };
            self.pick(self.bindings_of(name, get), last)
        };
        let enabled = self.plain("session.thread_bindings.enabled", session.enabled);
        BindingPolicy {
            enabled: self.pick(self.bindings_of("enabled", |it| it.enabled), enabled),
            idle_ms: window("idle_hours", |it| it.idle_hours, session.idle_hours),
            max_age_ms: window("max_age_hours", |it| it.max_age_hours, session.max_age_hours),
            auto_unbind_stale: self.pick(
                self.bindings_of("auto_unbind_stale", |it| it.auto_unbind_stale),
                self.plain("session.thread_bindings.auto_unbind_stale", session.auto_unbind_stale),
            ),
            spawn_acp_sessions: spawn("spawn_acp_sessions", |it| it.spawn_acp_sessions),
            spawn_subagent_sessions: spawn("spawn_subagent_sessions", |it| it.spawn_subagent_sessions),
        }
    }

    fn account_sessions_max(&self, sessions_max: &Effective<u64>) -> Effective<Option<u64>> {
        let acp = &self.loaded.config.acp;
        let general = "acp.max_concurrent_sessions_per_account";
        let last = self.plain(general, acp.max_concurrent_sessions_per_account);
        let (Some(channel), Some(id)) = (&self.scope.channel, &self.scope.account) else {
            return last.map(|max| set(max, 1));
        };
        let account = self.loaded.config.channels.get(channel).and_then(|section| section.account(id));
        let path = key(&["channels", channel, "accounts", id, "max_concurrent_sessions"]);
        let own = account.and_then(|(_, sessions_max, _)| sessions_max);
        let mut max = self.pick(vec![(path, own)], last).map(|max| set(max, 1));
        if max.value.is_some_and(|max| max > sessions_max.value) {
            max.note =
                Some(format!("{} is reached first", sessions_max.describe(&sessions_max.source.to_string())));
        }
        max
    }

    fn agent_section(&self) -> Option<(&str, &AgentConfig)> {
        let name = self.scope.agent.as_ref()?;
        Some((name.as_str(), self.loaded.config.agents.get(name)?))
    }

    fn backend_section(&self) -> Option<(&str, &Backend)> {
        let of_agent = self.agent_section().and_then(|(_, agent)| agent.backend.as_deref());
        let name = of_agent.unwrap_or(self.loaded.config.acp.backend.as_str());
        Some((name, self.loaded.config.backends.get(name)?))
    }

    /// Values set by the agent's section and by its backend's section, in this order.
    fn agent_or_backend<T>(
        &self,
        name: &str,
        of_agent: impl Fn(&AgentConfig) -> Option<T>,
        of_backend: impl Fn(&Backend) -> Option<T>,
    ) -> Vec<(KeyPath, Option<T>)> {
        let agent = self.agent_section().map(|(at, it)| (key(&["agents", at, name]), of_agent(it)));
        let backend = self.backend_section().map(|(at, it)| (key(&["backends", at, name]), of_backend(it)));
        agent.into_iter().chain(backend).collect()
    }

    fn agent_times(&self) -> AgentTimeouts {
        let name = self.scope.agent.as_ref().map_or("NAME", |name| name.as_str());
        let preset = find(name);
        let last = |setting: &str, get: fn(&Preset) -> u64| {
            let value = preset.map_or_else(|| get(&DEFAULT), get);
            let source = if value == get(&DEFAULT) { Source::Default } else { Source::BuiltIn };
            Effective { value, key: join(&key(&["agents", name, setting])), source, note: None }
        };
        let time = |name: &str, of_agent: Limit<AgentConfig>, of_backend: Limit<Backend>, of_preset| {
            self.pick(self.agent_or_backend(name, of_agent, of_backend), last(name, of_preset))
        };
        AgentTimeouts {
            init_ms: time("init_ms", |it| it.init_ms, |it| it.init_ms, |it| it.init_ms),
            eof_ms: time("eof_ms", |it| it.eof_ms, |it| it.eof_ms, |it| it.eof_ms),
            term_ms: time("term_ms", |it| it.term_ms, |it| it.term_ms, |it| it.term_ms),
            kill_ms: time("kill_ms", |it| it.kill_ms, |it| it.kill_ms, |_| KILL_MS),
        }
    }

    /// Merges the lists of all levels: each level adds variables, none removes any.
    fn env_allow(&self) -> Effective<Vec<String>> {
        let list = |list: &[String]| (!list.is_empty()).then(|| list.to_vec());
        let mut levels =
            self.agent_or_backend("env_allow", |it| list(&it.env_allow), |it| list(&it.env_allow));
        levels.push((key(&["acp", "env_allow"]), list(&self.loaded.config.acp.env_allow)));
        let own = levels.iter().filter(|(_, value)| value.is_some()).map(|(key, _)| join(key));
        let keys = own.collect::<Vec<_>>();
        let mut all: Vec<String> =
            levels.iter().flat_map(|(_, value)| value.clone().unwrap_or_default()).collect();
        all.sort();
        all.dedup();
        let found = self.pick(levels, self.plain("acp.env_allow", Vec::new()));
        let note = (keys.len() > 1).then(|| format!("merged from: {}", keys.join(", ")));
        Effective { value: all, note, ..found }
    }

    fn permission(&self) -> PermissionPolicy {
        let general = &self.loaded.config.permission;
        let at = |name: &str| key(&["agents", self.agent_section().map_or("NAME", |(at, _)| at), name]);
        let own = self.agent_section().map(|(_, agent)| agent);
        let non_interactive = own.and_then(|agent| agent.non_interactive_permissions);
        PermissionPolicy {
            mode: self.pick(
                vec![(at("permission"), own.and_then(|agent| agent.permission))],
                self.plain("permission.mode", general.mode),
            ),
            non_interactive: self.pick(
                vec![(at("non_interactive_permissions"), non_interactive)],
                self.plain("permission.non_interactive_permissions", general.non_interactive_permissions),
            ),
            timeout_ms: self
                .plain("permission.timeout_ms", general.timeout_ms)
                .map(|timeout_ms| set(timeout_ms, 1)),
        }
    }

    fn stream(&self) -> StreamPolicy {
        let config = &self.loaded.config.acp.stream;
        let at = |name: &str| format!("acp.stream.{name}");
        let live = config.delivery_mode == DeliveryMode::Live;
        let mut coalesce = self.plain(&at("coalesce_idle_ms"), config.coalesce_idle_ms);
        if live && coalesce.value < LIVE_COALESCE_MS_MIN {
            coalesce.note =
                Some(format!("{} set; the minimum in live mode is {LIVE_COALESCE_MS_MIN}", coalesce.value));
            coalesce.value = LIVE_COALESCE_MS_MIN;
        }
        let between = if live { Separator::Space } else { Separator::Paragraph };
        let mut tags: BTreeMap<String, bool> =
            TAGS.iter().map(|&(tag, shown)| (tag.to_owned(), shown)).collect();
        tags.extend(config.tag_visibility.clone());
        StreamPolicy {
            delivery_mode: self.plain(&at("delivery_mode"), config.delivery_mode),
            coalesce_idle_ms: coalesce,
            min_interval_ms: self.plain(&at("min_interval_ms"), config.min_interval_ms),
            max_chunk_chars: self.plain(&at("max_chunk_chars"), config.max_chunk_chars),
            max_output_chars: self.plain(&at("max_output_chars"), config.max_output_chars),
            max_session_update_chars: self
                .plain(&at("max_session_update_chars"), config.max_session_update_chars),
            repeat_suppression: self.plain(&at("repeat_suppression"), config.repeat_suppression),
            hidden_boundary_separator: self
                .plain(&at("hidden_boundary_separator"), config.hidden_boundary_separator.unwrap_or(between)),
            tag_visibility: self.plain(&at("tag_visibility"), tags),
            files: self.files(),
        }
    }

    fn files(&self) -> FilePolicy {
        FilePolicy {
            long_final_parts: self.of_files("long_final_parts", |it| it.long_final_parts, LONG_FINAL_PARTS),
            bytes_max: self.of_files("bytes_max", |it| it.bytes_max, FILE_BYTES_MAX),
            turn_diff: self.of_files("turn_diff", |it| it.turn_diff, true),
        }
    }

    /// Value set by the account or the channel for files, otherwise `last`.
    fn of_files<T>(&self, name: &str, get: fn(&FileKeys) -> Option<T>, last: T) -> Effective<T> {
        let channel = self.scope.channel.as_deref().unwrap_or("NAME");
        let account = self.scope.account.as_deref().unwrap_or("ID");
        let [own, all] = self.loaded.config.channels.files(channel, account);
        let general = key(&["channels", channel, "files", name]);
        let levels = vec![
            (key(&["channels", channel, "accounts", account, "files", name]), own.and_then(get)),
            (general.clone(), all.and_then(get)),
        ];
        self.pick(levels, Effective { value: last, key: join(&general), source: Source::Default, note: None })
    }
}

/// Converts a count to its unit; `None` for 0, which means "not set".
fn set(count: u64, unit: u64) -> Option<u64> {
    (count > 0).then(|| count.saturating_mul(unit))
}

/// Resolves only the settings for an agent's output in a channel.
pub fn stream_policy(loaded: &LoadedConfig, scope: &PolicyScope) -> StreamPolicy {
    Resolver { loaded, scope }.stream()
}

/// Resolves all settings in effect in a scope.
pub fn effective_policy(loaded: &LoadedConfig, scope: &PolicyScope) -> EffectivePolicy {
    let it = Resolver { loaded, scope };
    let config = &loaded.config;
    let acp = &config.acp;
    let sessions_max = it.plain("acp.max_concurrent_sessions", acp.max_concurrent_sessions);
    let bindings = it.bindings();
    let session_ms = it.plain("session.ttl_minutes", set(config.session.ttl_minutes, MINUTE_MS));
    let runtime_ms = it.plain("acp.runtime.ttl_minutes", set(acp.runtime.ttl_minutes, MINUTE_MS));
    let ttl = TimeoutPolicy {
        effective_ms: shortest_timeout([&session_ms, &bindings.idle_ms, &runtime_ms]),
        session_ms,
        runtime_ms,
    };
    let agent = scope.agent.as_ref().map_or("NAME", |name| name.as_str());
    let roots = it.agent_section().map(|(_, agent)| agent.cwd_roots.clone()).unwrap_or_default();
    let recovery = &acp.control_plane.recovery;
    EffectivePolicy {
        enabled: it.plain("acp.enabled", acp.enabled),
        dispatch_enabled: it.plain("acp.dispatch.enabled", acp.dispatch.enabled),
        backend: it.pick(
            vec![(
                key(&["agents", agent, "backend"]),
                it.agent_section().and_then(|(_, agent)| agent.backend.clone()),
            )],
            it.plain("acp.backend", acp.backend.clone()),
        ),
        install_command: it.plain("acp.runtime.install_command", acp.runtime.install_command.clone()),
        default_agent: it.plain("acp.default_agent", acp.default_agent.clone()),
        allowed_agents: it.plain("acp.allowed_agents", acp.allowed_agents.clone()),
        default_cwd: it.plain("acp.default_cwd", acp.default_cwd.clone()),
        workspace_roots: it.plain("acp.workspace_roots", acp.workspace_roots.clone()),
        cwd_roots: of(loaded, &["agents", agent, "cwd_roots"], roots),
        env_allow: it.env_allow(),
        account_sessions_max: it.account_sessions_max(&sessions_max),
        sessions_max,
        queue_runs_max: it.pick(
            it.agent_or_backend("queue_runs_max", |it| it.queue_runs_max, |it| it.queue_runs_max),
            it.plain("limits.queue_runs_max", config.limits.queue_runs_max),
        ),
        bindings,
        ttl,
        permission: it.permission(),
        agent: it.agent_times(),
        stream: it.stream(),
        recovery: RecoveryPolicy {
            eager_actors: it.plain("acp.control_plane.recovery.eager_actors", recovery.eager_actors),
            reconcile_running_after_ms: it.plain(
                "acp.control_plane.recovery.reconcile_running_after_ms",
                recovery.reconcile_running_after_ms,
            ),
        },
        idempotency_ttl_ms: it
            .plain("acp.idempotency.ttl_hours", acp.idempotency.ttl_hours.saturating_mul(HOUR_MS)),
    }
}
