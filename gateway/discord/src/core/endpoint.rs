//! Routes: one function for each kind of request, with the properties that follow from the kind.

use crate::core::buckets::{MajorParam, RouteName};
use crate::core::errors::RequestKind;
use crate::core::ids::Snowflake;
use acp_shared::redact::Secret;
use std::fmt;
use std::fmt::Write as _;

use HttpMethod::{Delete, Get, Patch, Post, Put};
use RetrySafety::{Create, Idempotent, ReadOnly};

/// HTTP method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpMethod {
    /// Reads.
    Get,
    /// Creates.
    Post,
    /// Sets.
    Put,
    /// Changes.
    Patch,
    /// Deletes.
    Delete,
}

/// Effect of a repetition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetrySafety {
    /// None: the request only reads.
    ReadOnly,
    /// The same state as after the first request.
    Idempotent,
    /// A second object.
    Create,
}

/// Route of a request: method, path and limits. `Debug` shows only the name, since paths hold tokens.
#[derive(Clone, PartialEq, Eq)]
pub struct Route {
    /// Name in metrics and logs, and key of the learnt bucket.
    pub name: RouteName,
    /// HTTP method.
    pub method: HttpMethod,
    /// Path below the API's address.
    pub path: String,
    /// Major parameter of the bucket.
    pub major: MajorParam,
    /// Effect of a repetition.
    pub retry_safety: RetrySafety,
    /// Kind of token that the request uses.
    pub request_kind: RequestKind,
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Selection of a channel's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Page {
    /// The newest messages.
    Newest,
    /// The messages after this one.
    After(Snowflake),
}

/// Maximum number of messages on one page.
pub const PAGE_MAX: u8 = 100;

/// Percent-encodes a text as one path segment. Dots are encoded in `.` and `..`.
fn segment(text: &str) -> String {
    let dots = text.bytes().all(|byte| byte == b'.');
    let mut out = String::new();
    for byte in text.bytes() {
        let plain = matches!(byte, b'-' | b'_' | b'~') || (byte == b'.' && !dots);
        if byte.is_ascii_alphanumeric() || plain {
            out.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

impl Route {
    const fn bot(
        name: RouteName,
        method: HttpMethod,
        retry_safety: RetrySafety,
        path: String,
        major: MajorParam,
    ) -> Self {
        Self { name, method, path, major, retry_safety, request_kind: RequestKind::Bot }
    }

    fn channel(
        name: RouteName,
        method: HttpMethod,
        retry_safety: RetrySafety,
        channel: Snowflake,
        rest: &str,
    ) -> Self {
        Self::bot(
            name,
            method,
            retry_safety,
            format!("/channels/{channel}{rest}"),
            MajorParam::Channel(channel.0),
        )
    }

    fn plain(name: RouteName, path: &str) -> Self {
        Self::bot(name, Get, ReadOnly, path.to_owned(), MajorParam::None)
    }

    /// Creates a message with a nonce.
    #[must_use]
    pub fn create_message(channel: Snowflake) -> Self {
        let route = Self::channel("create_message", Post, Create, channel, "/messages");
        Self { request_kind: RequestKind::CreateWithNonce, ..route }
    }

    /// Edits a message of this bot.
    #[must_use]
    pub fn edit_message(channel: Snowflake, message: Snowflake) -> Self {
        let rest = format!("/messages/{message}");
        Self::channel("edit_message", Patch, Idempotent, channel, &rest)
    }

    /// Reads a message.
    #[must_use]
    pub fn get_message(channel: Snowflake, message: Snowflake) -> Self {
        let rest = format!("/messages/{message}");
        Self::channel("get_message", Get, ReadOnly, channel, &rest)
    }

    /// Reads a page of messages. `limit` is clamped to 1 to 100.
    #[must_use]
    pub fn get_messages(channel: Snowflake, page: Page, limit: u8) -> Self {
        let limit = limit.clamp(1, PAGE_MAX);
        let mut rest = format!("/messages?limit={limit}");
        if let Page::After(id) = page {
            // Writing to a string cannot fail.
            let _ = write!(rest, "&after={id}");
        }
        Self::channel("get_messages", Get, ReadOnly, channel, &rest)
    }

    /// Starts a thread from a message. The thread has the id of the message, so a repetition finds it.
    #[must_use]
    pub fn thread_from_message(channel: Snowflake, message: Snowflake) -> Self {
        let rest = format!("/messages/{message}/threads");
        Self::channel("thread_from_message", Post, Idempotent, channel, &rest)
    }

    /// Reads a channel or a thread.
    #[must_use]
    pub fn get_channel(channel: Snowflake) -> Self {
        Self::channel("get_channel", Get, ReadOnly, channel, "")
    }

    /// Shows the typing indicator for ten seconds.
    #[must_use]
    pub fn typing(channel: Snowflake) -> Self {
        Self::channel("typing", Post, Idempotent, channel, "/typing")
    }

    /// Adds a reaction of the bot: a Unicode emoji, or `name:id` of a custom emoji.
    #[must_use]
    pub fn add_reaction(channel: Snowflake, message: Snowflake, emoji: &str) -> Self {
        let rest = format!("/messages/{message}/reactions/{}/@me", segment(emoji));
        Self::channel("add_reaction", Put, Idempotent, channel, &rest)
    }

    /// Removes a reaction of the bot.
    #[must_use]
    pub fn remove_reaction(channel: Snowflake, message: Snowflake, emoji: &str) -> Self {
        let rest = format!("/messages/{message}/reactions/{}/@me", segment(emoji));
        Self::channel("remove_reaction", Delete, Idempotent, channel, &rest)
    }

    /// Replaces all slash commands, global or of one guild.
    #[must_use]
    pub fn put_commands(application: Snowflake, guild: Option<Snowflake>) -> Self {
        let path = match guild {
            None => format!("/applications/{application}/commands"),
            Some(guild) => format!("/applications/{application}/guilds/{guild}/commands"),
        };
        let (name, major) = match guild {
            None => ("put_commands", MajorParam::None),
            Some(guild) => ("put_guild_commands", MajorParam::Guild(guild.0)),
        };
        Self::bot(name, Put, Idempotent, path, major)
    }

    /// Reads the user of the bot.
    #[must_use]
    pub fn me() -> Self {
        Self::plain("me", "/users/@me")
    }

    /// Lists the guilds of the bot.
    #[must_use]
    pub fn guilds() -> Self {
        Self::plain("guilds", "/users/@me/guilds")
    }

    /// Reads the application of the bot.
    #[must_use]
    pub fn application() -> Self {
        Self::plain("application", "/applications/@me")
    }

    /// Reads a member of a guild.
    #[must_use]
    pub fn member(guild: Snowflake, user: Snowflake) -> Self {
        let path = format!("/guilds/{guild}/members/{user}");
        Self::bot("member", Get, ReadOnly, path, MajorParam::Guild(guild.0))
    }

    /// True if the request posts a message, which unarchives an archived thread.
    #[must_use]
    pub const fn posts_message(&self) -> bool {
        matches!(
            (self.retry_safety, self.request_kind),
            (_, RequestKind::CreateWithNonce) | (Create, RequestKind::Webhook)
        )
    }

    /// Creates a webhook.
    #[must_use]
    pub fn create_webhook(channel: Snowflake) -> Self {
        Self::channel("create_webhook", Post, Create, channel, "/webhooks")
    }

    /// Lists the webhooks of a channel.
    #[must_use]
    pub fn list_webhooks(channel: Snowflake) -> Self {
        Self::channel("list_webhooks", Get, ReadOnly, channel, "/webhooks")
    }

    /// Sends a message through a webhook, and waits for its creation.
    #[must_use]
    pub fn execute_webhook(id: Snowflake, token: &Secret, thread: Option<Snowflake>) -> Self {
        let thread = thread.map(|thread| format!("&thread_id={thread}")).unwrap_or_default();
        Self {
            name: "execute_webhook",
            method: Post,
            path: format!("/webhooks/{id}/{}?wait=true{thread}", segment(token.expose())),
            major: MajorParam::Webhook(id.0, token.clone()),
            retry_safety: Create,
            request_kind: RequestKind::Webhook,
        }
    }

    /// Sends the first response to an interaction.
    #[must_use]
    pub fn callback(id: Snowflake, token: &Secret) -> Self {
        Self {
            name: "interaction_callback",
            method: Post,
            path: format!("/interactions/{id}/{}/callback", segment(token.expose())),
            major: MajorParam::Interaction(id.0, token.clone()),
            retry_safety: Create,
            request_kind: RequestKind::Interaction,
        }
    }

    fn interaction(
        name: RouteName,
        method: HttpMethod,
        retry_safety: RetrySafety,
        application: Snowflake,
        token: &Secret,
        rest: &str,
    ) -> Self {
        let path = format!("/webhooks/{application}/{}{rest}", segment(token.expose()));
        let major = MajorParam::Interaction(application.0, token.clone());
        Self { name, method, path, major, retry_safety, request_kind: RequestKind::Interaction }
    }

    /// Edits the first response to an interaction.
    #[must_use]
    pub fn edit_original(application: Snowflake, token: &Secret) -> Self {
        Self::interaction("edit_original", Patch, Idempotent, application, token, "/messages/@original")
    }

    /// Deletes the first response to an interaction.
    #[must_use]
    pub fn delete_original(application: Snowflake, token: &Secret) -> Self {
        Self::interaction("delete_original", Delete, Idempotent, application, token, "/messages/@original")
    }

    /// Sends a further response to an interaction.
    #[must_use]
    pub fn followup(application: Snowflake, token: &Secret) -> Self {
        Self::interaction("followup", Post, Create, application, token, "?wait=true")
    }

    /// True if the request counts towards the global limit of the bot; interaction responses do not.
    #[must_use]
    pub fn is_global(&self) -> bool {
        !matches!(self.request_kind, RequestKind::Interaction)
    }

    /// True if the request carries the bot's token. The others have a token in their path.
    #[must_use]
    pub const fn is_bot(&self) -> bool {
        matches!(self.request_kind, RequestKind::Bot | RequestKind::CreateWithNonce)
    }
}

#[cfg(test)]
mod tests {
    use super::{Page, Route, segment};
    use crate::core::ids::Snowflake;
    use acp_shared::redact::Secret;

    #[test]
    fn paths_match_documentation() {
        let (c, m, a, g) = (Snowflake(1), Snowflake(2), Snowflake(3), Snowflake(4));
        let page = |page, limit| Route::get_messages(c, page, limit).path;
        for (path, expected) in [
            (Route::create_message(c).path, "/channels/1/messages"),
            (Route::edit_message(c, m).path, "/channels/1/messages/2"),
            (page(Page::Newest, 0), "/channels/1/messages?limit=1"),
            (page(Page::After(m), 255), "/channels/1/messages?limit=100&after=2"),
            (Route::thread_from_message(c, m).path, "/channels/1/messages/2/threads"),
            (Route::add_reaction(c, m, "👀").path, "/channels/1/messages/2/reactions/%F0%9F%91%80/@me"),
            (Route::remove_reaction(c, m, "ok:12").path, "/channels/1/messages/2/reactions/ok%3A12/@me"),
            (Route::put_commands(a, None).path, "/applications/3/commands"),
            (Route::put_commands(a, Some(g)).path, "/applications/3/guilds/4/commands"),
            (Route::member(g, m).path, "/guilds/4/members/2"),
        ] {
            assert_eq!(path, expected);
        }
        for (text, expected) in
            [("a.b-c_d", "a.b-c_d"), ("..", "%2E%2E"), ("../a?b#c", "..%2Fa%3Fb%23c"), ("ä b", "%C3%A4%20b")]
        {
            assert_eq!(segment(text), expected);
        }
    }

    #[test]
    fn tokens_appear_in_paths_only() {
        let [hook, open] = ["hook-secret", "open-secret"].map(|text| Secret::new(text.to_owned()));
        let (id, a) = (Snowflake(5), Snowflake(3));
        for (route, path) in [
            (
                Route::execute_webhook(id, &hook, Some(Snowflake(9))),
                "/webhooks/5/hook-secret?wait=true&thread_id=9",
            ),
            (Route::execute_webhook(id, &hook, None), "/webhooks/5/hook-secret?wait=true"),
            (Route::callback(Snowflake(7), &open), "/interactions/7/open-secret/callback"),
            (Route::edit_original(a, &open), "/webhooks/3/open-secret/messages/@original"),
            (Route::followup(a, &open), "/webhooks/3/open-secret?wait=true"),
        ] {
            assert_eq!(route.path, path);
            assert!(!route.is_bot());
            assert!(!format!("{route:?} {:?}", route.major).contains("secret"), "{route:?}");
        }
    }
}
