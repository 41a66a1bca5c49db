//! CA and cell certificate of a gateway, as files: makes what is missing, and signs certificates of hosts.

use crate::cli::config::read_bounded;
use crate::cli::{inside, usage};
use acp_core::config::RemoteConfig;
use acp_core::failure::Failure;
use acp_shared::codes::Code;
use acp_shared::identity::{Holder, Identity};
use acp_shared::tls::{ClientTls, FILE_BYTES_MAX, check_private_key, check_signed, identity_in};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType, SignatureAlgorithm,
};
use rustix::fs::FlockOperation;
use std::fmt::Display;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Directory of the files in the state directory, unless the configuration names others.
const DIR: &str = "tls";
/// Default name of the plane.
const PLANE: &str = "acp";
const DAY_SECONDS: u64 = 24 * 3_600;
/// Validity of the CA, in days.
const CA_DAYS: u64 = 3_650;
/// Validity of the certificates of cells and hosts, in days.
const DAYS: u64 = 90;
/// Remaining validity below which the cell certificate is renewed, in seconds.
const RENEW_SECONDS: u64 = 30 * DAY_SECONDS;

/// Paths of the files.
#[derive(Debug, Clone)]
pub(super) struct AuthorityFiles {
    pub(super) cert: PathBuf,
    pub(super) key: PathBuf,
    pub(super) ca: PathBuf,
    pub(super) ca_key: PathBuf,
}

impl AuthorityFiles {
    /// Returns the paths of the configuration, and for others those in the state directory.
    pub(super) fn new(config: &RemoteConfig, state_dir: &Path) -> Self {
        let path =
            |set: &Option<PathBuf>, name: &str| set.clone().unwrap_or_else(|| state_dir.join(DIR).join(name));
        Self {
            cert: path(&config.cert, "cell.crt"),
            key: path(&config.key, "cell.key"),
            ca: path(&config.ca, "ca.crt"),
            ca_key: path(&config.ca_key, "ca.key"),
        }
    }
}

/// Names for new certificates; existing certificates keep theirs.
#[derive(Debug, Clone, Default)]
pub(super) struct WantedNames {
    pub(super) plane: Option<String>,
    /// Id of the cell.
    pub(super) cell: String,
    /// True if hosts are configured: a new CA would lock the gateway out there.
    pub(super) has_hosts: bool,
}

/// CA that signs the certificates of hosts.
pub(super) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    files: AuthorityFiles,
    /// Certificate of the CA, as PEM.
    pub(super) ca: String,
    /// Identity of this gateway.
    pub(super) cell: Identity,
    /// Files that were made.
    pub(super) made: Vec<PathBuf>,
}

/// Public key of a host: an uncompressed point of P-256.
struct HostKey<'a>(&'a [u8]);

impl PublicKeyData for HostKey<'_> {
    fn der_bytes(&self) -> &[u8] {
        self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

fn failed(path: &Path, why: &dyn Display) -> Failure {
    Failure::new(Code::Runtime, format!("{}: {why}", path.display())).origin("client")
}

fn unsigned(error: &rcgen::Error) -> Failure {
    inside("cannot sign a certificate", error)
}

/// Opens the directory of a file, and creates it with mode 0700 if it is missing.
fn open_dir(file: &Path) -> Result<File, Failure> {
    let dir = file.parent().unwrap_or(file);
    let opened = DirBuilder::new().recursive(true).mode(0o700).create(dir).and_then(|()| File::open(dir));
    opened.map_err(|error| failed(dir, &error))
}

/// Fails if two of the four paths are equal, or if hosts are configured and the file of the CA is missing.
fn check_paths(files: &AuthorityFiles, has_hosts: bool) -> Result<(), Failure> {
    let paths = [&files.ca_key, &files.ca, &files.key, &files.cert];
    if let Some(path) =
        paths.iter().enumerate().find_map(|(n, path)| paths[..n].contains(path).then_some(path))
    {
        return Err(usage(format!(
            "{}: certificate and key, of CA and cell, are four files",
            path.display()
        )));
    }
    if has_hosts && !files.ca.exists() {
        let text = format!(
            "hosts are configured, but {} is missing: bring the CA back, or check --state-dir and remote.ca; a new CA would \
             lock this gateway out at its hosts",
            files.ca.display()
        );
        return Err(usage(text));
    }
    Ok(())
}

/// Locks the directory of the CA's key.
fn lock_dir(file: &Path) -> Result<File, Failure> {
    let dir = open_dir(file)?;
    rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
        let text =
            "another process has locked the directory: wait until another `hosts enrol` has made its files";
        failed(file.parent().unwrap_or(file), &text)
    })?;
    Ok(dir)
}

/// Returns the certificates of a PEM text, without a private key in the same file.
fn certificates_in(pem: &str) -> String {
    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    const END: &str = "-----END CERTIFICATE-----";
    let blocks = pem.split(BEGIN).skip(1).filter_map(|rest| Some(rest.split_once(END)?.0));
    blocks.map(|block| format!("{BEGIN}{block}{END}\n")).collect()
}

/// Writes a file, complete or not at all.
fn write(path: &Path, text: &str, mode: u32) -> Result<(), Failure> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    let written = || -> io::Result<()> {
        let _ = std::fs::remove_file(&new);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, path)?;
        path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
    };
    written().map_err(|error| failed(path, &error))
}

/// Reads a file; `None` if it is missing.
fn read(path: &Path) -> Result<Option<String>, Failure> {
    match read_bounded(path, FILE_BYTES_MAX) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(path, &error)),
    }
}

/// Reads a private key, or makes it if it is missing and has no certificate. A key without a certificate was left by an interrupted
/// command, which makes keys first.
fn key(path: &Path, cert: &Path, made: &mut Vec<PathBuf>) -> Result<KeyPair, Failure> {
    if let Some(text) = read(path)? {
        check_private_key(path).map_err(|error| usage(error.to_string()))?;
        return KeyPair::from_pem(&text)
            .map_err(|error| failed(path, &format!("no usable private key: {error}")));
    }
    if cert.exists() {
        let text = format!(
            "{} is there, but not its private key {}: bring the key here, or have certificates signed where it is",
            cert.display(),
            path.display()
        );
        return Err(usage(text));
    }
    let pair = KeyPair::generate().map_err(|error| unsigned(&error))?;
    write(path, &pair.serialize_pem(), 0o600)?;
    made.push(path.to_owned());
    Ok(pair)
}

fn date(seconds: u64) -> Result<jiff::civil::Date, Failure> {
    let time = i64::try_from(seconds).ok().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    let time = time.ok_or_else(|| usage("the clock of this machine is wrong"))?;
    Ok(time.to_zoned(jiff::tz::TimeZone::UTC).date())
}

/// Parameters of a certificate that is valid from the day before for that many days.
fn params(common_name: &str, now_seconds: u64, days: u64) -> Result<CertificateParams, Failure> {
    let day = |seconds: u64| {
        let date = date(seconds)?;
        Ok::<_, Failure>(rcgen::date_time_ymd(
            date.year().into(),
            date.month().unsigned_abs(),
            date.day().unsigned_abs(),
        ))
    };
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.not_before = day(now_seconds.saturating_sub(DAY_SECONDS))?;
    params.not_after = day(now_seconds.saturating_add(days * DAY_SECONDS))?;
    Ok(params)
}

fn ca_params(plane: &str, now_seconds: u64) -> Result<CertificateParams, Failure> {
    let mut params = params(&format!("CA of plane {plane}"), now_seconds, CA_DAYS)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    Ok(params)
}

/// Signs a certificate with this name only.
fn sign(
    key: &impl PublicKeyData,
    identity: &Identity,
    issuer: &Issuer<'static, KeyPair>,
    now_seconds: u64,
) -> Result<rcgen::Certificate, Failure> {
    let mut params = params(&identity.name, now_seconds, DAYS)?;
    let uri = identity.to_string().try_into().map_err(|error| unsigned(&error))?;
    params.subject_alt_names = vec![SanType::URI(uri)];
    params.extended_key_usages = vec![match identity.holder {
        Holder::Cell => ExtendedKeyUsagePurpose::ClientAuth,
        Holder::Host => ExtendedKeyUsagePurpose::ServerAuth,
    }];
    params.signed_by(key, issuer).map_err(|error| unsigned(&error))
}

impl Authority {
    /// Reads CA and cell certificate. Makes what is missing, and signs a cell certificate that ends soon again. A killed
    /// command leaves keys without certificates, which the next one completes.
    ///
    /// # Errors
    /// A file cannot be read or written, or the files do not belong together.
    pub(super) fn open(
        files: AuthorityFiles,
        wanted: &WantedNames,
        now_seconds: u64,
    ) -> Result<Self, Failure> {
        check_paths(&files, wanted.has_hosts)?;
        let _lock = lock_dir(&files.ca_key)?;
        for other in [&files.ca, &files.key, &files.cert] {
            drop(open_dir(other)?);
        }
        let invalid = |error: acp_shared::tls::TlsError| usage(format!("remote.{error}"));
        let own = files.cert.exists().then(|| identity_in(&files.cert)).transpose().map_err(invalid)?;
        let plane = own.as_ref().map(|own| own.plane.clone()).or_else(|| wanted.plane.clone());
        let plane = plane.unwrap_or_else(|| PLANE.to_owned());
        if let Some(other) = wanted.plane.as_ref().filter(|other| **other != plane) {
            let text =
                format!("--plane {other}: {} is of plane {plane}; leave --plane out", files.cert.display());
            return Err(usage(text));
        }
        let cell = own.unwrap_or_else(|| Identity {
            plane: plane.clone(),
            holder: Holder::Cell,
            name: wanted.cell.clone(),
        });
        if cell.to_string().parse::<Identity>().as_ref() != Ok(&cell) || cell.holder != Holder::Cell {
            return Err(usage(format!(
                "{cell} is not the name of a cell, acp://PLANE/cell/ID; see --plane and --cell"
            )));
        }
        let mut made = Vec::new();
        let params = ca_params(&plane, now_seconds)?;
        let ca_key = key(&files.ca_key, &files.ca, &mut made)?;
        let ca = match read(&files.ca)? {
            Some(text) => text,
            None => {
                let text = params.self_signed(&ca_key).map_err(|error| unsigned(&error))?.pem();
                write(&files.ca, &text, 0o644)?;
                made.push(files.ca.clone());
                text
            }
        };
        let issuer = Issuer::new(params, ca_key);
        let own_key = key(&files.key, &files.cert, &mut made)?;
        let is_kept = files.cert.exists()
            && ClientTls::load(&files.cert, &files.key, &files.ca)
                .and_then(|tls| tls.check(now_seconds))
                .is_ok_and(|end| end > now_seconds.saturating_add(RENEW_SECONDS));
        let mut all = Self { issuer, files, ca: certificates_in(&ca), cell, made };
        // Also for a certificate that is kept: the CA may be another one than that of the key.
        let fresh = all.signed(&own_key, &all.cell, now_seconds)?;
        if is_kept {
            return Ok(all);
        }
        write(&all.files.cert, &fresh, 0o644)?;
        all.made.push(all.files.cert.clone());
        let AuthorityFiles { cert, key, ca, .. } = &all.files;
        ClientTls::load(cert, key, ca).and_then(|tls| tls.check(now_seconds)).map_err(invalid)?;
        Ok(all)
    }

    /// Signs a certificate, and checks it against the CA's: the issuer's name is not read from the file.
    fn signed(
        &self,
        key: &impl PublicKeyData,
        identity: &Identity,
        now_seconds: u64,
    ) -> Result<String, Failure> {
        let signed = sign(key, identity, &self.issuer, now_seconds)?;
        check_signed(signed.der(), &self.files.ca, now_seconds).map_err(|error| {
            usage(format!(
                "{} is not the CA of {}, or its subject is not \"CN=CA of plane {}\": sign certificates with the tool that \
                 made it ({error})",
                self.files.ca.display(),
                self.files.ca_key.display(),
                self.cell.plane
            ))
        })?;
        Ok(signed.pem())
    }

    /// Returns the identity of a host of this plane.
    pub(super) fn host(&self, name: &str) -> Identity {
        Identity { plane: self.cell.plane.clone(), holder: Holder::Host, name: name.to_owned() }
    }

    /// Signs the certificate of a host with this public key. Returns it as PEM.
    ///
    /// # Errors
    /// As the CA's files.
    pub(super) fn sign_host(
        &self,
        public_key: &[u8],
        host: &Identity,
        now_seconds: u64,
    ) -> Result<String, Failure> {
        self.signed(&HostKey(public_key), host, now_seconds)
    }

    /// Returns the paths of the files.
    pub(super) const fn files(&self) -> &AuthorityFiles {
        &self.files
    }
}

#[cfg(test)]
mod tests;
