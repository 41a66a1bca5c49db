//! Read-only check of a control plane's database: page integrity, schema, and the invariants of design §6
//! that the database alone can show.

use crate::db::Db;
use crate::error::StoreError;
use crate::schema::{self, DB_FILE};
use serde::Serialize;
use std::ops::ControlFlow;
use std::path::Path;

/// Maximum number of findings listed per rule.
const FOUND_MAX: usize = 20;

/// Result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckFinding {
    /// Stable name: `pages`, `schema`, `references`, `I1` …
    pub name: &'static str,
    /// Rule that must hold.
    pub rule: &'static str,
    /// Violations, at most 20 rows; empty if the rule holds.
    pub broken: Vec<String>,
}

impl CheckFinding {
    /// The broken rule and its violations on one line; `None` if the rule holds.
    pub fn violation(&self) -> Option<String> {
        let Self { name, rule, broken } = self;
        (!broken.is_empty()).then(|| format!("{name} {rule}: {}", broken.join(", ")))
    }
}

/// Report of a whole check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckReport {
    /// True if all rules hold.
    pub ok: bool,
    /// Schema version of the file.
    pub schema_version: i64,
    /// Size of the database, in bytes.
    pub bytes: u64,
    /// Results of the checks, in order.
    pub checks: Vec<CheckFinding>,
}

/// Rules as SQL text.
const INVARIANTS: &str = include_str!("invariants.sql");

/// Rule about rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowInvariant {
    /// Name: `I1` …
    pub name: &'static str,
    /// Rule that must hold.
    pub rule: &'static str,
    /// Query for the violating rows, as one text each.
    pub sql: &'static str,
}

/// Rules in order. Parts that only processes or channels can show (of I7 and I8) are not included.
pub fn invariants() -> impl Iterator<Item = RowInvariant> {
    INVARIANTS.split("\n\n").filter_map(|block| {
        let (head, sql) = block.trim().strip_prefix("-- ")?.split_once('\n')?;
        let (name, rule) = head.split_once(": ")?;
        name.starts_with('I').then_some(RowInvariant { name, rule, sql })
    })
}

/// Checks the integrity of the pages and returns the findings. `quick` reads each page; otherwise indexes are
/// verified too.
///
/// # Errors
/// SQLite errors, including damage that prevents the check itself.
pub fn pages(db: &Db, quick: bool) -> Result<Vec<String>, StoreError> {
    let name = if quick { "quick_check" } else { "integrity_check" };
    let found = texts(db, &format!("PRAGMA {name}({FOUND_MAX})"))?;
    Ok(found.into_iter().filter(|line| line != "ok").collect())
}

/// Checks the rules about rows.
///
/// # Errors
/// SQLite errors.
pub fn rules(db: &Db) -> Result<Vec<CheckFinding>, StoreError> {
    invariants()
        .map(|RowInvariant { name, rule, sql }| Ok(CheckFinding { name, rule, broken: texts(db, sql)? }))
        .collect()
}

/// Runs all checks on one snapshot. Damage is a finding, not an error.
///
/// # Errors
/// [`StoreError::File`] without a database; errors of opening the database.
pub fn check_database(dir: &Path, quick: bool) -> Result<CheckReport, StoreError> {
    let path = dir.join(DB_FILE);
    let meta = std::fs::metadata(&path).map_err(|error| StoreError::file("inspect", &path, error))?;
    let mut checks = Vec::new();
    let schema_version = match look_into(dir, quick, &mut checks) {
        Ok(version) => version,
        Err(StoreError::Damaged { why }) => {
            checks.push(CheckFinding { name: "pages", rule: "the file can be read", broken: vec![why] });
            0
        }
        Err(error) => return Err(error),
    };
    let ok = checks.iter().all(|check| check.broken.is_empty());
    Ok(CheckReport { ok, schema_version, bytes: meta.len(), checks })
}

fn look_into(dir: &Path, quick: bool, checks: &mut Vec<CheckFinding>) -> Result<i64, StoreError> {
    let db = schema::open_reader(dir)?;
    db.run("BEGIN", &[])?;
    let version = schema::version(&db)?;
    schema::refuse_foreign(&db, &dir.join(DB_FILE))?;
    schema::refuse_newer(&db)?;
    if version == 0 {
        return Err(StoreError::Damaged { why: "it is empty: it has no tables".to_owned() });
    }
    checks.push(CheckFinding {
        name: "pages",
        rule: "the pages and indexes are consistent",
        broken: pages(&db, quick)?,
    });
    let schema = if schema::is_current(version) { schema::differences(&db)? } else { Vec::new() };
    checks.push(CheckFinding {
        name: "schema",
        rule: "tables, indexes and triggers match this program's schema",
        broken: schema,
    });
    let references = "SELECT \"table\" || ' ' || coalesce(rowid, '') FROM pragma_foreign_key_check";
    checks.push(CheckFinding {
        name: "references",
        rule: "every reference has its row",
        broken: texts(&db, references)?,
    });
    if schema::is_current(version) {
        checks.append(&mut rules(&db)?);
    }
    Ok(version)
}

fn texts(db: &Db, sql: &str) -> Result<Vec<String>, StoreError> {
    let mut found = Vec::new();
    db.visit(sql, &[], |row| {
        if found.len() == FOUND_MAX {
            found.push("…".to_owned());
            return Ok(ControlFlow::Break(()));
        }
        found.push(row.only()?);
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_invariant_of_the_list_is_parsed() {
        let marks = INVARIANTS.lines().filter(|line| line.starts_with("-- I")).count();
        assert_eq!(invariants().count(), marks);
        let names: std::collections::BTreeSet<&str> = invariants().map(|rule| rule.name).collect();
        let want = ["I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8"];
        assert_eq!(names.into_iter().collect::<Vec<_>>(), want);
        assert!(invariants().all(|rule| rule.sql.starts_with("SELECT ") && rule.sql.ends_with(';')));
    }
}
