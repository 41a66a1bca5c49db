//! `hosts enrol`: prints a one-time token, waits for the host that presents it, and issues the certificate of that host.

use super::authority::{Authority, AuthorityFiles, WantedNames};
use super::enrolment::{Enrolment, EnrolmentEnd};
use crate::cli::config::{ConfigArgs, read, toml_string};
use crate::cli::output::{CliResult, Out, now_ms, print_message};
use crate::cli::stop_signals::StopSignals;
use crate::cli::{GlobalArgs, inside, usage};
use acp_core::command::duration;
use acp_core::config::remote::{LOCAL, is_name};
use acp_core::failure::Failure;
use acp_core::timeouts::format_duration;
use acp_shared::codes::Code;
use acp_shared::conn::TlsListener;
use acp_shared::enrol::{PORT, SUPERVISOR_PORT};
use clap::Args;
use serde::Serialize;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Maximum and default validity of a token.
const VALID_FOR_MAX: Duration = Duration::from_secs(600);
/// Maximum number of notes about refused connections: strangers must not fill the terminal.
const NOTES_MAX: u32 = 20;

const EXAMPLES: &str = "\
Examples:
  acp-gateway hosts enrol big1                     print a command for the new host, and wait for it
  acp-gateway hosts enrol big1 --listen 10.0.0.5:7421

Run it as the user of the gateway, which need not run. It makes the CA of this plane and the certificate of this gateway
if they are missing, listens until the host came, and prints what to add to the configuration. The token is valid once, for
ten minutes, and only while this command waits: Ctrl-C ends it. On the new host, which asks for the token:
  acp-supervisor enrol --gateway ADDRESS:7421

Certificates are valid for 90 days: run both commands again to renew one. Who has the key of the CA
(remote.ca_key, tls/ca.key in the state directory) can pose as any gateway and host of the plane.";

/// `hosts enrol`
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct EnrolArgs {
    /// Name of the host, as in remote.hosts.NAME: lower-case letters, digits and hyphens
    name: String,
    /// Address and port for the new host
    #[arg(long, value_name = "ADDRESS", default_value_t = SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT)))]
    listen: SocketAddr,
    /// Time until the token expires, at most 10m
    #[arg(long, value_name = "TIME", default_value = "10m")]
    valid_for: String,
    /// Name of the plane, if no certificate names it [default: acp]
    #[arg(long, value_name = "NAME")]
    plane: Option<String>,
    /// Id of the cell, if no certificate names it [default: acp.control_plane.postgres.cell, which is main by default]
    #[arg(long, value_name = "ID")]
    cell: Option<String>,
    #[command(flatten)]
    config: ConfigArgs,
}

/// JSON output of `hosts enrol` while it waits for the host.
#[derive(Serialize)]
struct TokenOutput {
    event: &'static str,
    identity: String,
    /// Address and port of this command.
    gateway: String,
    token: String,
    valid_for_s: u64,
    /// Files that were made.
    made: Vec<PathBuf>,
}

/// JSON output of `hosts enrol` after the certificate was issued.
#[derive(Serialize)]
struct EnrolledOutput {
    event: &'static str,
    identity: String,
    /// Address that the host came from.
    address: IpAddr,
    /// True if the host has confirmed that its files are written.
    is_installed: bool,
}

/// `hosts enrol`
pub(super) async fn run(global: &GlobalArgs, args: &EnrolArgs, out: &mut Out) -> CliResult {
    if !is_name(&args.name) || args.name == LOCAL {
        let text =
            format!("{:?} is not the name of a host: use lower-case letters, digits and hyphens", args.name);
        return Err(usage(text).into());
    }
    let valid_for = valid_for(&args.valid_for)?;
    let state_dir = global.state_dir()?;
    check_owner(&state_dir)?;
    let mut stop = StopSignals::listen()?;
    let (loaded, _) = read(&state_dir, &args.config, None)?;
    let config = &loaded.config;
    let files = AuthorityFiles::new(&config.remote, &state_dir);
    let cell = args.cell.clone().unwrap_or_else(|| config.acp.control_plane.postgres.cell.clone());
    let now_seconds = now_ms() / 1_000;
    let has_hosts = !config.remote.hosts.is_empty();
    let wanted = WantedNames { plane: args.plane.clone(), cell, has_hosts };
    let authority = Authority::open(files, &wanted, now_seconds)?;
    let listener = TlsListener::bind(args.listen).await;
    let listener = listener.map_err(|error| usage(format!("--listen {}: {error}", args.listen)))?;
    let at = listener.address().map_err(|error| inside("cannot read the address", &error))?;
    let (enrolment, token) = Enrolment::new(authority, &args.name, valid_for, now_seconds)?;
    let output = TokenOutput {
        event: "waiting",
        identity: enrolment.host().to_string(),
        gateway: address_for_host(at),
        token: token.expose(),
        valid_for_s: valid_for.as_secs(),
        made: enrolment.authority().made.clone(),
    };
    drop(token);
    announce(&output, &args.name, out)?;
    let again = global.advise(&format!("hosts enrol {}", args.name), args.config.config.as_deref());
    let mut notes = 0;
    let note = |address: SocketAddr, text: String| {
        notes += 1;
        if notes <= NOTES_MAX {
            print_message(&format!("connection from {address} ended: {text}"));
        }
        if notes == NOTES_MAX {
            print_message("further connections that end are not shown");
        }
    };
    let end = tokio::select! {
        end = Arc::clone(&enrolment).serve(&listener, note) => end,
        () = stop.recv() => {
            let why = match enrolment.is_used() {
                true => "the command was stopped after the certificate was issued; look at the host",
                false => "the command was stopped; no certificate was issued",
            };
            return Err(ended(why, &again).into());
        }
    };
    match end {
        EnrolmentEnd::Expired => {
            Err(ended("the token has expired; no certificate was issued", &again).into())
        }
        EnrolmentEnd::Issued { address, is_installed } => {
            let done = EnrolledOutput {
                event: "enrolled",
                identity: enrolment.host().to_string(),
                address,
                is_installed,
            };
            let is_configured = config.remote.hosts.contains_key(&args.name);
            out.show(&done, |done| enrolled(done, &args.name, enrolment.authority().files(), is_configured))
        }
    }
}

/// Prints the command for the new host, the token, and what was made. Arguments of a command are visible to all users of a
/// machine, so the token is none.
fn announce(output: &TokenOutput, name: &str, out: &mut Out) -> CliResult {
    for path in &output.made {
        out.note(&format!("Made {}.", path.display()))?;
    }
    out.note(&format!(
        "Run this on {} within {}, and paste the token there. Ctrl-C ends it.",
        name,
        format_duration(output.valid_for_s * 1_000)
    ))?;
    out.show(output, |output| format!("acp-supervisor enrol --gateway {}\n{}", output.gateway, output.token))
}

fn ended(why: &str, again: &str) -> Failure {
    let text = format!("{why}. `{again}` prints a new token");
    Failure::new(Code::Runtime, text).origin("client")
}

fn valid_for(text: &str) -> Result<Duration, Failure> {
    match duration::parse(text) {
        Ok(Some(ms)) if ms >= 1_000 && Duration::from_millis(ms) <= VALID_FOR_MAX => {
            Ok(Duration::from_millis(ms))
        }
        Ok(_) => {
            let max = VALID_FOR_MAX.as_secs() / 60;
            Err(usage(format!("--valid-for {text}: must be 1 second to {max} minutes")))
        }
        Err(why) => Err(usage(format!("--valid-for: {why}"))),
    }
}

/// Fails unless the state directory belongs to this user: the gateway could not read files of another user.
fn check_owner(state_dir: &Path) -> Result<(), Failure> {
    let own = rustix::process::geteuid().as_raw();
    match std::fs::metadata(state_dir) {
        Ok(meta) if meta.uid() != own => Err(usage(format!(
            "{} belongs to the user with id {}, not to this one ({own}): run this as that user, for example with `sudo -u`",
            state_dir.display(),
            meta.uid()
        ))),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Returns the address for `--gateway`: that of the listener, or the name of this machine if it listens at all addresses.
fn address_for_host(at: SocketAddr) -> String {
    if !at.ip().is_unspecified() {
        return at.to_string();
    }
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{name}:{}", at.port())
}

fn enrolled(done: &EnrolledOutput, name: &str, files: &AuthorityFiles, is_configured: bool) -> String {
    let state = match done.is_installed {
        true => format!("{} is enrolled, from {}.", done.identity, done.address),
        false => format!(
            "A certificate of {} was issued to {}, which has not confirmed that it is installed: look there, and run this \
             command again if `acp-supervisor enrol` failed.",
            done.identity, done.address
        ),
    };
    if is_configured {
        return state;
    }
    let AuthorityFiles { cert, key, ca, .. } = files;
    let address = SocketAddr::new(done.address, SUPERVISOR_PORT);
    let [cert, key, ca] = [cert, key, ca].map(|path| toml_string(&path.display().to_string()));
    format!(
        "{state}\n\nAdd what is missing of this to the configuration, and restart the gateway:\n\n[remote]\ncert = {cert}\nkey = \
         {key}\nca = {ca}\n\n[remote.hosts.{name}]\naddress = \"{address}\"\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_valid_for_ten_minutes_at_most() {
        for (text, want) in
            [("10m", Some(600)), ("1s", Some(1)), ("11m", None), ("999ms", None), ("off", None), ("x", None)]
        {
            assert_eq!(valid_for(text).ok().map(|it| it.as_secs()), want, "{text}");
        }
    }

    #[test]
    fn enrolled_host_is_shown_as_configuration() {
        let files = AuthorityFiles {
            cert: "/s/tls/cell.crt".into(),
            key: "/s/tls/cell.key".into(),
            ca: "/s/tls/ca.crt".into(),
            ca_key: "/s/tls/ca.key".into(),
        };
        let done = EnrolledOutput {
            event: "enrolled",
            identity: "acp://acp/host/big1".to_owned(),
            address: Ipv4Addr::new(10, 0, 0, 7).into(),
            is_installed: true,
        };
        let text = enrolled(&done, "big1", &files, false);
        for want in ["cert = \"/s/tls/cell.crt\"", "[remote.hosts.big1]", "address = \"10.0.0.7:7420\""] {
            assert!(text.contains(want), "{want} is not in\n{text}");
        }
        assert_eq!(enrolled(&done, "big1", &files, true), "acp://acp/host/big1 is enrolled, from 10.0.0.7.");
    }
}
