//! One life of the connection: a thread with serenity on it, until the connection is lost in a way that is mended by
//! another one.
//!
//! The thread has a runtime of its own, for three reasons. Tasks on it run in the order in which they were made, so
//! events keep theirs. A library that spins takes nothing away from others. And when the runtime goes, every task that
//! the library left behind goes with it.

use super::Settings;
use super::ear::Ear;
use super::intake::Intake;
use crate::core::overheard::Heard;
use serenity::all::{Context, GatewayIntents, HttpBuilder, OnlineStatus, RawEventHandler};
use serenity::gateway::{GatewayError, ShardManager, ShardManagerOptions};
use serenity::model::event::Event as Told;
use serenity::prelude::TypeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::{Mutex, RwLock, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::Dispatch;

/// How often the thread shows that it moves.
const BEAT: Duration = Duration::from_millis(200);
/// After so many looks without a beat the thread counts as spinning.
pub(super) const STARVED_AFTER: u32 = 10;
/// How long the service may take to answer a close.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);
/// How long the thread may take to end; more than [`CLOSE_WITHIN`].
const END_WITHIN: Duration = Duration::from_secs(4);
/// How many things that were heard wait at most.
const NOTES: usize = 256;
/// A normal close (RFC 6455): the bot is shown as offline at once.
const NORMAL: u16 = 1000;

/// What a life has to say.
#[derive(Debug)]
pub(super) enum Note {
    /// Said in the log.
    Heard(Heard),
    /// The library ends, because the service closed with this code.
    Gone(u16),
}

/// A life.
pub(super) struct Life {
    notes: mpsc::Receiver<Note>,
    manager: Option<Arc<ShardManager>>,
    started: oneshot::Receiver<Arc<ShardManager>>,
    stop: CancellationToken,
    ended: oneshot::Receiver<()>,
    beat: Arc<AtomicU64>,
    seen: u64,
}

/// What the thread is given.
struct Plan {
    options: ShardManagerOptions,
    shards: u32,
    started: oneshot::Sender<Arc<ShardManager>>,
    notes: mpsc::Sender<Note>,
    stop: CancellationToken,
    beat: Arc<AtomicU64>,
    ear: Ear,
}

impl Life {
    /// Begins one.
    pub(super) fn begin(
        settings: &Settings,
        url: String,
        shards: u32,
        intake: Arc<Intake>,
    ) -> io::Result<Self> {
        let (notes_in, notes) = mpsc::channel(NOTES);
        let (started_in, started) = oneshot::channel();
        let (ended_in, ended) = oneshot::channel();
        let (stop, beat) = (CancellationToken::new(), Arc::new(AtomicU64::new(0)));
        let hear = {
            let (intake, notes) = (Arc::clone(&intake), notes_in.clone());
            move |heard: Heard| {
                let (intake, said) = (Arc::clone(&intake), heard.clone());
                let hear = async move { intake.heard(&said) };
                // As a task, like the events: so it keeps its place among them.
                if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                    drop(runtime.spawn(hear));
                }
                // Whoever is so far behind has heard enough.
                let _ = notes.try_send(Note::Heard(heard));
            }
        };
        let plan = Plan {
            options: options(settings, url, intake),
            shards,
            started: started_in,
            notes: notes_in,
            stop: stop.clone(),
            beat: Arc::clone(&beat),
            ear: Ear::new(tracing::dispatcher::get_default(Clone::clone), Arc::new(hear)),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("discord".to_owned()).spawn(move || {
            let Plan { options, shards, started, notes, stop, beat, ear } = plan;
            let guard = tracing::dispatcher::set_default(&Dispatch::new(ear));
            runtime.block_on(serve(options, shards, started, &notes, &stop, &beat));
            // Not waited for: a name that is being looked up, for instance.
            runtime.shutdown_background();
            drop(guard);
            let _ = ended_in.send(());
        })?;
        Ok(Self { notes, manager: None, started, stop, ended, beat, seen: 0 })
    }

    /// The next thing that it says; none when it has ended.
    pub(super) async fn note(&mut self) -> Option<Note> {
        self.notes.recv().await
    }

    /// Whether the thread has moved since this was asked last.
    pub(super) fn has_moved(&mut self) -> bool {
        let beat = self.beat.load(Relaxed);
        std::mem::replace(&mut self.seen, beat) != beat
    }

    /// Ends it: closes the connections in order where they are, and leaves nothing running.
    pub(super) async fn end(mut self) {
        self.wake().await;
        self.stop.cancel();
        if tokio::time::timeout(END_WITHIN, &mut self.ended).await.is_err() {
            tracing::error!("Discord: the library does not end; its thread is left behind");
        }
    }

    /// Gives each connection something to send. One that has ended fails at it, which ends the spinning; to another
    /// one it is news that the bot is online.
    async fn wake(&mut self) {
        if self.manager.is_none() {
            self.manager = self.started.try_recv().ok();
        }
        let Some(manager) = &self.manager else { return };
        let runners = tokio::time::timeout(Duration::from_secs(1), manager.runners.lock()).await;
        for runner in runners.iter().flat_map(|runners| runners.values()) {
            runner.runner_tx.set_status(OnlineStatus::Online);
        }
    }
}

fn options(settings: &Settings, url: String, intake: Arc<Intake>) -> ShardManagerOptions {
    // Nothing is requested through it. If anything ever were: the limiter would make it pass over the proxy.
    let http = HttpBuilder::new(settings.token.expose())
        .ratelimiter_disabled(true)
        .proxy(settings.base.text())
        .build();
    let direct =
        if settings.direct_messages { GatewayIntents::DIRECT_MESSAGES } else { GatewayIntents::empty() };
    let intents =
        GatewayIntents::GUILDS | GatewayIntents::GUILD_MESSAGES | GatewayIntents::MESSAGE_CONTENT | direct;
    ShardManagerOptions {
        data: Arc::new(RwLock::new(TypeMap::new())),
        event_handlers: Vec::new(),
        raw_event_handlers: vec![Arc::new(Handler(intake))],
        shard_index: 0,
        shard_init: 0,
        shard_total: 0,
        ws_url: Arc::new(Mutex::new(url)),
        http: Arc::new(http),
        intents,
        presence: None,
    }
}

/// Runs the library on the thread's runtime.
async fn serve(
    options: ShardManagerOptions,
    shards: u32,
    started: oneshot::Sender<Arc<ShardManager>>,
    notes: &mpsc::Sender<Note>,
    stop: &CancellationToken,
    beat: &AtomicU64,
) {
    let (manager, mut returned) = ShardManager::new(options);
    manager.set_shards(0, shards, shards).await;
    if let Err(error) = manager.initialize() {
        tracing::error!("Discord: the library cannot start: {error}");
        return;
    }
    let _ = started.send(Arc::clone(&manager));
    let mut tick = tokio::time::interval(BEAT);
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            _ = tick.tick() => {
                beat.fetch_add(1, Relaxed);
            }
            end = futures_util::StreamExt::next(&mut returned) => {
                if let Some(code) = end.and_then(Result::err).as_ref().and_then(code_of) {
                    let _ = notes.send(Note::Gone(code)).await;
                    stop.cancelled().await;
                }
                break;
            }
        }
    }
    let _ = tokio::time::timeout(CLOSE_WITHIN, close(&manager)).await;
}

/// Closes every connection and waits for the answers.
async fn close(manager: &ShardManager) {
    for shard in manager.shards_instantiated().await {
        manager.shutdown(shard, NORMAL).await;
    }
}

/// The code behind the errors with which the library gives up.
const fn code_of(error: &GatewayError) -> Option<u16> {
    match error {
        GatewayError::InvalidAuthentication => Some(4004),
        GatewayError::InvalidGatewayIntents => Some(4013),
        GatewayError::DisallowedGatewayIntents => Some(4014),
        _ => None,
    }
}

/// Puts each event into the queue. It awaits nothing, so that it is done when the next one's turn comes.
struct Handler(Arc<Intake>);

#[serenity::async_trait]
impl RawEventHandler for Handler {
    async fn raw_event(&self, context: Context, event: Told) {
        self.0.told(context.shard_id.0, event);
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::expect_used, reason = "a failed expectation is a failed test")]

    use std::sync::{Arc, Mutex};

    /// What the order of events rests on: tasks that one task makes begin in the order in which they were made, and
    /// one that awaits nothing is done before the next one begins.
    #[test]
    fn tasks_of_one_thread_run_in_the_order_in_which_they_were_made() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        let ran = Arc::new(Mutex::new(Vec::new()));
        runtime.block_on(async {
            let made = Arc::clone(&ran);
            // A task, as the library's loop is one.
            let maker = tokio::spawn(async move {
                for number in 0..10_000 {
                    let ran = Arc::clone(&made);
                    drop(tokio::spawn(async move { ran.lock().expect("lock").push(number) }));
                    if number % 97 == 0 {
                        tokio::task::yield_now().await;
                    }
                    if number % 1000 == 0 {
                        // Not a wait for anything: the runtime parks its thread, and what waits runs before and after.
                        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                    }
                }
            });
            maker.await.expect("made");
            while ran.lock().expect("lock").len() < 10_000 {
                tokio::task::yield_now().await;
            }
        });
        assert!(ran.lock().expect("lock").is_sorted());
    }
}
