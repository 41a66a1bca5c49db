//! TLS and HTTP/2 of the API's TCP listeners.

use super::network::{LOOPBACK, Network, bearer, config, read_to_end, request, status};
use super::*;
use crate::tests::eventually;
use acp_core::principal::Scope;
use axum::body::Body;
use http_body_util::BodyExt as _;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

fn file(name: &str) -> String {
    format!("{}/src/api/tests/tls/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn with_tls(more: &str) -> String {
    format!(
        "{LOOPBACK}[northbound.tls]\ncert = \"{}\"\nkey = \"{}\"\n{more}",
        file("server.pem"),
        file("server.key")
    )
}

/// Client that trusts the authority of the tests, offers these protocols, and may have a certificate.
fn connector(protocols: &[&str], has_certificate: bool) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(file("ca.pem")).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = if has_certificate {
        let chain = vec![CertificateDer::from_pem_file(file("client.pem")).unwrap()];
        builder
            .with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(file("client.key")).unwrap())
            .unwrap()
    } else {
        builder.with_no_client_auth()
    };
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    TlsConnector::from(Arc::new(config))
}

async fn over_tls(network: &Network, connector: &TlsConnector, request: &[u8]) -> std::io::Result<String> {
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = connector.connect(name, TcpStream::connect(network.address()).await?).await?;
    stream.write_all(request).await?;
    let mut answer = Vec::new();
    tokio::time::timeout(DEADLINE, stream.read_to_end(&mut answer)).await.unwrap()?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

type Http2Client = hyper::client::conn::http2::SendRequest<Body>;

async fn http2<S>(stream: S) -> Http2Client
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let io = TokioIo::new(stream);
    let (client, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    client
}

fn http2_request(path: &str, token: Option<&str>, host: &str, accept: &str) -> hyper::Request<Body> {
    let builder = hyper::Request::builder().uri(format!("http://{host}{path}")).header("accept", accept);
    let builder = token
        .into_iter()
        .fold(builder, |builder, token| builder.header("authorization", format!("Bearer {token}")));
    builder.body(Body::empty()).unwrap()
}

#[tokio::test]
async fn http2_has_the_same_checks_and_streams() {
    let network = Network::start(LOOPBACK, LIMITS).await;
    let token = network.token("phone", Scope::Read, &[], None).await;
    let other = network.token("other", Scope::Read, &[], None).await;
    let mut client = http2(TcpStream::connect(network.address()).await.unwrap()).await;
    for (token, host, want) in [
        (Some(token.as_str()), "localhost", 200),
        (None, "localhost", 401),
        (Some("acp_x"), "localhost", 401),
        (Some(token.as_str()), "evil.example", 403),
    ] {
        let answer = client.send_request(http2_request("/v1/health", token, host, "*/*")).await.unwrap();
        assert_eq!(answer.status(), want, "{host}");
    }
    // A revoked token ends its stream; the connection and other streams on it go on.
    let events = format!("{SESSION}/events");
    let mut open = Vec::new();
    for token in [&token, &other] {
        let asked = http2_request(&events, Some(token), "localhost", "text/event-stream");
        open.push(client.send_request(asked).await.unwrap().into_body());
    }
    network.revoke("phone").await;
    let ended = async {
        while let Some(frame) = open[0].frame().await {
            if frame.is_err() {
                return true;
            }
        }
        false
    };
    assert!(tokio::time::timeout(DEADLINE, ended).await.unwrap(), "the stream is reset");
    network.fake.append_message("after");
    let more = async {
        loop {
            let frame = open[1].frame().await.unwrap().unwrap();
            if frame.data_ref().is_some_and(|data| String::from_utf8_lossy(data).contains("after")) {
                return;
            }
        }
    };
    tokio::time::timeout(DEADLINE, more).await.unwrap();
    network.end().await;
}

#[tokio::test]
async fn tls_serves_both_protocols_and_no_plain_text() {
    let network = Network::start(&with_tls(""), LIMITS).await;
    let token = network.token("phone", Scope::Read, &[], None).await;
    let ask = request("GET", "/v1/health", &bearer(&token), "");
    for protocols in [&[][..], &["http/1.1"]] {
        let answer = over_tls(&network, &connector(protocols, false), &ask).await.unwrap();
        assert_eq!(status(&answer), 200, "{answer}");
    }
    let stream = TcpStream::connect(network.address()).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let stream = connector(&["h2", "http/1.1"], false).connect(name, stream).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let mut client = http2(stream).await;
    let answer =
        client.send_request(http2_request("/v1/health", Some(&token), "localhost", "*/*")).await.unwrap();
    assert_eq!(answer.status(), 200);
    let plain = network.exchange(&ask).await;
    assert!(!plain.contains("HTTP/1.1"), "{plain}");
    assert!(network.refusals("tls") > 0);
    // A client that never finishes the handshake is disconnected.
    let mut silent = network.connect(b"\x16\x03\x01").await;
    assert!(!read_to_end(&mut silent).await.contains("HTTP"));
    network.end().await;
}

#[tokio::test]
async fn client_certificates_are_required_where_configured() {
    let network = Network::start(&with_tls(&format!("client_ca = \"{}\"\n", file("ca.pem"))), LIMITS).await;
    let token = network.token("phone", Scope::Read, &[], None).await;
    let ask = request("GET", "/v1/health", &bearer(&token), "");
    let answer = over_tls(&network, &connector(&[], true), &ask).await.unwrap();
    assert_eq!(status(&answer), 200, "{answer}");
    // The certificate does not replace the token.
    let without =
        over_tls(&network, &connector(&[], true), &request("GET", "/v1/health", "", "")).await.unwrap();
    assert_eq!(status(&without), 401, "{without}");
    let refused = over_tls(&network, &connector(&[], false), &ask).await;
    assert!(!refused.as_ref().is_ok_and(|answer| answer.contains("HTTP")), "{refused:?}");
    network.end().await;
}

#[tokio::test]
async fn unusable_tls_file_opens_no_plain_listener() {
    let dir = tempfile::tempdir().unwrap();
    let broken = dir.path().join("broken.pem");
    std::fs::write(&broken, "no certificate").unwrap();
    let text = with_tls("").replace(&file("server.pem"), &broken.display().to_string());
    let network = Network::start("", LIMITS).await;
    network.live.replace(config(&text)).unwrap();
    let view = eventually("the failure", async || network.failure()).await;
    assert!(view.contains("TLS files"), "{view}");
    // The next reload with a usable file opens it; a later broken one leaves the old certificate in use.
    network.live.replace(config(&with_tls(""))).unwrap();
    let token = network.token("phone", Scope::Read, &[], None).await;
    let ask = request("GET", "/v1/health", &bearer(&token), "");
    let serves = async || {
        network.failure().is_none().then_some(())?;
        let answer = over_tls(&network, &connector(&[], false), &ask).await.ok()?;
        (status(&answer) == 200).then_some(())
    };
    eventually("TLS", serves).await;
    network.live.replace(config(&text)).unwrap();
    eventually("TLS with the old certificate", serves).await;
    network.end().await;
}
