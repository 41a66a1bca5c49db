//! Rows for tests. A test sets the fields it needs: `BindingRow { status, ..tests::binding() }`.

use crate::event::{EventKind, EventRow};
use crate::rows::{
    BindingRow, BindingStatus, ConversationRef, NonInteractive, PermissionMode, SessionMode, SessionOptions,
    SessionRow, TargetKind,
};
use crate::session::SessionState;
use acp_shared::ids::{AgentName, BindingId, GatewayInstanceId, SessionKey};
use serde_json::Value;

/// Lists the cases of `subject`, one line for each outcome.
pub(crate) fn grouped(subject: &str, outcomes: impl IntoIterator<Item = (String, String)>) -> String {
    let mut groups: Vec<(String, Vec<String>)> = Vec::new();
    for (case, outcome) in outcomes {
        match groups.iter_mut().find(|(known, _)| *known == outcome) {
            Some((_, cases)) => cases.push(case),
            None => groups.push((outcome, vec![case])),
        }
    }
    groups.iter().map(|(outcome, cases)| format!("{subject} {}: {outcome}\n", cases.join(", "))).collect()
}

pub(crate) fn session_key() -> SessionKey {
    SessionKey::parse("agent:demo:acp:1").unwrap()
}

pub(crate) fn event(kind: EventKind, payload: &Value) -> EventRow {
    EventRow {
        session_key: session_key(),
        session_seq: 1,
        run_id: None,
        seq: None,
        kind,
        payload: payload.to_string(),
        extra: None,
        created_at_ms: 0,
    }
}

pub(crate) fn conversation(id: &str, parent: Option<&str>) -> ConversationRef {
    ConversationRef {
        channel: "console".to_owned(),
        account_id: "default".to_owned(),
        conversation_id: id.to_owned(),
        parent_conversation_id: parent.map(str::to_owned),
    }
}

/// Returns an active binding without timeouts.
pub(crate) fn binding() -> BindingRow {
    BindingRow {
        binding_id: BindingId::mint(),
        conversation: conversation("c", None),
        session_key: session_key(),
        target_kind: TargetKind::Session,
        status: BindingStatus::Active,
        bound_by: "ann".to_owned(),
        bound_at_ms: 1,
        last_activity_at_ms: 1,
        idle_ms: None,
        max_age_ms: None,
        metadata: "{}".to_owned(),
        verbosity: None,
        end_reason: None,
    }
}

pub(crate) fn session() -> SessionRow {
    SessionRow {
        session_key: session_key(),
        backend: "direct".to_owned(),
        agent: AgentName::parse("demo").unwrap(),
        mode: SessionMode::Persistent,
        cwd: "/tmp".to_owned(),
        label: None,
        state: SessionState::Idle,
        ending: None,
        last_error: None,
        owner_session_key: Some(session_key()),
        asked_by: String::new(),
        spawned_by: None,
        parent_session_key: None,
        gateway_instance_id: GatewayInstanceId::mint(),
        agent_session_id: None,
        resumable: true,
        agent_info: None,
        lease_id: None,
        options: SessionOptions::new(PermissionMode::Ask, NonInteractive::Deny),
        last_session_seq: 0,
        pruned_seq: 0,
        created_at_ms: 1,
        updated_at_ms: 1,
        last_activity_at_ms: 1,
    }
}
