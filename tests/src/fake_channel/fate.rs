//! What becomes of a message on its way: drawn from a seed.

use crate::seed::Seed;
use std::time::Duration;

/// So many mishaps may happen to one message; then it is treated well. What kills add comes on top.
const MISHAPS_MAX: u32 = 3;

/// What becomes of a message that is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SendFate {
    /// Taken and answered.
    Well,
    /// Taken at once, answered after a while: perhaps when nobody waits any more.
    SlowAnswer(Duration),
    /// Taken, and the answer is lost.
    LostAnswer,
    /// Taken after a while, and answered then.
    LateLanding(Duration),
    /// Never taken, never answered.
    Lost,
    /// Not taken: too many (429).
    Limited(Duration),
    /// Not taken: out of order (503).
    Unavailable,
    /// The connection breaks, after the message was taken.
    CutAfter,
    /// The connection breaks, before the message is taken.
    CutBefore,
}

/// What becomes of a look for a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookFate {
    /// Answered.
    Well,
    /// It fails.
    Unknown,
    /// Never answered.
    Lost,
}

/// How what a person said is brought to the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bringing {
    /// After how long: what is said later may come before it.
    pub after: Duration,
    /// How often.
    pub times: u32,
}

fn ms(seed: &mut Seed, from: u64, to: u64) -> Duration {
    Duration::from_millis(from + seed.below(to - from))
}

/// Draws for a message that had `mishaps` already.
pub fn of_send(seed: &mut Seed, mishaps: u32) -> SendFate {
    if mishaps >= MISHAPS_MAX {
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

/// Draws for a look.
pub fn of_look(seed: &mut Seed) -> LookFate {
    match seed.below(100) {
        0..12 => LookFate::Unknown,
        12..18 => LookFate::Lost,
        _ => LookFate::Well,
    }
}

/// Draws for something said.
pub fn of_said(seed: &mut Seed) -> Bringing {
    let after = if seed.below(4) == 0 { ms(seed, 5, 400) } else { Duration::ZERO };
    Bringing { after, times: if seed.below(5) == 0 { 2 } else { 1 } }
}
