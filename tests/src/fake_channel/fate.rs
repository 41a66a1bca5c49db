//! Outcomes of sends, lookups and deliveries, drawn from a seed.

use crate::seed::Seed;
use std::time::Duration;

/// Maximum number of faults for one message; afterwards its sends succeed. Faults caused by kills are not
/// counted.
const FAULTS_MAX: u32 = 3;

/// Outcome of a send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SendFate {
    /// Accepted and answered.
    Well,
    /// Accepted at once, answered after a delay, perhaps after the caller's timeout.
    SlowAnswer(Duration),
    /// Accepted, and the answer is lost.
    LostAnswer,
    /// Accepted and answered after a delay.
    LateLanding(Duration),
    /// Never accepted, never answered.
    Lost,
    /// Refused: rate limit (429).
    Limited(Duration),
    /// Refused: service unavailable (503).
    Unavailable,
    /// The connection breaks after the message was accepted.
    CutAfter,
    /// The connection breaks before the message is accepted.
    CutBefore,
}

/// Outcome of a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookupFate {
    /// Answered.
    Well,
    /// The lookup fails.
    Unknown,
    /// Never answered.
    Lost,
}

/// Delivery of a person's message to the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    /// Delay: later messages may overtake it.
    pub after: Duration,
    /// Number of deliveries.
    pub times: u32,
}

fn ms(seed: &mut Seed, from: u64, to: u64) -> Duration {
    Duration::from_millis(from + seed.below(to - from))
}

/// Draws the outcome of a send for a message with `faults` earlier faults.
pub fn draw_send(seed: &mut Seed, faults: u32) -> SendFate {
    if faults >= FAULTS_MAX {
        return SendFate::Well;
    }
    match seed.below(100) {
        0..8 => SendFate::SlowAnswer(ms(seed, 20, 900)),
        8..15 => SendFate::LostAnswer,
        15..20 => SendFate::LateLanding(ms(seed, 20, 900)),
        20..24 => SendFate::Lost,
        24..29 => SendFate::Limited(ms(seed, 10, 200)),
        29..34 => SendFate::Unavailable,
        34..36 => SendFate::CutAfter,
        36..38 => SendFate::CutBefore,
        _ => SendFate::Well,
    }
}

/// Draws the outcome of a lookup.
pub fn draw_lookup(seed: &mut Seed) -> LookupFate {
    match seed.below(100) {
        0..12 => LookupFate::Unknown,
        12..18 => LookupFate::Lost,
        _ => LookupFate::Well,
    }
}

/// Draws the delivery of a person's message.
pub fn draw_delivery(seed: &mut Seed) -> Delivery {
    let after = if seed.below(4) == 0 { ms(seed, 5, 400) } else { Duration::ZERO };
    Delivery { after, times: if seed.below(5) == 0 { 2 } else { 1 } }
}
