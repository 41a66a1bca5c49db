//! TLS of connections.

use crate::error::StoreError;
use std::sync::Arc;
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// TLS to a server: its certificate must belong to one of the authorities.
pub(super) fn tls(roots: Arc<RootCertStore>) -> Result<MakeRustlsConnect, StoreError> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|_| StoreError::Refused("TLS has no protocol version"))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}
