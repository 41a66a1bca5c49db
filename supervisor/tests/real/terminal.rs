//! Terminals (H16): one pipe, a bounded tail, no back-pressure, and an end with their agent.

use crate::common::{Host, agent, pids_of, report, terminal};
use acp_shared::launch::ExitStatus;
use acp_shared::protocol::{Graces, LeaseState, RefusalCode, Reply, Request, Spawn, Tail};
use std::time::Instant;

#[tokio::test]
async fn terminal_keeps_last_bytes_of_both_streams() {
    let (_host, mut gateway) = Host::with_gateway().await;
    let parent = gateway.start(agent(&["cat"])).await;
    let spec = gateway.start(terminal(&parent, "seq 1 100000; echo err >&2; echo out; cat; exit 4", 8)).await;
    let (status, end) = gateway.await_exit(spec.lease_id).await;
    assert_eq!(status, ExitStatus::Exited(4));
    let want = Tail { bytes: b"err\nout\n".to_vec(), truncated: true, exit: Some(status) };
    assert_eq!(gateway.tail(spec.lease_id).await, want);
    assert_eq!(end, 588_895 + 8);
    gateway.state(spec.lease_id, LeaseState::Closed).await;
    assert_eq!(gateway.tail(spec.lease_id).await, want);
    assert_eq!(gateway.call(Request::Release { lease_id: spec.lease_id }).await, Ok(Reply::Done));
    let after = gateway.call(Request::Tail { lease_id: spec.lease_id }).await.unwrap_err();
    assert_eq!(after.code, RefusalCode::LeaseEnded);
}

#[tokio::test]
async fn terminal_ends_before_its_agent() {
    let (host, mut gateway) = Host::with_gateway().await;
    let parent = gateway.start(agent(&["cat"])).await;
    let spec = gateway.start(terminal(&parent, "trap '' TERM; while :; do sleep 1; done", 100)).await;
    let listed = host.json(&["leases", "show", &spec.lease_id.to_string()]);
    assert_eq!(
        (&listed["kind"], &listed["parent_lease_id"]),
        (&"terminal".into(), &parent.lease_id.to_string().into())
    );
    gateway.close(parent.lease_id).await;
    let late = gateway.call(Request::Spawn(terminal(&parent, "true", 9))).await.unwrap_err();
    assert_eq!(late.code, RefusalCode::LeaseEnded);
    gateway.state(spec.lease_id, LeaseState::Closed).await;
    gateway.state(parent.lease_id, LeaseState::Closed).await;
    assert!(pids_of(spec.lease_id).is_empty() && pids_of(parent.lease_id).is_empty());
}

/// Terminals have no standard input, so no time is spent on EOF, and they end in parallel.
#[tokio::test]
async fn terminals_end_without_eof_grace() {
    let (_host, mut gateway) = Host::with_gateway().await;
    let parent = gateway.start(agent(&["cat"])).await;
    for _ in 0..16 {
        let spec = terminal(&parent, "sleep 300", 100);
        gateway.spawn(&Spawn { graces: Graces { eof_ms: 60_000, ..spec.graces }, ..spec }).await;
    }
    let began = Instant::now();
    gateway.close_and_wait(parent.lease_id).await;
    report(&format!("an agent with 16 terminals was closed in {:?}", began.elapsed()));
    assert!(gateway.leases().await.iter().all(|lease| lease.state == LeaseState::Closed));
}

#[tokio::test]
async fn terminals_per_agent_are_bounded() {
    let (_host, mut gateway) = Host::with_gateway().await;
    let (parent, other) = (gateway.start(agent(&["cat"])).await, gateway.start(agent(&["cat", "-"])).await);
    let mut last = None;
    for _ in 0..16 {
        let spec = gateway.start(terminal(&parent, "sleep 300", 100)).await;
        last = Some(spec.lease_id);
    }
    let refused = gateway.call(Request::Spawn(terminal(&parent, "true", 9))).await.unwrap_err();
    assert_eq!((refused.code, refused.retry_after_ms), (RefusalCode::QuotaExceeded, None));
    assert!(refused.message.contains("terminals_per_agent_max"), "{refused}");
    gateway.spawn(&terminal(&other, "true", 9)).await;
    // An ended terminal does not count, although its output is kept.
    let lease_id = last.unwrap();
    gateway.close_and_wait(lease_id).await;
    gateway.spawn(&terminal(&parent, "sleep 300", 9)).await;
}

#[tokio::test]
async fn quarter_of_leases_is_reserved_for_agents() {
    let config = "leases_per_gateway_max = 8\nterminals_per_agent_max = 100";
    let (_host, mut gateway) = Host::serving(config).await;
    let parent = gateway.start(agent(&["cat"])).await;
    for _ in 0..6 {
        gateway.spawn(&terminal(&parent, "sleep 300", 100)).await;
    }
    let refused = gateway.call(Request::Spawn(terminal(&parent, "true", 9))).await.unwrap_err();
    assert_eq!(refused.code, RefusalCode::QuotaExceeded);
    assert!(refused.message.contains("reserved for agents"), "{refused}");
    gateway.spawn(&agent(&["cat", "-"])).await;
}

#[tokio::test]
async fn terminal_ends_with_crashed_agent() {
    let (_host, mut gateway) = Host::with_gateway().await;
    let (parent, info) = gateway.spawn_with_info(agent(&["cat"])).await;
    let spec = gateway.start(terminal(&parent, "sleep 300", 100)).await;
    crate::common::kill(info.adapter_pid.unwrap(), rustix::process::Signal::KILL);
    gateway.state(spec.lease_id, LeaseState::Closed).await;
    assert!(pids_of(spec.lease_id).is_empty());
}

#[tokio::test]
async fn terminal_needs_living_agent_of_same_gateway() {
    let host = Host::with_config("terminal_bytes_max = 5000");
    let (mut a, mut b) = (host.gateway().connect().await, host.gateway().connect().await);
    let parent = a.start(agent(&["cat"])).await;
    let code = |r: Result<Reply, acp_shared::protocol::Refusal>| r.unwrap_err().code;
    assert_eq!(code(b.call(Request::Spawn(terminal(&parent, "true", 9))).await), RefusalCode::LeaseUnknown);
    assert_eq!(
        code(a.call(Request::Spawn(terminal(&agent(&["x"]), "true", 9))).await),
        RefusalCode::LeaseUnknown
    );
    assert_eq!(code(a.call(Request::Spawn(terminal(&parent, "true", 5001))).await), RefusalCode::TooLarge);
    let spec = a.start(terminal(&parent, "sleep 300", 9)).await;
    let lease_id = spec.lease_id;
    for body in
        [Request::Attach { lease_id, from_offset: 0 }, Request::Input { lease_id, seq: 1, bytes: vec![] }]
    {
        assert_eq!(code(a.call(body).await), RefusalCode::BadRequest);
    }
    assert_eq!(code(a.call(Request::Tail { lease_id: parent.lease_id }).await), RefusalCode::BadRequest);
}

#[tokio::test]
async fn output_of_ended_terminals_is_bounded() {
    let (_host, mut gateway) = Host::serving("tails_bytes_max = 10000").await;
    let parent = gateway.start(agent(&["cat"])).await;
    let mut ids = Vec::new();
    for _ in 0..4 {
        let spec = gateway.start(terminal(&parent, "seq 1 100000", 4_500)).await;
        gateway.state(spec.lease_id, LeaseState::Closed).await;
        ids.push(spec.lease_id);
    }
    for (lease_id, kept) in ids.into_iter().zip([false, false, true, true]) {
        assert_eq!(gateway.call(Request::Tail { lease_id }).await.is_ok(), kept, "{lease_id}");
    }
}
