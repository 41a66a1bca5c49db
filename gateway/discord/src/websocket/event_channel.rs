//! Two ends of the event queue: [`EventSender`] and [`EventReceiver`].

use crate::core::event::Event;
use crate::core::event_queue::{EnqueueResult, EventQueue};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

#[derive(Debug)]
struct EventChannel {
    queue: Mutex<EventQueue>,
    /// Notified when an event is added.
    more: Notify,
    /// Cancelled when the consumer is dropped.
    consumer_gone: CancellationToken,
    /// Cancelled when the last producer is dropped.
    producers_gone: CancellationToken,
}

impl EventChannel {
    fn queue(&self) -> MutexGuard<'_, EventQueue> {
        // The queue is consistent after each call, so a poisoned lock is harmless.
        self.queue.lock()
    }
}

/// Producer end of the queue. Dropping the last clone ends the stream.
#[derive(Debug, Clone)]
pub struct EventSender {
    shared: Arc<EventChannel>,
    _guard: Arc<ProducerGuard>,
}

#[derive(Debug)]
struct ProducerGuard(CancellationToken);

impl Drop for ProducerGuard {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Consumer end of the queue, in order.
#[derive(Debug)]
pub struct EventReceiver {
    shared: Arc<EventChannel>,
}

/// Creates a queue with this capacity, and a tenth of it as a reserve for clicks and commands.
#[must_use]
pub fn event_channel(capacity: usize) -> (EventSender, EventReceiver) {
    let producers_gone = CancellationToken::new();
    let shared = Arc::new(EventChannel {
        queue: Mutex::new(EventQueue::new(capacity, capacity / 10 + 1)),
        more: Notify::new(),
        consumer_gone: CancellationToken::new(),
        producers_gone: producers_gone.clone(),
    });
    (
        EventSender { shared: Arc::clone(&shared), _guard: Arc::new(ProducerGuard(producers_gone)) },
        EventReceiver { shared },
    )
}

impl EventSender {
    /// Adds an event without waiting.
    pub fn put(&self, event: Event) -> EnqueueResult {
        let put = self.shared.queue().put(event);
        self.shared.more.notify_one();
        put
    }

    /// Waits until the consumer is dropped.
    pub async fn closed(&self) {
        self.shared.consumer_gone.cancelled().await;
    }
}

impl EventReceiver {
    /// Returns the next event, or `None` when all producers are dropped and the queue is empty.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            // Read before the queue, so that events added before the end are still returned.
            let producers_gone = self.shared.producers_gone.is_cancelled();
            if let Some(event) = self.shared.queue().take() {
                return Some(event);
            }
            if producers_gone {
                return None;
            }
            tokio::select! {
                () = self.shared.more.notified() => {}
                () = self.shared.producers_gone.cancelled() => {}
            }
        }
    }

    /// Number of events in the queue.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.shared.queue().len()
    }
}

impl Drop for EventReceiver {
    fn drop(&mut self) {
        self.shared.consumer_gone.cancel();
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::expect_used, reason = "a failed expectation is a failed test")]

    use super::*;
    use crate::core::ids::Snowflake;

    fn channel_deleted(id: u64) -> Event {
        Event::ChannelDeleted(Snowflake(id))
    }

    #[tokio::test]
    async fn queued_events_are_received_after_senders_drop() {
        let (sender, mut events) = event_channel(8);
        let other = sender.clone();
        let producer = tokio::spawn(async move {
            for id in 0..3 {
                other.put(channel_deleted(id));
                tokio::task::yield_now().await;
            }
            drop(sender);
        });
        for id in 0..3 {
            assert_eq!(events.next().await, Some(channel_deleted(id)));
        }
        assert_eq!(events.next().await, None);
        producer.await.expect("put");
    }

    #[tokio::test]
    async fn sender_is_closed_when_receiver_drops() {
        let (sender, events) = event_channel(8);
        drop(events);
        sender.closed().await;
    }
}
