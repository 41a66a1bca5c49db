//! Positions of settings in the configuration file, for error messages.

use super::ConfigError;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// Position in a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigLocation {
    /// Path of the file.
    pub file: PathBuf,
    /// Line number, from 1, if known.
    pub line: Option<usize>,
}

impl std::fmt::Display for ConfigLocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let file = self.file.display();
        match self.line {
            Some(line) => write!(f, "the configuration {file}, line {line},"),
            None => write!(f, "the configuration {file}"),
        }
    }
}

/// File that a configuration was read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    path: PathBuf,
    /// Line number of each `[[tenant]]`.
    tenants: Vec<usize>,
}

impl Origin {
    pub(super) fn new(path: &Path, text: &str) -> Self {
        Self { path: path.to_owned(), tenants: tenants(text) }
    }

    /// Returns the position of a tenant.
    pub(super) fn of_tenant(&self, at: usize) -> ConfigLocation {
        ConfigLocation { file: self.path.clone(), line: self.tenants.get(at).copied() }
    }
}

impl ConfigError {
    /// Adds the position of the error. Errors that already name the file stay unchanged.
    pub(super) fn with_location(self, path: &Path, text: &str) -> Self {
        let line = match &self {
            Self::Read { .. } | Self::At { .. } => return self,
            Self::Parse { line, .. } => *line,
            Self::UnknownKey { key, .. } => line_of(text, key),
            Self::OutOfBounds { key, .. } | Self::Value { key, .. } => line_of(text, key),
            Self::Tenant { number, .. } => tenants(text).get(number.saturating_sub(1)).copied(),
        };
        Self::At { place: ConfigLocation { file: path.to_owned(), line }, source: Box::new(self) }
    }
}

/// Returns the line number of a byte position.
pub(super) fn line_at(text: &str, position: usize) -> usize {
    text.bytes().take(position).filter(|byte| *byte == b'\n').count() + 1
}

/// Returns the line of the first key with this name; `tenant.NAME` is looked up in all tenants, in order.
fn line_of(text: &str, key: &str) -> Option<usize> {
    let table = DeTable::parse(text).ok()?;
    let line = |table: &DeTable<'_>, name: &str| {
        let key = table.keys().find(|key| key.get_ref().as_ref() == name)?;
        Some(line_at(text, key.span().start))
    };
    match key.strip_prefix("tenant.") {
        None => line(table.get_ref(), key),
        Some(name) => each_tenant(table.get_ref()).find_map(|(_, tenant)| line(tenant, name)),
    }
}

/// Returns the line of each `[[tenant]]`.
fn tenants(text: &str) -> Vec<usize> {
    let Ok(table) = DeTable::parse(text) else { return Vec::new() };
    each_tenant(table.get_ref()).map(|(position, _)| line_at(text, position)).collect()
}

fn each_tenant<'a, 'i>(table: &'a DeTable<'i>) -> impl Iterator<Item = (usize, &'a DeTable<'i>)> {
    let tenants = table.iter().find(|(key, _)| key.get_ref().as_ref() == "tenant");
    let tenants = tenants.and_then(|(_, value)| value.get_ref().as_array());
    tenants.into_iter().flat_map(|all| all.iter()).filter_map(|tenant| match tenant.get_ref() {
        DeValue::Table(of) => Some((tenant.span().start, of)),
        _ => None,
    })
}
