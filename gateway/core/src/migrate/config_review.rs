//! Settings of `openclaw.json` as a `gateway.toml` to review. Only the keys of the table are read, so that no token of
//! the file is printed.

use super::fields::Fields;
use crate::argv_redaction::redact_argv;
use serde_json::Value;
use toml::Table;

/// Maximum length of a text that is taken over, in bytes.
const WORD_BYTES_MAX: usize = 80;

/// Form of a value.
#[derive(Clone, Copy)]
enum Form {
    Flag,
    /// Whole number; a fraction is rounded up.
    Count,
    Word,
    Words,
    Flags,
}

/// Keys of OpenClaw, keys here, form of the value. An earlier row wins over a later one with the same key here.
const KEYS: [(&str, &str, Form); 29] = [
    ("acp.enabled", "acp.enabled", Form::Flag),
    ("acp.dispatch.enabled", "acp.dispatch.enabled", Form::Flag),
    ("acp.defaultAgent", "acp.default_agent", Form::Word),
    ("acp.allowedAgents", "acp.allowed_agents", Form::Words),
    ("acp.maxConcurrentSessions", "acp.max_concurrent_sessions", Form::Count),
    ("acp.runtime.ttlMinutes", "acp.runtime.ttl_minutes", Form::Count),
    ("acp.stream.deliveryMode", "acp.stream.delivery_mode", Form::Word),
    ("acp.stream.coalesceIdleMs", "acp.stream.coalesce_idle_ms", Form::Count),
    ("acp.stream.maxChunkChars", "acp.stream.max_chunk_chars", Form::Count),
    ("acp.stream.maxOutputChars", "acp.stream.max_output_chars", Form::Count),
    ("acp.stream.maxSessionUpdateChars", "acp.stream.max_session_update_chars", Form::Count),
    ("acp.stream.repeatSuppression", "acp.stream.repeat_suppression", Form::Flag),
    ("acp.stream.hiddenBoundarySeparator", "acp.stream.hidden_boundary_separator", Form::Word),
    ("acp.stream.tagVisibility", "acp.stream.tag_visibility", Form::Flags),
    ("session.threadBindings.enabled", "session.thread_bindings.enabled", Form::Flag),
    ("session.threadBindings.idleHours", "session.thread_bindings.idle_hours", Form::Count),
    ("session.threadBindings.ttlHours", "session.thread_bindings.idle_hours", Form::Count),
    ("session.threadBindings.maxAgeHours", "session.thread_bindings.max_age_hours", Form::Count),
    ("channels.discord.threadBindings.enabled", "channels.discord.thread_bindings.enabled", Form::Flag),
    ("channels.discord.threadBindings.idleHours", "channels.discord.thread_bindings.idle_hours", Form::Count),
    ("channels.discord.threadBindings.ttlHours", "channels.discord.thread_bindings.idle_hours", Form::Count),
    (
        "channels.discord.threadBindings.maxAgeHours",
        "channels.discord.thread_bindings.max_age_hours",
        Form::Count,
    ),
    (
        "channels.discord.threadBindings.spawnAcpSessions",
        "channels.discord.thread_bindings.spawn_acp_sessions",
        Form::Flag,
    ),
    (
        "channels.discord.threadBindings.spawnSessions",
        "channels.discord.thread_bindings.spawn_acp_sessions",
        Form::Flag,
    ),
    (
        "channels.discord.threadBindings.spawnSubagentSessions",
        "channels.discord.thread_bindings.spawn_subagent_sessions",
        Form::Flag,
    ),
    ("plugins.entries.acpx.config.permissionMode", "permission.mode", Form::Word),
    (
        "plugins.entries.acpx.config.nonInteractivePermissions",
        "permission.non_interactive_permissions",
        Form::Word,
    ),
    ("plugins.acpx.permissionMode", "permission.mode", Form::Word),
    ("plugins.acpx.nonInteractivePermissions", "permission.non_interactive_permissions", Form::Word),
];
/// Keys that hold the agents of the plugin.
const AGENTS: [&str; 2] = ["plugins.entries.acpx.config.agents", "plugins.acpx.agents"];

/// Settings to review.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigReview {
    /// Text of a `gateway.toml`.
    pub toml: String,
    /// Remarks about settings that are not in the text.
    pub notes: Vec<String>,
}

fn value_at<'a>(file: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(file, |value, name| value.get(name)).filter(|value| !value.is_null())
}

fn set_at(table: &mut Table, path: &str, value: toml::Value) {
    let (section, name) = path.rsplit_once('.').map_or((None, path), |(section, name)| (Some(section), name));
    let mut at = table;
    for name in section.iter().flat_map(|section| section.split('.')) {
        let next = at.entry(name).or_insert_with(|| toml::Value::Table(Table::new()));
        let toml::Value::Table(inner) = next else { return };
        at = inner;
    }
    at.entry(name).or_insert(value);
}

fn word(value: &Value) -> Option<toml::Value> {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"._:-".contains(&b);
    let text = value.as_str().filter(|text| !text.is_empty() && text.len() <= WORD_BYTES_MAX)?;
    text.bytes().all(is_plain).then(|| text.into())
}

fn converted(value: &Value, form: Form) -> Option<toml::Value> {
    #[expect(clippy::cast_possible_truncation, reason = "checked: the number is within 2^40")]
    let count =
        |number: f64| (0.0..1e12).contains(&number).then(|| toml::Value::Integer(number.ceil() as i64));
    match form {
        Form::Flag => value.as_bool().map(toml::Value::Boolean),
        Form::Count => value.as_f64().and_then(count),
        Form::Word => word(value),
        Form::Words => {
            let words: Option<Vec<toml::Value>> = value.as_array()?.iter().map(word).collect();
            words.map(toml::Value::Array)
        }
        Form::Flags => {
            let flags = value.as_object()?.iter().map(|(name, flag)| {
                let name = word(&Value::from(name.as_str()))?;
                Some((name.as_str()?.to_owned(), toml::Value::Boolean(flag.as_bool()?)))
            });
            flags.collect::<Option<Table>>().map(toml::Value::Table)
        }
    }
}

/// Reads `openclaw.json`.
pub fn config_review(file: &Value) -> ConfigReview {
    let (mut table, mut notes) = (Table::new(), Vec::new());
    for (theirs, ours, form) in KEYS {
        let Some(value) = value_at(file, theirs) else { continue };
        match converted(value, form) {
            Some(value) => set_at(&mut table, ours, value),
            None => notes.push(format!("{theirs} has a value that {ours} cannot have")),
        }
    }
    for path in AGENTS {
        let agents = value_at(file, path).and_then(Value::as_object);
        for (name, agent) in agents.into_iter().flatten() {
            let command = word(&Value::from(name.as_str())).zip(command_of(agent));
            match command {
                Some((name, (command, is_redacted))) => {
                    let name = name.as_str().unwrap_or_default().to_owned();
                    if is_redacted {
                        notes.push(format!("the command of agent {name} had a secret, shown as ***"));
                    }
                    set_at(&mut table, &format!("agents.{name}.command"), command);
                }
                None => notes.push(format!("an agent below {path} has no command that is taken over")),
            }
        }
    }
    if let Some(accounts) = value_at(file, "channels.discord.accounts").and_then(Value::as_object) {
        let names: Vec<&str> =
            accounts.keys().map(String::as_str).filter(|name| word(&Value::from(*name)).is_some()).collect();
        notes.push(format!(
            "accounts of Discord are not taken over ({}); `acp-gateway discord setup` writes one",
            names.join(", ")
        ));
    }
    let backend = value_at(file, "acp.backend").and_then(Value::as_str);
    if let Some(backend) = backend.filter(|backend| *backend != "direct") {
        let shown = if backend == "acpx" { "acpx" } else { "another one" };
        notes.push(format!(
            "acp.backend is {shown} at OpenClaw; imported sessions continue with direct, and new ones unless it is set"
        ));
    }
    ConfigReview { toml: toml::to_string(&table).unwrap_or_default(), notes }
}

/// Command of an agent, and true if a secret in it is redacted.
fn command_of(agent: &Value) -> Option<(toml::Value, bool)> {
    let fields = Fields::of(agent).ok()?;
    let mut argv = vec![fields.text("command").ok()??.to_owned()];
    for argument in fields.list("args").ok()?.into_iter().flatten() {
        argv.push(argument.as_str()?.to_owned());
    }
    let redacted = redact_argv(&argv, &[]);
    let is_redacted = redacted != argv;
    Some((toml::Value::Array(redacted.into_iter().map(toml::Value::String).collect()), is_redacted))
}
