//! Classification of incoming messages: separates messages of users from echoes of the bot's own.

use super::event::Message;
use super::ids::Snowflake;
use std::collections::BTreeSet;

/// Ids by which the bot recognises its own messages, and the policy for other bots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// User of the bot.
    pub me: Snowflake,
    /// Application of the bot.
    pub application: Snowflake,
    /// Webhooks that the bot uses.
    pub webhooks: BTreeSet<Snowflake>,
    /// True if messages of other bots are accepted.
    pub hear_bots: bool,
}

/// Class of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Taken {
    /// Message of a user, or of another bot if these are accepted.
    Said,
    /// Message of this bot: proof that it was sent.
    Echo {
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
const WRITTEN: [u64; 4] = [0, 19, 20, 23];

/// Classifies a message. The bot's own messages of any type come first, since they prove what was sent.
#[must_use]
pub fn take(who: &Identity, message: &Message) -> Taken {
    let author = &message.author.user;
    let hook = message.webhook;
    // Interaction responses come through a webhook with the application's id.
    let ours = author.id == who.me
        || hook.is_some_and(|hook| hook == who.application || who.webhooks.contains(&hook))
        || message.application == Some(who.application);
    if ours {
        return Taken::Echo { nonce: message.nonce.clone(), message: message.id };
    }
    if !WRITTEN.contains(&message.kind) {
        return Taken::System;
    }
    if (author.bot || hook.is_some()) && !who.hear_bots {
        return Taken::Bot;
    }
    Taken::Said
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::event::{Member, User};

    const ME: Snowflake = Snowflake(1);
    const APP: Snowflake = Snowflake(2);
    const HOOK: Snowflake = Snowflake(3);

    fn identity(hear_bots: bool) -> Identity {
        Identity { me: ME, application: APP, webhooks: BTreeSet::from([HOOK]), hear_bots }
    }

    fn message(author: u64, bot: bool, webhook: Option<u64>, kind: u64) -> Message {
        let user = User { id: Snowflake(author), name: "ann".to_owned(), shown: None, bot };
        Message {
            id: Snowflake(100),
            channel: Snowflake(10),
            guild: None,
            author: Member { user, roles: Vec::new(), permissions: None },
            webhook: webhook.map(Snowflake),
            application: None,
            kind,
            text: "hello".to_owned(),
            attachments: Vec::new(),
            mentions: Vec::new(),
            mention_roles: Vec::new(),
            reference: None,
            nonce: None,
            buttons: Vec::new(),
            flags: 0,
        }
    }

    #[test]
    fn c13_who_wrote_decides_what_a_message_is() {
        let echo = || Taken::Echo { nonce: None, message: Snowflake(100) };
        for (author, bot, webhook, kind, quiet, hearing) in [
            // User messages: plain, reply.
            (9, false, None, 0, Taken::Said, Taken::Said),
            (9, false, None, 19, Taken::Said, Taken::Said),
            // System messages: member joined, pin, thread created, thread starter message, unknown type.
            (9, false, None, 7, Taken::System, Taken::System),
            (9, false, None, 6, Taken::System, Taken::System),
            (9, false, None, 18, Taken::System, Taken::System),
            (9, false, None, 21, Taken::System, Taken::System),
            (9, false, None, 99, Taken::System, Taken::System),
            // Other bots: a message, a command response, a foreign webhook.
            (8, true, None, 0, Taken::Bot, Taken::Said),
            (8, true, None, 20, Taken::Bot, Taken::Said),
            (7, true, Some(7), 0, Taken::Bot, Taken::Said),
            (7, false, Some(7), 0, Taken::Bot, Taken::Said),
            (8, true, None, 7, Taken::System, Taken::System),
            // Own messages, always echoes: the bot, its webhook, an interaction response, a system message.
            (1, true, None, 0, echo(), echo()),
            (1, true, None, 18, echo(), echo()),
            (3, true, Some(3), 0, echo(), echo()),
            (2, true, Some(2), 20, echo(), echo()),
        ] {
            let message = message(author, bot, webhook, kind);
            let took = (take(&identity(false), &message), take(&identity(true), &message));
            assert_eq!(took, (quiet, hearing), "author {author} bot {bot} webhook {webhook:?} kind {kind}");
        }
    }

    #[test]
    fn an_echo_brings_its_nonce_and_a_nonce_of_others_means_nothing() {
        let mut own = message(1, true, None, 0);
        own.nonce = Some("n1".to_owned());
        let taken = take(&identity(true), &own);
        assert_eq!(taken, Taken::Echo { nonce: Some("n1".to_owned()), message: Snowflake(100) });
        own.author.user = User { id: Snowflake(9), bot: false, ..own.author.user };
        assert_eq!(take(&identity(true), &own), Taken::Said);
    }

    #[test]
    fn what_a_webhook_of_our_application_says_is_ours_before_its_id_is_known() {
        let mut new = message(44, true, Some(44), 0);
        new.application = Some(APP);
        assert!(matches!(take(&identity(true), &new), Taken::Echo { .. }));
    }
}
