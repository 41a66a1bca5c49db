//! Settings of a test: windows, limits, and rules by name.

use super::model::Ms;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A rule that can be switched off, to verify that a test detects its absence.
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
    /// A message has content, a file or a component (50006).
    NotEmpty,
    /// A file is at most [`Settings::file_max`] bytes (40005), and a request 25 MiB.
    FileSize,
    /// At most ten files for each message.
    FileCount,
    /// Components have limits.
    ComponentLimits,
    /// Names of threads are 1 to 100 characters.
    ThreadName,
    /// Auto-archive is one of 60, 1440, 4320 and 10080 minutes.
    AutoArchive,
    /// A nonce is at most 25 characters.
    NonceLength,
    /// `enforce_nonce` returns the first message with the nonce.
    NonceDedupe,
    /// A nonce whose message was deleted gives 10008.
    NonceOfDeleted,
    /// Permissions are checked (50001, 50013).
    Permissions,
    /// Only the author edits a message (50005).
    OnlyAuthorEdits,
    /// Only posting is possible in an archived thread (50083).
    ArchivedThread,
    /// Posting unarchives a thread.
    PostUnarchives,
    /// A locked archived thread accepts no post (160005).
    LockedThread,
    /// Only one thread can be created from a message (160004).
    OneThreadPerMessage,
    /// At most [`Settings::active_threads_max`] active threads (160006).
    ActiveThreads,
    /// Idle threads are archived automatically.
    AutoArchiving,
    /// Buckets of each route.
    RouteBuckets,
    /// 50 requests each second.
    GlobalLimit,
    /// Many invalid requests cause a ban.
    InvalidRequestBan,
    /// Edits of messages over an hour old have a small budget (30046).
    OldEdits,
    /// An interaction is answered within three seconds (10062).
    InteractionDeadline,
    /// An interaction is answered once (40060).
    InteractionOnce,
    /// An interaction's token expires after fifteen minutes.
    InteractionTokenEnds,
    /// The type of a response must be valid for the interaction.
    ResponseTypes,
    /// At most fifteen webhooks in a channel (30007).
    WebhookCount,
    /// URLs of files expire.
    CdnExpiry,
    /// Commands have limits.
    CommandLimits,
    /// A message without `allowed_mentions` notifies all that it mentions.
    DefaultMentions,
    /// Without the message content intent, other authors' content is empty.
    MessageContentIntent,
    /// A privileged intent must be allowed (4014).
    DisallowedIntents,
    /// A client must not send anything before HELLO (4003).
    HelloFirst,
    /// A client without heartbeats is closed (4009).
    Heartbeats,
    /// At most 120 events each minute from a client (4008).
    ClientEvents,
    /// A client's payload is at most 4096 bytes (4002).
    ClientPayload,
    /// IDENTIFYs are limited to [`Settings::identify_total`] per day.
    IdentifyBudget,
    /// A user agent is required, as in the documentation.
    UserAgent,
}

/// A number of requests per time window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// Number of requests.
    pub limit: u64,
    /// Window, in milliseconds.
    pub window_ms: Ms,
}

/// Settings of a test. They survive a restart.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Seed of the random number generator.
    pub seed: u64,
    /// Offset of the fake's clock to the host's.
    pub clock_ahead_ms: Ms,
    /// Time for which an enforced nonce is remembered. The documentation says "a few minutes".
    pub nonce_window_ms: Ms,
    /// Delay of HELLO after the connection: detects clients that send anything before.
    pub hello_after_ms: Ms,
    /// Heartbeat interval in HELLO.
    pub heartbeat_interval_ms: Ms,
    /// Time for which a session without a connection can be resumed.
    pub resume_window_ms: Ms,
    /// Number of events kept for RESUME.
    pub replay_max: usize,
    /// Requests of a bot per second.
    pub global_per_second: u64,
    /// Invalid requests that are allowed before a ban.
    pub invalid: Budget,
    /// Duration of a ban.
    pub ban_ms: Ms,
    /// Budgets by route, for example `POST /channels/{}/messages`.
    pub buckets: BTreeMap<String, Budget>,
    /// The budget of all other routes.
    pub other_bucket: Budget,
    /// Maximum length of content, in UTF-16 units.
    pub content_max: usize,
    /// Maximum size of a file, in bytes.
    pub file_max: u64,
    /// Maximum size of a request, in bytes.
    pub request_max: u64,
    /// Deadline of the first response to an interaction.
    pub interaction_deadline_ms: Ms,
    /// Lifetime of an interaction's token.
    pub interaction_life_ms: Ms,
    /// Age of messages from which edits have a separate budget.
    pub old_edit_age_ms: Ms,
    /// That budget, per channel.
    pub old_edits: Budget,
    /// Lifetime of the URL of a file.
    pub cdn_life_ms: Ms,
    /// Recommended number of shards in `GET /gateway/bot`.
    pub shards: u64,
    /// Maximum number of IDENTIFYs per day.
    pub identify_total: u64,
    /// Number of sessions that may be identified at the same time, each of another bucket.
    pub max_concurrency: u64,
    /// Time between two IDENTIFYs of a bucket; the documentation says 5000. 0 does not limit them, for tests that restart the
    /// gateway at once.
    pub identify_spacing_ms: Ms,
    /// Maximum number of active threads of a guild.
    pub active_threads_max: usize,
    /// Maximum number of webhooks of a channel.
    pub webhooks_max: usize,
    /// Maximum time for which an event waits to be overtaken.
    pub reorder_ms: Ms,
    /// Rules that are switched off.
    pub rules_off: BTreeSet<Rule>,
}

impl Default for Settings {
    fn default() -> Self {
        let five_in_five = Budget { limit: 5, window_ms: 5000 };
        let buckets = [
            ("POST /channels/{}/messages", five_in_five),
            ("PATCH /channels/{}/messages/{}", five_in_five),
            ("POST /channels/{}/typing", five_in_five),
            ("POST /webhooks/{}/{}", five_in_five),
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
            file_max: 10 << 20,
            request_max: 25 << 20,
            interaction_deadline_ms: 3000,
            interaction_life_ms: 900_000,
            old_edit_age_ms: 3_600_000,
            old_edits: Budget { limit: 3, window_ms: 20_000 },
            cdn_life_ms: 86_400_000,
            shards: 1,
            identify_total: 1000,
            max_concurrency: 1,
            identify_spacing_ms: 0,
            active_threads_max: 1000,
            webhooks_max: 15,
            reorder_ms: 300,
            rules_off: BTreeSet::new(),
        }
    }
}

impl Settings {
    /// Whether a rule is in effect.
    #[must_use]
    pub fn holds(&self, rule: Rule) -> bool {
        !self.rules_off.contains(&rule)
    }
}
