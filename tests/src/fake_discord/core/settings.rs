//! What a test may turn: windows, limits, and rules by name.

use super::model::Ms;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A rule that can be switched off, to see that a test of ours notices.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Rule {
            $($(#[$doc])* $name,)*
        }

        impl Rule {
            /// Every rule.
            pub const ALL: &[Self] = &[$(Self::$name,)*];
        }
    };
}

rules! {
    /// A request without a known token is refused (401).
    Authorization,
    /// Content is at most [`Settings::content_max`] long (50035).
    ContentLength,
    /// A message has content, an embed, a file or a component (50006).
    NotEmpty,
    /// Embeds keep to their limits.
    EmbedLimits,
    /// A file is at most [`Settings::file_max`] bytes (40005), and a request 25 MiB.
    FileSize,
    /// At most ten files for each message.
    FileCount,
    /// Components keep to their limits.
    ComponentLimits,
    /// Names of threads are 1 to 100 characters.
    ThreadName,
    /// Auto-archive is one of 60, 1440, 4320 and 10080 minutes.
    AutoArchive,
    /// A nonce is at most 25 characters.
    NonceLength,
    /// `enforce_nonce` gives the first message back.
    NonceDedupe,
    /// A nonce whose message was deleted gives 10008.
    NonceOfDeleted,
    /// Permissions are looked at (50001, 50013).
    Permissions,
    /// Only the author edits a message (50005).
    OnlyAuthorEdits,
    /// Nothing but posting happens in an archived thread (50083).
    ArchivedThread,
    /// Posting unarchives a thread.
    PostUnarchives,
    /// A locked archived thread takes no post (160005).
    LockedThread,
    /// A thread is made once from a message (160004).
    OneThreadPerMessage,
    /// At most so many active threads (160006).
    ActiveThreads,
    /// Threads archive themselves.
    AutoArchiving,
    /// Buckets of each route.
    RouteBuckets,
    /// 50 requests each second.
    GlobalLimit,
    /// Many invalid requests end in a ban.
    InvalidRequestBan,
    /// Edits of messages over an hour old have a small budget (30046).
    OldEdits,
    /// An interaction is answered within three seconds (10062).
    InteractionDeadline,
    /// An interaction is answered once (40060).
    InteractionOnce,
    /// An interaction's token ends after fifteen minutes.
    InteractionTokenEnds,
    /// Which response fits which interaction.
    ResponseTypes,
    /// At most fifteen webhooks in a channel (30007).
    WebhookCount,
    /// URLs of files expire.
    CdnExpiry,
    /// Commands keep to their limits.
    CommandLimits,
    /// A message without `allowed_mentions` pings as it says.
    DefaultMentions,
    /// Without the intent there is no content of others.
    MessageContentIntent,
    /// A privileged intent must be allowed (4014).
    DisallowedIntents,
    /// Nothing is sent before HELLO (4003).
    HelloFirst,
    /// Who does not beat is closed (4009).
    Heartbeats,
    /// At most 120 events each minute from a client (4008).
    ClientEvents,
    /// A client's payload is at most 4096 bytes (4002).
    ClientPayload,
    /// IDENTIFYs are counted, and end at [`Settings::identify_total`].
    IdentifyBudget,
    /// A user agent is asked for, as the documentation does.
    UserAgent,
}

/// So many requests in so long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// How many.
    pub limit: u64,
    /// In how many milliseconds.
    pub window_ms: Ms,
}

/// In what content is counted; the documentation says "characters" only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// UTF-16 code units: the strictest that clients agree with.
    Utf16,
    /// Unicode scalar values.
    Chars,
    /// Bytes of UTF-8.
    Bytes,
}

impl Unit {
    /// How long a text is.
    #[must_use]
    pub fn length(self, text: &str) -> usize {
        match self {
            Self::Utf16 => text.encode_utf16().count(),
            Self::Chars => text.chars().count(),
            Self::Bytes => text.len(),
        }
    }
}

/// What a test may turn. Lasts over a restart.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// What chance is drawn from.
    pub seed: u64,
    /// How far the fake's clock is ahead of the machine's.
    pub clock_ahead_ms: Ms,
    /// How long an enforced nonce is remembered. The documentation says "a few minutes".
    pub nonce_window_ms: Ms,
    /// How long after the connection HELLO comes: time for a client to send what it must not send before.
    pub hello_after_ms: Ms,
    /// What HELLO asks for.
    pub heartbeat_interval_ms: Ms,
    /// How long a session without a connection can be resumed.
    pub resume_window_ms: Ms,
    /// How many events are kept for RESUME.
    pub replay_max: usize,
    /// Requests of a bot in a second.
    pub global_per_second: u64,
    /// Invalid requests that are forgiven.
    pub invalid: Budget,
    /// How long a ban lasts.
    pub ban_ms: Ms,
    /// Budgets by route, as `POST /channels/{}/messages`.
    pub buckets: BTreeMap<String, Budget>,
    /// The budget of a route that is not named.
    pub other_bucket: Budget,
    /// How long content may be.
    pub content_max: usize,
    /// In what it is counted.
    pub content_unit: Unit,
    /// Bytes of one file.
    pub file_max: u64,
    /// Bytes of one request.
    pub request_max: u64,
    /// How long an interaction waits for its first response.
    pub interaction_deadline_ms: Ms,
    /// How long its token lives.
    pub interaction_life_ms: Ms,
    /// From what age on edits are rationed.
    pub old_edit_age_ms: Ms,
    /// The ration, for each channel.
    pub old_edits: Budget,
    /// How long the URL of a file works.
    pub cdn_life_ms: Ms,
    /// How many shards a bot is told to begin.
    pub shards: u64,
    /// IDENTIFYs in a day.
    pub identify_total: u64,
    /// The least time between two IDENTIFYs, 0 for none; the service has 5000.
    pub identify_every_ms: Ms,
    /// Threads of a guild that are not archived.
    pub active_threads_max: usize,
    /// Webhooks of a channel.
    pub webhooks_max: usize,
    /// How long an event that was overtaken is held back at most.
    pub reorder_ms: Ms,
    /// Rules that do not hold.
    pub rules_off: BTreeSet<Rule>,
}

impl Default for Settings {
    fn default() -> Self {
        let five_in_five = Budget { limit: 5, window_ms: 5000 };
        let buckets = [
            ("POST /channels/{}/messages", five_in_five),
            ("PATCH /channels/{}/messages/{}", five_in_five),
            ("DELETE /channels/{}/messages/{}", five_in_five),
            ("POST /channels/{}/typing", five_in_five),
            ("PATCH /channels/{}", five_in_five),
            ("POST /webhooks/{}/{}", five_in_five),
            ("PATCH /webhooks/{}/{}/messages/{}", five_in_five),
            ("PUT /channels/{}/messages/{}/reactions/{}/@me", Budget { limit: 1, window_ms: 250 }),
        ];
        Self {
            seed: 1,
            clock_ahead_ms: 0,
            nonce_window_ms: 180_000,
            hello_after_ms: 50,
            heartbeat_interval_ms: 41_250,
            resume_window_ms: 180_000,
            replay_max: 10_000,
            global_per_second: 50,
            invalid: Budget { limit: 10_000, window_ms: 600_000 },
            ban_ms: 3_600_000,
            buckets: buckets.into_iter().map(|(route, budget)| (route.to_owned(), budget)).collect(),
            other_bucket: Budget { limit: 50, window_ms: 1000 },
            content_max: 2000,
            content_unit: Unit::Utf16,
            file_max: 10 << 20,
            request_max: 25 << 20,
            interaction_deadline_ms: 3000,
            interaction_life_ms: 900_000,
            old_edit_age_ms: 3_600_000,
            old_edits: Budget { limit: 3, window_ms: 20_000 },
            cdn_life_ms: 86_400_000,
            shards: 1,
            identify_total: 1000,
            identify_every_ms: 0,
            active_threads_max: 1000,
            webhooks_max: 15,
            reorder_ms: 300,
            rules_off: BTreeSet::new(),
        }
    }
}

impl Settings {
    /// Whether a rule holds.
    #[must_use]
    pub fn holds(&self, rule: Rule) -> bool {
        !self.rules_off.contains(&rule)
    }
}
