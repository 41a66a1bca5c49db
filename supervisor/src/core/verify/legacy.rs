//! Verification of records from before leases existed. They contain only a pid, a wrapper directory or a
//! command string, all of which another process may match by now. A record is believed only if a running
//! process agrees:
//!
//! - the root process must run;
//! - if a generated wrapper is expected, the process must be a wrapper of that wrapper root;
//! - otherwise its argv must equal the recorded command as a vector (a program name alone is not enough);
//! - a pid alone is never enough, and a process with a lease, of another user, or unreadable is left alone;
//! - a record of OpenClaw's `process-leases.json` has a lease id, which no supervisor of ours knows. Its process must have
//!   that lease and gateway in its environment and in its arguments, and be the recorded wrapper below the recorded root.
//!
//! Source: seed 001, "Compatibility Notes".

use super::{Evidence, Marker, ProcessState, SignalGuard, Verdict, owned};
use serde::Deserialize;
use std::path::{Component, Path};

/// Programs that run a generated wrapper, which then is their first non-option argument.
const INTERPRETERS: &[&str] = &["node", "bun", "deno"];

/// Option of OpenClaw's wrappers with the lease id.
const LEASE_ARGUMENT: &str = "--openclaw-acpx-lease-id";
/// Option of OpenClaw's wrappers with the gateway instance id.
const GATEWAY_ARGUMENT: &str = "--openclaw-gateway-instance-id";

/// Legacy record in the session and process files of OpenClaw and acpx. Other fields are ignored.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct LegacyRecord {
    /// Session, for reports.
    #[serde(alias = "sessionKey", alias = "session_key", alias = "acpx_record_id", alias = "acpxRecordId")]
    pub session: Option<String>,
    /// Lease of OpenClaw. Such a record is believed only with all of the gateway, the wrapper and its root.
    #[serde(alias = "leaseId")]
    pub lease_id: Option<String>,
    /// Gateway instance of that lease.
    #[serde(alias = "gatewayInstanceId", alias = "gateway_instance_id")]
    pub gateway: Option<String>,
    /// State of that lease: `open`, `closing`, `closed` or `lost`.
    pub state: Option<String>,
    /// Root process.
    #[serde(alias = "rootPid", alias = "root_pid")]
    pub pid: Option<i64>,
    /// Directory of the generated wrapper, if one is expected.
    #[serde(alias = "wrapperRoot")]
    pub wrapper_root: Option<String>,
    /// Path of the wrapper.
    #[serde(alias = "wrapperPath")]
    pub wrapper_path: Option<String>,
    /// Command line as one string with shell quoting.
    #[serde(alias = "agent_command", alias = "agentCommand", alias = "rootCommand")]
    pub command: Option<String>,
    /// Command line as a vector.
    #[serde(alias = "agent_argv", alias = "agentArgv")]
    pub argv: Option<Vec<String>>,
    /// Identity of the process at the time of recording.
    #[serde(alias = "processIdentity")]
    pub identity: Option<RecordedIdentity>,
}

/// Identity of a process at the time of recording.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RecordedIdentity {
    /// Boot id.
    #[serde(alias = "bootId")]
    pub boot_id: String,
    /// Start time, in clock ticks since boot.
    #[serde(alias = "startTicks")]
    pub start_ticks: u64,
}

/// Additional facts about a process that legacy records need, read through the same handle as the evidence.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LegacyFacts {
    /// Arguments of the process.
    pub argv: Option<Vec<String>>,
    /// User id of the process.
    pub uid: Option<u32>,
}

/// Decides whether the current process with a legacy record's pid is the recorded one. `owner` is the user
/// that the record belongs to.
#[must_use]
pub fn verify_legacy(
    record: &LegacyRecord,
    owner: u32,
    now: &Evidence,
    live: &LegacyFacts,
    guard: &SignalGuard,
) -> Verdict {
    if let Err(verdict) = check_lease(record) {
        return verdict;
    }
    if record.pid != Some(i64::from(now.pid)) {
        return Verdict::NotOurs("another pid was examined");
    }
    if let Some(why) = guard.forbids(now.pid) {
        return Verdict::NotOurs(why);
    }
    match now.life {
        ProcessState::Gone => return Verdict::Gone("there is no such process"),
        ProcessState::Zombie => return Verdict::Gone("it is a zombie"),
        ProcessState::Unreadable => return Verdict::Unknown("the process cannot be read"),
        ProcessState::Running => {}
    }
    if let Err(verdict) = same_process(record, now).and_then(|()| marker_agrees(record, now)) {
        return verdict;
    }
    match live.uid {
        None => return Verdict::Unknown("its user cannot be read"),
        Some(uid) if uid != owner => return Verdict::NotOurs("it belongs to another user than the record"),
        Some(_) => {}
    }
    let Some(argv) = &live.argv else { return Verdict::Unknown("its arguments cannot be read") };
    if let Some(lease) = &record.lease_id
        && !has_argument(argv, LEASE_ARGUMENT, lease)
    {
        return Verdict::NotOurs("its arguments do not name the lease");
    }
    if let Some(gateway) = record.gateway.as_ref().filter(|_| record.lease_id.is_some())
        && !has_argument(argv, GATEWAY_ARGUMENT, gateway)
    {
        return Verdict::NotOurs("its arguments do not name the gateway");
    }
    let agrees = match &record.wrapper_root {
        Some(root) => wrapper_agrees(record, Path::new(root), argv, now.exe.as_deref()),
        None => command_agrees(record, argv),
    };
    agrees.map_or_else(|verdict| verdict, |()| owned(now, guard))
}

/// Decides about a child of a verified legacy process of this record. The parent must still have its pid after the
/// evidence was read.
#[must_use]
pub fn verify_legacy_child(
    record: &LegacyRecord,
    parent: i32,
    now: &Evidence,
    guard: &SignalGuard,
) -> Verdict {
    match now.life {
        ProcessState::Gone => Verdict::Gone("there is no such process"),
        ProcessState::Zombie => Verdict::Gone("it is a zombie"),
        ProcessState::Unreadable => Verdict::Unknown("the process cannot be read"),
        ProcessState::Running if now.ppid != Some(parent) => {
            Verdict::NotOurs("nothing proves that it belongs to the tree")
        }
        // A child may have cleared its environment; one with another lease belongs to that.
        ProcessState::Running if now.marker == Marker::Missing => owned(now, guard),
        ProcessState::Running => {
            marker_agrees(record, now).map_or_else(|verdict| verdict, |()| owned(now, guard))
        }
    }
}

fn same_process(record: &LegacyRecord, now: &Evidence) -> Result<(), Verdict> {
    let Some(recorded) = &record.identity else { return Ok(()) };
    let Some(here) = &now.scope else {
        return Err(Verdict::Unknown("boot id or pid namespace cannot be read"));
    };
    if here.boot_id != recorded.boot_id {
        return Err(Verdict::Gone("the machine has been rebooted since"));
    }
    match now.start_ticks {
        None => Err(Verdict::Unknown("the start time cannot be read")),
        Some(ticks) if ticks != recorded.start_ticks => {
            Err(Verdict::NotOurs("the pid was reused by another process (start time)"))
        }
        Some(_) => Ok(()),
    }
}

/// Rejects incomplete records of OpenClaw's leases, and those of ended ones.
fn check_lease(record: &LegacyRecord) -> Result<(), Verdict> {
    if record.lease_id.is_none() {
        return Ok(());
    }
    let has = |field: &Option<String>| field.as_ref().is_some_and(|text| !text.is_empty());
    if ![&record.lease_id, &record.gateway, &record.wrapper_root, &record.wrapper_path].into_iter().all(has) {
        return Err(Verdict::NotOurs("its lease names no gateway, wrapper or wrapper root"));
    }
    if record.state.as_deref() == Some("closed") {
        return Err(Verdict::NotOurs("its lease is closed"));
    }
    Ok(())
}

/// Compares the lease marker of a process with the record: a record without a lease describes a process without one.
fn marker_agrees(record: &LegacyRecord, now: &Evidence) -> Result<(), Verdict> {
    match (&now.marker, &record.lease_id) {
        (Marker::Missing, None) => Ok(()),
        (Marker::Pair { lease, gateway }, Some(of))
            if lease == of && Some(gateway) == record.gateway.as_ref() =>
        {
            Ok(())
        }
        (Marker::Pair { .. } | Marker::Ambiguous, None) => {
            Err(Verdict::NotOurs("its environment names a lease"))
        }
        (Marker::Missing | Marker::Pair { .. } | Marker::Ambiguous, Some(_)) => {
            Err(Verdict::NotOurs("its environment does not name the lease"))
        }
        (Marker::Unreadable, _) => Err(Verdict::Unknown("its environment cannot be read")),
    }
}

/// True if the arguments contain this option exactly once, with this value: `--name value` or `--name=value`.
fn has_argument(argv: &[String], name: &str, value: &str) -> bool {
    let mut values = argv.iter().enumerate().filter_map(|(at, arg)| match arg.strip_prefix(name)? {
        "" => Some(argv.get(at + 1).map_or("", String::as_str)),
        rest => rest.strip_prefix('='),
    });
    values.next() == Some(value) && values.next().is_none()
}

fn wrapper_agrees(
    record: &LegacyRecord,
    root: &Path,
    argv: &[String],
    exe: Option<&str>,
) -> Result<(), Verdict> {
    if !root.is_absolute() || root.parent().is_none() || !is_plain(root) {
        return Err(Verdict::Unknown("the wrapper root of the record is not a plain absolute path below /"));
    }
    let Some(exe) = exe else { return Err(Verdict::Unknown("its program cannot be read")) };
    // A program whose file was replaced since the start is still the started one.
    let exe = Path::new(exe.strip_suffix(" (deleted)").unwrap_or(exe));
    let below = |path: &Path| is_plain(path) && path != root && path.starts_with(root);
    let runs_script = exe.file_name().and_then(|n| n.to_str()).is_some_and(|n| INTERPRETERS.contains(&n));
    let script = argv.iter().skip(1).find(|arg| !arg.starts_with('-')).filter(|_| runs_script).map(Path::new);
    let wrapper = if below(exe) { Some(exe) } else { script.filter(|path| below(path)) };
    let Some(wrapper) = wrapper else { return Err(Verdict::NotOurs("it is not a wrapper of that root")) };
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

fn command_agrees(record: &LegacyRecord, live: &[String]) -> Result<(), Verdict> {
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

/// Splits a command line into words by shell quoting rules, without expansions. Returns `None` for unbalanced
/// quotes and for shell operators or expansions.
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
