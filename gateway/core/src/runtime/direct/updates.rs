//! Updates of the agent: each one is journaled as received, with the kind that determines how to read it.

use super::DirectMachine;
use super::lens;
use super::state::booleans;
use crate::agent_settings::SettingsReport;
use crate::backend::BackendStep;
use crate::event::{EventKind, NewEvent};
use crate::intake::AgentLine;
use crate::jsonrpc::ObjectMembers;
use crate::runtime::updates::{event_kind, extra_of, settings_report};

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
        let report = update.as_ref().and_then(|_| settings_report(variant.as_deref()?, raw));
        let mode = match &report {
            Some(SettingsReport::Mode(mode)) => Some(mode.clone()),
            _ if variant.as_deref() == Some("config_option_update") => {
                let update = lens::value(raw);
                self.state.wire.booleans =
                    lens::options(&update).as_deref().map(booleans).unwrap_or_default();
                lens::mode_in_options(&update)
            }
            _ => None,
        };
        steps.extend(report.clone().map(BackendStep::SettingsReported));
        steps.extend(self.record_asking(mode, report.as_ref()));
        steps
    }

    /// Returns the kind of an update. From the opening of an old conversation until its first prompt, every
    /// update except settings is a replay (H10), also from agents that should not replay.
    pub(super) fn kind_of(&self, variant: &str) -> EventKind {
        event_kind(variant, self.state.resumed && !self.state.prompted)
    }
}
