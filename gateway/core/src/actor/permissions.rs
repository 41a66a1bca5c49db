//! Requests of the agent: permissions, files and terminals (H3 and H4).

use super::input::{CommandReply, IdempotencyRecord};
use super::{Actor, ActorEffect, StepOutput};
use crate::backend::{AgentRequest, AgentRequestKind, RequestReply, RpcOutcome};
use crate::event::EventKind;
use crate::failure::Failure;
use crate::host::{ANSWER_BYTES_MAX, too_long_answer};
use crate::jsonrpc::REFUSED;
use crate::permission::{self, NOT_PENDING, PermissionDecision};
use crate::rows::{AutoResolution, NonInteractive, PermissionRow, PermissionState, RequestState, ResolvedBy};
use crate::session::SessionState;
use crate::writes::Write;
use acp_shared::codes::Code;
use acp_shared::ids::RunId;
use serde_json::json;

/// Maximum length of a text in a message to an agent, in bytes, so that the message fits into a frame to the
/// supervisor: each attempt to send a larger frame would break the connection.
pub(super) const MESSAGE_BYTES_MAX: usize = acp_shared::protocol::FRAME_BYTES_MAX - 64 * 1024;

/// Answer of a person to a permission request.
#[derive(Debug, Clone, Copy)]
pub(super) struct PermissionAnswer<'a> {
    /// Id of the request.
    pub(super) permission_id: &'a str,
    /// Chosen option; `None` settles the request as cancelled.
    pub(super) option_id: Option<&'a str>,
    /// Name of the person.
    pub(super) by: &'a str,
}

impl Actor {
    pub(super) fn on_agent_request(&mut self, request: AgentRequest, out: &mut StepOutput) {
        if matches!(request.what, AgentRequestKind::Permission { .. }) {
            self.on_permission_request(request, out);
        } else {
            self.on_host_request(request, out);
        }
    }

    pub(super) fn on_request_done(&mut self, at: u64, outcome: RpcOutcome, out: &mut StepOutput) {
        if let Err(error) = &outcome {
            self.journal_failure(at, error, out);
        }
        self.finish_request(at, outcome, out);
    }

    /// Answers a request; its row and the answer are committed in one transaction.
    pub(super) fn finish_request(&mut self, at: u64, outcome: RpcOutcome, out: &mut StepOutput) {
        let Some(mut row) = self.requests.remove(&at) else { return };
        row.state = RequestState::Answered;
        out.writes.push(Write::Request(Box::new(row)));
        let outcome = outcome.and_then(|result| {
            if result.len() <= ANSWER_BYTES_MAX { Ok(result) } else { Err(too_long_answer()) }
        });
        let is_rejection = matches!(&outcome, Err(error) if error.code == REFUSED);
        self.answer(RequestReply { at, outcome, is_rejection }, out);
    }

    fn answer(&mut self, answer: RequestReply, out: &mut StepOutput) {
        let steps = self.backend.answer(&answer);
        drop(answer);
        self.mark_backend_dirty();
        self.on_backend_steps(steps, out);
    }

    fn on_permission_request(&mut self, request: AgentRequest, out: &mut StepOutput) {
        let decision = self.decision(&request);
        let Some(row) = self.new_permission(request, out) else { return };
        let run_id = row.request.run_id;
        // In every mode: a turn that is being cancelled gets no further approval, and no question is asked.
        if self.session.state == SessionState::Cancelling {
            self.resolve_permission(row, None, &ResolvedBy::Auto(AutoResolution::Cancel), out);
            return;
        }
        match decision {
            PermissionDecision::Ask => {
                out.writes.push(Write::Permission(Box::new(row.clone())));
                self.permissions.insert(row.request.at, row);
            }
            PermissionDecision::Allow(option_id) | PermissionDecision::Reject(option_id) => {
                self.resolve_permission(row, Some(option_id), &ResolvedBy::Auto(AutoResolution::Policy), out)
            }
            PermissionDecision::Cancel => {
                self.resolve_permission(row, None, &ResolvedBy::Auto(AutoResolution::Policy), out)
            }
            PermissionDecision::FailRun => {
                self.fail_without_approver(run_id, out);
                self.resolve_permission(row, None, &ResolvedBy::Auto(AutoResolution::Nobody), out);
            }
        }
    }

    /// Decides a permission request by the session's settings.
    fn decision(&self, request: &AgentRequest) -> PermissionDecision {
        let AgentRequestKind::Permission { tool_kind, options, .. } = &request.what else {
            return PermissionDecision::Cancel;
        };
        let run = request.run_id.and_then(|id| self.runs.iter().find(|run| run.run_id == id));
        let interactive = run.is_some_and(|run| run.interactive);
        let settings = &self.session.options;
        let (mode, non_interactive) = (settings.permission, settings.non_interactive);
        permission::decide_permission(mode, non_interactive, interactive, options, tool_kind.as_deref())
    }

    /// Resolves pending permission requests that a changed permission mode decides: those of the agent and
    /// those of the host, whose options have the same shape.
    pub(super) fn redecide_permissions(&mut self, out: &mut StepOutput) {
        let mut is_said = false;
        for at in self.permissions.keys().copied().collect::<Vec<_>>() {
            let decided = self.permissions.get(&at).map(|row| self.decision(&row.request));
            let option_id = match decided {
                Some(PermissionDecision::Allow(option_id) | PermissionDecision::Reject(option_id)) => {
                    Some(option_id)
                }
                Some(PermissionDecision::Cancel) => None,
                Some(PermissionDecision::Ask | PermissionDecision::FailRun) | None => continue,
            };
            let Some(row) = self.permissions.remove(&at) else { continue };
            if !std::mem::replace(&mut is_said, true) {
                // Puts a row between the request and its outcome: readers take adjacent rows for a request
                // that nobody was asked.
                let text =
                    "The permission mode was changed. The new mode decides pending permission requests.";
                let payload = json!({ "status": "decided_again", "text": text });
                self.run_event(row.request.run_id, EventKind::Status, payload, out);
            }
            self.resolve_permission(row, option_id, &ResolvedBy::Auto(AutoResolution::Policy), out);
        }
    }

    /// Creates a pending permission request and its event.
    pub(super) fn new_permission(
        &mut self,
        request: AgentRequest,
        out: &mut StepOutput,
    ) -> Option<PermissionRow> {
        let lease_id = self.lease.as_ref()?.row.lease_id;
        let deadline = (self.limits.permission_ms > 0).then_some(out.now_ms + self.limits.permission_ms);
        let row = PermissionRow {
            lease_id,
            session_key: self.session.session_key.clone(),
            request,
            state: PermissionState::Pending,
            option_id: None,
            resolved_by: None,
            created_at_ms: out.now_ms,
            deadline_at_ms: deadline,
        };
        let params: serde_json::Value = serde_json::from_str(&row.request.params).unwrap_or_default();
        let mut payload = json!({ "permission_id": row.permission_id(), "params": params });
        if let Some(at_ms) = deadline {
            payload["deadline_at_ms"] = json!(at_ms);
        }
        self.run_event(row.request.run_id, EventKind::Permission, payload, out);
        Some(row)
    }

    /// Fails the run because no person can be asked.
    pub(super) fn fail_without_approver(&mut self, run_id: Option<RunId>, out: &mut StepOutput) {
        if let Some(run_id) = run_id {
            self.fail_after_cancel(
                run_id,
                Failure::of(Code::PermissionPromptUnavailable).origin("gateway"),
                out,
            );
        }
    }

    /// Marks the running run to fail with `failure`; the agent is stopped first.
    pub(super) fn fail_after_cancel(&mut self, run_id: RunId, failure: Failure, out: &mut StepOutput) {
        if self.current_id() != Some(run_id) {
            return;
        }
        if let Some(run) = self.runs.front_mut() {
            run.error.get_or_insert(failure);
            out.writes.push(Write::Run(Box::new(run.clone())));
        }
        self.cancel_current(run_id, out);
    }

    pub(super) fn on_answer_permission(
        &mut self,
        answer: PermissionAnswer<'_>,
        keyed: Option<IdempotencyRecord>,
        out: &mut StepOutput,
    ) -> Result<CommandReply, Failure> {
        let PermissionAnswer { permission_id, option_id, by } = answer;
        // The deadline may have passed before the next tick.
        self.expire_permissions(out);
        // H4: no answer to a process that has ended or is being ended, though output of it may be unread.
        let hears = self.lease.as_ref().is_some_and(|lease| !lease.closing && lease.ended.is_none());
        let found = self.permissions.values().find(|row| hears && row.permission_id() == permission_id);
        let Some(row) = found else {
            let text = "This permission request is unknown, already resolved, or its turn has ended.";
            return Err(Failure::new(Code::Usage, text).detail(NOT_PENDING));
        };
        if let (AgentRequestKind::Permission { options, .. }, Some(option_id)) =
            (&row.request.what, option_id)
            && !options.iter().any(|option| option.id == option_id)
        {
            let known: Vec<&str> = options.iter().map(|option| option.id.as_str()).collect();
            let text = format!("There is no option {option_id:?}; the agent offers: {}.", known.join(", "));
            return Err(Failure::new(Code::Usage, text).detail("PERMISSION_OPTION_UNKNOWN"));
        }
        let at = row.request.at;
        if let Some(row) = self.permissions.remove(&at) {
            self.resolve_permission(
                row,
                option_id.map(str::to_owned),
                &ResolvedBy::Person(by.to_owned()),
                out,
            );
        }
        out.remember(keyed, &true);
        Ok(CommandReply::Done)
    }

    /// Resolves a permission request with an option, or as cancelled, and answers the agent, in one
    /// transaction (H4).
    fn resolve_permission(
        &mut self,
        mut row: PermissionRow,
        option_id: Option<String>,
        by: &ResolvedBy,
        out: &mut StepOutput,
    ) {
        let at = row.request.at;
        let (outcome, result) = match &option_id {
            Some(option_id) => ("selected", permission::selected_result(option_id)),
            None => ("cancelled", permission::cancelled_result()),
        };
        row.state = if option_id.is_some() { PermissionState::Answered } else { PermissionState::Expired };
        row.option_id.clone_from(&option_id);
        row.resolved_by = Some(by.clone());
        let (permission_id, run_id) = (row.permission_id(), row.request.run_id);
        let mut payload =
            json!({ "permission_id": permission_id, "outcome": outcome, "option_id": option_id });
        match by {
            ResolvedBy::Person(name) => payload["by"] = json!(name),
            ResolvedBy::Auto(without) => payload["without"] = json!(without.as_str()),
        }
        let mut option_kind = None;
        if let AgentRequestKind::Permission { options, .. } = &row.request.what
            && let Some(option) = options.iter().find(|option| Some(&option.id) == option_id.as_ref())
        {
            payload["option_name"] = json!(option.name);
            option_kind = Some(option.kind.clone());
        }
        let is_hosts = self.requests.contains_key(&at);
        if let (ResolvedBy::Person(_), Some(kind), false) = (by, &option_kind, is_hosts) {
            self.add_answer_grant(&row, kind);
        }
        out.writes.push(Write::Permission(Box::new(row)));
        self.run_event(run_id, EventKind::PermissionSettled, payload, out);
        if is_hosts {
            self.on_host_answer(at, option_kind.as_deref(), by, out);
        } else {
            let is_rejection = !option_kind.is_some_and(|kind| kind.starts_with("allow"));
            self.answer(RequestReply { at, outcome: Ok(result), is_rejection }, out);
        }
    }

    /// Resolves the open requests of a turn, or of the whole lease, whose answers are no longer needed.
    pub(super) fn resolve_all_requests(
        &mut self,
        run_id: Option<RunId>,
        why: AutoResolution,
        out: &mut StepOutput,
    ) {
        let concerned = |of: Option<RunId>| run_id.is_none() || of == run_id;
        let permissions: Vec<u64> = self
            .permissions
            .values()
            .filter(|row| concerned(row.request.run_id))
            .map(|row| row.request.at)
            .collect();
        for at in permissions {
            if let Some(row) = self.permissions.remove(&at) {
                self.resolve_permission(row, None, &ResolvedBy::Auto(why), out);
            }
        }
        if run_id.is_some() {
            self.recall_effects(run_id, out);
        } else {
            for (at, mut row) in std::mem::take(&mut self.requests) {
                row.state = RequestState::Answered;
                out.writes.push(Write::Request(Box::new(row)));
                out.effects.push(ActorEffect::DropRequest { at });
            }
        }
    }

    pub(super) fn on_request_withdrawn(&mut self, at: u64, out: &mut StepOutput) {
        if let Some(mut row) = self.permissions.remove(&at) {
            row.state = PermissionState::Expired;
            row.resolved_by = Some(ResolvedBy::Auto(AutoResolution::Agent));
            let payload = json!({
                "permission_id": row.permission_id(), "outcome": "cancelled",
                "without": AutoResolution::Agent.as_str(),
            });
            let run_id = row.request.run_id;
            out.writes.push(Write::Permission(Box::new(row)));
            self.run_event(run_id, EventKind::PermissionSettled, payload, out);
        }
        if let Some(mut row) = self.requests.remove(&at) {
            row.state = RequestState::Answered;
            out.writes.push(Write::Request(Box::new(row)));
            out.effects.push(ActorEffect::DropRequest { at });
        }
    }

    pub(super) fn expire_permissions(&mut self, out: &mut StepOutput) {
        let now_ms = out.now_ms;
        let due: Vec<u64> = self
            .permissions
            .values()
            .filter(|row| row.deadline_at_ms.is_some_and(|at| at <= now_ms))
            .map(|row| row.request.at)
            .collect();
        for at in due {
            let Some(row) = self.permissions.remove(&at) else { continue };
            let run_id = row.request.run_id;
            let AgentRequestKind::Permission { options, .. } = &row.request.what else { continue };
            let option = permission::reject_once_option(options);
            if self.session.options.non_interactive == NonInteractive::Fail {
                self.fail_without_approver(run_id, out);
            }
            self.resolve_permission(row, option, &ResolvedBy::Auto(AutoResolution::Deadline), out);
        }
    }

    /// Journals a status of the session.
    pub(super) fn report(&mut self, status: serde_json::Value, out: &mut StepOutput) {
        out.event(&mut self.session, None, EventKind::Status, status.to_string());
    }

    pub(super) fn run_event(
        &mut self,
        run_id: Option<RunId>,
        kind: EventKind,
        payload: serde_json::Value,
        out: &mut StepOutput,
    ) {
        let run = run_id.and_then(|id| self.runs.iter_mut().find(|run| run.run_id == id));
        out.event(&mut self.session, run, kind, payload.to_string());
    }
}
