//! Requests of the agent: permissions, files and terminals (H3 and H4).

use super::input::{CommandReply, IdempotencyRecord, QuestionAnswer};
use super::{Actor, ActorEffect, StepOutput};
use crate::backend::{AgentRequest, AgentRequestKind, PermissionOption, RequestReply, RpcOutcome};
use crate::elicitation::{self, Elicitation, ElicitationAnswer};
use crate::event::EventKind;
use crate::failure::Failure;
use crate::host::{ANSWER_BYTES_MAX, too_long_answer};
use crate::jsonrpc::REFUSED;
use crate::permission::{self, NOT_A_VOTER, NOT_PENDING, PermissionDecision, Voter};
use crate::rows::{
    AutoResolution, NonInteractive, PermissionMode, PermissionRow, PermissionState, RequestState, ResolvedBy,
    RunPermissions, RunRow,
};
use crate::session::SessionState;
use crate::writes::Write;
use acp_shared::codes::Code;
use acp_shared::ids::RunId;
use serde_json::json;

/// Resolution of a question.
#[derive(Debug, Default)]
struct Resolution {
    /// Chosen option; `None` if the question was cancelled.
    option_id: Option<String>,
    /// Answer to an elicitation; `None` for the one that the option stands for.
    answer: Option<ElicitationAnswer>,
}

impl From<Option<String>> for Resolution {
    fn from(option_id: Option<String>) -> Self {
        Self { option_id, answer: None }
    }
}

impl Actor {
    pub(super) fn on_agent_request(&mut self, request: AgentRequest, out: &mut StepOutput) {
        if request.what.is_question() {
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
        let run = request.run_id.and_then(|id| self.runs.iter().find(|run| run.run_id == id));
        let interactive = run.is_some_and(|run| run.interactive);
        let (tool_kind, options) = match &request.what {
            AgentRequestKind::Permission { tool_kind, options, .. } => (tool_kind, options),
            // No mode can answer for a person, and nothing is permitted by an answer.
            AgentRequestKind::Elicitation { .. } if interactive => return PermissionDecision::Ask,
            AgentRequestKind::Elicitation { .. } => {
                return PermissionDecision::Reject(elicitation::DECLINE.to_owned());
            }
            _ => return PermissionDecision::Cancel,
        };
        let (mode, non_interactive) = self.permission_settings(run);
        permission::decide_permission(mode, non_interactive, interactive, options, tool_kind.as_deref())
    }

    /// Checks that the permission settings of a run can be applied: a process that decides permissions itself knows those
    /// of the session only.
    ///
    /// # Errors
    /// `USAGE` if they differ from the session's.
    pub(super) fn check_run_permissions(&self, run: RunPermissions) -> Result<(), Failure> {
        let session = &self.session.options;
        let Some(applied) = self.backend.own_permission_mode(session.permission) else { return Ok(()) };
        let is_other_mode =
            run.mode.is_some_and(|mode| self.backend.own_permission_mode(mode) != Some(applied));
        let is_other_policy = run.non_interactive.is_some_and(|policy| policy != session.non_interactive);
        if is_other_mode || is_other_policy {
            let text = format!(
                "The backend {} has no permission settings for one prompt. Change those of the session: \
                 `acp-gateway sessions set {} --permission MODE` or `--non-interactive-permissions POLICY`.",
                self.session.backend, self.session.session_key
            );
            return Err(Failure::new(Code::Usage, text).detail("NOT_SUPPORTED").origin("gateway"));
        }
        Ok(())
    }

    /// Returns permission mode and non-interactive policy: those of the run, or else the session's.
    pub(super) fn permission_settings(&self, run: Option<&RunRow>) -> (PermissionMode, NonInteractive) {
        let own = run.map(|run| run.permissions).unwrap_or_default();
        let settings = &self.session.options;
        (own.mode.unwrap_or(settings.permission), own.non_interactive.unwrap_or(settings.non_interactive))
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
        mut request: AgentRequest,
        out: &mut StepOutput,
    ) -> Option<PermissionRow> {
        let asked_by = self.runs.iter().find(|run| Some(run.run_id) == request.run_id);
        let asked_by = asked_by.map_or("", |run| run.asked_by.as_str());
        request.voters = self.session.options.voting.voters(asked_by);
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
        if let AgentRequestKind::Elicitation { form, options, .. } = &row.request.what {
            payload["form"] = form_payload(form, options);
        }
        if let Some(at_ms) = deadline {
            payload["deadline_at_ms"] = json!(at_ms);
        }
        if !row.request.voters.is_anyone() {
            payload["voters"] = json!(row.request.voters);
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
        permission_id: &str,
        answer: QuestionAnswer,
        by: Voter,
        keyed: Option<IdempotencyRecord>,
        out: &mut StepOutput,
    ) -> Result<CommandReply, Failure> {
        // The deadline may have passed before the next tick.
        self.expire_permissions(out);
        // H4: no answer to a process that has ended or is being ended, though output of it may be unread.
        let hears = self.lease.as_ref().is_some_and(|lease| !lease.closing && lease.ended.is_none());
        let found = self.permissions.values().find(|row| hears && row.permission_id() == permission_id);
        let Some(row) = found else {
            let text = "This permission request is unknown, already resolved, or its turn has ended.";
            return Err(Failure::new(Code::Usage, text).detail(NOT_PENDING));
        };
        if !row.request.voters.admit(&by) {
            let text = row.request.voters.refusal();
            return Err(Failure::new(Code::PermissionDenied, text).detail(NOT_A_VOTER).origin("gateway"));
        }
        let resolution = resolution(&row.request.what, answer)?;
        let at = row.request.at;
        if let Some(row) = self.permissions.remove(&at) {
            self.resolve_permission(row, resolution, &ResolvedBy::Person(by.name), out);
        }
        out.remember(keyed, &true);
        Ok(CommandReply::Done)
    }

    /// Resolves a question with an option, or as cancelled, and answers the agent, in one transaction (H4).
    fn resolve_permission(
        &mut self,
        mut row: PermissionRow,
        resolution: impl Into<Resolution>,
        by: &ResolvedBy,
        out: &mut StepOutput,
    ) {
        let at = row.request.at;
        let Resolution { option_id, answer } = resolution.into();
        let (outcome, state) = match option_id {
            Some(_) => ("selected", PermissionState::Answered),
            None => ("cancelled", PermissionState::Expired),
        };
        row.state = state;
        row.option_id.clone_from(&option_id);
        row.resolved_by = Some(by.clone());
        let (permission_id, run_id) = (row.permission_id(), row.request.run_id);
        let mut payload =
            json!({ "permission_id": permission_id, "outcome": outcome, "option_id": option_id });
        match by {
            ResolvedBy::Person(name) => payload["by"] = json!(name),
            ResolvedBy::Auto(without) => payload["without"] = json!(without.as_str()),
        }
        if let Some(name) = row.option_name() {
            payload["option_name"] = json!(name);
        }
        let option = row.request.what.options().iter().find(|option| Some(&option.id) == option_id.as_ref());
        let option_kind = option.map(|option| option.kind.clone());
        let is_hosts = self.requests.contains_key(&at);
        let is_agents = matches!(row.request.what, AgentRequestKind::Permission { .. }) && !is_hosts;
        if let (ResolvedBy::Person(_), Some(kind), true) = (by, &option_kind, is_agents) {
            self.add_answer_grant(&row, kind);
        }
        let (result, is_rejection) = match row.request.what.elicitation() {
            Some(form) => {
                let answer = answer.or_else(|| form.answer_of(option_id.as_deref()?));
                let answer = answer.unwrap_or(ElicitationAnswer::Cancel);
                payload["action"] = json!(answer.action());
                (elicitation::result(&answer), !matches!(answer, ElicitationAnswer::Accept { .. }))
            }
            None => (
                option_id.as_deref().map_or_else(permission::cancelled_result, permission::selected_result),
                !option_kind.as_ref().is_some_and(|kind| kind.starts_with("allow")),
            ),
        };
        out.writes.push(Write::Permission(Box::new(row)));
        self.run_event(run_id, EventKind::PermissionSettled, payload, out);
        if is_hosts {
            self.on_host_answer(at, option_kind.as_deref(), by, out);
        } else {
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
            let mut payload = json!({
                "permission_id": row.permission_id(), "outcome": "cancelled",
                "without": AutoResolution::Agent.as_str(),
            });
            if row.request.what.elicitation().is_some() {
                payload["action"] = json!(ElicitationAnswer::Cancel.action());
            }
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
            // `None` for an elicitation: it is dismissed, since nobody refused.
            let option = permission::reject_once_option(row.request.what.options());
            let is_permission = row.request.what.elicitation().is_none();
            if is_permission && self.session.options.non_interactive == NonInteractive::Fail {
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

/// Reads a person's answer to a question.
fn resolution(asked: &AgentRequestKind, answer: QuestionAnswer) -> Result<Resolution, Failure> {
    match (answer, asked.elicitation()) {
        (QuestionAnswer::Option(id), form) => {
            let is_known = asked.options().iter().any(|option| option.id == id);
            if !is_known {
                let known: Vec<&str> = asked.options().iter().map(|option| option.id.as_str()).collect();
                let text = format!("There is no option {id:?}; the agent offers: {}.", known.join(", "));
                return Err(Failure::new(Code::Usage, text).detail(permission::UNKNOWN_OPTION));
            }
            Ok(Resolution { answer: form.and_then(|form| form.answer_of(&id)), option_id: Some(id) })
        }
        (QuestionAnswer::Elicitation(answer), Some(form)) => {
            if let ElicitationAnswer::Accept { content } = &answer {
                let invalid = |text| Failure::new(Code::Usage, text).detail(elicitation::INVALID);
                form.check(content).map_err(invalid)?;
            }
            Ok(Resolution { option_id: form.option_of(&answer), answer: Some(answer) })
        }
        (QuestionAnswer::Dismissed, form) => {
            Ok(Resolution { option_id: None, answer: form.map(|_| ElicitationAnswer::Cancel) })
        }
        (QuestionAnswer::Elicitation(_), None) => {
            let text = "This is a permission request: answer it with one of its options.";
            Err(Failure::new(Code::Usage, text).detail(permission::UNKNOWN_OPTION))
        }
    }
}

/// The question as all clients show it.
fn form_payload(form: &Elicitation, options: &[PermissionOption]) -> serde_json::Value {
    let mut payload = json!(form);
    let listed = |it: &PermissionOption| json!({ "optionId": it.id, "name": it.name, "kind": it.kind });
    payload["options"] = options.iter().map(listed).collect();
    payload
}
