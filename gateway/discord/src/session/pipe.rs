//! The two ends of the queue of events.

use crate::core::event::Event;
use crate::core::queue::{Put, Queue};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    /// Something was put in, or no more will be.
    more: Notify,
    /// Nobody takes any more.
    deaf: CancellationToken,
    /// Nobody puts any more.
    over: CancellationToken,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // A queue is whole between any two of its steps.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where events are put. The last one that goes ends the stream.
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

/// Where events are taken, in their order.
#[derive(Debug)]
pub struct Events {
    shared: Arc<Shared>,
}

/// A queue with room for so many events, and a tenth of it more for what people click and command.
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
    /// Puts an event in. Never waits.
    pub fn put(&self, event: Event) -> Put {
        let put = self.shared.queue().put(event);
        self.shared.more.notify_one();
        put
    }

    /// Comes back when nobody takes events any more.
    pub async fn closed(&self) {
        self.shared.deaf.cancelled().await;
    }
}

impl Events {
    /// The next event; none when the session is over and everything was taken.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            // Asked before the queue is looked at: what was put before the end is taken.
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

    /// How many events wait.
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
