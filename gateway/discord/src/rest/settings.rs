//! Settings of the REST client.

use crate::core::base::Base;
use acp_shared::redact::Secret;
use std::time::Duration;

/// Settings of the REST client. The defaults suit a chat; tests shorten the times.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Base URL of Discord.
    pub base: Base,
    /// The bot's token.
    pub token: Secret,
    /// User agent in Discord's format: `DiscordBot (address, version)`.
    pub user_agent: String,
    /// Timeout of a connection attempt.
    pub connect: Duration,
    /// Timeout of a request, from sending to the end of the response.
    pub whole: Duration,
    /// Timeout of the first response to an interaction, including the wait in the queue. Discord allows three
    /// seconds.
    pub callback: Duration,
    /// Maximum requests per second, below Discord's limit of 50.
    pub per_second: u32,
    /// Maximum refusals in ten minutes. Then requests pause until the oldest refusal is ten minutes old.
    /// Discord blocks an IP address at 10,000, and others may share the address.
    pub refusals: usize,
    /// Maximum number of requests in the queue. Further ones fail at once with
    /// [`Fault::Limited`](super::Fault::Limited).
    pub queue: usize,
    /// Maximum attempts of a harmless request whose response is lost or that Discord answers with a server
    /// error.
    pub attempts: u32,
    /// First pause between these attempts; each further one is twice as long.
    pub pause: Duration,
    /// Maximum size of a response, in bytes.
    pub answer_bytes: usize,
}

impl Settings {
    /// Default settings.
    #[must_use]
    pub fn new(base: Base, token: Secret) -> Self {
        Self {
            base,
            token,
            user_agent: crate::USER_AGENT.to_owned(),
            connect: Duration::from_secs(5),
            whole: Duration::from_secs(15),
            callback: Duration::from_millis(2500),
            per_second: 40,
            refusals: 500,
            queue: 4096,
            attempts: 2,
            pause: Duration::from_millis(250),
            answer_bytes: 16 * 1024 * 1024,
        }
    }
}
