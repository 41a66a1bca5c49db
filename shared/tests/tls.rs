//! Connections over TCP with mutual TLS: names, files, and peers that must be refused.
#![cfg(feature = "net")]
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use acp_shared::conn::{self, Conn, ConnError, Endpoint, Peer, TlsEndpoint, TlsListener};
use acp_shared::tls::{ClientTls, ServerTls};
use acp_testkit::certificates::{Authority, CertificateFiles, expired, not_yet_valid};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use tokio::task::JoinHandle;

const CELL: &str = "acp://plane/cell/main";
const HOST: &str = "acp://plane/host/one";

type Strings = Conn<String, String>;

fn client(files: &CertificateFiles) -> Arc<ClientTls> {
    Arc::new(ClientTls::load(&files.cert, &files.key, &files.ca).unwrap())
}

fn server(files: &CertificateFiles) -> Arc<ServerTls> {
    Arc::new(ServerTls::load(&files.cert, &files.key, &files.ca).unwrap())
}

/// Accepts one connection.
async fn accept(tls: &Arc<ServerTls>) -> (String, JoinHandle<Result<Strings, ConnError>>) {
    let listener = TlsListener::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.address().unwrap().to_string();
    let tls = Arc::clone(tls);
    (address, tokio::spawn(async move { listener.accept().await.unwrap().handshake(&tls).await }))
}

fn endpoint(address: &str, config: &Arc<ClientTls>) -> Endpoint {
    let config = Arc::clone(config);
    Endpoint::Tls(TlsEndpoint { address: address.to_owned(), identity: HOST.to_owned(), config })
}

fn text<T>(result: Result<T, ConnError>) -> String {
    match result {
        Ok(_) => panic!("the connection was accepted"),
        Err(ConnError::Io(error)) => error.to_string(),
        Err(other) => other.to_string(),
    }
}

#[tokio::test]
async fn both_sides_know_each_other_by_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let ca = Authority::new(dir.path(), "ca");
    let (cell, host) =
        (client(&ca.issue("cell", &[CELL])), server(&ca.issue("host", &[HOST, "https://example.org"])));
    assert_eq!((cell.identity(), host.identity()), (CELL, HOST));
    let (address, accepted) = accept(&host).await;
    let there = endpoint(&address, &cell);
    assert_eq!(there.to_string(), format!("{HOST} at {address}"));
    let mut here: Strings = conn::connect(&there).await.unwrap();
    let mut there = accepted.await.unwrap().unwrap();
    assert_eq!(here.peer, Peer::Remote { name: HOST.to_owned() });
    assert_eq!(there.peer, Peer::Remote { name: CELL.to_owned() });
    for message in ["short".to_owned(), "x".repeat(12 << 20)] {
        let (sent, received) = tokio::join!(here.sender.send(&message), there.receiver.recv());
        sent.unwrap();
        assert!(received.unwrap().as_ref() == Some(&message));
        let (sent, received) = tokio::join!(there.sender.send(&message), here.receiver.recv());
        sent.unwrap();
        assert!(received.unwrap().as_ref() == Some(&message));
    }
    drop(there);
    assert!(matches!(here.receiver.recv().await, Err(ConnError::Closed)));
}

#[tokio::test]
async fn wrong_certificates_are_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let (ca, other) = (Authority::new(dir.path(), "ca"), Authority::new(dir.path(), "other"));
    let (cell, host) = (ca.issue("cell", &[CELL]), ca.issue("host", &[HOST]));
    let mixed = |files: CertificateFiles| CertificateFiles { ca: ca.ca.clone(), ..files };
    // Columns: certificate of the gateway, certificate of the supervisor, errors of the gateway and of the supervisor.
    let table = [
        (mixed(other.issue("c1", &[CELL])), host.clone(), "", "UnknownIssuer"),
        (ca.issue_with("c2", &[CELL], expired), host.clone(), "", "certificate expired"),
        (ca.issue_with("c3", &[CELL], not_yet_valid), host.clone(), "", "not valid yet"),
        (cell.clone(), mixed(other.issue("h1", &[HOST])), "UnknownIssuer", ""),
        (cell.clone(), ca.issue_with("h2", &[HOST], expired), "certificate expired", ""),
        (cell.clone(), ca.issue_with("h3", &[HOST], not_yet_valid), "not valid yet", ""),
        (cell.clone(), ca.issue("h4", &["acp://plane/host/two"]), "that of acp://plane/host/two, not of", ""),
        (cell.clone(), ca.issue("h5", &["acp://elsewhere/host/one"]), "that of acp://elsewhere/host/one", ""),
        (cell, ca.issue("h6", &["acp://plane/cell/one"]), "that of acp://plane/cell/one", ""),
    ];
    for (cell, host, of_client, of_server) in table {
        let (address, accepted) = accept(&server(&host)).await;
        let connected = conn::connect::<String, String>(&endpoint(&address, &client(&cell))).await;
        let accepted = accepted.await.unwrap();
        if of_client.is_empty() {
            // The client learns of it with its first read.
            let mut conn = connected.unwrap();
            let got = text(conn.receiver.recv().await);
            assert!(got.contains("alert"), "{got}");
        } else {
            let got = text(connected);
            assert!(got.contains(of_client) && got.contains(&address), "{got}, not {of_client}");
        }
        if !of_server.is_empty() {
            let got = text(accepted);
            assert!(got.contains(of_server), "{got}, not {of_server}");
        }
    }
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn unusable_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let ca = Authority::new(dir.path(), "ca");
    let good = ca.issue("good", &[CELL]);
    let open = ca.issue("open", &[CELL]);
    set_mode(&open.key, 0o640);
    ClientTls::load(&open.cert, &open.key, &open.ca).unwrap();
    set_mode(&open.key, 0o644);
    let with = |change: &dyn Fn(&mut CertificateFiles)| {
        let mut files = good.clone();
        change(&mut files);
        files
    };
    let missing = dir.path().join("missing");
    let empty = dir.path().join("empty");
    std::fs::write(&empty, "").unwrap();
    set_mode(&empty, 0o600);
    for (files, part, fault) in [
        (with(&|f| f.cert = missing.clone()), "cert", "No such file"),
        (with(&|f| f.key = missing.clone()), "key", "No such file"),
        (with(&|f| f.ca = missing.clone()), "ca", "No such file"),
        (with(&|f| f.cert = empty.clone()), "cert", "no certificate"),
        (with(&|f| f.key = empty.clone()), "key", "no private key"),
        (with(&|f| f.ca = empty.clone()), "ca", "no certificate"),
        (with(&|f| f.ca = dir.path().to_owned()), "ca", "not a regular file"),
        (with(&|f| f.key = open.key.clone()), "key", "mode 0644"),
        (with(&|f| f.key = ca.issue("another", &[CELL]).key), "key", "not the key of the certificate"),
        (ca.issue("nameless", &["https://example.org"]), "cert", "no URI name acp://"),
        (ca.issue("two", &[CELL, HOST]), "cert", "exactly one"),
        (ca.issue("odd", &["acp://plane/node/main"]), "cert", "is not acp://PLANE/cell/ID"),
    ] {
        let error = ClientTls::load(&files.cert, &files.key, &files.ca).unwrap_err().to_string();
        let path = match part {
            "cert" => &files.cert,
            "key" => &files.key,
            _ => &files.ca,
        };
        assert!(error.starts_with(&format!("{part} = {}: ", path.display())), "{error}");
        assert!(error.contains(fault), "{error}, not {fault}");
        assert_eq!(ServerTls::load(&files.cert, &files.key, &files.ca).unwrap_err().to_string(), error);
    }
}

#[tokio::test]
async fn renewed_certificate_is_used_by_the_next_connection() {
    let dir = tempfile::tempdir().unwrap();
    let ca = Authority::new(dir.path(), "ca");
    let cell = client(&ca.issue("cell", &[CELL]));
    let files = ca.issue_with("host", &[HOST], expired);
    let host = server(&files);
    let try_once = async || {
        let (address, accepted) = accept(&host).await;
        let connected = conn::connect::<String, String>(&endpoint(&address, &cell)).await;
        drop(accepted.await);
        connected.map(drop)
    };
    assert!(text(try_once().await).contains("expired"));
    let renewed = ca.issue("renewed", &[HOST]);
    std::fs::rename(&renewed.cert, &files.cert).unwrap();
    assert!(text(try_once().await).contains("expired"), "the certificate without its key is not used");
    std::fs::rename(&renewed.key, &files.key).unwrap();
    try_once().await.unwrap();
    let stranger = ca.issue("stranger", &["acp://plane/host/two"]);
    std::fs::rename(&stranger.cert, &files.cert).unwrap();
    std::fs::rename(&stranger.key, &files.key).unwrap();
    try_once().await.unwrap();
}

#[test]
fn end_of_validity_is_known() {
    let dir = tempfile::tempdir().unwrap();
    let (ca, other) = (Authority::new(dir.path(), "ca"), Authority::new(dir.path(), "other"));
    let host = server(&ca.issue_with("host", &[HOST], expired));
    // 2000-06-01; the certificate ends with 2000.
    assert_eq!(host.check(959_817_600).unwrap(), 978_307_200);
    let error = host.check(1_000_000_000).unwrap_err().to_string();
    assert!(error.contains("expired"), "{error}");
    let files = CertificateFiles { ca: ca.ca.clone(), ..other.issue("foreign", &[HOST]) };
    let error = server(&files).check(959_817_600).unwrap_err().to_string();
    assert!(error.contains("UnknownIssuer"), "{error}");
}
