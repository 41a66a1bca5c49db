//! Peers on other machines that must be refused, in time and with a line in the log.

use crate::common::{Host, TIMEOUT, agent, eventually, kill};
use crate::remote::{CELL, HOST, OTHER_CELL, RemoteHost, Start, credentials};
use crate::scenarios::refusal_of;
use acp_shared::conn::{self, ConnError, TlsEndpoint};
use acp_shared::protocol::{
    HELLO_BYTES_MAX, Hello, RefusalCode, Request, Role, ToClient, ToSupervisor, VERSION_MIN,
};
use acp_testkit::certificates::{
    Authority, CertificateFiles, TLS12, TLS13, expired, not_yet_valid, without_certificate,
};
use rustix::process::Signal;
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::Instant;

/// Asserts that the supervisor serves its cell.
async fn assert_well(remote: &RemoteHost) {
    let mut client = remote.gateway().connect().await.unwrap();
    let spec = agent(&["cat"]);
    client.spawn(&spec).await;
    client.close(spec.lease_id).await;
}

#[tokio::test]
async fn only_valid_certificates_of_known_cells_are_served() {
    let remote = RemoteHost::new("");
    let dir = remote.host.dir.path();
    let foreign = Authority::new(dir, "foreign");
    let ca = &remote.ca;
    let mixed = CertificateFiles { ca: ca.ca.clone(), ..foreign.issue("c0", &[CELL]) };
    // Refused in the TLS handshake, with the reason in the log.
    for (files, reason) in [
        (mixed, "UnknownIssuer"),
        (ca.issue_with("c1", &[CELL], expired), "certificate expired"),
        (ca.issue_with("c2", &[CELL], not_yet_valid), "certificate not valid yet"),
    ] {
        let error = remote.gateway_of(&files).connect().await.err().unwrap();
        assert!(matches!(error, ConnError::Io(_) | ConnError::Closed), "{error:?}");
        eventually(reason, || remote.host.log().contains(reason));
    }
    // Refused after it, with the reason for the gateway too.
    for (files, reason) in [
        (ca.issue("c3", &["acp://plane/cell/unknown"]), "has cell = \\\"acp://plane/cell/unknown\\\""),
        (
            ca.issue("c4", &["acp://elsewhere/cell/main"]),
            "of another plane than this host, acp://plane/host/one",
        ),
        (ca.issue("c5", &["acp://plane/host/two"]), "acp://plane/host/two is a host"),
    ] {
        let refusal = refusal_of(remote.gateway_of(&files).connect().await);
        assert_eq!(refusal.code, RefusalCode::NotAuthorised);
        let reason = reason.replace('\\', "");
        assert!(refusal.message.contains(&reason), "{refusal:?}");
        let logged = |reason: &str| remote.host.log().replace('\\', "").contains(reason);
        eventually("the refusal is in the log", || logged(&reason));
    }
    assert_well(&remote).await;
}

#[tokio::test]
async fn remote_is_no_admin_and_must_fence() {
    let remote = RemoteHost::new("");
    let start = remote.gateway();
    let hello = Hello { role: Role::Admin, ..start.hello() };
    let refusal = refusal_of(conn::open(&start.endpoint, hello, TIMEOUT).await);
    assert!(refusal.message.contains("only clients of this machine"), "{refusal:?}");
    let old = Start { version: VERSION_MIN, ..start.clone() };
    assert_eq!(refusal_of(old.connect().await).code, RefusalCode::VersionUnsupported);
    let mut client = start.connect().await.unwrap();
    let state_dir = remote.host.state_dir().to_str().unwrap().to_owned();
    for body in [
        Request::Shutdown { state_dir: state_dir.clone() },
        Request::Upgrade { program: None, state_dir },
        Request::Reap { dry_run: true },
    ] {
        assert_eq!(client.call(body.clone()).await.unwrap_err().code, RefusalCode::NotAuthorised, "{body:?}");
    }
    assert_well(&remote).await;
}

#[tokio::test]
async fn peers_without_a_handshake_are_closed_in_time() {
    let remote = RemoteHost::new("handshake_ms = 1_000");
    let address = remote.address();
    let ca = remote.ca.ca.clone();
    let began = Instant::now();
    let at = address.clone();
    let learned = tokio::task::spawn_blocking(move || {
        [&TLS12, &TLS13].map(|version| without_certificate(&at, &ca, version))
    });
    let [of_12, of_13] = learned.await.unwrap();
    assert!(of_12.contains("ProtocolVersion"), "{of_12}");
    assert!(of_13.contains("CertificateRequired"), "{of_13}");
    for (name, bytes) in [
        ("plain text", &b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"[..]),
        ("a frame without TLS", &[0, 0, 0, 4, 0, 0, 0, 0]),
        ("nothing", b""),
        ("the begin of a record", &[22, 3, 1]),
    ] {
        let mut socket = TcpStream::connect(&address).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket.write_all(bytes).unwrap();
        let mut all = Vec::new();
        // The connection ends, orderly or reset.
        let ended = socket.read_to_end(&mut all);
        assert!(all.len() < 64 && ended.is_ok_and(|_| true) || all.is_empty(), "{name}: {all:?}");
    }
    for reason in ["peer sent no certificates", "InvalidContentType", "did not answer within 1s"] {
        eventually(reason, || remote.host.log().contains(reason));
    }
    // A Hello that does not come, and one that is too large.
    let start = remote.gateway();
    let mut silent = conn::connect::<ToClient, ToSupervisor>(&start.endpoint).await.unwrap();
    let ended = tokio::time::timeout(TIMEOUT, silent.receiver.recv()).await.unwrap();
    assert!(!matches!(ended, Ok(Some(_))), "{ended:?}");
    let mut large = conn::connect::<ToClient, ToSupervisor>(&start.endpoint).await.unwrap();
    let hello = Hello { features: vec!["x".repeat(HELLO_BYTES_MAX)], ..start.hello() };
    drop(large.sender.send(&ToSupervisor::Hello(hello)).await);
    let ended = tokio::time::timeout(TIMEOUT, large.receiver.recv()).await.unwrap();
    assert!(!matches!(ended, Ok(Some(_))), "{ended:?}");
    assert!(began.elapsed() < TIMEOUT);
    assert_well(&remote).await;
}

/// More silent connections than there are places displace each other, not the gateways of this machine.
#[tokio::test]
async fn flood_of_silent_connections_displaces_no_local_gateway() {
    let remote = RemoteHost::new("handshake_ms = 20_000");
    let (address, local) = (remote.address(), remote.host.gateway());
    let flood: Vec<TcpStream> = (0..400).map(|_| TcpStream::connect(&address).unwrap()).collect();
    eventually("the oldest are closed", || {
        remote.host.log().contains("too many connections in the handshake")
    });
    drop(local.connect().await);
    assert_well(&remote).await;
    drop(flood);
}

#[tokio::test]
async fn gateway_refuses_another_host() {
    let remote = RemoteHost::new("");
    let cell = remote.ca.issue("mine", &[CELL]);
    for (identity, part) in
        [("acp://plane/host/two", "the certificate is that of acp://plane/host/one, not of")]
    {
        let (address, identity) = (remote.address(), identity.to_owned());
        let endpoint = conn::Endpoint::Tls(TlsEndpoint { address, identity, config: credentials(&cell) });
        let error = Start { endpoint, ..remote.gateway() }.connect().await.err().unwrap();
        let ConnError::Io(error) = error else { panic!("{error:?}") };
        assert!(error.to_string().contains(part), "{error}");
    }
}

/// Starts that must fail, with the part of the message that names the fault.
#[test]
fn unusable_settings_refuse_the_start() {
    type Change = fn(&mut RemoteHost);
    let table: [(&str, Change); 5] = [
        ("needs tls_cert, tls_key and tls_ca", |r| r.host.config = r.host.config.replace("tls_ca = ", "# ")),
        ("tls_key = ", |r| remove_file(r, "host.key")),
        ("a host is acp://PLANE/host/NAME", |r| r.host.config = r.host.config.replace("/host.", "/cell.")),
        ("Address already in use", |r| r.host.config = r.host.config.replace("127.0.0.1:0", &taken())),
        ("invalid socket address", |r| r.host.config = r.host.config.replace("127.0.0.1:0", "here")),
    ];
    for (part, change) in table {
        let mut remote = RemoteHost::prepare("");
        change(&mut remote);
        let output = remote.host.command().output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(!output.status.success() && text.contains(part), "{part}: {text}");
    }
}

/// Address of a listener that stays open until the test ends.
fn taken() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::mem::forget(listener);
    address
}

fn remove_file(remote: &mut RemoteHost, name: &str) {
    std::fs::remove_file(remote.host.dir.path().join(name)).unwrap();
}

/// The checks of `doctor` that are about other machines.
fn doctor(host: &Host) -> [Value; 3] {
    let config = host.dir.path().join("supervisor.toml");
    let output = host.cli(&["doctor", "--json", "--config", config.to_str().unwrap()]);
    let line: Value = serde_json::from_slice(&output.stdout).unwrap();
    crate::schema::check(&line);
    let checks = line["data"]["checks"].as_array().unwrap().clone();
    let check = |name: &str| checks.iter().find(|check| check["name"] == name).cloned().unwrap_or_default();
    [check("certificate"), check("cells"), check("address")]
}

#[test]
fn doctor_checks_certificate_cells_and_address() {
    let mut remote = RemoteHost::new("");
    let verdicts =
        |host: &Host| doctor(host).map(|check| check["verdict"].as_str().unwrap_or("-").to_owned());
    let [certificate, cells, _] = doctor(&remote.host);
    assert!(
        certificate["found"].as_str().unwrap().starts_with(&format!("{HOST}, valid until ")),
        "{certificate}"
    );
    assert_eq!(cells["found"], format!("{CELL}, {OTHER_CELL}"));
    assert_eq!(verdicts(&remote.host), ["ok", "ok", "ok"]);
    kill(remote.host.pid(), Signal::TERM);
    remote.host.wait();
    assert_eq!(verdicts(&remote.host), ["ok", "ok", "ok"]);
    let config = remote.host.config.clone();
    let foreign = config.replace("acp://plane/cell/other", "acp://elsewhere/cell/other");
    let (without, _) = config.split_once("[[tenant]]").unwrap();
    let old = remote.ca.issue_with("old", &[HOST], expired);
    let expired_one = config.replace("host.crt", "old.crt").replace("host.key", "old.key");
    let missing = config.replace("host.crt", "none.crt");
    assert!(old.cert.exists());
    for (config, want) in [
        (foreign.as_str(), ["ok", "fail", "ok"]),
        (without, ["ok", "warn", "ok"]),
        (&expired_one, ["fail", "ok", "ok"]),
        (&missing, ["fail", "-", "-"]),
    ] {
        remote.host.config = config.to_owned();
        drop(remote.host.command());
        assert_eq!(verdicts(&remote.host), want, "{config}");
    }
}

#[tokio::test]
async fn changed_files_that_do_not_fit_are_read_and_logged_once() {
    let remote = RemoteHost::new("");
    let dir = remote.host.dir.path();
    let count = |text: &str| remote.host.log().matches(text).count();
    let renewed = remote.ca.issue_with("renewed", &[HOST], acp_testkit::certificates::localhost);
    std::fs::rename(&renewed.cert, dir.join("host.crt")).unwrap();
    for _ in 0..3 {
        drop(remote.gateway().connect().await.unwrap());
    }
    assert_eq!(count("changed certificate not used"), 1);
    std::fs::rename(&renewed.key, dir.join("host.key")).unwrap();
    for _ in 0..2 {
        drop(remote.gateway().connect().await.unwrap());
    }
    assert_eq!((count("changed certificate not used"), count("certificate reloaded")), (1, 1));
}

/// The commands of the manual, as they stand there.
#[tokio::test]
async fn certificates_of_the_manual_are_served() {
    if Command::new("openssl").arg("version").output().is_err() {
        println!("skipped: openssl is not installed");
        return;
    }
    let page = include_str!("../../../docs/manual/hosts.md");
    let (_, rest) = page.split_once("\n## Certificates\n").unwrap();
    let (script, _) = rest.split_once("```sh\n").unwrap().1.split_once("```").unwrap();
    let mut remote = RemoteHost::prepare("");
    let dir = remote.host.dir.path().join("manual");
    std::fs::create_dir(&dir).unwrap();
    let made = Command::new("sh").args(["-ec", script]).current_dir(&dir).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let files = |name: &str| CertificateFiles {
        cert: dir.join(format!("{name}.crt")),
        key: dir.join(format!("{name}.key")),
        ca: dir.join("ca.crt"),
    };
    let of_test = remote.host.dir.path().to_str().unwrap().to_owned();
    for file in ["host.crt", "host.key"] {
        let there = format!("{of_test}/{file}");
        remote.host.config = remote.host.config.replace(&there, &format!("{of_test}/manual/{file}"));
    }
    remote.host.config = remote
        .host
        .config
        .replace(&format!("{of_test}/ca.pem"), &format!("{of_test}/manual/ca.crt"))
        .replace("acp://plane/", "acp://example/");
    remote.host.start_logged();
    let (address, identity) = (remote.address(), "acp://example/host/one".to_owned());
    let endpoint =
        conn::Endpoint::Tls(TlsEndpoint { address, identity, config: credentials(&files("cell")) });
    let mut client = Start { endpoint, ..remote.gateway() }.connect().await.unwrap();
    assert_eq!(client.leases().await, []);
}

/// 192.0.2.1 is an address for documentation, which no machine has.
#[tokio::test]
async fn missing_address_stops_no_local_gateway() {
    let mut remote = RemoteHost::prepare("");
    remote.host.config = remote.host.config.replace("127.0.0.1:0", "192.0.2.1:1");
    remote.host.start_logged();
    drop(remote.host.gateway().connect().await);
    eventually("it tries again", || remote.host.log().matches("cannot listen yet").count() >= 2);
    // A program that could not start with this configuration does not take over.
    remove_file(&mut remote, "host.key");
    let refused = remote.host.cli(&["upgrade", "--json"]);
    assert!(!refused.status.success(), "{refused:?}");
    drop(remote.host.gateway().connect().await);
}
