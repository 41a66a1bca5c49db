//! Supervisors that hang, are outdated, or reconnect.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use acp_shared::conn::{Conn, Endpoint, Listener};

/// Greets, answers this many requests, and then only reads.
async fn serve(listener: &Listener, mut answers: usize) {
    let mut conn: Conn<ToSupervisor, ToClient> = listener.accept().await.unwrap();
    while let Ok(Some(message)) = conn.receiver.recv().await {
        let answer = match message {
            ToSupervisor::Hello(_) => ToClient::Welcome(simulated::welcome("s")),
            ToSupervisor::Marks(_) => continue,
            ToSupervisor::Request { id, .. } | ToSupervisor::Act { id, .. } if answers > 0 => {
                answers -= 1;
                ToClient::Reply { id, result: Ok(Reply::Done) }
            }
            ToSupervisor::Request { .. } | ToSupervisor::Act { .. } => continue,
        };
        conn.sender.send(&answer).await.unwrap();
    }
}

async fn reason_of_down(status: &mut watch::Receiver<SupervisorStatus>) -> String {
    let down = status.wait_for(|status| matches!(status, SupervisorStatus::Down(_))).await.unwrap().clone();
    let SupervisorStatus::Down(why) = down else { panic!("{down:?}") };
    why
}

/// The client probes the supervisor: one that answers is kept, one that hangs is disconnected and retried.
#[tokio::test]
async fn hanging_supervisor_is_disconnected() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.sock");
    let listener = Listener::bind(&path, 0o600).unwrap();
    let (answered, stop) = (3, CancellationToken::new());
    let serving = tokio::spawn(async move {
        serve(&listener, answered).await;
        serve(&listener, usize::MAX).await;
    });
    let (hello, progress) = (hello(simulated::gateway_role()), simulated::no_progress());
    let ping_times = PingTimes { ping_after_ms: 20, pong_timeout_ms: 400 };
    let supervisor = SupervisorClient::start_with(
        Endpoint::Socket(path.clone()),
        Some(path),
        hello,
        progress,
        stop.clone(),
        ping_times,
    );
    let mut status = supervisor.status();
    let is_up = |number: u64| move |status: &SupervisorStatus| status.generation() == Some(number);
    status.wait_for(is_up(1)).await.unwrap();
    let pending = supervisor.send(Request::ListLeases { detail: false }).await;
    assert_eq!(pending.await.unwrap(), Ok(Reply::Done));
    let why = reason_of_down(&mut status).await;
    assert!(why.contains("hangs"), "{why}");
    status.wait_for(is_up(2)).await.unwrap();
    stop.cancel();
    serving.abort();
}

#[tokio::test]
async fn older_supervisor_is_refused_with_upgrade_hint() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.sock");
    let listener = Listener::bind(&path, 0o600).unwrap();
    let serving = tokio::spawn(async move {
        loop {
            let mut conn: Conn<ToSupervisor, ToClient> = listener.accept().await.unwrap();
            let Ok(Some(ToSupervisor::Hello(hello))) = conn.receiver.recv().await else { panic!() };
            let refusal = conn::negotiate_within(&hello, 1..=1).unwrap_err();
            conn.sender.send(&ToClient::Refused(refusal)).await.unwrap();
        }
    });
    let stop = CancellationToken::new();
    let (hello, progress) = (hello(simulated::gateway_role()), simulated::no_progress());
    let supervisor =
        SupervisorClient::start(Endpoint::Socket(path.clone()), Some(path), hello, progress, stop.clone());
    let mut status = supervisor.status();
    let why = reason_of_down(&mut status).await;
    for part in ["speaks protocol 1 to 1, the client 2 to 2", "`acp-supervisor upgrade`"] {
        assert!(why.contains(part), "{part}: {why}");
    }
    stop.cancel();
    serving.abort();
}

/// A spawn sent twice could fail first and then succeed.
#[tokio::test]
async fn queued_request_is_not_sent_on_next_connection() {
    let (supervisor, mut wire) = simulated::SimSupervisorConnection::new();
    wire.up("s");
    for _ in 0..REQUESTS_MAX {
        drop(supervisor.send(Request::Status).await);
    }
    let pending = supervisor.clone();
    let pending = tokio::spawn(async move { pending.call(Request::ListLeases { detail: false }).await });
    tokio::task::yield_now().await;
    wire.down();
    wire.up("s");
    assert_eq!(pending.await.unwrap(), Err(CallError::Disconnected));
    drop(supervisor.send(Request::Status).await);
    let requests: Vec<Request> = std::iter::from_fn(|| wire.take()).map(|(_, request)| request).collect();
    assert_eq!(requests, [Request::Status], "only requests made since");
}
