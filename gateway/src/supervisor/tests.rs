//! A supervisor that is there and does nothing.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use acp_shared::conn::{Conn, Listener};

/// Greets, then answers as many requests as it is told to, and then reads and says nothing any more.
async fn greet(listener: &Listener, mut answers: usize) {
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

/// It is asked whether it is there; one that answers stays, one that hangs is left, and tried again.
#[tokio::test]
async fn a_supervisor_that_hangs_without_dying_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.sock");
    let listener = Listener::bind(&path, 0o600).unwrap();
    let (answered, stop) = (3, CancellationToken::new());
    let serving = tokio::spawn(async move {
        greet(&listener, answered).await;
        greet(&listener, usize::MAX).await;
    });
    let greeting = (hello(simulated::gateway_role()), simulated::no_progress());
    let supervisor = SupervisorClient::start_with(path.clone(), path, greeting, stop.clone(), (20, 400));
    let mut status = supervisor.status();
    let is_up = |number: u64| move |status: &SupervisorStatus| status.generation() == Some(number);
    status.wait_for(is_up(1)).await.unwrap();
    let waits = supervisor.send(Request::ListLeases { detail: false }).await;
    assert_eq!(waits.await.unwrap(), Ok(Reply::Done));
    let why = reason_of_down(&mut status).await;
    assert!(why.contains("hangs"), "{why}");
    status.wait_for(is_up(2)).await.unwrap();
    stop.cancel();
    serving.abort();
}

/// The gateway names what to do about a supervisor of the version before.
#[tokio::test]
async fn older_supervisor_is_not_used_and_the_reason_names_its_upgrade() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.sock");
    let listener = Listener::bind(&path, 0o600).unwrap();
    let serving = tokio::spawn(async move {
        loop {
            let mut conn: Conn<ToSupervisor, ToClient> = listener.accept().await.unwrap();
            let Ok(Some(ToSupervisor::Hello(hello))) = conn.receiver.recv().await else { panic!() };
            let refusal = conn::negotiate_within(&hello, (1, 1)).unwrap_err();
            conn.sender.send(&ToClient::Refused(refusal)).await.unwrap();
        }
    });
    let stop = CancellationToken::new();
    let greeting = (hello(simulated::gateway_role()), simulated::no_progress());
    let supervisor = SupervisorClient::start(path.clone(), path, greeting, stop.clone());
    let mut status = supervisor.status();
    let why = reason_of_down(&mut status).await;
    for says in ["speaks protocol 1 to 1, the client 2 to 2", "`acp-supervisor upgrade`"] {
        assert!(why.contains(says), "{says}: {why}");
    }
    stop.cancel();
    serving.abort();
}

/// A start that is asked for twice could be refused first and then succeed.
#[tokio::test]
async fn a_request_that_waited_for_room_is_not_done_on_the_next_connection() {
    let (supervisor, mut wire) = simulated::SimSupervisorConnection::new();
    wire.up("s");
    for _ in 0..REQUESTS_MAX {
        drop(supervisor.send(Request::Status).await);
    }
    let waits = supervisor.clone();
    let waits = tokio::spawn(async move { waits.call(Request::ListLeases { detail: false }).await });
    tokio::task::yield_now().await;
    wire.down();
    wire.up("s");
    assert_eq!(waits.await.unwrap(), Err(CallError::Disconnected));
    drop(supervisor.send(Request::Status).await);
    let asked: Vec<Request> = std::iter::from_fn(|| wire.take()).map(|(_, request)| request).collect();
    assert_eq!(asked, [Request::Status], "only requests made since");
}
