//! Certificates for tests: a CA that signs the certificates of cells and hosts, as files.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};
use std::io::Read as _;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
pub use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, Stream, SupportedProtocolVersion};

/// CA in a directory.
pub struct Authority {
    dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    /// File with the certificate of the CA.
    pub ca: PathBuf,
}

/// Files of one certificate.
#[derive(Debug, Clone)]
pub struct CertificateFiles {
    /// Certificate.
    pub cert: PathBuf,
    /// Private key.
    pub key: PathBuf,
    /// Certificate of the CA that signed it.
    pub ca: PathBuf,
}

fn write(path: PathBuf, text: &str, mode: u32) -> PathBuf {
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    path
}

impl Authority {
    /// Creates a CA. Its files begin with `name`.
    pub fn new(dir: &Path, name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let ca = write(dir.join(format!("{name}.pem")), &params.self_signed(&key).unwrap().pem(), 0o644);
        Self { dir: dir.to_owned(), issuer: Issuer::new(params, key), ca }
    }

    /// Signs a certificate with these URI names.
    pub fn issue(&self, file: &str, uris: &[&str]) -> CertificateFiles {
        self.issue_with(file, uris, |_| {})
    }

    /// Signs a certificate with these URI names, after a change of its parameters.
    pub fn issue_with(
        &self,
        file: &str,
        uris: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> CertificateFiles {
        let mut params = CertificateParams::default();
        let uri = |uri: &&str| SanType::URI((*uri).try_into().unwrap());
        params.subject_alt_names = uris.iter().map(uri).collect();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        CertificateFiles {
            cert: write(self.dir.join(format!("{file}.crt")), &cert.pem(), 0o644),
            key: write(self.dir.join(format!("{file}.key")), &key.serialize_pem(), 0o600),
            ca: self.ca.clone(),
        }
    }
}

/// Makes a certificate expired since 2001.
pub fn expired(params: &mut CertificateParams) {
    params.not_before = rcgen::date_time_ymd(2000, 1, 1);
    params.not_after = rcgen::date_time_ymd(2001, 1, 1);
}

/// Makes a certificate valid from the year 2200 on.
pub fn not_yet_valid(params: &mut CertificateParams) {
    params.not_before = rcgen::date_time_ymd(2200, 1, 1);
    params.not_after = rcgen::date_time_ymd(2201, 1, 1);
}

/// Adds the name `localhost`, for clients that verify names of the domain name system.
pub fn localhost(params: &mut CertificateParams) {
    params.subject_alt_names.push(SanType::DnsName("localhost".try_into().unwrap()));
}

/// Connects with TLS of this version, without a certificate, and reads until the server ends the connection. Returns what
/// the client learns.
pub fn without_certificate(address: &str, ca: &Path, version: &'static SupportedProtocolVersion) -> String {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca).unwrap() {
        roots.add(certificate.unwrap()).unwrap();
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let mut tls = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    let mut socket = TcpStream::connect(address).unwrap();
    let mut all = Vec::new();
    match Stream::new(&mut tls, &mut socket).read_to_end(&mut all) {
        Ok(_) => format!("{} bytes, then the end", all.len()),
        Err(error) => error.to_string(),
    }
}
