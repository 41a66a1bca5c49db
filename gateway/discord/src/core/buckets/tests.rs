use super::BucketAvailability::{AfterResponse, At, Now};
use super::{BucketAvailability, BucketPermit, Buckets, MajorParam};
use crate::core::global_limits::GlobalLimit;
use crate::core::headers::BucketState;
use proptest::prelude::*;
use std::time::Duration;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn budget(limit: u32, remaining: u32, reset_ms: u64) -> BucketState {
    BucketState { bucket: "b".to_owned(), limit, remaining, reset_after: ms(reset_ms) }
}

fn availability(buckets: &mut Buckets, now: u64, route: &'static str, channel: u64) -> BucketAvailability {
    buckets.availability(ms(now), route, &MajorParam::Channel(channel))
}

fn take(buckets: &mut Buckets, now: u64, route: &'static str, channel: u64) -> BucketPermit {
    assert_eq!(availability(buckets, now, route, channel), Now, "{route} {channel} at {now}");
    buckets.acquire(ms(now), route, &MajorParam::Channel(channel))
}

#[test]
fn requests_of_unknown_bucket_are_serialized() {
    let mut buckets = Buckets::default();
    let first = take(&mut buckets, 0, "post", 1);
    assert_eq!(availability(&mut buckets, 1, "post", 1), AfterResponse);
    assert_eq!(availability(&mut buckets, 1, "post", 2), Now);
    buckets.record_response(ms(50), &first, Some(&budget(5, 4, 5000)), true);
    let permits: Vec<BucketPermit> = (0..4).map(|_| take(&mut buckets, 60, "post", 1)).collect();
    assert_eq!(availability(&mut buckets, 60, "post", 1), At(ms(5050)));
    // Another channel has a bucket of its own, without a response yet.
    take(&mut buckets, 60, "post", 2);
    assert_eq!(availability(&mut buckets, 60, "post", 2), AfterResponse);
    for (left, permit) in permits.iter().enumerate() {
        let left = budget(5, u32::try_from(left).unwrap_or(0), 4990);
        buckets.record_response(ms(70), permit, Some(&left), true);
    }
    // The later responses moved the end of the window by their delay.
    assert_eq!(availability(&mut buckets, 5059, "post", 1), At(ms(5060)));
    assert_eq!(availability(&mut buckets, 5060, "post", 1), Now);
}

#[test]
fn routes_of_one_bucket_share_its_budget() {
    let mut buckets = Buckets::default();
    let first = take(&mut buckets, 0, "edit", 1);
    buckets.record_response(ms(10), &first, Some(&budget(2, 1, 1000)), true);
    let other = take(&mut buckets, 20, "delete", 1);
    buckets.record_response(ms(30), &other, Some(&budget(2, 0, 980)), true);
    for route in ["edit", "delete"] {
        assert_eq!(availability(&mut buckets, 40, route, 1), At(ms(1010)), "{route}");
    }
    assert_eq!(buckets.len(), 1);
}

#[test]
fn routes_without_bucket_are_unlimited_until_refused() {
    let mut buckets = Buckets::default();
    let failed = take(&mut buckets, 0, "callback", 1);
    // An error without rate-limit headers does not make the route unlimited.
    buckets.record_response(ms(10), &failed, None, false);
    let first = take(&mut buckets, 10, "callback", 1);
    assert_eq!(availability(&mut buckets, 10, "callback", 1), AfterResponse);
    buckets.record_response(ms(20), &first, None, true);
    let permits = [take(&mut buckets, 20, "callback", 1), take(&mut buckets, 20, "callback", 1)];
    // After a refusal the route has a limit.
    buckets.record_rate_limited(ms(30), &permits[0], None, ms(500));
    assert_eq!(availability(&mut buckets, 40, "callback", 1), At(ms(530)));
    assert_eq!(availability(&mut buckets, 530, "callback", 1), Now);
}

#[test]
fn rate_limited_bucket_waits_for_retry_after() {
    let mut buckets = Buckets::default();
    let first = take(&mut buckets, 0, "post", 1);
    buckets.record_response(ms(10), &first, Some(&budget(5, 4, 1000)), true);
    let second = take(&mut buckets, 20, "post", 1);
    buckets.record_rate_limited(ms(30), &second, Some(&budget(5, 0, 970)), ms(60_000));
    assert_eq!(availability(&mut buckets, 5000, "post", 1), At(ms(60_030)));
    assert_eq!(availability(&mut buckets, 5000, "post", 2), Now);
}

#[test]
fn lost_request_counts_until_its_window_ends() {
    let mut buckets = Buckets::default();
    let first = take(&mut buckets, 0, "post", 1);
    buckets.record_lost(ms(10), &first);
    let first = take(&mut buckets, 10, "post", 1);
    buckets.record_response(ms(20), &first, Some(&budget(2, 1, 1000)), true);
    let second = take(&mut buckets, 30, "post", 1);
    buckets.record_lost(ms(900), &second);
    assert_eq!(availability(&mut buckets, 900, "post", 1), At(ms(1900)));
    let third = take(&mut buckets, 1900, "post", 1);
    buckets.release(&third);
    take(&mut buckets, 1900, "post", 1);
    take(&mut buckets, 1900, "post", 1);
    assert_eq!(availability(&mut buckets, 1900, "post", 1), AfterResponse);
}

#[test]
fn idle_buckets_are_removed() {
    let mut buckets = Buckets::default();
    for channel in 0..20_000 {
        let permit = take(&mut buckets, channel * 10, "post", channel);
        buckets.record_response(ms(channel * 10 + 5), &permit, Some(&budget(5, 4, 100)), true);
    }
    assert!(buckets.len() <= super::BUCKETS_MAX + 1, "{}", buckets.len());
}

/// Bucket of a simulated server. A window begins with the first request after the end of the last one.
struct Server {
    limit: u32,
    window: u64,
    used: u32,
    ends: u64,
}

impl Server {
    /// Counts a request. Returns the state of the bucket, or `None` if the request exceeds the limit.
    fn count(&mut self, now: u64) -> Option<BucketState> {
        if now >= self.ends {
            self.used = 0;
            self.ends = now + self.window;
        }
        self.used += 1;
        let left = self.limit.checked_sub(self.used)?;
        Some(budget(self.limit, left, self.ends - now))
    }
}

#[derive(Debug)]
struct InFlight {
    arrives_at: u64,
    answered_at: u64,
    lost: bool,
    permit: BucketPermit,
    budget: Option<BucketState>,
    counted: bool,
}

#[derive(Debug, Clone)]
struct Attempt {
    pause: u64,
    request_delay: u64,
    response_delay: u64,
    lost: bool,
}

fn attempts() -> impl Strategy<Value = Vec<Attempt>> {
    let one = (
        prop_oneof![Just(0), 0..50_u64, 0..1500_u64],
        prop_oneof![1..5_u64, 1..400_u64, 1..3000_u64],
        prop_oneof![1..5_u64, 1..400_u64, 1..3000_u64],
        prop::bool::weighted(0.1),
    );
    let one = one.prop_map(|(pause, request_delay, response_delay, lost)| Attempt {
        pause,
        request_delay,
        response_delay,
        lost,
    });
    prop::collection::vec(one, 1..120)
}

/// Advances the time to `until`: requests arrive at the server, and responses arrive, each at its time.
fn pass_time(
    flights: &mut Vec<InFlight>,
    server: &mut Server,
    buckets: &mut Buckets,
    until: u64,
) -> Result<(), String> {
    loop {
        let next = |flight: &InFlight| if flight.counted { flight.answered_at } else { flight.arrives_at };
        let Some(at) = (0..flights.len()).min_by_key(|at| next(&flights[*at])) else { return Ok(()) };
        let now = next(&flights[at]);
        if now > until {
            return Ok(());
        }
        if !flights[at].counted {
            let left = server.count(now).ok_or(format!("limit exceeded at {now}"))?;
            flights[at].budget = Some(left);
            flights[at].counted = true;
            continue;
        }
        let flight = flights.remove(at);
        if flight.lost {
            buckets.record_lost(ms(now), &flight.permit);
        } else {
            buckets.record_response(ms(now), &flight.permit, flight.budget.as_ref(), true);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// For any order, delay and loss of requests and responses, no request exceeds the limit, and all
    /// requests are sent in the end.
    #[test]
    fn requests_never_exceed_the_limit(limit in 1_u32..8, window in 100_u64..6000, attempts in attempts()) {
        let mut server = Server { limit, window, used: 0, ends: 0 };
        let mut buckets = Buckets::default();
        let mut flights = Vec::new();
        let (mut now, major) = (0, MajorParam::Channel(1));
        // Nothing is known about the window at first, so the first request always gets a response.
        for (number, attempt) in attempts.iter().enumerate() {
            now += attempt.pause;
            let mut waits = 0;
            loop {
                pass_time(&mut flights, &mut server, &mut buckets, now).map_err(TestCaseError::fail)?;
                now = match buckets.availability(ms(now), "post", &major) {
                    Now => break,
                    At(until) => now.max(u64::try_from(until.as_millis()).unwrap_or(now)),
                    AfterResponse => {
                        let next = flights.iter().map(|f| f.answered_at).min();
                        next.ok_or_else(|| TestCaseError::fail("waits without a request in flight"))?
                    }
                };
                waits += 1;
                prop_assert!(waits < 1000, "the request is never sent");
            }
            let permit = buckets.acquire(ms(now), "post", &major);
            let (arrives_at, answered_at) = (now + attempt.request_delay, now + attempt.request_delay + attempt.response_delay);
            let lost = attempt.lost && number > 0;
            flights.push(InFlight { arrives_at, answered_at, lost, permit, budget: None, counted: false });
        }
        pass_time(&mut flights, &mut server, &mut buckets, u64::MAX).map_err(TestCaseError::fail)?;
    }

    /// Requests in sequence use the whole limit: no window is left half used.
    #[test]
    fn sequential_requests_use_the_whole_limit(limit in 1_u32..8, window in 1000_u64..6000, delay in 1_u64..40) {
        let mut server = Server { limit, window, used: 0, ends: 0 };
        let mut buckets = Buckets::default();
        let (mut now, mut sent, major) = (0, 0, MajorParam::Channel(1));
        while now < 20 * window {
            match buckets.availability(ms(now), "post", &major) {
                Now => {}
                At(until) => now = u64::try_from(until.as_millis()).unwrap_or(now),
                AfterResponse => prop_assert!(false, "no request is in flight"),
            }
            let permit = buckets.acquire(ms(now), "post", &major);
            let left = server.count(now + delay);
            prop_assert!(left.is_some());
            now += 2 * delay;
            buckets.record_response(ms(now), &permit, left.as_ref(), true);
            sent += 1;
        }
        // Nearly the limit in each window of the server, less the round-trip times.
        prop_assert!(sent >= 17 * limit, "{sent} of {}", 20 * limit);
    }

    /// For any delay of requests, no second on the server's side has more requests than the limit.
    #[test]
    fn global_limit_holds_in_any_second(limit in 1_u32..10, attempts in attempts()) {
        let mut global = GlobalLimit::new(limit, ms(1000));
        let (mut now, mut arrivals, mut answered_at) = (0, Vec::new(), Vec::new());
        for attempt in &attempts {
            now += attempt.pause;
            loop {
                answered_at.sort_unstable();
                while answered_at.first().is_some_and(|at| *at <= now) {
                    global.complete(ms(answered_at.remove(0)));
                }
                now = match global.required_wait(ms(now)) {
                    None => break,
                    Some(Some(until)) => now.max(u64::try_from(until.as_millis()).unwrap_or(now)),
                    Some(None) => answered_at.first().copied().unwrap_or(now),
                };
            }
            global.acquire();
            arrivals.push(now + attempt.request_delay);
            answered_at.push(now + attempt.request_delay + attempt.response_delay);
        }
        arrivals.sort_unstable();
        let most = usize::try_from(limit).unwrap_or(0);
        for pair in arrivals.windows(most + 1) {
            prop_assert!(pair[most] - pair[0] >= 1000, "{pair:?}");
        }
    }
}
