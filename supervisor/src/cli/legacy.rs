//! `legacy`: process records from before leases existed. Needs no supervisor.

use super::error::CliError;
use super::output::Output;
use super::text;
use crate::lease::legacy::{self, LegacyLine};
use crate::sys::linux::Linux;
use clap::Subcommand;
use std::path::PathBuf;
use std::time::Duration;

/// Subcommands for process records from before leases existed.
#[derive(Debug, Subcommand)]
pub(super) enum LegacyCommand {
    /// Show the processes of each record, and what would be done
    Check {
        /// JSON: a record, an array of them, or an object with them under records, sessions or leases
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// End the recorded processes that are verified
    #[command(group = clap::ArgGroup::new("how").required(true))]
    Reap {
        /// Same format as for check
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Only show what would be done, and the reasons
        #[arg(long, group = "how")]
        dry_run: bool,
        /// End the processes
        #[arg(long, group = "how")]
        yes: bool,
        /// Time between SIGTERM and SIGKILL
        #[arg(long, value_name = "MS", default_value_t = 2_000)]
        grace_ms: u64,
    },
}

pub(super) fn run(verb: &LegacyCommand, out: &mut Output) -> Result<(), CliError> {
    let (file, grace) = match verb {
        LegacyCommand::Check { file } | LegacyCommand::Reap { file, dry_run: true, .. } => (file, None),
        LegacyCommand::Reap { file, grace_ms, .. } => (file, Some(Duration::from_millis(*grace_ms))),
    };
    let cannot = |source| CliError::Records { path: file.clone(), source };
    let lines = legacy::run(&Linux::new(), &legacy::read(file).map_err(cannot)?, grace);
    let lines = lines.map_err(cannot)?;
    if out.is_json() {
        return Ok(out.data("legacy", &lines)?);
    }
    if lines.is_empty() {
        return Ok(out.line("no records")?);
    }
    for line in &lines {
        out.line(&text::plain(&in_words(line)))?;
    }
    Ok(())
}

fn in_words(line: &LegacyLine) -> String {
    let list = |pids: &[i32]| pids.iter().map(i32::to_string).collect::<Vec<_>>().join(" ");
    let pid = line.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
    let session = if line.session.is_empty() { "-" } else { &line.session };
    let tree = if line.tree.is_empty() { String::new() } else { format!("; tree: {}", list(&line.tree)) };
    let left = if line.survivors.is_empty() {
        String::new()
    } else {
        format!("; survivors: {}", list(&line.survivors))
    };
    format!("{session}  {pid}  {}  {}  {}{tree}{left}", line.verdict, line.action, line.why)
}
