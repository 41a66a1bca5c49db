//! A session under test.

use crate::script::Server;
use acp_discord::core::base_url::BaseUrl;
use acp_discord::core::close_codes::FatalGatewayError;
use acp_discord::core::event::Event;
use acp_discord::websocket::{
    EventReceiver, IdentifySlots, SessionCounters, SessionSettings, ShardSet, event_channel, run,
};
use acp_shared::redact::Secret;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const READY_TIMEOUT_SECONDS: u64 = 5;
/// Maximum duration of any step on a busy machine.
pub(crate) const STEP_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct Bot {
    pub(crate) events: EventReceiver,
    stop: CancellationToken,
    pub(crate) counts: Arc<SessionCounters>,
    task: JoinHandle<Result<(), FatalGatewayError>>,
}

pub(crate) fn bot(server: &Server, capacity: usize) -> Bot {
    bot_with(server, capacity, None, None)
}

/// A bot with some shards, with identify slots.
pub(crate) fn bot_with(
    server: &Server,
    capacity: usize,
    shards: Option<ShardSet>,
    slots: Option<Arc<dyn IdentifySlots>>,
) -> Bot {
    let counts = Arc::new(SessionCounters::default());
    let settings = SessionSettings {
        token: Secret::new("hunter2".to_owned()),
        base: BaseUrl::parse(&server.url()).expect("base"),
        ready_timeout: Duration::from_secs(READY_TIMEOUT_SECONDS),
        counts: Arc::clone(&counts),
        shards,
        slots,
    };
    let (sender, events) = event_channel(capacity);
    let stop = CancellationToken::new();
    let task = tokio::spawn(run(settings, stop.clone(), sender));
    Bot { events, stop, counts, task }
}

impl Bot {
    pub(crate) async fn next(&mut self) -> Event {
        let next = tokio::time::timeout(STEP_TIMEOUT, self.events.next()).await;
        next.expect("an event arrives in time").expect("the session is open")
    }

    pub(crate) async fn until<T>(&mut self, mut wanted: impl FnMut(&Event) -> Option<T>) -> T {
        loop {
            if let Some(found) = wanted(&self.next().await) {
                return found;
            }
        }
    }

    pub(crate) async fn ready(&mut self) {
        self.until(|event| matches!(event, Event::Ready(_)).then_some(())).await;
    }

    pub(crate) async fn end(self) -> Result<(), FatalGatewayError> {
        self.stop.cancel();
        tokio::time::timeout(STEP_TIMEOUT, self.task)
            .await
            .expect("the bot stops in time")
            .expect("the task did not panic")
    }
}

pub(crate) async fn eventually(description: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + STEP_TIMEOUT;
    while !condition() {
        assert!(Instant::now() < end, "timed out: {description}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
