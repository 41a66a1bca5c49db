//! Diagnostic commands in a conversation.
use super::commands::{key_of, reply_to, session_of_id};
use super::*;
use crate::tests::loaded;
use acp_core::agent_settings::Choices;
use acp_core::api::{BackendView, StoreView, SupervisorView};
use acp_core::timeouts::{Expiry, TimeoutKind};
use acp_shared::ids::AgentName;

fn status() -> StatusView {
    let secret = "hunter2".to_owned();
    StatusView {
        pid: 1,
        version: "0.1.0".to_owned(),
        gateway_instance_id: secret.clone(),
        state_dir: secret.clone(),
        started_at_ms: 0,
        supervisor: SupervisorView {
            socket: secret.clone(),
            connected: true,
            pid: Some(2),
            detail: secret.clone(),
        },
        dispatch_enabled: true,
        durability: "full".to_owned(),
        config: None,
        backends: vec![BackendView { id: "direct".to_owned(), ok: true, details: secret }],
        accounts: Vec::new(),
        hosts: Vec::new(),
        listeners: Vec::new(),
        store: Some(StoreView {
            health: "well".to_owned(),
            bytes: 1,
            log_bytes: 1,
            sessions_open: 2,
            runs_queued: 0,
            inbox_waiting: 0,
            stale_bindings: 0,
            stale: Vec::new(),
            actors_stuck: 0,
            still: Vec::new(),
        }),
    }
}

fn agent(name: &str, installed: bool, default: bool) -> AgentView {
    AgentView {
        name: AgentName::parse(name).unwrap(),
        title: name.to_owned(),
        origin: "built-in".to_owned(),
        command: vec!["hunter2".to_owned()],
        path: None,
        installed,
        allowed: true,
        default,
        note: (!installed).then(|| "npm install -g it".to_owned()),
    }
}

#[tokio::test]
async fn diagnostics_are_stable_and_contain_no_secrets() {
    let (_dir, store) = open();
    let info = r#"{"protocolVersion":1,"agentInfo":{"name":"Demo","version":"1.2"},"agentCapabilities":{"loadSession":true,
        "promptCapabilities":{"image":false,"audio":true},"sessionCapabilities":{"close":{},"_meta":{"key":"hunter2"}}},
        "authMethods":[{"id":"k","name":"hunter2"}]}"#;
    let mut row = session_of_id(1, "first");
    row.last_activity_at_ms = 1_782_259_200_000;
    row.agent_session_id = Some("their-1".to_owned());
    row.agent_info = Some(info.to_owned());
    row.options.model = Some("big".to_owned());
    let values = vec!["ask".to_owned(), "pl\nan".to_owned()];
    row.options.agent.modes = Some(Choices { current: Some("ask".to_owned()), values });
    row.options.timeout_s = Some(90);
    row.last_error = Some(Failure::new(Code::TurnFailed, "It\nfailed\u{7}."));
    spawn(&store, row, Some(binding_row(&key_of(1), &conversation("c")))).await;
    spawn(&store, session_of_id(2, ""), None).await;
    let mut fake = FakeService::new(&store);
    let inner = Arc::get_mut(&mut fake).unwrap();
    inner.agents = vec![agent("demo", true, true), agent("codex", false, false)];
    *inner.status.lock().unwrap() = Some(status());
    let service = service(&store, &fake);
    let mut output = String::new();
    for text in ["/acp sessions", "/acp status", "/agents", "/acp doctor", "/acp install"] {
        output.push_str(&format!("> {text}\n{}\n", reply_to(&service, text).await));
    }
    insta::assert_snapshot!(output, @r#"
    > /acp sessions
    Sessions, most recently used first (* is this conversation's):
    * first (persistent, idle, direct, bound to console/c) agent:demo:acp:1; last error ACP_TURN_FAILED
    - demo (persistent, idle, direct, unbound) agent:demo:acp:2
    > /acp status
    agent:demo:acp:1 (demo) in /tmp, label first
    state: idle, persistent, backend direct
    bound to console/c
    agent's conversation: their-1
    agent: Demo 1.2; can loadSession, promptCapabilities.audio, sessionCapabilities.close
    settings: directory /tmp; model big; the agent asks (ask); unattended permission requests are denied; a turn may take 1m30s
    agent's mode: ask (of ask, pl an)
    last used: 2026-06-24T00:00:00Z
    last error: It failed . (ACP_TURN_FAILED)
    running turn: none; 0 queued
    > /agents
    No agent is busy.
    Bound and idle:
    - first (persistent, idle, direct, bound to console/c) agent:demo:acp:1; last error ACP_TURN_FAILED
    Can be started with /acp spawn: demo (default).
    > /acp doctor
    acp-gateway 0.1.0 is healthy.
    - ok: policy: prompts are permitted
    - ok: backend direct works
    - ok: supervisor answers
    - ok: store is well, 2 sessions open
    - ok: no bindings are stale
    - ok: no session is stuck
    - 0 turns running, 0 queued
    > /acp install
    1. The backend direct is part of this gateway: there is nothing to install.
    2. Agents that are not installed (optional):
       - codex: npm install -g it
    3. /acp doctor checks the gateway, /agents lists the agents that can be started.
    "#);
    let mut unhealthy = status();
    unhealthy.supervisor.connected = false;
    unhealthy.backends.clear();
    unhealthy.store.as_mut().unwrap().health = "full".to_owned();
    unhealthy.store.as_mut().unwrap().stale_bindings = 3;
    unhealthy.store.as_mut().unwrap().still = vec!["session k: hunter2".to_owned()];
    *fake.status.lock().unwrap() = Some(unhealthy);
    let doctor = reply_to(&service, "/acp doctor").await;
    insta::assert_snapshot!(doctor, @r#"
    acp-gateway 0.1.0 is not healthy.
    - ok: policy: prompts are permitted
    - WRONG: backend direct does not exist; this gateway has none
    - WRONG: supervisor does not answer
    - WRONG: store is full, 2 sessions open
    - WRONG: 3 bindings are stale
    - ok: no session is stuck
    - WRONG: 1 sessions or conversations cannot be read
    - 0 turns running, 0 queued
    Next: /acp install shows what to change.
    Next: ask the operator to start the supervisor.
    Next: ask the operator to check the disk and to run `acp-gateway store check`.
    Next: /unfocus in those conversations.
    Next: ask the operator to run `acp-gateway doctor`, which names them.
    "#);
    let mut broken_backend = status();
    broken_backend.backends[0].ok = false;
    *fake.status.lock().unwrap() = Some(broken_backend);
    let backend_report = reply_to(&service, "/acp doctor").await;
    assert!(backend_report.contains("- WRONG: backend direct does not work\n"), "{backend_report}");
    let step = "\nNext: ask the operator to run `acp-gateway doctor`.";
    assert!(backend_report.ends_with(step) && !backend_report.contains("/acp install"), "{backend_report}");
    assert!(
        !format!("{output}{doctor}{backend_report}").contains("hunter2"),
        "{output}{doctor}{backend_report}"
    );
}

/// No program that a person could install adds a backend to this gateway.
#[tokio::test]
async fn missing_backend_names_the_setting() {
    let (_dir, store) = open();
    let fake = FakeService::new(&store);
    let text = "[acp]\nbackend = \"other\"\n[acp.runtime]\ninstall_command = \"npm i acpx\"\n";
    *fake.config.lock().unwrap() = Arc::new(loaded(text));
    *fake.status.lock().unwrap() = Some(status());
    let service = service(&store, &fake);
    let install = reply_to(&service, "/acp install").await;
    assert!(
        install.starts_with("1. This gateway has no backend other: set acp.backend = \"direct\".\n"),
        "{install}"
    );
    let doctor = reply_to(&service, "/acp doctor").await;
    assert!(doctor.contains("- WRONG: backend other does not exist; this gateway has direct\n"), "{doctor}");
    assert!(!format!("{install}{doctor}").contains("npm"), "{install}{doctor}");
}

#[tokio::test]
async fn status_names_the_next_timeout() {
    let (_dir, store) = open();
    spawn(&store, session_of_id(1, "first"), Some(binding_row(&key_of(1), &conversation("c")))).await;
    let fake = FakeService::new(&store);
    let service = service(&store, &fake);
    for (source, want) in [
        (TimeoutKind::BindingIdle, "the binding ends at AT unless it is used (idle timeout, 1h)"),
        (TimeoutKind::BindingMaxAge, "the binding ends at AT, used or not (maximum age, 1h)"),
        (TimeoutKind::Session, "the session ends at AT unless it is used (idle timeout, 1h)"),
        (
            TimeoutKind::Runtime,
            "the agent's process ends at AT unless it is used; the session stays (idle timeout, 1h)",
        ),
    ] {
        let expiry = Expiry { at_ms: 1_782_259_200_000, source, window_ms: 3_600_000, binding_id: None };
        *fake.expiry.lock().unwrap() = Some(expiry);
        let status = reply_to(&service, "/acp status").await;
        let want = format!("\ntimeout: {}\n", want.replace("AT", "2026-06-24T00:00:00Z"));
        assert!(status.contains(&want), "{want:?} is not in {status:?}");
    }
}
