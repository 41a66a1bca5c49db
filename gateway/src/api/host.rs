//! Handlers for leases and their evidence, the checks of `doctor`, and the audit of permission requests.

use crate::api::Api;
use crate::api::access::VisibleSessions;
use crate::api::extract::{ApiError, Caller, Json};
use acp_core::api::{AuditView, CheckView, EvidenceView, HostView, LeaseView};
use acp_core::failure::Failure;
use acp_core::visibility::Action;
use acp_shared::codes::Code;
use acp_shared::ids::LeaseId;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use serde::Deserialize;
use std::path::Path as FilePath;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;
use tokio::sync::Semaphore;
use utoipa::IntoParams;

/// Maximum number of settled permission requests in a list.
const AUDIT_MAX: u64 = 500;
/// Maximum number of rows read for a list of a caller with limited agents.
const AUDIT_READ_MAX: u64 = 10_000;
/// Maximum size of the requests in a list, in bytes: an agent's request may have megabytes.
const AUDIT_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Time limit of all checks, with the wait for those of another request.
const DOCTOR: Duration = Duration::from_secs(30);
/// One `doctor` runs at a time, for all requests.
static DOCTORS: Semaphore = Semaphore::const_new(1);

/// `GET /v1/hosts`: the machines that run agents, the gateway's own first.
pub(crate) async fn hosts(State(api): State<Api>) -> Json<Vec<HostView>> {
    Json(api.service.hosts())
}

/// `GET /v1/leases`: the process trees that supervisors hold for this gateway, the newest first.
pub(crate) async fn leases(State(api): State<Api>) -> Result<Json<Vec<LeaseView>>, ApiError> {
    let mut found = api.service.leases().await?;
    found.sort_by_key(|(_, info)| std::cmp::Reverse(info.started_at_ms));
    Ok(Json(found.into_iter().map(|(host, info)| LeaseView::new(info, host)).collect()))
}

/// `GET /v1/leases/{id}`.
pub(crate) async fn lease(
    State(api): State<Api>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Json<EvidenceView>, ApiError> {
    let Path(id) = path.map_err(|error| ApiError::usage(error.body_text()))?;
    let missing = || ApiError::usage("there is no such lease").status(StatusCode::NOT_FOUND);
    let id = LeaseId::parse(&id).map_err(|_| missing())?;
    let (host, report) = api.service.lease_evidence(id).await?.ok_or_else(missing)?;
    Ok(Json(EvidenceView::new(report, host)))
}

/// Query of `GET /v1/audit`.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AuditQuery {
    /// Maximum number of permission requests, at most 500.
    limit: Option<u64>,
}

/// `GET /v1/audit`: settled permission requests, the newest first.
pub(crate) async fn audit(
    State(api): State<Api>,
    Caller(caller): Caller,
    query: Result<Query<AuditQuery>, QueryRejection>,
) -> Result<Json<Vec<AuditView>>, ApiError> {
    let Query(query) = query.map_err(|error| ApiError::usage(error.body_text()))?;
    let limit = query.limit.unwrap_or(AUDIT_MAX).min(AUDIT_MAX);
    let read = if caller.is_limited() { AUDIT_READ_MAX } else { limit };
    let rows = api.service.settled_permissions(read, AUDIT_BYTES_MAX).await?;
    let mut visible = VisibleSessions::new(&api.service, caller, Action::History);
    let mut found = Vec::new();
    for row in rows {
        if (found.len() as u64) < limit && visible.sees(&row.session_key).await? {
            found.push(AuditView::from(row));
        }
    }
    Ok(Json(found))
}

/// `GET /v1/doctor`: the checks of `acp-gateway doctor`, run by this program as the gateway's user.
pub(crate) async fn doctor(State(api): State<Api>) -> Result<Json<Vec<CheckView>>, ApiError> {
    let Some(state_dir) = api.service.state_dir() else { return Ok(Json(Vec::new())) };
    let config = api.service.config();
    let file = config.file.as_ref().map(|file| file.path.clone());
    Ok(Json(check(state_dir, file.as_deref()).await?))
}

async fn check(state_dir: &FilePath, config: Option<&FilePath>) -> Result<Vec<CheckView>, Failure> {
    let failed = |why: String| Failure::new(Code::Runtime, format!("doctor: {why}")).origin("gateway");
    let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    let mut command = Command::new(program);
    command.arg("--json").arg("--state-dir").arg(state_dir).arg("doctor");
    if let Some(config) = config {
        command.arg("--config").arg(config);
    }
    command.stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let output = async {
        // The semaphore is never closed.
        let _place = DOCTORS.acquire().await;
        command.output().await
    };
    let Ok(output) = tokio::time::timeout(DOCTOR, output).await else {
        return Err(failed(format!("no result within {} s", DOCTOR.as_secs())));
    };
    let output = output.map_err(|error| failed(error.to_string()))?;
    // A line with the failed checks may follow.
    let first = output.stdout.split(|byte| *byte == b'\n').next().unwrap_or_default();
    serde_json::from_slice(first).map_err(|error| failed(format!("its result cannot be read: {error}")))
}
