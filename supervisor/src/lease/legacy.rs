//! Reaping of process records without a lease, as decided by [`crate::core::verify::legacy`]. Evidence and
//! signals of a process use the same handle, and the process is verified again between SIGTERM and SIGKILL.

use crate::core::tree::descendants;
use crate::core::verify::legacy::{LegacyRecord, verify_legacy, verify_legacy_child};
use crate::core::verify::{Evidence, SignalGuard, Verdict, Verified};
use crate::lease::tree_kill::read_evidence;
use crate::sys::{Signal, SignalError, Sys};
use serde::Serialize;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum size of the file of records, in bytes.
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;
const POLL: Duration = Duration::from_millis(20);
/// Maximum number of rounds to stop a tree that keeps growing.
const STOP_ROUNDS_MAX: u32 = 16;

/// Records of one file, and the owner of the file.
#[derive(Debug)]
pub struct LegacyRecords {
    /// Process records.
    pub records: Vec<LegacyRecord>,
    /// User id of the file's owner. The file has no authority over processes of other users.
    pub owner: u32,
}

/// Reads a file: one record, an array of them, or an object with them under `records`, `sessions` or
/// `leases`.
///
/// # Errors
/// The file cannot be read, or has other content.
pub fn read(path: &Path) -> io::Result<LegacyRecords> {
    let file = std::fs::File::open(path)?;
    let meta = file.metadata()?;
    if meta.len() > FILE_BYTES_MAX {
        return Err(io::Error::other("it is too large"));
    }
    if meta.mode() & 0o022 != 0 {
        // If others can write the file, it may not contain the owner's data.
        return Err(io::Error::other(
            "users other than its owner can write it; remove that permission (chmod go-w)",
        ));
    }
    let value: serde_json::Value = serde_json::from_reader(file)?;
    let under = ["records", "sessions", "leases"].into_iter().find_map(|key| value.get(key));
    let rows = match under.unwrap_or(&value) {
        serde_json::Value::Array(rows) => rows.clone(),
        serde_json::Value::Object(rows) if under.is_some() => rows.values().cloned().collect(),
        one => vec![one.clone()],
    };
    let records = rows.into_iter().map(serde_json::from_value).collect::<Result<Vec<LegacyRecord>, _>>()?;
    Ok(LegacyRecords { records, owner: meta.uid() })
}

/// Result for one record, as planned or as done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LegacyLine {
    /// Session of the record.
    pub session: String,
    /// Root process of the record.
    pub pid: Option<i64>,
    /// `owned`, `not_ours`, `gone` or `unknown`.
    pub verdict: &'static str,
    /// `leave`, `signal` or `signalled`.
    pub action: &'static str,
    /// Reason of the verdict.
    pub why: String,
    /// Processes of the tree, children first.
    pub tree: Vec<i32>,
    /// Processes that were still running at the end.
    pub survivors: Vec<i32>,
}

struct LegacyMember<H> {
    pid: i32,
    handle: Arc<H>,
    proof: Verified,
}

/// Verifies records, and ends the verified trees if `grace` (time from SIGTERM to SIGKILL) is given.
///
/// # Errors
/// The process list cannot be read; no process of that record was signalled.
pub fn run<S: Sys>(sys: &S, records: &LegacyRecords, grace: Option<Duration>) -> io::Result<Vec<LegacyLine>> {
    let guard =
        SignalGuard { own_ancestry: sys.own_ancestry(), other_roots: std::collections::HashSet::new() };
    records.records.iter().map(|record| one(sys, record, records.owner, &guard, grace)).collect()
}

fn one<S: Sys>(
    sys: &S,
    record: &LegacyRecord,
    owner: u32,
    guard: &SignalGuard,
    grace: Option<Duration>,
) -> io::Result<LegacyLine> {
    let mut line = LegacyLine {
        session: record.session.clone().unwrap_or_default(),
        pid: record.pid,
        verdict: "unknown",
        action: "leave",
        why: "the record contains no process".into(),
        tree: Vec::new(),
        survivors: Vec::new(),
    };
    let Some(pid) = record.pid.and_then(|pid| i32::try_from(pid).ok()).filter(|pid| *pid != 0) else {
        return Ok(line);
    };
    let (handle, evidence) = read_evidence(sys, pid);
    let verdict = judge(sys, record, owner, handle.as_deref(), &evidence, guard);
    (line.verdict, line.why) = (verdict.as_str(), verdict.why().to_owned());
    let (Verdict::Owned(proof), Some(handle)) = (verdict, handle) else { return Ok(line) };
    let mut tree = vec![LegacyMember { pid, handle, proof }];
    grow(sys, record, &mut tree, guard)?;
    line.tree = tree.iter().rev().map(|m| m.pid).collect();
    line.action = "signal";
    let Some(grace) = grace else { return Ok(line) };
    line.action = "signalled";
    for signal in [Signal::Term, Signal::Cont] {
        send(sys, &tree, signal);
    }
    wait(sys, &tree, grace);
    if tree.iter().any(|m| runs(sys, m)) {
        // Processes that can no longer be verified get no SIGKILL, but still count as part of the tree.
        let mut left = Vec::new();
        let still = hold_still(sys, record, owner, tree, guard, &mut left)?;
        let still = verified_again(sys, record, owner, still, guard, &mut left);
        send(sys, &still, Signal::Kill);
        // These may have been stopped above.
        send(sys, &left, Signal::Cont);
        wait(sys, &still, grace.max(Duration::from_secs(1)));
        tree = still;
        tree.append(&mut left);
    }
    line.survivors = tree.iter().filter(|m| runs(sys, m)).map(|m| m.pid).collect();
    Ok(line)
}

fn judge<S: Sys>(
    sys: &S,
    record: &LegacyRecord,
    owner: u32,
    handle: Option<&S::Handle>,
    evidence: &Evidence,
    guard: &SignalGuard,
) -> Verdict {
    let live = handle.map(|handle| sys.legacy_facts(handle)).unwrap_or_default();
    // If the process was reaped in the meantime, the data may belong to another process.
    if handle.is_some_and(|handle| !sys.is_unreaped(handle)) {
        return Verdict::Gone("there is no such process");
    }
    verify_legacy(record, owner, evidence, &live, guard)
}

/// Adds the verified descendants of the members.
fn grow<S: Sys>(
    sys: &S,
    record: &LegacyRecord,
    tree: &mut Vec<LegacyMember<S::Handle>>,
    guard: &SignalGuard,
) -> io::Result<()> {
    let snapshot = sys.snapshot()?;
    let roots: Vec<i32> = tree.iter().map(|m| m.pid).collect();
    for (pid, parent) in descendants(&snapshot, &roots) {
        if tree.iter().any(|m| m.pid == pid) {
            continue;
        }
        let (handle, evidence) = read_evidence(sys, pid);
        let parent_holds = tree.iter().find(|m| m.pid == parent).is_some_and(|m| sys.is_unreaped(&m.handle));
        if let (true, Some(handle), Verdict::Owned(proof)) =
            (parent_holds, handle, verify_legacy_child(record, parent, &evidence, guard))
        {
            tree.push(LegacyMember { pid, handle, proof });
        }
    }
    Ok(())
}

/// Stops the tree and its new descendants until no new process is found. Otherwise processes killed one by
/// one could start others in between, which could not be found after the death of their parent.
fn hold_still<S: Sys>(
    sys: &S,
    record: &LegacyRecord,
    owner: u32,
    mut tree: Vec<LegacyMember<S::Handle>>,
    guard: &SignalGuard,
    left: &mut Vec<LegacyMember<S::Handle>>,
) -> io::Result<Vec<LegacyMember<S::Handle>>> {
    grow(sys, record, &mut tree, guard)?;
    for _ in 0..STOP_ROUNDS_MAX {
        let known = tree.len();
        if let Err(error) = grow(sys, record, &mut tree, guard) {
            // Stopped processes must not stay stopped because of this error: end the known ones.
            tracing::warn!(%error, "process list unreadable");
            break;
        }
        let grown = tree.len() > known;
        tree = verified_again(sys, record, owner, tree, guard, left);
        send(sys, &tree, Signal::Stop);
        if !grown {
            break;
        }
    }
    if let Err(error) = grow(sys, record, &mut tree, guard) {
        tracing::warn!(%error, "process list unreadable");
    }
    Ok(tree)
}

/// Returns the members that are still verified, and moves the others to `left`. A child whose parent has
/// ended is identified by its handle, which never refers to another process.
fn verified_again<S: Sys>(
    sys: &S,
    record: &LegacyRecord,
    owner: u32,
    tree: Vec<LegacyMember<S::Handle>>,
    guard: &SignalGuard,
    left: &mut Vec<LegacyMember<S::Handle>>,
) -> Vec<LegacyMember<S::Handle>> {
    let root = record.pid.and_then(|pid| i32::try_from(pid).ok());
    let mut still = Vec::new();
    for member in tree {
        let evidence = sys.evidence(&member.handle);
        let verdict = if Some(member.pid) == root {
            judge(sys, record, owner, Some(&member.handle), &evidence, guard)
        } else {
            verify_legacy_child(record, evidence.ppid.unwrap_or_default(), &evidence, guard)
        };
        match verdict {
            Verdict::Owned(proof) => still.push(LegacyMember { proof, ..member }),
            Verdict::NotOurs(_) | Verdict::Gone(_) | Verdict::Unknown(_) => left.push(member),
        }
    }
    still
}

fn send<S: Sys>(sys: &S, tree: &[LegacyMember<S::Handle>], signal: Signal) {
    for member in tree.iter().rev() {
        match sys.signal(&member.handle, &member.proof, signal) {
            Ok(()) | Err(SignalError::Gone) => {}
            Err(error) => tracing::warn!(pid = member.pid, %error, ?signal, "signal not sent"),
        }
    }
}

fn runs<S: Sys>(sys: &S, member: &LegacyMember<S::Handle>) -> bool {
    use crate::core::verify::ProcessState;
    matches!(sys.kernel_evidence(&member.handle).life, ProcessState::Running | ProcessState::Unreadable)
}

fn wait<S: Sys>(sys: &S, tree: &[LegacyMember<S::Handle>], at_most: Duration) {
    let until = Instant::now() + at_most;
    while Instant::now() < until && tree.iter().any(|m| runs(sys, m)) {
        std::thread::sleep(POLL);
    }
}
