//! Metrics reported by a channel that is connected to an external service.

/// Metric of a channel account. Label values come from a small fixed set: no ids, no text of people.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChannelMetric {
    /// 1 while events are being received.
    Connected,
    /// Shards of the account in this process, `connected` or `disconnected`.
    Shards(&'static str),
    /// 1 until the service refuses the account's token.
    Authorized,
    /// Connections to the service: `asked` for, `begun`, or `resumed` after a break.
    Sessions(&'static str),
    /// Intervals of missed events, without new sessions; the messages are backfilled.
    Gaps,
    /// Events dropped for lack of room.
    EventsDropped,
    /// Events of unknown kind or with unreadable content.
    EventsStrange,
    /// Requests, by kind and outcome.
    Requests(&'static str, &'static str),
    /// Retries of requests, by kind.
    Retries(&'static str),
    /// Rate-limit responses of the service, by scope.
    RateLimits(&'static str),
    /// Requests admitted by the rate limiter, by priority.
    Turns(&'static str),
    /// Total time that requests waited for the rate limiter, in milliseconds, by priority.
    WaitedMs(&'static str),
    /// Requests now waiting for the rate limiter.
    RequestsWaiting,
    /// Requests now in flight.
    RequestsUnderWay,
}
