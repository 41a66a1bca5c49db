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

/// A client that asks for an agent sees what both may see, and the rest looks like what does not exist.
#[tokio::test]
async fn client_that_asks_for_an_agent_sees_what_both_see() {
    let network = Network::start(LOOPBACK, LIMITS).await;
    let all = network.token("all", Scope::Admin, &[], None).await;
    let other = network.token("other", Scope::Admin, &["qwen*"], None).await;
    let exchange = async |token: &str, acts_for: &str, method: &str, path: &str, body: &str| {
        let headers = format!("{}acp-as: {acts_for}\r\n", bearer(token));
        network.exchange(&request(method, path, &headers, body)).await
    };
    let own = network.fake.key.as_str();
    let spawn = r#"{"agent":"demo"}"#;
    for (token, acts_for, method, path, body, want) in [
        (&all, own, "GET", SESSION, "", 200),
        (&all, own, "POST", "/v1/sessions/agent:demo:acp:a%2Fb/prompt", r#"{"text":"a"}"#, 200),
        (&all, own, "POST", "/v1/sessions", spawn, 403),
        (&all, own, "GET", "/v1/tokens", "", 403),
        (&all, "demo", "GET", SESSION, "", 404),
        (&all, "demo", "GET", "/v1/stream?follow=false&session=agent:demo:acp:a%2Fb", "", 404),
        (&all, "agent:demo:acp:none", "GET", SESSION, "", 404),
        (&all, "agent: ", "GET", SESSION, "", 404),
        (&all, "nobody", "GET", SESSION, "", 400),
        (&other, own, "GET", SESSION, "", 404),
        (&other, "demo", "GET", SESSION, "", 400),
    ] {
        let answer = exchange(token, acts_for, method, path, body).await;
        assert_eq!(status(&answer), want, "{acts_for} {method} {path}: {answer}");
    }
    let listed = async |acts_for: &str| exchange(&all, acts_for, "GET", "/v1/sessions", "").await;
    assert!(listed(own).await.contains(own) && !listed("demo").await.contains(own));
    network.end().await;
}
