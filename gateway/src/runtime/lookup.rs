//! Lookup of programs and directories where agents run: by the supervisor, as the user that agents run as.
//!
//! [`LookupRequest`] lists the names a decision depends on, [`LookupResults`] holds the results; the decisions themselves
//! are in `agents`. The gateway itself opens no file of a project.

use crate::supervisor::{CallError, SupervisorClient, SupervisorStatus};
use acp_core::failure::Failure;
use acp_shared::codes::Code;
use acp_shared::files::{FilesError, FilesOp, FilesReply, FilesRequest, FilesScope, NAMES_MAX};
use acp_shared::protocol::{RefusalCode, Reply, Request};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// Maximum wait for the results, in which the supervisor may reconnect.
pub(crate) const WAIT: Duration = Duration::from_secs(5);
/// Maximum age of the results of a spawn's lookup for the start of its agent.
const RECENT: Duration = Duration::from_secs(1);
/// Delay before a request is repeated that failed or was refused, unless the refusal contains one, in
/// milliseconds.
const RETRY_MS: u64 = 200;

/// Programs and directories to look up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LookupRequest {
    /// Names without a slash, or absolute paths.
    pub(crate) programs: BTreeSet<String>,
    /// Search path for names, in the form of `PATH`.
    pub(crate) search: String,
    /// Absolute paths.
    pub(crate) directories: BTreeSet<String>,
}

/// Results of a [`LookupRequest`]. A name that was not looked up counts as missing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LookupResults {
    /// Absolute paths of the programs that exist and are executable, by name.
    pub(crate) programs: BTreeMap<String, String>,
    /// Canonical paths of the directories.
    pub(crate) directories: BTreeMap<String, Result<String, FilesError>>,
}

/// Results of a lookup, for a start that follows at once.
#[derive(Debug)]
pub(crate) struct RecentLookup {
    at: Instant,
    request: LookupRequest,
    results: LookupResults,
}

impl RecentLookup {
    /// Keeps the results of a request.
    pub(crate) fn new(request: LookupRequest, results: LookupResults) -> Self {
        Self { at: Instant::now(), request, results }
    }

    /// Returns the results of an equal request, unless they are old.
    pub(crate) fn into_results(self, wanted: &LookupRequest) -> Option<LookupResults> {
        (self.request == *wanted && self.at.elapsed() < RECENT).then_some(self.results)
    }
}

/// Reason why there are no [`LookupResults`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LookupError {
    /// The supervisor is disconnected: retry once it is connected.
    Away,
    /// The supervisor failed to look up.
    Failed(Failure),
}

/// Looks up everything. Waits as long as a connected supervisor needs; safe to cancel.
///
/// # Errors
/// [`LookupError`].
pub(crate) async fn look_up(
    supervisor: &SupervisorClient,
    lookup: &LookupRequest,
) -> Result<LookupResults, LookupError> {
    let (names, paths) = (Vec::from_iter(&lookup.programs), Vec::from_iter(&lookup.directories));
    let mut findings = LookupResults::default();
    for names in names.chunks(NAMES_MAX) {
        let names: Vec<String> = names.iter().map(|name| (*name).clone()).collect();
        let op = FilesOp::Programs { names: names.clone(), search: lookup.search.clone() };
        let FilesReply::Programs(found) = ask(supervisor, op).await? else { return Err(unexpected()) };
        let found = names.into_iter().zip(found);
        findings.programs.extend(found.filter_map(|(name, file)| Some((name, file?))));
    }
    for paths in paths.chunks(NAMES_MAX) {
        let paths: Vec<String> = paths.iter().map(|path| (*path).clone()).collect();
        let op = FilesOp::Directories { paths: paths.clone() };
        let FilesReply::Directories(found) = ask(supervisor, op).await? else { return Err(unexpected()) };
        findings.directories.extend(paths.into_iter().zip(found));
    }
    Ok(findings)
}

/// Looks up everything within [`WAIT`], which includes waiting for a disconnected supervisor.
///
/// # Errors
/// `ACP_BACKEND_UNAVAILABLE`.
pub(crate) async fn look_up_with_timeout(
    supervisor: &SupervisorClient,
    lookup: &LookupRequest,
) -> Result<LookupResults, Failure> {
    let found = async {
        let mut status = supervisor.status();
        loop {
            match look_up(supervisor, lookup).await {
                Ok(findings) => return Ok(findings),
                Err(LookupError::Failed(failure)) => return Err(failure),
                Err(LookupError::Away) => {}
            }
            if status.wait_for(SupervisorStatus::is_up).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    let no_answer = |_| Err(no_supervisor("looks up programs and directories"));
    tokio::time::timeout(WAIT, found).await.unwrap_or_else(no_answer)
}

/// Failure because the supervisor does not answer; `what` names its part in the operation.
pub(crate) fn no_supervisor(what: &str) -> Failure {
    let text = format!("{} The supervisor, which {what}, does not answer.", Code::BackendUnavailable.text());
    let failure = Failure::new(Code::BackendUnavailable, text).detail("NO_SUPERVISOR");
    failure.origin("gateway").retryable()
}

/// Sends one request; repeats it while the supervisor is busy, and if its helper ended: a look-up writes nothing.
async fn ask(supervisor: &SupervisorClient, op: FilesOp) -> Result<FilesReply, LookupError> {
    let request = FilesRequest { scope: FilesScope::Tenant, roots: Vec::new(), op };
    loop {
        let retry_ms = match supervisor.call(Request::Files(request.clone())).await {
            Ok(Reply::Files(Ok(reply))) => return Ok(reply),
            Ok(Reply::Files(Err(FilesError::Interrupted))) => None,
            Ok(Reply::Files(Err(error))) => return Err(failed(&error.to_string(), "LOOKUP_FAILED")),
            Ok(_) => return Err(unexpected()),
            Err(CallError::Disconnected) => return Err(LookupError::Away),
            Err(CallError::Refused(refusal)) => match refusal.code {
                RefusalCode::Busy | RefusalCode::ShuttingDown => refusal.retry_after_ms,
                code => return Err(failed(&refusal.message, code.as_str())),
            },
        };
        tokio::time::sleep(Duration::from_millis(retry_ms.unwrap_or(RETRY_MS))).await;
    }
}

fn failed(why: &str, detail: &str) -> LookupError {
    const TEXT: &str = "Programs and directories cannot be looked up";
    let failure = Failure::new(Code::BackendUnavailable, format!("{TEXT}: {why}."));
    let failure = failure.for_conversations(format!("{TEXT}.")).detail(detail);
    LookupError::Failed(failure.origin("supervisor").retryable())
}

fn unexpected() -> LookupError {
    failed("the supervisor sent an unexpected response", "LOOKUP_FAILED")
}

#[cfg(test)]
#[path = "lookup_tests.rs"]
mod tests;
