//! `enrol`: makes a key for this host, gets its certificate with a token of the gateway, and writes the files.

use super::output::Output;
use super::{CliError, text};
use crate::context::wall_ms;
use acp_shared::conn::{Conn, ConnError, connect_pinned};
use acp_shared::enrol::{
    CertificateRequest, EXCHANGE_MAX, EnrolToken, EnrolTokenError, GatewayMessage, HostMessage,
    IssuedCertificate, REPLY_BYTES_MAX, SUPERVISOR_PORT, WAIT_MAX, proof_text,
};
use acp_shared::identity::{Holder, Identity};
use acp_shared::report::with_causes;
use acp_shared::tls::ServerTls;
use clap::Args;
use rcgen::{KeyPair, SigningKey as _};
use rustix::fs::{CWD, FlockOperation, RenameFlags};
use serde::Serialize;
use std::fmt::Display;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, BufRead as _, ErrorKind, IsTerminal as _, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Directory of the three files, in that of the configuration.
const DIR: &str = "tls";
/// Temporary directory: new files before the exchange, former files after it.
const NEW: &str = "tls.new";
const CERT: &str = "host.crt";
const KEY: &str = "host.key";
const CA: &str = "ca.crt";
const CONFIG: &str = "supervisor.toml";
/// Maximum length of a token on standard input, in bytes.
const TOKEN_BYTES_MAX: u64 = 4_096;

const EXAMPLES: &str = "\
Examples:
  acp-supervisor enrol --gateway gw1.example:7421 --run-as-user agents
  acp-supervisor enrol --gateway gw1.example:7421 < FILE

`acp-gateway hosts enrol NAME` at the gateway prints the token, which decides the name of this host. It is valid once, for ten
minutes. It is read from standard input: other users of this machine can see arguments. The private key is made here and does
not leave this machine. Certificate, key and CA take the place of earlier ones together or not at all. Where there is no
supervisor.toml, one is written: review it, then start the supervisor.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct EnrolArgs {
    /// Address and port of the running `acp-gateway hosts enrol`
    #[arg(long, value_name = "HOST:PORT")]
    gateway: String,
    /// Token of `acp-gateway hosts enrol`; - reads one line from standard input
    #[arg(long, default_value = "-")]
    token: String,
    /// Replace the certificate of another CA, or of another name
    #[arg(long)]
    replace: bool,
    /// Directory of supervisor.toml and tls/ [default: /etc/acp-host for root, else acp-host in $XDG_CONFIG_HOME or ~/.config]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Address where gateways connect, for a new supervisor.toml
    #[arg(long, value_name = "ADDRESS", default_value_t = SocketAddr::from((Ipv4Addr::UNSPECIFIED, SUPERVISOR_PORT)))]
    listen: SocketAddr,
    /// User of the agents in a new supervisor.toml; required if the supervisor runs as root
    #[arg(long, value_name = "USER")]
    run_as_user: Option<String>,
}

/// An enrolled host.
#[derive(Debug, Serialize)]
struct EnrolledView {
    identity: String,
    cell: String,
    cert: PathBuf,
    key: PathBuf,
    ca: PathBuf,
    /// New configuration file; none if one existed.
    config: Option<PathBuf>,
}

fn failed(what: impl Display) -> CliError {
    CliError::Enrol(what.to_string())
}

fn at(path: &Path) -> impl Fn(io::Error) -> CliError + '_ {
    move |source| CliError::File { path: path.to_owned(), source }
}

pub(super) async fn run(args: &EnrolArgs, out: &mut Output) -> Result<(), CliError> {
    let dir = args
        .dir
        .clone()
        .or_else(default_dir)
        .ok_or_else(|| CliError::usage("name a directory with --dir"))?;
    let dir = std::path::absolute(dir)?;
    let files = HostFiles::open(&dir)?;
    let token = token(&args.token)?;
    let key = KeyPair::generate().map_err(|error| failed(format!("cannot make a key: {error}")))?;
    let (conn, issued) = request(args, &token, &key).await?;
    let host = files.install(&issued, &key, args.replace)?;
    let config = files.configure(args, &issued.cell)?;
    confirm(conn).await;
    let path = |name: &str| dir.join(DIR).join(name);
    let view = EnrolledView {
        identity: host.to_string(),
        cell: issued.cell,
        cert: path(CERT),
        key: path(KEY),
        ca: path(CA),
        config,
    };
    if out.is_json() {
        out.data("enrolled", &view)?
    } else {
        out.line(&summary(&view, &dir, args))?
    }
    Ok(())
}

fn token(argument: &str) -> Result<EnrolToken, CliError> {
    let mut text = argument.to_owned();
    if argument == "-" {
        text.clear();
        if io::stdin().is_terminal() {
            write!(io::stderr(), "Token of `acp-gateway hosts enrol`: ")?;
        }
        io::stdin().lock().take(TOKEN_BYTES_MAX).read_line(&mut text)?;
    }
    text.parse().map_err(|error: EnrolTokenError| CliError::usage(error.to_string()))
}

/// Returns the directory of the system's configuration for root, else that of the user's.
fn default_dir() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some("/etc/acp-host".into());
    }
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = set("XDG_CONFIG_HOME").or_else(|| set("HOME").map(|home| home.join(".config")))?;
    Some(base.join("acp-host"))
}

type GatewayConn = Conn<GatewayMessage, HostMessage>;

/// Connects to the gateway of the token, and gets the certificate of this key.
async fn request(
    args: &EnrolArgs,
    token: &EnrolToken,
    key: &KeyPair,
) -> Result<(GatewayConn, IssuedCertificate), CliError> {
    let proof = key.sign(&proof_text(&token.fingerprint));
    let request = CertificateRequest {
        secret: token.secret.clone(),
        public_key: key.public_key_raw().to_vec(),
        proof: proof.map_err(|error| failed(format!("cannot sign the request: {error}")))?,
    };
    let exchange = async {
        let mut conn: GatewayConn = connect_pinned(&args.gateway, token.fingerprint).await?;
        conn.receiver.limit(REPLY_BYTES_MAX);
        conn.sender.send(&HostMessage::Request(request)).await?;
        Ok((conn.receiver.recv().await?, conn))
    };
    let hint = "The token is that of one running `acp-gateway hosts enrol`; nothing was sent to another server, and nothing \
                here was changed";
    let exchanged = tokio::time::timeout(WAIT_MAX, exchange).await;
    let exchanged = exchanged.unwrap_or(Err(ConnError::Timeout(WAIT_MAX)));
    match exchanged.map_err(|error| failed(format!("{}: {}. {hint}", args.gateway, with_causes(&error))))? {
        (Some(GatewayMessage::Issued(issued)), conn) => Ok((conn, issued)),
        (Some(GatewayMessage::Refused(why)), _) => Err(failed(format!("{}: {why}", args.gateway))),
        (None, _) => Err(failed(format!("{}: the gateway closed the connection. {hint}", args.gateway))),
    }
}

/// Confirms to the gateway that the files are written. Errors are ignored: the files are already in place.
async fn confirm(mut conn: GatewayConn) {
    let sent = async {
        conn.sender.send(&HostMessage::Installed).await?;
        conn.receiver.discard(1).await
    };
    drop(tokio::time::timeout(EXCHANGE_MAX, sent).await);
}

/// The files of this host, whose directory is locked.
struct HostFiles {
    dir: PathBuf,
    _lock: File,
}

impl HostFiles {
    /// Creates and locks the directory, and makes sure that the files can be written.
    fn open(dir: &Path) -> Result<Self, CliError> {
        DirBuilder::new().recursive(true).mode(0o755).create(dir).map_err(at(dir))?;
        let owner = std::fs::metadata(dir).map_err(at(dir))?.uid();
        if owner != rustix::process::geteuid().as_raw() {
            let text = format!(
                "{} belongs to the user with id {owner}, not to this one: run this as the user of the supervisor",
                dir.display()
            );
            return Err(CliError::usage(text));
        }
        let lock = File::open(dir).map_err(at(dir))?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|error| failed(format!("{}: another enrolment is running ({error})", dir.display())))?;
        let files = Self { dir: dir.to_owned(), _lock: lock };
        let current = files.dir.join(DIR);
        match std::fs::read_dir(&current) {
            Ok(mut entries) => {
                let own = [CERT, KEY, CA];
                if let Some(other) = entries.find_map(|entry| {
                    entry.ok().filter(|entry| !own.iter().any(|name| entry.file_name() == *name))
                }) {
                    let text = format!(
                        "{} is not a file of an earlier enrolment, and the directory would be replaced: move it away, or choose \
                         another --dir",
                        other.path().display()
                    );
                    return Err(CliError::usage(text));
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(at(&current)(error)),
        }
        files.clear()?;
        DirBuilder::new().mode(0o700).create(files.dir.join(NEW)).map_err(at(&files.dir.join(NEW)))?;
        Ok(files)
    }

    /// Removes the temporary directory.
    fn clear(&self) -> Result<(), CliError> {
        let new = self.dir.join(NEW);
        match std::fs::remove_dir_all(&new) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(at(&new)(error)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Checks certificate, key and CA, and puts them in the place of earlier ones in one step. Returns the name of the host.
    fn install(
        &self,
        issued: &IssuedCertificate,
        key: &KeyPair,
        replace: bool,
    ) -> Result<Identity, CliError> {
        let (new, current) = (self.dir.join(NEW), self.dir.join(DIR));
        let [cert, secret, ca] = [CERT, KEY, CA].map(|name| new.join(name));
        for (path, text, mode) in [
            (&cert, &issued.certificate, 0o644),
            (&secret, &key.serialize_pem(), 0o600),
            (&ca, &issued.ca, 0o644),
        ] {
            write(path, text, mode).map_err(at(path))?;
        }
        let unusable = |error| failed(format!("the certificate of the gateway cannot be used: {error}"));
        let tls = ServerTls::load(&cert, &secret, &ca).map_err(unusable)?;
        let _ = tls.check(wall_ms() / 1_000).map_err(unusable)?;
        let host: Identity = tls.identity().parse().map_err(failed)?;
        if host.holder != Holder::Host {
            return Err(failed(format!("the certificate of the gateway names {host}, which is not a host")));
        }
        if !replace {
            self.check_successor(issued, &host)?;
        }
        File::open(&new).and_then(|dir| dir.sync_all()).map_err(at(&new))?;
        let flags = if current.exists() { RenameFlags::EXCHANGE } else { RenameFlags::NOREPLACE };
        rustix::fs::renameat_with(CWD, &new, CWD, &current, flags)
            .map_err(|error| at(&current)(error.into()))?;
        File::open(&self.dir).and_then(|dir| dir.sync_all()).map_err(at(&self.dir))?;
        // The earlier files, after an exchange.
        self.clear()?;
        Ok(host)
    }

    /// Fails if the new certificate has another name or CA than the installed one: connected gateways would be refused.
    fn check_successor(&self, issued: &IssuedCertificate, host: &Identity) -> Result<(), CliError> {
        let [cert, secret, ca] = [CERT, KEY, CA].map(|name| self.dir.join(DIR).join(name));
        let Ok(former) = ServerTls::load(&cert, &secret, &ca) else { return Ok(()) };
        let same_ca = std::fs::read_to_string(&ca).is_ok_and(|text| text.trim() == issued.ca.trim());
        if former.identity() == host.to_string() && same_ca {
            return Ok(());
        }
        let what = if same_ca { "another name" } else { "another CA" };
        Err(failed(format!(
            "{} is in place, and the new certificate of {host} has {what}: gateways of the former one would be refused. Nothing here \
             was changed. To replace it, get a new token and repeat the command with --replace",
            former.identity()
        )))
    }

    /// Writes a configuration to review, unless there is one. Returns its path.
    fn configure(&self, args: &EnrolArgs, cell: &str) -> Result<Option<PathBuf>, CliError> {
        let path = self.dir.join(CONFIG);
        if path.exists() {
            return Ok(None);
        }
        let new = path.with_extension("new");
        let _ = std::fs::remove_file(&new);
        write(&new, &configuration(&self.dir, args, cell), 0o644).map_err(at(&new))?;
        let renamed = rustix::fs::renameat_with(CWD, &new, CWD, &path, RenameFlags::NOREPLACE);
        renamed.map_err(|error| at(&path)(error.into()))?;
        Ok(Some(path))
    }
}

impl Drop for HostFiles {
    fn drop(&mut self) {
        // After a failure the directory holds a key without use; the next enrolment removes it as well.
        drop(self.clear());
    }
}

fn write(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// Formats a text as a string of TOML, which has the escapes of JSON.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn files_of(dir: &Path, listen: SocketAddr) -> String {
    let path = |name: &str| quoted(&dir.join(DIR).join(name).to_string_lossy());
    format!(
        "listen = \"{listen}\"\ntls_cert = {}\ntls_key = {}\ntls_ca = {}\n",
        path(CERT),
        path(KEY),
        path(CA)
    )
}

fn tenant(args: &EnrolArgs, cell: &str) -> String {
    let user = match &args.run_as_user {
        Some(user) => format!("run_as_user = {}", quoted(user)),
        None => {
            "# User that agents run as; needed by a supervisor that runs as root.\n# run_as_user = \"agents\""
                .to_owned()
        }
    };
    format!("[[tenant]]\ncell = {}\n{user}\n", quoted(cell))
}

fn configuration(dir: &Path, args: &EnrolArgs, cell: &str) -> String {
    format!(
        "# Written by `acp-supervisor enrol`. Review it before the supervisor starts: the gateways of the cell below start agents \
         on\n# this machine. All keys: hosts.md and service.md of the manual.\n\n{}\n{}",
        files_of(dir, args.listen),
        tenant(args, cell)
    )
}

fn summary(view: &EnrolledView, dir: &Path, args: &EnrolArgs) -> String {
    let EnrolledView { identity, cell, .. } = view;
    let config = dir.join(CONFIG);
    let config = config.display();
    let check = format!("acp-supervisor doctor --config {config}");
    match &view.config {
        Some(_) => text::plain_lines(&format!(
            "This host is {identity}. Review {config}, then check it and start the supervisor:\n  {check}"
        )),
        None => text::plain_lines(&format!(
            "This host is {identity}. A supervisor with these files uses the new ones at once. Otherwise add what is missing to \
             {config}:\n\n{}\n{}\nThen check it and restart the supervisor:\n  {check}",
            files_of(dir, args.listen),
            tenant(args, cell)
        )),
    }
}

#[cfg(test)]
mod tests;
