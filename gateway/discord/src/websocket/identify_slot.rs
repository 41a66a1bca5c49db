//! Identify slots, which several programs share that serve one application.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Validity of a slot: a later answer, or a process that was stopped meanwhile, must ask again.
pub const SLOT_VALID: Duration = Duration::from_secs(1);
/// Maximum wait of a connection for its identify slot.
const SLOT_WAIT_MAX: Duration = Duration::from_secs(15);

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

/// Answer to a request for an identify slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdentifySlot {
    /// The session may be identified within [`SLOT_VALID`] from this time on, which is not later than that of the slot.
    Taken(Instant),
    /// Not yet.
    Later {
        /// Reason, for people.
        why: String,
        /// Minimum pause before the next question.
        after: Duration,
    },
}

/// Future of an identify slot.
pub type SlotFuture<'a> = Pin<Box<dyn Future<Output = IdentifySlot> + Send + 'a>>;

/// Identify slots of one application.
pub trait IdentifySlots: fmt::Debug + Send + Sync {
    /// Requests an identify slot for a shard. A slot that was taken counts, whether or not it is used.
    fn take(&self, shard: u32, limits: SessionLimits) -> SlotFuture<'_>;
}

/// Waits for an identify slot of a shard.
///
/// # Errors
/// Reason and pause in milliseconds if that takes longer than a connection may wait.
pub(super) async fn wait_for_slot(
    slots: Arc<dyn IdentifySlots>,
    shard: u32,
    limits: SessionLimits,
) -> Result<(), (String, u64)> {
    let end = Instant::now() + SLOT_WAIT_MAX;
    loop {
        match slots.take(shard, limits).await {
            IdentifySlot::Taken(at) if at.elapsed() < SLOT_VALID => return Ok(()),
            IdentifySlot::Taken(_) => {
                tracing::warn!(shard, "identify slot was answered too late; asking again")
            }
            IdentifySlot::Later { why, after } if Instant::now() + after > end => {
                return Err((why, u64::try_from(after.as_millis()).unwrap_or(u64::MAX)));
            }
            IdentifySlot::Later { after, .. } => tokio::time::sleep(after).await,
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::expect_used, reason = "a failed expectation is a failed test")]

    use super::*;
    use parking_lot::Mutex;
    use std::collections::VecDeque;

    /// Milliseconds before and after a slot is set, or the seconds until the next question.
    type Answer = Result<(u64, u64), u64>;

    #[derive(Debug)]
    struct Answers(Arc<Mutex<VecDeque<Answer>>>);

    impl IdentifySlots for Answers {
        fn take(&self, _: u32, _: SessionLimits) -> SlotFuture<'_> {
            let answer = self.0.lock().pop_front().expect("no further question");
            Box::pin(async move {
                let (before, after) = match answer {
                    Ok(taken) => taken,
                    Err(seconds) => {
                        let after = Duration::from_secs(seconds);
                        return IdentifySlot::Later { why: format!("{seconds}"), after };
                    }
                };
                tokio::time::sleep(Duration::from_millis(before)).await;
                let at = Instant::now();
                tokio::time::sleep(Duration::from_millis(after)).await;
                IdentifySlot::Taken(at)
            })
        }
    }

    const LIMITS: SessionLimits =
        SessionLimits { remaining: 1, reset_after: Duration::ZERO, max_concurrency: 4 };

    #[tokio::test(start_paused = true)]
    async fn late_slot_is_void_and_long_wait_is_given_up() {
        for (answers, want, seconds) in [
            (vec![Ok((0, 0))], Ok(()), 0),
            (vec![Err(3), Err(6), Ok((0, 900))], Ok(()), 9),
            (vec![Ok((3_000, 900))], Ok(()), 3),
            (vec![Ok((0, 1_500)), Ok((0, 5_000)), Err(4), Ok((0, 0))], Ok(()), 10),
            (vec![Err(6), Err(6), Err(6)], Err("6".to_owned()), 12),
            (vec![Err(3_600)], Err("3600".to_owned()), 0),
        ] {
            let queue = Arc::new(Mutex::new(VecDeque::from(answers)));
            let begun = Instant::now();
            let result = wait_for_slot(Arc::new(Answers(Arc::clone(&queue))), 0, LIMITS).await;
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
