//! Enrolment of a host: token and messages between `acp-supervisor enrol` and `acp-gateway hosts enrol`.
//!
//! The gateway's command listens with a certificate that it made for this enrolment. The token has the fingerprint of that
//! certificate, by which the host knows the gateway, and a secret, by which the gateway knows the host. The host sends a
//! public key and no name: `hosts enrol NAME` has chosen the name.

use crate::redact::Secret;
use crate::tls::Fingerprint;
use data_encoding::BASE64URL_NOPAD;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fmt::{Debug, Formatter};
use std::str::FromStr;
use std::time::Duration;

/// Maximum length of a message to the gateway, in bytes.
pub const REQUEST_BYTES_MAX: usize = 1024;
/// Maximum length of a message to the host, in bytes.
pub const REPLY_BYTES_MAX: usize = 64 * 1024;
/// Maximum time from the connection until the certificate has been issued.
pub const EXCHANGE_MAX: Duration = Duration::from_secs(10);
/// Maximum time that the host waits for its certificate: others may fill the gateway's table of connections once.
pub const WAIT_MAX: Duration = Duration::from_secs(30);
/// Maximum time in which the host writes its files.
pub const INSTALL_MAX: Duration = Duration::from_secs(20);
/// Port of the gateway's command, unless another one is chosen.
pub const PORT: u16 = 7421;
/// Port at which supervisors listen for gateways on other machines, in examples and in new configurations.
pub const SUPERVISOR_PORT: u16 = 7420;

/// Prefix of a token.
const PREFIX: &str = "acp-enrol-";
/// Length of the secret, in bytes.
const SECRET_BYTES: usize = 32;
/// Prefix of the signed text.
const PROOF: &[u8] = b"acp-host enrolment 1\0";

/// Token of an enrolment.
#[derive(Clone, PartialEq, Eq)]
pub struct EnrolToken {
    /// Fingerprint of the gateway's certificate for this enrolment.
    pub fingerprint: Fingerprint,
    /// Secret of this enrolment.
    pub secret: Secret,
}

impl Debug for EnrolToken {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("EnrolToken")
    }
}

/// Text that is not a token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the token is not complete: copy it from `acp-gateway hosts enrol`, {PREFIX} and two parts with a \".\" between"
)]
pub struct EnrolTokenError;

impl EnrolToken {
    /// Creates the token of an enrolment.
    #[must_use]
    pub fn new(fingerprint: Fingerprint, secret: [u8; SECRET_BYTES]) -> Self {
        Self { fingerprint, secret: Secret::new(BASE64URL_NOPAD.encode(&secret)) }
    }

    /// Returns the token as text.
    #[must_use]
    pub fn expose(&self) -> String {
        format!("{PREFIX}{}.{}", BASE64URL_NOPAD.encode(&self.fingerprint), self.secret.expose())
    }
}

impl FromStr for EnrolToken {
    type Err = EnrolTokenError;

    fn from_str(text: &str) -> Result<Self, EnrolTokenError> {
        let parts = text.trim().strip_prefix(PREFIX).and_then(|rest| rest.split_once('.'));
        let (fingerprint, secret) = parts.ok_or(EnrolTokenError)?;
        let bytes = |part: &str| {
            let bytes = BASE64URL_NOPAD.decode(part.as_bytes()).map_err(|_| EnrolTokenError)?;
            <[u8; 32]>::try_from(bytes).map_err(|_| EnrolTokenError)
        };
        Ok(Self::new(bytes(fingerprint)?, bytes(secret)?))
    }
}

/// Returns the hash of a secret, which is all that the gateway keeps.
#[must_use]
pub fn secret_hash(secret: &Secret) -> [u8; 32] {
    Sha256::digest(secret.expose()).into()
}

/// Returns the text that the host signs, which proves possession of its key to this gateway only.
#[must_use]
pub fn proof_text(fingerprint: &Fingerprint) -> Vec<u8> {
    [PROOF, fingerprint].concat()
}

/// Request for a certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateRequest {
    /// Secret of the token.
    pub secret: Secret,
    /// Public key: an uncompressed point of P-256.
    #[serde(with = "serde_bytes")]
    pub public_key: Vec<u8>,
    /// Signature of [`proof_text`] with that key: ECDSA with SHA-256, in DER.
    #[serde(with = "serde_bytes")]
    pub proof: Vec<u8>,
}

/// Message of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostMessage {
    /// The first message.
    Request(CertificateRequest),
    /// The files are in place.
    Installed,
}

/// Certificate of a host, with the CA and the cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IssuedCertificate {
    /// Certificate, as PEM.
    pub certificate: String,
    /// CA of the plane, as PEM.
    pub ca: String,
    /// Name of the gateway's cell, for a `[[tenant]]`.
    pub cell: String,
}

/// Message of the gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum GatewayMessage {
    /// The certificate; the token is used up.
    Issued(IssuedCertificate),
    /// No certificate, with the reason.
    Refused(String),
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[test]
    fn token_is_read_back_and_never_shown_by_debug() {
        let token = EnrolToken::new([7; 32], [9; 32]);
        let text = token.expose();
        assert_eq!(text.len(), 97, "{text}");
        assert_eq!(format!(" {text}\n").parse::<EnrolToken>().unwrap(), token);
        let request =
            CertificateRequest { secret: token.secret.clone(), public_key: vec![4], proof: vec![1] };
        assert!(!format!("{token:?} {request:?}").contains(token.secret.expose()));
        let (head, secret) = text.split_once('.').unwrap();
        for wrong in [
            "",
            PREFIX,
            head,
            &format!("{head}."),
            &format!("{head}.{}", &secret[1..]),
            &format!("{head}.{secret}A"),
            &format!("{head}.{secret}.{secret}"),
            &text.replace(PREFIX, "acp-"),
            &text.replace('.', "="),
        ] {
            assert_eq!(wrong.parse::<EnrolToken>(), Err(EnrolTokenError), "{wrong}");
        }
        assert_ne!(secret_hash(&token.secret), secret_hash(&EnrolToken::new([7; 32], [8; 32]).secret));
    }
}
