//! Autocomplete of agents, sessions and the agent's options: in time and within Discord's limits.

use crate::stage::Stage;
use acp_tests::fake_discord::core::faults::{EventFate, When};
use acp_tests::house::AGENT;
use acp_tests::wait::{SOON, until};
use serde_json::json;
use std::fmt::Write as _;

fn values(found: &[(String, String)]) -> Vec<&str> {
    found.iter().map(|(_, value)| value.as_str()).collect()
}

#[test]
fn agents_sessions_and_options_are_suggested() {
    let mut agents = String::new();
    for number in 0..40 {
        let _ = writeln!(agents, "[agents.many{number:02}]\ncommand = [\"/bin/true\"]");
    }
    let stage = Stage::new(&["--modes"], &agents);
    let suggested = |who, at, command: &str, typed| {
        let found = stage.suggestions(who, at, command, typed);
        assert!(found.len() <= 25, "{found:?}");
        for (name, value) in &found {
            let lengths = [name, value].map(|text| text.encode_utf16().count());
            assert!(lengths.iter().all(|length| (1..=100).contains(length)), "{name} {value}");
        }
        found
    };
    let (ann, channel) = (stage.ann, stage.channel);
    assert_eq!(suggested(ann, channel, "acp spawn", ("agent", "")).len(), 25);
    assert_eq!(values(&suggested(ann, channel, "acp spawn", ("agent", "SCRI"))), [AGENT]);
    assert_eq!(suggested(ann, channel, "acp spawn", ("agent", "many3")).len(), 10);
    assert_eq!(suggested(ann, channel, "acp spawn", ("agent", "no such")), []);
    // Users without permission get no suggestions.
    assert_eq!(suggested(stage.eve, channel, "acp spawn", ("agent", "")), []);
    let thread = stage.spawn();
    let key = stage.key(thread);
    stage.fake.post(ann, thread, "say one");
    stage.answers(thread, &["one"]);
    let cwd = stage.house.world.dir("work/project").display().to_string();
    let label = "a name of words ".repeat(4);
    let options = [("agent", AGENT), ("cwd", &cwd), ("label", label.trim()), ("thread", "off")];
    stage.answer(&stage.command(ann, channel, "acp spawn", &options.map(|(name, text)| (name, json!(text)))));
    let found = suggested(ann, channel, "acp status", ("session", ""));
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(values(&found).contains(&key.as_str()));
    let named = suggested(ann, channel, "focus", ("session", "A NAME"));
    assert!(matches!(named.as_slice(), [(name, _)] if name.starts_with(label.trim())), "{named:?}");
    let options = suggested(ann, thread, "acp set", ("option", ""));
    assert!(values(&options).contains(&"cwd") && values(&options).contains(&"model"), "{options:?}");
    assert_eq!(values(&suggested(ann, thread, "acp set", ("option", "cw"))), ["cwd"]);
    let tally = stage.fake.tally();
    assert!(tally.response_ms.iter().all(|ms| *ms < 3_000), "{:?}", tally.response_ms);
    stage.end();
}

/// Duplicated interactions run once: a command that starts a run, and one that closes the session.
#[test]
fn duplicate_interactions_start_and_close_once() {
    let (stage, thread) = Stage::new(&[], "").with_thread();
    let key = stage.key(thread);
    stage.fake.event_fault("INTERACTION_CREATE", When::Next(3), EventFate::Duplicate);
    stage.answer(&stage.command(stage.ann, thread, "acp steer", &[("text", json!("say once"))]));
    stage.answers(thread, &["once"]);
    assert_eq!(stage.house.prompts_received("say once"), 1);
    stage.suggestions(stage.ann, thread, "focus", ("session", ""));
    stage.answer(&stage.command(stage.ann, thread, "acp close", &[]));
    until(SOON, "session closed", || stage.session_state(&key) == "closed");
    stage.said(thread, "session is closed");
    let farewells = stage.told(thread).into_iter().filter(|it| it.content.contains("session is closed"));
    assert_eq!(farewells.count(), 1);
    assert_eq!(stage.fake.tally().event_faults.get("duplicate"), Some(&3));
    stage.end();
}
