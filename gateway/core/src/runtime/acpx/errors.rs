//! Errors of acpx and the failures of runs and sessions that they stand for.

use crate::failure::Failure;
use acp_shared::codes::Code;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Maximum length of acpx's message in a failure, in characters.
const MESSAGE_CHARS_MAX: usize = 500;

/// Error that a command or a `turn_result` reported.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct AcpxError {
    /// JSON-RPC code; the agent's own where the agent caused the error.
    #[serde(default)]
    pub(super) number: i64,
    /// Message.
    pub(super) message: String,
    /// Code of acpx, such as `RUNTIME`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) code: String,
    /// Detail code of acpx.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) detail: String,
    /// True if acpx reports a missing sign-in.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) needs_auth: bool,
}

impl AcpxError {
    /// Reads the error of a command's line (`{code, message, data: {acpxCode, detailCode, …}}`) or of a `turn_result`
    /// (`{message, code, detailCode}`).
    pub(super) fn read(error: &Value) -> Self {
        let data = error.get("data");
        let text = |holder: Option<&Value>, name: &str| {
            holder.and_then(|holder| holder.get(name)).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let flag =
            |holder: Option<&Value>| holder.and_then(|it| it.get("authRequired")) == Some(&Value::Bool(true));
        let (of_data, of_error) = (text(data, "acpxCode"), text(Some(error), "code"));
        let detail = text(data, "detailCode");
        Self {
            number: error.get("code").and_then(Value::as_i64).unwrap_or(0),
            message: text(Some(error), "message").chars().take(MESSAGE_CHARS_MAX).collect(),
            code: if of_data.is_empty() { of_error } else { of_data },
            detail: if detail.is_empty() { text(Some(error), "detailCode") } else { detail },
            needs_auth: flag(data) || flag(Some(error)),
        }
    }

    /// Describes a command that ended without a report.
    pub(super) fn without_report(what: &str, code: Option<i32>) -> Self {
        let how = code.map_or_else(
            || "was ended by a signal".to_owned(),
            |code| format!("ended with exit code {code}"),
        );
        Self { message: format!("`{what}` {how} without a report"), ..Self::default() }
    }
}

/// Operation that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailedStage {
    /// Opening of a session without a handle.
    Opening,
    /// Opening of a session with a handle.
    Resuming,
    /// Hand-over of a prompt to the queue owner.
    Prompt,
    /// The turn, after its acceptance.
    Turn,
}

/// Consequence of an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The operation failed; acpx can be used further.
    Failed(Failure),
    /// The outcome is unknown; the lease is ended.
    Uncertain(Failure),
    /// The prompt was not accepted; it is sent again after this time, at most that often, and then fails.
    Retry {
        /// Time before the retry, in milliseconds.
        after_ms: u64,
        /// Maximum number of retries.
        retries_max: u32,
        /// Failure after the last one.
        failure: Failure,
    },
    /// acpx does not behave as known; the lease is ended.
    Unusable(Failure),
}

/// Decides what an error means. `agent_error` is the agent's own error of the turn, as received.
pub(super) fn classify(error: &AcpxError, stage: FailedStage, agent_error: Option<&Value>) -> Verdict {
    let failure = |code: Code| of(code, error, agent_error);
    let is_opening = matches!(stage, FailedStage::Opening | FailedStage::Resuming);
    if error.detail == "AUTH_REQUIRED"
        || error.needs_auth
        || (error.number == -32000 && error.code.is_empty())
    {
        return Verdict::Failed(failure(Code::AuthRequired).detail("AUTH_REQUIRED").origin("agent"));
    }
    let known = match (error.detail.as_str(), error.code.as_str()) {
        (
            "WATCH_OUTCOME_UNKNOWN"
            | "QUEUE_DISCONNECTED_BEFORE_ACK"
            | "QUEUE_DISCONNECTED_BEFORE_COMPLETION",
            _,
        ) => Some(Verdict::Uncertain(failure(Code::Uncertain))),
        ("QUEUE_OWNER_OVERLOADED", _) => Some(Verdict::Retry {
            after_ms: 1_000,
            retries_max: 3,
            failure: failure(Code::LimitReached).retryable(),
        }),
        ("QUEUE_OWNER_CLOSED" | "QUEUE_OWNER_SHUTTING_DOWN" | "QUEUE_NOT_ACCEPTING_REQUESTS", _) => {
            Some(Verdict::Retry {
                after_ms: 200,
                retries_max: 1,
                failure: failure(Code::BackendUnavailable).retryable(),
            })
        }
        ("SESSION_RESUME_REQUIRED", _) => Some(Verdict::Failed(failure(Code::ResumeUnavailable))),
        ("QUEUE_OWNER_IDENTITY_UNVERIFIED", _) | (_, "USAGE") => {
            Some(Verdict::Unusable(failure(Code::ProtocolError)))
        }
        (detail, _) if detail.starts_with("QUEUE_PROTOCOL_") => {
            Some(Verdict::Unusable(failure(Code::ProtocolError)))
        }
        (detail, _) if is_start_failure(detail) => Some(Verdict::Failed(failure(Code::SessionInitFailed))),
        (_, "PERMISSION_PROMPT_UNAVAILABLE") => {
            Some(Verdict::Failed(failure(Code::PermissionPromptUnavailable)))
        }
        (_, "PERMISSION_DENIED") => Some(Verdict::Failed(failure(Code::PermissionDenied))),
        (_, "TIMEOUT") => Some(Verdict::Failed(failure(Code::Timeout))),
        (_, "NO_SESSION") if stage != FailedStage::Turn => Some(Verdict::Failed(failure(match stage {
            FailedStage::Opening => Code::SessionInitFailed,
            _ => Code::ResumeUnavailable,
        }))),
        _ => None,
    };
    known.unwrap_or_else(|| match stage {
        _ if is_opening => Verdict::Failed(failure(Code::SessionInitFailed)),
        _ if agent_error.is_some() => {
            Verdict::Failed(failure(Code::TurnFailed).detail("AGENT_ERROR").origin("agent"))
        }
        _ => Verdict::Failed(failure(Code::TurnFailed)),
    })
}

/// True for errors of the agent's start.
fn is_start_failure(detail: &str) -> bool {
    matches!(detail, "AGENT_SPAWN_ENOENT" | "AGENT_STARTUP_FAILED")
        || (detail.contains("_ACP_") && detail.ends_with("_TIMEOUT"))
}

/// Builds a failure with acpx's message and the agent's own error.
fn of(code: Code, error: &AcpxError, agent_error: Option<&Value>) -> Failure {
    let text = format!("{} acpx said: {}", code.text(), error.message.trim());
    let detail = if error.detail.is_empty() { &error.code } else { &error.detail };
    let failure = Failure::new(code, text).origin("acpx");
    let failure = if detail.is_empty() { failure } else { failure.detail(detail) };
    Failure { acp: agent_error.cloned().map(Box::new), ..failure }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Stage, error, consequence, code and detail code.
    type Row = (FailedStage, Value, &'static str, Code, Option<&'static str>);

    fn line(number: i64, code: &str, detail: &str) -> Value {
        json!({ "code": number, "message": "m", "data": { "acpxCode": code, "detailCode": detail } })
    }

    fn result(code: &str, detail: &str) -> Value {
        json!({ "message": "m", "code": code, "detailCode": detail })
    }

    fn name(verdict: &Verdict) -> (&'static str, &Failure) {
        match verdict {
            Verdict::Failed(failure) => ("failed", failure),
            Verdict::Uncertain(failure) => ("uncertain", failure),
            Verdict::Retry { failure, .. } => ("retry", failure),
            Verdict::Unusable(failure) => ("unusable", failure),
        }
    }

    #[rustfmt::skip]
    fn rows() -> Vec<Row> {
        use FailedStage::{Opening, Prompt, Resuming, Turn};
        let auth = Some("AUTH_REQUIRED");
        vec![
            (Opening, line(-32000, "RUNTIME", "AUTH_REQUIRED"), "failed", Code::AuthRequired, auth),
            (Turn, json!({ "code": -32000, "message": "m" }), "failed", Code::AuthRequired, auth),
            (Prompt, json!({ "message": "m", "data": { "authRequired": true } }), "failed", Code::AuthRequired, auth),
            (Turn, result("PERMISSION_PROMPT_UNAVAILABLE", ""), "failed", Code::PermissionPromptUnavailable, Some("PERMISSION_PROMPT_UNAVAILABLE")),
            (Turn, result("PERMISSION_DENIED", ""), "failed", Code::PermissionDenied, Some("PERMISSION_DENIED")),
            (Turn, result("TIMEOUT", "QUEUE_RUNTIME_PROMPT_FAILED"), "failed", Code::Timeout, Some("QUEUE_RUNTIME_PROMPT_FAILED")),
            (Opening, line(-32002, "NO_SESSION", ""), "failed", Code::SessionInitFailed, Some("NO_SESSION")),
            (Resuming, line(-32002, "NO_SESSION", ""), "failed", Code::ResumeUnavailable, Some("NO_SESSION")),
            (Prompt, line(-32002, "NO_SESSION", ""), "failed", Code::ResumeUnavailable, Some("NO_SESSION")),
            (Turn, result("NO_SESSION", ""), "failed", Code::TurnFailed, Some("AGENT_ERROR")),
            (Opening, line(-32603, "RUNTIME", "AGENT_SPAWN_ENOENT"), "failed", Code::SessionInitFailed, Some("AGENT_SPAWN_ENOENT")),
            (Turn, result("RUNTIME", "AGENT_STARTUP_FAILED"), "failed", Code::SessionInitFailed, Some("AGENT_STARTUP_FAILED")),
            (Turn, result("RUNTIME", "GEMINI_ACP_STARTUP_TIMEOUT"), "failed", Code::SessionInitFailed, Some("GEMINI_ACP_STARTUP_TIMEOUT")),
            (Turn, result("RUNTIME", "SESSION_RESUME_REQUIRED"), "failed", Code::ResumeUnavailable, Some("SESSION_RESUME_REQUIRED")),
            (Prompt, line(-32603, "RUNTIME", "QUEUE_OWNER_OVERLOADED"), "retry", Code::LimitReached, Some("QUEUE_OWNER_OVERLOADED")),
            (Prompt, line(-32603, "RUNTIME", "QUEUE_OWNER_CLOSED"), "retry", Code::BackendUnavailable, Some("QUEUE_OWNER_CLOSED")),
            (Prompt, line(-32603, "RUNTIME", "QUEUE_OWNER_SHUTTING_DOWN"), "retry", Code::BackendUnavailable, Some("QUEUE_OWNER_SHUTTING_DOWN")),
            (Prompt, line(-32603, "RUNTIME", "QUEUE_NOT_ACCEPTING_REQUESTS"), "retry", Code::BackendUnavailable, Some("QUEUE_NOT_ACCEPTING_REQUESTS")),
            (Prompt, line(-32603, "RUNTIME", "QUEUE_DISCONNECTED_BEFORE_ACK"), "uncertain", Code::Uncertain, Some("QUEUE_DISCONNECTED_BEFORE_ACK")),
            (Turn, result("RUNTIME", "QUEUE_DISCONNECTED_BEFORE_COMPLETION"), "uncertain", Code::Uncertain, Some("QUEUE_DISCONNECTED_BEFORE_COMPLETION")),
            (Turn, result("RUNTIME", "WATCH_OUTCOME_UNKNOWN"), "uncertain", Code::Uncertain, Some("WATCH_OUTCOME_UNKNOWN")),
            (Prompt, line(-32603, "RUNTIME", "QUEUE_OWNER_IDENTITY_UNVERIFIED"), "unusable", Code::ProtocolError, Some("QUEUE_OWNER_IDENTITY_UNVERIFIED")),
            (Prompt, line(-32603, "RUNTIME", "QUEUE_PROTOCOL_INVALID_JSON"), "unusable", Code::ProtocolError, Some("QUEUE_PROTOCOL_INVALID_JSON")),
            (Opening, line(-32602, "USAGE", ""), "unusable", Code::ProtocolError, Some("USAGE")),
            (Turn, result("RUNTIME", "AGENT_DISCONNECTED"), "failed", Code::TurnFailed, Some("AGENT_ERROR")),
            (Opening, line(-32603, "RUNTIME", ""), "failed", Code::SessionInitFailed, Some("RUNTIME")),
        ]
    }

    #[test]
    fn errors_of_acpx_have_their_codes() {
        for (stage, error, consequence, code, detail) in rows() {
            let agent_error = json!({ "code": -32002, "message": "not found", "data": [1] });
            let own = (stage == FailedStage::Turn).then_some(&agent_error);
            let verdict = classify(&AcpxError::read(&error), stage, own);
            let (what, failure) = name(&verdict);
            let found = (what, failure.code, failure.detail_code.as_deref());
            assert_eq!(found, (consequence, code, detail), "{error}");
            assert_eq!(failure.acp.as_deref(), own, "{error}");
        }
    }

    #[test]
    fn death_of_the_agent_fails_the_turn() {
        let error = AcpxError::read(&result("RUNTIME", "AGENT_DISCONNECTED"));
        let verdict = classify(&error, FailedStage::Turn, None);
        let (what, failure) = name(&verdict);
        assert_eq!((what, failure.code), ("failed", Code::TurnFailed));
        assert_eq!(failure.detail_code.as_deref(), Some("AGENT_DISCONNECTED"));
    }
}
