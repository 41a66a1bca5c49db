//! One websocket to the gateway: TCP, TLS where the address has it, and text messages in both directions.

use crate::USER_AGENT;
use crate::core::shard::Disconnect;
use futures_util::{SinkExt as _, StreamExt as _};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::http::header;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_util::either::Either;

/// Maximum size of a message. The largest ones describe a guild.
const MESSAGE_MAX: usize = 32 << 20;
/// Maximum time for TCP to one of the addresses of the host.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(4);
/// Maximum time for sending a payload.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time for the service to answer a close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Websocket connection to the gateway.
pub(super) struct Connection(WebSocketStream<Either<TcpStream, TlsStream<TcpStream>>>);

/// Input from a connection.
#[derive(Debug)]
pub(super) enum Received {
    /// A text message.
    Text(String),
    /// A message that is not text.
    NoText,
    /// The end of the connection.
    End(Disconnect),
}

impl Connection {
    /// Connects to a checked address, `ws[s]://HOST[:PORT][/PATH]`. The caller must limit the time.
    ///
    /// # Errors
    /// Reason why the connection failed, without the address.
    pub(super) async fn open(url: &str) -> Result<Self, String> {
        Self::open_trusting(url, RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() }).await
    }

    async fn open_trusting(url: &str, roots: RootCertStore) -> Result<Self, String> {
        let url = reqwest::Url::parse(url).map_err(|error| error.to_string())?;
        let host = url.host_str().ok_or("the address has no host")?;
        let stream = tcp(&url).await.map_err(|error| error.to_string())?;
        let stream = if url.scheme() == "wss" {
            Either::Right(tls(host, stream, roots).await.map_err(|error| error.to_string())?)
        } else {
            Either::Left(stream)
        };
        let mut asked = url.clone();
        asked.set_query(Some("v=10&encoding=json"));
        let mut request = asked.as_str().into_client_request().map_err(|error| error.to_string())?;
        request.headers_mut().insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
        let config = WebSocketConfig {
            max_message_size: Some(MESSAGE_MAX),
            max_frame_size: Some(MESSAGE_MAX),
            ..WebSocketConfig::default()
        };
        let opened = tokio_tungstenite::client_async_with_config(request, stream, Some(config)).await;
        opened.map(|(socket, _)| Self(socket)).map_err(|error| error.to_string())
    }

    /// Sends a text message.
    ///
    /// # Errors
    /// [`Disconnect`] if the connection has ended or a timeout occurs.
    pub(super) async fn send(&mut self, text: String) -> Result<(), Disconnect> {
        let sent = tokio::time::timeout(SEND_TIMEOUT, self.0.send(Message::Text(text))).await;
        sent.map_err(|_| Disconnect::Broken)?.map_err(|error| disconnect_cause(&error))
    }

    /// Receives the next message. Cancel safe.
    pub(super) async fn next(&mut self) -> Received {
        loop {
            return match self.0.next().await {
                Some(Ok(Message::Text(text))) => Received::Text(text),
                Some(Ok(Message::Binary(_))) => Received::NoText,
                Some(Ok(Message::Close(Some(frame)))) => Received::End(Disconnect::Closed(frame.code.into())),
                Some(Ok(Message::Close(None))) | None => Received::End(Disconnect::Broken),
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => continue,
                Some(Err(error)) => Received::End(disconnect_cause(&error)),
            };
        }
    }

    /// Closes the connection with a code and waits for the service to close it as well.
    pub(super) async fn close(mut self, code: u16) {
        let frame = CloseFrame { code: code.into(), reason: "".into() };
        let closed = async {
            if self.0.close(Some(frame)).await.is_ok() {
                while let Some(Ok(_)) = self.0.next().await {}
            }
        };
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, closed).await;
    }
}

const fn disconnect_cause(error: &Error) -> Disconnect {
    if matches!(error, Error::Capacity(_)) { Disconnect::TooLarge } else { Disconnect::Broken }
}

/// Connects to the first address of the host that answers.
async fn tcp(url: &reqwest::Url) -> io::Result<TcpStream> {
    let none = || io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    let host = url.host_str().ok_or_else(none)?.trim_matches(['[', ']']);
    let port = url.port_or_known_default().ok_or_else(none)?;
    let mut last = none();
    for address in tokio::net::lookup_host((host, port)).await? {
        match tokio::time::timeout(ADDRESS_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Ok(Err(error)) => last = error,
            Err(_) => last = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(last)
}

async fn tls(host: &str, stream: TcpStream, roots: RootCertStore) -> io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned()).map_err(io::Error::other)?;
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

#[cfg(test)]
mod tests {
    #![expect(clippy::expect_used, reason = "a failed expectation is a failed test")]

    use super::*;
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;
    use tokio_rustls::rustls::ServerConfig;
    use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

    /// Self-signed certificate for `localhost` and its key, for these tests only.
    const CERTIFICATE: &[u8] = include_bytes!("testdata/localhost.cert.der");
    const KEY: &[u8] = include_bytes!("testdata/localhost.key.der");

    async fn server() -> String {
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(KEY));
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![CertificateDer::from(CERTIFICATE)], key)
            .expect("certificate");
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listen");
        let port = listener.local_addr().expect("address").port();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.expect("accept");
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let mut socket = tokio_tungstenite::accept_async(stream).await.expect("websocket");
            while let Some(Ok(message)) = socket.next().await {
                let _ = socket.send(message).await;
            }
        });
        format!("wss://localhost:{port}")
    }

    #[tokio::test]
    async fn tls_websocket_carries_text_frames() {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(CERTIFICATE)).expect("root");
        let mut connection = Connection::open_trusting(&server().await, roots).await.expect("connected");
        connection.send("text".to_owned()).await.expect("sent");
        assert!(matches!(connection.next().await, Received::Text(text) if text == "text"));
        connection.close(1000).await;
    }

    #[tokio::test]
    async fn certificate_of_unknown_authority_is_rejected() {
        let refused = Connection::open(&server().await).await.err().expect("refused");
        assert!(refused.contains("invalid peer certificate"), "{refused}");
    }

    #[tokio::test]
    async fn server_without_tls_is_rejected() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listen");
        let port = listener.local_addr().expect("address").port();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("accept");
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        });
        assert!(Connection::open(&format!("wss://localhost:{port}")).await.is_err());
    }
}
