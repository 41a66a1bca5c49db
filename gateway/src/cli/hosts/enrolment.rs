//! Listener of one enrolment: issues at most one certificate, to the peer that presents the token before it expires.

use super::authority::Authority;
use crate::cli::inside;
use crate::supervisor::boot_time;
use acp_core::failure::Failure;
use acp_shared::conn::{AcceptedStream, Conn, ConnError, TlsListener};
use acp_shared::enrol::{
    CertificateRequest, EXCHANGE_MAX, EnrolToken, GatewayMessage, HostMessage, INSTALL_MAX,
    IssuedCertificate, REQUEST_BYTES_MAX, proof_text, secret_hash,
};
use acp_shared::identity::Identity;
use acp_shared::report::with_causes;
use acp_shared::tls::{Fingerprint, anonymous_server, fingerprint};
use rcgen::{CertificateParams, KeyPair};
use ring::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_rustls::rustls::ServerConfig;

/// Maximum number of connections at a time; others wait in the backlog.
const CONNECTIONS_MAX: usize = 64;
/// Maximum time in which a refused peer reads the reason.
const REFUSED_MAX: Duration = Duration::from_secs(1);
/// Interval of the expiry check: tokio's timers do not count suspension.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// One enrolment. The secret is kept as its hash, in memory only: the end of the process ends the token.
pub(super) struct Enrolment {
    secret_hash: [u8; 32],
    fingerprint: Fingerprint,
    server: Arc<ServerConfig>,
    host: Identity,
    authority: Authority,
    /// Seconds since the Unix epoch.
    now_seconds: u64,
    /// End of the token, as [`boot_time`].
    ends_at: Duration,
    is_used: AtomicBool,
}

/// End of an enrolment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EnrolmentEnd {
    /// The certificate was issued to a host at this address, which has or has not confirmed that it is installed.
    Issued { address: IpAddr, is_installed: bool },
    /// The token's time is over.
    Expired,
}

impl Enrolment {
    /// Creates an enrolment and its token.
    ///
    /// # Errors
    /// `RUNTIME` without random bytes.
    pub(super) fn new(
        authority: Authority,
        name: &str,
        valid_for: Duration,
        now_seconds: u64,
    ) -> Result<(Arc<Self>, EnrolToken), Failure> {
        let unmade = |error: rcgen::Error| inside("cannot make the certificate of this enrolment", &error);
        let key = KeyPair::generate().map_err(unmade)?;
        let certificate = CertificateParams::default().self_signed(&key).map_err(unmade)?;
        let fingerprint = fingerprint(certificate.der());
        let server = anonymous_server(certificate.der().to_vec(), key.serialize_der())
            .map_err(|error| inside("cannot use the certificate of this enrolment", &error))?;
        let secret = crate::util::random::secret()
            .map_err(|error| inside("reading random bytes from /dev/urandom failed", &error))?;
        let token = EnrolToken::new(fingerprint, secret);
        let enrolment = Self {
            secret_hash: secret_hash(&token.secret),
            fingerprint,
            server: Arc::new(server),
            host: authority.host(name),
            authority,
            now_seconds,
            ends_at: boot_time() + valid_for,
            is_used: AtomicBool::new(false),
        };
        Ok((Arc::new(enrolment), token))
    }

    pub(super) const fn host(&self) -> &Identity {
        &self.host
    }

    pub(super) const fn authority(&self) -> &Authority {
        &self.authority
    }

    /// True once a certificate was issued.
    pub(super) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Acquire)
    }

    fn is_expired(&self) -> bool {
        boot_time() >= self.ends_at
    }

    /// Answers a request. The token is used up by the first request with its secret and a proven key.
    fn answer(&self, request: &CertificateRequest) -> Result<IssuedCertificate, String> {
        // Comparing hashes leaks no timing information about the secret.
        if secret_hash(&request.secret) != self.secret_hash {
            return Err("the token is not that of this enrolment; copy it again".to_owned());
        }
        if self.is_expired() {
            return Err("the token has expired; run `acp-gateway hosts enrol` again".to_owned());
        }
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &request.public_key)
            .verify(&proof_text(&self.fingerprint), &request.proof)
            .map_err(|_| "the request is not signed with its key; upgrade acp-supervisor".to_owned())?;
        let signed = self.authority.sign_host(&request.public_key, &self.host, self.now_seconds);
        let certificate = signed.map_err(|failure| format!("cannot sign: {}", failure.message))?;
        if self.is_used.swap(true, Ordering::AcqRel) {
            return Err(format!(
                "the token has been used; if not by you, somebody else can pose as {} until the certificate ends: enrol this \
                 host under another name, and remove that one from remote.hosts",
                self.host
            ));
        }
        Ok(IssuedCertificate {
            certificate,
            ca: self.authority.ca.clone(),
            cell: self.authority.cell.to_string(),
        })
    }

    /// Serves one connection. Returns whether the host that got the certificate has confirmed it, or the refusal of others.
    async fn serve_one(self: Arc<Self>, stream: AcceptedStream) -> Result<Result<bool, String>, ConnError> {
        let exchange = async {
            let mut conn: Conn<HostMessage, GatewayMessage> =
                stream.handshake_anonymous(Arc::clone(&self.server)).await?;
            conn.receiver.limit(REQUEST_BYTES_MAX);
            let Some(HostMessage::Request(request)) = conn.receiver.recv().await? else {
                return Err(ConnError::OutOfTurn);
            };
            Ok((self.answer(&request), conn))
        };
        let exchanged = tokio::time::timeout(EXCHANGE_MAX, exchange).await;
        let (answer, mut conn) = exchanged.map_err(|_| ConnError::Timeout(EXCHANGE_MAX))??;
        let refusal = answer.as_ref().err().cloned();
        let is_issued = refusal.is_none();
        let message = answer.map_or_else(GatewayMessage::Refused, GatewayMessage::Issued);
        let installed = async {
            conn.sender.send(&message).await.ok()?;
            if !is_issued {
                // The peer reads the reason before the connection ends.
                drop(conn.receiver.discard(1).await);
                return None;
            }
            matches!(conn.receiver.recv().await, Ok(Some(HostMessage::Installed))).then_some(())
        };
        let limit = if is_issued { INSTALL_MAX } else { REFUSED_MAX };
        let confirmed = tokio::time::timeout(limit, installed).await.ok().flatten();
        Ok(refusal.map_or_else(|| Ok(confirmed.is_some()), Err))
    }

    /// Serves connections until the certificate is issued or the token has expired. `note` gets refused connections.
    pub(super) async fn serve(
        self: Arc<Self>,
        listener: &TlsListener,
        mut note: impl FnMut(SocketAddr, String),
    ) -> EnrolmentEnd {
        let mut served = JoinSet::new();
        let mut check = tokio::time::interval(CHECK_EVERY);
        loop {
            let has_room = served.len() < CONNECTIONS_MAX;
            tokio::select! {
                // After an error, such as too many open files, the next one is accepted at the next check.
                Ok(stream) = listener.accept(), if has_room => {
                    let (address, enrolment) = (stream.address(), Arc::clone(&self));
                    served.spawn(async move { (address, enrolment.serve_one(stream).await) });
                }
                Some(Ok((address, outcome))) = served.join_next() => match outcome {
                    Ok(Ok(is_installed)) => {
                        return EnrolmentEnd::Issued { address: address.ip(), is_installed };
                    }
                    Ok(Err(why)) => note(address, why),
                    Err(error) => note(address, with_causes(&error)),
                },
                _ = check.tick() => {
                    if self.is_expired() && !self.is_used() {
                        return EnrolmentEnd::Expired;
                    }
                }
            }
        }
    }
}
