//! Asks where the gateway is, and how many sessions may still be begun today.

use super::{Settings, refused};
use crate::core::base::{Base, Refused};
use crate::core::closes::{self, Failure};
use reqwest::StatusCode;
use reqwest::redirect::Policy;
use serde::Deserialize;
use std::time::Duration;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(15);
/// As the service wants programs to name themselves (API reference, "User Agent").
pub(super) const USER_AGENT: &str =
    concat!("DiscordBot (https://github.com/acp-host/acp-host, ", env!("CARGO_PKG_VERSION"), ")");
/// More than that is no bot for one process.
const SHARDS_MAX: u32 = 64;
/// The longest that is believed of a number of seconds to wait.
const AFTER_MAX: Duration = Duration::from_secs(24 * 3600);

/// What came of asking.
#[derive(Debug)]
pub(super) enum Asked {
    /// The gateway is there, and wants so many shards.
    At {
        /// Judged: nothing else is connected to.
        url: String,
        /// How many.
        shards: u32,
    },
    /// To be asked again.
    Later {
        /// Why.
        why: String,
        /// After at least this long.
        after: Duration,
    },
    /// To be asked again never.
    Refused(Failure),
}

#[derive(Deserialize)]
struct Answer {
    url: String,
    shards: u32,
    session_start_limit: Budget,
}

#[derive(Deserialize)]
struct Budget {
    remaining: u32,
    /// Milliseconds.
    reset_after: u64,
}

/// A client that goes to one place and waits for no answer for ever.
///
/// # Errors
/// When the machine has no way to make one.
pub(super) fn client(base: &Base) -> Result<reqwest::Client, Refused> {
    let builder = reqwest::Client::builder()
        .user_agent(USER_AGENT)
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(TIMEOUT)
        .redirect(Policy::none());
    // A proxy of the environment is another host.
    let builder = if base.is_discords() { builder } else { builder.no_proxy() };
    builder.build().map_err(|error| Refused(format!("no client for requests could be made: {error}")))
}

pub(super) async fn gateway(client: &reqwest::Client, settings: &Settings) -> Asked {
    let url = settings.base.at("/api/v10/gateway/bot");
    let request = client.get(url).header("Authorization", format!("Bot {}", settings.token.expose()));
    let later = |why: String| Asked::Later { why, after: Duration::ZERO };
    let response = match request.send().await {
        Ok(response) => response,
        Err(error) => {
            return later(format!("Discord cannot be asked for its gateway: {}", without_url(error)));
        }
    };
    match response.status() {
        StatusCode::OK => {}
        StatusCode::UNAUTHORIZED => {
            let failure = closes::failure(4004).map(|failure| Failure { code: None, ..failure });
            return failure.map_or_else(|| later("Discord refuses the token".to_owned()), Asked::Refused);
        }
        status => {
            let after =
                response.headers().get("retry-after").and_then(|value| value.to_str().ok()?.parse().ok());
            let after =
                after.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or_default();
            let why = format!("Discord answers {status} when asked for its gateway");
            return Asked::Later { why, after: after.min(AFTER_MAX) };
        }
    }
    match response.json::<Answer>().await {
        Ok(answer) => judge(&answer, settings),
        Err(error) => {
            later(format!("Discord's answer about its gateway cannot be read: {}", without_url(error)))
        }
    }
}

fn judge(answer: &Answer, settings: &Settings) -> Asked {
    let url = match settings.base.gateway(&answer.url) {
        Ok(url) => url,
        Err(why) => return Asked::Refused(refused(why)),
    };
    let shards = settings.shards.unwrap_or(answer.shards).clamp(1, SHARDS_MAX);
    let Budget { remaining, reset_after } = answer.session_start_limit;
    if remaining < shards {
        let after = Duration::from_millis(reset_after).min(AFTER_MAX);
        let why =
            format!("Discord lets this bot begin no more sessions for {} minutes", after.as_secs() / 60 + 1);
        return Asked::Later { why, after };
    }
    Asked::At { url, shards }
}

/// What went wrong, with its causes.
fn without_url(error: reqwest::Error) -> String {
    let error = error.without_url();
    let causes = std::iter::successors(std::error::Error::source(&error), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
