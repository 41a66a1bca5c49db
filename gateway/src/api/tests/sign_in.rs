//! The web console: its files, its listener, and the sign-in that lasts as long as the command.

use super::network::{LOOPBACK, Network, bearer, read_to_end, request, status};
use super::*;
use crate::api::client::HeldStream;
use crate::tests::eventually;
use acp_core::api::{ConsoleBody, ConsoleOpenedView, LoginView, TokenView};
use acp_core::principal::Scope;
use std::net::SocketAddr;
use tokio::net::TcpStream;

/// A console that a command has opened.
struct OpenedConsole {
    at: SocketAddr,
    view: ConsoleOpenedView,
    held: HeldStream,
}

async fn ask(at: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(at).await.unwrap();
    stream.write_all(request).await.unwrap();
    read_to_end(&mut stream).await
}

fn json<T: serde::de::DeserializeOwned>(answer: &str) -> T {
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

impl OpenedConsole {
    async fn open(network: &Network, listen: Option<&str>, scope: Scope) -> Self {
        let body = ConsoleBody { listen: listen.map(str::to_owned), scope };
        let mut held = network.local().hold("/v1/console/open", &body).await.unwrap();
        let view: ConsoleOpenedView = serde_json::from_str(&held.next().await.unwrap().data).unwrap();
        let at = view.url.trim_start_matches("http://").trim_end_matches('/').parse().unwrap();
        Self { at, view, held }
    }

    async fn try_log_in(&self) -> String {
        let body = serde_json::json!({ "code": self.view.code }).to_string();
        ask(self.at, &request("POST", "/v1/login", "", &body)).await
    }

    async fn log_in(&self) -> LoginView {
        let answer = self.try_log_in().await;
        assert_eq!(status(&answer), 200, "{answer}");
        assert!(answer.contains("cache-control: no-store"), "{answer}");
        json(&answer)
    }

    async fn status(&self, token: &str, method: &str, path: &str, body: &str) -> u16 {
        status(&ask(self.at, &request(method, path, &bearer(token), body)).await)
    }
}

#[tokio::test]
async fn console_has_a_listener_and_a_sign_in_for_as_long_as_its_command_runs() {
    let network = Network::start("", LIMITS).await;
    let console = OpenedConsole::open(&network, None, Scope::Approve).await;
    assert!(console.at.ip().is_loopback());
    let login = console.log_in().await;
    let name = nix::unistd::User::from_uid(nix::unistd::geteuid()).unwrap().unwrap().name;
    assert_eq!((login.identity.name, login.identity.console), (name, true));
    assert_eq!(login.identity.scopes, [Scope::Read, Scope::Prompt, Scope::Approve]);
    let mut stream = TcpStream::connect(console.at).await.unwrap();
    stream.write_all(&request("GET", "/v1/stream", &bearer(&login.token), "")).await.unwrap();
    eventually("the stream to begin", async || {
        let mut head = [0; 32];
        (stream.peek(&mut head).await.unwrap() > 0).then_some(())
    })
    .await;
    let (at, held) = (console.at, console.held);
    drop(held);
    read_to_end(&mut stream).await;
    eventually("the listener to close", async || TcpStream::connect(at).await.err().map(drop)).await;
    // A later console at the same address does not know the sign-in.
    let again = OpenedConsole::open(&network, Some(&at.to_string()), Scope::Approve).await;
    assert_eq!((again.at, again.status(&login.token, "GET", "/v1/whoami", "").await), (at, 401));
    network.end().await;
}

#[tokio::test]
async fn files_need_no_token_and_everything_else_does() {
    let network = Network::start("", LIMITS).await;
    let console = OpenedConsole::open(&network, None, Scope::Read).await;
    for path in ["/", "/s/agent:demo:acp:1", "/app.js", "/style.css"] {
        for method in ["GET", "HEAD"] {
            let answer = ask(console.at, &request(method, path, "", "")).await;
            assert_eq!(status(&answer), 200, "{method} {path}: {answer}");
            assert!(
                answer.contains("content-security-policy: default-src 'none'; script-src 'self';"),
                "{answer}"
            );
            assert!(!answer.contains("set-cookie") && !answer.contains("access-control"), "{answer}");
        }
        for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
            assert_eq!(
                status(&ask(console.at, &request(method, path, "", "")).await),
                401,
                "{method} {path}"
            );
        }
        let other = request("GET", path, "origin: http://localhost:3000\r\n", "");
        assert_eq!(status(&ask(console.at, &other).await), 403, "a page of another port: {path}");
        let rebound = format!("GET {path} HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n");
        assert_eq!(status(&ask(console.at, rebound.as_bytes()).await), 403, "{path}");
    }
    for path in ["/v1/whoami", "/v1/sessions", "/nothing", "/metrics", "/v1/logout"] {
        assert_eq!(status(&ask(console.at, &request("GET", path, "", "")).await), 401, "{path}");
    }
    let large = "x".repeat(70_000);
    assert_eq!(status(&ask(console.at, &request("POST", "/v1/login", "", &large)).await), 413);
    network.end().await;
}

#[tokio::test]
async fn code_works_once_and_its_second_use_ends_the_first_sign_in() {
    let network = Network::start("", LIMITS).await;
    let console = OpenedConsole::open(&network, None, Scope::Admin).await;
    for wrong in ["", "x", &format!("acp_{}", "A".repeat(43))] {
        let body = serde_json::json!({ "code": wrong }).to_string();
        let answer = ask(console.at, &request("POST", "/v1/login", "", &body)).await;
        assert!(status(&answer) == 401 && answer.contains("CODE_INVALID"), "{answer}");
    }
    assert_eq!(console.status(&console.view.code, "GET", "/v1/whoami", "").await, 401, "a code is no token");
    let login = console.log_in().await;
    assert_eq!(console.status(&login.token, "GET", "/v1/whoami", "").await, 200);
    let again = console.try_log_in().await;
    assert!(status(&again) == 401 && !again.contains("\"token\""), "{again}");
    assert_eq!(console.status(&login.token, "GET", "/v1/whoami", "").await, 401);
    network.end().await;
}

#[tokio::test]
async fn logout_is_answered_and_ends_the_streams_of_its_sign_in_alone() {
    let network = Network::start(LOOPBACK, LIMITS).await;
    let console = OpenedConsole::open(&network, None, Scope::Read).await;
    assert_eq!(console.at, network.address(), "a listener of the configuration is used");
    let lasting = network.token("phone", Scope::Read, &[], None).await;
    let token = console.log_in().await.token;
    let mut stream = network.connect(&request("GET", "/v1/stream", &bearer(&token), "")).await;
    for token in [&token, &lasting] {
        let answer = ask(console.at, &request("POST", "/v1/logout", &bearer(token), "")).await;
        assert!(status(&answer) == 200 && answer.contains("{\"ok\":true}"), "{answer}");
    }
    read_to_end(&mut stream).await;
    assert_eq!(console.status(&token, "GET", "/v1/whoami", "").await, 401);
    assert_eq!(console.status(&lasting, "GET", "/v1/whoami", "").await, 200, "it may be used elsewhere, too");
    network.end().await;
}

#[tokio::test]
async fn console_lists_and_revokes_tokens_and_creates_none() {
    let network = Network::start(LOOPBACK, LIMITS).await;
    network.token("phone", Scope::Read, &[], None).await;
    let admin = network.token("ci", Scope::Admin, &[], None).await;
    let first = OpenedConsole::open(&network, None, Scope::Admin).await;
    let second = OpenedConsole::open(&network, None, Scope::Admin).await;
    let (token, other) = (first.log_in().await.token, second.log_in().await.token);
    let views: Vec<TokenView> =
        json(&ask(first.at, &request("GET", "/v1/tokens", &bearer(&token), "")).await);
    assert_eq!(views.iter().filter(|view| view.console).count(), 2, "{views:?}");
    let body = r#"{"name":"x","scope":"read"}"#;
    assert_eq!(first.status(&token, "POST", "/v1/tokens", body).await, 403);
    for (method, path) in [("GET", "/v1/tokens"), ("DELETE", "/v1/tokens/phone")] {
        assert_eq!(first.status(&admin, method, path, "").await, 403, "{method} {path}");
        assert_eq!(first.status(&token, method, path, "").await, 200, "{method} {path}");
    }
    let newest = views[0].token_id;
    assert_eq!(first.status(&token, "DELETE", &format!("/v1/tokens/{newest}"), "").await, 200);
    assert_eq!(first.status(&other, "GET", "/v1/whoami", "").await, 401);
    let narrow = OpenedConsole::open(&network, None, Scope::Approve).await;
    let narrow_token = narrow.log_in().await.token;
    assert_eq!(narrow.status(&narrow_token, "GET", "/v1/tokens", "").await, 403, "needs scope admin");
    let open = r#"{"scope":"admin"}"#;
    assert_eq!(first.status(&token, "POST", "/v1/console/open", open).await, 403, "a console opens no other");
    for listen in ["0.0.0.0:0", "192.0.2.1:80", "localhost", ""] {
        let body = ConsoleBody { listen: Some(listen.to_owned()), scope: Scope::Read };
        let refused = network.local().hold("/v1/console/open", &body).await.err().unwrap();
        assert!(refused.message.contains("loopback"), "{listen}: {refused}");
    }
    network.end().await;
}
