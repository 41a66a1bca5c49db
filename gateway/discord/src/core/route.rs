//! The requests that are made of Discord: one function for each, and all that follows from which one it is.

use crate::core::buckets::{Major, RouteName};
use crate::core::errors::Asked;
use crate::core::ids::Snowflake;
use acp_shared::redact::Secret;
use std::fmt;
use std::fmt::Write as _;

/// The method of HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Reads.
    Get,
    /// Makes.
    Post,
    /// Sets.
    Put,
    /// Changes.
    Patch,
    /// Takes away.
    Delete,
}

/// What a repetition does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nature {
    /// Nothing: it only reads.
    Read,
    /// What the first one did: the last one holds.
    Same,
    /// One more of it.
    Create,
}

/// One request as far as its address says it. `Debug` shows its name only: addresses hold tokens.
#[derive(Clone, PartialEq, Eq)]
pub struct Route {
    /// Its kind: the word in metrics and logs, and what its bucket is learnt by.
    pub name: RouteName,
    /// The method.
    pub verb: Verb,
    /// What is appended to the address of the interface.
    pub path: String,
    /// What its bucket belongs to.
    pub major: Major,
    /// What a repetition does.
    pub nature: Nature,
    /// Whose token it needs.
    pub asked: Asked,
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Which messages of a channel are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Page {
    /// The newest ones.
    Newest,
    /// The next ones after this one.
    After(Snowflake),
    /// The ones before this one.
    Before(Snowflake),
    /// Those around this one.
    Around(Snowflake),
}

/// The most messages of one page.
pub const PAGE_MAX: u8 = 100;

/// Writes a text so that it is one segment of a path, and never a step up.
fn segment(text: &str) -> String {
    let dots = text.bytes().all(|byte| byte == b'.');
    let mut out = String::new();
    for byte in text.bytes() {
        let plain = matches!(byte, b'-' | b'_' | b'~') || (byte == b'.' && !dots);
        if byte.is_ascii_alphanumeric() || plain {
            out.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

impl Route {
    const fn bot(name: RouteName, verb: Verb, nature: Nature, path: String, major: Major) -> Self {
        Self { name, verb, path, major, nature, asked: Asked::Bot }
    }

    fn channel(name: RouteName, verb: Verb, nature: Nature, channel: Snowflake, rest: &str) -> Self {
        Self::bot(name, verb, nature, format!("/channels/{channel}{rest}"), Major::Channel(channel.0))
    }

    fn guild(name: RouteName, guild: Snowflake, rest: &str) -> Self {
        Self::bot(name, Verb::Get, Nature::Read, format!("/guilds/{guild}{rest}"), Major::Guild(guild.0))
    }

    fn plain(name: RouteName, path: &str) -> Self {
        Self::bot(name, Verb::Get, Nature::Read, path.to_owned(), Major::None)
    }

    /// Makes a message with a nonce.
    #[must_use]
    pub fn create_message(channel: Snowflake) -> Self {
        let route = Self::channel("create_message", Verb::Post, Nature::Create, channel, "/messages");
        Self { asked: Asked::CreateWithNonce, ..route }
    }

    /// Changes a message of ours.
    #[must_use]
    pub fn edit_message(channel: Snowflake, message: Snowflake) -> Self {
        let rest = format!("/messages/{message}");
        Self::channel("edit_message", Verb::Patch, Nature::Same, channel, &rest)
    }

    /// Takes a message away.
    #[must_use]
    pub fn delete_message(channel: Snowflake, message: Snowflake) -> Self {
        let rest = format!("/messages/{message}");
        Self::channel("delete_message", Verb::Delete, Nature::Same, channel, &rest)
    }

    /// Reads a message.
    #[must_use]
    pub fn get_message(channel: Snowflake, message: Snowflake) -> Self {
        let rest = format!("/messages/{message}");
        Self::channel("get_message", Verb::Get, Nature::Read, channel, &rest)
    }

    /// Reads a page of messages: at most `limit`, which is brought between 1 and 100.
    #[must_use]
    pub fn get_messages(channel: Snowflake, page: Page, limit: u8) -> Self {
        let limit = limit.clamp(1, PAGE_MAX);
        let mut rest = format!("/messages?limit={limit}");
        let more = match page {
            Page::Newest => None,
            Page::After(id) => Some(("after", id)),
            Page::Before(id) => Some(("before", id)),
            Page::Around(id) => Some(("around", id)),
        };
        if let Some((name, id)) = more {
            // Writing to a string does not fail.
            let _ = write!(rest, "&{name}={id}");
        }
        Self::channel("get_messages", Verb::Get, Nature::Read, channel, &rest)
    }

    /// Starts a thread at a message. Its id is the message's, so that a repetition finds it.
    #[must_use]
    pub fn thread_from_message(channel: Snowflake, message: Snowflake) -> Self {
        let rest = format!("/messages/{message}/threads");
        Self::channel("thread_from_message", Verb::Post, Nature::Same, channel, &rest)
    }

    /// Starts a thread that belongs to no message.
    #[must_use]
    pub fn thread(channel: Snowflake) -> Self {
        Self::channel("thread", Verb::Post, Nature::Create, channel, "/threads")
    }

    /// Reads a channel or a thread.
    #[must_use]
    pub fn get_channel(channel: Snowflake) -> Self {
        Self::channel("get_channel", Verb::Get, Nature::Read, channel, "")
    }

    /// Changes a channel or a thread.
    #[must_use]
    pub fn modify_channel(channel: Snowflake) -> Self {
        Self::channel("modify_channel", Verb::Patch, Nature::Same, channel, "")
    }

    /// Joins a thread.
    #[must_use]
    pub fn join_thread(thread: Snowflake) -> Self {
        Self::channel("join_thread", Verb::Put, Nature::Same, thread, "/thread-members/@me")
    }

    /// Shows the sign of work for ten seconds.
    #[must_use]
    pub fn typing(channel: Snowflake) -> Self {
        Self::channel("typing", Verb::Post, Nature::Same, channel, "/typing")
    }

    /// Adds a reaction of ours: an emoji itself, or `name:id` of a server's own.
    #[must_use]
    pub fn add_reaction(channel: Snowflake, message: Snowflake, emoji: &str) -> Self {
        let rest = format!("/messages/{message}/reactions/{}/@me", segment(emoji));
        Self::channel("add_reaction", Verb::Put, Nature::Same, channel, &rest)
    }

    /// Takes a reaction of ours away.
    #[must_use]
    pub fn remove_reaction(channel: Snowflake, message: Snowflake, emoji: &str) -> Self {
        let rest = format!("/messages/{message}/reactions/{}/@me", segment(emoji));
        Self::channel("remove_reaction", Verb::Delete, Nature::Same, channel, &rest)
    }

    /// Says which slash commands there are, everywhere or in one server.
    #[must_use]
    pub fn put_commands(application: Snowflake, guild: Option<Snowflake>) -> Self {
        let path = match guild {
            None => format!("/applications/{application}/commands"),
            Some(guild) => format!("/applications/{application}/guilds/{guild}/commands"),
        };
        let (name, major) = match guild {
            None => ("put_commands", Major::None),
            Some(guild) => ("put_guild_commands", Major::Guild(guild.0)),
        };
        Self::bot(name, Verb::Put, Nature::Same, path, major)
    }

    /// Asks where the websocket is, how many shards there should be and how many sessions may be begun.
    #[must_use]
    pub fn gateway() -> Self {
        Self::plain("gateway", "/gateway/bot")
    }

    /// Asks who the bot is.
    #[must_use]
    pub fn me() -> Self {
        Self::plain("me", "/users/@me")
    }

    /// Asks which application the bot belongs to.
    #[must_use]
    pub fn application() -> Self {
        Self::plain("application", "/applications/@me")
    }

    /// Reads a member of a server.
    #[must_use]
    pub fn member(guild: Snowflake, user: Snowflake) -> Self {
        Self::guild("member", guild, &format!("/members/{user}"))
    }

    /// Reads the roles of a server.
    #[must_use]
    pub fn roles(guild: Snowflake) -> Self {
        Self::guild("roles", guild, "/roles")
    }

    /// Reads a server.
    #[must_use]
    pub fn get_guild(guild: Snowflake) -> Self {
        Self::guild("guild", guild, "")
    }

    /// Lists the channels of a server.
    #[must_use]
    pub fn guild_channels(guild: Snowflake) -> Self {
        Self::guild("guild_channels", guild, "/channels")
    }

    /// Lists the threads of a server that are not archived.
    #[must_use]
    pub fn active_threads(guild: Snowflake) -> Self {
        Self::guild("active_threads", guild, "/threads/active")
    }

    /// Whether it says something new in a channel or thread, which takes a thread out that was put away.
    #[must_use]
    pub const fn says_something(&self) -> bool {
        matches!((self.nature, self.asked), (_, Asked::CreateWithNonce) | (Nature::Create, Asked::Webhook))
    }

    /// Makes a webhook.
    #[must_use]
    pub fn create_webhook(channel: Snowflake) -> Self {
        Self::channel("create_webhook", Verb::Post, Nature::Create, channel, "/webhooks")
    }

    /// Lists the webhooks of a channel.
    #[must_use]
    pub fn list_webhooks(channel: Snowflake) -> Self {
        Self::channel("list_webhooks", Verb::Get, Nature::Read, channel, "/webhooks")
    }

    fn webhook(name: RouteName, verb: Verb, nature: Nature, of: (Snowflake, &Secret), rest: &str) -> Self {
        let (id, token) = of;
        let path = format!("/webhooks/{id}/{}{rest}", segment(token.expose()));
        let major = Major::Webhook(id.0, token.clone());
        Self { name, verb, path, major, nature, asked: Asked::Webhook }
    }

    fn in_thread(thread: Option<Snowflake>, first: char) -> String {
        thread.map(|thread| format!("{first}thread_id={thread}")).unwrap_or_default()
    }

    /// Sends a message through a webhook, and waits until it is there.
    #[must_use]
    pub fn execute_webhook(id: Snowflake, token: &Secret, thread: Option<Snowflake>) -> Self {
        let rest = format!("?wait=true{}", Self::in_thread(thread, '&'));
        Self::webhook("execute_webhook", Verb::Post, Nature::Create, (id, token), &rest)
    }

    /// Changes a message of a webhook.
    #[must_use]
    pub fn edit_webhook_message(
        id: Snowflake,
        token: &Secret,
        message: Snowflake,
        thread: Option<Snowflake>,
    ) -> Self {
        let rest = format!("/messages/{message}{}", Self::in_thread(thread, '?'));
        Self::webhook("edit_webhook_message", Verb::Patch, Nature::Same, (id, token), &rest)
    }

    /// Takes a message of a webhook away.
    #[must_use]
    pub fn delete_webhook_message(
        id: Snowflake,
        token: &Secret,
        message: Snowflake,
        thread: Option<Snowflake>,
    ) -> Self {
        let rest = format!("/messages/{message}{}", Self::in_thread(thread, '?'));
        Self::webhook("delete_webhook_message", Verb::Delete, Nature::Same, (id, token), &rest)
    }

    /// Takes a webhook away.
    #[must_use]
    pub fn delete_webhook(id: Snowflake) -> Self {
        let major = Major::None;
        Self::bot("delete_webhook", Verb::Delete, Nature::Same, format!("/webhooks/{id}"), major)
    }

    /// Gives an interaction its first answer.
    #[must_use]
    pub fn callback(id: Snowflake, token: &Secret) -> Self {
        Self {
            name: "interaction_callback",
            verb: Verb::Post,
            path: format!("/interactions/{id}/{}/callback", segment(token.expose())),
            major: Major::Interaction(id.0, token.clone()),
            nature: Nature::Create,
            asked: Asked::Interaction,
        }
    }

    fn interaction(name: RouteName, verb: Verb, nature: Nature, of: Of<'_>, rest: &str) -> Self {
        let Of(application, token) = of;
        let path = format!("/webhooks/{application}/{}{rest}", segment(token.expose()));
        let major = Major::Interaction(application.0, token.clone());
        Self { name, verb, path, major, nature, asked: Asked::Interaction }
    }

    /// Changes the first answer to an interaction.
    #[must_use]
    pub fn edit_original(application: Snowflake, token: &Secret) -> Self {
        let rest = "/messages/@original";
        Self::interaction("edit_original", Verb::Patch, Nature::Same, Of(application, token), rest)
    }

    /// Takes the first answer to an interaction away.
    #[must_use]
    pub fn delete_original(application: Snowflake, token: &Secret) -> Self {
        let rest = "/messages/@original";
        Self::interaction("delete_original", Verb::Delete, Nature::Same, Of(application, token), rest)
    }

    /// Gives an interaction one more answer.
    #[must_use]
    pub fn followup(application: Snowflake, token: &Secret) -> Self {
        let rest = "?wait=true";
        Self::interaction("followup", Verb::Post, Nature::Create, Of(application, token), rest)
    }

    /// Whether it counts against all requests of the bot: what is said to interactions does not.
    #[must_use]
    pub fn is_global(&self) -> bool {
        !matches!(self.asked, Asked::Interaction)
    }

    /// Whether it carries the bot's token. The others have one in their address, and need no other.
    #[must_use]
    pub const fn is_bot(&self) -> bool {
        matches!(self.asked, Asked::Bot | Asked::CreateWithNonce)
    }
}

/// An interaction: whose, and its token.
struct Of<'a>(Snowflake, &'a Secret);

#[cfg(test)]
mod tests {
    use super::{Page, Route, segment};
    use crate::core::ids::Snowflake;
    use acp_shared::redact::Secret;

    #[test]
    fn paths_are_discords() {
        let (c, m, a, g) = (Snowflake(1), Snowflake(2), Snowflake(3), Snowflake(4));
        let page = |page, limit| Route::get_messages(c, page, limit).path;
        for (path, expected) in [
            (Route::create_message(c).path, "/channels/1/messages"),
            (Route::edit_message(c, m).path, "/channels/1/messages/2"),
            (page(Page::Newest, 0), "/channels/1/messages?limit=1"),
            (page(Page::After(m), 100), "/channels/1/messages?limit=100&after=2"),
            (page(Page::Before(m), 255), "/channels/1/messages?limit=100&before=2"),
            (page(Page::Around(m), 7), "/channels/1/messages?limit=7&around=2"),
            (Route::thread_from_message(c, m).path, "/channels/1/messages/2/threads"),
            (Route::add_reaction(c, m, "👀").path, "/channels/1/messages/2/reactions/%F0%9F%91%80/@me"),
            (Route::remove_reaction(c, m, "ok:12").path, "/channels/1/messages/2/reactions/ok%3A12/@me"),
            (Route::put_commands(a, None).path, "/applications/3/commands"),
            (Route::put_commands(a, Some(g)).path, "/applications/3/guilds/4/commands"),
            (Route::active_threads(g).path, "/guilds/4/threads/active"),
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
    fn tokens_are_in_addresses_and_nowhere_else() {
        let [hook, open] = ["hook-secret", "open-secret"].map(|text| Secret::new(text.to_owned()));
        let (id, m, a) = (Snowflake(5), Snowflake(2), Snowflake(3));
        for (route, path) in [
            (
                Route::execute_webhook(id, &hook, Some(Snowflake(9))),
                "/webhooks/5/hook-secret?wait=true&thread_id=9",
            ),
            (
                Route::edit_webhook_message(id, &hook, m, Some(Snowflake(9))),
                "/webhooks/5/hook-secret/messages/2?thread_id=9",
            ),
            (Route::delete_webhook_message(id, &hook, m, None), "/webhooks/5/hook-secret/messages/2"),
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
