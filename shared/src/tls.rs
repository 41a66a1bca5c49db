//! Mutual TLS 1.3 between gateways and supervisors: certificates from PEM files, names by their URI
//! ([`crate::identity`]).
//!
//! DNS names are ignored; a peer is identified by the URI name of a certificate that the configured CA signed. Sessions
//! are not resumed, since a resumed one would not look at the certificate again.

use crate::identity::{Holder, Identity, SCHEME};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use std::fmt::Display;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::client::{Resumption, WantsClientCert, verify_server_cert_signed_by_trust_anchor};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, ConfigBuilder, DigitallySignedStruct, Error, RootCertStore, ServerConfig,
    SignatureScheme,
};

/// Maximum size of a file, in bytes.
pub const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// Time after which unchanged files that could not be used are read again: the cause may not have been in them.
const FAULT_RETRY: Duration = Duration::from_secs(60);
/// Time far from now, for which no certificate of an installation is valid.
const FAR: Duration = Duration::from_secs(1000 * 365 * 24 * 3600);

/// SHA-256 of a certificate in DER.
pub type Fingerprint = [u8; 32];

/// File that cannot be used. The text begins with the part, `cert`, `key` or `ca`, so that the end of a configuration key
/// may stand before it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{part} = {}: {fault}", path.display())]
pub struct TlsError {
    /// Part of the file: `cert`, `key` or `ca`.
    pub part: &'static str,
    /// Path of the file.
    pub path: PathBuf,
    /// Fault, in words.
    pub fault: String,
}

/// Identity and time of change of a file: another one means that the file was replaced or written, or that its owner or
/// mode changed.
type Stamp = (u64, u64, i64, i64, u64);
/// Stamps of certificate, key and CA.
type Stamps = [Option<Stamp>; 3];

/// Content of the three files, and the configuration of connections that is made of it.
#[derive(Debug)]
struct Loaded<C> {
    stamps: Stamps,
    identity: Identity,
    key: Arc<CertifiedKey>,
    roots: Arc<RootCertStore>,
    config: Arc<C>,
}

/// Newest usable content, and the newest unusable files.
#[derive(Debug)]
struct Held<C> {
    loaded: Arc<Loaded<C>>,
    faulty: Option<(Stamps, Instant)>,
}

/// Builder of one side's configuration.
type Build<C> = fn(Arc<CryptoProvider>, Arc<CertifiedKey>, Arc<RootCertStore>) -> Result<C, Error>;

/// Certificate chain, private key and CA of one side, read again when a file changes.
#[derive(Debug)]
struct Credentials<C> {
    cert: PathBuf,
    key: PathBuf,
    ca: PathBuf,
    identity: String,
    provider: Arc<CryptoProvider>,
    build: Build<C>,
    held: Mutex<Held<C>>,
    /// Locked while the files are looked at.
    reading: Mutex<()>,
}

fn stamp(path: &Path) -> Option<Stamp> {
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.dev(), meta.ino(), meta.ctime(), meta.ctime_nsec(), meta.size()))
}

fn wrong(part: &'static str, path: &Path, fault: &dyn Display) -> TlsError {
    TlsError { part, path: path.to_owned(), fault: fault.to_string() }
}

fn certificates(part: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = read(part, path)?;
    match CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>() {
        Ok(all) if all.is_empty() => Err(wrong(
            part,
            path,
            &"the file has no certificate; write it as PEM, -----BEGIN CERTIFICATE-----",
        )),
        Ok(all) => Ok(all),
        Err(error) => Err(wrong(part, path, &format!("the file is not valid PEM: {error}"))),
    }
}

fn read(part: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    let meta = std::fs::metadata(path).map_err(|error| wrong(part, path, &error))?;
    if !meta.is_file() || meta.size() > FILE_BYTES_MAX {
        return Err(wrong(part, path, &format!("is not a regular file of at most {FILE_BYTES_MAX} bytes")));
    }
    std::fs::read(path).map_err(|error| wrong(part, path, &error))
}

/// Checks that no other user can read or change a private key.
///
/// # Errors
/// The file cannot be looked at, or is not private.
pub fn check_private_key(path: &Path) -> Result<(), TlsError> {
    let meta = std::fs::metadata(path).map_err(|error| wrong("key", path, &error))?;
    let is_own = meta.uid() == 0 || meta.uid() == rustix::process::geteuid().as_raw();
    if !is_own || meta.mode() & 0o027 != 0 {
        let mode = meta.mode() & 0o777;
        return Err(wrong(
            "key",
            path,
            &format!("other users can read or change it (user {}, mode {mode:04o}); chmod 0600", meta.uid()),
        ));
    }
    Ok(())
}

/// Reads a private key. A file that others can read or change is refused.
fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    check_private_key(path)?;
    PrivateKeyDer::from_pem_slice(&read("key", path)?)
        .map_err(|error| wrong("key", path, &format!("the file has no private key: {error}")))
}

/// Returns the identity that a certificate names.
///
/// # Errors
/// The certificate has no URI name `acp://…`, several, or an invalid one.
pub(crate) fn identity_of(certificate: &CertificateDer<'_>) -> Result<Identity, String> {
    let parsed = webpki::EndEntityCert::try_from(certificate)
        .map_err(|error| format!("the certificate cannot be read: {error}"))?;
    let mut names = parsed.valid_uri_names().filter(|name| name.starts_with(SCHEME));
    match (names.next(), names.next()) {
        (Some(name), None) => {
            name.parse().map_err(|error| format!("the URI name of the certificate is wrong: {error}"))
        }
        (None, _) => {
            Err("the certificate has no URI name acp://PLANE/cell/ID or acp://PLANE/host/NAME".to_owned())
        }
        (Some(one), Some(other)) => {
            Err(format!("the certificate has the URI names {one} and {other}; it needs exactly one"))
        }
    }
}

fn authorities(ca: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("ca", ca)? {
        roots.add(certificate).map_err(|error| wrong("ca", ca, &error))?;
    }
    Ok(roots)
}

/// Reads the three files: certificate, key and CA.
fn read_all<C>(
    provider: &Arc<CryptoProvider>,
    [cert, key, ca]: [&Path; 3],
    build: Build<C>,
) -> Result<Loaded<C>, TlsError> {
    // Taken before the files are read: a change in between is found at the next connection.
    let stamps = [cert, key, ca].map(stamp);
    let chain = certificates("cert", cert)?;
    let Some(own) = chain.first() else {
        return Err(wrong("cert", cert, &"the file has no certificate"));
    };
    let identity = identity_of(own).map_err(|fault| wrong("cert", cert, &fault))?;
    let secret = private_key(key)?;
    let certified = CertifiedKey::from_der(chain, secret, provider).map_err(|error| match error {
        Error::InconsistentKeys(_) => {
            wrong("key", key, &format!("is not the key of the certificate {}", cert.display()))
        }
        other => wrong("key", key, &other),
    })?;
    let (certified, roots) = (Arc::new(certified), Arc::new(authorities(ca)?));
    let config = build(Arc::clone(provider), Arc::clone(&certified), Arc::clone(&roots))
        .map_err(|error| wrong("ca", ca, &error))?;
    Ok(Loaded { stamps, identity, key: certified, roots, config: Arc::new(config) })
}

impl<C> Credentials<C> {
    fn load(cert: &Path, key: &Path, ca: &Path, build: Build<C>) -> Result<Self, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let loaded = Arc::new(read_all(&provider, [cert, key, ca], build)?);
        Ok(Self {
            cert: cert.to_owned(),
            key: key.to_owned(),
            ca: ca.to_owned(),
            identity: loaded.identity.to_string(),
            provider,
            build,
            held: Mutex::new(Held { loaded, faulty: None }),
            reading: Mutex::default(),
        })
    }

    /// Returns the content of the files as they are now. Files that are wrong, or that name somebody else, do not take
    /// the place of the earlier content: a certificate and its key may be written one after the other. They are read
    /// again, and their fault is logged again, when one of them changes, and at most every [`FAULT_RETRY`] otherwise. One
    /// caller looks at them at a time, and others get the earlier content meanwhile: a disk may hang.
    fn current(&self) -> Arc<Loaded<C>> {
        let Some(_reading) = self.reading.try_lock() else { return Arc::clone(&self.held.lock().loaded) };
        let files = [&*self.cert, &*self.key, &*self.ca];
        let stamps = files.map(stamp);
        let (loaded, faulty) = {
            let held = self.held.lock();
            (Arc::clone(&held.loaded), held.faulty)
        };
        let is_known_fault =
            faulty.is_some_and(|(faulty, at)| faulty == stamps && at.elapsed() < FAULT_RETRY);
        if loaded.stamps == stamps || is_known_fault {
            return loaded;
        }
        let fault = match read_all(&self.provider, files, self.build) {
            Ok(new) if new.identity == loaded.identity => {
                let new = Arc::new(new);
                *self.held.lock() = Held { loaded: Arc::clone(&new), faulty: None };
                tracing::info!(cert = %self.cert.display(), identity = self.identity, "certificate reloaded");
                return new;
            }
            Ok(new) => {
                let fault = format!(
                    "names {}, not {} as at the start; restart to use it",
                    new.identity, self.identity
                );
                wrong("cert", &self.cert, &fault)
            }
            Err(fault) => fault,
        };
        self.held.lock().faulty = Some((stamps, Instant::now()));
        tracing::warn!(%fault, "changed certificate not used");
        loaded
    }

    /// Checks the own certificate at this time, seconds since the Unix epoch. Returns the last second of its validity.
    fn check(&self, at_seconds: u64) -> Result<u64, TlsError> {
        let at = UnixTime::since_unix_epoch(Duration::from_secs(at_seconds));
        self.verify_own(at).map_err(|error| wrong("cert", &self.cert, &error))?;
        self.not_after()
    }

    /// Checks that the own certificate is signed by the CA and valid for this time.
    fn verify_own(&self, at: UnixTime) -> Result<(), Error> {
        let loaded = self.current();
        let Some((own, intermediates)) = loaded.key.cert.split_first() else {
            return Err(Error::NoCertificatesPresented);
        };
        verify_holder(loaded.identity.holder, own, intermediates, &loaded.roots, at, &self.provider)
    }

    /// Returns the last second of validity of the own chain, seconds since the Unix epoch.
    fn not_after(&self) -> Result<u64, TlsError> {
        let far = UnixTime::since_unix_epoch(FAR);
        match self.verify_own(far) {
            Err(Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) => {
                Ok(not_after.as_secs())
            }
            Err(error) => Err(wrong("cert", &self.cert, &error)),
            Ok(()) => Ok(FAR.as_secs()),
        }
    }
}

/// Verifies the certificate of a server for this time: signed by one of the CAs, and meant for servers.
fn verify(
    own: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    roots: &RootCertStore,
    at: UnixTime,
    provider: &CryptoProvider,
) -> Result<(), Error> {
    let parsed = ParsedCertificate::try_from(own)?;
    let algorithms = provider.signature_verification_algorithms.all;
    verify_server_cert_signed_by_trust_anchor(&parsed, roots, intermediates, at, algorithms)
}

/// Verifies the certificate of a cell as a host does, and that of a host as a gateway does.
fn verify_holder(
    holder: Holder,
    own: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    roots: &Arc<RootCertStore>,
    at: UnixTime,
    provider: &Arc<CryptoProvider>,
) -> Result<(), Error> {
    match holder {
        Holder::Host => verify(own, intermediates, roots, at, provider),
        Holder::Cell => client_verifier(Arc::clone(roots), Arc::clone(provider))?
            .verify_client_cert(own, intermediates, at)
            .map(drop),
    }
}

fn client_verifier(
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, Error> {
    WebPkiClientVerifier::builder_with_provider(roots, provider)
        .build()
        .map_err(|error| Error::General(error.to_string()))
}

fn client_config(
    provider: Arc<CryptoProvider>,
    key: Arc<CertifiedKey>,
    roots: Arc<RootCertStore>,
) -> Result<ClientConfig, Error> {
    let config = client_of(provider, AcceptedCertificates::Signed(roots))?;
    Ok(without_resumption(config.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(key)))))
}

fn client_of(
    provider: Arc<CryptoProvider>,
    accepted: AcceptedCertificates,
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, Error> {
    let verifier = ServerVerifier { accepted, provider: Arc::clone(&provider) };
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13])?;
    Ok(builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier)))
}

fn without_resumption(mut config: ClientConfig) -> ClientConfig {
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    config
}

/// Returns the SHA-256 of a certificate in DER.
#[must_use]
pub fn fingerprint(certificate: &[u8]) -> Fingerprint {
    Sha256::digest(certificate).into()
}

/// Creates the configuration of a client without a certificate, which accepts exactly one certificate of the server.
///
/// # Errors
/// As rustls.
pub fn pinned_client(expected: Fingerprint) -> Result<ClientConfig, Error> {
    let config = client_of(Arc::new(ring::default_provider()), AcceptedCertificates::One(expected))?;
    Ok(without_resumption(config.with_no_client_auth()))
}

/// Creates the configuration of a server with this certificate and key in DER, whose clients need no certificate.
///
/// # Errors
/// As rustls: the key cannot be read, or is not that of the certificate.
pub fn anonymous_server(certificate: Vec<u8>, key: Vec<u8>) -> Result<ServerConfig, Error> {
    let key = PrivateKeyDer::try_from(key).map_err(|error| Error::General(error.to_owned()))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![CertificateDer::from(certificate)], key)?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// Checks that a CA of the file `ca` signed the certificate in DER, which is valid at this time, seconds since the Unix
/// epoch.
///
/// # Errors
/// [`TlsError`] of the CA.
pub fn check_signed(certificate: &[u8], ca: &Path, at_seconds: u64) -> Result<(), TlsError> {
    let at = UnixTime::since_unix_epoch(Duration::from_secs(at_seconds));
    let certificate = CertificateDer::from(certificate);
    let holder = identity_of(&certificate).map_err(|fault| wrong("ca", ca, &fault))?.holder;
    let roots = Arc::new(authorities(ca)?);
    verify_holder(holder, &certificate, &[], &roots, at, &Arc::new(ring::default_provider()))
        .map_err(|error| wrong("ca", ca, &error))
}

/// Returns the identity that the first certificate of a file names.
///
/// # Errors
/// [`TlsError`] of the file.
pub fn identity_in(cert: &Path) -> Result<Identity, TlsError> {
    let all = certificates("cert", cert)?;
    let own = all.first().ok_or_else(|| wrong("cert", cert, &"the file has no certificate"))?;
    identity_of(own).map_err(|fault| wrong("cert", cert, &fault))
}

fn server_config(
    provider: Arc<CryptoProvider>,
    key: Arc<CertifiedKey>,
    roots: Arc<RootCertStore>,
) -> Result<ServerConfig, Error> {
    let verifier = client_verifier(roots, Arc::clone(&provider))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(key)));
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// Credentials of a gateway, for connections to supervisors.
#[derive(Debug)]
pub struct ClientTls(Credentials<ClientConfig>);

impl ClientTls {
    /// Reads certificate chain, private key and CA from PEM files.
    ///
    /// # Errors
    /// A file cannot be used; see [`TlsError`].
    pub fn load(cert: &Path, key: &Path, ca: &Path) -> Result<Self, TlsError> {
        Credentials::load(cert, key, ca, client_config).map(Self)
    }

    /// Returns the URI name of the own certificate.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.0.identity
    }

    /// Checks that the own certificate is signed by the CA and valid at this time, seconds since the Unix epoch. Returns
    /// the last second of its validity.
    ///
    /// # Errors
    /// [`TlsError`] of the certificate.
    pub fn check(&self, at_seconds: u64) -> Result<u64, TlsError> {
        self.0.check(at_seconds)
    }

    /// Returns the configuration of the next connection. Reads files that changed.
    pub(crate) fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.0.current().config)
    }
}

/// Credentials of a supervisor, for connections of gateways.
#[derive(Debug)]
pub struct ServerTls(Credentials<ServerConfig>);

impl ServerTls {
    /// Reads certificate chain, private key and CA from PEM files.
    ///
    /// # Errors
    /// A file cannot be used; see [`TlsError`].
    pub fn load(cert: &Path, key: &Path, ca: &Path) -> Result<Self, TlsError> {
        Credentials::load(cert, key, ca, server_config).map(Self)
    }

    /// Returns the URI name of the own certificate.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.0.identity
    }

    /// Checks that the own certificate is signed by the CA and valid at this time, seconds since the Unix epoch. Returns
    /// the last second of its validity.
    ///
    /// # Errors
    /// [`TlsError`] of the certificate.
    pub fn check(&self, at_seconds: u64) -> Result<u64, TlsError> {
        self.0.check(at_seconds)
    }

    /// Returns the configuration of the next connection. Reads files that changed.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.0.current().config)
    }
}

/// Certificates that a client accepts from a server.
#[derive(Debug)]
enum AcceptedCertificates {
    /// Valid ones that a CA signed. The URI name is compared after the handshake, before anything is sent.
    Signed(Arc<RootCertStore>),
    /// The one with this fingerprint, at any time.
    One(Fingerprint),
}

/// Verifier of a server's certificate.
#[derive(Debug)]
struct ServerVerifier {
    accepted: AcceptedCertificates,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match &self.accepted {
            AcceptedCertificates::Signed(roots) => {
                verify(end_entity, intermediates, roots, now, &self.provider)?;
            }
            AcceptedCertificates::One(expected) if fingerprint(end_entity) != *expected => {
                return Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure));
            }
            AcceptedCertificates::One(_) => {}
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
