//! `config show | check`, and reading the configuration for other verbs.

use crate::cli::output::{CliResult, Out, table};
use crate::cli::{GlobalArgs, inside, usage};
use acp_core::config::Channels;
use acp_core::config::load::{Inputs, LoadedConfig, load, nearest_source};
use acp_core::config::source::shown;
use acp_core::failure::Failure;
use acp_core::policy::{self, PolicyScope, effective_policy};
use acp_shared::codes::Code;
use acp_shared::ids::AgentName;
use acp_store::schema::DB_FILE;
use clap::{Args, Subcommand};
use serde::Serialize;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// Name of the configuration file in the state directory, used if no other file is named.
const FILE: &str = "gateway.toml";
/// Maximum size of a configuration file, in bytes.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Location of the configuration.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ConfigArgs {
    /// Configuration file [default: gateway.toml in the state directory, if there is one]
    #[arg(long, value_name = "FILE", env = "ACP_GATEWAY_CONFIG")]
    pub(crate) config: Option<PathBuf>,
}

impl ConfigArgs {
    /// Location for a command without the flag: from the environment.
    pub(crate) fn of_environment() -> Self {
        Self {
            config: std::env::var_os("ACP_GATEWAY_CONFIG").filter(|file| !file.is_empty()).map(PathBuf::from),
        }
    }
}

/// `config show`
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Show the values that are effective in this channel
    #[arg(long, value_name = "CHANNEL", value_parser = Channels::NAMES)]
    channel: Option<String>,
    /// Show the values that are effective for this account of the channel
    #[arg(long, value_name = "ACCOUNT", requires = "channel")]
    account: Option<String>,
    /// Show the values that are effective for this agent
    #[arg(long, value_name = "AGENT")]
    agent: Option<AgentName>,
}

/// `config …`
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print every value and its source; with a channel, an account or an agent, the effective values
    Show(ShowArgs),
    /// Check if the configuration is valid
    Check(ConfigArgs),
}

/// Returns the path of the configuration file: the one that was read, or else the default path.
pub(crate) fn file_of(state_dir: &Path, read: Option<&Path>) -> PathBuf {
    read.map_or_else(|| state_dir.join(FILE), Path::to_path_buf)
}

/// Reads the configuration of a state directory. A file named on the command line must exist.
///
/// # Errors
/// `CONFIG_INVALID`, with all problems of the configuration.
pub(crate) fn read(
    state_dir: &Path,
    args: &ConfigArgs,
    supervisor_socket: Option<&Path>,
) -> Result<(LoadedConfig, Option<PathBuf>), Failure> {
    let invalid = |message: String| Failure::new(Code::ConfigInvalid, message).origin("client");
    let named = args.config.is_some();
    let path = args.config.clone().unwrap_or_else(|| state_dir.join(FILE));
    let text = match read_bounded(&path, FILE_BYTES_MAX) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound && !named => None,
        Err(error) => return Err(invalid(format!("{}: {error}", path.display()))),
    };
    let env = environment();
    let mut flags: Vec<(&[&str], &str, String)> = Vec::new();
    if let Some(socket) = supervisor_socket {
        let socket = std::path::absolute(socket).map_err(|error| usage(error.to_string()))?;
        flags.push((&["supervisor", "socket"], "--supervisor-socket", socket.to_string_lossy().into_owned()));
    }
    let file = text.as_deref().map(|text| (path.as_path(), text));
    let loaded =
        load(Inputs { file, env: &env, flags: &flags }).map_err(|error| invalid(error.to_string()))?;
    store_stays(&loaded, state_dir).map_err(invalid)?;
    let path = text.is_some().then_some(path);
    Ok((loaded, path))
}

/// Refuses any other path for the database than the state directory: it has to stay with its lock and
/// identity files, and sessions must not be searched for in the wrong place.
fn store_stays(loaded: &LoadedConfig, state_dir: &Path) -> Result<(), String> {
    let here = state_dir.join(DB_FILE);
    match &loaded.config.acp.control_plane.store_path {
        Some(wanted) if *wanted != here => {
            let key = ["acp", "control_plane", "store_path"].map(str::to_owned);
            Err(format!(
                "{}: acp.control_plane.store_path is {}, but the database of this state directory must be {}, \
                 in the directory of its lock. Remove the key, and choose the location with --state-dir",
                nearest_source(&key, &loaded.sources),
                wanted.display(),
                here.display()
            ))
        }
        _ => Ok(()),
    }
}

/// Formats a text as a string of TOML, which has the escapes of JSON.
pub(crate) fn toml_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Reads a text file of at most `bytes_max` bytes.
pub(crate) fn read_bounded(path: &Path, bytes_max: u64) -> io::Result<String> {
    let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(invalid(format!("larger than {bytes_max} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| invalid(error.to_string()))
}

/// Returns the environment of this process without variables that are not UTF-8.
pub(crate) fn environment() -> Vec<(String, String)> {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    std::env::vars_os().filter_map(text).collect()
}

#[derive(Debug, Serialize)]
struct CheckOutput {
    ok: bool,
    file: Option<PathBuf>,
}

/// `config …`
pub(crate) fn run(global: &GlobalArgs, verb: &ConfigCommand, out: &mut Out) -> CliResult {
    let state_dir = global.state_dir()?;
    match verb {
        ConfigCommand::Check(args) => {
            let (_, file) = read(&state_dir, args, None)?;
            out.show(&CheckOutput { ok: true, file }, |checked| match &checked.file {
                Some(file) => format!("{} is valid.", file.display()),
                None => "There is no configuration file, and the settings in the environment are valid."
                    .to_owned(),
            })
        }
        ConfigCommand::Show(args) => {
            let (loaded, _) = read(&state_dir, &args.config, None)?;
            if args.channel.is_some() || args.agent.is_some() {
                return show_effective(&loaded, args, out);
            }
            let rows = shown(&loaded.config, &loaded.sources)
                .map_err(|error| inside("cannot show the configuration", &error))?;
            out.show(&rows, |rows| {
                let cells = rows
                    .iter()
                    .map(|row| vec![row.key.clone(), row.value.to_string(), row.source.to_string()]);
                table(&["KEY", "VALUE", "FROM"], cells)
            })
        }
    }
}

fn show_effective(loaded: &LoadedConfig, args: &ShowArgs, out: &mut Out) -> CliResult {
    let scope = PolicyScope {
        channel: args.channel.clone(),
        account: args.account.clone(),
        agent: args.agent.clone(),
    };
    let rows = policy::list_settings(&effective_policy(loaded, &scope))
        .map_err(|error| inside("cannot show the effective policy", &error))?;
    out.show(&rows, |rows| {
        let cells = rows.iter().map(|row| {
            let note = row.note.clone().unwrap_or_default();
            vec![row.setting.clone(), row.value.to_string(), row.key.clone(), row.source.clone(), note]
        });
        table(&["EFFECTIVE", "VALUE", "BY", "FROM", "NOTE"], cells)
    })
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
