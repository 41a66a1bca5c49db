//! What Discord's refusals mean for us: one table. Source: Discord's reference, "Opcodes and Status Codes".

/// Something that is not there any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum What {
    /// An application or one of its commands.
    Application,
    /// A channel or a thread.
    Channel,
    /// A server.
    Guild,
    /// A member of a server, or a person.
    Member,
    /// A message.
    Message,
    /// A webhook, or its token.
    Webhook,
    /// An emoji.
    Emoji,
    /// Something else that the path named.
    Other,
}

impl What {
    /// The word in messages.
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

/// What a refusal means. The request was provably not carried out, but for what is named otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Meaning {
    /// It does not exist any more and will not come back.
    Gone(What),
    /// The message with this nonce was sent, and somebody deleted it: it must not be sent again.
    SentAndDeleted,
    /// The bot cannot see the channel any more. Somebody can let it in again, so this is no end by itself.
    LostAccess,
    /// The bot lacks a permission here. Somebody can give it.
    Forbidden,
    /// The thread is archived: it must be opened before this is possible.
    Archived,
    /// The thread is locked: only who may manage threads can write.
    Locked,
    /// There are as many of these as there may be: threads, webhooks, pins.
    Full,
    /// The thread of this message is there already; its id is the message's.
    AlreadyThere,
    /// The interaction has had its first answer already.
    AlreadyAnswered,
    /// The interaction is not open any more: three seconds for the first answer, fifteen minutes for the others.
    TooLate,
    /// Edits of messages older than an hour are used up in this channel for now.
    OldEdits,
    /// A budget of Discord's that has no header is used up for now.
    Slow,
    /// A filter of the server took offence at what the message says.
    Filtered,
    /// What was asked can never be: too long, empty, the wrong kind of channel.
    Invalid,
    /// Its files are larger than what Discord takes here.
    TooLarge,
    /// Discord does not take the bot's token. Whoever runs the gateway can give it another one.
    Unauthorized,
    /// Discord is not able to do it at the moment.
    Temporary,
    /// It never left this machine.
    NotSent,
}

impl Meaning {
    /// The word in metrics.
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

    /// Whether the very same request may be taken later, without anybody changing what it says. A refused token is
    /// followed by another one: nothing that waits is lost by it.
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

/// The codes that mean one thing wherever they come.
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

/// Where a refusal came from, as far as that changes what it means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// A message was made, with a nonce.
    CreateWithNonce,
    /// The path names an open interaction by its token.
    Interaction,
    /// The path names a webhook by its token.
    Webhook,
    /// Anything else, with the bot's token.
    Bot,
}

/// What a refusal means: `code` is Discord's own, 0 or none where the answer was not Discord's.
#[must_use]
pub fn meaning(asked: Asked, status: u16, code: Option<u32>) -> Meaning {
    let code = code.filter(|code| *code != 0);
    match (asked, code) {
        // A nonce that Discord knows, whose message is not there any more (docs pull request 6647).
        (Asked::CreateWithNonce, Some(10008)) => return Meaning::SentAndDeleted,
        // Interactions answer as webhooks of the application: their tokens run out.
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
        // A 403 without a reason may be a guard before Discord: nothing is ended for it.
        (_, 403) => Meaning::Forbidden,
        (_, 413) => Meaning::TooLarge,
        // Nor for a 404 that does not say what is missing.
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
