//! `legacy`: records from before there were leases. Needs no supervisor.

use super::{CliError, LegacyVerb, Output};
use crate::legacy::{self, Line};
use crate::sys::linux::Linux;
use std::path::Path;
use std::time::Duration;

pub(super) fn run(verb: &LegacyVerb, out: &mut Output) -> Result<(), CliError> {
    let (file, grace) = match verb {
        LegacyVerb::Check { file } | LegacyVerb::Reap { file, dry_run: true, .. } => (file, None),
        LegacyVerb::Reap { file, grace_ms, .. } => (file, Some(Duration::from_millis(*grace_ms))),
    };
    let cannot = |source| CliError::Records { path: file.clone(), source };
    let lines = legacy::run(&Linux::new(), &legacy::read(Path::new(file)).map_err(cannot)?, grace);
    let lines = lines.map_err(cannot)?;
    if out.is_json() {
        return Ok(out.value(&lines)?);
    }
    if lines.is_empty() {
        return Ok(out.line("There are no records.")?);
    }
    for line in &lines {
        out.line(&in_words(line))?;
    }
    Ok(())
}

fn in_words(line: &Line) -> String {
    let list = |pids: &[i32]| pids.iter().map(i32::to_string).collect::<Vec<_>>().join(" ");
    let pid = line.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
    let session = if line.session.is_empty() { "-" } else { &line.session };
    let tree = if line.tree.is_empty() { String::new() } else { format!("; tree: {}", list(&line.tree)) };
    let left = if line.survivors.is_empty() {
        String::new()
    } else {
        format!("; still there: {}", list(&line.survivors))
    };
    format!("{session}  {pid}  {}  {}  {}{tree}{left}", line.verdict, line.action, line.why)
}
