//! The handshake and the connection over real sockets, with other versions and misbehaving peers.
#![cfg(feature = "net")]
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use acp_shared::conn::{self, Client, Conn, ConnError, Listener, Peer, negotiate, negotiate_within};
use acp_shared::ids::{GatewayInstanceId, LeaseId, StartId};
use acp_shared::protocol::*;
use acp_shared::wire;
use std::future::Future;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

/// Timeout of every operation.
const DEADLINE: Duration = Duration::from_secs(20);

fn hello(version_min: u16, version_max: u16) -> Hello {
    let home = Home { machine_id: String::new(), dev: 1, ino: 2 };
    let role = Role::Gateway { instance_id: GatewayInstanceId::mint(), epoch: 1, home };
    Hello { version_min, version_max, features: vec!["some-day".into()], role, secret: None }
}

fn welcome(version: u16) -> Welcome {
    Welcome { version, features: vec![], pid: 1, supervisor_id: "s".into(), credit_bytes: 1 }
}

fn socket_path() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.sock");
    (dir, path)
}

/// Answers every Hello as a supervisor does.
async fn greet(listener: Listener) {
    loop {
        let mut conn: Conn<ToSupervisor, ToClient> = listener.accept().await.unwrap();
        let Some(ToSupervisor::Hello(hello)) = conn.receiver.recv().await.unwrap() else {
            panic!("a connection begins with Hello")
        };
        let answer = match negotiate(&hello) {
            Ok(version) => ToClient::Welcome(welcome(version)),
            Err(refusal) => ToClient::Refused(refusal),
        };
        conn.sender.send(&answer).await.unwrap();
    }
}

/// Peer that reads the Hello and then runs `act` on the raw socket.
fn serve_raw<F: Future<Output = ()> + Send + 'static>(
    path: &Path,
    act: impl FnOnce(UnixStream) -> F + Send + 'static,
) {
    let listener = UnixListener::bind(path).unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let length = stream.read_u32().await.unwrap();
        let mut body = vec![0; length as usize];
        stream.read_exact(&mut body).await.unwrap();
        assert!(matches!(wire::decode::<ToSupervisor>(&body), Ok(ToSupervisor::Hello(_))));
        act(stream).await;
    });
}

fn frame(message: &ToClient) -> Vec<u8> {
    wire::encode_frame(message, FRAME_BYTES_MAX).unwrap()
}

#[test]
fn newest_common_version_is_chosen() {
    for (min, max, want) in [
        (1, 1, Ok(1)),
        (0, 1, Ok(1)),
        (1, 9, Ok(2)),
        (2, 2, Ok(2)),
        (0, u16::MAX, Ok(2)),
        (0, 0, Err("upgrade the client")),
        (3, 3, Err("upgrade the supervisor (acp-supervisor upgrade)")),
        (3, u16::MAX, Err("upgrade the supervisor")),
        // An inverted range matches no version.
        (5, 1, Err("upgrade")),
    ] {
        match (negotiate(&hello(min, max)), want) {
            (Ok(got), Ok(want)) => assert_eq!(got, want),
            (Err(refusal), Err(part)) => {
                assert_eq!(refusal.code, RefusalCode::VersionUnsupported);
                assert!(refusal.message.contains(part), "{min}..{max}: {}", refusal.message);
                assert_eq!(refusal.retry_after_ms, None);
            }
            (got, want) => panic!("{min}..{max}: {got:?}, not {want:?}"),
        }
    }
}

#[tokio::test]
async fn unsupported_version_is_refused() {
    let (_dir, path) = socket_path();
    tokio::spawn(greet(Listener::bind(&path, 0o600).unwrap()));
    for (min, max) in [(0, 0), (3, 4)] {
        match conn::open(&path, hello(min, max), DEADLINE).await {
            Err(ConnError::Refused(refusal)) => assert_eq!(refusal.code, RefusalCode::VersionUnsupported),
            other => panic!("{min}..{max}: {other:?}"),
        }
    }
    let (conn, welcome) = conn::open(&path, hello(1, 7), DEADLINE).await.unwrap();
    assert_eq!(welcome.version, 2);
    let Peer::Local { pid, .. } = conn.peer else { panic!("a local socket has a local peer") };
    assert_eq!(pid, i32::try_from(std::process::id()).ok());
}

/// A supervisor of version 1 closes the connection before reading the marks; its refusal still arrives.
#[tokio::test]
async fn gateway_of_version_2_reads_the_refusal_of_an_older_supervisor() {
    let (_dir, path) = socket_path();
    let listener = Listener::bind(&path, 0o600).unwrap();
    tokio::spawn(async move {
        loop {
            let mut conn: Conn<ToSupervisor, ToClient> = listener.accept().await.unwrap();
            let Some(ToSupervisor::Hello(hello)) = conn.receiver.recv().await.unwrap() else { panic!() };
            let refusal = negotiate_within(&hello, 1..=1).unwrap_err();
            conn.sender.send(&ToClient::Refused(refusal)).await.unwrap();
        }
    });
    for offsets in [0, 20_000] {
        let offsets = vec![(LeaseId::mint(), 1); offsets];
        let marks = Marks { start_id: StartId::mint(), event_id: 1, offsets, accepts_loss: false };
        match conn::open_gateway(&path, hello(2, 2), marks, DEADLINE).await {
            Err(ConnError::Refused(refusal)) => {
                assert_eq!(refusal.code, RefusalCode::VersionUnsupported);
                assert!(refusal.message.contains("acp-supervisor upgrade"), "{}", refusal.message);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn peer_credentials_are_known_to_both_ends() {
    let (_dir, path) = socket_path();
    let listener = Listener::bind(&path, 0o600).unwrap();
    let (there, here) = tokio::join!(
        listener.accept::<ToSupervisor, ToClient>(),
        conn::connect::<ToClient, ToSupervisor>(&path)
    );
    let (there, here) = (there.unwrap(), here.unwrap());
    assert_eq!(there.peer, here.peer);
    let Peer::Local { uid, gid, .. } = there.peer else { panic!("a local socket has a local peer") };
    assert_eq!(uid, nix::unistd::geteuid().as_raw());
    assert_eq!(gid, nix::unistd::getegid().as_raw());
}

#[tokio::test]
async fn misbehaving_peers_cause_distinct_errors() {
    let framed = |body: &[u8]| [&u32::try_from(body.len()).unwrap().to_be_bytes()[..], body].concat();
    let mut cut = frame(&ToClient::Welcome(welcome(1)));
    cut.pop();
    let out_of_turn = frame(&ToClient::Reply { id: 0, result: Ok(Reply::Done) });
    let short = Duration::from_millis(50);
    type Check = fn(&ConnError) -> bool;
    let too_large: Check = |e| matches!(e, ConnError::Io(e) if e.kind() == io::ErrorKind::InvalidData);
    let silent: Check = |e| matches!(e, ConnError::Timeout(d) if *d == Duration::from_millis(50));
    let no_message: Check = |e| matches!(e, ConnError::Wire(_));
    // Columns: name, bytes written by the peer, whether the connection stays open, deadline, expected error.
    let table: [(&str, Vec<u8>, bool, Duration, Check); 8] = [
        ("closes early", vec![], false, DEADLINE, |e| matches!(e, ConnError::Closed)),
        ("stops in the middle of a frame", cut, false, DEADLINE, |e| matches!(e, ConnError::Io(_))),
        ("announces too much", u32::MAX.to_be_bytes().to_vec(), true, DEADLINE, too_large),
        ("sends no message", framed(b"\xff\xff"), false, DEADLINE, no_message),
        ("speaks HTTP", framed(b"HTTP/1.1 400 Bad Request\r\n\r\n"), false, DEADLINE, no_message),
        ("sends an empty frame", framed(b""), false, DEADLINE, no_message),
        ("answers out of turn", out_of_turn, false, DEADLINE, |e| matches!(e, ConnError::OutOfTurn)),
        ("is silent", vec![], true, short, silent),
    ];
    for (name, bytes, stays, deadline, is_expected) in table {
        let (_dir, path) = socket_path();
        serve_raw(&path, move |mut stream| async move {
            stream.write_all(&bytes).await.unwrap();
            if stays {
                let _ = stream.read_u8().await;
            }
        });
        let result = conn::open(&path, hello(1, 1), deadline).await;
        assert!(result.as_ref().is_err_and(is_expected), "{name}: {result:?}");
    }
}

#[tokio::test]
async fn missing_listener_is_an_error() {
    let (_dir, path) = socket_path();
    match conn::open(&path, hello(1, 1), DEADLINE).await {
        Err(ConnError::Io(e)) => assert_eq!(e.kind(), io::ErrorKind::NotFound),
        other => panic!("{other:?}"),
    }
    drop(Listener::bind(&path, 0o600).unwrap());
    match conn::open(&path, hello(1, 1), DEADLINE).await {
        Err(ConnError::Io(e)) => assert_eq!(e.kind(), io::ErrorKind::ConnectionRefused),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn listener_sets_mode_and_replaces_only_sockets() {
    let (_dir, path) = socket_path();
    let first = Listener::bind(&path, 0o600).unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    drop(first);
    assert!(path.exists(), "dropping the listener does not remove the socket file");
    let second = Listener::bind(&path, 0o660).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
    drop(second);
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "precious").unwrap();
    let error = Listener::bind(&path, 0o600).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

#[tokio::test]
async fn call_returns_reply_with_its_id() {
    let (_dir, path) = socket_path();
    serve_raw(&path, |mut stream| async move {
        let lease_id = LeaseId::mint();
        let notice = Notice::LeaseChanged { lease_id, state: LeaseState::Open, reason: String::new() };
        let mut bytes = frame(&ToClient::Welcome(welcome(1)));
        bytes.extend(frame(&ToClient::Notice(notice)));
        bytes.extend(frame(&ToClient::Reply { id: 99, result: Ok(Reply::Done) }));
        bytes.extend(frame(&ToClient::Reply { id: 1, result: Ok(Reply::Leases(vec![])) }));
        let busy = Refusal::new(RefusalCode::Busy, "later").retry_after(5);
        bytes.extend(frame(&ToClient::Reply { id: 2, result: Err(busy) }));
        stream.write_all(&bytes).await.unwrap();
        let _ = stream.read_to_end(&mut Vec::new()).await;
    });
    let mut client = Client::open(&path, hello(1, 1), DEADLINE).await.unwrap();
    assert_eq!(client.welcome(), &welcome(1));
    assert_eq!(client.call(Request::ListLeases { detail: false }).await.unwrap(), Reply::Leases(vec![]));
    match client.call(Request::Status).await {
        Err(ConnError::Refused(refusal)) => {
            assert_eq!((refusal.code, refusal.retry_after_ms), (RefusalCode::Busy, Some(5)));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn frames_of_any_size_are_transferred() {
    let (_dir, path) = socket_path();
    let listener = Listener::bind(&path, 0o600).unwrap();
    let lease_id = LeaseId::mint();
    let sizes = [0, 1, 4096, 65_536, 5 * 1024 * 1024];
    let server = tokio::spawn(async move {
        let mut conn: Conn<ToSupervisor, ToClient> = listener.accept().await.unwrap();
        let mut got = Vec::new();
        while let Some(message) = conn.receiver.recv().await.unwrap() {
            let ToSupervisor::Request { body: Request::Input { bytes, .. }, .. } = message else { panic!() };
            got.push(bytes.len());
        }
        got
    });
    let mut conn = conn::connect::<ToClient, ToSupervisor>(&path).await.unwrap();
    for (id, size) in (0..).zip(sizes) {
        let body = Request::Input { lease_id, seq: id, bytes: vec![b'x'; size] };
        conn.sender.feed(&ToSupervisor::Request { id, body }).await.unwrap();
    }
    conn.sender.flush().await.unwrap();
    drop(conn);
    assert_eq!(server.await.unwrap(), sizes);
}
