//! Recognition of a message of this bot in a channel's history, after a request with an unknown outcome
//! (H12).

use crate::core::event::Message;
use crate::core::ids::Snowflake;
use std::collections::HashSet;

/// Characteristics of the message to find.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentMessageQuery {
    /// User id of the bot.
    pub me: Snowflake,
    /// Nonce of the message.
    pub nonce: String,
    /// Text of the message.
    pub content: String,
    /// Sizes of the attachments, in bytes.
    pub attachments: Vec<u64>,
    /// Custom id of a button that no other message has. If set, the text is not compared.
    pub button: Option<String>,
    /// Ids of other messages of this bot, which are skipped.
    pub known: HashSet<Snowflake>,
    /// Application whose webhooks may have sent the message; `None` if only the bot user can have.
    pub application: Option<Snowflake>,
}

/// Normalises a text as Discord does, as far as known: without surrounding white space, lines ended by a line
/// feed. Both sides of a comparison are normalised, so this need not match Discord exactly.
#[must_use]
pub fn normalize(text: &str) -> String {
    let text = text.replace("\r\n", "\n").replace('\r', "\n").replace('\0', "");
    text.trim().to_owned()
}

impl SentMessageQuery {
    /// True if a message is the one to find. Decided by the nonce if the message has one, else by the unique
    /// button, else by text and attachments.
    #[must_use]
    pub fn matches(&self, message: &Message) -> bool {
        if !self.is_by_bot(message) || self.known.contains(&message.id) {
            return false;
        }
        match (&message.nonce, &self.button) {
            (Some(nonce), _) => *nonce == self.nonce,
            (None, Some(button)) => message.buttons.contains(button),
            (None, None) => {
                let files = message.attachments.iter().map(|file| file.size);
                normalize(&message.text) == normalize(&self.content)
                    && files.eq(self.attachments.iter().copied())
            }
        }
    }

    /// True if the bot user or a webhook of the application wrote the message. A webhook with the
    /// application's id marks an interaction response, which the bot user wrote.
    fn is_by_bot(&self, message: &Message) -> bool {
        let through = self.application.is_some_and(|application| {
            message.application == Some(application)
                && message.webhook.is_some_and(|hook| hook != application)
        });
        message.author.user.id == self.me || through
    }

    /// Returns the oldest message of a page that matches.
    #[must_use]
    pub fn find(&self, page: &[Message]) -> Option<Snowflake> {
        page.iter().filter(|message| self.matches(message)).map(|message| message.id).min()
    }
}

/// Returns an id older than all messages sent since `first_attempt_ms` (milliseconds since the Unix epoch),
/// even if the local clock is up to `skew_ms` ahead of Discord's.
#[must_use]
pub const fn search_start(first_attempt_ms: u64, skew_ms: u64) -> Snowflake {
    Snowflake::from_ms(first_attempt_ms.saturating_sub(skew_ms))
}

/// Returns the start of the next page: the newest message of this one, or `None` if this page was not full.
#[must_use]
pub fn next_page(page: &[Message], asked_for: usize) -> Option<Snowflake> {
    if page.len() < asked_for { None } else { page.iter().map(|message| message.id).max() }
}

#[cfg(test)]
mod tests {
    use super::{SentMessageQuery, next_page, normalize, search_start};
    use crate::core::event::{Attachment, Message, samples};
    use crate::core::ids::Snowflake;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn message_by(id: u64, author: u64, text: &str, nonce: Option<&str>) -> Message {
        let nonce = nonce.map(str::to_owned);
        Message { text: text.to_owned(), nonce, ..samples::message(id, samples::member(author, true)) }
    }

    fn with_files(sizes: &[u64], message: Message) -> Message {
        let file =
            |size: &u64| Attachment { name: String::new(), url: String::new(), size: *size, mime: None };
        Message { attachments: sizes.iter().map(file).collect(), ..message }
    }

    fn query(content: &str) -> SentMessageQuery {
        SentMessageQuery {
            me: Snowflake(7),
            nonce: "n1".to_owned(),
            content: content.to_owned(),
            attachments: Vec::new(),
            button: None,
            known: HashSet::from([Snowflake(11)]),
            application: None,
        }
    }

    /// Agents do not speak through webhooks of another application, nor through interaction responses.
    #[test]
    fn own_webhook_messages_match_only_webhook_searches() {
        let by = |hook: u64, application: Option<u64>| Message {
            webhook: Some(Snowflake(hook)),
            application: application.map(Snowflake),
            ..message_by(12, hook, "hello", None)
        };
        for (message, through_webhooks, by_the_bot) in [
            (by(40, Some(5)), true, false),
            (by(41, Some(5)), true, false),
            (by(40, Some(6)), false, false),
            (by(40, None), false, false),
            (by(5, Some(5)), false, false),
            (message_by(12, 7, "hello", None), true, true),
            (Message { id: Snowflake(11), ..by(40, Some(5)) }, false, false),
            (Message { text: "another".to_owned(), ..by(40, Some(5)) }, false, false),
        ] {
            let of = |application| SentMessageQuery { application, ..query("hello") }.matches(&message);
            assert_eq!((of(Some(Snowflake(5))), of(None)), (through_webhooks, by_the_bot), "{message:?}");
        }
    }

    #[test]
    fn message_matches_by_nonce_or_content() {
        for (row, message, matches) in [
            ("the same", message_by(12, 7, "hello", None), true),
            ("same text by another author", message_by(12, 8, "hello", None), false),
            ("known message", message_by(11, 7, "hello", None), false),
            ("another text", message_by(12, 7, "hello.", None), false),
            ("trimmed by Discord", message_by(12, 7, "hello", None), true),
            ("same nonce", message_by(12, 7, "edited", Some("n1")), true),
            ("same text, other nonce", message_by(12, 7, "hello", Some("n2")), false),
            ("same nonce by another author", message_by(12, 8, "hello", Some("n1")), false),
            ("unexpected attachment", with_files(&[3], message_by(12, 7, "hello", None)), false),
        ] {
            assert_eq!(query("  hello\r\n").matches(&message), matches, "{row}");
        }
        let with_file = SentMessageQuery { attachments: vec![3, 4], ..query("") };
        assert!(with_file.matches(&with_files(&[3, 4], message_by(12, 7, "", None))));
        assert!(!with_file.matches(&message_by(12, 7, "", None)));
        let with_button = SentMessageQuery { button: Some("acp1:stop".to_owned()), ..query("") };
        let card = |text: &str, carried: &str| Message {
            buttons: vec![carried.to_owned()],
            ..message_by(12, 7, text, None)
        };
        assert!(with_button.matches(&card("edited text", "acp1:stop")));
        assert!(!with_button.matches(&card("", "acp1:stop another")));
        assert!(!with_button.matches(&message_by(12, 7, "", None)));
    }

    #[test]
    fn oldest_match_wins_and_pages_ascend() {
        let page = [message_by(15, 7, "a", None), message_by(13, 7, "a", None), message_by(11, 7, "a", None)];
        assert_eq!(query("a").find(&page), Some(Snowflake(13)));
        assert_eq!(query("b").find(&page), None);
        assert_eq!(next_page(&page, 3), Some(Snowflake(15)));
        assert_eq!(next_page(&page, 4), None);
        assert_eq!(next_page(&[], 100), None);
    }

    #[test]
    fn search_starts_before_the_first_attempt() {
        let at = 1_790_000_000_000;
        assert!(search_start(at, 60_000).created_at_ms() == at - 60_000);
        assert!(search_start(at, 0) <= Snowflake::from_ms(at));
        assert_eq!(search_start(0, 1000), Snowflake(0));
    }

    proptest! {
        /// A message is found after Discord has trimmed its text; an excluded message never is.
        #[test]
        fn sent_text_matches_after_trimming(text in "\\PC{0,40}", before in "[ \n\t\r]{0,3}", after in "[ \n\r]{0,3}") {
            let kept = text.trim();
            let query = query(&format!("{before}{text}{after}"));
            prop_assert!(query.matches(&message_by(20, 7, kept, None)));
            prop_assert!(!query.matches(&message_by(11, 7, kept, None)));
            let once = normalize(&query.content);
            prop_assert_eq!(normalize(&once), once);
        }
    }
}
