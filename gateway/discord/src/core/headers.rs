//! Parsing of rate limits and errors from response headers and bodies.
#![deny(clippy::indexing_slicing)]

use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Maximum wait that Discord can impose: a wrong number must not block a channel for ever.
const WAIT_MAX: Duration = Duration::from_secs(6 * 60 * 60);
/// Default wait after a 429 response without a usable time, for example from Discord's edge.
const DEFAULT_WAIT: Duration = Duration::from_secs(60);
/// Maximum length of an error text of Discord that is kept, in characters.
const ERROR_TEXT_CHARS_MAX: usize = 300;

/// State of a bucket as a response reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketState {
    /// Bucket name from Discord.
    pub bucket: String,
    /// Maximum requests per window.
    pub limit: u32,
    /// Requests left when the response was made.
    pub remaining: u32,
    /// Remaining length of the window at that time.
    pub reset_after: Duration,
}

/// Scope of a rate limit that was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RateLimitScope {
    /// This bot in this bucket.
    User,
    /// This bot, all requests.
    Global,
    /// All users of the resource; does not count against the bot.
    Shared,
    /// This IP address: the response comes from Discord's edge.
    Address,
}

impl RateLimitScope {
    /// Name in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Global => "global",
            Self::Shared => "shared",
            Self::Address => "address",
        }
    }
}

/// Content of a response with status 429.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooMany {
    /// Scope of the limit.
    pub scope: RateLimitScope,
    /// Time to wait.
    pub retry_after: Duration,
    /// Discord's error code, for example 30046.
    pub code: Option<u32>,
}

/// Metadata of a response, without the requested content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseMeta {
    /// HTTP status.
    pub status: u16,
    /// State of the bucket, if the response reports it.
    pub budget: Option<BucketState>,
    /// Rate limit that was reached, for status 429.
    pub too_many: Option<TooMany>,
}

/// Parses seconds with a fraction.
fn seconds(text: &str) -> Option<Duration> {
    let seconds: f64 = text.trim().parse().ok()?;
    from_seconds(seconds)
}

fn from_seconds(seconds: f64) -> Option<Duration> {
    // Rounded up to whole milliseconds: a retry that is too early is refused again.
    let ms = Duration::try_from_secs_f64(seconds).ok()?.as_nanos().div_ceil(1_000_000);
    Some(Duration::from_millis(u64::try_from(ms).ok()?).min(WAIT_MAX))
}

#[derive(Deserialize)]
struct LimitBody {
    retry_after: f64,
    #[serde(default)]
    global: bool,
    code: Option<u32>,
}

/// Reads the metadata of a response. `header` returns a header by its lower-case name.
#[must_use]
pub fn read_meta<'a>(status: u16, header: impl Fn(&str) -> Option<&'a str>, body: &[u8]) -> ResponseMeta {
    let number = |name: &str| header(name).and_then(|text| text.trim().parse::<u32>().ok());
    let budget = || {
        Some(BucketState {
            bucket: header("x-ratelimit-bucket")?.to_owned(),
            limit: number("x-ratelimit-limit")?,
            remaining: number("x-ratelimit-remaining")?,
            reset_after: header("x-ratelimit-reset-after").and_then(seconds)?,
        })
    };
    let too_many = (status == 429).then(|| {
        let by_header = header("retry-after").and_then(seconds);
        let Ok(body) = serde_json::from_slice::<LimitBody>(body) else {
            let retry_after = by_header.unwrap_or(DEFAULT_WAIT);
            return TooMany { scope: RateLimitScope::Address, retry_after, code: None };
        };
        let global = body.global || header("x-ratelimit-global").is_some_and(|text| text == "true");
        let scope = match header("x-ratelimit-scope") {
            _ if global => RateLimitScope::Global,
            Some("global") => RateLimitScope::Global,
            Some("shared") => RateLimitScope::Shared,
            _ => RateLimitScope::User,
        };
        let retry_after = from_seconds(body.retry_after).or(by_header).unwrap_or(DEFAULT_WAIT);
        TooMany { scope, retry_after, code: body.code.filter(|code| *code != 0) }
    });
    ResponseMeta { status, budget: budget(), too_many }
}

/// Error description in a refusal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Refusal {
    /// Discord's error code.
    pub code: Option<u32>,
    /// Discord's error text, including the errors of single fields.
    pub why: String,
}

#[derive(Deserialize)]
struct ErrorBody {
    code: Option<u32>,
    #[serde(default)]
    message: String,
    #[serde(default)]
    errors: serde_json::Value,
}

/// Reads the body of a refusal. A body that is not Discord's JSON is not kept.
#[must_use]
pub fn read_refusal(body: &[u8]) -> Refusal {
    let Ok(body) = serde_json::from_slice::<ErrorBody>(body) else { return Refusal::default() };
    let mut fields = BTreeMap::new();
    flatten(&body.errors, &mut String::new(), &mut fields);
    let details: Vec<String> = fields.into_iter().map(|(path, why)| format!("{path}: {why}")).collect();
    let why = match (body.message.is_empty(), details.is_empty()) {
        (_, true) => body.message,
        (true, false) => details.join("; "),
        (false, false) => format!("{} ({})", body.message, details.join("; ")),
    };
    let why = why.chars().map(|c| if c.is_control() { ' ' } else { c }).take(ERROR_TEXT_CHARS_MAX).collect();
    Refusal { code: body.code.filter(|code| *code != 0), why }
}

/// Collects field errors. Discord nests them below the field names, as lists named `_errors`.
fn flatten(value: &serde_json::Value, path: &mut String, found: &mut BTreeMap<String, String>) {
    let serde_json::Value::Object(map) = value else { return };
    for (name, inner) in map {
        if name == "_errors" {
            let first = inner.get(0).and_then(|error| error.get("message")).and_then(|text| text.as_str());
            found.insert(path.clone(), first.unwrap_or("not accepted").to_owned());
            continue;
        }
        let length = path.len();
        if !path.is_empty() {
            path.push('.');
        }
        path.push_str(name);
        flatten(inner, path, found);
        path.truncate(length);
    }
}

#[cfg(test)]
mod tests {
    use super::{BucketState, RateLimitScope, Refusal, ResponseMeta, TooMany, read_meta, read_refusal};
    use std::time::Duration;

    fn parse_meta(status: u16, headers: &[(&str, &str)], body: &str) -> ResponseMeta {
        let header = |name: &str| headers.iter().find(|(n, _)| *n == name).map(|(_, value)| *value);
        read_meta(status, header, body.as_bytes())
    }

    const BUCKET: [(&str, &str); 4] = [
        ("x-ratelimit-bucket", "abcd1234"),
        ("x-ratelimit-limit", "5"),
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset-after", "4.0011"),
    ];

    #[test]
    fn bucket_is_read_from_headers() {
        let budget = BucketState {
            bucket: "abcd1234".to_owned(),
            limit: 5,
            remaining: 0,
            reset_after: Duration::from_millis(4002),
        };
        assert_eq!(
            parse_meta(200, &BUCKET, ""),
            ResponseMeta { status: 200, budget: Some(budget), too_many: None }
        );
        // Incomplete headers are ignored.
        assert_eq!(parse_meta(200, &BUCKET[..3], "").budget, None);
        let mut wrong = BUCKET;
        wrong[3].1 = "NaN";
        assert_eq!(parse_meta(200, &wrong, "").budget, None);
    }

    #[test]
    fn rate_limit_response_has_scope_and_retry_after() {
        let ms = Duration::from_millis;
        let limit = |scope, retry_after, code| Some(TooMany { scope, retry_after, code });
        for (headers, body, expected) in [
            (
                vec![],
                r#"{"message":"x","retry_after":0.3,"global":false}"#,
                limit(RateLimitScope::User, ms(300), None),
            ),
            (
                vec![("x-ratelimit-scope", "user"), ("retry-after", "9")],
                r#"{"retry_after":1.0004,"global":false,"code":30046}"#,
                limit(RateLimitScope::User, ms(1001), Some(30046)),
            ),
            (
                vec![("x-ratelimit-scope", "shared")],
                r#"{"retry_after":600,"global":false,"code":0}"#,
                limit(RateLimitScope::Shared, ms(600_000), None),
            ),
            (
                vec![("x-ratelimit-scope", "global"), ("x-ratelimit-global", "true")],
                r#"{"retry_after":2.5,"global":true}"#,
                limit(RateLimitScope::Global, ms(2500), None),
            ),
            (vec![], r#"{"retry_after":1e300}"#, limit(RateLimitScope::User, ms(60_000), None)),
            (vec![], r#"{"retry_after":1e9}"#, limit(RateLimitScope::User, ms(6 * 3_600_000), None)),
            (
                vec![("retry-after", "7")],
                r#"{"retry_after":-1}"#,
                limit(RateLimitScope::User, ms(7000), None),
            ),
            (
                vec![("retry-after", "1800")],
                "<html>banned",
                limit(RateLimitScope::Address, ms(1_800_000), None),
            ),
            (vec![], "error code: 1015", limit(RateLimitScope::Address, ms(60_000), None)),
        ] {
            assert_eq!(parse_meta(429, &headers, body).too_many, expected, "{headers:?} {body}");
        }
        assert_eq!(parse_meta(200, &[("retry-after", "7")], "{}").too_many, None);
    }

    #[test]
    fn refusal_names_invalid_fields() {
        let nested = r#"{"code":50035,"message":"Invalid Form Body","errors":{
            "content":{"_errors":[{"code":"X","message":"Must be 2000 or fewer in length."}]},
            "embeds":{"0":{"title":{"_errors":[{"code":"Y","message":"Too\nlong"}]}}}}}"#;
        for (body, code, why) in [
            (
                nested,
                Some(50035),
                "Invalid Form Body (content: Must be 2000 or fewer in length.; embeds.0.title: Too long)",
            ),
            (r#"{"code":10003,"message":"Unknown Channel"}"#, Some(10003), "Unknown Channel"),
            (r#"{"code":0,"message":"401: Unauthorized"}"#, None, "401: Unauthorized"),
            ("<html>a page of a guard", None, ""),
            ("", None, ""),
        ] {
            assert_eq!(read_refusal(body.as_bytes()), Refusal { code, why: why.to_owned() }, "{body}");
        }
    }
}
