//! Error messages for conversations: the failure and the next step, for every code, in one place. The failure
//! brings the message (by default the code's own text); internal details stay in the log. Source: seed 000
//! "Error contract".

use crate::failure::Failure;
use acp_shared::codes::Code;

/// Returns the error message for a conversation.
pub fn error_message(failure: &Failure) -> String {
    let message = failure.text_for_conversations();
    let message = message.trim_end();
    let code =
        if message.contains(failure.code.as_str()) { String::new() } else { format!(" ({})", failure.code) };
    format!("{message}{code}\nNext: {}", next_step(failure))
}

/// Returns the next step after a failure, for people who must not read the message itself.
pub fn next_step(failure: &Failure) -> &'static str {
    next_step_for(failure.code, failure.detail_code.as_deref())
}

/// Returns the next step: by detail code if listed, else by code.
pub fn next_step_for(code: Code, detail: Option<&str>) -> &'static str {
    let by_detail = detail.and_then(|detail| {
        Some(match detail {
            "ACCOUNT_DEAF" => {
                "send it again when that is fixed (`acp-gateway doctor` says how), or use the slash command \
                 of the intended bot."
            }
            "BINDING_EXPIRED" => {
                "/focus the session named above again, or start another one with /acp spawn."
            }
            "BINDING_PENDING" | "MAILBOX_FULL" => "send it again in a moment.",
            "BOUND_BY_OTHER" => "ask the person who bound it to /unfocus, or use another conversation.",
            "CONVERSATION_BOUND" => {
                "/acp close closes that session; /unfocus keeps it open and frees the conversation."
            }
            "NOT_APPROVER" => {
                "ask an approver to answer; the operator of this gateway can add you to approver_users or \
                 approver_roles."
            }
            "OPTION_REFUSED" => "/acp status lists what the agent offers.",
            "OPTION_UNANSWERED" => "/acp status shows the agent's current settings.",
            "PERMISSION_NOT_PENDING" => "/acp permissions lists the pending requests.",
            "SANDBOXED" => "ask a person to start it.",
            "SESSION_BACKEND" => {
                "/acp spawn starts a session with an available backend; /acp close closes this one."
            }
            "STORE_DAMAGED" | "STORE_UNREADABLE" => {
                "ask the operator of this gateway to repair the database; `acp-gateway doctor` names what is \
                 blocked."
            }
            "TURN_TIMEOUT" => {
                "send the next message to continue. /acp timeout sets the session's own limit of a turn; without \
                 one, the gateway's applies (limits.turn_ms)."
            }
            "TURN_RUNS" => "cancel the turn with /acp cancel, or wait for its end.",
            _ => return None,
        })
    });
    by_detail.unwrap_or_else(|| next_step_by_code(code))
}

const fn next_step_by_code(code: Code) -> &'static str {
    match code {
        Code::BackendMissing => {
            "/acp install names the setting to change; ask the operator of this gateway to change it."
        }
        Code::BackendUnavailable => "send it again in a moment; /acp doctor shows the problem.",
        Code::SessionInitFailed => "see /acp doctor and /acp status for details; the next message retries.",
        Code::TurnFailed => "send it again, or see /acp status.",
        Code::AuthRequired => "sign in as the gateway's user, then send the message again.",
        Code::ResumeUnavailable => {
            "/acp new starts a new conversation in this session, without the old context."
        }
        Code::Uncertain => "check whether the prompt had an effect, and send it again only if it had none.",
        Code::DispatchDisabled => {
            "ask the operator of this gateway to enable dispatch; commands work in the meantime."
        }
        Code::Disabled => "ask the operator of this gateway to change that setting.",
        Code::AgentNotAllowed => "/agents lists the agents that can be started here.",
        Code::CwdNotAllowed => {
            "choose another directory (/acp spawn --cwd), or ask the operator of this gateway to allow it."
        }
        Code::LimitReached => "wait for running work to end, or /acp close a session that is not needed.",
        Code::SessionClosed => "/acp spawn starts another session.",
        Code::StaleBinding => "/acp sessions lists the sessions that you can /focus instead.",
        Code::ChannelUnavailable => "ask the operator of this gateway to enable that account.",
        Code::NotBound => {
            "/acp spawn starts a session here; /acp sessions lists the sessions that you can /focus."
        }
        Code::NotOwner => "ask the person who started or bound it, or the operator of this gateway.",
        Code::IdempotencyConflict => "send it as a new message.",
        Code::ProtocolError => "send it again; if that does not help, /acp close and use another agent.",
        Code::StoreUnavailable => "try again later; /acp doctor shows the state of the database.",
        Code::PermissionPromptUnavailable => {
            "send it from a conversation where permission requests can be answered, or change the mode with \
             /acp permissions."
        }
        Code::PermissionDenied => "to allow it, send the message again and use /acp allow.",
        Code::Timeout => "/acp status shows whether it is still running.",
        Code::CursorPruned => "read again without a cursor.",
        Code::NoSession => "/acp sessions lists them.",
        Code::Usage => "/acp help lists the commands.",
        Code::ConfigInvalid => "ask the operator of this gateway to correct its configuration.",
        Code::GatewayUnavailable => "start a gateway with `acp-gateway up`.",
        Code::Runtime => {
            "try again; if the error persists, ask the operator of this gateway to check its log."
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{ChatCommand, parse};

    const DETAILS: [&str; 13] = [
        "ACCOUNT_DEAF",
        "BINDING_EXPIRED",
        "BINDING_PENDING",
        "MAILBOX_FULL",
        "BOUND_BY_OTHER",
        "CONVERSATION_BOUND",
        "OPTION_REFUSED",
        "OPTION_UNANSWERED",
        "PERMISSION_NOT_PENDING",
        "SANDBOXED",
        "SESSION_BACKEND",
        "TURN_RUNS",
        "TURN_TIMEOUT",
    ];

    #[test]
    fn every_failure_has_a_next_step() {
        let codes = Code::ALL.iter().map(|code| Failure::of(*code));
        let details = DETAILS.iter().map(|detail| Failure::of(Code::Runtime).detail(detail));
        let mut steps = Vec::new();
        for failure in codes.chain(details) {
            let step = next_step(&failure);
            assert!(step.ends_with('.') && step.len() > 10, "{failure:?}: {step}");
            let mut words = step.split([' ', ',', ';']).map(|word| word.trim_end_matches('.')).peekable();
            while let Some(word) = words.next() {
                if !word.starts_with('/') {
                    continue;
                }
                let verb = if word == "/acp" { words.peek().copied().unwrap_or_default() } else { "" };
                let command = parse(&format!("{word} {verb}"));
                // A command without a required argument is known; an unknown command has no usage.
                let known = !matches!(command, None | Some(ChatCommand::Misused { usage: None, .. }));
                assert!(known, "{failure:?}: {word} {verb}");
            }
            steps.push(step);
        }
        // A detail missing from the table would get the step of its code.
        assert!(
            DETAILS
                .iter()
                .all(|it| next_step(&Failure::of(Code::Runtime).detail(it))
                    != next_step_by_code(Code::Runtime))
        );
        steps.sort_unstable();
        steps.dedup();
        assert!(steps.len() > Code::ALL.len() / 2, "next steps are specific to their codes");
    }

    #[test]
    fn error_message_hides_server_paths() {
        let why = "The working directory /srv/else/x lies outside of acp.workspace_roots (/srv/work; set by /etc/g.toml:3).";
        let message = error_message(&Failure::new(Code::CwdNotAllowed, why));
        let want =
            "The working directory [path] lies outside of acp.workspace_roots ([path]; set by [path]).";
        assert!(message.starts_with(want), "{message}");
    }

    /// Each step holds for every cause of its failure.
    #[test]
    fn next_steps_are_true() {
        for (code, detail, never) in [
            // The gateway's own limit may have fired, which no session setting removes.
            (Code::Timeout, Some("TURN_TIMEOUT"), "removes"),
            (Code::Timeout, None, "removes"),
            // No program that could be installed adds a backend.
            (Code::BackendMissing, None, "shows what is available"),
        ] {
            let step = next_step_for(code, detail);
            assert!(!step.contains(never), "{code} {detail:?}: {step}");
        }
        assert!(next_step_for(Code::Timeout, Some("TURN_TIMEOUT")).contains("limits.turn_ms"));
    }

    #[test]
    fn error_message_has_text_code_and_step() {
        let failure =
            Failure::new(Code::TurnFailed, "ACP turn failed before completion. The agent said: no.\n");
        let want = "ACP turn failed before completion. The agent said: no. (ACP_TURN_FAILED)\n\
                    Next: send it again, or see /acp status.";
        assert_eq!(error_message(&failure), want);
    }
}
