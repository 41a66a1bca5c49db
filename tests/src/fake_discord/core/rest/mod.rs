//! REST requests: routing, authorization, limits and answers.

mod routes;

use super::Machine;
use super::error::{ApiError, form_error, seconds};
use super::faults::Scope;
use super::gateway::intent;
use super::limits::{headers, scope_name};
use super::model::{Bot, Id, Ms};
use super::openapi;
use super::render;
use super::settings::Rule;
use serde_json::{Value, json};
use std::collections::BTreeMap;

pub use routes::{Route, classify};

/// Part of the product's user agent.
const PRODUCT: &str = "acp-host";

/// An uploaded file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upload {
    /// The `n` of `files[n]`.
    pub n: u64,
    /// Its name.
    pub filename: String,
    /// Its declared content type.
    pub content_type: Option<String>,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// The body of a request.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Body {
    /// Its JSON: the body itself, or `payload_json`; `None` without any.
    pub json: Option<Value>,
    /// Whether its JSON is invalid.
    pub broken: bool,
    /// Files of a multipart body.
    pub files: Vec<Upload>,
    /// Total size, in bytes.
    pub size: u64,
}

/// A request.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Call {
    /// The HTTP method.
    pub method: String,
    /// The path after `/api/v10`, decoded, in parts.
    pub path: Vec<String>,
    /// The query parameters.
    pub query: BTreeMap<String, String>,
    /// The whole header value.
    pub authorization: Option<String>,
    /// The whole header value.
    pub user_agent: Option<String>,
    /// The body.
    pub body: Body,
}

/// A response.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// Additional headers.
    pub headers: Vec<(&'static str, String)>,
    /// The body; none for 204.
    pub body: Option<Value>,
    /// HTML of the proxy in front of the service, instead of JSON.
    pub html: Option<&'static str>,
}

/// Result of a handler.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// 200.
    Ok(Value),
    /// 201.
    Created(Value),
    /// 204.
    Nothing,
}

/// Input of a handler.
#[derive(Debug)]
pub struct Ctx<'a> {
    /// The fake's time.
    pub now: Ms,
    /// The requesting bot; `None` on routes without a token.
    pub bot: Option<Bot>,
    /// The variable parts of the path, in order.
    pub args: Vec<&'a str>,
    /// The request.
    pub call: &'a Call,
}

impl Ctx<'_> {
    /// An id of the path.
    ///
    /// # Errors
    /// 50035.
    pub fn id(&self, at: usize) -> Result<Id, ApiError> {
        let text = self.args.get(at).copied().unwrap_or_default();
        snowflake(text).ok_or_else(|| not_snowflake("id", text))
    }

    /// Text of the path.
    #[must_use]
    pub fn text(&self, at: usize) -> &str {
        self.args.get(at).copied().unwrap_or_default()
    }

    /// The requesting bot.
    ///
    /// # Errors
    /// 401.
    pub fn bot(&self) -> Result<&Bot, ApiError> {
        self.bot.as_ref().ok_or_else(ApiError::unauthorized)
    }

    /// The body, which must be an object; empty if absent.
    ///
    /// # Errors
    /// 50109, 50035.
    pub fn object(&self) -> Result<Value, ApiError> {
        if self.call.body.broken {
            return Err(ApiError::invalid_json());
        }
        match &self.call.body.json {
            None => Ok(json!({})),
            Some(object) if object.is_object() => Ok(object.clone()),
            Some(_) => {
                Err(form_error("_errors", "DICT_TYPE_CONVERT", "Only dictionaries may be used in a DictType"))
            }
        }
    }

    /// A flag of the query.
    #[must_use]
    pub fn flag(&self, name: &str) -> bool {
        self.call.query.get(name).is_some_and(|value| matches!(value.as_str(), "true" | "True" | "1"))
    }

    /// An id of the query.
    ///
    /// # Errors
    /// 50035.
    pub fn query_id(&self, name: &str) -> Result<Option<Id>, ApiError> {
        let Some(text) = self.call.query.get(name) else { return Ok(None) };
        snowflake(text).map(Some).ok_or_else(|| not_snowflake(name, text))
    }
}

/// Parses an id.
#[must_use]
pub fn snowflake(text: &str) -> Option<Id> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn not_snowflake(name: &str, text: &str) -> ApiError {
    form_error(name, "NUMBER_TYPE_COERCE", &format!("Value \"{text}\" is not snowflake."))
}

impl Answer {
    fn of(result: Result<Reply, ApiError>) -> Self {
        let (status, body) = match result {
            Ok(Reply::Ok(body)) => (200, Some(body)),
            Ok(Reply::Created(body)) => (201, Some(body)),
            Ok(Reply::Nothing) => (204, None),
            Err(error) => (error.status, Some(error.body())),
        };
        Self { status, headers: Vec::new(), body, html: None }
    }

    /// The response of an injected error.
    #[must_use]
    pub fn fault(status: u16) -> Self {
        let body = json!({"message": format!("{status}: made by a fault"), "code": 0});
        Self { status, headers: Vec::new(), body: Some(body), html: None }
    }
}

impl Machine {
    /// Answers a request.
    pub fn call(&mut self, now: Ms, call: &Call) -> Answer {
        let route = classify(&call.method, &call.path);
        let name = route.as_ref().map_or("unknown", |route| route.name);
        // Tests send requests too, invalid ones among them.
        if call.user_agent.as_deref().is_some_and(|agent| agent.contains(PRODUCT))
            && let Some(why) = openapi::violation(call)
        {
            self.tally.violation(why);
        }
        let answer = if let Some(left) = self.banned(now) {
            banned(left)
        } else {
            match route.as_ref() {
                Ok(_) if call.user_agent.is_none() && self.holds(Rule::UserAgent) => {
                    Answer::of(Err(ApiError::blocked()))
                }
                Ok(route) => self.routed(now, call, route),
                Err(error) => Answer::of(Err(error.clone())),
            }
        };
        self.count(now, name, &answer);
        answer
    }

    fn banned(&self, now: Ms) -> Option<Ms> {
        self.limits.banned_for(now).filter(|_| self.holds(Rule::InvalidRequestBan))
    }

    fn count(&mut self, now: Ms, name: &str, answer: &Answer) {
        self.tally.request(name, answer.status);
        let code = answer.body.as_ref().filter(|_| answer.status >= 400).and_then(|body| body.get("code"));
        if let Some(code) = code.and_then(Value::as_u64).filter(|code| *code != 0) {
            self.tally.refusal(name, code);
        }
        let shared =
            answer.headers.iter().any(|(name, value)| *name == "x-ratelimit-scope" && value == "shared");
        if matches!(answer.status, 401 | 403 | 429) && !shared {
            self.tally.invalid += 1;
            self.limits.invalid(self.settings.invalid, self.settings.ban_ms, now);
        }
    }

    /// A 429 that a fault requests.
    pub fn rate_limited_by_fault(
        &mut self,
        now: Ms,
        call: &Call,
        retry_after_ms: Ms,
        scope: Scope,
    ) -> Answer {
        let route = classify(&call.method, &call.path);
        let name = route.as_ref().map_or("unknown", |route| route.name);
        let answer = too_many(retry_after_ms, scope, Vec::new());
        self.count(now, name, &answer);
        answer
    }

    fn routed(&mut self, now: Ms, call: &Call, route: &Route<'_>) -> Answer {
        let bot = match self.authorized(call, route) {
            Ok(bot) => bot,
            Err(error) => return Answer::of(Err(error)),
        };
        let bot_id = bot.as_ref().map_or(0, |bot| bot.user_id);
        if bot_id != 0 && !route.interaction && self.holds(Rule::GlobalLimit) {
            let standing = self.limits.global(bot_id, self.settings.global_per_second, now);
            if standing.exhausted {
                return too_many(standing.reset_after_ms, Scope::Global, Vec::new());
            }
        }
        let budget = self.settings.buckets.get(route.name).copied().unwrap_or(self.settings.other_bucket);
        let key = (bot_id, route.name.to_owned(), route.major.clone());
        let standing = self.limits.route(key, budget, now);
        let limits = headers(standing, route.name);
        if standing.exhausted && self.holds(Rule::RouteBuckets) {
            return too_many(standing.reset_after_ms, Scope::User, limits);
        }
        let ctx = Ctx { now, bot, args: route.args.clone(), call };
        let result =
            if self.body_fits(call) { (route.handler)(self, &ctx) } else { Err(ApiError::too_large()) };
        let retry_after_ms = result.as_ref().err().and_then(|error| error.retry_after_ms);
        let mut answer = Answer::of(result);
        answer.headers.extend(limits);
        if let Some(retry_after_ms) = retry_after_ms {
            answer.headers.push(("retry-after", retry_after_ms.div_ceil(1000).to_string()));
            answer.headers.push(("x-ratelimit-scope", "user".to_owned()));
        }
        answer
    }

    fn body_fits(&self, call: &Call) -> bool {
        call.body.size <= self.settings.request_max || !self.holds(Rule::FileSize)
    }

    fn authorized(&self, call: &Call, route: &Route<'_>) -> Result<Option<Bot>, ApiError> {
        let token = call.authorization.as_deref().and_then(|header| header.strip_prefix("Bot "));
        let bot = token.and_then(|token| self.world.bot_with_token(token)).cloned();
        if route.needs_token && bot.is_none() {
            if self.holds(Rule::Authorization) {
                return Err(ApiError::unauthorized());
            }
            return Ok(self.world.bots.iter().next().cloned());
        }
        Ok(bot)
    }

    /// `GET /users/@me`.
    pub(super) fn get_me(&mut self, ctx: &Ctx<'_>) -> Result<Reply, ApiError> {
        let bot = ctx.bot()?;
        let account = self.world.users.get(bot.user_id).ok_or_else(ApiError::unknown_user)?;
        Ok(Reply::Ok(render::current_user(account)))
    }

    /// `GET /users/@me/guilds`.
    pub(super) fn get_guilds(&mut self, ctx: &Ctx<'_>) -> Result<Reply, ApiError> {
        let bot = ctx.bot()?;
        let own =
            self.world.guilds.iter().filter(|guild| guild.alive && guild.members.contains_key(&bot.user_id));
        let partial = own.map(|guild| {
            json!({
                "id": render::id(guild.id), "name": guild.name, "icon": null, "banner": null, "owner": false,
                "permissions": "0", "features": [],
            })
        });
        Ok(Reply::Ok(partial.collect()))
    }

    /// `GET /applications/@me`.
    pub(super) fn get_application(&mut self, ctx: &Ctx<'_>) -> Result<Reply, ApiError> {
        let bot = ctx.bot()?;
        let account = self.world.users.get(bot.user_id).ok_or_else(ApiError::unknown_user)?;
        // Application flag GATEWAY_MESSAGE_CONTENT_LIMITED.
        let flags = if bot.privileged_intents & intent::MESSAGE_CONTENT == 0 { 0 } else { 1 << 19 };
        Ok(Reply::Ok(json!({
            "id": render::id(bot.application_id), "name": account.name, "icon": null, "description": "",
            "bot_public": true, "bot_require_code_grant": false, "verify_key": "0".repeat(64), "summary": "",
            "team": null, "flags": flags, "rpc_origins": [], "bot": render::user(account),
            "owner": render::user(account), "integration_types_config": {},
        })))
    }

    /// `GET /gateway/bot`.
    pub(super) fn get_gateway_bot(&mut self, ctx: &Ctx<'_>) -> Result<Reply, ApiError> {
        let bot = ctx.bot()?;
        let used = if ctx.now >= bot.identifies_reset_ms { 0 } else { bot.identifies };
        let total = self.settings.identify_total;
        Ok(Reply::Ok(json!({
            "url": self.gateway_url(),
            "shards": self.settings.shards,
            "session_start_limit": {
                "total": total,
                "remaining": total.saturating_sub(used),
                "reset_after": bot.identifies_reset_ms.saturating_sub(ctx.now),
                "max_concurrency": self.settings.max_concurrency,
            },
        })))
    }

    /// `GET /guilds/{}/members/{}`.
    pub(super) fn get_member(&mut self, ctx: &Ctx<'_>) -> Result<Reply, ApiError> {
        let (guild, bot) = (self.world.guild(ctx.id(0)?)?, ctx.bot()?);
        if !guild.members.contains_key(&bot.user_id) {
            return Err(ApiError::missing_access());
        }
        self.render_member(guild, ctx.id(1)?).map(Reply::Ok).ok_or_else(ApiError::unknown_member)
    }
}

/// A 429.
fn too_many(retry_after_ms: Ms, scope: Scope, mut limits: Vec<(&'static str, String)>) -> Answer {
    let global = scope == Scope::Global;
    limits.push(("retry-after", retry_after_ms.div_ceil(1000).to_string()));
    limits.push(("x-ratelimit-scope", scope_name(scope).to_owned()));
    if global {
        limits.push(("x-ratelimit-global", "true".to_owned()));
    }
    let message = if scope == Scope::Shared {
        "The resource is being rate limited."
    } else {
        "You are being rate limited."
    };
    let body = json!({"message": message, "retry_after": seconds(retry_after_ms), "global": global});
    Answer { status: 429, headers: limits, body: Some(body), html: None }
}

/// The proxy's response to a banned address: no JSON, no rate-limit headers.
fn banned(left: Ms) -> Answer {
    Answer {
        status: 429,
        headers: vec![("retry-after", left.div_ceil(1000).to_string())],
        body: None,
        html: Some("<!DOCTYPE html><title>Access denied</title><p>error code: 1015"),
    }
}
