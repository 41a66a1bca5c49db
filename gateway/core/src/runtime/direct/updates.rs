//! Updates of the agent: each one is journaled as received, with the kind that determines how to read it.

use super::DirectMachine;
use super::halves::{MESSAGE, THOUGHT};
use super::lens;
use super::state::booleans;
use crate::agent_settings::SettingsReport;
use crate::backend::BackendStep;
use crate::event::{EventKind, NewEvent};
use crate::intake::AgentLine;
use crate::jsonrpc::{ObjectMembers, quoted};

impl DirectMachine {
    pub(super) fn on_notification(
        &mut self,
        method: &str,
        params: Option<&str>,
        line: &AgentLine<'_>,
    ) -> Vec<BackendStep> {
        match method {
            "session/update" => self.on_session_update(params, line),
            "elicitation/complete" => self.flush_half_then(|link| link.on_page_complete(params)),
            "$/cancel_request" => self.flush_half_then(|link| link.on_cancel_request(params)),
            _ => self.flush_half_then(|link| vec![link.extension(method, params)]),
        }
    }

    fn on_session_update(&mut self, params: Option<&str>, line: &AgentLine<'_>) -> Vec<BackendStep> {
        let method = "session/update";
        let members = params.and_then(|params| ObjectMembers::parse(params).ok());
        let Some((members, raw)) = members.as_ref().and_then(|m| Some((m, m.get("update")?))) else {
            return vec![
                BackendStep::Log("session/update without an update".to_owned()),
                self.extension(method, params),
            ];
        };
        let session_id = members.string("sessionId");
        if let (Some(theirs), Some(ours)) = (&session_id, &self.state.session_id)
            && theirs != ours
        {
            let note = format!("an update for another session: {}", lens::truncate(theirs, 100));
            return vec![BackendStep::Log(note), self.extension(method, params)];
        }
        let update = ObjectMembers::parse(raw).ok();
        let variant = update.as_ref().and_then(|update| update.string("sessionUpdate"));
        let kind = self.kind_of(variant.as_deref().unwrap_or_default());
        let (flushed, payload) = self.rejoin(variant.as_deref(), raw, line);
        let mut steps: Vec<BackendStep> = flushed.into_iter().collect();
        let extra = extra_of(members);
        steps.push(BackendStep::Event(NewEvent { run_id: self.state.run_id(), kind, payload, extra }));
        if let (EventKind::ToolCall | EventKind::ToolCallUpdate, Some(update)) = (kind, &update)
            && !self.state.calls.update(update)
        {
            let note = "too many open tool calls: a permission request for one may lack its description";
            steps.push(BackendStep::Log(note.to_owned()));
        }
        let (mode, report) = match (variant.as_deref(), &update) {
            (Some("current_mode_update"), Some(update)) => {
                let mode = update.string("currentModeId");
                let mode = mode.map(|mode| lens::truncate(&mode, lens::ID_CHARS_MAX));
                (mode.clone(), mode.map(SettingsReport::Mode))
            }
            (Some("config_option_update"), Some(_)) => {
                let update = lens::value(raw);
                let options = lens::options(&update);
                self.state.wire.booleans = options.as_deref().map(booleans).unwrap_or_default();
                (lens::mode_in_options(&update), options.map(SettingsReport::Options))
            }
            (Some("available_commands_update"), Some(_)) => {
                (None, lens::commands(&lens::value(raw)).map(SettingsReport::Commands))
            }
            _ => (None, None),
        };
        steps.extend(report.clone().map(BackendStep::SettingsReported));
        steps.extend(self.record_asking(mode, report.as_ref()));
        steps
    }

    /// Returns the kind of an update. From the opening of an old conversation until its first prompt, every
    /// update except settings is a replay (H10), also from agents that should not replay.
    pub(super) fn kind_of(&self, variant: &str) -> EventKind {
        let setting = matches!(
            variant,
            "available_commands_update"
                | "current_mode_update"
                | "config_option_update"
                | "session_info_update"
                | "usage_update"
        );
        if self.state.resumed && !self.state.prompted && !setting {
            return EventKind::Replay;
        }
        match variant {
            MESSAGE => EventKind::AgentMessage,
            THOUGHT => EventKind::AgentThought,
            "tool_call" => EventKind::ToolCall,
            "tool_call_update" => EventKind::ToolCallUpdate,
            "plan" => EventKind::Plan,
            _ => EventKind::Update,
        }
    }
}

/// Returns the members of `params` other than `sessionId` and `update` as an object, with the values as received. `None`
/// if there are none.
fn extra_of(params: &ObjectMembers<'_>) -> Option<String> {
    let rest: Vec<String> = params
        .iter()
        .filter(|(name, _)| !matches!(*name, "sessionId" | "update"))
        .map(|(name, raw)| format!("{}:{raw}", quoted(name)))
        .collect();
    if rest.is_empty() { None } else { Some(format!("{{{}}}", rest.join(","))) }
}
