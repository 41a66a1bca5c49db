//! Meaning of Discord's error codes, in one table. Source: Discord's reference, "Opcodes and Status Codes".

/// Kind of a missing object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceKind {
    /// Application or one of its commands.
    Application,
    /// Channel or thread.
    Channel,
    /// Guild.
    Guild,
    /// Member of a guild, or a user.
    Member,
    /// Message.
    Message,
    /// Webhook, or its token.
    Webhook,
    /// Emoji.
    Emoji,
    /// Another object that the path names.
    Other,
}

impl ResourceKind {
    /// Name in messages.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Application => "application",
            Self::Channel => "channel",
            Self::Guild => "server",
            Self::Member => "member",
            Self::Message => "message",
            Self::Webhook => "webhook",
            Self::Emoji => "emoji",
            Self::Other => "resource",
        }
    }
}

/// Kind of a refusal. The request was certainly not executed, except where a variant says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RejectionKind {
    /// The object no longer exists and will not come back.
    Gone(ResourceKind),
    /// The message with this nonce was sent and has been deleted: do not send it again.
    SentAndDeleted,
    /// The bot can no longer see the channel. Not permanent: access can be granted again.
    LostAccess,
    /// The bot lacks a permission, which can be granted.
    Forbidden,
    /// The thread is archived: unarchive it first.
    Archived,
    /// The thread is locked: only users who may manage threads can write.
    Locked,
    /// The maximum number is reached, for example of threads, webhooks or pins.
    Full,
    /// The message has a thread already; the thread's id is the message's.
    AlreadyThere,
    /// The interaction has its first response already.
    AlreadyAnswered,
    /// The interaction has expired: three seconds for the first response, fifteen minutes for further ones.
    TooLate,
    /// The limit on edits of messages older than an hour is reached in this channel for now.
    OldEdits,
    /// A rate limit without headers is reached for now.
    Slow,
    /// A content filter of the guild rejected the message.
    Filtered,
    /// The request is invalid and can never succeed: too long, empty, the wrong type of channel.
    Invalid,
    /// The files exceed the size limit here.
    TooLarge,
    /// Discord refuses the bot's token. The operator can replace it.
    Unauthorized,
    /// Discord cannot execute the request at the moment.
    Temporary,
    /// The request never left this machine.
    NotSent,
}

impl RejectionKind {
    /// Name in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gone(_) => "gone",
            Self::SentAndDeleted => "sent_and_deleted",
            Self::LostAccess => "lost_access",
            Self::Forbidden => "forbidden",
            Self::Archived => "archived",
            Self::Locked => "locked",
            Self::Full => "full",
            Self::AlreadyThere => "already_there",
            Self::AlreadyAnswered => "already_answered",
            Self::TooLate => "too_late",
            Self::OldEdits => "old_edits",
            Self::Slow => "slow",
            Self::Filtered => "filtered",
            Self::Invalid => "invalid",
            Self::TooLarge => "too_large",
            Self::Unauthorized => "unauthorized",
            Self::Temporary => "temporary",
            Self::NotSent => "not_sent",
        }
    }

    /// True if the same request may succeed later without a change of its content. Includes a refused token:
    /// it will be replaced, and pending requests must not be lost meanwhile.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        match self {
            Self::LostAccess
            | Self::Forbidden
            | Self::Archived
            | Self::Locked
            | Self::Full
            | Self::OldEdits
            | Self::Slow
            | Self::Temporary
            | Self::Unauthorized
            | Self::NotSent => true,
            Self::Gone(_)
            | Self::SentAndDeleted
            | Self::AlreadyThere
            | Self::AlreadyAnswered
            | Self::TooLate
            | Self::Filtered
            | Self::Invalid
            | Self::TooLarge => false,
        }
    }
}

/// Error codes of the same kind on every route.
const ERROR_CODES: [(u32, RejectionKind); 68] = [
    (10001, RejectionKind::Gone(ResourceKind::Member)),
    (10002, RejectionKind::Gone(ResourceKind::Application)),
    (10003, RejectionKind::Gone(ResourceKind::Channel)),
    (10004, RejectionKind::Gone(ResourceKind::Guild)),
    (10007, RejectionKind::Gone(ResourceKind::Member)),
    (10008, RejectionKind::Gone(ResourceKind::Message)),
    (10011, RejectionKind::Gone(ResourceKind::Other)),
    (10013, RejectionKind::Gone(ResourceKind::Member)),
    (10014, RejectionKind::Gone(ResourceKind::Emoji)),
    (10015, RejectionKind::Gone(ResourceKind::Webhook)),
    (10062, RejectionKind::TooLate),
    (10063, RejectionKind::Gone(ResourceKind::Application)),
    (20001, RejectionKind::Forbidden),
    (20002, RejectionKind::Invalid),
    (20009, RejectionKind::Filtered),
    (20012, RejectionKind::Forbidden),
    (20016, RejectionKind::Slow),
    (20022, RejectionKind::Slow),
    (20028, RejectionKind::Slow),
    (20029, RejectionKind::Slow),
    (20031, RejectionKind::Filtered),
    (30003, RejectionKind::Full),
    (30007, RejectionKind::Full),
    (30010, RejectionKind::Full),
    (30013, RejectionKind::Full),
    (30032, RejectionKind::Full),
    (30034, RejectionKind::Slow),
    (30046, RejectionKind::OldEdits),
    (40001, RejectionKind::Unauthorized),
    (40002, RejectionKind::Forbidden),
    (40003, RejectionKind::Slow),
    (40004, RejectionKind::Temporary),
    (40005, RejectionKind::TooLarge),
    (40006, RejectionKind::Temporary),
    (40058, RejectionKind::Invalid),
    (40060, RejectionKind::AlreadyAnswered),
    (40062, RejectionKind::Slow),
    (40066, RejectionKind::Slow),
    (40067, RejectionKind::Invalid),
    (40333, RejectionKind::Temporary),
    (50001, RejectionKind::LostAccess),
    (50005, RejectionKind::Forbidden),
    (50006, RejectionKind::Invalid),
    (50007, RejectionKind::Forbidden),
    (50008, RejectionKind::Invalid),
    (50013, RejectionKind::Forbidden),
    (50014, RejectionKind::Unauthorized),
    (50021, RejectionKind::Invalid),
    (50024, RejectionKind::Invalid),
    (50027, RejectionKind::Gone(ResourceKind::Webhook)),
    (50033, RejectionKind::Invalid),
    (50035, RejectionKind::Invalid),
    (50045, RejectionKind::TooLarge),
    (50068, RejectionKind::Invalid),
    (50080, RejectionKind::Forbidden),
    (50083, RejectionKind::Archived),
    (50109, RejectionKind::Invalid),
    (130_000, RejectionKind::Temporary),
    (160_002, RejectionKind::Forbidden),
    (160_004, RejectionKind::AlreadyThere),
    (160_005, RejectionKind::Locked),
    (160_006, RejectionKind::Full),
    (160_007, RejectionKind::Full),
    (200_000, RejectionKind::Filtered),
    (200_001, RejectionKind::Filtered),
    (220_001, RejectionKind::Invalid),
    (220_003, RejectionKind::Invalid),
    (240_000, RejectionKind::Filtered),
];

/// Kind of request, if it changes the kind of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// Creates a message with a nonce.
    CreateWithNonce,
    /// The path holds the token of an interaction.
    Interaction,
    /// The path holds the token of a webhook.
    Webhook,
    /// Any other request with the bot's token.
    Bot,
}

/// Returns the kind of a refusal. `code` is Discord's error code; 0 or `None` if the response is not
/// Discord's own.
#[must_use]
pub fn classify_rejection(request_kind: RequestKind, status: u16, code: Option<u32>) -> RejectionKind {
    let code = code.filter(|code| *code != 0);
    match (request_kind, code) {
        // Discord knows the nonce, but its message has been deleted (docs pull request 6647).
        (RequestKind::CreateWithNonce, Some(10008)) => return RejectionKind::SentAndDeleted,
        // Interaction responses go through a webhook of the application, whose token expires.
        (RequestKind::Interaction, Some(10015 | 50027)) => return RejectionKind::TooLate,
        _ => {}
    }
    let known = code.and_then(|code| ERROR_CODES.iter().find(|(known, _)| *known == code));
    if let Some((_, kind)) = known {
        return *kind;
    }
    match (request_kind, status) {
        (RequestKind::Bot | RequestKind::CreateWithNonce, 401) => RejectionKind::Unauthorized,
        (RequestKind::Webhook, 401) => RejectionKind::Gone(ResourceKind::Webhook),
        (RequestKind::Interaction, 401 | 404) => RejectionKind::TooLate,
        // A 403 without an error code may come from Discord's edge: treat nothing as gone.
        (_, 403) => RejectionKind::Forbidden,
        (_, 413) => RejectionKind::TooLarge,
        // The same for a 404 without an error code.
        (_, 404 | 408 | 429) | (_, 500..) => RejectionKind::Temporary,
        _ => RejectionKind::Invalid,
    }
}

#[cfg(test)]
mod tests {
    use super::{ERROR_CODES, RejectionKind, RequestKind, ResourceKind, classify_rejection};

    #[test]
    fn error_codes_are_sorted_and_unique() {
        assert!(ERROR_CODES.windows(2).all(|pair| matches!(pair, [(a, _), (b, _)] if a < b)));
        for (code, known) in ERROR_CODES {
            assert_eq!(classify_rejection(RequestKind::Bot, 400, Some(code)), known, "{code}");
        }
    }

    #[test]
    fn rejection_kind_depends_on_request_kind() {
        use RequestKind::{Bot, CreateWithNonce, Interaction, Webhook};
        for (request_kind, status, code, expected) in [
            (CreateWithNonce, 404, Some(10008), RejectionKind::SentAndDeleted),
            (Bot, 404, Some(10008), RejectionKind::Gone(ResourceKind::Message)),
            (CreateWithNonce, 404, Some(10003), RejectionKind::Gone(ResourceKind::Channel)),
            (Bot, 403, Some(50001), RejectionKind::LostAccess),
            (Bot, 403, Some(50013), RejectionKind::Forbidden),
            (Bot, 403, None, RejectionKind::Forbidden),
            (Bot, 403, Some(0), RejectionKind::Forbidden),
            (Bot, 404, Some(0), RejectionKind::Temporary),
            (Bot, 404, None, RejectionKind::Temporary),
            (Bot, 401, Some(0), RejectionKind::Unauthorized),
            (Bot, 401, Some(40001), RejectionKind::Unauthorized),
            (Webhook, 401, Some(50027), RejectionKind::Gone(ResourceKind::Webhook)),
            (Webhook, 401, Some(0), RejectionKind::Gone(ResourceKind::Webhook)),
            (Webhook, 404, Some(10015), RejectionKind::Gone(ResourceKind::Webhook)),
            (Interaction, 404, Some(10015), RejectionKind::TooLate),
            (Interaction, 401, Some(50027), RejectionKind::TooLate),
            (Interaction, 404, Some(10062), RejectionKind::TooLate),
            (Interaction, 400, Some(40060), RejectionKind::AlreadyAnswered),
            (Interaction, 404, Some(10008), RejectionKind::Gone(ResourceKind::Message)),
            (Bot, 400, Some(50083), RejectionKind::Archived),
            (Bot, 400, Some(160_005), RejectionKind::Locked),
            (Bot, 400, Some(160_004), RejectionKind::AlreadyThere),
            (Bot, 400, Some(160_006), RejectionKind::Full),
            (Bot, 429, Some(30046), RejectionKind::OldEdits),
            (Bot, 429, None, RejectionKind::Temporary),
            (Bot, 400, Some(50035), RejectionKind::Invalid),
            (Bot, 400, Some(999_999), RejectionKind::Invalid),
            (CreateWithNonce, 413, Some(40005), RejectionKind::TooLarge),
            (CreateWithNonce, 400, Some(50045), RejectionKind::TooLarge),
            (CreateWithNonce, 413, None, RejectionKind::TooLarge),
            (Bot, 502, None, RejectionKind::Temporary),
            (Bot, 302, None, RejectionKind::Invalid),
        ] {
            assert_eq!(
                classify_rejection(request_kind, status, code),
                expected,
                "{request_kind:?} {status} {code:?}"
            );
        }
    }

    #[test]
    fn fixable_rejections_are_retryable() {
        for (kind, is_retryable) in [
            (RejectionKind::Gone(ResourceKind::Channel), false),
            (RejectionKind::SentAndDeleted, false),
            (RejectionKind::LostAccess, true),
            (RejectionKind::Forbidden, true),
            (RejectionKind::Archived, true),
            (RejectionKind::Invalid, false),
            (RejectionKind::TooLarge, false),
            (RejectionKind::Unauthorized, true),
            (RejectionKind::NotSent, true),
        ] {
            assert_eq!(kind.is_retryable(), is_retryable, "{kind:?}");
        }
    }
}
