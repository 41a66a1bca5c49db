//! The API over TCP: tokens, scopes, hosts, origins, TLS and HTTP/2, over real sockets.

use super::*;
use crate::api::access::{self, tests::listed};
use crate::api::acp;
use crate::api::console::{ConsoleApi, router as console_router};
use crate::api::http::HttpServer;
use crate::api::listeners::{BoundSockets, ListenerStates, Listeners};
use crate::api::sign_in::{self, ConsoleDesk};
use crate::api::tokens::{self, TokenRegistry};
use crate::channel::Channels;
use crate::config::LiveConfig;
use crate::conversation::inbound::InboundService;
use crate::metrics::Metrics;
use crate::tests::{eventually, open};
use acp_core::api::{TokenBody, TokenCreatedView, TokenView};
use acp_core::config::load::LoadedConfig;
use acp_core::principal::Scope;
use acp_store::Store;
use axum::Router;
use std::net::SocketAddr;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// A gateway's API on its local socket and on TCP.
pub(super) struct Network {
    pub(super) dir: TempDir,
    pub(super) fake: Arc<Fake>,
    pub(super) live: LiveConfig,
    pub(super) metrics: Metrics,
    states: ListenerStates,
    store: Store,
    server: Server,
    listening: JoinHandle<()>,
}

pub(super) fn config(text: &str) -> LoadedConfig {
    load(Inputs { file: Some((Path::new("/g.toml"), text)), ..Inputs::default() }).unwrap()
}

/// Any free port of loopback.
pub(super) const LOOPBACK: &str = "[northbound]\nlisten = [\"unix\", \"127.0.0.1:0\"]\n";

/// All routes, with the `/metrics` of the gateway replaced.
fn routes(api: &Api, store: &Store, desk: ConsoleDesk, metrics: &Metrics) -> Router {
    let inlet =
        InboundService::new(store.clone(), Channels::default(), Arc::clone(&api.service), Metrics::default());
    let console = ConsoleApi { inlet, store: store.clone() };
    router(api.clone())
        .merge(acp::router(api, acp::AcpLimits::default(), metrics.clone()))
        .merge(console_router(api.clone(), console))
        .merge(tokens::router(api.clone(), desk.tokens.clone()))
        .merge(sign_in::router(api.clone(), desk))
        .merge(Router::new().route("/metrics", axum::routing::get(|| async { "numbers" })))
}

impl Network {
    pub(super) async fn start(text: &str, limits: ApiLimits) -> Self {
        let (dir, store) = open();
        let (fake, ending, metrics) = (Fake::new(), CancellationToken::new(), Metrics::default());
        let api = Api::new(Arc::clone(&fake) as _, limits, ending.clone());
        let registry = TokenRegistry::open(store.clone()).await.unwrap();
        let (listeners, asked) = mpsc::channel(1);
        let desk = ConsoleDesk { tokens: registry.clone(), listeners };
        let routes = routes(&api, &store, desk, &metrics);
        let router = access::protected(routes, Arc::clone(&fake) as _, metrics.clone());
        let bound = ApiListener::bind(&dir.path().join(SOCKET)).unwrap().with_metrics(metrics.clone());
        let serving = tokio::spawn(bound.serve(router.clone(), limits, ending.clone()));
        let (live, states) = (LiveConfig::new(config(text)), ListenerStates::default());
        let http = HttpServer { router, limits };
        let shown = (metrics.clone(), states.clone());
        let listeners =
            Listeners::open(http, live.clone(), registry, shown, BoundSockets::new(), asked).await.unwrap();
        let listening = tokio::spawn(listeners.run(ending.clone()));
        Self { dir, fake, live, metrics, states, store, server: Server { ending, serving }, listening }
    }

    /// The only TCP address.
    pub(super) fn address(&self) -> SocketAddr {
        self.addresses().into_iter().next().unwrap()
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        let views = self.states.views().into_iter().filter(|view| view.ok);
        views.filter_map(|view| view.details.split(": ").next()?.parse().ok()).collect()
    }

    /// Description of a listener that is not open.
    pub(super) fn failure(&self) -> Option<String> {
        self.states.views().into_iter().find(|view| !view.ok).map(|view| view.details)
    }

    pub(super) fn local(&self) -> GatewayClient {
        GatewayClient::new(self.dir.path())
    }

    pub(super) async fn token(
        &self,
        name: &str,
        scope: Scope,
        agents: &[&str],
        expires_s: Option<u64>,
    ) -> String {
        let agents = agents.iter().map(|&agent| agent.to_owned()).collect();
        let body = TokenBody { name: name.to_owned(), scope, agents, expires_s };
        let key = IdempotencyKey::mint();
        let created: TokenCreatedView = self.local().post("/v1/tokens", &body, &key).await.unwrap();
        created.token
    }

    pub(super) async fn revoke(&self, name: &str) {
        let _: TokenView = self.local().delete(&format!("/v1/tokens/{name}")).await.unwrap();
    }

    pub(super) async fn connect(&self, request: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address()).await.unwrap();
        stream.write_all(request).await.unwrap();
        stream
    }

    /// Sends a request and returns the whole response.
    pub(super) async fn exchange(&self, request: &[u8]) -> String {
        read_to_end(&mut self.connect(request).await).await
    }

    /// Sends a request with a token and returns the status.
    async fn status(&self, token: &str, method: &str, path: &str, body: &str) -> u16 {
        status(&self.exchange(&request(method, path, &bearer(token), body)).await)
    }

    /// Sum of the refusals for a reason.
    pub(super) fn refusals(&self, reason: &str) -> u64 {
        let text = self.metrics.render();
        let of_reason = |line: &&str| {
            line.starts_with("acp_api_refusals_total") && line.contains(&format!("reason=\"{reason}\""))
        };
        text.lines().filter(of_reason).filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    }

    pub(super) async fn end(self) {
        self.server.end().await;
        tokio::time::timeout(DEADLINE, self.listening).await.unwrap().unwrap();
    }
}

pub(super) async fn read_to_end(stream: &mut (impl AsyncReadExt + Unpin)) -> String {
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut answer)).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

pub(super) fn bearer(token: &str) -> String {
    format!("authorization: Bearer {token}\r\n")
}

pub(super) fn request(method: &str, path: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

pub(super) fn status(answer: &str) -> u16 {
    let status =
        answer.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).and_then(|code| code.parse().ok());
    status.unwrap_or_else(|| panic!("no response: {answer:?}"))
}

#[tokio::test]
async fn tcp_request_needs_a_valid_token() {
    let network = Network::start(LOOPBACK, LIMITS).await;
    let token = network.token("phone", Scope::Read, &[], None).await;
    let other = format!("acp_{}", "A".repeat(43));
    let subprotocol = |token: &str| {
        format!(
            "upgrade: websocket\r\nsec-websocket-key: x\r\nsec-websocket-protocol: acp, acphost.bearer.{token}\r\n"
        )
    };
    for (headers, want) in [
        (String::new(), 401),
        (bearer(&token), 200),
        (bearer(&other), 401),
        (bearer(""), 401),
        (format!("authorization: Basic {token}\r\n"), 401),
        (format!("{}{}", bearer(&token), bearer(&token)), 401),
        (format!("cookie: token={token}\r\n"), 401),
        (subprotocol(&token), 200),
        (subprotocol(&other), 401),
        (format!("sec-websocket-protocol: acp, acphost.bearer.{token}\r\n"), 401),
    ] {
        let answer = network.exchange(&request("GET", "/v1/health", &headers, "")).await;
        assert_eq!(status(&answer), want, "{headers}: {answer}");
        assert_eq!(answer.contains("www-authenticate: Bearer"), want == 401, "{answer}");
        assert!(!answer.contains(&token) && !answer.contains(&other), "a token is never repeated: {answer}");
    }
    for path in ["/v1/health", "/v1/nothing", &format!("/v1/health?token={token}"), "/metrics", "/nothing"] {
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"] {
            let answer = network.exchange(&request(method, path, "", "{}")).await;
            assert_eq!(status(&answer), 401, "{method} {path}: {answer}");
        }
    }
    network.revoke("phone").await;
    assert_eq!(network.status(&token, "GET", "/v1/health", "").await, 401);
    let short = network.token("short", Scope::Read, &[], Some(1)).await;
    eventually("the token to expire", async || {
        (network.status(&short, "GET", "/v1/health", "").await == 401).then_some(())
    })
    .await;
    let tokens: Vec<TokenView> = network.local().get("/v1/tokens").await.unwrap();
    let states: Vec<_> = tokens.iter().map(|view| (view.name.as_str(), view.state.as_str())).collect();
    assert_eq!(states, [("short", "expired"), ("phone", "revoked")]);
    assert!(network.refusals("no_token") >= 36 && network.refusals("bad_token") >= 5);
    network.end().await;
}

#[tokio::test]
async fn tokens_survive_a_restart_and_only_digests_are_stored() {
    let network = Network::start(LOOPBACK, LIMITS).await;
    let token = network.token("phone", Scope::Read, &["demo"], None).await;
    let registry = TokenRegistry::open(network.store.clone()).await.unwrap();
    let parsed = acp_core::bearer::BearerToken::parse(&token).unwrap();
    let (principal, _) = registry.find(&parsed, true).unwrap();
    assert_eq!((principal.name.as_str(), principal.agents.len(), principal.local), ("phone", 1, true));
    let rows = network.store.tokens().await.unwrap();
    assert!(!format!("{rows:?}").contains(&token[4..]));
    network.end().await;
}

#[tokio::test]
async fn foreign_host_and_origin_are_refused_on_every_verb() {
    let text = format!("{LOOPBACK}allowed_hosts = [\"agents.example.com\"]\n");
    let network = Network::start(&text, LIMITS).await;
    let token = network.token("phone", Scope::Admin, &[], None).await;
    let port = network.address().port();
    let with = |method: &str, host: &str, headers: &str| {
        let auth = bearer(&token);
        format!(
            "{method} /v1/health HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{auth}{headers}content-length: 0\r\n\r\n"
        )
    };
    let upgrade = "upgrade: websocket\r\nsec-websocket-key: x\r\n";
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"] {
        for (host, headers) in [
            ("evil.example".to_owned(), String::new()),
            (format!("evil.example:{port}"), upgrade.to_owned()),
            ("192.0.2.1".to_owned(), String::new()),
            ("localhost\r\nhost: localhost".to_owned(), String::new()),
            ("localhost".to_owned(), "origin: http://evil.example\r\n".to_owned()),
            ("localhost".to_owned(), "origin: null\r\n".to_owned()),
            ("localhost".to_owned(), format!("origin: http://localhost:3000\r\n{upgrade}")),
            (
                "localhost".to_owned(),
                "origin: http://evil.example\r\naccess-control-request-method: POST\r\n".to_owned(),
            ),
        ] {
            let answer = network.exchange(with(method, &host, &headers).as_bytes()).await;
            assert_eq!(status(&answer), 403, "{method} {host} {headers}: {answer}");
            assert!(!answer.contains("access-control-allow"), "{answer}");
        }
    }
    for (host, headers) in [
        (format!("127.0.0.1:{port}"), String::new()),
        ("agents.example.com".to_owned(), String::new()),
        (format!("localhost:{port}"), format!("origin: http://localhost:{port}\r\n")),
    ] {
        let answer = network.exchange(with("GET", &host, &headers).as_bytes()).await;
        assert_eq!(status(&answer), 200, "{host}: {answer}");
    }
    let absolute =
        format!("GET http://evil.example/v1/health HTTP/1.1\r\nhost: localhost\r\n{}\r\n", bearer(&token));
    assert_eq!(status(&network.exchange(absolute.as_bytes()).await), 403);
    assert_eq!(network.refusals("foreign_host"), 7 * 4 + 1);
    assert_eq!(network.refusals("foreign_origin"), 7 * 4);
    network.end().await;
}

#[tokio::test]
async fn pages_of_allowed_origins_may_use_and_read() {
    let text = format!("{LOOPBACK}allowed_origins = [\"https://app.example.com\"]\n");
    let network = Network::start(&text, LIMITS).await;
    let token = network.token("phone", Scope::Read, &[], None).await;
    let origin = "origin: https://app.example.com\r\n";
    let ask = format!("{origin}access-control-request-method: POST\r\n");
    let answer = network.exchange(&request("OPTIONS", "/v1/sessions", &ask, "")).await;
    assert_eq!(status(&answer), 204, "{answer}");
    for want in [
        "access-control-allow-origin: https://app.example.com\r\n",
        "access-control-allow-methods: GET, POST, PATCH, DELETE\r\n",
        "authorization, content-type",
        "vary: origin\r\n",
    ] {
        assert!(answer.contains(want), "{want}: {answer}");
    }
    let exposed = "access-control-expose-headers: acp-connection-id, acp-session-id, next-cursor\r\n";
    for (headers, want) in [(format!("{origin}{}", bearer(&token)), 200), (origin.to_owned(), 401)] {
        let answer = network.exchange(&request("GET", "/v1/health", &headers, "")).await;
        assert_eq!(status(&answer), want, "{answer}");
        assert!(answer.contains("access-control-allow-origin: https://app.example.com\r\n"), "{answer}");
        assert!(answer.contains(exposed) && !answer.contains("allow-credentials"), "{answer}");
    }
    let plain = network.exchange(&request("GET", "/v1/health", &bearer(&token), "")).await;
    assert!(!plain.contains("access-control"), "{plain}");
    network.end().await;
}

#[tokio::test]
async fn idempotency_key_counts_for_its_sender_alone() {
    let network = Network::start(LOOPBACK, LIMITS).await;
    let first = network.token("first", Scope::Prompt, &[], None).await;
    let second = network.token("second", Scope::Prompt, &[], None).await;
    let spawn = |token: &str| {
        request("POST", "/v1/sessions", &format!("{}idempotency-key: k\r\n", bearer(token)), "{}")
    };
    for token in [&first, &first, &second] {
        let answer = network.exchange(&spawn(token)).await;
        assert_eq!(status(&answer), 200, "{answer}");
    }
    let local = post("/v1/sessions", "idempotency-key: k\r\n", "{}");
    assert!(exchange(network.dir.path(), &local).await.starts_with("HTTP/1.1 200 "));
    let calls = network.fake.calls();
    let keys: Vec<&str> = calls.iter().filter_map(|call| call.rsplit(' ').next()).collect();
    assert_eq!(keys[0], keys[1], "a repetition by the same sender");
    assert_ne!(keys[0], keys[2], "the key of another sender");
    assert_eq!(keys[3], "k", "local users share their keys");
    network.end().await;
}

#[tokio::test]
async fn scope_of_a_token_limits_what_it_may_do() {
    let network = Network::start(LOOPBACK, LIMITS).await;
    let mut tokens = Vec::new();
    for scope in Scope::ALL {
        tokens.push((scope, network.token(scope.as_str(), scope, &[], None).await));
    }
    let options = format!("{SESSION}/options");
    let program = r#"{"mcp_servers":{"a":{"command":"mcp"}}}"#;
    let remote = r#"{"mcp_servers":{"a":{"type":"http","url":"https://h"}}}"#;
    for (method, path, body, needed) in [
        ("GET", "/v1/health", "", Scope::Read),
        ("GET", SESSION, "", Scope::Read),
        ("GET", "/metrics", "", Scope::Read),
        ("POST", &format!("{SESSION}/prompt"), r#"{"text":"a"}"#, Scope::Prompt),
        ("POST", "/v1/sessions", "{}", Scope::Prompt),
        ("POST", "/v1/sessions", remote, Scope::Prompt),
        ("POST", "/v1/sessions", r#"{"permission":"deny-all"}"#, Scope::Prompt),
        ("POST", "/v1/sessions", r#"{"permission":"approve-reads"}"#, Scope::Approve),
        ("POST", "/v1/sessions", program, Scope::Admin),
        ("POST", "/v1/sessions", r#"{"command":["agent","--acp"]}"#, Scope::Admin),
        ("POST", &options, r#"{"permission":"deny-all"}"#, Scope::Prompt),
        ("POST", &options, r#"{"permission":"approve-all"}"#, Scope::Approve),
        ("POST", &options, r#"{"mode":"plan"}"#, Scope::Approve),
        ("POST", &options, r#"{"model":"big"}"#, Scope::Prompt),
        ("POST", &options, r#"{"defaults":true}"#, Scope::Approve),
        ("POST", &format!("{SESSION}/permissions/l:5"), r#"{"option_id":"yes"}"#, Scope::Approve),
    ] {
        for (scope, token) in &tokens {
            let want = if *scope >= needed { 200 } else { 403 };
            assert_eq!(
                network.status(token, method, path, body).await,
                want,
                "{scope} {method} {path} {body}"
            );
        }
    }
    // Tokens are managed locally: not even an admin token creates another.
    let admin = &tokens[3].1;
    for (method, path) in [("GET", "/v1/tokens"), ("POST", "/v1/tokens"), ("DELETE", "/v1/tokens/read")] {
        let answer =
            network.exchange(&request(method, path, &bearer(admin), r#"{"name":"x","scope":"admin"}"#)).await;
        assert!(status(&answer) == 403 && answer.contains("LOCAL_ONLY"), "{answer}");
    }
    // Routes that need more than `read`: one prompt, six spawns, five settings; and an answer, twice.
    assert_eq!(network.refusals("scope"), 12 + 2);
    network.end().await;
}

#[tokio::test]
async fn token_gives_its_name_to_what_it_does() {
    let network = Network::start(LOOPBACK, LIMITS).await;
    let token = network.token("phone", Scope::Approve, &[], None).await;
    let answer = format!("{SESSION}/permissions/l:5");
    let prompt = format!("{SESSION}/prompt");
    for (path, body, want) in [
        (&answer, r#"{"option_id":"yes"}"#, 200),
        (&answer, r#"{"option_id":"yes","by":"phone"}"#, 200),
        (&answer, r#"{"option_id":"yes","by":"root"}"#, 400),
        (&prompt, r#"{"text":"a","author":"root"}"#, 400),
    ] {
        assert_eq!(network.status(&token, "POST", path, body).await, want, "{body}");
    }
    assert_eq!(network.status(&token, "POST", "/v1/sessions", r#"{"author":"root"}"#).await, 400);
    let body = AnswerBody { by: Some("ann".into()), ..AnswerBody::of_option("yes".into()) };
    let _: Done = network.local().post(&answer, &body, &IdempotencyKey::mint()).await.unwrap();
    let calls = network.fake.calls.lock().unwrap().clone();
    let by: Vec<&str> =
        calls.iter().filter_map(|call| call.strip_prefix("answer l:5 yes ")?.split(' ').next()).collect();
    assert_eq!(by, ["phone", "phone", "ann"], "{calls:?}");
    assert_eq!(calls.len(), 3, "{calls:?}");
    network.end().await;
}

#[tokio::test]
async fn session_of_another_agent_looks_like_a_missing_one() {
    let network = Network::start(LOOPBACK, LIMITS).await;
    let other = network.token("other", Scope::Admin, &["qwen*"], None).await;
    let own = network.token("own", Scope::Admin, &["dem?"], None).await;
    let bodies = [
        ("GET", "", ""),
        ("GET", "/events", ""),
        ("GET", "/log", ""),
        ("GET", "/permissions", ""),
        ("POST", "/prompt", r#"{"text":"a"}"#),
        ("POST", "/prompt", "{broken"),
        ("POST", "/cancel", "{}"),
        ("POST", "/close", "{}"),
        ("POST", "/options", r#"{"model":"big"}"#),
        ("POST", "/permissions/l:5", r#"{"option_id":"yes"}"#),
    ];
    let without_date = |answer: String| {
        answer.lines().filter(|line| !line.starts_with("date:")).map(str::to_owned).collect::<Vec<_>>()
    };
    for (method, rest, body) in bodies {
        let exchange = async |session: &str| {
            let path = format!("{session}{rest}");
            without_date(network.exchange(&request(method, &path, &bearer(&other), body)).await)
        };
        let hidden = exchange(SESSION).await;
        assert_eq!(hidden, exchange("/v1/sessions/agent:qwen:acp:none").await, "{method} {rest}");
        assert_eq!(hidden[0], "HTTP/1.1 404 Not Found", "{hidden:?}");
    }
    assert_eq!(network.status(&own, "GET", SESSION, "").await, 200);
    // The fake lists its session three times.
    for (token, count) in [(&other, 0), (&own, 3)] {
        let answer = network.exchange(&request("GET", "/v1/sessions", &bearer(token), "")).await;
        let list: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        assert_eq!(list.as_array().unwrap().len(), count, "{answer}");
    }
    let spawned_by = format!(r#"{{"agent":"qwen","spawned_by":"{}"}}"#, network.fake.key);
    for (body, want) in
        [(r#"{"agent":"qwen"}"#, 200), (r#"{"agent":"demo"}"#, 403), (spawned_by.as_str(), 404)]
    {
        assert_eq!(network.status(&other, "POST", "/v1/sessions", body).await, want, "{body}");
    }
    for path in ["/v1/status", "/metrics", "/v1/console/conversations/a", "/v1/tokens"] {
        assert_eq!(network.status(&other, "GET", path, "").await, 403, "{path}");
    }
    network.end().await;
}

/// Each mounted method has an entry in the table of scopes, and each entry is mounted.
#[tokio::test]
async fn every_mounted_route_has_a_scope_and_every_scope_a_route() {
    let (_dir, store) = open();
    let (fake, ending) = (Fake::new(), CancellationToken::new());
    let api = Api::new(Arc::clone(&fake) as _, LIMITS, ending);
    let registry = TokenRegistry::open(store.clone()).await.unwrap();
    let desk = ConsoleDesk { tokens: registry, listeners: mpsc::channel(1).0 };
    let routes = routes(&api, &store, desk, &Metrics::default());
    let paths: std::collections::BTreeSet<&str> = listed().into_iter().map(|(path, _)| path).collect();
    let mut mounted = Vec::new();
    for path in &paths {
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
            let uri = ["{key}", "{id}", "{token}", "{agent}"]
                .into_iter()
                .fold((*path).to_owned(), |uri, name| uri.replace(name, "none"));
            let request = axum::http::Request::builder().method(method).uri(uri);
            let request = request.body(axum::body::Body::empty()).unwrap();
            let service = hyper_util::service::TowerToHyperService::new(routes.clone());
            let answer = hyper::service::Service::call(&service, request).await.unwrap();
            if answer.status() != axum::http::StatusCode::METHOD_NOT_ALLOWED {
                mounted.push((*path, method));
            }
        }
    }
    let mut listed = listed();
    listed.sort_unstable();
    mounted.sort_unstable();
    assert_eq!(mounted, listed);
    assert_eq!(paths, paths_in_sources(), "paths in `.route(…)` of the sources");
}

/// Paths that the sources of the API and of the metrics mount.
fn paths_in_sources() -> std::collections::BTreeSet<&'static str> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let dirs = ["api", "api/acp", "ops"].map(|dir| root.join(dir));
    let files = dirs.into_iter().flat_map(|dir| std::fs::read_dir(dir).unwrap());
    let texts =
        files.map(|file| file.unwrap().path()).filter(|path| path.extension().is_some_and(|it| it == "rs"));
    let product = texts.map(|path| {
        let text = std::fs::read_to_string(path).unwrap();
        text.split("#[cfg(test)]\nmod tests {").next().unwrap().to_owned()
    });
    let all: &'static str = product.collect::<Vec<_>>().join("\n").leak();
    all.split(".route(")
        .skip(1)
        .filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next())
        .collect()
}

#[tokio::test]
async fn route_without_an_entry_is_refused() {
    let fake = Fake::new();
    let routes = Router::new().route("/v1/new", axum::routing::get(|| async { "secret" }));
    let routes = access::protected(routes, fake as _, Metrics::default());
    let dir = tempfile::tempdir().unwrap();
    let ending = CancellationToken::new();
    let bound = ApiListener::bind(&dir.path().join(SOCKET)).unwrap();
    let serving = tokio::spawn(bound.serve(routes, LIMITS, ending.clone()));
    let answer = exchange(dir.path(), &get("/v1/new", "")).await;
    assert!(answer.starts_with("HTTP/1.1 405 ") && !answer.contains("secret"), "{answer}");
    Server { ending, serving }.end().await;
}

#[tokio::test]
async fn reload_opens_and_closes_listeners() {
    let network = Network::start("", LIMITS).await;
    assert_eq!(network.addresses(), []);
    network.live.replace(config(LOOPBACK)).unwrap();
    eventually("a listener", async || network.addresses().first().copied()).await;
    let token = network.token("phone", Scope::Read, &[], None).await;
    let address = network.address();
    assert_eq!(network.status(&token, "GET", "/v1/health", "").await, 200);
    // Other keys leave the listener alone.
    network.live.replace(config(&format!("{LOOPBACK}allowed_hosts = [\"a.example\"]\n"))).unwrap();
    eventually("the new host", async || {
        let head = format!(
            "GET /v1/health HTTP/1.1\r\nhost: a.example\r\nconnection: close\r\n{}\r\n",
            bearer(&token)
        );
        (status(&network.exchange(head.as_bytes()).await) == 200).then_some(())
    })
    .await;
    assert_eq!(network.address(), address);
    // An address that cannot be bound is reported, and others are served.
    let holder = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let taken = holder.local_addr().unwrap();
    let both = format!("[northbound]\nlisten = [\"unix\", \"127.0.0.1:0\", \"{taken}\"]\n");
    network.live.replace(config(&both)).unwrap();
    let failure = eventually("the failure", async || network.failure()).await;
    assert!(failure.contains("in use"), "{failure}");
    assert_eq!(network.status(&token, "GET", "/v1/health", "").await, 200);
    let stream = format!("GET /v1/stream HTTP/1.1\r\nhost: localhost\r\n{}\r\n", bearer(&token));
    let mut stream = network.connect(stream.as_bytes()).await;
    let mut start = [0; 15];
    let _ = stream.read_exact(&mut start).await.unwrap();
    assert_eq!(&start, b"HTTP/1.1 200 OK");
    network.live.replace(config("")).unwrap();
    eventually("no listener", async || network.states.views().is_empty().then_some(())).await;
    eventually("a closed address", async || TcpStream::connect(address).await.err()).await;
    // What it served ends with it.
    let _ = tokio::time::timeout(DEADLINE, read_to_end(&mut stream)).await.unwrap();
    network.end().await;
}
