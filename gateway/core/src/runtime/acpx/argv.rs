//! Argument vectors of acpx. The agent is always a command: names can be redefined by a repository's configuration, and
//! built-in names fetch packages. Every setting that a repository's `.acpxrc.json` could make is made here.

use crate::config::{NonInteractive, PermissionMode};
use serde::{Deserialize, Serialize};

/// Time limit of a command in seconds, longer than any turn: a repository's configuration could set a shorter one. acpx
/// accepts at most 2^31 ms.
const TIMEOUT_S: &str = "2000000";

/// Settings that every command of a session has in common.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Invocation {
    /// Working directory of the session.
    pub(super) cwd: String,
    /// Command of the agent; part of the key under which acpx finds a session.
    pub(super) agent: String,
    /// Path of the file with the MCP servers.
    pub(super) mcp_file: String,
    /// Flag of the permission mode.
    pub(super) permission: String,
    /// Value of `--non-interactive-permissions`.
    pub(super) non_interactive: String,
    /// Name of the session.
    pub(super) name: String,
}

impl Invocation {
    /// Returns the arguments of a command: the common ones, and those of the verb.
    pub(super) fn argv(&self, verb: &[&str]) -> Vec<String> {
        let common = [
            "--format",
            "json",
            "--json-strict",
            "--cwd",
            &self.cwd,
            "--agent",
            &self.agent,
            "--mcp-config",
            &self.mcp_file,
            "--no-fs",
            "--no-terminal",
            "--ttl",
            "0",
            "--timeout",
            TIMEOUT_S,
            "--auth-policy",
            "skip",
            &self.permission,
            "--non-interactive-permissions",
            &self.non_interactive,
        ];
        common.into_iter().chain(verb.iter().copied()).map(str::to_owned).collect()
    }

    /// Returns the arguments of the watch command.
    pub(super) fn watch(&self, cursor: Option<&str>) -> Vec<String> {
        let mut argv = self.argv(&["sessions", "watch", "-s", &self.name]);
        argv.extend(cursor.into_iter().flat_map(|cursor| ["--cursor".to_owned(), cursor.to_owned()]));
        argv
    }
}

/// Returns the flag of a permission mode. acpx asks on a terminal, which a queue owner has not: what a person would be
/// asked is decided by `--non-interactive-permissions`.
pub(super) const fn permission_flag(mode: PermissionMode) -> &'static str {
    match mode {
        PermissionMode::ApproveAll => "--approve-all",
        PermissionMode::ApproveReads | PermissionMode::Ask => "--approve-reads",
        PermissionMode::DenyAll => "--deny-all",
    }
}

/// Returns the value of `--non-interactive-permissions`.
pub(super) const fn non_interactive_value(policy: NonInteractive) -> &'static str {
    match policy {
        NonInteractive::Deny => "deny",
        NonInteractive::Fail => "fail",
    }
}

/// Returns the command of an agent with its own home directory as one text, which acpx splits like a shell without
/// expansion.
pub(super) fn agent_command(home: &str, agent: &[String]) -> String {
    let home = format!("HOME={home}");
    ["env", &home]
        .into_iter()
        .chain(agent.iter().map(String::as_str))
        .map(quote)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Quotes a word unless it is plain. Within single quotes nothing is special but the quote itself.
fn quote(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@+%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acpx_contract::split_command;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn command_is_split_into_its_words(home in "/[^\0]{0,20}", agent in prop::collection::vec("[^\0]{0,20}", 1..5)) {
            let mut want = vec!["env".to_owned(), format!("HOME={home}")];
            want.extend(agent.iter().cloned());
            prop_assert_eq!(split_command(&agent_command(&home, &agent)), Some(want));
        }
    }

    #[test]
    fn plain_words_are_not_quoted() {
        let agent = ["/opt/a b/agent".to_owned(), "--acp".to_owned(), "it's".to_owned(), String::new()];
        assert_eq!(agent_command("/home/u", &agent), r"env HOME=/home/u '/opt/a b/agent' --acp 'it'\''s' ''");
    }

    #[test]
    fn every_setting_of_a_repository_is_overridden() {
        let invocation = Invocation {
            cwd: "/w".to_owned(),
            agent: "env HOME=/h a".to_owned(),
            mcp_file: "/d/mcp.json".to_owned(),
            permission: permission_flag(PermissionMode::Ask).to_owned(),
            non_interactive: non_interactive_value(NonInteractive::Fail).to_owned(),
            name: "agent:a:acp:1".to_owned(),
        };
        let want = "--format json --json-strict --cwd /w --agent env HOME=/h a --mcp-config /d/mcp.json --no-fs \
                    --no-terminal --ttl 0 --timeout 2000000 --auth-policy skip --approve-reads \
                    --non-interactive-permissions fail sessions watch -s agent:a:acp:1 --cursor c";
        assert_eq!(invocation.watch(Some("c")).join(" "), want);
        let flags = [PermissionMode::ApproveAll, PermissionMode::ApproveReads, PermissionMode::DenyAll];
        let want = ["--approve-all", "--approve-reads", "--deny-all"];
        assert_eq!(flags.map(permission_flag), want);
        assert_eq!(non_interactive_value(NonInteractive::Deny), "deny");
    }
}
