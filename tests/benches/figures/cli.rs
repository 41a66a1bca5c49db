//! A turn through the command line: a process that is started, sends the prompt and prints event lines.

use crate::turn::{Dialect, Turn, Watch};
use acp_tests::world::World;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

/// Runs `acp-gateway prompt KEY TEXT --json`; times count from before the process is started.
///
/// # Panics
/// When the turn fails.
pub(crate) fn prompt(world: &World, gateway: &str, key: &str, text: &str) -> Turn {
    let mut command = world.gateway_verb(gateway, &["prompt", key, text]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut watch = Watch::begin(Dialect::Events);
    let mut child = command.spawn().unwrap_or_else(|e| panic!("cannot start {command:?}: {e}"));
    let stdout = child.stdout.take().unwrap_or_else(|| panic!("no stdout of {command:?}"));
    let mut stdout = BufReader::with_capacity(64 * 1024, stdout);
    let mut ended = None;
    let mut line = String::new();
    while stdout.read_line(&mut line).unwrap_or_else(|e| panic!("the output of {command:?}: {e}")) > 0 {
        ended = ended.or(watch.line(&line));
        line.clear();
    }
    let status = child.wait().unwrap_or_else(|e| panic!("cannot wait for {command:?}: {e}"));
    assert!(status.success(), "{command:?} ended with {status}");
    ended.unwrap_or_else(|| panic!("{command:?} printed no end of the turn"))
}
