//! Runs `acpx` as an orchestrator does.

use acp_tests::cli::{Output, RunningCommand, run};
use acp_tests::house::{AGENT, GATEWAY, House};
use acp_tests::wait::LONG;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A client in one directory.
pub(crate) struct Client<'a> {
    pub(crate) house: &'a House,
    pub(crate) dir: PathBuf,
    /// Agent; `None` for the default one.
    pub(crate) agent: Option<&'static str>,
}

impl<'a> Client<'a> {
    /// Client in the working directory of the house, with the scripted agent.
    pub(crate) fn new(house: &'a House) -> Self {
        Self { house, dir: house.world.dir("work/project"), agent: Some(AGENT) }
    }

    /// Client in another directory.
    pub(crate) fn at(&self, relative: &str) -> Self {
        Self { dir: self.house.world.dir(relative), ..Self::new(self.house) }
    }

    /// Client with another agent.
    pub(crate) fn with_agent(&self, agent: Option<&'static str>) -> Self {
        Self { house: self.house, dir: self.dir.clone(), agent }
    }

    /// Command line in a format.
    pub(crate) fn command(&self, global: &[&str], args: &[&str]) -> Command {
        let mut command = self.house.world.command("acp-gateway");
        command.arg("--state-dir").arg(self.house.world.path(GATEWAY)).arg("acpx");
        command.args(global).arg("--cwd").arg(&self.dir).args(self.agent).args(args);
        command
    }

    fn strict(&self, global: &[&str], args: &[&str]) -> Command {
        self.command(&[&["--format", "json", "--json-strict"], global].concat(), args)
    }

    /// Runs a command with `--json-strict`: standard error stays empty, and every line is JSON.
    pub(crate) fn with(&self, global: &[&str], args: &[&str]) -> Output {
        let output = run(&mut self.strict(global, args), LONG);
        assert_eq!(output.stderr, "", "{output:?}");
        let _ = output.lines();
        output
    }

    /// As [`Client::with`], without global flags.
    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.with(&[], args)
    }

    /// Runs a command that prints one object and succeeds.
    pub(crate) fn object(&self, args: &[&str]) -> Value {
        self.run(args).ok().json()
    }

    /// Runs a command for people.
    pub(crate) fn text(&self, format: &str, args: &[&str]) -> Output {
        run(&mut self.command(&["--format", format], args), LONG)
    }

    /// Starts a command whose lines are read one by one.
    pub(crate) fn follow(&self, global: &[&str], args: &[&str]) -> RunningCommand {
        RunningCommand::start(&mut self.strict(global, args))
    }

    /// Key of the session without a name, created if missing.
    pub(crate) fn ensure(&self) -> String {
        let ensured = self.object(&["sessions", "ensure"]);
        ensured["id"].as_str().unwrap_or_else(|| panic!("no id: {ensured}")).to_owned()
    }
}

/// Checks that the lines of one turn are in the envelope, numbered without gaps, and end in one result or error. Returns the
/// types.
pub(crate) fn check_turn(lines: &[Value], key: &str) -> Vec<String> {
    let first = lines.first().unwrap_or_else(|| panic!("no lines"));
    for (line, number) in lines.iter().zip(1_u64..) {
        assert_eq!(line["jsonrpc"], "2.0", "{line}");
        assert_eq!(line["eventVersion"], 1, "{line}");
        assert_eq!(line["sessionId"], key, "{line}");
        assert_eq!(line["requestId"], first["requestId"], "{line}");
        assert!(line["requestId"].is_string(), "{line}");
        assert_eq!(line["seq"], number, "{line}");
        assert_eq!(line["stream"], "prompt", "{line}");
    }
    let types: Vec<String> =
        lines.iter().map(|line| line["type"].as_str().unwrap_or_default().to_owned()).collect();
    let ends = types.iter().filter(|kind| *kind == "result" || *kind == "error").count();
    assert_eq!(ends, 1, "{types:?}");
    assert!(matches!(types.last().map(String::as_str), Some("result" | "error")), "{types:?}");
    types
}

/// Text that the agent said in these lines.
pub(crate) fn said(lines: &[Value]) -> String {
    lines.iter().filter(|line| line["type"] == "text").filter_map(|line| line["content"].as_str()).collect()
}

/// Links the gateway's program under the name `acpx`, and returns a command of it.
pub(crate) fn linked(house: &House, at: &Path) -> Command {
    let program = house.world.command("acp-gateway");
    std::os::unix::fs::symlink(program.get_program(), at).unwrap_or_else(|e| panic!("{e}"));
    let mut command = Command::new(at);
    command.env_clear().envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env("ACP_GATEWAY_STATE_DIR", house.world.path(GATEWAY));
    command
}
