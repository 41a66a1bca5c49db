//! Rate limiter for all requests. Combines the token's validity, the refusal count, the global limit, the
//! limit on edits of old messages, and the buckets.

use crate::core::buckets::{BucketAvailability, BucketPermit, Buckets, MajorParam, RouteName};
use crate::core::global_limits::{GlobalLimit, InvalidRequestLimit};
use crate::core::headers::{RateLimitScope, ResponseMeta};
use std::collections::HashMap;
use std::time::Duration;

/// Age in milliseconds from which edits of a message have a separate limit: one hour.
pub const OLD_EDIT_AGE_MS: u64 = 60 * 60 * 1000;
/// Discord's error code for that limit.
pub const OLD_EDITS_CODE: u32 = 30046;
/// Window in which Discord counts refusals.
const INVALID_WINDOW: Duration = Duration::from_secs(600);

/// Properties of a request that decide which limits apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RateLimitParams {
    /// Route name.
    pub route: RouteName,
    /// Major parameter.
    pub major: MajorParam,
    /// True if the global limit of the bot applies; requests to interactions are exempt.
    pub global: bool,
    /// True if the request carries the bot's token.
    pub bot: bool,
    /// True if the request edits a message older than an hour.
    pub old_edit: bool,
}

/// Answer of the rate limiter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// Send the request.
    Go(RequestPermit),
    /// Wait until this time; `None`: until the next response.
    Wait(Option<Duration>),
    /// Discord refused the token: nothing is sent until it is replaced.
    Unauthorized,
}

/// Admitted request. Its outcome must be reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestPermit {
    bucket_permit: BucketPermit,
    params: RateLimitParams,
    /// Generation of the token at admission.
    token: u64,
}

/// Outcome of an admitted request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestOutcome {
    /// Discord responded.
    Responded(ResponseMeta),
    /// The outcome is unknown.
    Lost,
    /// The request never left this machine.
    NotSent,
}

/// Rate limiter for all requests.
#[derive(Debug)]
pub struct RateLimiter {
    buckets: Buckets,
    global: GlobalLimit,
    invalid: InvalidRequestLimit,
    unauthorized: bool,
    /// Generation of the token: the number of replacements so far.
    token: u64,
    /// Time until which Discord's edge refuses requests from this IP address.
    blocked_until: Duration,
    /// Time until which edits of old messages wait, by channel.
    old_edits: HashMap<MajorParam, Duration>,
}

impl RateLimiter {
    /// Creates a limiter of this many requests per second, and this many refusals in ten minutes.
    #[must_use]
    pub fn new(per_second: u32, invalid: usize) -> Self {
        Self {
            buckets: Buckets::default(),
            global: GlobalLimit::new(per_second, Duration::from_secs(1)),
            invalid: InvalidRequestLimit::new(invalid, INVALID_WINDOW),
            unauthorized: false,
            token: 0,
            blocked_until: Duration::ZERO,
            old_edits: HashMap::new(),
        }
    }

    /// Admits a request or says how long to wait.
    pub fn try_acquire(&mut self, now: Duration, params: &RateLimitParams) -> Admission {
        if self.unauthorized && params.bot {
            return Admission::Unauthorized;
        }
        if let Some(until) = self.blocked_until(now) {
            return Admission::Wait(Some(until));
        }
        if params.old_edit {
            self.old_edits.retain(|_, until| *until > now);
            if let Some(until) = self.old_edits.get(&params.major) {
                return Admission::Wait(Some(*until));
            }
        }
        match self.buckets.availability(now, params.route, &params.major) {
            BucketAvailability::Now => {}
            BucketAvailability::At(until) => return Admission::Wait(Some(until)),
            BucketAvailability::AfterResponse => return Admission::Wait(None),
        }
        if params.global {
            if let Some(wait) = self.global.required_wait(now) {
                return Admission::Wait(wait);
            }
            self.global.acquire();
        }
        let bucket_permit = self.buckets.acquire(now, params.route, &params.major);
        Admission::Go(RequestPermit { bucket_permit, params: params.clone(), token: self.token })
    }

    /// Reports the outcome of an admitted request.
    pub fn record_outcome(&mut self, now: Duration, permit: &RequestPermit, outcome: &RequestOutcome) {
        let RequestPermit { bucket_permit, params, .. } = permit;
        if params.global {
            match outcome {
                RequestOutcome::Responded(_) | RequestOutcome::Lost => self.global.complete(now),
                RequestOutcome::NotSent => self.global.release(),
            }
        }
        match outcome {
            RequestOutcome::Lost => self.buckets.record_lost(now, bucket_permit),
            RequestOutcome::NotSent => self.buckets.release(bucket_permit),
            RequestOutcome::Responded(meta) => self.record_response(now, permit, meta),
        }
    }

    fn record_response(&mut self, now: Duration, permit: &RequestPermit, meta: &ResponseMeta) {
        let RequestPermit { bucket_permit, params, token } = permit;
        let shared = meta.too_many.is_some_and(|limit| limit.scope == RateLimitScope::Shared);
        if matches!(meta.status, 401 | 403 | 429) && !shared {
            self.invalid.record(now);
        }
        // A refusal of the previous token does not concern the current one.
        if meta.status == 401 && params.bot && *token == self.token {
            self.unauthorized = true;
        }
        let budget = meta.budget.as_ref();
        let Some(limit) = meta.too_many else {
            let success = (200..300).contains(&meta.status);
            return self.buckets.record_response(now, bucket_permit, budget, success);
        };
        match limit.scope {
            // The limit on old edits is separate from the bucket: other edits continue.
            RateLimitScope::User | RateLimitScope::Shared if limit.code == Some(OLD_EDITS_CODE) => {
                self.old_edits.insert(params.major.clone(), now + limit.retry_after);
                self.buckets.record_response(now, bucket_permit, budget, false);
            }
            RateLimitScope::User | RateLimitScope::Shared => {
                self.buckets.record_rate_limited(now, bucket_permit, budget, limit.retry_after)
            }
            RateLimitScope::Global => {
                self.global.block_until(now + limit.retry_after);
                self.buckets.record_response(now, bucket_permit, budget, false);
            }
            RateLimitScope::Address => {
                self.blocked_until = self.blocked_until.max(now + limit.retry_after);
                self.buckets.record_response(now, bucket_permit, budget, false);
            }
        }
    }

    /// Returns the time until which no request is sent at all, if any: Discord's edge asked for it, or so
    /// many refusals occurred that Discord would soon block this IP address.
    pub fn blocked_until(&mut self, now: Duration) -> Option<Duration> {
        let shut = Some(self.blocked_until).filter(|until| *until > now);
        shut.or_else(|| self.invalid.blocked_until(now))
    }

    /// Records that the token was replaced.
    pub const fn authorize(&mut self) {
        self.unauthorized = false;
        self.token += 1;
    }

    /// Sets the maximum number of requests per second. Requests that were sent before count.
    pub const fn set_per_second(&mut self, per_second: u32) {
        self.global.set_limit(per_second);
    }

    /// True if Discord refused the token.
    #[must_use]
    pub const fn is_unauthorized(&self) -> bool {
        self.unauthorized
    }
}

#[cfg(test)]
mod tests {
    use super::{Admission, RateLimitParams, RateLimiter, RequestOutcome, RequestPermit};
    use crate::core::buckets::MajorParam;
    use crate::core::headers::{RateLimitScope, ResponseMeta, TooMany};
    use std::time::Duration;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn params(route: &'static str, channel: u64) -> RateLimitParams {
        RateLimitParams {
            route,
            major: MajorParam::Channel(channel),
            global: true,
            bot: true,
            old_edit: false,
        }
    }

    fn acquire(limiter: &mut RateLimiter, now: Duration, params: &RateLimitParams) -> RequestPermit {
        match limiter.try_acquire(now, params) {
            Admission::Go(permit) => permit,
            other => panic!("{params:?}: {other:?}"),
        }
    }

    fn meta(status: u16, too_many: Option<TooMany>) -> RequestOutcome {
        RequestOutcome::Responded(ResponseMeta { status, budget: None, too_many })
    }

    fn limit(scope: RateLimitScope, seconds: u64, code: Option<u32>) -> RequestOutcome {
        meta(429, Some(TooMany { scope, retry_after: Duration::from_secs(seconds), code }))
    }

    #[test]
    fn rejected_token_blocks_requests_until_replaced() {
        let mut limiter = RateLimiter::new(40, 500);
        let permit = acquire(&mut limiter, ms(0), &params("a", 1));
        limiter.record_outcome(ms(1), &permit, &meta(401, None));
        assert_eq!(limiter.try_acquire(ms(2), &params("b", 2)), Admission::Unauthorized);
        let webhook = RateLimitParams { bot: false, ..params("c", 3) };
        let permit = acquire(&mut limiter, ms(2), &webhook);
        limiter.record_outcome(ms(3), &permit, &meta(401, None));
        limiter.authorize();
        assert!(!limiter.is_unauthorized());
        acquire(&mut limiter, ms(4), &params("b", 2));
        // A refused webhook token does not concern the bot's token.
        let permit = acquire(&mut limiter, ms(5), &webhook);
        limiter.record_outcome(ms(6), &permit, &meta(401, None));
        assert!(!limiter.is_unauthorized());
    }

    #[test]
    fn rate_limit_applies_to_its_scope() {
        let other = |route, channel| (params(route, channel), false);
        let same = |route, channel| (params(route, channel), true);
        let interaction = RateLimitParams { global: false, bot: false, ..params("i", 9) };
        for (outcome, rows) in [
            (limit(RateLimitScope::User, 5, None), vec![same("a", 1), other("a", 2), other("b", 1)]),
            (limit(RateLimitScope::Shared, 5, None), vec![same("a", 1), other("a", 2)]),
            (
                limit(RateLimitScope::Global, 5, None),
                vec![same("a", 1), same("a", 2), (interaction.clone(), false)],
            ),
            (limit(RateLimitScope::Address, 5, None), vec![same("a", 1), same("b", 2), (interaction, true)]),
            (limit(RateLimitScope::User, 5, Some(30046)), vec![other("a", 1), other("a", 2)]),
        ] {
            for (params_then, is_limited) in rows {
                let mut limiter = RateLimiter::new(40, 500);
                let permit = acquire(&mut limiter, ms(0), &params("a", 1));
                limiter.record_outcome(ms(100), &permit, &outcome);
                let admission = limiter.try_acquire(ms(200), &params_then);
                let expected = Admission::Wait(Some(ms(5100)));
                assert_eq!(admission == expected, is_limited, "{outcome:?} {params_then:?} {admission:?}");
                if is_limited {
                    acquire(&mut limiter, ms(5100), &params_then);
                }
            }
        }
    }

    #[test]
    fn old_message_edits_have_a_separate_limit() {
        let mut limiter = RateLimiter::new(40, 500);
        let old = |channel| RateLimitParams { old_edit: true, ..params("edit", channel) };
        let permit = acquire(&mut limiter, ms(0), &old(1));
        limiter.record_outcome(ms(10), &permit, &limit(RateLimitScope::User, 20, Some(30046)));
        assert_eq!(limiter.try_acquire(ms(20), &old(1)), Admission::Wait(Some(ms(20_010))));
        let permit = acquire(&mut limiter, ms(20), &params("edit", 1));
        limiter.record_outcome(ms(30), &permit, &meta(200, None));
        acquire(&mut limiter, ms(30), &old(2));
        acquire(&mut limiter, ms(20_010), &old(1));
    }

    #[test]
    fn only_own_refusals_count_as_invalid() {
        for (outcome, is_blocking) in [
            (meta(403, None), true),
            (meta(404, None), false),
            (meta(500, None), false),
            (limit(RateLimitScope::User, 0, None), true),
            (limit(RateLimitScope::Shared, 0, None), false),
            (RequestOutcome::Lost, false),
            (RequestOutcome::NotSent, false),
        ] {
            let mut limiter = RateLimiter::new(40, 2);
            for n in 0..2 {
                let permit = acquire(&mut limiter, ms(n), &params("a", n));
                limiter.record_outcome(ms(n), &permit, &outcome);
            }
            let admission = limiter.try_acquire(ms(10), &params("a", 10));
            assert_eq!(limiter.blocked_until(ms(10)), is_blocking.then_some(ms(600_000)), "{outcome:?}");
            assert_eq!(
                admission == Admission::Wait(Some(ms(600_000))),
                is_blocking,
                "{outcome:?} {admission:?}"
            );
        }
    }
}
