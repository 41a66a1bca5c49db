//! How requests are made.

use crate::core::base::Base;
use acp_shared::redact::Secret;
use std::time::Duration;

/// How requests are made. Times are as long as people wait for chat; tests make them short.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where Discord is.
    pub base: Base,
    /// The bot's token.
    pub token: Secret,
    /// Who asks, in the form that Discord wants: `DiscordBot (address, version)`.
    pub user_agent: String,
    /// How long a connection may take.
    pub connect: Duration,
    /// How long a request may take from the moment at which it is its turn, its answer included.
    pub whole: Duration,
    /// How long the first answer to an interaction may take, its turn included: Discord waits for three seconds.
    pub callback: Duration,
    /// Requests in any second, below Discord's 50.
    pub per_second: u32,
    /// Refusals in ten minutes, after which requests stop until the oldest is forgotten. Discord shuts an address out
    /// at 10,000, which may be shared with others.
    pub refusals: usize,
    /// Requests that may wait. What comes then is limited at once.
    pub queue: usize,
    /// How often a request is made whose repetition does no harm, when its answer is lost or Discord fails.
    pub attempts: u32,
    /// The first pause between these; each is twice the one before.
    pub pause: Duration,
    /// Bytes of an answer that are read.
    pub answer_bytes: usize,
}

impl Settings {
    /// What is used unless somebody says otherwise.
    #[must_use]
    pub fn new(base: Base, token: Secret) -> Self {
        Self {
            base,
            token,
            user_agent: concat!(
                "DiscordBot (https://agentclientprotocol.com, ",
                env!("CARGO_PKG_VERSION"),
                ")"
            )
            .to_owned(),
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
