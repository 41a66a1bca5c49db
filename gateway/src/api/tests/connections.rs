//! Connections of the local interface: slow, idle, half-closed and refused ones.

use super::*;
use crate::api::extract::BodyRoom;
use crate::tests::{LogLines, eventually};
use acp_core::principal::Principal;

#[tokio::test]
async fn slow_and_disconnected_clients_free_their_slots() {
    let (dir, fake, server) = start_server(LIMITS);
    // An unfinished head and an unfinished body: the server ends both connections.
    assert_eq!(exchange(dir.path(), b"GET /v1/health HTTP/1.1\r\nhost:").await, "");
    let started = b"POST /v1/sessions HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{";
    assert!(exchange(dir.path(), started).await.starts_with("HTTP/1.1 408 "));
    // More disconnecting clients than slots.
    for _ in 0..20 {
        drop(send_request(dir.path(), started).await);
    }
    let client = GatewayClient::new(dir.path()).until(Some(Instant::now() + DEADLINE));
    eventually("a free slot", async || client.get::<Value>("/v1/health").await.ok()).await;
    assert!(fake.calls.lock().unwrap().is_empty());
    server.end().await;
}

#[tokio::test]
async fn idle_connections_are_closed_for_new_ones() {
    let (dir, _fake, server) = start_server(ApiLimits { head_ms: 60_000, ..LIMITS });
    let mut held = Vec::new();
    for _ in 0..LIMITS.connections_max {
        held.push(send_request(dir.path(), b"GET /v1/health HTTP/1.1\r\nhost:").await);
    }
    for _ in 0..2 * LIMITS.connections_max {
        let answer = exchange(dir.path(), &get("/v1/health", "")).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    // The oldest connection was closed.
    let mut rest = Vec::new();
    let _ = tokio::time::timeout(DEADLINE, held[0].read_to_end(&mut rest)).await.unwrap();
    server.end().await;
}

/// With the maximum of streams open and unread, the rest of the API responds.
#[tokio::test]
async fn streams_leave_slots_for_other_requests() {
    let (dir, _fake, server) = start_server(LIMITS);
    let key = SESSION;
    let request = format!("GET {key}/events HTTP/1.1\r\nhost: x\r\naccept: text/event-stream\r\n\r\n");
    let (mut held, mut refused) = (Vec::new(), 0);
    for _ in 0..LIMITS.connections_max {
        let mut stream = send_request(dir.path(), request.as_bytes()).await;
        let mut head = [0; 12];
        tokio::time::timeout(DEADLINE, stream.read_exact(&mut head)).await.unwrap().unwrap();
        match &head {
            b"HTTP/1.1 200" => held.push(stream),
            b"HTTP/1.1 429" => refused += 1,
            other => panic!("{}", String::from_utf8_lossy(other)),
        }
    }
    assert_eq!((held.len(), refused), (24, 8));
    let client = GatewayClient::new(dir.path());
    let idempotency_key = IdempotencyKey::parse("k").unwrap();
    for _ in 0..LIMITS.connections_max {
        assert!(client.get::<Value>("/v1/health").await.is_ok());
        let _: CancelResult =
            client.post(&format!("{key}/cancel"), &json!({}), &idempotency_key).await.unwrap();
        let answer = AnswerBody { by: Some("me".into()), ..AnswerBody::of_option("yes".into()) };
        let _: Done =
            client.post(&format!("{key}/permissions/l:5"), &answer, &idempotency_key).await.unwrap();
    }
    drop(held);
    server.end().await;
}

#[tokio::test]
async fn half_closed_client_gets_response_and_closed_one_frees_its_slot() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::new();
    // Without keep-alive comments, only the closed connection shows that the client is gone.
    let limits = ApiLimits { keep_alive_ms: 3_600_000, connections_max: 4, ..LIMITS };
    let server = Server::start(dir.path(), &fake, limits);
    let request = b"GET /v1/health HTTP/1.1\r\nhost: x\r\n\r\n";
    for _ in 0..20 {
        let mut stream = send_request(dir.path(), request).await;
        stream.shutdown().await.unwrap();
        let mut answer = String::new();
        tokio::time::timeout(DEADLINE, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    let stream_request = format!("GET {SESSION}/events?after=0 HTTP/1.1\r\nhost: x\r\n{STREAM}\r\n");
    fake.append_message("one");
    for _ in 0..limits.connections_max {
        let mut stream = send_request(dir.path(), stream_request.as_bytes()).await;
        let mut first = [0; 16];
        stream.read_exact(&mut first).await.unwrap();
    }
    let client = GatewayClient::new(dir.path());
    eventually("a free slot", async || client.get::<Value>("/v1/health").await.ok()).await;
    server.end().await;
}

#[tokio::test]
async fn session_log_is_read_from_end_or_offset() {
    let (dir, _fake, server) = start_server(LIMITS);
    let client = GatewayClient::new(dir.path());
    for (query, want) in [
        ("", ("two\nthree\nfour\nfive\n", 4, 24, false)),
        ("?lines=3", ("three\nfour\nfive\n", 8, 24, false)),
        ("?lines=0", ("", 24, 24, false)),
        ("?offset=0", ("two\nthree\n", 4, 14, true)),
        ("?offset=14", ("four\nfive\n", 14, 24, false)),
        ("?offset=24", ("", 24, 24, false)),
    ] {
        let page: LogPage = client.get(&format!("{SESSION}/log{query}")).await.unwrap();
        assert_eq!((page.text.as_str(), page.offset, page.next_offset, page.more), want, "{query}");
    }
    for (path, code) in [
        ("/v1/sessions/agent:demo:acp:a%2Fb/log?lines=1&offset=1", Code::Usage),
        ("/v1/sessions/agent:demo:acp:a%2Fb/log?offset=-1", Code::Usage),
        ("/v1/sessions/none/log", Code::NoSession),
    ] {
        assert_eq!(client.get::<LogPage>(path).await.unwrap_err().code, code, "{path}");
    }
    server.end().await;
}

#[tokio::test]
async fn displaced_connections_are_logged_with_a_limit() {
    let lines = LogLines::default();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(lines.writer()).finish();
    // The runtime of a test has one thread.
    let logging = tracing::subscriber::set_default(subscriber);
    let (dir, _fake, server) = start_server(ApiLimits { head_ms: 60_000, ..LIMITS });
    // Each connection beyond the limit closes another one, which is logged.
    let beyond = 100;
    let mut held = Vec::new();
    for _ in 0..LIMITS.connections_max + beyond {
        held.push(UnixStream::connect(dir.path().join(SOCKET)).await.unwrap());
    }
    let ended = async |stream: &mut UnixStream| {
        let mut rest = Vec::new();
        let _ = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut rest)).await.unwrap();
    };
    for stream in held.iter_mut().take(beyond) {
        ended(stream).await;
    }
    server.end().await;
    drop(logging);
    let text = lines.text();
    let written = text.lines().filter(|line| line.contains("too many connections; ")).count();
    assert_eq!(written as u64, acp_shared::log_limit::LINES_MAX, "{text}");
    assert!(text.contains(&format!("left_out={}", beyond - written)), "{text}");
}

#[tokio::test]
async fn refused_request_is_read_before_the_response() {
    let long = format!("{{\"text\":\"{}\"}}", "x".repeat(500_000));
    for request in
        [post("/v1/sessions/none/prompt", "", &long), b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec()]
    {
        let (mut client, server) = UnixStream::pair().unwrap();
        let refusing = tokio::spawn(crate::api::socket::refuse(server, 1 << 20));
        let (head, rest) = request.split_at(20);
        client.write_all(head).await.unwrap();
        let mut early = [0; 1];
        let early = tokio::time::timeout(Duration::from_millis(200), client.read(&mut early)).await;
        assert!(early.is_err(), "a response to half a request: {early:?}");
        client.write_all(rest).await.unwrap();
        let mut answer = String::new();
        tokio::time::timeout(DEADLINE, client.read_to_string(&mut answer)).await.unwrap().unwrap();
        assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("PERMISSION_DENIED"), "{answer}");
        refusing.await.unwrap();
    }
    // A silent peer is disconnected soon.
    let (client, server) = UnixStream::pair().unwrap();
    tokio::time::timeout(DEADLINE, crate::api::socket::refuse(server, 1 << 20)).await.unwrap();
    drop(client);
}

#[tokio::test]
async fn client_waits_for_a_place_in_a_full_backlog() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(SOCKET);
    let listening = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    bind(&listening, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&listening, 0).unwrap();
    let mut held = Vec::new();
    let full = loop {
        match UnixStream::connect(&path).await {
            Ok(stream) => held.push(stream),
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), std::io::ErrorKind::WouldBlock);
    let connecting = async {
        let mut connecting = std::pin::pin!(crate::api::client::connect(&path));
        assert!(futures_util::poll!(connecting.as_mut()).is_pending());
        let listener = std::os::unix::net::UnixListener::from(listening);
        let accepted = listener.accept().unwrap();
        let connected = connecting.await;
        drop((accepted, listener));
        connected
    };
    tokio::time::timeout(DEADLINE, connecting).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn large_bodies_wait_for_room_and_small_ones_do_not() {
    let room = BodyRoom::default();
    let [ann, bob, eve] = ["ann", "bob", "eve"].map(|name| Principal::of_local_user(name.to_owned()));
    let soon = Duration::from_secs(1);
    let held = room.take(&ann, usize::MAX).await;
    assert!(tokio::time::timeout(soon, room.take(&ann, 1 << 20)).await.is_err(), "half is for others");
    let more = room.take(&bob, 32 << 20).await;
    assert!(held.is_some() && more.is_some());
    assert!(tokio::time::timeout(soon, room.take(&eve, 1 << 20)).await.is_err());
    assert!(tokio::time::timeout(soon, room.take(&eve, 1_000)).await.unwrap().is_none());
    assert!(tokio::time::timeout(soon, room.take_response(&ann, 1 << 20)).await.unwrap().is_some());
    drop(held);
    assert!(tokio::time::timeout(soon, room.take(&eve, 1 << 20)).await.unwrap().is_some());
    assert!(tokio::time::timeout(soon, room.take(&bob, 1 << 20)).await.is_err());
}
