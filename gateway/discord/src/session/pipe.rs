//! Two ends of the event queue: [`Sink`] and [`Events`].

use crate::core::event::Event;
use crate::core::queue::{Put, Queue};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    /// Notified when an event is added.
    more: Notify,
    /// Cancelled when the consumer is dropped.
    deaf: CancellationToken,
    /// Cancelled when the last producer is dropped.
    over: CancellationToken,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // The queue is consistent after each call, so a poisoned lock is harmless.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Producer end of the queue. Dropping the last clone ends the stream.
#[derive(Debug, Clone)]
pub struct Sink {
    shared: Arc<Shared>,
    _last: Arc<Last>,
}

#[derive(Debug)]
struct Last(CancellationToken);

impl Drop for Last {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Consumer end of the queue, in order.
#[derive(Debug)]
pub struct Events {
    shared: Arc<Shared>,
}

/// Creates a queue with this capacity, and a tenth of it as a reserve for clicks and commands.
#[must_use]
pub fn pipe(room: usize) -> (Sink, Events) {
    let over = CancellationToken::new();
    let shared = Arc::new(Shared {
        queue: Mutex::new(Queue::new(room, room / 10 + 1)),
        more: Notify::new(),
        deaf: CancellationToken::new(),
        over: over.clone(),
    });
    (Sink { shared: Arc::clone(&shared), _last: Arc::new(Last(over)) }, Events { shared })
}

impl Sink {
    /// Adds an event without waiting.
    pub fn put(&self, event: Event) -> Put {
        let put = self.shared.queue().put(event);
        self.shared.more.notify_one();
        put
    }

    /// Waits until the consumer is dropped.
    pub async fn closed(&self) {
        self.shared.deaf.cancelled().await;
    }
}

impl Events {
    /// Returns the next event, or `None` when all producers are dropped and the queue is empty.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            // Read before the queue, so that events added before the end are still returned.
            let over = self.shared.over.is_cancelled();
            if let Some(event) = self.shared.queue().take() {
                return Some(event);
            }
            if over {
                return None;
            }
            tokio::select! {
                () = self.shared.more.notified() => {}
                () = self.shared.over.cancelled() => {}
            }
        }
    }

    /// Number of events in the queue.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.shared.queue().len()
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.shared.deaf.cancel();
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::expect_used, reason = "a failed expectation is a failed test")]

    use super::*;
    use crate::core::ids::Snowflake;

    fn deleted(id: u64) -> Event {
        Event::ChannelDeleted(Snowflake(id))
    }

    #[tokio::test]
    async fn what_was_put_before_the_end_is_taken() {
        let (sink, mut events) = pipe(8);
        let other = sink.clone();
        let put = tokio::spawn(async move {
            for id in 0..3 {
                other.put(deleted(id));
                tokio::task::yield_now().await;
            }
            drop(sink);
        });
        for id in 0..3 {
            assert_eq!(events.next().await, Some(deleted(id)));
        }
        assert_eq!(events.next().await, None);
        put.await.expect("put");
    }

    #[tokio::test]
    async fn who_puts_learns_that_nobody_takes() {
        let (sink, events) = pipe(8);
        drop(events);
        sink.closed().await;
    }
}
