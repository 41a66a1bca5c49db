use super::DirectMachine;
use super::tests::{running, turn_result};
use crate::backend::{BackendMachine as _, BackendStep, LineFault};
use crate::event::EventKind;
use acp_shared::ids::RunId;
use proptest::prelude::*;
use serde_json::{Value, json};

const MESSAGE: &str = "agent_message_chunk";
const THOUGHT: &str = "agent_thought_chunk";

fn chunk(variant: &str, literal: &str) -> String {
    format!(
        r#"{{"method":"session/update","params":{{"sessionId":"s1","update":{{"sessionUpdate":"{variant}","content":{{"type":"text","text":"{literal}"}},"_meta":{{"n":1.50}}}}}}}}"#
    )
}

/// Returns kind, run and text of each event. The machine is saved and restored before each line.
fn events_of(machine: &mut DirectMachine, lines: &[String]) -> Vec<(EventKind, Option<RunId>, String)> {
    let mut out = Vec::new();
    for line in lines {
        *machine = DirectMachine::open(Some(&machine.save())).unwrap();
        out.extend(texts(machine.stream(9, line.as_bytes())));
    }
    out
}

fn texts(steps: Vec<BackendStep>) -> Vec<(EventKind, Option<RunId>, String)> {
    let text = |payload: &str| {
        let value: Value = serde_json::from_str(payload).unwrap();
        value["content"]["text"].as_str().unwrap_or("-").to_owned()
    };
    let event_text = |step| match step {
        BackendStep::Event(event) => Some((event.kind, event.run_id, text(&event.payload))),
        _ => None,
    };
    steps.into_iter().filter_map(event_text).collect()
}

#[test]
fn surrogates_of_consecutive_chunks_are_joined() {
    use EventKind::{AgentMessage as M, AgentThought as T, ToolCall};
    let tool =
        r#"{"method":"session/update","params":{"update":{"sessionUpdate":"tool_call","toolCallId":"1"}}}"#;
    let m = |literal: &str| chunk(MESSAGE, literal);
    let t = |literal: &str| chunk(THOUGHT, literal);
    let lost = (M, "\u{fffd}");
    type Expected<'a> = Vec<(EventKind, &'a str)>;
    let table: Vec<(Vec<String>, Expected<'_>)> = vec![
        (vec![m(r"kept \ud83d"), m(r"\ude00 fine")], vec![(M, "kept "), (M, "😀 fine")]),
        (vec![m(r"\ud83d"), m(r"\ude00")], vec![(M, ""), (M, "😀")]),
        (vec![m(r"a\ud83d"), m(r"\ude00\ud83d"), m(r"\ude01")], vec![(M, "a"), (M, "😀"), (M, "😁")]),
        (vec![t(r"a\ud83d"), t(r"\ude00")], vec![(T, "a"), (T, "😀")]),
        // Complete pairs and escaped backslashes are not lone surrogates.
        (vec![m(r"a\ud83d\ude00"), m(r"b\\ud83d"), m("c")], vec![(M, "a😀"), (M, r"b\ud83d"), (M, "c")]),
        // Unpaired surrogates are shown as lost, in their place.
        (vec![m(r"a\ud83d"), m("b")], vec![(M, "a"), (M, "\u{fffd}"), (M, "b")]),
        (vec![m(r"a\ud83d"), m(r"\ud83d"), m(r"\ude00")], vec![(M, "a"), lost, (M, ""), (M, "😀")]),
        (vec![m(r"a\ud83d"), t(r"\ude00")], vec![(M, "a"), (M, "\u{fffd}"), (T, "\u{fffd}")]),
        (vec![m(r"a\ud83d"), tool.to_owned(), m(r"\ude00")], vec![(M, "a"), lost, (ToolCall, "-"), lost]),
        (vec![m(r"\ude00 \ud83d x")], vec![(M, "\u{fffd} \u{fffd} x")]),
        // Blank lines do not separate chunks.
        (vec![m(r"a\ud83d"), String::new(), m(r"\ude00")], vec![(M, "a"), (M, "😀")]),
    ];
    for (lines, want) in table {
        let (mut machine, run_id) = running();
        let want: Vec<_> =
            want.into_iter().map(|(kind, text)| (kind, Some(run_id), text.to_owned())).collect();
        assert_eq!(events_of(&mut machine, &lines), want, "{lines:#?}");
    }
}

#[test]
fn held_surrogate_is_emitted_before_the_end_of_its_text() {
    let surrogate = chunk(MESSAGE, r"a\ud83d");
    let lost = |run_id| (EventKind::AgentMessage, Some(run_id), "\u{fffd}".to_owned());
    // The response of its turn: emitted before the turn ends.
    let (mut machine, run_id) = running();
    events_of(&mut machine, std::slice::from_ref(&surrogate));
    let steps = machine.receive(&turn_result(run_id, "end_turn"));
    assert!(matches!(steps.last(), Some(BackendStep::TurnDone { .. })), "{steps:?}");
    assert_eq!(texts(steps), [lost(run_id)]);
    // A request of the agent.
    let (mut machine, run_id) = running();
    events_of(&mut machine, std::slice::from_ref(&surrogate));
    let request = r#"{"id":1,"method":"session/request_permission","params":{"options":[]}}"#;
    let steps = machine.stream(9, request.as_bytes());
    assert!(matches!(steps.last(), Some(BackendStep::Request(_))), "{steps:?}");
    assert_eq!(texts(steps), [lost(run_id)]);
    // The end of its process.
    let (mut machine, run_id) = running();
    events_of(&mut machine, std::slice::from_ref(&surrogate));
    assert_eq!(texts(machine.ended()), [lost(run_id)]);
    assert_eq!(machine.ended(), []);
    // The next turn.
    let (mut machine, run_id) = running();
    machine.receive(&json!({ "id": "prompt:x", "result": { "stopReason": "end_turn" } }));
    machine.receive(&json!({ "id": format!("prompt:{run_id}"), "result": {} }));
    events_of(&mut machine, std::slice::from_ref(&surrogate));
    let steps = machine.submit_text(RunId::mint(), "b");
    assert!(matches!(steps.last(), Some(BackendStep::Send { .. })), "{steps:?}");
    assert_eq!(texts(steps), [(EventKind::AgentMessage, None, "\u{fffd}".to_owned())]);
}

#[test]
fn other_members_of_a_chunk_are_unchanged() {
    let (mut machine, _) = running();
    let steps = machine.stream(9, chunk(MESSAGE, r"a\ud83d").as_bytes());
    let [BackendStep::Event(event), BackendStep::LineFault(LineFault::Repaired)] = &steps[..] else {
        panic!("{steps:?}")
    };
    assert_eq!(
        event.payload,
        r#"{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"a"},"_meta":{"n":1.50}}"#
    );
}

#[test]
fn permission_with_lone_surrogate_or_deep_input_is_asked() {
    let deep = format!("{}1e999{}", "[".repeat(1_000), "]".repeat(1_000));
    let line = format!(
        r#"{{"id":1,"method":"session/request_permission","params":{{"toolCall":{{"toolCallId":"1","title":"rm \ud83d\n1. Yes","rawInput":{deep}}},"options":[{{"optionId":"a","name":"Y\ude00\nes","kind":"allow_once"}}]}}}}"#
    );
    let (mut machine, _) = running();
    let steps = machine.stream(9, line.as_bytes());
    let Some(BackendStep::Request(request)) = steps.first() else { panic!("{steps:?}") };
    let crate::backend::AgentRequestKind::Permission { title, options, .. } = &request.what else {
        panic!("{request:?}")
    };
    assert_eq!((title.as_str(), options[0].name.as_str()), ("rm \u{fffd} 1. Yes", "Y\u{fffd} es"));
    assert!(serde_json::from_str::<Value>(&request.params).is_ok());
}

proptest! {
    /// For any cut of a text into chunks, in UTF-16 and with any escaping, the events have the text.
    #[test]
    fn any_cut_of_text_is_rejoined(
        text in "[a😀🚀é\"\\\\\u{10ffff}]{0,12}",
        cuts in prop::collection::vec(0_usize..24, 1..6),
        raw in any::<bool>(),
    ) {
        let units: Vec<u16> = text.encode_utf16().collect();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(units.len())).collect();
        cuts.extend([0, units.len()]);
        cuts.sort_unstable();
        cuts.dedup();
        let literal = |units: &[u16]| -> String {
            char::decode_utf16(units.iter().copied())
                .map(|unit| match unit {
                    Ok(c) if raw && c != '"' && c != '\\' => c.to_string(),
                    Ok(c) => c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect(),
                    Err(surrogate) => format!("\\u{:04X}", surrogate.unpaired_surrogate()),
                })
                .collect()
        };
        let lines: Vec<String> = cuts.windows(2).map(|at| chunk(MESSAGE, &literal(&units[at[0]..at[1]]))).collect();
        let (mut machine, _) = running();
        let mut got: String = events_of(&mut machine, &lines).into_iter().map(|(_, _, text)| text).collect();
        got.extend(texts(machine.ended()).into_iter().map(|(_, _, text)| text));
        prop_assert_eq!(got, text);
    }
}
