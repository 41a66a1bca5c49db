//! Updates of an agent (`session/update`), for every backend: the kind of the journal row, and what a report changes.

use super::direct::lens;
use crate::agent_settings::SettingsReport;
use crate::event::EventKind;
use crate::jsonrpc::{ObjectMembers, quoted};

/// Update with a piece of the answer.
pub(super) const MESSAGE: &str = "agent_message_chunk";
/// Update with a piece of a thought.
pub(super) const THOUGHT: &str = "agent_thought_chunk";

/// Returns the kind of an update. In a replay every update except settings is one (H10).
pub(super) fn event_kind(variant: &str, is_replay: bool) -> EventKind {
    let setting = matches!(
        variant,
        "available_commands_update"
            | "current_mode_update"
            | "config_option_update"
            | "session_info_update"
            | "usage_update"
    );
    if is_replay && !setting {
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

/// Returns the report in an update, if it is one. `raw` is the `update` object, as received.
pub(super) fn settings_report(variant: &str, raw: &str) -> Option<SettingsReport> {
    match variant {
        "current_mode_update" => {
            let mode = ObjectMembers::parse(raw).ok()?.string("currentModeId")?;
            Some(SettingsReport::Mode(lens::truncate(&mode, lens::ID_CHARS_MAX)))
        }
        "config_option_update" => lens::options(&lens::value(raw)).map(SettingsReport::Options),
        "available_commands_update" => lens::commands(&lens::value(raw)).map(SettingsReport::Commands),
        _ => None,
    }
}

/// Returns the members of `params` other than `sessionId` and `update` as an object, with the values as received. `None`
/// if there are none.
pub(super) fn extra_of(params: &ObjectMembers<'_>) -> Option<String> {
    let rest: Vec<String> = params
        .iter()
        .filter(|(name, _)| !matches!(*name, "sessionId" | "update"))
        .map(|(name, raw)| format!("{}:{raw}", quoted(name)))
        .collect();
    if rest.is_empty() { None } else { Some(format!("{{{}}}", rest.join(","))) }
}
