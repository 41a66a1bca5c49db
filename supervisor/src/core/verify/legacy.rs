//! Records from before there were leases: a pid, a wrapper's directory or a command string, and nothing that could not
//! be another process's by now. They are believed only where something that runs agrees with them:
//!
//! - the root process must run;
//! - where a generated wrapper is expected, it must be one of that wrapper root;
//! - elsewhere its argv must be the command, compared as a vector, and say more than the name of a program;
//! - a pid alone is never enough, and what belongs to a lease, to another user or cannot be read is left alone.
//!
//! Source: seed 001, "Compatibility Notes".

use super::{Evidence, Guard, Life, Marker, Verdict, owned};
use serde::Deserialize;
use std::path::{Component, Path};

/// Programs that run a generated wrapper, which then is their first argument that is no option.
const INTERPRETERS: &[&str] = &["node", "bun", "deno"];

/// One legacy record, as session and process files of OpenClaw and acpx have it. What it says beyond this is nobody's
/// business here.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct Record {
    /// The session, for people.
    #[serde(alias = "sessionKey", alias = "session_key", alias = "acpx_record_id", alias = "acpxRecordId")]
    pub session: Option<String>,
    /// Its lease: with one it is no legacy record.
    #[serde(alias = "leaseId")]
    pub lease_id: Option<String>,
    /// The root process.
    #[serde(alias = "rootPid", alias = "root_pid")]
    pub pid: Option<i64>,
    /// Where the generated wrapper lies, if one is expected.
    #[serde(alias = "wrapperRoot")]
    pub wrapper_root: Option<String>,
    /// The wrapper itself.
    #[serde(alias = "wrapperPath")]
    pub wrapper_path: Option<String>,
    /// What was run, as one string with a shell's quotes.
    #[serde(alias = "agent_command", alias = "agentCommand", alias = "rootCommand")]
    pub command: Option<String>,
    /// The same as a vector.
    #[serde(alias = "agent_argv", alias = "agentArgv")]
    pub argv: Option<Vec<String>>,
    /// Which process the pid meant.
    #[serde(alias = "processIdentity")]
    pub identity: Option<RecordedIdentity>,
}

/// Which process a pid meant when it was recorded.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RecordedIdentity {
    /// The boot.
    #[serde(alias = "bootId")]
    pub boot_id: String,
    /// When it started, in clock ticks since then.
    #[serde(alias = "startTicks")]
    pub start_ticks: u64,
}

/// What is read of a process for the sake of such a record, through the same handle as the rest.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Particulars {
    /// Its arguments.
    pub argv: Option<Vec<String>>,
    /// Its user.
    pub uid: Option<u32>,
}

/// Whether the process that a legacy record speaks of is the one that is there now. `owner` is the user whose record
/// it is.
#[must_use]
pub fn verify_legacy(
    record: &Record,
    owner: u32,
    now: &Evidence,
    live: &Particulars,
    guard: &Guard,
) -> Verdict {
    if record.lease_id.is_some() {
        return Verdict::NotOurs("it has a lease, and is that lease's business");
    }
    if record.pid != Some(i64::from(now.pid)) {
        return Verdict::NotOurs("another number was looked at");
    }
    if let Some(why) = guard.forbids(now.pid) {
        return Verdict::NotOurs(why);
    }
    match now.life {
        Life::Gone => return Verdict::Gone("there is no such process"),
        Life::Zombie => return Verdict::Gone("it is dead and only waits to be reaped"),
        Life::Unreadable => return Verdict::Unknown("the process cannot be read"),
        Life::Running => {}
    }
    if let Err(verdict) = same_process(record, now).and_then(|()| free(now)) {
        return verdict;
    }
    match live.uid {
        None => return Verdict::Unknown("its user cannot be read"),
        Some(uid) if uid != owner => return Verdict::NotOurs("it belongs to another user than the record"),
        Some(_) => {}
    }
    let Some(argv) = &live.argv else { return Verdict::Unknown("its arguments cannot be read") };
    let agrees = match &record.wrapper_root {
        Some(root) => wrapper_agrees(record, Path::new(root), argv, now.exe.as_deref()),
        None => command_agrees(record, argv),
    };
    agrees.map_or_else(|verdict| verdict, |()| owned(now, guard))
}

/// A child of a verified process of such a tree, which still held its number after the evidence was read.
#[must_use]
pub fn verify_legacy_child(parent: i32, now: &Evidence, guard: &Guard) -> Verdict {
    match now.life {
        Life::Gone => Verdict::Gone("there is no such process"),
        Life::Zombie => Verdict::Gone("it is dead and only waits to be reaped"),
        Life::Unreadable => Verdict::Unknown("the process cannot be read"),
        Life::Running if now.ppid != Some(parent) => {
            Verdict::NotOurs("nothing proves that it belongs to the tree")
        }
        Life::Running => free(now).map_or_else(|verdict| verdict, |()| owned(now, guard)),
    }
}

fn same_process(record: &Record, now: &Evidence) -> Result<(), Verdict> {
    let Some(recorded) = &record.identity else { return Ok(()) };
    let Some(here) = &now.scope else {
        return Err(Verdict::Unknown("boot id or pid namespace cannot be read"));
    };
    if here.boot_id != recorded.boot_id {
        return Err(Verdict::Gone("the machine was started anew since"));
    }
    match now.start_ticks {
        None => Err(Verdict::Unknown("the start time cannot be read")),
        Some(ticks) if ticks != recorded.start_ticks => {
            Err(Verdict::NotOurs("the number was given to another process (start time)"))
        }
        Some(_) => Ok(()),
    }
}

/// What carries the mark of a lease, or may carry one, is not a legacy record's.
fn free(now: &Evidence) -> Result<(), Verdict> {
    match now.marker {
        Marker::Missing => Ok(()),
        Marker::Pair { .. } | Marker::Ambiguous => Err(Verdict::NotOurs("its environment names a lease")),
        Marker::Unreadable => Err(Verdict::Unknown("its environment cannot be read")),
    }
}

fn wrapper_agrees(record: &Record, root: &Path, argv: &[String], exe: Option<&str>) -> Result<(), Verdict> {
    if !root.is_absolute() || root.parent().is_none() || !is_plain(root) {
        return Err(Verdict::Unknown("the wrapper root of the record is no directory of its own"));
    }
    let Some(exe) = exe else { return Err(Verdict::Unknown("its program cannot be read")) };
    // A program that was replaced since it was started is still the one that was started.
    let exe = Path::new(exe.strip_suffix(" (deleted)").unwrap_or(exe));
    let below = |path: &Path| is_plain(path) && path != root && path.starts_with(root);
    let runs_script = exe.file_name().and_then(|n| n.to_str()).is_some_and(|n| INTERPRETERS.contains(&n));
    let script = argv.iter().skip(1).find(|arg| !arg.starts_with('-')).filter(|_| runs_script).map(Path::new);
    let wrapper = if below(exe) { Some(exe) } else { script.filter(|path| below(path)) };
    let Some(wrapper) = wrapper else { return Err(Verdict::NotOurs("it is no wrapper of that root")) };
    match &record.wrapper_path {
        Some(path) if Path::new(path) != wrapper => {
            Err(Verdict::NotOurs("it is another wrapper of that root"))
        }
        Some(_) | None => Ok(()),
    }
}

fn is_plain(path: &Path) -> bool {
    path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
}

fn command_agrees(record: &Record, live: &[String]) -> Result<(), Verdict> {
    let stored = match (&record.argv, &record.command) {
        (Some(argv), _) => argv.clone(),
        (None, Some(command)) => {
            split(command).ok_or(Verdict::Unknown("the command of the record cannot be read"))?
        }
        (None, None) => return Err(Verdict::Unknown("the record has a pid and nothing to compare")),
    };
    if stored != live {
        return Err(Verdict::NotOurs("it runs another command"));
    }
    if stored.len() < 2 && record.identity.is_none() {
        return Err(Verdict::Unknown("the name of a program alone proves nothing"));
    }
    Ok(())
}

/// Splits a command into its words as a shell would that expands nothing. `None` for what cannot be split, or asks
/// for more than splitting.
#[must_use]
pub fn split(command: &str) -> Option<Vec<String>> {
    let (mut words, mut word): (Vec<String>, Option<String>) = (Vec::new(), None);
    let mut chars = command.chars();
    while let Some(c) = chars.next() {
        match c {
            ' ' | '\t' | '\n' => words.extend(word.take()),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next()? {
                        '\'' => break,
                        c => word.push(c),
                    }
                }
            }
            '"' => quoted(&mut chars, word.get_or_insert_default())?,
            '\\' => word.get_or_insert_default().push(chars.next()?),
            ';' | '&' | '|' | '<' | '>' | '$' | '`' | '(' | ')' => return None,
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    (!words.is_empty()).then_some(words)
}

fn quoted(chars: &mut std::str::Chars<'_>, word: &mut String) -> Option<()> {
    loop {
        match chars.next()? {
            '"' => return Some(()),
            '$' | '`' => return None,
            '\\' => match chars.next()? {
                c @ ('"' | '\\' | '$' | '`') => word.push(c),
                c => word.extend(['\\', c]),
            },
            c => word.push(c),
        }
    }
}

#[cfg(test)]
#[path = "legacy_tests.rs"]
mod tests;
