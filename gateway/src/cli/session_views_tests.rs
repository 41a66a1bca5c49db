//! Formatting of sessions.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
use super::*;
use crate::tests::session_row;
use acp_core::agent_settings::{AgentSettings, Choices, ConfigOption};
use acp_shared::ids::SessionKey;

#[test]
fn modes_models_and_options_of_the_agent_have_a_row_each() {
    let choices = |current: Option<&str>, values: &[&str]| Choices {
        current: current.map(str::to_owned),
        values: values.iter().map(|&value| value.to_owned()).collect(),
    };
    let option = |id: &str, category: &str, choices| ConfigOption {
        id: id.to_owned(),
        category: Some(category.to_owned()),
        is_boolean: false,
        choices,
    };
    let mut row = session_row(&SessionKey::parse("agent:demo:acp:1").unwrap());
    row.options.agent = AgentSettings {
        modes: Some(choices(Some("ask"), &["ask", "pl\nan"])),
        models: Some(choices(None, &["big", "small"])),
        options: vec![
            option("effort", "thought_level", choices(Some("low"), &["low", "high"])),
            option("web", "other", choices(Some("true"), &[])),
        ],
        ..AgentSettings::default()
    };
    let text = show(&SessionView::from(row));
    let rows: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("agent mode")).collect();
    assert_eq!(
        rows,
        [
            "agent mode     ask (of ask, pl an)",
            "agent model    not reported (of big, small)",
            "agent effort   low (of low, high)",
            "agent web      true",
        ]
    );
}
