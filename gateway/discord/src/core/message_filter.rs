//! Classification of incoming messages: separates messages of users from the bot's own.

use super::event::Message;
use super::ids::Snowflake;
use std::collections::BTreeSet;

/// Ids by which the bot recognises its own messages, and the policy for other bots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BotIdentity {
    /// User of the bot.
    pub me: Snowflake,
    /// Application of the bot.
    pub application: Snowflake,
    /// Webhooks that the bot uses.
    pub webhooks: BTreeSet<Snowflake>,
    /// True if messages of other bots are accepted.
    pub accepts_bots: bool,
}

/// Class of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageClass {
    /// Message of a user, or of another bot if these are accepted.
    User,
    /// Message of this bot: proof that it was sent.
    Own {
        /// Nonce of the message; webhook messages have none.
        nonce: Option<String>,
        /// Message id.
        message: Snowflake,
    },
    /// System message, for example about a new member, a pin or a new thread.
    System,
    /// Message of another bot.
    Bot,
}

/// Types of messages that have an author's text: default, reply, response to a slash command, response to a
/// context menu command (documentation, "Message Types").
const TEXT_MESSAGE_KINDS: [u64; 4] = [0, 19, 20, 23];

/// Classifies a message. The bot's own messages of any type come first, since they prove what was sent.
#[must_use]
pub fn classify_message(identity: &BotIdentity, message: &Message) -> MessageClass {
    let author = &message.author.user;
    let hook = message.webhook;
    // Interaction responses come through a webhook with the application's id.
    let ours = author.id == identity.me
        || hook.is_some_and(|hook| hook == identity.application || identity.webhooks.contains(&hook))
        || message.application == Some(identity.application);
    if ours {
        return MessageClass::Own { nonce: message.nonce.clone(), message: message.id };
    }
    if !TEXT_MESSAGE_KINDS.contains(&message.kind) {
        return MessageClass::System;
    }
    if (author.bot || hook.is_some()) && !identity.accepts_bots {
        return MessageClass::Bot;
    }
    MessageClass::User
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::event::{User, samples};

    const ME: Snowflake = Snowflake(1);
    const APP: Snowflake = Snowflake(2);
    const HOOK: Snowflake = Snowflake(3);

    fn identity(accepts_bots: bool) -> BotIdentity {
        BotIdentity { me: ME, application: APP, webhooks: BTreeSet::from([HOOK]), accepts_bots }
    }

    fn message(author: u64, bot: bool, webhook: Option<u64>, kind: u64) -> Message {
        let webhook = webhook.map(Snowflake);
        Message { webhook, kind, ..samples::message(100, samples::member(author, bot)) }
    }

    #[test]
    fn author_decides_message_class() {
        let own = || MessageClass::Own { nonce: None, message: Snowflake(100) };
        for (author, bot, webhook, kind, ignoring_bots, accepting_bots) in [
            // User messages: plain, reply.
            (9, false, None, 0, MessageClass::User, MessageClass::User),
            (9, false, None, 19, MessageClass::User, MessageClass::User),
            // System messages: member joined, pin, thread created, thread starter message, unknown type.
            (9, false, None, 7, MessageClass::System, MessageClass::System),
            (9, false, None, 6, MessageClass::System, MessageClass::System),
            (9, false, None, 18, MessageClass::System, MessageClass::System),
            (9, false, None, 21, MessageClass::System, MessageClass::System),
            (9, false, None, 99, MessageClass::System, MessageClass::System),
            // Other bots: a message, a command response, a foreign webhook.
            (8, true, None, 0, MessageClass::Bot, MessageClass::User),
            (8, true, None, 20, MessageClass::Bot, MessageClass::User),
            (7, true, Some(7), 0, MessageClass::Bot, MessageClass::User),
            (7, false, Some(7), 0, MessageClass::Bot, MessageClass::User),
            (8, true, None, 7, MessageClass::System, MessageClass::System),
            // Own messages, always recognised: the bot, its webhook, an interaction response, a system
            // message.
            (1, true, None, 0, own(), own()),
            (1, true, None, 18, own(), own()),
            (3, true, Some(3), 0, own(), own()),
            (2, true, Some(2), 20, own(), own()),
        ] {
            let message = message(author, bot, webhook, kind);
            let classes =
                (classify_message(&identity(false), &message), classify_message(&identity(true), &message));
            assert_eq!(
                classes,
                (ignoring_bots, accepting_bots),
                "author {author} bot {bot} webhook {webhook:?} kind {kind}"
            );
        }
    }

    #[test]
    fn only_own_messages_keep_their_nonce() {
        let mut own = message(1, true, None, 0);
        own.nonce = Some("n1".to_owned());
        let class = classify_message(&identity(true), &own);
        assert_eq!(class, MessageClass::Own { nonce: Some("n1".to_owned()), message: Snowflake(100) });
        own.author.user = User { id: Snowflake(9), bot: false, ..own.author.user };
        assert_eq!(classify_message(&identity(true), &own), MessageClass::User);
    }

    #[test]
    fn unknown_webhook_of_own_application_is_own() {
        let mut new = message(44, true, Some(44), 0);
        new.application = Some(APP);
        assert!(matches!(classify_message(&identity(true), &new), MessageClass::Own { .. }));
    }
}
