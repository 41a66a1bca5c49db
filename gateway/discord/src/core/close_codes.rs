//! Close codes of the gateway: their meaning, and the remedy if a person has to act.

use std::fmt;

/// Consequence of a close code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseAction {
    /// The next connection resumes the session.
    Resume,
    /// The next connection identifies a new session.
    Identify,
    /// A new connection would end in the same way. Holds the remedy.
    Stop(&'static str),
}

/// Code with which the gateway closes a connection (documentation, "Gateway close event codes").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CloseCode {
    /// Close code.
    pub code: u16,
    /// Description of the cause.
    pub cause: &'static str,
    /// Consequence.
    pub action: CloseAction,
}

const fn resumable(code: u16, cause: &'static str) -> CloseCode {
    CloseCode { code, cause, action: CloseAction::Resume }
}

const fn needs_identify(code: u16, cause: &'static str) -> CloseCode {
    CloseCode { code, cause, action: CloseAction::Identify }
}

const fn fatal(code: u16, cause: &'static str, remedy: &'static str) -> CloseCode {
    CloseCode { code, cause, action: CloseAction::Stop(remedy) }
}

/// All documented codes.
pub const CLOSE_CODES: [CloseCode; 14] = [
    resumable(4000, "Discord reported an unknown error"),
    resumable(4001, "Discord did not know an opcode or a payload"),
    resumable(4002, "Discord could not decode a payload"),
    needs_identify(
        4003,
        "a payload was sent before the session was identified, or the session is no longer valid",
    ),
    fatal(
        4004,
        "Discord refuses the bot's token",
        "Open the developer portal, your application, Bot; press Reset Token, and store the new token where \
         the configuration expects it. Then reload or restart the gateway.",
    ),
    resumable(4005, "the session was identified twice"),
    needs_identify(4007, "the session cannot be resumed from that sequence number"),
    resumable(4008, "too many payloads were sent in too short a time"),
    needs_identify(4009, "the session timed out"),
    fatal(
        4010,
        "Discord refuses this shard's number",
        "The number of shards changed while they were being started. Restart the gateway; if the error \
         returns, report it.",
    ),
    fatal(
        4011,
        "the bot is in too many guilds for so few shards",
        "Restart the gateway: each start asks Discord for the number of shards. If a number is configured, \
         remove it.",
    ),
    fatal(
        4012,
        "Discord no longer serves this version of its gateway",
        "Install a newer version of this program.",
    ),
    fatal(
        4013,
        "Discord does not know a requested intent",
        "Install a newer version of this program; if this is the newest one, report it.",
    ),
    fatal(
        4014,
        "Discord does not let this bot read message content",
        "Open the developer portal, your application, Bot, Privileged Gateway Intents; switch on Message \
         Content Intent and save. A bot in 100 guilds or more must request it there. Then reload or restart \
         the gateway.",
    ),
];

/// Reason why the client does not reconnect to Discord.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FatalGatewayError {
    /// Close code of the gateway, if there was one.
    pub code: Option<u16>,
    /// Description of the cause.
    pub cause: String,
    /// Remedy.
    pub remedy: String,
}

impl fmt::Display for FatalGatewayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, cause, remedy } = self;
        write!(f, "Not connected to Discord: {cause}")?;
        if let Some(code) = code {
            write!(f, " (code {code})")?;
        }
        write!(f, ". {remedy}")
    }
}

impl std::error::Error for FatalGatewayError {}

/// Returns the description of a close code. After an undocumented one the session is resumed.
#[must_use]
pub fn close_code(code: u16) -> CloseCode {
    let known = CLOSE_CODES.iter().find(|close| close.code == code);
    known.copied().unwrap_or(resumable(code, "the connection was closed"))
}

/// Returns the failure for a code after which a new connection would end in the same way.
#[must_use]
pub fn fatal_error(code: u16) -> Option<FatalGatewayError> {
    let CloseCode { code, cause, action } = close_code(code);
    let CloseAction::Stop(remedy) = action else { return None };
    Some(FatalGatewayError { code: Some(code), cause: cause.to_owned(), remedy: remedy.to_owned() })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::expect_used, reason = "a failed expectation is a failed test")]

    use super::*;

    #[test]
    fn only_documented_codes_are_fatal() {
        let fatal: Vec<u16> = (0..=u16::MAX).filter(|code| fatal_error(*code).is_some()).collect();
        assert_eq!(fatal, [4004, 4010, 4011, 4012, 4013, 4014]);
        assert!(CLOSE_CODES.is_sorted_by_key(|close| close.code));
    }

    #[test]
    fn ended_sessions_are_not_resumed() {
        let new: Vec<u16> =
            (0..=u16::MAX).filter(|code| close_code(*code).action == CloseAction::Identify).collect();
        assert_eq!(new, [4003, 4007, 4009]);
    }

    #[test]
    fn missing_intent_error_has_remedy() {
        let text = fatal_error(4014).expect("fatal").to_string();
        for part in ["code 4014", "Bot", "Privileged Gateway Intents", "Message Content Intent"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let text = fatal_error(4004).expect("fatal").to_string();
        assert!(text.contains("Reset Token"), "{text}");
    }

    #[test]
    fn close_codes_have_cause_and_remedy() {
        for close in CLOSE_CODES {
            let is_sentence = |action| !matches!(action, CloseAction::Stop(remedy) if !remedy.ends_with('.'));
            assert!(!close.cause.ends_with('.') && is_sentence(close.action), "{close:?}");
        }
    }
}
