//! Meaning of Discord's error codes, in one table. Source: Discord's reference, "Opcodes and Status Codes".

/// Kind of a missing object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum What {
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

impl What {
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

/// Meaning of a refusal. The request was certainly not executed, except where a variant says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Meaning {
    /// The object no longer exists and will not come back.
    Gone(What),
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

impl Meaning {
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
    pub const fn again(self) -> bool {
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

/// Error codes with the same meaning on every route.
const CODES: [(u32, Meaning); 68] = [
    (10001, Meaning::Gone(What::Member)),
    (10002, Meaning::Gone(What::Application)),
    (10003, Meaning::Gone(What::Channel)),
    (10004, Meaning::Gone(What::Guild)),
    (10007, Meaning::Gone(What::Member)),
    (10008, Meaning::Gone(What::Message)),
    (10011, Meaning::Gone(What::Other)),
    (10013, Meaning::Gone(What::Member)),
    (10014, Meaning::Gone(What::Emoji)),
    (10015, Meaning::Gone(What::Webhook)),
    (10062, Meaning::TooLate),
    (10063, Meaning::Gone(What::Application)),
    (20001, Meaning::Forbidden),
    (20002, Meaning::Invalid),
    (20009, Meaning::Filtered),
    (20012, Meaning::Forbidden),
    (20016, Meaning::Slow),
    (20022, Meaning::Slow),
    (20028, Meaning::Slow),
    (20029, Meaning::Slow),
    (20031, Meaning::Filtered),
    (30003, Meaning::Full),
    (30007, Meaning::Full),
    (30010, Meaning::Full),
    (30013, Meaning::Full),
    (30032, Meaning::Full),
    (30034, Meaning::Slow),
    (30046, Meaning::OldEdits),
    (40001, Meaning::Unauthorized),
    (40002, Meaning::Forbidden),
    (40003, Meaning::Slow),
    (40004, Meaning::Temporary),
    (40005, Meaning::TooLarge),
    (40006, Meaning::Temporary),
    (40058, Meaning::Invalid),
    (40060, Meaning::AlreadyAnswered),
    (40062, Meaning::Slow),
    (40066, Meaning::Slow),
    (40067, Meaning::Invalid),
    (40333, Meaning::Temporary),
    (50001, Meaning::LostAccess),
    (50005, Meaning::Forbidden),
    (50006, Meaning::Invalid),
    (50007, Meaning::Forbidden),
    (50008, Meaning::Invalid),
    (50013, Meaning::Forbidden),
    (50014, Meaning::Unauthorized),
    (50021, Meaning::Invalid),
    (50024, Meaning::Invalid),
    (50027, Meaning::Gone(What::Webhook)),
    (50033, Meaning::Invalid),
    (50035, Meaning::Invalid),
    (50045, Meaning::TooLarge),
    (50068, Meaning::Invalid),
    (50080, Meaning::Forbidden),
    (50083, Meaning::Archived),
    (50109, Meaning::Invalid),
    (130_000, Meaning::Temporary),
    (160_002, Meaning::Forbidden),
    (160_004, Meaning::AlreadyThere),
    (160_005, Meaning::Locked),
    (160_006, Meaning::Full),
    (160_007, Meaning::Full),
    (200_000, Meaning::Filtered),
    (200_001, Meaning::Filtered),
    (220_001, Meaning::Invalid),
    (220_003, Meaning::Invalid),
    (240_000, Meaning::Filtered),
];

/// Kind of request, if it changes the meaning of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// Creates a message with a nonce.
    CreateWithNonce,
    /// The path holds the token of an interaction.
    Interaction,
    /// The path holds the token of a webhook.
    Webhook,
    /// Any other request with the bot's token.
    Bot,
}

/// Returns the meaning of a refusal. `code` is Discord's error code; 0 or `None` if the response is not
/// Discord's own.
#[must_use]
pub fn meaning(asked: Asked, status: u16, code: Option<u32>) -> Meaning {
    let code = code.filter(|code| *code != 0);
    match (asked, code) {
        // Discord knows the nonce, but its message has been deleted (docs pull request 6647).
        (Asked::CreateWithNonce, Some(10008)) => return Meaning::SentAndDeleted,
        // Interaction responses go through a webhook of the application, whose token expires.
        (Asked::Interaction, Some(10015 | 50027)) => return Meaning::TooLate,
        _ => {}
    }
    let known = code.and_then(|code| CODES.iter().find(|(known, _)| *known == code));
    if let Some((_, meaning)) = known {
        return *meaning;
    }
    match (asked, status) {
        (Asked::Bot | Asked::CreateWithNonce, 401) => Meaning::Unauthorized,
        (Asked::Webhook, 401) => Meaning::Gone(What::Webhook),
        (Asked::Interaction, 401 | 404) => Meaning::TooLate,
        // A 403 without an error code may come from Discord's edge: treat nothing as gone.
        (_, 403) => Meaning::Forbidden,
        (_, 413) => Meaning::TooLarge,
        // The same for a 404 without an error code.
        (_, 404 | 408 | 429) | (_, 500..) => Meaning::Temporary,
        _ => Meaning::Invalid,
    }
}

#[cfg(test)]
mod tests {
    use super::{Asked, CODES, Meaning, What, meaning};

    #[test]
    fn the_table_has_each_code_once_and_in_order() {
        assert!(CODES.windows(2).all(|pair| matches!(pair, [(a, _), (b, _)] if a < b)));
        for (code, known) in CODES {
            assert_eq!(meaning(Asked::Bot, 400, Some(code)), known, "{code}");
        }
    }

    #[test]
    fn refusals_mean_what_they_mean_where_they_come() {
        use Asked::{Bot, CreateWithNonce, Interaction, Webhook};
        for (asked, status, code, expected) in [
            (CreateWithNonce, 404, Some(10008), Meaning::SentAndDeleted),
            (Bot, 404, Some(10008), Meaning::Gone(What::Message)),
            (CreateWithNonce, 404, Some(10003), Meaning::Gone(What::Channel)),
            (Bot, 403, Some(50001), Meaning::LostAccess),
            (Bot, 403, Some(50013), Meaning::Forbidden),
            (Bot, 403, None, Meaning::Forbidden),
            (Bot, 403, Some(0), Meaning::Forbidden),
            (Bot, 404, Some(0), Meaning::Temporary),
            (Bot, 404, None, Meaning::Temporary),
            (Bot, 401, Some(0), Meaning::Unauthorized),
            (Bot, 401, Some(40001), Meaning::Unauthorized),
            (Webhook, 401, Some(50027), Meaning::Gone(What::Webhook)),
            (Webhook, 401, Some(0), Meaning::Gone(What::Webhook)),
            (Webhook, 404, Some(10015), Meaning::Gone(What::Webhook)),
            (Interaction, 404, Some(10015), Meaning::TooLate),
            (Interaction, 401, Some(50027), Meaning::TooLate),
            (Interaction, 404, Some(10062), Meaning::TooLate),
            (Interaction, 400, Some(40060), Meaning::AlreadyAnswered),
            (Interaction, 404, Some(10008), Meaning::Gone(What::Message)),
            (Bot, 400, Some(50083), Meaning::Archived),
            (Bot, 400, Some(160_005), Meaning::Locked),
            (Bot, 400, Some(160_004), Meaning::AlreadyThere),
            (Bot, 400, Some(160_006), Meaning::Full),
            (Bot, 429, Some(30046), Meaning::OldEdits),
            (Bot, 429, None, Meaning::Temporary),
            (Bot, 400, Some(50035), Meaning::Invalid),
            (Bot, 400, Some(999_999), Meaning::Invalid),
            (CreateWithNonce, 413, Some(40005), Meaning::TooLarge),
            (CreateWithNonce, 400, Some(50045), Meaning::TooLarge),
            (CreateWithNonce, 413, None, Meaning::TooLarge),
            (Bot, 502, None, Meaning::Temporary),
            (Bot, 302, None, Meaning::Invalid),
        ] {
            assert_eq!(meaning(asked, status, code), expected, "{asked:?} {status} {code:?}");
        }
    }

    #[test]
    fn nothing_that_somebody_can_mend_is_an_end() {
        for (meaning, again) in [
            (Meaning::Gone(What::Channel), false),
            (Meaning::SentAndDeleted, false),
            (Meaning::LostAccess, true),
            (Meaning::Forbidden, true),
            (Meaning::Archived, true),
            (Meaning::Invalid, false),
            (Meaning::TooLarge, false),
            (Meaning::Unauthorized, true),
            (Meaning::NotSent, true),
        ] {
            assert_eq!(meaning.again(), again, "{meaning:?}");
        }
    }
}
