//! TLS of the API's TCP listeners, from PEM files.

use acp_core::config::northbound::TlsConfig;
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

/// Protocols that are offered by ALPN, the preferred one first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Reads the files. `None` if no certificate is configured.
///
/// # Errors
/// A sentence that names the key, the file and the fault.
pub(crate) fn load(config: &TlsConfig) -> Result<Option<Arc<ServerConfig>>, String> {
    let (Some(cert), Some(key)) = (&config.cert, &config.key) else { return Ok(None) };
    let chain = certificates("northbound.tls.cert", cert)?;
    let secret =
        PrivateKeyDer::from_pem_file(key).map_err(|error| wrong("northbound.tls.key", key, &error))?;
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong("northbound.tls", cert, &error))?;
    let builder = match &config.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let name = "northbound.tls.client_ca";
            let mut roots = RootCertStore::empty();
            for certificate in certificates(name, path)? {
                roots.add(certificate).map_err(|error| wrong(name, path, &error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| wrong(name, path, &error))?)
        }
    };
    let mut loaded =
        builder.with_single_cert(chain, secret).map_err(|error| wrong("northbound.tls", cert, &error))?;
    loaded.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
    Ok(Some(Arc::new(loaded)))
}

fn certificates(name: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let all = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match all {
        Ok(all) if all.is_empty() => Err(wrong(name, path, &"the file contains no certificate")),
        Ok(all) => Ok(all),
        Err(error) => Err(wrong(name, path, &error)),
    }
}

fn wrong(name: &str, path: &Path, error: &dyn Display) -> String {
    format!("{name} = {}: {error}", path.display())
}
