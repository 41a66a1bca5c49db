//! `--mcp-config FILE` and `--add-dir DIR`: MCP servers and additional directories of a new session.

use crate::cli::config::read_bounded;
use crate::cli::usage;
use acp_core::failure::Failure;
use acp_core::mcp::McpServers;
use acp_shared::redact::hide_value;
use clap::Args;
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// Maximum size of a file of MCP servers, in bytes.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Flags of verbs that start a session.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct GivenArgs {
    /// JSON file with MCP servers for the agent: {"mcpServers": {NAME: {"command": "PROGRAM"}}}
    #[arg(long, value_name = "FILE")]
    mcp_config: Option<PathBuf>,
    /// Additional directory for the session; may be repeated
    #[arg(long = "add-dir", value_name = "DIR")]
    add_dirs: Vec<PathBuf>,
}

/// Format of the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct McpFile {
    #[serde(rename = "mcpServers")]
    mcp_servers: McpServers,
}

impl GivenArgs {
    /// True if none of the flags is given.
    pub(crate) fn is_empty(&self) -> bool {
        self.mcp_config.is_none() && self.add_dirs.is_empty()
    }

    /// Reads the servers of the file, and makes the directories absolute.
    ///
    /// # Errors
    /// `USAGE`: a file that cannot be read, or a directory that is not UTF-8.
    pub(crate) fn read(&self) -> Result<(McpServers, Vec<String>), Failure> {
        let servers = self.mcp_config.as_deref().map(servers_of).transpose()?.unwrap_or_default();
        let directories = self.add_dirs.iter().map(|dir| absolute(dir)).collect::<Result<_, _>>()?;
        Ok((servers, directories))
    }
}

fn servers_of(path: &Path) -> Result<McpServers, Failure> {
    let wrong = |text: String| usage(format!("{}: {text}", path.display()));
    let text = read_bounded(path, FILE_BYTES_MAX).map_err(|error| wrong(error.to_string()))?;
    let file: McpFile = serde_json::from_str(&text).map_err(|error| wrong(hide_value(&error.to_string())))?;
    Ok(file.mcp_servers)
}

/// Returns the current directory.
///
/// # Errors
/// `USAGE`.
pub(crate) fn current_dir() -> Result<PathBuf, Failure> {
    std::env::current_dir().map_err(|error| usage(format!("cannot determine the current directory: {error}")))
}

/// Makes a directory absolute, relative to the current one.
///
/// # Errors
/// `USAGE`.
pub(crate) fn absolute(dir: &Path) -> Result<String, Failure> {
    let asked = std::path::absolute(dir).map_err(|error| usage(format!("{}: {error}", dir.display())))?;
    asked.to_str().map(str::to_owned).ok_or_else(|| usage(format!("{} is not UTF-8", asked.display())))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[test]
    fn mcp_config_file_is_parsed_or_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mcp.json");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            GivenArgs { mcp_config: Some(path.clone()), ..GivenArgs::default() }.read()
        };
        let (servers, _) =
            read(r#"{"mcpServers": {"files": {"command": "mcp", "env": {"A": "b"}}}}"#).unwrap();
        assert_eq!(servers["files"].command.as_deref(), Some("mcp"));
        assert!(read(r#"{"mcpServers": {}}"#).unwrap().0.is_empty());
        for (text, want) in [
            ("{", "EOF"),
            ("{}", "mcpServers"),
            (r#"{"servers": {}}"#, "servers"),
            (r#"{"mcpServers": {"a": {"cmd": "x"}}}"#, "cmd"),
        ] {
            let failure = read(text).unwrap_err();
            assert!(failure.message.contains(want) && failure.message.contains("mcp.json"), "{failure:?}");
        }
        let leaking =
            read(r#"{"mcpServers": {"a": {"command": "c", "args": "--token=hidden"}}}"#).unwrap_err();
        assert!(leaking.message.contains("expected a sequence"), "{leaking:?}");
        assert!(!leaking.message.contains("hidden"), "{leaking:?}");
        let absent = GivenArgs { mcp_config: Some("/none/mcp.json".into()), ..GivenArgs::default() };
        assert!(absent.read().unwrap_err().message.contains("/none/mcp.json"));
    }
}
