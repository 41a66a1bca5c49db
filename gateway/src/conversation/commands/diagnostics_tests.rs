#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
use super::*;
use crate::tests::session_row;
use acp_core::agent_settings::{AgentSettings, Choices};

/// An agent names itself, its conversation, its modes and its errors: none of these texts adds a line to a status,
/// markup, or a character that hides.
#[test]
fn texts_of_an_agent_add_no_line_to_a_status() {
    const HOSTILE: &str = "a\nstate: closed **b** [c](https://d.e) @everyone \u{202e}f\u{200b}";
    let key = SessionKey::parse("agent:demo:acp:1").unwrap();
    let plain = session_row(&key);
    let lines = status_text(&plain, &[], None, true).lines().count();
    let mut row = SessionRow {
        agent_session_id: Some(HOSTILE.to_owned()),
        agent_info: Some(
            serde_json::json!({
                "agentInfo": {"name": HOSTILE, "version": HOSTILE},
                "agentCapabilities": {HOSTILE: true},
            })
            .to_string(),
        ),
        last_error: Some(Failure::new(acp_shared::codes::Code::TurnFailed, HOSTILE)),
        ..plain
    };
    row.options.agent = AgentSettings {
        modes: Some(Choices { current: Some(HOSTILE.to_owned()), values: vec![HOSTILE.to_owned()] }),
        ..AgentSettings::default()
    };
    row.options.model = Some(HOSTILE.to_owned());
    let marked = status_text(&row, &[], None, true);
    let bare = status_text(&row, &[], None, false);
    for text in [&marked, &bare] {
        // The agent, its modes and the error have a line each.
        assert_eq!(text.lines().count(), lines + 3, "{text}");
        assert!(!text.contains(['\u{202e}', '\u{200b}']), "{text}");
    }
    for mark in ["**b", " [c", " @", "https:"] {
        assert!(bare.contains(mark) && !marked.contains(mark), "{mark}: {marked}");
    }
}
