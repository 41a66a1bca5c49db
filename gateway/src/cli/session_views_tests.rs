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

#[test]
fn list_of_a_terminal_has_short_ids_and_no_empty_column() {
    let view = |key: &str| SessionView::from(session_row(&SessionKey::parse(key).unwrap()));
    let one = "agent:demo:acp:01a2222692ba729398fe3c9357f04963";
    let two = "agent:demo:acp:01a2222692ba72a398fe3c9357f04963";
    let views = [view(one), view(two)];
    let piped = list_for(&views, false);
    assert!(piped.contains(one) && piped.contains("BOUND") && piped.contains("LAST ERROR"), "{piped}");
    let shown = list_for(&views, true);
    assert!(!shown.contains("BOUND") && !shown.contains("LAST ERROR") && shown.contains("CWD"), "{shown}");
    let ids: Vec<&str> = shown.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(ids, ["01a2222692ba729", "01a2222692ba72a"]);
    let other = [view("agent:demo:acp:1"), view(one)];
    assert!(list_for(&other, true).contains("agent:demo:acp:1"));
}
