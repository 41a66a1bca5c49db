//! What a channel with a service behind it counts.

/// What a number is about. Its words are of a small set: no ids, no text of people.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Figure {
    /// 1 while events come in.
    Connected,
    /// 1 until the service refuses the account's token.
    Authorized,
    /// Connections to the service: `asked` for, `begun`, or `resumed` after a break.
    Sessions(&'static str),
    /// Stretches of events that were missed, sessions that began not counted; they are read again.
    Gaps,
    /// Events that there was no room for.
    EventsDropped,
    /// Events that nobody here knows or could read.
    EventsStrange,
    /// Requests by kind, and by what became of them.
    Requests(&'static str, &'static str),
    /// Requests that were made once more, by kind.
    Retries(&'static str),
    /// Answers of the service that say "too many", by whom they are about.
    RateLimits(&'static str),
    /// Requests that had their turn, by priority.
    Turns(&'static str),
    /// How long these waited for it together, in milliseconds.
    WaitedMs(&'static str),
    /// Requests that wait for their turn now.
    RequestsWaiting,
    /// Requests that are under way now.
    RequestsUnderWay,
}
