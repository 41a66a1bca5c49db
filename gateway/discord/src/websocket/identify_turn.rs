//! Turns to identify that several programs with one application share.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Time after which a turn that was taken is void: it was answered late, or this process stood still.
pub const TURN_VALID: Duration = Duration::from_secs(1);
/// Maximum time that a connection without a session waits for its turn.
const PATIENCE: Duration = Duration::from_secs(15);

/// Limits of new sessions, as Discord reported them last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionLimits {
    /// Number of sessions that may still be identified.
    pub remaining: u32,
    /// Time until that number is reset.
    pub reset_after: Duration,
    /// Number of sessions that may be identified at the same time, each of another bucket; at least 1.
    pub max_concurrency: u32,
}

impl SessionLimits {
    /// Bucket of a shard: one session of each may be identified in five seconds.
    #[must_use]
    pub const fn bucket(&self, shard: u32) -> u32 {
        if self.max_concurrency == 0 { 0 } else { shard % self.max_concurrency }
    }
}

/// Result of asking for a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdentifyTurn {
    /// The session may be identified within [`TURN_VALID`] from the question on.
    Taken,
    /// Not yet.
    Later {
        /// Reason, for people.
        why: String,
        /// Minimum pause before the next question.
        after: Duration,
    },
}

/// Future of a turn.
pub type TurnFuture = Pin<Box<dyn Future<Output = IdentifyTurn> + Send>>;

/// Turns to identify of one application.
pub trait IdentifyTurns: fmt::Debug + Send + Sync {
    /// Asks for the turn of a shard. A turn that was taken counts, whether or not it is used.
    fn take(&self, shard: u32, limits: SessionLimits) -> TurnFuture;
}

/// Waits for the turn of a shard.
///
/// # Errors
/// Reason and pause if that takes longer than a connection should wait.
pub(super) async fn wait_for_turn(
    turns: Arc<dyn IdentifyTurns>,
    shard: u32,
    limits: SessionLimits,
) -> Result<(), (String, Duration)> {
    let end = Instant::now() + PATIENCE;
    loop {
        let asked = Instant::now();
        match turns.take(shard, limits).await {
            IdentifyTurn::Taken if asked.elapsed() < TURN_VALID => return Ok(()),
            IdentifyTurn::Taken => {
                tracing::warn!(shard, "turn to identify was answered too late; asking again")
            }
            IdentifyTurn::Later { why, after } if Instant::now() + after > end => return Err((why, after)),
            IdentifyTurn::Later { after, .. } => tokio::time::sleep(after).await,
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::expect_used, reason = "a failed expectation is a failed test")]

    use super::*;
    use parking_lot::Mutex;
    use std::collections::VecDeque;

    /// Turns with these answers, each after a time.
    #[derive(Debug)]
    struct Answers(Arc<Mutex<VecDeque<(Duration, IdentifyTurn)>>>);

    impl IdentifyTurns for Answers {
        fn take(&self, _: u32, _: SessionLimits) -> TurnFuture {
            let (delay, turn) = self.0.lock().pop_front().expect("no further question");
            Box::pin(async move {
                tokio::time::sleep(delay).await;
                turn
            })
        }
    }

    const LIMITS: SessionLimits =
        SessionLimits { remaining: 1, reset_after: Duration::ZERO, max_concurrency: 4 };

    fn later(seconds: u64) -> (Duration, IdentifyTurn) {
        let after = Duration::from_secs(seconds);
        (Duration::ZERO, IdentifyTurn::Later { why: format!("{seconds}"), after })
    }

    fn taken(delay_ms: u64) -> (Duration, IdentifyTurn) {
        (Duration::from_millis(delay_ms), IdentifyTurn::Taken)
    }

    #[tokio::test(start_paused = true)]
    async fn late_turn_is_void_and_long_wait_is_given_up() {
        for (answers, want, seconds) in [
            (vec![taken(0)], Ok(()), 0),
            (vec![later(3), later(6), taken(900)], Ok(()), 9),
            (vec![taken(1_500), taken(5_000), later(4), taken(0)], Ok(()), 10),
            (vec![later(6), later(6), later(6)], Err("6".to_owned()), 12),
            (vec![later(3_600)], Err("3600".to_owned()), 0),
        ] {
            let queue = Arc::new(Mutex::new(VecDeque::from(answers)));
            let begun = Instant::now();
            let result = wait_for_turn(Arc::new(Answers(Arc::clone(&queue))), 0, LIMITS).await;
            assert_eq!(result.map_err(|(why, _)| why), want);
            assert_eq!((begun.elapsed().as_secs(), queue.lock().len()), (seconds, 0));
        }
    }

    #[test]
    fn shards_of_one_bucket_differ_by_the_concurrency() {
        let buckets: Vec<u32> = (0..6).map(|shard| LIMITS.bucket(shard)).collect();
        assert_eq!(buckets, [0, 1, 2, 3, 0, 1]);
        assert_eq!(SessionLimits { max_concurrency: 0, ..LIMITS }.bucket(5), 0);
    }
}
