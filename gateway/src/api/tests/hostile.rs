//! Clients over TCP that misbehave, while others are served; and tokens that are revoked meanwhile.

use super::network::{LOOPBACK, Network, bearer, config, read_to_end, request, status};
use super::*;
use crate::tests::eventually;
use acp_core::principal::Scope;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::net::TcpStream;

const LIMITS_OF_TCP: ApiLimits = ApiLimits { keep_alive_ms: 50, ..LIMITS };

/// Asks again and again, each time on a new connection, until it is dropped; counts the responses.
struct Witness {
    served: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Witness {
    fn start(network: &Network, token: &str) -> Self {
        let (address, head) = (network.address(), request("GET", "/v1/health", &bearer(token), ""));
        let served = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&served);
        let task = tokio::spawn(async move {
            loop {
                let Ok(mut stream) = TcpStream::connect(address).await else { continue };
                if stream.write_all(&head).await.is_ok()
                    && read_to_end(&mut stream).await.starts_with("HTTP/1.1 200 ")
                {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Self { served, task }
    }

    /// Waits until more requests were served.
    async fn is_served(&self) {
        let before = self.served.load(Ordering::Relaxed);
        let more = async || (self.served.load(Ordering::Relaxed) > before + 1).then_some(());
        eventually("requests of another client to be served", more).await;
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test]
async fn hostile_clients_keep_nobody_from_being_served() {
    let network = Network::start(LOOPBACK, LIMITS_OF_TCP).await;
    let token = network.token("phone", Scope::Prompt, &[], None).await;
    let witness = Witness::start(&network, &token);
    let prompt = format!("{SESSION}/prompt");
    // Silent connections and unfinished heads, more than there are slots.
    let mut held = Vec::new();
    for at in 0..200 {
        let begun: &[u8] = if at % 2 == 0 { b"" } else { b"GET /v1/health HTTP/1.1\r\nhost: local" };
        held.push(network.connect(begun).await);
    }
    witness.is_served().await;
    for stream in &mut held {
        assert_eq!(read_to_end(stream).await, "", "closed without a response");
    }
    // Slow bodies, with and without a token.
    for headers in ["", &bearer(&token)] {
        let head =
            format!("POST {prompt} HTTP/1.1\r\nhost: localhost\r\n{headers}content-length: 100\r\n\r\n{{");
        let mut slow = network.connect(head.as_bytes()).await;
        witness.is_served().await;
        let answer = read_to_end(&mut slow).await;
        let want = if headers.is_empty() { 401 } else { 408 };
        assert_eq!(status(&answer), want, "{answer}");
    }
    // Too large heads and bodies, and what is no HTTP.
    let large = "x".repeat(100_000);
    for (bytes, want) in [
        (request("GET", "/v1/health", &format!("x: {large}\r\n{}", bearer(&token)), ""), Some(431)),
        (request("POST", &prompt, &bearer(&token), &large), Some(413)),
        (request("POST", &prompt, "", &large), Some(401)),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 not http\r\n\r\n".to_vec(), Some(400)),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n and then nonsense, long enough for a frame".to_vec(), None),
    ] {
        let mut stream = network.connect(b"").await;
        let _ = stream.write_all(&bytes).await;
        let answer = read_to_end(&mut stream).await;
        if let Some(want) = want.filter(|_| !answer.is_empty()) {
            assert_eq!(status(&answer), want, "{answer}");
        }
        assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
        witness.is_served().await;
    }
    assert!(network.refusals("too_many_connections") > 0);
    assert_eq!(network.fake.calls.lock().unwrap().len(), 0, "nothing was prompted");
    drop(witness);
    eventually("no open connection", async || {
        network.metrics.render().contains("acp_api_connections_open{listener=\"tcp\"} 0").then_some(())
    })
    .await;
    network.end().await;
}

async fn open_stream(network: &Network, token: &str) -> TcpStream {
    let head = format!("{STREAM}{}", bearer(token));
    let mut stream = network.connect(&request("GET", &format!("{SESSION}/events"), &head, "")).await;
    let mut first = [0; 12];
    tokio::time::timeout(DEADLINE, stream.read_exact(&mut first)).await.unwrap().unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    stream
}

#[tokio::test]
async fn revoked_or_expired_token_ends_its_streams() {
    let network = Network::start(LOOPBACK, LIMITS_OF_TCP).await;
    let revoked = network.token("revoked", Scope::Read, &[], None).await;
    let kept = network.token("kept", Scope::Read, &[], None).await;
    let expiring = network.token("expiring", Scope::Read, &[], Some(5)).await;
    let mut streams = [open_stream(&network, &revoked).await, open_stream(&network, &expiring).await];
    let mut other = open_stream(&network, &kept).await;
    network.fake.append_message("before");
    for stream in &mut streams {
        read_until(stream, "before").await;
    }
    network.revoke("revoked").await;
    for stream in &mut streams {
        let rest = read_to_end(stream).await;
        assert!(!rest.ends_with("0\r\n\r\n"), "ends as a broken stream: {rest}");
    }
    network.fake.append_message("after");
    read_until(&mut other, "after").await;
    network.end().await;
}

/// Reads a stream until it has brought this text.
async fn read_until(stream: &mut TcpStream, text: &str) {
    let mut seen = String::new();
    while !seen.contains(text) {
        let mut piece = [0; 4_096];
        let count = tokio::time::timeout(DEADLINE, stream.read(&mut piece)).await.unwrap().unwrap();
        assert!(count > 0, "the stream ended: {seen}");
        seen.push_str(&String::from_utf8_lossy(&piece[..count]));
    }
}

#[tokio::test]
async fn revoked_token_ends_a_request_that_waits() {
    let network = Network::start(LOOPBACK, LIMITS_OF_TCP).await;
    network.fake.state.lock().unwrap().0 = SessionState::Creating;
    let token = network.token("phone", Scope::Prompt, &[], None).await;
    let mut waiting =
        network.connect(&request("POST", "/v1/sessions", &bearer(&token), r#"{"wait_s":100}"#)).await;
    eventually("the request", async || (!network.fake.calls.lock().unwrap().is_empty()).then_some(())).await;
    network.revoke("phone").await;
    let answer = read_to_end(&mut waiting).await;
    assert_eq!(status(&answer), 401, "{answer}");
    network.end().await;
}

#[tokio::test]
async fn revoked_token_ends_its_acp_connection_with_what_waits_there() {
    let network = Network::start(LOOPBACK, LIMITS_OF_TCP).await;
    network.fake.state.lock().unwrap().0 = SessionState::Creating;
    let token = network.token("phone", Scope::Prompt, &[], None).await;
    let post = |connection: &str, body: &str| {
        let headers = format!("{}content-type: application/json\r\n{connection}", bearer(&token));
        request("POST", "/acp", &headers, body)
    };
    let initialize = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}"#;
    let answer = network.exchange(&post("", initialize)).await;
    let connection = answer.lines().find(|line| line.starts_with("acp-connection-id: ")).unwrap();
    let connection = format!("{connection}\r\n");
    // More calls than are executed at once, all of which wait for an agent.
    for id in 1..=40 {
        let call = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"session/new","params":{{"cwd":"/","mcpServers":[]}}}}"#
        );
        assert_eq!(status(&network.exchange(&post(&connection, &call)).await), 202);
    }
    let spawned = || network.fake.calls().len();
    eventually("calls that wait", async || (spawned() == 32).then_some(())).await;
    network.revoke("phone").await;
    eventually("the end of the connection", async || {
        network.metrics.render().contains("acp_client_ends_total{reason=\"revoked\"} 1").then_some(())
    })
    .await;
    network.fake.state.lock().unwrap().0 = SessionState::Running;
    network.fake.append_message("wakes the calls");
    eventually("an idle gateway", async || {
        network.metrics.render().contains("acp_clients_open 0").then_some(())
    })
    .await;
    assert_eq!(spawned(), 32, "nothing more is executed");
    network.end().await;
}

/// Response to a request of a thread with another user id.
fn ask_as(uid: u32, socket: &Path, asked: &[u8]) -> String {
    use std::io::{Read as _, Write as _};
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let uid = rustix::process::Uid::from_raw(uid);
            // Only this thread's ids change.
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            let mut stream = std::os::unix::net::UnixStream::connect(socket).unwrap();
            let mut answer = String::new();
            if stream.write_all(asked).is_ok() {
                let _ = stream.read_to_string(&mut answer);
            }
            answer
        });
        asking.join().unwrap()
    })
}

#[expect(clippy::print_stdout, reason = "a skipped test says so")]
#[tokio::test(flavor = "multi_thread")]
async fn proxy_names_people_from_its_own_user_only() {
    const PROXY: u32 = 65_534;
    if !rustix::process::geteuid().is_root() {
        println!("probe: this user is not root and cannot become another one: nothing is tested here");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let socket = dir.path().join("proxy.sock");
    let text = format!(
        "[northbound.proxy]\nsocket = \"{}\"\nuids = [{PROXY}]\nheader = \"x-user\"\nscope = \"approve\"\n",
        socket.display()
    );
    let network = Network::start(&text, LIMITS_OF_TCP).await;
    let answer_path = format!("{SESSION}/permissions/l:5");
    for (uid, headers, want) in [
        (PROXY, "x-user: ann\r\n", Some(200)),
        (PROXY, "", Some(401)),
        (PROXY, "x-remote-user: ann\r\n", Some(401)),
        (PROXY, "x-user: ann\r\nx-user: bob\r\n", Some(401)),
        (PROXY, "x-user: ann\r\norigin: https://evil.example\r\n", Some(403)),
        (PROXY - 1, "x-user: ann\r\n", None),
        (0, "x-user: ann\r\n", None),
    ] {
        let (socket, asked) =
            (socket.clone(), request("POST", &answer_path, headers, r#"{"option_id":"yes"}"#));
        let answer = tokio::task::spawn_blocking(move || ask_as(uid, &socket, &asked)).await.unwrap();
        assert_eq!((!answer.is_empty()).then(|| status(&answer)), want, "{uid} {headers}: {answer}");
    }
    // On the local socket the header means nothing.
    let local = post(&answer_path, "x-user: bob\r\n", r#"{"option_id":"yes"}"#);
    assert!(exchange(network.dir.path(), &local).await.starts_with("HTTP/1.1 200 "));
    let calls = network.fake.calls.lock().unwrap().clone();
    let by: Vec<&str> = calls.iter().filter_map(|call| call.split(' ').nth(3)).collect();
    assert_eq!(by, ["ann", "root"], "{calls:?}");
    assert_eq!((network.refusals("foreign_user"), network.refusals("no_name")), (2, 3));
    network.live.replace(config("")).unwrap();
    eventually("no socket of the proxy", async || (!socket.exists()).then_some(())).await;
    network.end().await;
}
