//! Lines of `sessions watch`: `turn_started`, `message` with one raw message of ACP, `turn_result`.

use super::AcpxMachine;
use super::bridge::BridgeInput;
use super::control;
use super::errors::{AcpxError, FailedStage, Verdict, classify};
use crate::backend::{BackendStep, InputKind, LineFault};
use crate::event::{EventKind, NewEvent};
use crate::failure::Failure;
use crate::intake::AgentLine;
use crate::jsonrpc::{ObjectMembers, RpcMessage, quoted};
use crate::runtime::direct::lens;
use crate::runtime::updates::{event_kind, extra_of, settings_report};
use acp_shared::codes::Code;
use serde_json::{Value, json};

/// Maximum number of starts of the watch command without a line.
const WATCH_STARTS_MAX: u32 = 3;
/// Maximum number of open requests in a turn; those beyond it are not matched with their responses.
const IDS_MAX: usize = 256;

impl AcpxMachine {
    pub(super) fn on_watch_line(&mut self, id: u64, line: &str) -> Vec<BackendStep> {
        let line = AgentLine::repair(line.as_bytes());
        let Ok(members) = ObjectMembers::parse(line.text()) else {
            return vec![
                BackendStep::LineFault(LineFault::Malformed),
                BackendStep::Log("a line of `sessions watch` is not a JSON object".to_owned()),
            ];
        };
        let Some(turn) = self.state.turn.as_mut().filter(|turn| turn.watch == Some(id)) else {
            return Vec::new();
        };
        if let Some(error) = members.get("error") {
            turn.watch_error = Some(AcpxError::read(&lens::value(error)));
            return Vec::new();
        }
        let has_known_cursor = self.state.cursor.is_some();
        if let Some(cursor) = members.string("cursor") {
            self.state.cursor = Some(cursor.into_owned());
            turn.watch_starts = 0;
        }
        let kind = members.string("type").unwrap_or_default();
        let request = members.string("requestId").unwrap_or_default();
        if turn.request.is_none() && has_known_cursor && kind == "turn_started" {
            turn.request = Some(request.clone().into_owned());
            turn.prompt = None;
        }
        if turn.request.as_deref() != Some(&request) {
            return Vec::new();
        }
        match &*kind {
            "message" if members.get("left_out_bytes").is_some() => {
                let text =
                    "A message of the agent was left out: it is longer than a line of the bridge may be.";
                vec![self.status("acpx_message_left_out", text, &[])]
            }
            "message" => members.get("message").map(|raw| self.on_message(raw)).unwrap_or_default(),
            "turn_result" => self.on_turn_result(&lens::value(members.get("result").unwrap_or("null"))),
            _ => Vec::new(),
        }
    }

    /// Handles one message between acpx and the agent, of either direction.
    fn on_message(&mut self, raw: &str) -> Vec<BackendStep> {
        match RpcMessage::parse(raw) {
            Ok(RpcMessage::Notification { method, params }) if method == "session/update" => {
                self.on_update(params)
            }
            Ok(RpcMessage::Notification { method, params }) if !is_of_client(&method) => {
                vec![self.extension(&method, params)]
            }
            Ok(RpcMessage::Notification { .. }) => Vec::new(),
            Ok(RpcMessage::Request { id, method, params }) => self.on_request(id, &method, params),
            Ok(RpcMessage::Response { id, outcome }) => self.on_response(id.unwrap_or("null"), outcome),
            Err(what) => vec![
                BackendStep::LineFault(LineFault::Malformed),
                BackendStep::Log(format!("a message in `sessions watch` is {what}")),
            ],
        }
    }

    fn on_update(&self, params: Option<&str>) -> Vec<BackendStep> {
        let Some(turn) = &self.state.turn else { return Vec::new() };
        let members = params.and_then(|params| ObjectMembers::parse(params).ok());
        let Some((members, raw)) = members.as_ref().and_then(|it| Some((it, it.get("update")?))) else {
            return vec![self.extension("session/update", params)];
        };
        let ours = turn.agent_session.as_deref();
        if ours.is_some_and(|ours| members.string("sessionId").is_some_and(|theirs| theirs != ours)) {
            return vec![self.extension("session/update", params)];
        }
        let update = ObjectMembers::parse(raw).ok();
        let variant = update.and_then(|update| update.string("sessionUpdate").map(String::from));
        let variant = variant.unwrap_or_default();
        // Before the prompt was sent, the agent repeats an old conversation (H10).
        let kind = event_kind(&variant, ours.is_none());
        let event =
            NewEvent { run_id: Some(turn.run_id), kind, payload: raw.to_owned(), extra: extra_of(members) };
        let report = settings_report(&variant, raw).map(BackendStep::SettingsReported);
        [BackendStep::Event(event)].into_iter().chain(report).collect()
    }

    /// Handles a request. Its direction follows from its method, since the ids of both directions overlap.
    fn on_request(&mut self, id: &str, method: &str, params: Option<&str>) -> Vec<BackendStep> {
        let Some(turn) = &mut self.state.turn else { return Vec::new() };
        let params_value = || lens::value(params.unwrap_or("null"));
        if is_of_client(method) {
            if method == "session/prompt" {
                let session = params_value().get("sessionId").and_then(Value::as_str).map(str::to_owned);
                turn.agent_session = session;
            }
            if turn.ids.len() < IDS_MAX {
                turn.ids.insert(id.to_owned(), method.to_owned());
            }
            let is_replaced = method == "session/new" && self.state.has_messages;
            return if is_replaced { self.on_replaced_conversation() } else { Vec::new() };
        }
        if method == "session/request_permission" {
            let params = params_value();
            let title = params.pointer("/toolCall/title").and_then(Value::as_str).unwrap_or("a tool call");
            if turn.asked.len() < IDS_MAX {
                turn.asked.insert(id.to_owned(), lens::truncate(title, 200));
            }
            return Vec::new();
        }
        // Requests for files and terminals are answered by acpx.
        if method.starts_with("fs/") || method.starts_with("terminal/") {
            return Vec::new();
        }
        vec![self.extension(method, params)]
    }

    /// Handles a response of either side.
    fn on_response(&mut self, id: &str, outcome: Result<&str, &str>) -> Vec<BackendStep> {
        let Some(turn) = &mut self.state.turn else { return Vec::new() };
        let is_decision =
            outcome.is_ok_and(|raw| ObjectMembers::parse(raw).is_ok_and(|it| it.get("outcome").is_some()));
        let is_ours = turn.ids.contains_key(id) && !(is_decision && turn.asked.contains_key(id));
        if !is_ours {
            let Some(title) = turn.asked.remove(id) else { return Vec::new() };
            return vec![self.permission_status(&title, outcome)];
        }
        let method = turn.ids.remove(id).unwrap_or_default();
        if method == "session/prompt" {
            match outcome {
                Ok(result) => turn.result = Some(result.to_owned()),
                Err(error) => turn.error = Some(error.to_owned()),
            }
        }
        Vec::new()
    }

    /// Builds the status of a permission that acpx settled without a person.
    fn permission_status(&self, title: &str, outcome: Result<&str, &str>) -> BackendStep {
        let decided = outcome.map(lens::value).unwrap_or_default();
        let option = decided.pointer("/outcome/optionId").and_then(Value::as_str);
        let decision = option.map_or_else(
            || "cancelled the request".to_owned(),
            |option| format!("chose {}", quoted(&lens::truncate(option, 100))),
        );
        let text = format!("acpx {decision} for {} by its permission mode.", quoted(title));
        self.status("acpx_permission", &text, &[("option_id", json!(option))])
    }

    /// Ends a session whose conversation acpx replaced by a new one.
    fn on_replaced_conversation(&mut self) -> Vec<BackendStep> {
        let Some(turn) = &self.state.turn else { return Vec::new() };
        let run_id = turn.run_id;
        let text = format!(
            "{} The agent could not load the conversation, and acpx began a new one with this prompt.",
            Code::Uncertain.text()
        );
        let failure = Failure::new(Code::Uncertain, text).detail("CONVERSATION_REPLACED").origin("acpx");
        let text = format!("{} acpx replaced it by a new one.", Code::ResumeUnavailable.text());
        let lost = Failure::new(Code::ResumeUnavailable, text).detail("CONVERSATION_REPLACED").origin("acpx");
        let mut steps: Vec<BackendStep> = self.cancel_turn(run_id);
        for step in &mut steps {
            if let BackendStep::Send { kind, .. } = step {
                *kind = InputKind::Control;
            }
        }
        steps.push(BackendStep::TurnFailed { run_id, failure });
        steps.extend(self.fail(lost));
        steps
    }

    /// Ends the turn. Only `turn_result` does: a result of the agent may be followed by an error of acpx.
    fn on_turn_result(&mut self, result: &Value) -> Vec<BackendStep> {
        let Some(turn) = &self.state.turn else { return Vec::new() };
        let run_id = turn.run_id;
        self.state.has_messages = true;
        let text = |name: &str| result.get(name).and_then(Value::as_str).unwrap_or_default();
        let stop_reason = match text("status") {
            "completed" => text("stopReason").to_owned(),
            "cancelled" => "cancelled".to_owned(),
            "failed" => return self.on_turn_failure(result),
            _ => return self.protocol_error("acpx ended a turn with an unknown status."),
        };
        let raw = turn.result.clone().unwrap_or_else(|| json!({ "stopReason": stop_reason }).to_string());
        self.end_turn(|is_cancelled| {
            if stop_reason == "cancelled" && !is_cancelled {
                let text = format!("{} The turn was cancelled without a request.", Code::TurnFailed.text());
                let failure = Failure::new(Code::TurnFailed, text).detail("AGENT_CANCELLED").retryable();
                return BackendStep::TurnFailed { run_id, failure: failure.origin("agent") };
            }
            BackendStep::TurnDone { run_id, stop_reason, result: raw }
        })
    }

    fn on_turn_failure(&mut self, result: &Value) -> Vec<BackendStep> {
        let Some(turn) = &self.state.turn else { return Vec::new() };
        let (run_id, raw) = (turn.run_id, turn.error.clone());
        let error = AcpxError::read(result.get("error").unwrap_or(&Value::Null));
        let agent_error = raw.as_deref().map(lens::raw_error);
        match classify(&error, FailedStage::Turn, agent_error.as_deref()) {
            Verdict::Uncertain(_) => self.end_uncertain(&error, &error.detail),
            Verdict::Unusable(failure) => self.fail(failure),
            Verdict::Failed(failure) | Verdict::Retry { failure, .. } => self.end_turn(|is_cancelled| {
                if !is_cancelled {
                    return BackendStep::TurnFailed { run_id, failure };
                }
                let error = raw.as_deref().map_or(Value::Null, lens::value);
                let result =
                    json!({ "stopReason": "cancelled", "_meta": { "acp-host": { "error": error } } });
                let stop_reason = "cancelled".to_owned();
                BackendStep::TurnDone { run_id, stop_reason, result: result.to_string() }
            }),
        }
    }

    /// Handles the end of the watch command in a turn: it is started again at the cursor.
    pub(super) fn on_watch_exit(&mut self, id: u64) -> Vec<BackendStep> {
        let Some(turn) = self.state.turn.as_mut().filter(|turn| turn.watch == Some(id)) else {
            return Vec::new();
        };
        let error = turn.watch_error.take();
        let is_unknown = error.as_ref().is_some_and(|error| {
            matches!(classify(error, FailedStage::Turn, None), Verdict::Uncertain(_) | Verdict::Unusable(_))
        });
        let has_accepted = turn.request.is_some();
        if (is_unknown && has_accepted) || turn.watch_starts >= WATCH_STARTS_MAX {
            let error = error.unwrap_or_else(|| AcpxError::without_report("sessions watch", None));
            let detail =
                if error.detail.is_empty() { "WATCH_ENDED".to_owned() } else { error.detail.clone() };
            return self.end_uncertain(&error, &detail);
        }
        if !has_accepted && self.state.cursor.is_none() {
            return Vec::new();
        }
        vec![control(&BridgeInput::Watch(self.watch_command()))]
    }

    fn extension(&self, method: &str, params: Option<&str>) -> BackendStep {
        let method = quoted(method);
        let payload = match params {
            Some(params) => format!("{{\"method\":{method},\"params\":{params}}}"),
            None => format!("{{\"method\":{method}}}"),
        };
        self.event(EventKind::Extension, payload, None)
    }
}

/// True for methods that acpx sends to the agent.
fn is_of_client(method: &str) -> bool {
    matches!(method, "initialize" | "authenticate" | "$/cancel_request")
        || (method.starts_with("session/")
            && !matches!(method, "session/update" | "session/request_permission"))
}
