//! Entry points of the fuzz targets in `tests/fuzz`: they feed external bytes to the pure code that parses
//! them.
//!
//! Compiled for fuzzing (`--cfg fuzzing`) and for tests, which replay the corpus. If FUZZ_PLANTED is set,
//! each entry point panics on an input that is not in the corpus: `make fuzz-planted` proves that the fuzzer
//! finds it.
#![expect(clippy::expect_used, reason = "a panic is the result of a fuzz target")]

use crate::api::console::ConsoleMessageBody;
use acp_core::api::{
    AnswerBody, CancelBody, CloseBody, NewBody, OptionBody, PromptBody, SpawnBody, UnbindBody,
};
use acp_core::backend::{AgentRequestKind, BackendMachine, BackendStep, StartSessionParams, SubmitParams};
use acp_core::config::{NonInteractive, PermissionMode};
use acp_core::event::{EventKind, EventRow, NewEvent};
use acp_core::line_splitter::{LINE_BYTES_MAX, LineSplitter};
use acp_core::message_split::{MessageLimit, Unit};
use acp_core::render::{ChannelFeatures, RenderData, RunDigest, Style, render_row};
use acp_core::rows::{RunMode, SessionMode};
use acp_core::runtime::direct::DirectMachine;
use acp_shared::ids::{BindingId, LeaseId, RunId, SessionKey};
use serde_json::{Value, json};

const ID: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

/// Feeds output of an agent in a running turn through lines, backend machine, journal rows and projection.
///
/// # Panics
/// A restart in the middle changes the steps, a payload is no JSON, or a part is longer than its limit.
pub fn agent_lines(data: &[u8]) {
    let Some((&cut, stream)) = data.split_first() else { return };
    let cut = usize::from(cut).min(stream.len());
    let whole = read(running(), stream, stream.len());
    let restarted = read(running(), stream, cut);
    assert_eq!(whole, restarted, "a restart at byte {cut} changes the result");
    let mut rows = Vec::new();
    for step in whole {
        match step {
            BackendStep::Event(event) => rows.push(row(&rows, event)),
            BackendStep::Request(request) => {
                planted(
                    matches!(&request.what, AgentRequestKind::FsWrite { content, .. } if content.len() == 3),
                );
                if matches!(request.what, AgentRequestKind::Permission { .. }) {
                    let params: Value = serde_json::from_str(&request.params).expect("params of a request");
                    let payload = json!({ "permission_id": ID, "params": params }).to_string();
                    rows.push(row(
                        &rows,
                        NewEvent {
                            run_id: request.run_id,
                            kind: EventKind::Permission,
                            payload,
                            extra: None,
                        },
                    ));
                }
            }
            _ => {}
        }
    }
    for style in styles() {
        let mut digest = RunDigest::new(RunMode::Prompt, true, style.clone());
        for row in &rows {
            digest.add(row.kind, &row.payload);
            check_parts(&style, row, RenderData::Nothing);
        }
        let payload = json!({ "stop_reason": "end_turn" }).to_string();
        let done =
            row(&rows, NewEvent { run_id: Some(run_id()), kind: EventKind::Done, payload, extra: None });
        check_parts(&style, &done, RenderData::Run(&digest));
    }
}

/// Renders the parameters of `session/request_permission` as the message for a person.
///
/// # Panics
/// A part is longer than its limit.
pub fn permission_card(data: &[u8]) {
    let Ok(params) = serde_json::from_slice::<Value>(data) else { return };
    planted(params["options"].as_array().is_some_and(|options| options.len() == 3));
    let payload = json!({ "permission_id": ID, "params": params, "deadline_at_ms": 600_000 }).to_string();
    let event =
        row(&[], NewEvent { run_id: Some(run_id()), kind: EventKind::Permission, payload, extra: None });
    for style in styles() {
        check_parts(&style, &event, RenderData::Nothing);
    }
}

/// Parses bodies of the local HTTP interface; the first byte selects the type.
pub fn http_bodies(data: &[u8]) {
    let Some((&selector, body)) = data.split_first() else { return };
    match selector % 9 {
        0 => {
            if let Ok(body) = serde_json::from_slice::<SpawnBody>(body) {
                planted(body.interactive && body.label.is_some());
                drop(acp_core::mcp::servers_from_map(body.mcp_servers));
            }
        }
        1 => drop(serde_json::from_slice::<PromptBody>(body)),
        2 => drop(serde_json::from_slice::<CancelBody>(body)),
        3 => drop(serde_json::from_slice::<CloseBody>(body)),
        4 => drop(serde_json::from_slice::<OptionBody>(body).map(OptionBody::setting)),
        5 => drop(serde_json::from_slice::<AnswerBody>(body)),
        6 => drop(serde_json::from_slice::<UnbindBody>(body)),
        7 => drop(serde_json::from_slice::<NewBody>(body)),
        _ => drop(serde_json::from_slice::<ConsoleMessageBody>(body)),
    }
}

fn planted(is_found: bool) {
    assert!(!is_found || std::env::var_os("FUZZ_PLANTED").is_none(), "planted");
}

fn run_id() -> RunId {
    RunId::parse(ID).expect("a run id")
}

fn running() -> DirectMachine {
    let lease_id = LeaseId::parse(ID).expect("a lease id");
    let mut machine = DirectMachine::open(None).expect("a fresh machine");
    machine.start_session(&StartSessionParams {
        session_key: "agent:fuzz:acp:1".to_owned(),
        session_mode: SessionMode::Persistent,
        permission: PermissionMode::Ask,
        non_interactive: NonInteractive::Deny,
        lease_id,
        cwd: "/w".to_owned(),
        resume: None,
        mode: None,
        asking_mode: None,
        asks: false,
        options: Vec::new(),
        mcp_servers: Vec::new(),
        additional_directories: Vec::new(),
        client_fs: acp_core::config::ClientFs::Both,
        offer_terminal: true,
        agent: "fuzz".to_owned(),
        auth_method: None,
        listing: None,
    });
    for (id, result) in [("init", json!({ "protocolVersion": 1 })), ("new", json!({ "sessionId": "s" }))] {
        let answer = json!({ "jsonrpc": "2.0", "id": format!("{id}:{lease_id}"), "result": result });
        machine.stream(0, answer.to_string().as_bytes());
    }
    machine.submit(&SubmitParams { run_id: run_id(), text: "hi".to_owned(), files: None, steer: false });
    machine
}

/// Returns the steps of a stream, read by one machine up to byte `cut` and then by one restored from its
/// saved state.
fn read(mut machine: DirectMachine, stream: &[u8], cut: usize) -> Vec<BackendStep> {
    let mut steps = Vec::new();
    let mut lines = LineSplitter::new(0, LINE_BYTES_MAX);
    let (before, after) = stream.split_at(cut);
    let mut feed = |machine: &mut DirectMachine, offset: usize, bytes: &[u8]| {
        let read = lines.push(offset as u64, bytes, |at, line| steps.extend(machine.stream(at, line)));
        read.expect("a stream without gaps and below the limit");
    };
    feed(&mut machine, 0, before);
    let mut machine = DirectMachine::open(Some(&machine.save())).expect("a saved machine");
    feed(&mut machine, cut, after);
    steps
}

fn row(before: &[EventRow], event: NewEvent) -> EventRow {
    serde_json::from_str::<&serde_json::value::RawValue>(&event.payload).expect("a payload that is JSON");
    let seq = before.len() as u64 + 1;
    EventRow {
        session_key: SessionKey::parse("agent:demo:acp:1").expect("a session key"),
        session_seq: seq,
        run_id: event.run_id,
        seq: event.run_id.map(|_| seq),
        kind: event.kind,
        payload: event.payload,
        extra: event.extra,
        created_at_ms: 0,
    }
}

/// Returns a plain text style with a small limit, and a Markdown style with buttons as on Discord.
fn styles() -> [Style; 2] {
    let plain = Style {
        limit: MessageLimit::new(Unit::Bytes, 200),
        output_chars_max: 24_000,
        line_chars_max: 320,
        separator: acp_core::config::Separator::Paragraph,
        repeat_suppression: true,
        tags: std::collections::BTreeMap::new(),
        footer: true,
        files: None,
        verbosity: None,
        shows: ChannelFeatures::default(),
    };
    let shows =
        ChannelFeatures { buttons: 25, markdown: true, changes: true, approvers: Some("<@1>".to_owned()) };
    let discord = Style { limit: MessageLimit::new(Unit::Utf16, 1_900), shows, ..plain.clone() };
    [plain, discord]
}

fn check_parts(style: &Style, event: &EventRow, digest: RenderData<'_>) {
    let binding_id = BindingId::parse(ID).expect("a binding id");
    for part in render_row(binding_id, style, event, digest) {
        assert!(style.limit.fits(&part.text), "a part is longer than its limit: {:?}", part.text);
    }
}

#[cfg(test)]
mod tests {
    type Target = (&'static str, fn(&[u8]));

    /// Inputs of earlier failures, and further inputs that the fuzzer found.
    #[test]
    fn corpus_passes() {
        let targets: [Target; 3] = [
            ("agent_lines", super::agent_lines),
            ("permission_card", super::permission_card),
            ("http_bodies", super::http_bodies),
        ];
        for (name, run) in targets {
            let dir = format!("{}/../tests/fuzz/corpus/{name}", env!("CARGO_MANIFEST_DIR"));
            let files = std::fs::read_dir(&dir).unwrap_or_else(|error| panic!("{dir}: {error}"));
            let files: Vec<_> = files.flatten().map(|file| file.path()).collect();
            assert!(!files.is_empty(), "{dir} is empty");
            for file in files {
                run(&std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display())));
            }
        }
    }
}
