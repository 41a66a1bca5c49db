//! Builds a [`Config`] from file, environment and flags, with the origin of every value. Performs no I/O: the
//! texts are arguments.

use super::source::{Shape, Source, Sources, join, schema};
use super::{Config, check};
use crate::hex::hex;
use acp_shared::redact::hide_value;
use sha2::{Digest, Sha256};
use std::fmt;
use std::path::{Path, PathBuf};
use toml::de::{DeArray, DeTable, DeValue};

/// Prefix of environment variables that set a key: `ACP_HOST_ACP__DEFAULT_AGENT` sets `acp.default_agent`.
pub const ENV_PREFIX: &str = "ACP_HOST_";

/// Inputs of a configuration; later fields override earlier ones.
#[derive(Debug, Clone, Copy, Default)]
pub struct Inputs<'a> {
    /// Path and text of the file.
    pub file: Option<(&'a Path, &'a str)>,
    /// Process environment; variables without [`ENV_PREFIX`] are ignored.
    pub env: &'a [(String, String)],
    /// Values set by flags: key, flag, text.
    pub flags: &'a [(&'a [&'a str], &'a str, String)],
}

/// A valid configuration.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LoadedConfig {
    /// Values.
    pub config: Config,
    /// Origins of the values; a missing key has its default.
    pub sources: Sources,
    /// Configuration file.
    pub file: Option<LoadedFile>,
}

/// Configuration file as read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadedFile {
    /// Path of the file.
    pub path: PathBuf,
    /// SHA-256 of the text, in hexadecimal.
    pub sha256: String,
}

impl LoadedFile {
    /// Record of a file with this text.
    pub fn new(path: &Path, text: &str) -> Self {
        Self { path: path.to_path_buf(), sha256: hex(Sha256::digest(text.as_bytes())) }
    }
}

/// Mistake in a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Location of the mistake.
    pub source: Source,
    /// Description of the mistake.
    pub message: String,
}

/// All mistakes of an invalid configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError(pub Vec<Problem>);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.0.iter().enumerate() {
            let gap = if i == 0 { "" } else { "; " };
            write!(f, "{gap}{}: {}", problem.source, problem.message)?;
        }
        Ok(())
    }
}

/// Loads the configuration.
///
/// # Errors
/// All unknown keys, wrong types and values out of bounds, each with its location.
pub fn load(inputs: Inputs<'_>) -> Result<LoadedConfig, ConfigError> {
    let schema = schema().map_err(|e| fault(&e))?;
    let mut sources = Sources::new();
    let mut table = toml::Table::new();
    if let Some((path, text)) = inputs.file {
        table = read_file(path, text, &schema, &mut sources)?;
    }
    let mut problems = Vec::new();
    for (name, value) in inputs.env {
        match env_key(name, &schema) {
            None => {}
            Some(Err(message)) => {
                problems.push(Problem { source: Source::Env { name: name.clone() }, message })
            }
            Some(Ok((key, default))) => {
                let source = Source::Env { name: name.clone() };
                match from_text(value, &key, default) {
                    Ok(value) => set(&mut table, &key, value, source, &mut sources),
                    Err(message) => problems.push(Problem { source, message }),
                }
            }
        }
    }
    for (key, flag, text) in inputs.flags {
        let key: Vec<String> = key.iter().map(|&segment| segment.to_owned()).collect();
        let source = Source::Flag { name: (*flag).to_owned() };
        set(&mut table, &key, toml::Value::String(text.clone()), source, &mut sources);
    }
    if !problems.is_empty() {
        return Err(ConfigError(problems));
    }
    let config: Config = table.try_into().map_err(|e: toml::de::Error| fault(&e))?;
    let problems: Vec<Problem> = check::check(&config)
        .into_iter()
        .map(|(key, message)| Problem {
            source: nearest_source(&key, &sources),
            message: format!("{}: {message}", join(&key)),
        })
        .collect();
    let file = inputs.file.map(|(path, text)| LoadedFile::new(path, text));
    if problems.is_empty() { Ok(LoadedConfig { config, sources, file }) } else { Err(ConfigError(problems)) }
}

/// Returns the origin of a key, of a key below it, or of a section above it.
pub fn nearest_source(key: &[String], sources: &Sources) -> Source {
    let beneath = || sources.iter().find(|(path, _)| path.starts_with(key)).map(|(_, source)| source);
    let above = || (1..key.len()).rev().find_map(|end| sources.get(&key[..end]));
    let found = sources.get(key).or_else(beneath).or_else(above);
    found.cloned().unwrap_or(Source::Default)
}

fn fault(error: &dyn fmt::Display) -> ConfigError {
    ConfigError(vec![Problem { source: Source::Default, message: hide_value(error.to_string().trim()) }])
}

fn line_of(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|&b| b == b'\n').count() + 1
}

fn read_file(
    path: &Path,
    text: &str,
    schema: &Shape,
    sources: &mut Sources,
) -> Result<toml::Table, ConfigError> {
    let at = |offset: usize| Source::File { path: path.to_owned(), line: line_of(text, offset) };
    let bad = |e: &toml::de::Error| {
        let source = at(e.span().map_or(0, |span| span.start));
        ConfigError(vec![Problem { source, message: hide_value(e.message()) }])
    };
    let tree = DeTable::parse(text).map_err(|e| bad(&e))?;
    let mut walk = ValueWalker { at: &at, sources, problems: Vec::new() };
    walk.table(&mut Vec::new(), tree.get_ref(), schema);
    if !walk.problems.is_empty() {
        return Err(ConfigError(walk.problems));
    }
    // Checks types here, since errors still have line numbers.
    toml::from_str::<Config>(text).map_err(|e| bad(&e))?;
    text.parse::<toml::Table>().map_err(|e| bad(&e))
}

struct ValueWalker<'a> {
    at: &'a dyn Fn(usize) -> Source,
    sources: &'a mut Sources,
    problems: Vec<Problem>,
}

impl ValueWalker<'_> {
    fn table(&mut self, path: &mut Vec<String>, table: &DeTable<'_>, shape: &Shape) {
        for (key, value) in table {
            path.push(key.get_ref().to_string());
            let inner = match shape {
                Shape::Leaf(_) => None,
                Shape::Named(each) | Shape::List(each) => Some(each.as_ref()),
                Shape::Section(keys) => {
                    let known = keys.get(key.get_ref().as_ref());
                    if known.is_none() {
                        let message = unknown(path, keys.keys().map(String::as_str));
                        self.problems.push(Problem { source: (self.at)(key.span().start), message });
                        path.pop();
                        continue;
                    }
                    known
                }
            };
            match (value.get_ref(), inner) {
                (DeValue::Table(table), Some(shape)) => self.table(path, table, shape),
                (DeValue::Table(table), None) => self.table(path, table, shape),
                (DeValue::Array(entries), Some(Shape::List(each))) => self.list(path, entries, each),
                _ => {
                    self.sources.insert(path.clone(), (self.at)(value.span().start));
                }
            }
            path.pop();
        }
    }

    /// Walks an array of sections. Other entries are left to the type check.
    fn list(&mut self, path: &mut Vec<String>, entries: &DeArray<'_>, each: &Shape) {
        for (number, entry) in entries.iter().enumerate() {
            path.push(number.to_string());
            self.sources.insert(path.clone(), (self.at)(entry.span().start));
            if let DeValue::Table(table) = entry.get_ref() {
                self.table(path, table, each);
            }
            path.pop();
        }
    }
}

fn unknown<'a>(path: &[String], known: impl Iterator<Item = &'a str>) -> String {
    let (above, last) = path.split_at(path.len().saturating_sub(1));
    let last = last.first().map_or("", String::as_str);
    if matches!(last, "ttl_hours" | "ttlHours") && above.iter().any(|it| it == "thread_bindings") {
        let at = |key: &str| join(&above.iter().cloned().chain([key.to_owned()]).collect::<Vec<_>>());
        return format!(
            "the key `{}` was replaced: `{}` counts from the last activity, `{}` from the start of the binding; \
             ttlHours is now the first",
            join(path),
            at("idle_hours"),
            at("max_age_hours")
        );
    }
    let nearest = known
        .map(|key| (strsim::jaro_winkler(last, key), key))
        .filter(|(score, _)| *score > 0.6)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    match nearest {
        None => format!("unknown key `{}`", join(path)),
        Some((_, key)) => {
            let meant: Vec<String> = above.iter().cloned().chain([key.to_owned()]).collect();
            format!("unknown key `{}`; did you mean `{}`?", join(path), join(&meant))
        }
    }
}

type EnvKey<'a> = Result<(Vec<String>, &'a serde_json::Value), String>;

/// Key set by a variable; `None` if the variable is not a configuration variable.
fn env_key<'a>(name: &str, schema: &'a Shape) -> Option<EnvKey<'a>> {
    let rest = name.strip_prefix(ENV_PREFIX)?;
    if !rest.contains("__") {
        return None;
    }
    let wanted = rest.to_ascii_lowercase().replace("__", ".");
    let leaves = schema.leaves();
    if let Some((key, default)) = leaves.iter().find(|(key, _)| key.join(".") == wanted) {
        return Some(Ok((key.clone(), default)));
    }
    let nearest = leaves
        .iter()
        .map(|(key, _)| key.join("__"))
        .max_by(|a, b| strsim::jaro_winkler(a, &wanted).total_cmp(&strsim::jaro_winkler(b, &wanted)))
        .unwrap_or_default();
    Some(Err(format!("sets no known key; did you mean `{ENV_PREFIX}{}`?", nearest.to_ascii_uppercase())))
}

fn from_text(text: &str, key: &[String], default: &serde_json::Value) -> Result<toml::Value, String> {
    let as_text = toml::Value::String(text.to_owned());
    if default.is_string() {
        return Ok(as_text);
    }
    let parsed: Result<toml::Table, _> = format!("value = {text}").parse();
    let value = parsed.ok().filter(|table| table.len() == 1).and_then(|mut table| table.remove("value"));
    if default.is_null() {
        // A null default does not reveal the type: tries text first, then a TOML value.
        let fits = |value: &toml::Value| {
            let mut table = toml::Table::new();
            set(&mut table, key, value.clone(), Source::Default, &mut Sources::new());
            table.try_into::<Config>().is_ok()
        };
        let found = std::iter::once(as_text).chain(value).find(fits);
        return found
            .ok_or_else(|| format!("{text:?} is not a valid value: write it as in the configuration file"));
    }
    value
        .filter(|value| value.is_bool() == default.is_boolean())
        .filter(|value| value.is_integer() == default.is_number())
        .ok_or_else(|| {
            format!("{text:?} is not a valid value: write it as in the configuration file, e.g. {default}")
        })
}

fn set(table: &mut toml::Table, key: &[String], value: toml::Value, source: Source, sources: &mut Sources) {
    let Some((last, above)) = key.split_last() else { return };
    let mut table = table;
    for segment in above {
        let entry = table.entry(segment.clone()).or_insert_with(|| toml::Value::Table(toml::Table::new()));
        // After the check of the file, sections are tables.
        let toml::Value::Table(inner) = entry else { return };
        table = inner;
    }
    table.insert(last.clone(), value);
    sources.insert(key.to_vec(), source);
}
