//! Several gateways under one supervisor.

use crate::common::{Host, TIMEOUT, agent, eventually, is_alive};
use crate::scenarios::{refusal_of, requests_about};
use acp_shared::protocol::{FRAME_BYTES_MAX, Home, RefusalCode, Reply, Request, ToClient, ToSupervisor};
use acp_shared::wire;
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

#[tokio::test]
async fn gateway_sees_and_commands_only_own_leases() {
    let host = Host::new();
    let (first, second) = (host.gateway(), host.gateway());
    let (mut a, mut b) = (first.connect().await, second.connect().await);
    let (of_a, of_b) = (agent(&["cat"]), agent(&["cat"]));
    a.spawn(&of_a).await;
    b.spawn(&of_b).await;
    assert_eq!(a.leases().await.iter().map(|l| l.lease_id).collect::<Vec<_>>(), [of_a.lease_id]);
    let lease_id = of_b.lease_id;
    for body in requests_about(lease_id) {
        assert_eq!(a.call(body.clone()).await.unwrap_err().code, RefusalCode::LeaseUnknown, "{body:?}");
    }
    // A lease id of another gateway looks like any other that is taken.
    let taken = acp_shared::protocol::Spawn { lease_id, ..agent(&["cat"]) };
    assert_eq!(a.call(Request::Spawn(taken)).await.unwrap_err().code, RefusalCode::LeaseConflict);
    assert_eq!(a.call(Request::Reap { dry_run: true }).await.unwrap_err().code, RefusalCode::NotAuthorised);
    assert_eq!(b.input(lease_id, 1, b"y").await, Ok(Reply::Written { seq: 1 }));
    let all = host.json(&["leases", "list"]);
    assert_eq!(all.as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn newer_epoch_takes_over_and_older_is_refused() {
    let host = Host::new();
    let mut identity = host.gateway();
    identity.epoch = 5;
    let mut old = identity.connect().await;
    for epoch in [5, 4] {
        identity.epoch = epoch;
        assert_eq!(refusal_of(identity.try_connect().await).code, RefusalCode::InstanceBusy);
    }
    let spec = old.start(agent(&["cat"])).await;
    identity.epoch = 6;
    let mut new = identity.connect().await;
    // The old connection is refused and closed; its later requests have no effect.
    old.try_send(Request::CloseLease { lease_id: spec.lease_id, reason: "late".into() }).await;
    let last = tokio::time::timeout(TIMEOUT, old.conn.receiver.recv()).await.unwrap().unwrap();
    assert!(matches!(last, Some(ToClient::Refused(refusal)) if refusal.code == RefusalCode::EpochStale));
    let info = new.leases().await.remove(0);
    assert_eq!(info.state, acp_shared::protocol::LeaseState::Open);
}

#[tokio::test]
async fn copied_gateway_is_detected_after_restart() {
    // Welcomed gateways are recorded, however the supervisor ends.
    for end in [|host: &mut Host| assert_eq!(host.stop(), Some(0)), Host::crash] {
        let mut host = Host::new();
        let identity = host.gateway();
        drop(identity.connect().await);
        end(&mut host);
        host.start();
        let mut copy = identity.clone();
        copy.home = Home { ino: 99, ..copy.home };
        copy.epoch = 9;
        assert_eq!(refusal_of(copy.try_connect().await).code, RefusalCode::CloneDetected);
        drop(identity.connect().await);
    }
}

/// The grace starts although the gateway died between Hello and the welcome.
#[tokio::test]
async fn gateway_leaving_before_welcome_counts_as_absent() {
    let (host, mut identity, mut gateway) = Host::serving_identity("detached_grace_ms = 200").await;
    let info = gateway.spawn(&agent(&["cat"])).await;
    drop(gateway);
    identity.epoch += 1;
    let hello = ToSupervisor::Hello(identity.hello());
    let frame = wire::encode_frame(&hello, FRAME_BYTES_MAX).unwrap();
    let mut stream = UnixStream::connect(host.socket()).unwrap();
    // Writes to the gateway fail from now on.
    stream.shutdown(Shutdown::Read).unwrap();
    stream.write_all(&frame).unwrap();
    eventually("the lease ends", || !is_alive(info.adapter_pid.unwrap()));
    drop(stream);
}
