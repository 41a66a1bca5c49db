//! TLS of connections.

use crate::error::StoreError;
use std::error::Error as _;
use std::io;
use std::sync::Arc;
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{self, CertificateError, ClientConfig, RootCertStore};

/// TLS to a server: its certificate must belong to one of the authorities.
pub(super) fn tls(roots: Arc<RootCertStore>) -> Result<MakeRustlsConnect, StoreError> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|_| StoreError::Refused("TLS has no protocol version"))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

/// Reason for which the certificate of a server is refused, and the next step; `None` for another error.
pub(super) fn certificate_fault(error: &tokio_postgres::Error) -> Option<String> {
    let cause = error.source()?.downcast_ref::<io::Error>()?;
    let rustls::Error::InvalidCertificate(fault) = cause.get_ref()?.downcast_ref()? else { return None };
    let known = match fault {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "it has expired: renew it on the server"
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "it is not valid yet: compare the clocks of both machines"
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "it has another host name: use a name of the certificate in the address"
        }
        CertificateError::UnknownIssuer => {
            "its authority is unknown: name the file of the authority with acp.control_plane.postgres.ca_file"
        }
        other => return Some(other.to_string()),
    };
    Some(known.to_owned())
}
