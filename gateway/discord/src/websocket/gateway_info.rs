//! Request for the address of the gateway, the number of shards and the sessions that may still be identified today.

use super::identify_slot::SessionLimits;
use super::{SessionSettings, base_url_failure};
use crate::core::base_url::{BaseUrl, BaseUrlError};
use crate::core::close_codes::{self, FatalGatewayError};
use reqwest::StatusCode;
use reqwest::redirect::Policy;
use serde::Deserialize;
use std::time::Duration;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum number of shards in one process.
const SHARDS_MAX: u32 = 64;
/// Maximum pause that the service can ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 3600);

/// Result of the request.
#[derive(Debug)]
pub(super) enum GatewayLookup {
    /// Address and number of shards.
    Available {
        /// Address that [`BaseUrl::check_gateway_url`] permits.
        url: String,
        /// Recommended number of shards.
        shards: u32,
        /// Limits of new sessions.
        limits: SessionLimits,
    },
    /// Failure that may pass: ask again.
    RetryLater {
        /// Reason, for people.
        why: String,
        /// Minimum pause before the next request.
        after: Duration,
    },
    /// Failure that does not pass.
    Failed(FatalGatewayError),
}

#[derive(Deserialize)]
struct GatewayResponse {
    url: String,
    shards: u32,
    session_start_limit: RemainingSessions,
}

#[derive(Deserialize)]
struct RemainingSessions {
    remaining: u32,
    /// Milliseconds.
    reset_after: u64,
    max_concurrency: Option<u32>,
}

/// HTTP client with timeouts, without redirects, and without a proxy for another address than Discord's own.
///
/// # Errors
/// [`BaseUrlError`] if TLS or name lookup cannot be set up.
pub(super) fn client(base: &BaseUrl) -> Result<reqwest::Client, BaseUrlError> {
    let builder = reqwest::Client::builder()
        .user_agent(crate::USER_AGENT)
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(TIMEOUT)
        .redirect(Policy::none());
    // A proxy from the environment would be another host.
    let builder = if base.is_official() { builder } else { builder.no_proxy() };
    builder.build().map_err(|error| BaseUrlError(format!("cannot create the HTTP client: {error}")))
}

/// Requests the gateway address, and checks that `sessions` more sessions may be identified; `None` for one
/// per recommended shard.
pub(super) async fn gateway(
    client: &reqwest::Client,
    settings: &SessionSettings,
    sessions: Option<u32>,
) -> GatewayLookup {
    let url = settings.base.join("/api/v10/gateway/bot");
    let request = client.get(url).header("Authorization", format!("Bot {}", settings.token.expose()));
    let later = |why: String| GatewayLookup::RetryLater { why, after: Duration::ZERO };
    let response = match request.send().await {
        Ok(response) => response,
        Err(error) => {
            return later(format!("request for the gateway address failed: {}", without_url(error)));
        }
    };
    match response.status() {
        StatusCode::OK => {}
        StatusCode::UNAUTHORIZED => {
            let failure =
                close_codes::fatal_error(4004).map(|failure| FatalGatewayError { code: None, ..failure });
            return failure
                .map_or_else(|| later("Discord refuses the token".to_owned()), GatewayLookup::Failed);
        }
        status => {
            let after =
                response.headers().get("retry-after").and_then(|value| value.to_str().ok()?.parse().ok());
            let after =
                after.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or_default();
            let why = format!("Discord answered the request for its gateway address with status {status}");
            return GatewayLookup::RetryLater { why, after: after.min(RETRY_AFTER_MAX) };
        }
    }
    match response.json::<GatewayResponse>().await {
        Ok(answer) => check_response(&answer, settings, sessions),
        Err(error) => later(format!(
            "Discord's response with its gateway address cannot be read: {}",
            without_url(error)
        )),
    }
}

fn check_response(
    answer: &GatewayResponse,
    settings: &SessionSettings,
    sessions: Option<u32>,
) -> GatewayLookup {
    let url = match settings.base.check_gateway_url(&answer.url) {
        Ok(url) => url,
        Err(why) => return GatewayLookup::Failed(base_url_failure(why)),
    };
    let shards = answer.shards.clamp(1, SHARDS_MAX);
    let RemainingSessions { remaining, reset_after, max_concurrency } = answer.session_start_limit;
    let after = Duration::from_millis(reset_after).min(RETRY_AFTER_MAX);
    if remaining < sessions.unwrap_or(shards) {
        let why = format!(
            "Discord permits no more new sessions of this bot for {} minutes",
            after.as_secs() / 60 + 1
        );
        return GatewayLookup::RetryLater { why, after };
    }
    let max_concurrency = max_concurrency.unwrap_or(1).max(1);
    let limits = SessionLimits { remaining, reset_after: after, max_concurrency };
    GatewayLookup::Available { url, shards, limits }
}

/// Text of an error with its causes, without the address.
fn without_url(error: reqwest::Error) -> String {
    let error = error.without_url();
    let causes = std::iter::successors(std::error::Error::source(&error), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
