//! Address of a cell: a server's connection URL, and the name of the cell's schema.

use crate::error::StoreError;
use acp_core::config::PostgresStore;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr as _;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;

/// Server and cell of a gateway.
#[derive(Clone)]
pub struct PgAddress {
    pub(super) config: Arc<Config>,
    pub(super) cell: String,
    /// Authorities of the server's certificate.
    pub(super) roots: Arc<RootCertStore>,
    /// Addresses of the gateway's API.
    pub(crate) served_at: Arc<[String]>,
    /// Maximum wait for the lock of the cell while another gateway holds it.
    pub(crate) lock_wait: Duration,
}

impl PgAddress {
    /// Reads a connection URL (`postgres://user:password@host:port/database?options`, or `key=value` pairs) for a cell. Over
    /// a network TLS is required, unless the address has `sslmode=disable`.
    ///
    /// # Errors
    /// [`StoreError::Server`].
    pub fn parse(text: &str, cell: &str) -> Result<Self, StoreError> {
        let refused = |why: String| refused("the configured address".to_owned(), why);
        let mut config = Config::from_str(text.trim()).map_err(|error| {
            refused(format!("{error}: write postgres://USER:PASSWORD@HOST:PORT/DATABASE into its file"))
        })?;
        if !PostgresStore::is_cell(cell) {
            return Err(refused(format!("{cell:?} is not the name of a cell")));
        }
        // A standby that answers in the place of the primary has older rows.
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        if config.get_ssl_mode() == SslMode::Prefer && is_remote(&config) {
            config.ssl_mode(SslMode::Require);
        }
        let roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
        Ok(Self {
            config: Arc::new(config),
            cell: cell.to_owned(),
            roots: Arc::new(roots),
            served_at: Arc::default(),
            lock_wait: Duration::ZERO,
        })
    }

    /// Sets how long to wait for the lock of the cell while another gateway holds it: the cell is taken as soon as that one ends.
    #[must_use]
    pub fn with_lock_wait(self, lock_wait: Duration) -> Self {
        Self { lock_wait, ..self }
    }

    /// Sets the TCP addresses of the gateway's API, which gateways that stand by show.
    #[must_use]
    pub fn served_at(self, addresses: Vec<String>) -> Self {
        Self { served_at: addresses.into(), ..self }
    }

    /// Requires a certificate of one of these authorities instead of a public one's.
    ///
    /// # Errors
    /// [`StoreError::Server`] if the text is not PEM or has no certificate.
    pub fn with_authorities(self, pem: &[u8]) -> Result<Self, StoreError> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let added = certificate.map_err(|error| error.to_string());
            let added = added.and_then(|found| roots.add(found).map_err(|error| error.to_string()));
            added.map_err(|why| refused(self.to_string(), format!("an authority cannot be read: {why}")))?;
        }
        if roots.is_empty() {
            return Err(refused(
                self.to_string(),
                "the file of its authorities has no certificate".to_owned(),
            ));
        }
        let mut config = Config::clone(&self.config);
        config.ssl_mode(SslMode::Require);
        Ok(Self { config: Arc::new(config), roots: Arc::new(roots), ..self })
    }

    /// Name of the cell's schema.
    pub fn schema(&self) -> String {
        Self::schema_of(&self.cell)
    }

    /// Name of the schema of a cell.
    pub(crate) fn schema_of(cell: &str) -> String {
        format!("acp_{cell}")
    }

    /// Name of the cell.
    pub fn cell(&self) -> &str {
        &self.cell
    }
}

fn refused(address: String, why: String) -> StoreError {
    StoreError::Server { address, why, is_passing: false }
}

/// True if a host is neither a socket of this machine nor a loopback address.
fn is_remote(config: &Config) -> bool {
    let is_loopback = |host: &Host| match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            name == "localhost" || name.parse().is_ok_and(|address: IpAddr| address.is_loopback())
        }
    };
    !config.get_hosts().iter().all(is_loopback) || !config.get_hostaddrs().iter().all(IpAddr::is_loopback)
}

/// Host, port and database; no password.
impl fmt::Display for PgAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = match self.config.get_hosts().first() {
            Some(Host::Tcp(name)) => name.clone(),
            Some(Host::Unix(path)) => path.display().to_string(),
            None => "localhost".to_owned(),
        };
        let port = self.config.get_ports().first().copied().unwrap_or(5432);
        write!(f, "{host}:{port}/{} cell {}", self.config.get_dbname().unwrap_or_default(), self.cell)
    }
}

impl fmt::Debug for PgAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PgAddress({self})")
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[test]
    fn address_over_a_network_requires_tls_unless_it_is_disabled() {
        for (text, want) in [
            ("postgres://u@db.example/acp", SslMode::Require),
            ("postgres://u@localhost,db.example/acp", SslMode::Require),
            ("postgres://u@192.0.2.1/acp", SslMode::Require),
            ("postgres://u@db.example/acp?sslmode=disable", SslMode::Disable),
            ("postgres://u@127.0.0.1/acp", SslMode::Prefer),
            ("postgres:///acp?host=/run/postgresql&user=u", SslMode::Prefer),
        ] {
            assert_eq!(PgAddress::parse(text, "main").unwrap().config.get_ssl_mode(), want, "{text}");
        }
    }

    #[test]
    fn address_is_shown_without_its_password() {
        let address = PgAddress::parse(" postgres://u:hunter22@db.example:5433/acp\n", "a_1").unwrap();
        assert_eq!(address.to_string(), "db.example:5433/acp cell a_1");
        assert!(!format!("{address:?}").contains("hunter22"), "{address:?}");
        assert_eq!(address.schema(), "acp_a_1");
        for (text, cell) in
            [("not an address", "main"), ("postgres://u@h/d", "Main"), ("postgres://u@h/d", "")]
        {
            assert!(PgAddress::parse(text, cell).is_err(), "{text} {cell}");
        }
    }

    #[test]
    fn authorities_must_be_certificates() {
        let address = PgAddress::parse("postgres://u@localhost/d", "main").unwrap();
        for text in ["", "no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            assert!(address.clone().with_authorities(text.as_bytes()).is_err(), "{text}");
        }
    }
}
