//! Settings of the REST client.

use crate::core::base_url::BaseUrl;
use acp_shared::backoff::Backoff;
use acp_shared::clock::Clock;
use acp_shared::redact::Secret;
use std::time::Duration;

/// Requests per second of an application: below Discord's limit of 50 (documentation, "Global Rate Limit").
pub const PER_SECOND: u32 = 40;

/// Settings of the REST client. The defaults suit a chat; tests shorten the times.
#[derive(Debug, Clone)]
pub struct RestSettings {
    /// Base URL of Discord.
    pub base: BaseUrl,
    /// The bot's token.
    pub token: Secret,
    /// Source of time.
    pub clock: Clock,
    /// Timeout of a request, from sending to the end of the response.
    pub request_timeout: Duration,
    /// Timeout of the first response to an interaction, including the wait in the queue. Discord allows three
    /// seconds.
    pub callback_timeout: Duration,
    /// Maximum requests per second: [`PER_SECOND`], or a part of it if other programs share the application.
    pub per_second: u32,
    /// Maximum refusals in ten minutes. Then requests pause until the oldest refusal is ten minutes old.
    /// Discord blocks an IP address at 10,000, and others may share the address.
    pub max_invalid_requests: usize,
    /// Maximum number of requests in the queue. Further ones fail at once with
    /// [`RestError::Limited`](super::RestError::Limited).
    pub queue: usize,
    /// Maximum attempts of a harmless request whose response is lost or that Discord answers with a server
    /// error.
    pub attempts: u32,
    /// Pauses between these attempts.
    pub retry_backoff: Backoff,
    /// Maximum size of a response, in bytes.
    pub max_response_bytes: usize,
}

impl RestSettings {
    /// Default settings.
    #[must_use]
    pub fn new(base: BaseUrl, token: Secret, clock: Clock) -> Self {
        Self {
            base,
            token,
            clock,
            request_timeout: Duration::from_secs(15),
            callback_timeout: Duration::from_millis(2500),
            per_second: PER_SECOND,
            max_invalid_requests: 500,
            queue: 4096,
            attempts: 2,
            retry_backoff: Backoff::new(250, 8_000),
            max_response_bytes: 16 * 1024 * 1024,
        }
    }
}
