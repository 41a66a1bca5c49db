//! Redaction of secrets in what an agent says outside of its answers, and of paths in refused starts.

use super::decisions::{prompt, ready, started};
use super::*;
use crate::agent_settings::OptionChange;
use crate::backend::BackendStep;
use crate::event::{EventKind, NewEvent};
use crate::failure::Failure;
use crate::writes::Write;
use acp_shared::codes::Code;
use acp_shared::ids::LeaseId;
use acp_shared::protocol::RefusalCode;
use serde_json::{Value, json};

/// Value of a variable of the agent.
const OF_AGENT: &str = "sk-agent-0123456789";
/// Argument of an MCP server.
const OF_SERVER: &str = "--key=mcp \"qwzx\"\tvvyy";

/// World of an idle session whose agent has these secrets.
fn world() -> World {
    let mut world = ready();
    let actor = world.actor.as_mut().unwrap();
    let env = [("API_KEY", OF_AGENT), ("HOME", "/home/somebody"), ("SHORT", "seven77")];
    actor.profile.env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let server = json!({ "name": "files", "command": "/bin/mcp", "args": [OF_SERVER] });
    actor.session.options.mcp_servers = vec![serde_json::from_value(server).unwrap()];
    world
}

/// Journal rows, rows and effects of one backend step, as text.
fn shown(world: &mut World, step: BackendStep) -> String {
    let actor = world.actor.as_mut().unwrap();
    let mut out = StepOutput::new(
        &StepContext { now_ms: 1, fresh_lease: LeaseId::mint(), fresh_token: None },
        &actor.session,
    );
    actor.on_backend_steps(vec![step], &mut out);
    for write in &mut out.writes {
        // The row of the session holds its MCP servers.
        if let Write::Session(row) = write {
            row.options.mcp_servers.clear();
        }
    }
    format!("{:?} {:?}", out.writes, out.effects)
}

fn event(kind: EventKind, payload: &Value) -> BackendStep {
    BackendStep::Event(NewEvent { run_id: None, kind, payload: payload.to_string(), extra: None })
}

#[test]
fn secrets_in_agent_reports_are_redacted() {
    let text = format!("key {OF_AGENT} and {OF_SERVER}.");
    let one_line = text.replace('\t', " ");
    let cut = format!("key {}", OF_AGENT.get(..12).unwrap());
    let acp = json!({ "code": 1, "message": text, "data": [{ "env": text }] });
    let option = OptionChange::Mode("plan".to_owned());
    let failure = |message: &str| {
        let failure = Failure::new(Code::TurnFailed, message).for_conversations(format!("shown {message}"));
        Failure { acp: Some(Box::new(acp.clone())), ..failure }
    };
    let answered = |text: &str| BackendStep::OptionAnswered {
        option: option.clone(),
        is_own: true,
        is_taken: false,
        text: text.to_owned(),
    };
    let steps = |run_id: RunId| {
        vec![
            event(
                EventKind::Status,
                &json!({ "status": "noise", "text": "no ACP", "line": cut, "count": 1 }),
            ),
            event(EventKind::Status, &json!({ "status": "option_refused", "text": one_line, "mode": text })),
            BackendStep::Log(format!("a line on stdout: {text}")),
            BackendStep::Log(format!("{cut}… (-32603)")),
            answered(&one_line),
            BackendStep::TurnFailed { run_id, failure: failure(&text) },
            BackendStep::TurnDone {
                run_id,
                stop_reason: "end_turn".to_owned(),
                result: json!({ "stopReason": "end_turn", "_meta": { "error": acp } }).to_string(),
            },
            BackendStep::Failed(failure(&one_line)),
        ]
    };
    for index in 0..steps(RunId::mint()).len() {
        let mut world = world();
        let run_id = prompt(&mut world, "Thello").unwrap();
        // A waiting caller gets the answer to a change.
        world.push(ActorCommand::Set(crate::options::Setting::Mode("plan".to_owned())));
        let step = steps(run_id).swap_remove(index);
        let shown = shown(&mut world, step.clone());
        for secret in [OF_AGENT, "sk-agent", "qwzx", "vvyy"] {
            assert!(!shown.contains(secret), "{secret} is in {shown}");
        }
        let is_answer = matches!(step, BackendStep::OptionAnswered { .. });
        assert!(is_answer || shown.contains("[redacted:API_KEY]"), "{step:?}: {shown}");
    }
}

#[test]
fn answers_and_texts_without_secrets_are_unchanged() {
    let mut world = world();
    for (kind, payload) in [
        (EventKind::AgentMessage, format!(r#"{{"content":{{"type":"text","text":"{OF_AGENT}"}}}}"#)),
        (EventKind::Status, r#"{"text":"in /home/somebody seven77","n":1e2,"status":"noise"}"#.to_owned()),
    ] {
        let step = BackendStep::Event(NewEvent { run_id: None, kind, payload: payload.clone(), extra: None });
        assert!(shown(&mut world, step).contains(&format!("{payload:?}")), "{payload}");
    }
}

/// The process has the environment that it was started with, also after a reload of the configuration.
#[test]
fn secrets_of_running_process_are_redacted_after_reload() {
    let mut world = world();
    let actor = world.actor.as_mut().unwrap();
    let env = std::mem::take(&mut actor.profile.env);
    actor.lease.as_mut().unwrap().row.spawn.env = env;
    let shown = shown(&mut world, BackendStep::Log(format!("key {OF_AGENT}")));
    assert!(shown.contains("key [redacted:API_KEY]"), "{shown}");
}

#[test]
fn refused_start_hides_directory_from_conversations() {
    for (code, retry_after_ms, status) in [
        (RefusalCode::SpawnFailed, None, "agent_failed"),
        (RefusalCode::CrashLoop, Some(60_000), "agent_waits"),
    ] {
        let mut world = started(|world| {
            world.ignores_input = true;
            world.rows.session.cwd = "/srv/my work".to_owned();
        });
        let message = "/srv/my work: no such directory".to_owned();
        world.input(ActorInput::Lease(LeaseEvent::SpawnRefused { code, message, retry_after_ms }));
        let payloads = world.rows.events.iter().map(|event| serde_json::from_str(&event.payload).unwrap());
        let row = payloads.into_iter().find(|row: &Value| row["status"] == status).unwrap();
        let conversations = row["conversation_text"].as_str().unwrap();
        assert!(conversations.contains("[path]: no such directory"), "{row}");
        assert!(!conversations.contains("work"), "{row}");
        assert!(row["text"].as_str().unwrap().contains("/srv/my work: no such directory"), "{row}");
        if let Some(failure) = &world.rows.session.last_error {
            assert_eq!(failure.conversation_text.as_deref(), Some(conversations));
        }
    }
}
