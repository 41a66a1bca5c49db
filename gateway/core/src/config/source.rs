//! Schema of the configuration keys, and the origin of each value.

use super::HostConfig;
use super::channels::{Account, DiscordAccount, Project};
use crate::config::{AgentConfig, Binding, Config, McpServer, NotifyTarget, mcp};
use crate::failure::Failure;
use acp_shared::codes::Code;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Origin of a value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Source {
    /// Default; not set anywhere.
    Default,
    /// Table of built-in agents.
    BuiltIn,
    /// Configuration file.
    File {
        /// Path of the file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
    },
    /// Environment variable.
    Env {
        /// Name of the variable.
        name: String,
    },
    /// Command-line flag.
    Flag {
        /// Name of the flag.
        name: String,
    },
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::BuiltIn => f.write_str("table of built-in agents"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Env { name } | Self::Flag { name } => f.write_str(name),
        }
    }
}

impl Source {
    /// Builds a failure whose text names this origin. Conversations see it without the directory of the file.
    pub fn failure(&self, code: Code, text: impl Fn(&str) -> String) -> Failure {
        let shown = match self {
            Self::File { path, line } => format!("{}:{line}", path.file_name().unwrap_or_default().display()),
            Self::Default | Self::BuiltIn | Self::Env { .. } | Self::Flag { .. } => self.to_string(),
        };
        Failure::new(code, text(&self.to_string())).for_conversations(text(&shown)).origin("gateway")
    }
}

/// Origins of all values that are not defaults, by key.
pub type Sources = BTreeMap<Vec<String>, Source>;

/// Formats a key for people: segments joined by dots, quoted if a segment has special characters.
pub fn join(path: &[String]) -> String {
    let quoted = path.iter().map(|segment| {
        let plain = segment.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        if plain && !segment.is_empty() { segment.clone() } else { format!("\"{segment}\"") }
    });
    quoted.collect::<Vec<_>>().join(".")
}

/// Expected structure at a key.
#[derive(Debug, Clone)]
pub enum Shape {
    /// Value (or table with arbitrary keys), with its default.
    Leaf(Value),
    /// Section with these keys.
    Section(BTreeMap<String, Shape>),
    /// Table with arbitrary keys, each a section.
    Named(Box<Shape>),
    /// Array of sections, `[[…]]`; indexes start at 0.
    List(Box<Shape>),
}

/// Builds the schema of all keys from the defaults.
///
/// # Errors
/// The defaults cannot be serialized as JSON: a bug in this program.
pub fn schema() -> Result<Shape, serde_json::Error> {
    let mut root = shape(serde_json::to_value(Config::default())?);
    let mut agent = shape(serde_json::to_value(AgentConfig::default())?);
    let servers = Shape::List(Box::new(shape(serde_json::to_value(McpServer::default())?)));
    agent.replace(&["mcp_servers"], servers.clone());
    let account = shape(serde_json::to_value(Account::default())?);
    let binding = shape(serde_json::to_value(Binding::default())?);
    root.replace(&["mcp_servers"], servers);
    let target = shape(serde_json::to_value(NotifyTarget::default())?);
    root.replace(&["notify"], Shape::List(Box::new(target)));
    root.replace(&["bindings"], Shape::List(Box::new(binding)));
    let project = shape(serde_json::to_value(Project::default())?);
    root.replace(&["channels", "discord", "projects"], Shape::List(Box::new(project)));
    root.replace(&["agents"], Shape::Named(Box::new(agent)));
    let host = shape(serde_json::to_value(HostConfig::default())?);
    root.replace(&["remote", "hosts"], Shape::Named(Box::new(host)));
    let bot = shape(serde_json::to_value(DiscordAccount::default())?);
    for (channel, account) in [("console", account), ("discord", bot)] {
        root.replace(&["channels", channel, "accounts"], Shape::Named(Box::new(account)));
    }
    Ok(root)
}

fn shape(value: Value) -> Shape {
    match value {
        Value::Object(map) if !map.is_empty() => {
            Shape::Section(map.into_iter().map(|(key, value)| (key, shape(value))).collect())
        }
        leaf => Shape::Leaf(leaf),
    }
}

impl Shape {
    fn replace(&mut self, path: &[&str], with: Self) {
        match (self, path) {
            (this, []) => *this = with,
            (Self::Section(keys), [first, rest @ ..]) => {
                if let Some(inner) = keys.get_mut(*first) {
                    inner.replace(rest, with);
                }
            }
            (Self::Leaf(_) | Self::Named(_) | Self::List(_), _) => {}
        }
    }

    /// Keys of all leaves outside of tables with arbitrary keys, with their defaults.
    pub fn leaves(&self) -> Vec<(Vec<String>, &Value)> {
        let mut found = Vec::new();
        self.collect(&mut Vec::new(), &mut found);
        found
    }

    fn collect<'a>(&'a self, path: &mut Vec<String>, found: &mut Vec<(Vec<String>, &'a Value)>) {
        match self {
            Self::Leaf(value) => found.push((path.clone(), value)),
            Self::Named(_) | Self::List(_) => {}
            Self::Section(keys) => {
                for (key, shape) in keys {
                    path.push(key.clone());
                    shape.collect(path, found);
                    path.pop();
                }
            }
        }
    }
}

/// Line of `config show`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ShownValue {
    /// Key.
    pub key: String,
    /// Value; secrets in an agent's environment are hidden.
    pub value: Value,
    /// Origin of the value.
    pub source: Source,
}

/// All values with their origins, in the order of the keys. Hides values of `agents.NAME.env`, those passed to MCP
/// servers and addresses of webhooks, since they may be secrets.
///
/// # Errors
/// The configuration cannot be serialized as JSON: a bug in this program.
pub fn shown(config: &Config, sources: &Sources) -> Result<Vec<ShownValue>, serde_json::Error> {
    let mut rows = Vec::new();
    flatten(&mut Vec::new(), serde_json::to_value(config)?, sources, &mut rows);
    Ok(rows)
}

fn flatten(path: &mut Vec<String>, value: Value, sources: &Sources, rows: &mut Vec<ShownValue>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, value) in map {
                path.push(key);
                flatten(path, value, sources, rows);
                path.pop();
            }
        }
        Value::Array(entries) if entries.iter().any(Value::is_object) => {
            for (number, entry) in entries.into_iter().enumerate() {
                path.push(number.to_string());
                flatten(path, entry, sources, rows);
                path.pop();
            }
        }
        value => {
            let secret =
                matches!(path.as_slice(), [first, _, third, _, ..] if first == "agents" && third == "env");
            let secret = secret || (mcp::is_secret(path) && !is_unset(&value));
            let value = if secret { Value::String("***".to_owned()) } else { value };
            let source = sources.get(path.as_slice()).cloned().unwrap_or(Source::Default);
            let key = join(path);
            rows.push(ShownValue { key, value, source });
        }
    }
}

/// True for `null` and for empty lists and tables.
fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}
