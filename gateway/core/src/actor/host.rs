//! Agent host: decision by the permission mode, question and start of file and terminal requests
//! (H3, A2).
//!
//! Requests are `received` until decided, and `started` from then on. A restart decides received requests
//! again, except those with a pending question.

use super::{Actor, ActorEffect, Lease, StepOutput};
use crate::backend::{AgentRequest, AgentRequestKind};
use crate::event::EventKind;
use crate::host::{
    DecisionReason, EffectContext, EffectDecision, Grant, HostEffect, HostQuestion, Inspection, RequestTurn,
    command_line, decide_effect,
};
use crate::jsonrpc::REFUSED;
use crate::jsonrpc::RpcError;
use crate::permission::Voters;
use crate::rows::{AgentRequestRow, AutoResolution, PermissionRow, RequestState, ResolvedBy};
use crate::session::SessionState;
use crate::writes::Write;
use acp_shared::ids::RunId;
use serde_json::json;
use sha2::{Digest, Sha256};

/// Maximum total size of waiting answers, in bytes, at which a request with a large answer is carried out.
const WAITING_BYTES_MAX: usize = 1024 * 1024;

/// True for a request whose answer may be large: content of a file, output of a terminal.
const fn has_large_answer(row: &AgentRequestRow) -> bool {
    matches!(row.request.what, AgentRequestKind::FsRead { .. } | AgentRequestKind::TerminalOutput { .. })
}

/// True for a request that needs no further decision.
const fn is_decided(row: &AgentRequestRow) -> bool {
    !matches!(row.state, RequestState::Received) || HostEffect::of(&row.request.what).is_none()
}

impl Actor {
    /// Handles a request for a file or a terminal.
    pub(super) fn on_host_request(&mut self, request: AgentRequest, out: &mut StepOutput) {
        let Some(lease) = &self.lease else { return };
        let at = request.at;
        let row = AgentRequestRow {
            lease_id: lease.row.lease_id,
            session_key: self.session.session_key.clone(),
            request,
            state: RequestState::Received,
            intent: None,
        };
        self.requests.insert(at, row);
        self.decide_host_request(at, None, out);
    }

    /// Resumes open requests after a restart, as their state requires. A pending question stays.
    pub(super) fn resume_agent_requests(&mut self, out: &mut StepOutput) {
        let open: Vec<u64> =
            self.requests.keys().filter(|at| !self.permissions.contains_key(at)).copied().collect();
        for at in open {
            let Some(row) = self.requests.get(&at) else { continue };
            if is_decided(row) {
                self.perform(at, true, out);
            } else {
                self.decide_host_request(at, None, out);
            }
        }
    }

    /// Carries out a decided request. One with a large answer may wait for others.
    fn perform(&mut self, at: u64, again: bool, out: &mut StepOutput) {
        match self.requests.get(&at) {
            Some(row) if has_large_answer(row) => self.perform_next_read(again, out),
            Some(row) => out.effects.push(ActorEffect::Perform { row: Box::new(row.clone()), again }),
            None => {}
        }
    }

    /// Carries out the next request with a large answer: one at a time, and only while the agent reads its
    /// input, since answers are kept in memory and in the outbox until then.
    pub(super) fn perform_next_read(&mut self, again: bool, out: &mut StepOutput) {
        let waiting = self.lease.as_ref().map_or(0, Lease::waiting_answer_bytes);
        if self.reading.is_some_and(|at| self.requests.contains_key(&at)) || waiting > WAITING_BYTES_MAX {
            return;
        }
        let next = self.requests.values().find(|row| has_large_answer(row) && is_decided(row));
        self.reading = next.map(|row| row.request.at);
        out.effects.extend(next.map(|row| ActorEffect::Perform { row: Box::new(row.clone()), again }));
    }

    /// Handles the result of [`ActorEffect::Inspect`].
    pub(super) fn on_inspected(
        &mut self,
        at: u64,
        found: Result<Inspection, RpcError>,
        out: &mut StepOutput,
    ) {
        let is_open = |row: &AgentRequestRow| row.state == RequestState::Received;
        if self.permissions.contains_key(&at) || !self.requests.get(&at).is_some_and(is_open) {
            return;
        }
        match found {
            Ok(found) => self.decide_host_request(at, Some(&found), out),
            Err(error) => self.on_request_done(at, Err(error), out),
        }
    }

    /// Decides a received request. A write is inspected first, unless the mode alone decides.
    fn decide_host_request(&mut self, at: u64, found: Option<&Inspection>, out: &mut StepOutput) {
        let Some(row) = self.requests.get(&at) else { return };
        let Some(effect) = HostEffect::of(&row.request.what) else {
            self.start_request(at, out);
            return;
        };
        let run_id = row.request.run_id;
        let is_granted =
            self.session.options.grants.covers(run_id, &row.request.what, found, &self.session.cwd);
        let run = run_id.and_then(|id| self.runs.iter().find(|run| run.run_id == id));
        let (mode, non_interactive) = self.permission_settings(run);
        let decision = decide_effect(
            effect,
            EffectContext {
                mode,
                non_interactive,
                turn: match run {
                    None => RequestTurn::None,
                    Some(run) if run.interactive => RequestTurn::Interactive,
                    Some(_) => RequestTurn::Unattended,
                },
                is_stopping: self.session.state == SessionState::Cancelling,
                is_granted,
            },
        );
        let is_by_mode = matches!(
            decision,
            EffectDecision::Perform(DecisionReason::Mode)
                | EffectDecision::Refuse(DecisionReason::Mode | DecisionReason::Stopped)
        );
        match (found, decision) {
            (None, _) if effect == HostEffect::Write && !is_by_mode => {
                out.writes.push(Write::Request(Box::new(row.clone())));
                out.effects.push(ActorEffect::Inspect { row: Box::new(row.clone()) });
            }
            (Some(same), _) if same.is_same && !is_by_mode => {
                self.session.options.grants.consume(run_id, &row.request.what, found, &self.session.cwd);
                self.host_event(at, "allowed", DecisionReason::Unchanged, out);
                self.finish_request(at, Ok("{}".to_owned()), out);
            }
            (found, EffectDecision::Perform(reason)) => {
                if reason == DecisionReason::Granted {
                    let what = row.request.what.clone();
                    self.session.options.grants.consume(run_id, &what, found, &self.session.cwd);
                }
                self.bind_to_inspected_file(at, found);
                self.host_event(at, "allowed", reason, out);
                self.start_request(at, out);
            }
            (_, EffectDecision::Refuse(reason)) => self.refuse_effect(at, reason, out),
            (_, EffectDecision::FailRun) => {
                self.fail_without_approver(run_id, out);
                self.refuse_effect(at, DecisionReason::Nobody, out);
            }
            (found, EffectDecision::Ask) => {
                self.bind_to_inspected_file(at, found);
                self.ask_person(at, found, out);
            }
        }
    }

    /// Binds a write to the inspected file: the requested path may resolve to another file later.
    fn bind_to_inspected_file(&mut self, at: u64, found: Option<&Inspection>) {
        if let (Some(found), Some(row)) = (found, self.requests.get_mut(&at))
            && let AgentRequestKind::FsWrite { path, .. } = &mut row.request.what
        {
            path.clone_from(&found.path);
        }
    }

    /// Asks a person before an effect, with an ordinary permission row under the request's key.
    fn ask_person(&mut self, at: u64, found: Option<&Inspection>, out: &mut StepOutput) {
        let Some(row) = self.requests.get(&at) else { return };
        let question = match (&row.request.what, found) {
            (AgentRequestKind::FsWrite { content, .. }, Some(found)) => {
                HostQuestion::write(at, found, content)
            }
            (AgentRequestKind::TerminalCreate { command, args, env, cwd, .. }, _) => {
                HostQuestion::run(at, &command_line(command, args), self.other_dir(cwd), &names(env))
            }
            _ => return,
        };
        let (run_id, method) = (row.request.run_id, row.request.method.clone());
        let (params, is_recalled, voters) = (question.params.to_string(), false, Voters::Anyone);
        let request = AgentRequest { at, run_id, method, params, what: question.what, is_recalled, voters };
        out.writes.push(Write::Request(Box::new(row.clone())));
        let Some(permission) = self.new_permission(request, out) else { return };
        out.writes.push(Write::Permission(Box::new(permission.clone())));
        self.permissions.insert(at, permission);
    }

    /// Handles the answer to a question of the host: the kind of the chosen option, or none.
    pub(super) fn on_host_answer(
        &mut self,
        at: u64,
        option_kind: Option<&str>,
        by: &ResolvedBy,
        out: &mut StepOutput,
    ) {
        let Some(row) = self.requests.get(&at) else { return };
        let effect = HostEffect::of(&row.request.what);
        let reason = match by {
            ResolvedBy::Person(_) => DecisionReason::Answer,
            ResolvedBy::Auto(AutoResolution::Policy) => DecisionReason::Mode,
            ResolvedBy::Auto(AutoResolution::Deadline) => DecisionReason::Deadline,
            ResolvedBy::Auto(_) => DecisionReason::Stopped,
        };
        match (option_kind, effect) {
            (Some("allow_once"), _) => {}
            (Some("allow_always"), Some(effect)) => self.session.options.grants.add(Grant::Always(effect)),
            _ => {
                self.refuse_effect(at, reason, out);
                return;
            }
        }
        self.host_event(at, "allowed", reason, out);
        self.start_request(at, out);
    }

    /// Adds the grant of an answer to the agent's own question, so that the host does not ask again.
    pub(super) fn add_answer_grant(&mut self, row: &PermissionRow, option_kind: &str) {
        let params: serde_json::Value = serde_json::from_str(&row.request.params).unwrap_or_default();
        self.session.options.grants.add_answer(row.request.run_id, option_kind, &params["toolCall"]);
    }

    /// Records the start of a request and carries it out.
    fn start_request(&mut self, at: u64, out: &mut StepOutput) {
        let Some(row) = self.requests.get_mut(&at) else { return };
        row.intent = match &row.request.what {
            AgentRequestKind::FsWrite { content, .. } => {
                Some(format!("{:x}", Sha256::digest(content.as_bytes())))
            }
            AgentRequestKind::TerminalCreate { .. } => Some(out.mint_lease().to_string()),
            _ => None,
        };
        if HostEffect::of(&row.request.what).is_some() {
            row.state = RequestState::Started;
        }
        out.writes.push(Write::Request(Box::new(row.clone())));
        self.perform(at, false, out);
    }

    /// Recalls allowed effects that may not have been sent yet, of one run or of all. For a command the recall
    /// is committed, since a restart would start it otherwise; a restart never repeats a write (H3).
    pub(super) fn recall_effects(&mut self, run_id: Option<RunId>, out: &mut StepOutput) {
        for row in self.requests.values_mut() {
            let is_meant = run_id.is_none() || row.request.run_id == run_id;
            let effect = HostEffect::of(&row.request.what).filter(|effect| *effect != HostEffect::Read);
            let (Some(effect), RequestState::Started, true) = (effect, row.state, is_meant) else { continue };
            if effect == HostEffect::Run && !row.request.is_recalled {
                row.request.is_recalled = true;
                out.writes.push(Write::Request(Box::new(row.clone())));
            }
            out.effects.push(ActorEffect::Recall { at: row.request.at });
        }
    }

    fn refuse_effect(&mut self, at: u64, reason: DecisionReason, out: &mut StepOutput) {
        self.host_event(at, "refused", reason, out);
        let error = RpcError { code: REFUSED, message: reason.refusal().to_owned() };
        self.finish_request(at, Err(error), out);
    }

    /// Journals the outcome of an effect.
    fn host_event(&mut self, at: u64, outcome: &str, reason: DecisionReason, out: &mut StepOutput) {
        self.journal_effect(at, json!({ "outcome": outcome, "reason": reason.as_str() }), out);
    }

    /// Journals the failure of an effect.
    pub(super) fn journal_failure(&mut self, at: u64, error: &RpcError, out: &mut StepOutput) {
        self.journal_effect(at, json!({ "outcome": "failed", "message": error.message }), out);
    }

    fn journal_effect(&mut self, at: u64, mut payload: serde_json::Value, out: &mut StepOutput) {
        let Some(row) = self.requests.get(&at) else { return };
        let Some(effect) = HostEffect::of(&row.request.what) else { return };
        payload["request_id"] = json!(format!("{}:{at}", row.lease_id));
        payload["effect"] = json!(effect.as_str());
        payload["method"] = json!(row.request.method);
        match &row.request.what {
            AgentRequestKind::FsRead { path, .. } | AgentRequestKind::FsWrite { path, .. } => {
                payload["path"] = json!(path)
            }
            AgentRequestKind::TerminalCreate { command, args, env, cwd, .. } => {
                payload["command"] = json!(command_line(command, args));
                if let Some(dir) = self.other_dir(cwd) {
                    payload["cwd"] = json!(dir);
                }
                if !env.is_empty() {
                    payload["env"] = json!(names(env));
                }
            }
            _ => {}
        }
        let run_id = row.request.run_id;
        self.run_event(run_id, EventKind::HostRequest, payload, out);
    }

    /// Directory of a command, if different from the session's.
    fn other_dir<'a>(&self, cwd: &'a Option<String>) -> Option<&'a str> {
        cwd.as_deref().filter(|cwd| *cwd != self.session.cwd)
    }
}

/// Names of the variables set for a command. Their values may be secrets.
fn names(env: &[(String, String)]) -> Vec<&str> {
    env.iter().map(|(name, _)| name.as_str()).collect()
}
