//! Queue of one conversation, read by one worker. Closes only while empty, so that no job is added without a
//! worker to run the job.

use acp_discord::core::ids::Snowflake;
use parking_lot::Mutex;
use std::collections::VecDeque;
use tokio::sync::Notify;

/// Factor by which the limit is higher for jobs that a backfill cannot restore.
const CHANGES_FACTOR: usize = 16;

/// Next work item.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum QueueItem<T> {
    /// Backfill before anything else: from the mark, and at the latest from the given message, the first one
    /// affected by a full queue.
    Backfill(Option<Snowflake>),
    /// Job.
    Job(T),
}

/// Result of adding a job.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum EnqueueOutcome<T> {
    /// Added.
    Added,
    /// Not added, queue full: a backfill replaces the job.
    Full,
    /// Not added, queue closed.
    Closed(T),
}

/// Queue content; no I/O.
#[derive(Debug)]
struct QueueState<T> {
    /// Jobs, each with the message from which a backfill restores the job.
    jobs: VecDeque<(Option<Snowflake>, T)>,
    most: usize,
    /// Pending request for a backfill; repeated requests lead to one backfill.
    wants_read: bool,
    /// Oldest message that waited or arrived while the queue was full.
    missed: Option<Snowflake>,
    is_closed: bool,
}

impl<T> QueueState<T> {
    const fn new(most: usize) -> Self {
        Self { jobs: VecDeque::new(), most, wants_read: false, missed: None, is_closed: false }
    }

    fn enqueue(&mut self, job: T, from: Option<Snowflake>) -> EnqueueOutcome<T> {
        if self.is_closed {
            return EnqueueOutcome::Closed(job);
        }
        let most = if from.is_some() { self.most } else { self.most * CHANGES_FACTOR };
        if self.jobs.len() >= most {
            self.request_backfill_from(from);
            return EnqueueOutcome::Full;
        }
        self.jobs.push_back((from, job));
        EnqueueOutcome::Added
    }

    fn oldest_waiting(&self) -> Option<Snowflake> {
        self.jobs.iter().find_map(|(from, _)| *from)
    }

    /// Requests a backfill for a message that found the queue full. The backfill begins at the oldest waiting
    /// message, to preserve the order. Returns false if closed.
    fn request_backfill_from(&mut self, from: Option<Snowflake>) -> bool {
        let waits = self.oldest_waiting().filter(|_| from.is_some());
        self.missed = [self.missed, from, waits].into_iter().flatten().min();
        self.request_backfill()
    }

    /// Requests a backfill. Returns false if closed.
    const fn request_backfill(&mut self) -> bool {
        self.wants_read |= !self.is_closed;
        !self.is_closed
    }

    fn next(&mut self) -> Option<QueueItem<T>> {
        if std::mem::take(&mut self.wants_read) {
            return Some(QueueItem::Backfill(self.missed.take()));
        }
        self.jobs.pop_front().map(|(_, job)| QueueItem::Job(job))
    }

    fn is_empty(&self) -> bool {
        self.jobs.is_empty() && !self.wants_read
    }

    fn close(&mut self) -> bool {
        self.is_closed |= self.is_empty();
        self.is_closed
    }
}

/// Queue of one conversation, between the event loop and the worker.
#[derive(Debug)]
pub(super) struct ConversationQueue<T> {
    waiting: Mutex<QueueState<T>>,
    more: Notify,
}

impl<T> ConversationQueue<T> {
    /// Creates a queue for at most `most` jobs.
    pub(super) fn new(most: usize) -> Self {
        Self { waiting: Mutex::new(QueueState::new(most)), more: Notify::new() }
    }

    /// Changes the state and wakes the worker.
    fn change<R>(&self, change: impl FnOnce(&mut QueueState<T>) -> R) -> R {
        let result = change(&mut self.waiting.lock());
        self.more.notify_one();
        result
    }

    /// Adds a job without waiting. `from` is the message from which a backfill restores the job; jobs that no
    /// backfill restores have a higher limit.
    pub(super) fn enqueue(&self, job: T, from: Option<Snowflake>) -> EnqueueOutcome<T> {
        self.change(|state| state.enqueue(job, from))
    }

    /// Requests a backfill for a message dropped elsewhere, as if this queue had been full. Returns false if
    /// the queue is closed.
    pub(super) fn request_backfill_from(&self, from: Snowflake) -> bool {
        self.change(|state| state.request_backfill_from(Some(from)))
    }

    /// Requests a backfill before all waiting jobs. Returns false if the queue is closed.
    pub(super) fn request_backfill(&self) -> bool {
        self.change(QueueState::request_backfill)
    }

    /// Returns the first waiting message that a backfill restores.
    pub(super) fn oldest_waiting(&self) -> Option<Snowflake> {
        self.waiting.lock().oldest_waiting()
    }

    /// Waits for the next work item and removes it.
    pub(super) async fn next(&self) -> QueueItem<T> {
        loop {
            if let Some(next) = self.waiting.lock().next() {
                return next;
            }
            self.more.notified().await;
        }
    }

    /// Waits until the queue is not empty.
    pub(super) async fn wait_nonempty(&self) {
        while self.waiting.lock().is_empty() {
            self.more.notified().await;
        }
    }

    /// Closes the queue if empty. Returns true if closed.
    pub(super) fn close(&self) -> bool {
        self.waiting.lock().close()
    }

    /// Closes the queue regardless of remaining jobs.
    pub(super) fn force_close(&self) {
        self.waiting.lock().is_closed = true;
    }

    /// True if the queue is closed.
    pub(super) fn is_closed(&self) -> bool {
        self.waiting.lock().is_closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;
    use std::time::Duration;

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Put,
        Read,
        Next,
        Close,
    }

    proptest! {
        /// Every added job comes out once and in order; a rejected job leads to a backfill afterwards;
        /// requests for a backfill are merged; a closed queue accepts nothing.
        #[test]
        fn queue_loses_no_accepted_job(steps in proptest::collection::vec(
            prop_oneof![3 => Just(Step::Put), 1 => Just(Step::Read), 3 => Just(Step::Next), 1 => Just(Step::Close)],
            0..60,
        )) {
            let mut queue = QueueState::new(3);
            let (mut kept, mut out, mut needs_backfill, mut is_closed) = (Vec::new(), Vec::new(), false, false);
            let mut from = None;
            for (number, step) in (0_u64..).zip(steps) {
                match step {
                    Step::Put => match queue.enqueue(number, Some(Snowflake(number))) {
                        EnqueueOutcome::Added => kept.push(number),
                        EnqueueOutcome::Full => {
                            needs_backfill = true;
                            // The oldest waiting job, or an earlier one that did not fit.
                            from = from.or(kept.get(out.len()).copied().map(Snowflake));
                        }
                        EnqueueOutcome::Closed(back) => prop_assert!(is_closed && back == number),
                    },
                    Step::Read => {
                        let is_open = queue.request_backfill();
                        prop_assert_eq!(is_open, !is_closed);
                        needs_backfill |= is_open;
                    }
                    Step::Next => match queue.next() {
                        Some(QueueItem::Backfill(first)) => {
                            prop_assert!(std::mem::take(&mut needs_backfill));
                            prop_assert_eq!(first, from.take());
                        }
                        Some(QueueItem::Job(job)) => {
                            prop_assert!(!needs_backfill, "a backfill comes first");
                            out.push(job);
                        }
                        None => prop_assert!(!needs_backfill && out == kept),
                    },
                    Step::Close => {
                        is_closed |= queue.close();
                        prop_assert!(!is_closed || (out == kept && !needs_backfill), "only an empty queue closes");
                    }
                }
            }
            while let Some(next) = queue.next() {
                match next {
                    QueueItem::Backfill(_) => prop_assert!(std::mem::take(&mut needs_backfill)),
                    QueueItem::Job(job) => out.push(job),
                }
            }
            prop_assert_eq!((out, needs_backfill), (kept, false));
        }
    }

    #[test]
    fn unrecoverable_jobs_have_larger_limit() {
        let mut queue = QueueState::new(1);
        let from = |id: u64| Some(Snowflake(id));
        assert_eq!(
            [queue.enqueue(1, from(1)), queue.enqueue(2, from(2))],
            [EnqueueOutcome::Added, EnqueueOutcome::Full]
        );
        assert_eq!(queue.enqueue(3, None), EnqueueOutcome::Added);
        assert_eq!(
            [queue.next(), queue.next()],
            [Some(QueueItem::Backfill(from(1))), Some(QueueItem::Job(1))]
        );
        assert_eq!(queue.next(), Some(QueueItem::Job(3)));
        let kept = (0..100).filter(|number| queue.enqueue(*number, None) == EnqueueOutcome::Added).count();
        assert_eq!(
            (kept, queue.next()),
            (CHANGES_FACTOR, Some(QueueItem::Backfill(None))),
            "no message was missed"
        );
        assert!(queue.request_backfill_from(from(9)) && queue.request_backfill_from(from(8)));
        assert_eq!(queue.next(), Some(QueueItem::Backfill(from(8))));
    }

    /// A worker that ends after its idle time loses no job that is added at the same moment.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn job_added_while_worker_ends_is_taken_or_returned() {
        for _ in 0..200 {
            let queue = Arc::new(ConversationQueue::new(4));
            let taker = Arc::clone(&queue);
            let taken = tokio::spawn(async move {
                let mut count = 0;
                loop {
                    match tokio::time::timeout(Duration::ZERO, taker.next()).await {
                        Ok(_) => count += 1,
                        Err(_) if taker.close() => return count,
                        Err(_) => {}
                    }
                }
            });
            let mut kept = 0;
            for number in 0..3 {
                kept += i32::from(queue.enqueue(number, Some(Snowflake(1))) == EnqueueOutcome::Added);
                tokio::task::yield_now().await;
            }
            assert_eq!(taken.await.ok(), Some(kept));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn backfill_request_wakes_waiting_worker() {
        let queue = ConversationQueue::<u8>::new(1);
        let wait = || tokio::time::timeout(Duration::from_secs(1), queue.wait_nonempty());
        assert!(wait().await.is_err());
        assert!(queue.request_backfill() && queue.request_backfill());
        assert!(wait().await.is_ok());
        assert_eq!(queue.next().await, QueueItem::Backfill(None));
        assert!(wait().await.is_err(), "two requests cause one backfill");
    }
}
