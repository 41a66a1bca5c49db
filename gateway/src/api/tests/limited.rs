//! A token of some agents: sessions of others are missing from lists and streams, and look like sessions that do not
//! exist.

use super::network::{LOOPBACK, Network, bearer, request, status};
use super::*;
use acp_core::principal::Scope;

/// Response without the lines that differ from one response to the next.
fn comparable(answer: &str) -> Vec<String> {
    answer.lines().filter(|line| !line.starts_with("date:")).map(str::to_owned).collect()
}

async fn read(network: &Network, token: &str, path: &str) -> String {
    let answer = network.exchange(&request("GET", path, &bearer(token), "")).await;
    assert_eq!(status(&answer), 200, "{path}: {answer}");
    answer
}

#[tokio::test]
async fn lists_and_streams_show_the_sessions_of_the_token_only() {
    let network = Network::start(LOOPBACK, LIMITS).await;
    let other = network.token("other", Scope::Admin, &["qwen*"], None).await;
    let own = network.token("own", Scope::Admin, &["dem?"], None).await;
    network.fake.append_message("secret text");
    network.fake.pending.lock().unwrap().push(crate::tests::permission_row(&network.fake.key, 5));
    for (path, shown) in [
        ("/v1/stream?after=0&follow=false", "secret text"),
        ("/v1/permissions", "agent:demo:acp:"),
        ("/v1/sessions", "agent:demo:acp:"),
        ("/v1/sessions?cursor=", "agent:demo:acp:"),
        ("/v1/sessions?agent=demo&all=true", "agent:demo:acp:"),
    ] {
        assert!(read(&network, &own, path).await.contains(shown), "{path}");
        let hidden = read(&network, &other, path).await;
        assert!(!hidden.contains("demo") && !hidden.contains("secret"), "{path}: {hidden}");
        assert!(!hidden.contains("next-cursor"), "{path}: {hidden}");
    }
    network.end().await;
}

#[tokio::test]
async fn limit_of_a_list_counts_visible_sessions() {
    let network = Network::start(LOOPBACK, LIMITS).await;
    let own = network.token("own", Scope::Read, &["dem?"], None).await;
    let first = read(&network, &own, "/v1/sessions?limit=2&cursor=").await;
    let next = first.lines().find_map(|line| line.strip_prefix("next-cursor: ")).unwrap();
    let second = read(&network, &own, &format!("/v1/sessions?limit=2&cursor={next}")).await;
    let count = |answer: &str| answer.matches("\"session_key\"").count();
    assert_eq!((count(&first), count(&second)), (2, 1));
    network.end().await;
}

#[tokio::test]
async fn hidden_session_answers_each_rest_route_like_a_missing_one() {
    let network = Network::start(LOOPBACK, LIMITS).await;
    let other = network.token("other", Scope::Admin, &["qwen*"], None).await;
    for (method, rest, body) in [
        ("PATCH", "", r#"{"label":"a"}"#),
        ("POST", "/release", "{}"),
        ("GET", "/export", ""),
        ("GET", "/export?format=md", ""),
        ("GET", "/diff", ""),
        ("GET", "/files", ""),
        ("GET", "/files?path=a", ""),
        ("GET", "/files/content?path=a", ""),
    ] {
        let exchange = async |session: &str| {
            let path = format!("{session}{rest}");
            comparable(&network.exchange(&request(method, &path, &bearer(&other), body)).await)
        };
        let hidden = exchange(SESSION).await;
        assert_eq!(hidden, exchange("/v1/sessions/agent:qwen:acp:none").await, "{method} {rest}");
        assert_eq!(hidden[0], "HTTP/1.1 404 Not Found", "{method} {rest}: {hidden:?}");
    }
    let stream = async |session: &str| {
        let path = format!("/v1/stream?follow=false&session={session}");
        comparable(&network.exchange(&request("GET", &path, &bearer(&other), "")).await)
    };
    let hidden = stream("agent:demo:acp:a%2Fb").await;
    assert_eq!(hidden, stream("agent:qwen:acp:none").await);
    assert_eq!(hidden[0], "HTTP/1.1 404 Not Found", "{hidden:?}");
    network.end().await;
}

#[tokio::test]
async fn liveness_needs_no_token_and_foreign_hosts_do_not_get_it() {
    let network = Network::start(LOOPBACK, LIMITS).await;
    let answer = network.exchange(&request("GET", "/health", "", "")).await;
    assert!(status(&answer) == 200 && answer.ends_with("{\"ok\":true}"), "{answer}");
    for path in ["/v1/openapi.json", "/v1/capabilities", "/v1/stream", "/v1/permissions"] {
        assert_eq!(status(&network.exchange(&request("GET", path, "", "")).await), 401, "{path}");
    }
    let foreign = "GET /health HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n";
    assert_eq!(status(&network.exchange(foreign.as_bytes()).await), 403);
    network.end().await;
}
