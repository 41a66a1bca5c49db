//! Detection of gateway databases that went back in time, on the raw protocol.

use crate::common::{Client, Host, Identity, TIMEOUT, agent, eventually, is_alive};
use acp_shared::conn::{self, ConnError};
use acp_shared::files::{FilesOp, FilesRequest, FilesScope};
use acp_shared::ids::{LeaseId, StartId};
use acp_shared::protocol::{Hello, Marks, RefusalCode, Reply, Request, Rollback, VERSION_MARKS};
use std::path::Path;
use std::time::Duration;

fn marks(event_id: u64) -> Marks {
    Marks { start_id: StartId::mint(), event_id, offsets: Vec::new(), accepts_loss: false }
}

/// Connects as a gateway of protocol 2.
async fn connect(identity: &Identity, marks: Marks) -> Result<Client, ConnError> {
    let hello = Hello { version_min: VERSION_MARKS, version_max: VERSION_MARKS, ..identity.hello() };
    loop {
        match conn::open_gateway(&identity.socket, hello.clone(), marks.clone(), TIMEOUT).await {
            Err(ConnError::Refused(refusal)) if refusal.code == RefusalCode::InstanceBusy => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            opened => return opened.map(|(conn, welcome)| Client::new(conn, welcome, Some(identity.epoch))),
        }
    }
}

fn with_epoch(identity: &Identity, epoch: u64) -> Identity {
    Identity { epoch, ..identity.clone() }
}

/// Returns the rollback refusal of a connection; panics without one.
fn rollback(opened: Result<Client, ConnError>) -> Rollback {
    match opened {
        Err(ConnError::RolledBack(rollback)) => *rollback,
        Err(other) => panic!("{other:?}"),
        Ok(client) => panic!("unexpectedly connected: {:?}", client.welcome),
    }
}

fn doctor(host: &Host) -> String {
    String::from_utf8(host.cli(&["doctor"]).stdout).unwrap()
}

fn event_mark(host: &Host) -> Option<i64> {
    host.rows().query_row("SELECT event_id FROM homes", [], |row| row.get(0)).ok()
}

async fn ack(client: &mut Client, lease_id: LeaseId, offset: u64, event_id: u64) {
    assert_eq!(client.call(Request::AckSynced { lease_id, offset, event_id }).await, Ok(Reply::Done));
}

#[tokio::test]
async fn older_epoch_is_refused_and_agent_kept_until_loss_is_accepted() {
    let host = Host::with_config("detached_grace_ms = 200\nreap_term_ms = 300");
    let identity = host.gateway();
    let spec = agent(&["cat"]);
    let mut pid = 0;
    for epoch in 1..=5 {
        let mut client = connect(&with_epoch(&identity, epoch), marks(0)).await.unwrap();
        if epoch == 1 {
            pid = client.spawn(&spec).await.adapter_pid.unwrap();
        }
    }
    let refused = rollback(connect(&with_epoch(&identity, 2), marks(0)).await);
    assert_eq!(refused.refusal.code, RefusalCode::RolledBack);
    assert_eq!((refused.epoch, refused.agents), (5, 1));
    assert!(refused.refusal.message.contains("its epoch is 2, and 5 is on record"), "{refused:?}");
    rollback(connect(&with_epoch(&identity, 5), marks(0)).await);
    // Ten times the grace of a gateway that is absent for another reason.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(is_alive(pid), "the agent ended");
    let warnings = host.json(&["status"])["warnings"].to_string();
    for want in [identity.id.to_string().as_str(), "was rolled back", "1 living agents are kept until 2"] {
        assert!(warnings.contains(want), "{want}: {warnings}");
    }
    assert!(doctor(&host).contains("1 living agents are kept until 2"), "{}", doctor(&host));
    // A retry does not restart the grace.
    let again = rollback(connect(&with_epoch(&identity, 3), marks(0)).await);
    assert!(again.kept_until_ms.abs_diff(refused.kept_until_ms) < 1_000, "{again:?} {refused:?}");

    let accepts = Marks { accepts_loss: true, ..marks(0) };
    rollback(connect(&with_epoch(&identity, 5), accepts.clone()).await);
    let mut client = connect(&with_epoch(&identity, 6), accepts).await.unwrap();
    assert_eq!(client.input(spec.lease_id, 1, b"x").await, Ok(Reply::Written { seq: 1 }));
    assert_eq!(host.json(&["status"])["warnings"].as_array().map(Vec::len), Some(0));
}

#[tokio::test]
async fn agents_of_refused_gateway_end_after_rollback_grace() {
    let host = Host::with_config("detached_grace_ms = 100\nrollback_grace_ms = 1500\nreap_term_ms = 300");
    let identity = host.gateway();
    let mut client = connect(&with_epoch(&identity, 2), marks(0)).await.unwrap();
    let pid = client.spawn(&agent(&["cat"])).await.adapter_pid.unwrap();
    // Refused before or right after the end of the old connection is noticed.
    drop(client);
    rollback(connect(&with_epoch(&identity, 1), marks(0)).await);
    eventually("the agent is ended", || !is_alive(pid));
    eventually("no agent is said to be kept", || doctor(&host).contains("None of its agents is alive"));
    assert!(!doctor(&host).contains("kept until"), "{}", doctor(&host));
}

#[tokio::test]
async fn marks_behind_acknowledged_ones_are_refused() {
    let mut host = Host::with_config("reap_term_ms = 300");
    let identity = host.gateway();
    let mut client = connect(&with_epoch(&identity, 1), marks(10)).await.unwrap();
    let spec = client.spawn_attached(agent(&["sh", "-c", "echo hello; exec cat"])).await;
    client.read(spec.lease_id, 0, 6).await;
    ack(&mut client, spec.lease_id, 6, 50).await;
    drop(client);
    let refused = rollback(connect(&with_epoch(&identity, 2), marks(49)).await);
    assert_eq!((refused.epoch, refused.event_id), (1, 50));
    assert!(refused.refusal.message.contains("its last event is 49"), "{refused:?}");
    let behind = |offset| Marks { offsets: vec![(spec.lease_id, offset)], ..marks(50) };
    let refused = rollback(connect(&with_epoch(&identity, 2), behind(5)).await);
    assert!(
        refused.refusal.message.contains("acknowledged up to byte 6, the database is at 5"),
        "{refused:?}"
    );

    // One start repeats its marks after each broken connection, whatever it acknowledged meanwhile.
    let same = behind(6);
    for event_id in [60, 70] {
        let mut client = connect(&with_epoch(&identity, 2), same.clone()).await.unwrap();
        ack(&mut client, spec.lease_id, 6, event_id).await;
    }
    // The mark survives a kill of the supervisor.
    eventually("the mark is written", || event_mark(&host) == Some(70));
    host.restart_after_crash();
    let refused = rollback(connect(&with_epoch(&identity, 3), marks(69)).await);
    assert_eq!((refused.epoch, refused.event_id), (2, 70));
    connect(&with_epoch(&identity, 3), marks(70)).await.unwrap();
}

/// The database was restored to a state before a lease that is in use: nothing of it was acknowledged.
#[tokio::test]
async fn database_without_lease_of_agent_in_use_is_refused() {
    let host = Host::with_config("reap_term_ms = 300");
    let identity = host.gateway();
    let mut client = connect(&with_epoch(&identity, 1), marks(0)).await.unwrap();
    let spec = client.start(agent(&["cat"])).await;
    drop(client);
    // An agent without input has done nothing for this gateway.
    let mut client = connect(&with_epoch(&identity, 2), marks(0)).await.unwrap();
    assert_eq!(client.input(spec.lease_id, 1, b"x").await, Ok(Reply::Written { seq: 1 }));
    drop(client);
    let refused = rollback(connect(&with_epoch(&identity, 3), marks(0)).await);
    assert!(refused.refusal.message.contains(&spec.lease_id.to_string()), "{refused:?}");
    let with_lease = Marks { offsets: vec![(spec.lease_id, 0)], ..marks(0) };
    let mut client = connect(&with_epoch(&identity, 3), with_lease).await.unwrap();
    client.close(spec.lease_id).await;
    connect(&with_epoch(&identity, 4), marks(0)).await.unwrap();
}

#[tokio::test]
async fn marks_and_kept_agents_survive_upgrade() {
    let host = Host::with_config("detached_grace_ms = 300\nreap_term_ms = 300");
    let identity = host.gateway();
    let mut client = connect(&with_epoch(&identity, 2), marks(0)).await.unwrap();
    let spec = agent(&["cat"]);
    let pid = client.spawn(&spec).await.adapter_pid.unwrap();
    client.attach(spec.lease_id, 0).await;
    ack(&mut client, spec.lease_id, 0, 40).await;
    drop(client);
    let before = rollback(connect(&with_epoch(&identity, 1), marks(40)).await);
    let upgraded = host.json(&["upgrade"]);
    assert_eq!(upgraded["error"], serde_json::Value::Null, "{upgraded}");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let after = rollback(connect(&with_epoch(&identity, 3), marks(39)).await);
    assert_eq!((after.epoch, after.event_id, after.agents), (2, 40, 1));
    assert!(after.kept_until_ms.abs_diff(before.kept_until_ms) < 1_000, "{after:?} {before:?}");
    assert!(is_alive(pid), "the agent ended");
}

#[tokio::test]
async fn acting_request_needs_epoch_of_connection() {
    let host = Host::new();
    let identity = with_epoch(&host.gateway(), 5);
    let mut client = connect(&identity, marks(0)).await.unwrap();
    let spec = client.start(agent(&["cat"])).await;
    let dir = tempfile::tempdir().unwrap();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let write = FilesRequest {
        scope: FilesScope::Lease(spec.lease_id),
        roots: vec![text(dir.path())],
        op: FilesOp::Write { path: text(&dir.path().join("a")), content: b"x".to_vec() },
    };
    let table = [
        (Some(4), RefusalCode::EpochStale),
        (Some(6), RefusalCode::BadRequest),
        (None, RefusalCode::BadRequest),
    ];
    for (epoch, code) in table {
        client.epoch = epoch;
        let lease_id = spec.lease_id;
        for request in [
            Request::Spawn(agent(&["cat"])),
            Request::Attach { lease_id, from_offset: 0 },
            Request::Input { lease_id, seq: 1, bytes: b"x".to_vec() },
            Request::Ack { lease_id, offset: 0 },
            Request::AckSynced { lease_id, offset: 0, event_id: 1 },
            Request::CloseLease { lease_id, reason: String::new() },
            Request::Release { lease_id },
            Request::Files(write.clone()),
        ] {
            let text = format!("{request:?}");
            assert_eq!(client.call(request).await.unwrap_err().code, code, "{epoch:?}: {text}");
        }
    }
    client.epoch = Some(5);
    assert_eq!(client.input(spec.lease_id, 1, b"x").await, Ok(Reply::Written { seq: 1 }));
    assert_eq!(client.leases().await.len(), 1, "another lease was started");
    assert!(!dir.path().join("a").exists(), "nothing was written");
}

/// A gateway of protocol 1 keeps its agent, even with a restored database.
#[tokio::test]
async fn gateway_of_protocol_1_keeps_its_agent() {
    let host = Host::new();
    let identity = with_epoch(&host.gateway(), 7);
    let mut client = identity.connect().await;
    assert_eq!(client.welcome.version, 1);
    let spec = agent(&["cat"]);
    let pid = client.spawn(&spec).await.adapter_pid.unwrap();
    client.attach(spec.lease_id, 0).await;
    assert_eq!(client.input(spec.lease_id, 1, b"one\n").await, Ok(Reply::Written { seq: 1 }));
    assert_eq!(client.read(spec.lease_id, 0, 4).await, b"one\n");
    client.ack(spec.lease_id, 4).await;
    drop(client);
    let mut client = with_epoch(&identity, 3).connect().await;
    client.attach(spec.lease_id, 4).await;
    assert_eq!(client.input(spec.lease_id, 2, b"two\n").await, Ok(Reply::Written { seq: 2 }));
    assert_eq!(client.read(spec.lease_id, 4, 4).await, b"two\n");
    assert!(is_alive(pid));
    drop(client);
    // The first marks of an upgraded gateway are accepted and count from then on.
    let offsets = vec![(spec.lease_id, 8)];
    connect(&with_epoch(&identity, 8), Marks { offsets, ..marks(12) }).await.unwrap();
    rollback(connect(&with_epoch(&identity, 9), marks(11)).await);
}

#[tokio::test]
async fn gateway_of_protocol_2_without_marks_is_refused() {
    let host = Host::with_config("handshake_ms = 300");
    let identity = host.gateway();
    let hello = Hello { version_min: VERSION_MARKS, version_max: VERSION_MARKS, ..identity.hello() };
    let opened = conn::open(&host.socket(), hello, TIMEOUT).await;
    assert!(matches!(opened, Err(ConnError::Closed)), "{:?}", opened.map(|(_, welcome)| welcome));
}
