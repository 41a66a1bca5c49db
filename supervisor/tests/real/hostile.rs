//! Clients that violate the protocol.

use crate::common::{Host, TIMEOUT, agent, script};
use crate::scenarios::refusal_of;
use acp_shared::conn;
use acp_shared::protocol::{
    FRAME_BYTES_MAX, Hello, RefusalCode, Reply, Request, ToClient, ToSupervisor, VERSION_MAX,
};
use acp_shared::wire;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

/// Writes bytes and returns the supervisor's answer until it closes the connection.
fn send_raw(host: &Host, bytes: &[u8]) -> Vec<u8> {
    let mut stream = UnixStream::connect(host.socket()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    // The supervisor may close before it has read everything.
    let _ = stream.write_all(bytes);
    let mut back = Vec::new();
    let _ = stream.read_to_end(&mut back);
    back
}

#[tokio::test]
async fn malformed_clients_are_disconnected() {
    let host = Host::with_config("handshake_ms = 300");
    let mut good = host.gateway().connect().await;
    let spec = good.start(agent(&["cat"])).await;
    let hello = wire::encode_frame(&ToSupervisor::Hello(host.gateway().hello()), FRAME_BYTES_MAX).unwrap();
    let mut trailing = hello.clone();
    trailing[3] += 1;
    trailing.push(0);
    let cases: [(&str, Vec<u8>); 7] = [
        ("garbage", vec![0xff; 4096]),
        ("an oversized frame", (u32::try_from(FRAME_BYTES_MAX).unwrap() + 1).to_be_bytes().to_vec()),
        ("invalid message", vec![0, 0, 0, 1, 0xee]),
        ("half a frame", hello[..hello.len() / 2].to_vec()),
        ("trailing bytes", trailing),
        ("nothing", vec![]),
        (
            "a huge length of a string inside",
            vec![0, 0, 0, 12, 0, 1, 1, 1, 253, 255, 255, 255, 255, 255, 255, 255],
        ),
    ];
    for (name, bytes) in cases {
        let back = send_raw(&host, &bytes);
        assert!(back.is_empty(), "{name}: {back:?}");
        assert!(matches!(good.call(Request::Status).await, Ok(Reply::Status(_))), "after {name}");
    }
    drop(UnixStream::connect(host.socket()).unwrap());
    assert_eq!(good.input(spec.lease_id, 1, b"x").await, Ok(Reply::Written { seq: 1 }));
}

#[tokio::test]
async fn large_frame_before_welcome_is_refused_by_header() {
    let host = Host::with_config("handshake_ms = 60000");
    let hello = Hello { version_max: VERSION_MAX, ..host.gateway().hello() };
    let hello = wire::encode_frame(&ToSupervisor::Hello(hello), FRAME_BYTES_MAX).unwrap();
    let header = |bytes: usize| u32::try_from(bytes).unwrap().to_be_bytes().to_vec();
    for (name, bytes) in
        [("instead of Hello", header(1 << 20)), ("instead of Marks", [hello, header((1 << 20) + 1)].concat())]
    {
        let begun = std::time::Instant::now();
        assert!(send_raw(&host, &bytes).is_empty(), "{name}");
        assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{name}: not refused by the header");
    }
    let mut gateway = host.gateway().connect().await;
    let spec = gateway.start(agent(&["cat"])).await;
    let large = gateway.input(spec.lease_id, 1, &vec![b'x'; 1 << 20]).await;
    assert_eq!(large, Ok(Reply::Written { seq: 1 }), "large frame after the handshake");
}

#[tokio::test]
async fn misplaced_hello_is_refused() {
    let host = Host::new();
    let request = ToSupervisor::Request { id: 1, body: Request::Status };
    let mut conn = conn::connect::<ToClient, ToSupervisor>(&host.socket()).await.unwrap();
    conn.sender.send(&request).await.unwrap();
    let answer = conn.receiver.recv().await.unwrap();
    assert!(matches!(answer, Some(ToClient::Refused(r)) if r.code == RefusalCode::BadRequest));

    let identity = host.gateway();
    let mut client = identity.connect().await;
    client.conn.sender.send(&ToSupervisor::Hello(identity.hello())).await.unwrap();
    let answer = client.conn.receiver.recv().await.unwrap();
    assert!(matches!(answer, Some(ToClient::Refused(r)) if r.code == RefusalCode::BadRequest));
    assert!(client.conn.receiver.recv().await.unwrap().is_none());
}

#[tokio::test]
async fn unsupported_version_is_refused_with_remedy() {
    let host = Host::new();
    let mut hello = host.gateway().hello();
    (hello.version_min, hello.version_max) = (100, 200);
    let refusal = refusal_of(conn::open(&host.socket(), hello, TIMEOUT).await);
    assert_eq!(refusal.code, RefusalCode::VersionUnsupported);
    assert!(refusal.message.contains("upgrade the supervisor"), "{}", refusal.message);
}

#[tokio::test]
async fn connection_limit_spares_known_gateways() {
    let host = Host::with_config("connections_max = 3");
    let (mut known, mut held) = (host.gateway(), Vec::new());
    drop(known.connect().await);
    known.epoch = 2;
    let until = std::time::Instant::now() + TIMEOUT;
    while held.len() < 3 {
        // The closed connection counts until the supervisor notices its end.
        match host.gateway().try_connect().await {
            Ok(client) => held.push(client),
            Err(error) => assert!(std::time::Instant::now() < until, "{error}"),
        }
    }
    let refusal = refusal_of(host.gateway().try_connect().await);
    assert_eq!(refusal.code, RefusalCode::QuotaExceeded);
    assert!(refusal.message.contains("connections_max"), "{}", refusal.message);
    assert!(refusal.retry_after_ms.is_some());
    assert!(host.cli(&["status"]).status.success(), "an admin can connect");
    assert!(matches!(known.connect().await.call(Request::Status).await, Ok(Reply::Status(_))));
    held.pop();
    let freed = async { while host.gateway().try_connect().await.is_err() {} };
    tokio::time::timeout(TIMEOUT, freed).await.expect("timeout: no free connection");
}

#[tokio::test]
async fn non_reading_client_is_disconnected() {
    let host = Host::with_config("requests_in_flight_max = 50");
    let identity = host.gateway();
    let mut client = identity.connect().await;
    let mut good = host.gateway().connect().await;
    client.start(agent(&["cat"])).await;
    let mut sent = 0;
    // Writes until the supervisor closes the connection, and reads nothing.
    while sent < 1_000_000 {
        let request = ToSupervisor::Request { id: 1_000 + sent, body: Request::ListLeases { detail: false } };
        match tokio::time::timeout(TIMEOUT, client.conn.sender.send(&request)).await.unwrap() {
            Ok(()) => sent += 1,
            Err(_) => break,
        }
    }
    assert!(sent < 1_000_000, "never disconnected");
    assert!(matches!(good.call(Request::Status).await, Ok(Reply::Status(_))));
    let mut again = identity;
    again.epoch = 2;
    assert_eq!(again.connect().await.leases().await.len(), 1, "the lease survives");
}

/// H9: agents share the supervisor's user and can reach its socket, but are refused.
#[tokio::test]
async fn agent_cannot_command_its_supervisor() {
    let (host, mut gateway) = Host::with_gateway().await;
    let (binary, state_dir) = (env!("CARGO_BIN_EXE_acp-supervisor"), host.state_dir());
    let command = format!("{binary} leases list --state-dir {}", state_dir.display());
    // The second command has left its session, its parents and the marker.
    for text in [command.clone(), format!("(setsid env -i {command} &) & exec sleep 1")] {
        let spec = gateway.spawn_attached(script(&text)).await;
        let (_, end) = gateway.await_exit(spec.lease_id).await;
        assert_eq!(end, 0, "received leases");
        gateway.log_with(&spec.session_key, "refuses connections from the process trees").await;
    }
    assert_eq!(host.json(&["leases", "list"]).as_array().unwrap().len(), 2);
}
