//! Scope that a change of a session's settings needs: whatever lets the agent do more unasked needs `approve`, and
//! programs of the client's choice need `admin`.

use crate::agent_settings::{AgentSettings, MODEL_OPTION};
use crate::config::McpTransport;
use crate::config::{McpServer, PermissionMode};
use crate::options::Setting;
use crate::permission::Voting;
use crate::principal::Scope;
use crate::rows::SessionOptions;

/// Categories of config options that change the answers of an agent, and not what it may do.
const HARMLESS_CATEGORIES: [&str; 2] = ["model", "thought_level"];

/// Permission modes from the strictest.
const fn rank(mode: PermissionMode) -> u8 {
    match mode {
        PermissionMode::DenyAll => 0,
        PermissionMode::Ask => 1,
        PermissionMode::ApproveReads => 2,
        PermissionMode::ApproveAll => 3,
    }
}

/// Returns the stricter of two permission modes.
#[must_use]
pub fn stricter(one: PermissionMode, other: PermissionMode) -> PermissionMode {
    if rank(one) <= rank(other) { one } else { other }
}

/// Returns the scope that a change from one permission mode to another needs.
#[must_use]
pub fn scope_of_permission(from: PermissionMode, to: PermissionMode) -> Scope {
    if rank(to) > rank(from) { Scope::Approve } else { Scope::Prompt }
}

/// Returns the scope that a setting of a session needs. Modes of an agent have no order, so every change of one needs
/// `approve`, and so does a config option that is not known to be harmless. Where not everyone with `approve` may answer
/// questions, such a setting, and a stricter permission mode too, would answer them: it needs `admin`.
#[must_use]
pub fn scope_of_setting(setting: &Setting, now: &SessionOptions) -> Scope {
    let scope = scope_of_change(setting, now);
    let answers = matches!(setting, Setting::Permission(mode) if *mode != now.permission);
    if now.voting != Voting::First && (answers || scope == Scope::Approve) { Scope::Admin } else { scope }
}

fn scope_of_change(setting: &Setting, now: &SessionOptions) -> Scope {
    match setting {
        Setting::Permission(mode) => scope_of_permission(now.permission, *mode),
        // Another host may confine agents less.
        Setting::Mode(_) | Setting::Defaults | Setting::Voting(_) | Setting::Host(_) => Scope::Approve,
        Setting::Config { id, .. } if is_harmless(id, &now.agent) => Scope::Prompt,
        Setting::Model(_)
            if now.agent.model_option().is_none_or(|option| is_harmless(&option.id, &now.agent)) =>
        {
            Scope::Prompt
        }
        Setting::Config { .. } | Setting::Model(_) => Scope::Approve,
        Setting::Cwd(_) | Setting::NonInteractive(_) | Setting::TimeoutS(_) => Scope::Prompt,
    }
}

fn is_harmless(id: &str, settings: &AgentSettings) -> bool {
    match settings.options.iter().find(|option| option.id == id) {
        Some(option) => {
            option.category.as_deref().is_some_and(|category| HARMLESS_CATEGORIES.contains(&category))
        }
        None => id == MODEL_OPTION,
    }
}

/// Returns the scope that MCP servers given by a client need: a `stdio` server is a program on this machine.
#[must_use]
pub fn scope_of_servers(servers: &[McpServer]) -> Scope {
    let starts_program = servers.iter().any(|server| server.transport() == McpTransport::Stdio);
    if starts_program { Scope::Admin } else { Scope::Prompt }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent_settings::ConfigOption;
    use crate::rows::NonInteractive;

    fn options(permission: PermissionMode) -> SessionOptions {
        let option = |id: &str, category: Option<&str>| ConfigOption {
            id: id.to_owned(),
            category: category.map(str::to_owned),
            ..ConfigOption::default()
        };
        let mut options = SessionOptions::new(permission, NonInteractive::Deny);
        options.agent.options = vec![
            option("effort", Some("thought_level")),
            option("approval", Some("mode")),
            option("sandbox", None),
            option("model", Some("mode")),
        ];
        options
    }

    #[test]
    fn wider_permission_mode_needs_approve() {
        use PermissionMode::{ApproveAll, ApproveReads, Ask, DenyAll};
        let modes = [DenyAll, Ask, ApproveReads, ApproveAll];
        for (from_place, from) in modes.into_iter().enumerate() {
            for (to_place, to) in modes.into_iter().enumerate() {
                let want = if to_place > from_place { Scope::Approve } else { Scope::Prompt };
                assert_eq!(stricter(from, to), modes[from_place.min(to_place)]);
                assert_eq!(
                    scope_of_setting(&Setting::Permission(to), &options(from)),
                    want,
                    "{from:?} {to:?}"
                );
            }
        }
    }

    #[test]
    fn agent_mode_and_unknown_options_need_approve() {
        let config = |id: &str| Setting::Config { id: id.to_owned(), value: "x".to_owned() };
        for (setting, want) in [
            (Setting::Mode("yolo".to_owned()), Scope::Approve),
            (Setting::Defaults, Scope::Approve),
            (config("approval"), Scope::Approve),
            (config("sandbox"), Scope::Approve),
            (config("unknown"), Scope::Approve),
            // The agent says what its option is, not the name.
            (config("model"), Scope::Approve),
            (config("effort"), Scope::Prompt),
            (Setting::Model("big".to_owned()), Scope::Approve),
            (Setting::Cwd("/w".to_owned()), Scope::Prompt),
            (Setting::NonInteractive(NonInteractive::Fail), Scope::Prompt),
            (Setting::TimeoutS(1), Scope::Prompt),
            (Setting::Voting(Voting::Local), Scope::Approve),
            (Setting::Permission(PermissionMode::ApproveAll), Scope::Approve),
        ] {
            assert_eq!(scope_of_setting(&setting, &options(PermissionMode::Ask)), want, "{setting:?}");
            // What `approve` may not answer, it may not widen.
            let want = if want == Scope::Approve { Scope::Admin } else { want };
            let exclusive = SessionOptions { voting: Voting::Owner, ..options(PermissionMode::Ask) };
            assert_eq!(scope_of_setting(&setting, &exclusive), want, "{setting:?}");
        }
        let fresh = SessionOptions::new(PermissionMode::Ask, NonInteractive::Deny);
        assert_eq!(scope_of_setting(&config("model"), &fresh), Scope::Prompt);
        assert_eq!(scope_of_setting(&Setting::Model("big".to_owned()), &fresh), Scope::Prompt);
    }

    #[test]
    fn stricter_permission_mode_answers_questions_that_others_may_not_answer() {
        let deny = Setting::Permission(PermissionMode::DenyAll);
        for (voting, want) in
            [(Voting::First, Scope::Prompt), (Voting::Owner, Scope::Admin), (Voting::Local, Scope::Admin)]
        {
            let now = SessionOptions { voting, ..options(PermissionMode::Ask) };
            assert_eq!(scope_of_setting(&deny, &now), want, "{voting:?}");
            assert_eq!(
                scope_of_setting(&Setting::Permission(PermissionMode::Ask), &now),
                Scope::Prompt,
                "no change"
            );
        }
    }

    #[test]
    fn programs_of_the_client_need_admin() {
        let server = |transport| McpServer { transport, ..McpServer::default() };
        let (remote, program) = (server(Some(McpTransport::Http)), server(None));
        assert_eq!(scope_of_servers(&[]), Scope::Prompt);
        assert_eq!(scope_of_servers(std::slice::from_ref(&remote)), Scope::Prompt);
        assert_eq!(scope_of_servers(&[remote, program]), Scope::Admin);
    }
}
