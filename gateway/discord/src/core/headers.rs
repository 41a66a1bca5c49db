//! What the headers and the body of an answer say about budgets and errors.
#![deny(clippy::indexing_slicing)]

use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// No wait that Discord asks for is believed beyond this: a wrong number must not stop a channel for ever.
const WAIT_MAX: Duration = Duration::from_secs(6 * 60 * 60);
/// How long all requests wait after a refusal that is not Discord's own, without a time.
const GUARD_WAIT: Duration = Duration::from_secs(60);
/// The most of a text of Discord's that is repeated.
const WHY_CHARS: usize = 300;

/// A budget as an answer describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    /// Discord's name of the bucket.
    pub bucket: String,
    /// Requests in a window.
    pub limit: u32,
    /// Requests that were left when the answer was made.
    pub remaining: u32,
    /// How long the window lasted from then on.
    pub reset_after: Duration,
}

/// For whom a limit was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// This bot in this bucket.
    User,
    /// This bot everywhere.
    Global,
    /// Everybody who uses the resource: it does not count against the bot.
    Shared,
    /// This address: the answer is not Discord's but its guard's.
    Address,
}

impl Scope {
    /// The word in metrics.
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

/// An answer with status 429.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooMany {
    /// For whom.
    pub scope: Scope,
    /// How long to wait.
    pub retry_after: Duration,
    /// Discord's code, such as 30046.
    pub code: Option<u32>,
}

/// What an answer says beside what was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// The status of HTTP.
    pub status: u16,
    /// The budget, if it has one.
    pub budget: Option<Budget>,
    /// A limit that was reached.
    pub too_many: Option<TooMany>,
}

/// Seconds with a fraction, as a time that can be waited.
fn seconds(text: &str) -> Option<Duration> {
    let seconds: f64 = text.trim().parse().ok()?;
    from_seconds(seconds)
}

fn from_seconds(seconds: f64) -> Option<Duration> {
    // Rounded up to whole milliseconds: too early is one more refusal.
    let ms = Duration::try_from_secs_f64(seconds).ok()?.as_nanos().div_ceil(1_000_000);
    Some(Duration::from_millis(u64::try_from(ms).ok()?).min(WAIT_MAX))
}

#[derive(Deserialize)]
struct LimitBody {
    retry_after: f64,
    #[serde(default)]
    global: bool,
    #[serde(default)]
    code: Option<u32>,
}

/// Reads an answer. `header` finds one by its name in lower case.
#[must_use]
pub fn read<'a>(status: u16, header: impl Fn(&str) -> Option<&'a str>, body: &[u8]) -> Said {
    let number = |name: &str| header(name).and_then(|text| text.trim().parse::<u32>().ok());
    let budget = || {
        Some(Budget {
            bucket: header("x-ratelimit-bucket")?.to_owned(),
            limit: number("x-ratelimit-limit")?,
            remaining: number("x-ratelimit-remaining")?,
            reset_after: header("x-ratelimit-reset-after").and_then(seconds)?,
        })
    };
    let too_many = (status == 429).then(|| {
        let by_header = header("retry-after").and_then(seconds);
        let Ok(body) = serde_json::from_slice::<LimitBody>(body) else {
            let retry_after = by_header.unwrap_or(GUARD_WAIT);
            return TooMany { scope: Scope::Address, retry_after, code: None };
        };
        let global = body.global || header("x-ratelimit-global").is_some_and(|text| text == "true");
        let scope = match header("x-ratelimit-scope") {
            _ if global => Scope::Global,
            Some("global") => Scope::Global,
            Some("shared") => Scope::Shared,
            _ => Scope::User,
        };
        let retry_after = from_seconds(body.retry_after).or(by_header).unwrap_or(GUARD_WAIT);
        TooMany { scope, retry_after, code: body.code.filter(|code| *code != 0) }
    });
    Said { status, budget: budget(), too_many }
}

/// What Discord says about a refusal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Refusal {
    /// Its own code.
    pub code: Option<u32>,
    /// Its words, what is wrong with which field included.
    pub why: String,
}

#[derive(Deserialize)]
struct ErrorBody {
    #[serde(default)]
    code: Option<u32>,
    #[serde(default)]
    message: String,
    #[serde(default)]
    errors: serde_json::Value,
}

/// Reads the body of a refusal. What is not Discord's is not repeated.
#[must_use]
pub fn refusal(body: &[u8]) -> Refusal {
    let Ok(body) = serde_json::from_slice::<ErrorBody>(body) else { return Refusal::default() };
    let mut fields = BTreeMap::new();
    flatten(&body.errors, &mut String::new(), &mut fields);
    let details: Vec<String> = fields.into_iter().map(|(path, why)| format!("{path}: {why}")).collect();
    let why = match (body.message.is_empty(), details.is_empty()) {
        (_, true) => body.message,
        (true, false) => details.join("; "),
        (false, false) => format!("{} ({})", body.message, details.join("; ")),
    };
    let why = why.chars().map(|c| if c.is_control() { ' ' } else { c }).take(WHY_CHARS).collect();
    Refusal { code: body.code.filter(|code| *code != 0), why }
}

/// Discord nests what is wrong below the names of the fields, as lists called `_errors`.
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
    use super::{Budget, Refusal, Said, Scope, TooMany, read, refusal};
    use std::time::Duration;

    fn said(status: u16, headers: &[(&str, &str)], body: &str) -> Said {
        let header = |name: &str| headers.iter().find(|(n, _)| *n == name).map(|(_, value)| *value);
        read(status, header, body.as_bytes())
    }

    const BUCKET: [(&str, &str); 4] = [
        ("x-ratelimit-bucket", "abcd1234"),
        ("x-ratelimit-limit", "5"),
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset-after", "4.0011"),
    ];

    #[test]
    fn budgets_are_read_from_headers() {
        let budget = Budget {
            bucket: "abcd1234".to_owned(),
            limit: 5,
            remaining: 0,
            reset_after: Duration::from_millis(4002),
        };
        assert_eq!(said(200, &BUCKET, ""), Said { status: 200, budget: Some(budget), too_many: None });
        // Half a description is none.
        assert_eq!(said(200, &BUCKET[..3], "").budget, None);
        let mut wrong = BUCKET;
        wrong[3].1 = "NaN";
        assert_eq!(said(200, &wrong, "").budget, None);
    }

    #[test]
    fn limits_say_for_whom_and_how_long() {
        let ms = Duration::from_millis;
        let limit = |scope, retry_after, code| Some(TooMany { scope, retry_after, code });
        for (headers, body, expected) in [
            (
                vec![],
                r#"{"message":"x","retry_after":0.3,"global":false}"#,
                limit(Scope::User, ms(300), None),
            ),
            (
                vec![("x-ratelimit-scope", "user"), ("retry-after", "9")],
                r#"{"retry_after":1.0004,"global":false,"code":30046}"#,
                limit(Scope::User, ms(1001), Some(30046)),
            ),
            (
                vec![("x-ratelimit-scope", "shared")],
                r#"{"retry_after":600,"global":false,"code":0}"#,
                limit(Scope::Shared, ms(600_000), None),
            ),
            (
                vec![("x-ratelimit-scope", "global"), ("x-ratelimit-global", "true")],
                r#"{"retry_after":2.5,"global":true}"#,
                limit(Scope::Global, ms(2500), None),
            ),
            (vec![], r#"{"retry_after":1e300}"#, limit(Scope::User, ms(60_000), None)),
            (vec![], r#"{"retry_after":1e9}"#, limit(Scope::User, ms(6 * 3_600_000), None)),
            (vec![("retry-after", "7")], r#"{"retry_after":-1}"#, limit(Scope::User, ms(7000), None)),
            (vec![("retry-after", "1800")], "<html>banned", limit(Scope::Address, ms(1_800_000), None)),
            (vec![], "error code: 1015", limit(Scope::Address, ms(60_000), None)),
        ] {
            assert_eq!(said(429, &headers, body).too_many, expected, "{headers:?} {body}");
        }
        assert_eq!(said(200, &[("retry-after", "7")], "{}").too_many, None);
    }

    #[test]
    fn refusals_say_what_is_wrong_with_which_field() {
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
            assert_eq!(refusal(body.as_bytes()), Refusal { code, why: why.to_owned() }, "{body}");
        }
    }
}
