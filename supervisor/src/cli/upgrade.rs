//! `upgrade`, and the check that the new program performs on a handover.

use super::{Address, Cli, CliError, Output, SupervisorCommand, client, client_within, json, status};
use crate::app::tenants::tenants;
use crate::config::Config;
use crate::owner::handover::dry_run::TrialAnswer;
use crate::owner::handover::image;
use crate::server::remote::RemoteAddress;
use crate::store::Store;
use acp_shared::conn::ConnError;
use acp_shared::protocol::{LastUpgrade, Reply, Request};
use acp_shared::report::with_causes;
use clap::{CommandFactory, FromArgMatches};
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::Instant;

/// Maximum time until the supervisor has checked the new program: trial run, pending spawns, and check of the
/// handover.
const PROVED: Duration = Duration::from_secs(60);
/// Maximum time until the new program answers.
const ANSWERS: Duration = Duration::from_secs(30);
const ASK_AGAIN: Duration = Duration::from_millis(20);

pub(super) async fn run(
    address: &Address,
    state_dir: &Path,
    program: Option<PathBuf>,
    out: &mut Output,
) -> Result<(), CliError> {
    let before = status::ask(&mut client(address).await?).await?.last_upgrade.map(|last| last.at_ms);
    let mut connection = client_within(address, PROVED).await?;
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let program = program.map(|path| text(&path));
    match connection.call(Request::Upgrade { program, state_dir: text(state_dir) }).await {
        Ok(Reply::Done) => {}
        Ok(_) => return Err(CliError::OutOfTurn),
        Err(error) => return Err(error.into()),
    }
    let until = Instant::now() + ANSWERS;
    let last = loop {
        let asked = async { status::ask(&mut client(address).await?).await };
        match asked.await.map(|status| status.last_upgrade) {
            Ok(Some(last)) if Some(last.at_ms) != before => break last,
            Err(error) if !may_be_upgrading(&error) => return Err(error),
            Ok(_) | Err(_) => {}
        }
        if Instant::now() >= until {
            return Err(CliError::NoAnswer);
        }
        tokio::time::sleep(ASK_AGAIN).await;
    };
    if let Some(why) = last.error {
        return Err(CliError::FellBack(why));
    }
    if out.is_json() {
        Ok(out.data("upgrade", &json::upgrade(&last))?)
    } else {
        Ok(out.line(&self::text(&last))?)
    }
}

/// True if the error may be caused by the upgrade in progress. The socket exists throughout: new connections
/// wait in its backlog.
fn may_be_upgrading(error: &CliError) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, NotFound};
    match error {
        CliError::Connect { source: ConnError::Io(error), .. } => {
            !matches!(error.kind(), NotFound | ConnectionRefused)
        }
        CliError::Connect { source, .. } | CliError::Call(source) => {
            matches!(source, ConnError::Closed | ConnError::Io(_) | ConnError::Refused(_))
        }
        _ => false,
    }
}

/// Formats an upgrade for people.
pub(super) fn text(last: &LastUpgrade) -> String {
    let LastUpgrade { from_version, to_version, leases, pause_ms, .. } = last;
    match &last.error {
        None => format!("{from_version} to {to_version}; {leases} leases kept, paused for {pause_ms} ms"),
        Some(why) => format!("still {from_version}: {why}"),
    }
}

/// Reads a handover from standard input and prints proof that this program could start with `args` and resume
/// from it.
pub(super) fn check(args: Vec<OsString>, out: &mut Output) -> Result<(), CliError> {
    let (_, summary) =
        image::read(std::io::stdin().as_fd()).map_err(|error| CliError::Handover(with_causes(&error)))?;
    let all = std::iter::once(OsString::from("acp-supervisor")).chain(args);
    let matches = Cli::command().try_get_matches_from(all);
    let cli = matches.and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = cli.map_err(|error| CliError::Handover(error.to_string()))?;
    let SupervisorCommand::Serve { config, .. } = &cli.verb else {
        return Err(CliError::Handover("the arguments do not start `serve`".to_owned()));
    };
    let own_uid = rustix::process::geteuid().as_raw();
    let config = Config::load(config.as_deref())?;
    tenants(&config, own_uid).map_err(crate::app::AppError::from)?;
    RemoteAddress::load(&config).map_err(crate::app::AppError::from)?;
    Store::check(&cli.global.state_dir()?).map_err(crate::app::AppError::from)?;
    let proof = serde_json::to_value(TrialAnswer::of(summary)).map_err(std::io::Error::from)?;
    Ok(out.json_line(&proof)?)
}
