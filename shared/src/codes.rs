//! Stable error codes and the user-facing texts that belong to them. Details stay in logs; the meaning of a
//! code never changes. Source: the error contract of the ACP thread-bound agents document, and acpx for the
//! CLI's codes.

use serde::{Deserialize, Serialize};

macro_rules! codes {
    ($($(#[$doc:meta])+ $name:ident = $code:literal, exit $exit:literal, $text:literal;)+) => {
        crate::named! {
            /// Error code, for programs.
            #[derive(Hash, Serialize, Deserialize)]
            #[serde(try_from = "String", into = "String")]
            pub enum Code { $($(#[$doc])+ $name = $code,)+ }
        }

        impl Code {
            /// Returns the user-facing text: the failure and the next step.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            /// Returns the exit code of a CLI command that fails with this code.
            #[must_use]
            pub const fn exit(self) -> u8 {
                match self { $(Self::$name => $exit,)+ }
            }

            /// Parses the text form of a code.
            #[must_use]
            pub fn parse(text: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|code| code.as_str() == text)
            }
        }
    };
}

codes! {
    /// No runtime backend of this name is registered.
    BackendMissing = "ACP_BACKEND_MISSING", exit 1,
        "ACP runtime backend is not configured. Install and enable the acpx runtime plugin.";
    /// The backend (in practice: the supervisor) does not answer.
    BackendUnavailable = "ACP_BACKEND_UNAVAILABLE", exit 1,
        "ACP runtime backend is currently unavailable. Try again in a moment.";
    /// The agent could not be started, or refused to open a session.
    SessionInitFailed = "ACP_SESSION_INIT_FAILED", exit 1, "Could not initialize ACP session runtime.";
    /// The turn ended without a result.
    TurnFailed = "ACP_TURN_FAILED", exit 1, "ACP turn failed before completion.";
    /// The agent requires the user to sign in first.
    AuthRequired = "ACP_AUTH_REQUIRED", exit 1,
        "The agent needs you to sign in first. Follow its instructions on this machine, then send the prompt again.";
    /// The agent process is gone and can neither resume nor load its conversation.
    ResumeUnavailable = "ACP_RESUME_UNAVAILABLE", exit 1,
        "The agent's conversation is gone and cannot be resumed. Request a new conversation to continue.";
    /// The outcome of the turn cannot be known; a person has to decide about sending the prompt again.
    Uncertain = "ACP_UNCERTAIN", exit 1,
        "The agent became unreachable while the prompt was being sent. The prompt may have taken effect: \
         check before you send it again.";
    /// Dispatch is switched off.
    DispatchDisabled = "ACP_DISPATCH_DISABLED", exit 1,
        "ACP dispatch is disabled by policy (acp.dispatch.enabled = false).";
    /// ACP is switched off.
    Disabled = "ACP_DISABLED", exit 1, "ACP is disabled by policy (acp.enabled = false).";
    /// The agent's name is unknown, or not on the allow-list.
    AgentNotAllowed = "ACP_AGENT_NOT_ALLOWED", exit 1,
        "This agent is unknown or not allowed. List the agents to see the allowed ones.";
    /// The working directory lies outside of the agent's roots.
    CwdNotAllowed = "ACP_CWD_NOT_ALLOWED", exit 1,
        "The working directory does not exist or lies outside of the agent's allowed roots.";
    /// A limit on sessions, queued prompts or sizes is reached.
    LimitReached = "ACP_LIMIT_REACHED", exit 1, "A limit is reached. Wait for running work to end, or close a session.";
    /// The session has ended.
    SessionClosed = "ACP_SESSION_CLOSED", exit 1, "This session is closed. Start a new one.";
    /// The conversation points at a session that is gone.
    StaleBinding = "ACP_STALE_BINDING", exit 1,
        "This conversation is bound to a session that no longer exists. Unbind it or start a new session.";
    /// The conversation is bound to nothing.
    NotBound = "ACP_NOT_BOUND", exit 1, "This conversation is not bound to a session. Start one with /acp spawn.";
    /// No adapter serves the channel and account of the conversation.
    ChannelUnavailable = "ACP_CHANNEL_UNAVAILABLE", exit 1,
        "No adapter serves this channel and account. Enable it in the configuration and restart the gateway.";
    /// The session or binding belongs to another user.
    NotOwner = "ACP_NOT_OWNER", exit 1,
        "This belongs to another user: only the user who started or bound it, or the operator of this \
         gateway, may do that.";
    /// The idempotency key was used before with other content.
    IdempotencyConflict = "ACP_IDEMPOTENCY_CONFLICT", exit 1,
        "This idempotency key was used before with other content. Use a new key.";
    /// The agent violated the protocol or a size limit.
    ProtocolError = "ACP_PROTOCOL_ERROR", exit 1,
        "The agent violated the ACP protocol. Its lease was closed.";
    /// The control plane cannot be written.
    StoreUnavailable = "ACP_STORE_UNAVAILABLE", exit 1,
        "The control plane cannot be written (disk full or read-only?). Nothing was accepted; try again later.";
    /// No user can be asked for the permission, and the policy for that case is to fail.
    PermissionPromptUnavailable = "PERMISSION_PROMPT_UNAVAILABLE", exit 5,
        "The agent requested a permission, but no user can answer the request here.";
    /// A permission was refused.
    PermissionDenied = "PERMISSION_DENIED", exit 5, "Permission denied.";
    /// An operation took too long.
    Timeout = "TIMEOUT", exit 3,
        "The operation took too long. The agent may still be working: check its history.";
    /// Rows after the cursor were pruned by the retention of the journal.
    CursorPruned = "CURSOR_PRUNED", exit 1,
        "Rows after this cursor were pruned by the retention of the journal. Read again without a cursor.";
    /// There is no session with this key.
    NoSession = "NO_SESSION", exit 4, "There is no such session. List the sessions to see the existing ones.";
    /// The command line or the request is invalid.
    Usage = "USAGE", exit 2, "The command is not valid. See --help.";
    /// The configuration is not valid.
    ConfigInvalid = "CONFIG_INVALID", exit 2, "The configuration is not valid.";
    /// No gateway answers on this state directory.
    GatewayUnavailable = "GATEWAY_UNAVAILABLE", exit 1,
        "No gateway answers on this state directory. Start one with `acp-gateway up`.";
    /// Any other failure; details are in the log.
    Runtime = "RUNTIME", exit 1, "Internal error. See the log of the gateway.";
}

/// Error for a text that is not a code of this build.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an error code")]
pub struct UnknownCode(String);

impl TryFrom<String> for Code {
    type Error = UnknownCode;
    fn try_from(text: String) -> Result<Self, UnknownCode> {
        Self::parse(&text).ok_or(UnknownCode(text))
    }
}

impl From<Code> for String {
    fn from(code: Code) -> Self {
        code.as_str().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_parse_back() {
        for (i, code) in Code::ALL.iter().enumerate() {
            assert_eq!(Code::parse(code.as_str()), Some(*code));
            assert!(Code::ALL.iter().skip(i + 1).all(|other| other.as_str() != code.as_str()), "{code}");
            assert!(!code.text().is_empty());
        }
    }

    /// Four texts of the source document, word for word. Hints that differ from it follow after the text.
    #[test]
    fn texts_match_source_document() {
        for (code, name, text) in [
            (
                Code::BackendMissing,
                "ACP_BACKEND_MISSING",
                "ACP runtime backend is not configured. Install and enable the acpx runtime plugin.",
            ),
            (
                Code::BackendUnavailable,
                "ACP_BACKEND_UNAVAILABLE",
                "ACP runtime backend is currently unavailable. Try again in a moment.",
            ),
            (Code::SessionInitFailed, "ACP_SESSION_INIT_FAILED", "Could not initialize ACP session runtime."),
            (Code::TurnFailed, "ACP_TURN_FAILED", "ACP turn failed before completion."),
        ] {
            assert_eq!((code.as_str(), code.text()), (name, text));
        }
    }
}
