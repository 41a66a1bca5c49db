//! What a channel shows of a turn under a configuration.

use crate::config::LiveConfig;
use acp_core::card::{Card, CardUpdateResult, UpdateRate};
use acp_core::config::load::LoadedConfig;
use acp_core::event::{EventKind, EventRow};
use acp_core::message_split::{MessageLimit, Unit};
use acp_core::policy::PolicyScope;
use acp_core::render::{RenderData, RunDigest, Style, render_row};
use acp_core::rows::RunMode;
use acp_shared::ids::{BindingId, RunId, SessionKey};
use serde_json::json;

/// A turn with a hidden tool call, rows of an unknown kind, one of them twice, and a long text.
fn journal() -> Vec<EventRow> {
    let text = |text: &str| json!({"content": {"type": "text", "text": text}});
    let news = |text: &str| json!({"sessionUpdate": "made_up", "text": text});
    let rows = [
        (EventKind::AgentMessage, text("Looking.")),
        (EventKind::ToolCall, json!({"toolCallId": "a", "title": "t", "kind": "read"})),
        (EventKind::AgentMessage, text("Found it.")),
        (EventKind::Plan, json!({"entries": [{"content": "x", "status": "pending"}]})),
        (EventKind::Update, news("again")),
        (EventKind::Update, news("again")),
        (EventKind::Update, news(&"long ".repeat(100))),
        (EventKind::AgentMessage, text(&"word ".repeat(100))),
        (EventKind::Done, json!({"stop_reason": "end_turn"})),
    ];
    let row = |(seq, (kind, payload)): (u64, (EventKind, serde_json::Value))| EventRow {
        session_key: SessionKey::parse("agent:mine:acp:1").unwrap(),
        session_seq: seq,
        run_id: RunId::parse("01890a5d-ac96-774b-bcce-b30200000001").ok(),
        seq: Some(seq),
        kind,
        payload: payload.to_string(),
        extra: None,
        created_at_ms: 0,
    };
    (1..).zip(rows).map(row).collect()
}

fn stream(loaded: &LoadedConfig) -> (Style, UpdateRate) {
    let stream = LiveConfig::new(loaded.clone()).stream(&PolicyScope::default());
    (Style::new(MessageLimit::new(Unit::Bytes, 16_384), &stream), UpdateRate::of(&stream))
}

/// Messages at the end of the turn.
pub(super) fn final_texts(loaded: &LoadedConfig) -> String {
    let (style, rows) = (stream(loaded).0, journal());
    let mut digest = RunDigest::new(RunMode::Prompt, true, style.clone());
    rows.iter().for_each(|row| digest.add(row.kind, &row.payload));
    let parts = render_row(BindingId::mint(), &style, &rows[rows.len() - 1], RenderData::Run(&digest));
    format!("{:?}", parts.into_iter().map(|part| part.text).collect::<Vec<_>>())
}

/// Names and sizes of the files of a long answer and a file change.
pub(super) fn files(loaded: &LoadedConfig) -> String {
    let scope =
        PolicyScope { channel: Some("discord".to_owned()), account: Some("main".to_owned()), agent: None };
    let stream = LiveConfig::new(loaded.clone()).stream(&scope);
    let limit = MessageLimit::new(Unit::Bytes, 2_000);
    let mut rows = journal();
    let diff = json!({"type": "diff", "path": "a", "oldText": null, "newText": "x"});
    rows[1].payload = json!({"toolCallId": "a", "status": "completed", "content": [diff]}).to_string();
    let style = Style::new(limit, &stream).with_files(Some(1 << 20), &stream.files);
    let of = |words: usize| {
        let mut rows = rows.clone();
        rows[0].payload = json!({"content": {"type": "text", "text": "word ".repeat(words)}}).to_string();
        let mut digest = RunDigest::new(RunMode::Prompt, true, style.clone());
        rows.iter().for_each(|row| digest.add(row.kind, &row.payload));
        let parts = render_row(BindingId::mint(), &style, &rows[rows.len() - 1], RenderData::Run(&digest));
        parts.into_iter().map(|part| part.files).collect::<Vec<_>>()
    };
    format!("{:?}", [of(1_000), of(20_000)])
}

/// Updates of the turn's card if a row arrives every three seconds.
pub(super) fn cards(loaded: &LoadedConfig) -> String {
    let (style, pace) = stream(loaded);
    let mut card = Card::new(style, pace, true, None, 0);
    let (mut rows, mut changes) = (journal().into_iter(), Vec::new());
    for now in 0..30_000 {
        if now % 3_000 == 0 {
            rows.next().into_iter().for_each(|row| card.push(now, &row));
        }
        if let Some(act) = card.next_update(now) {
            changes.push((now, act));
            card.handle_result(now, CardUpdateResult::Shown { message_id: "m".to_owned() });
        }
    }
    format!("{changes:?}")
}
