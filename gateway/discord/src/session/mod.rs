//! The websocket: one session of the gateway for each shard, its events in order, and what is done when it breaks.
//!
//! serenity keeps the connection: HELLO, heartbeats, IDENTIFY, RESUME, decompression, its models. Five things about
//! it are worked around here, each found in its source (0.12.5) and held by a test against a faked service:
//!
//! - Its handlers run in a task for each event, in no order. Here it runs on a thread of its own with a scheduler
//!   that takes tasks in the order in which they were made (`life`), and each of them does nothing but put its
//!   event into a queue.
//! - It drops what it cannot read, and says much in its log alone: see `ear`.
//! - Where it cannot ask for the gateway's address it goes to Discord's own. Here the address is asked for by
//!   `ask`, judged by [`Base::gateway`](crate::core::base::Base::gateway), and handed to it; serenity itself makes
//!   no request at all.
//! - It waits without end for READY and RESUMED as long as heartbeats are acknowledged. Here every connection has
//!   [`ANSWER_WITHIN`] for either; then it is ended, and a new session is identified.
//! - It spins without a pause on a connection that has ended in certain ways, for up to one interval of heartbeats
//!   or for ever. Its thread is watched from here, and is woken up by something to send, which fails.
//!
//! It sends RESUME before HELLO, which Discord accepts. It never resumes on the address that the service gives for that, and begins a new session after a missed
//! heartbeat where it could resume. Both cost a gap, which [`Event::Ready`] tells of, and nothing else.
//!
//! Shards: as many as the service asks for, all in this process; serenity's shard manager begins them one after the
//! other. A bot in so many guilds that one process does not do would need several of these gateways, each with a
//! range of shards and with its own bindings; nothing here splits them.

mod ask;
mod ear;
mod intake;
mod life;
mod pipe;

pub use intake::{Counts, CountsNow};
pub use pipe::{Events, Sink, pipe};

use crate::core::base::{Base, Refused};
use crate::core::closes::{self, Failure};
use crate::core::event::Event;
use crate::core::overheard::Heard;
use crate::core::pace::Pace;
use acp_shared::redact::Secret;
use ask::Asked;
use intake::Intake;
use life::{Life, Note};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// How often the thread is looked after.
const WATCH: Duration = Duration::from_millis(500);

/// Time from the beginning of a connection to READY or RESUMED.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// What a session is begun with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The bot's token.
    pub token: Secret,
    /// Where Discord is.
    pub base: Base,
    /// Whether direct messages are heard.
    pub direct_messages: bool,
    /// How many shards; `None` asks the service.
    pub shards: Option<u32>,
    /// Time from the beginning of a connection to READY or RESUMED: [`ANSWER_WITHIN`], or less in a test.
    pub answer_within: Duration,
    /// Where it is counted.
    pub counts: Arc<Counts>,
}

/// How a life of the connection ended.
enum Ended {
    /// It was asked to.
    Stopped,
    /// Another one would end in the same way.
    Failed(Failure),
    /// Another one is begun.
    Lost(String),
}

/// Keeps a session of the gateway until it is told to stop, or nobody listens any more, or it is no use to go on. What
/// happens goes into `sink`; the other end of it never holds anything up.
///
/// # Errors
/// [`Failure`], which [`Event::Failed`] has told as well.
pub async fn run(settings: Settings, stop: CancellationToken, sink: Sink) -> Result<(), Failure> {
    let result = Keeper::new(settings, stop, sink.clone()).keep().await;
    if let Err(failure) = &result {
        tracing::error!("{failure}");
        sink.put(Event::Failed(failure.clone()));
    }
    result
}

/// Keeps one connection after the other.
struct Keeper {
    settings: Settings,
    stop: CancellationToken,
    sink: Sink,
    pace: Pace,
    since: Instant,
}

impl Keeper {
    fn new(settings: Settings, stop: CancellationToken, sink: Sink) -> Self {
        Self { settings, stop, sink, pace: Pace::default(), since: Instant::now() }
    }

    /// A clock that only goes forward, in milliseconds.
    fn now(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    async fn keep(&mut self) -> Result<(), Failure> {
        let client = ask::client(&self.settings.base).map_err(refused)?;
        loop {
            let asked = tokio::select! {
                () = self.over() => return Ok(()),
                asked = ask::gateway(&client, &self.settings) => asked,
            };
            let (why, pause) = match asked {
                Asked::Refused(failure) => return Err(failure),
                Asked::Later { why, after } => (why, after),
                Asked::At { url, shards } => match self.live(url, shards).await {
                    Ended::Stopped => return Ok(()),
                    Ended::Failed(failure) => return Err(failure),
                    Ended::Lost(why) => (why, Duration::ZERO),
                },
            };
            let pause = pause.max(Duration::from_millis(self.pace.failed()));
            tracing::warn!(seconds = pause.as_secs(), "Discord: {why}; the next attempt comes after a pause");
            self.sink.put(Event::Disconnected { why });
            tokio::select! {
                () = self.over() => return Ok(()),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Comes back when nothing is wanted any more.
    async fn over(&self) {
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = self.sink.closed() => {}
        }
    }

    /// Begins one life of the connection and watches it to its end.
    async fn live(&mut self, url: String, shards: u32) -> Ended {
        let wait = Duration::from_millis(self.pace.until_next(self.now()));
        tokio::select! {
            () = self.over() => return Ended::Stopped,
            () = tokio::time::sleep(wait) => {}
        }
        let intake = Arc::new(Intake::new(self.sink.clone(), Arc::clone(&self.settings.counts)));
        let mut life = match Life::begin(&self.settings, url, shards, Arc::clone(&intake)) {
            Ok(life) => life,
            Err(why) => return Ended::Lost(format!("no thread could be started: {why}")),
        };
        let ended = self.watch(&mut life, &intake).await;
        life.end().await;
        intake.close();
        ended
    }

    async fn watch(&mut self, life: &mut Life, intake: &Intake) -> Ended {
        let mut look = tokio::time::interval(WATCH);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut starved = 0;
        loop {
            let note = tokio::select! {
                () = self.over() => return Ended::Stopped,
                note = life.note() => note,
                _ = look.tick() => {
                    if intake.is_ready() {
                        self.pace.succeeded();
                    }
                    if let Some(shard) = intake.overdue(self.settings.answer_within) {
                        return Ended::Lost(format!(
                            "shard {shard} got neither READY nor RESUMED within {} s of connecting",
                            self.settings.answer_within.as_secs()
                        ));
                    }
                    starved = if life.has_moved() { 0 } else { starved + 1 };
                    if starved >= life::STARVED_AFTER {
                        return Ended::Lost("the connection ended in a way that the library does not notice".to_owned());
                    }
                    continue;
                }
            };
            let ended = match note {
                None => Some(Ended::Lost("the library gave up".to_owned())),
                Some(Note::Gone(code)) => closes::failure(code).map(Ended::Failed),
                Some(Note::Heard(heard)) => self.heard(&heard),
            };
            if let Some(ended) = ended {
                return ended;
            }
        }
    }

    /// What follows from what the library said.
    fn heard(&mut self, heard: &Heard) -> Option<Ended> {
        let now = self.now();
        let lost = |why: &str| Some(Ended::Lost(why.to_owned()));
        match heard {
            Heard::Identify => {
                if let Some(count) = self.pace.began(now) {
                    let text = format!(
                        "{count} sessions were begun within an hour. Discord takes the token away from bots that go \
                         on like that for a day, so from here on there are pauses. Look for what breaks the \
                         connection: the network, a proxy, a second program with the same token."
                    );
                    tracing::error!("Discord: {text}");
                    self.sink.put(Event::Alarm(text));
                }
                None
            }
            Heard::Closed(code) => {
                let close = closes::meaning(*code);
                tracing::warn!(code, "Discord closed the connection: {}", close.what);
                closes::failure(*code).map(Ended::Failed).or_else(|| self.broke(now))
            }
            Heard::Broke => self.broke(now),
            // The library begins the next session by itself, unless that is too soon.
            Heard::Invalidated | Heard::Silent if self.pace.spacing(now) > crate::core::pace::BETWEEN_MS => {
                lost("one session after the other ends")
            }
            // What it does then may spin; asked for anew it is as fast and says why.
            Heard::NotConnected => lost("no connection could be made"),
            Heard::Invalidated | Heard::Silent | Heard::Skipped(_) | Heard::Unread | Heard::Connecting(_) => {
                None
            }
        }
    }

    fn broke(&mut self, now: u64) -> Option<Ended> {
        let fast = self.pace.broke(now);
        fast.then(|| Ended::Lost("the connection is closed as soon as it is made".to_owned()))
    }
}

/// The failure that an address stands for that would be wrong to use.
fn refused(refused: Refused) -> Failure {
    let then =
        "Correct the base URL, or leave it out to talk to Discord itself; then start again.".to_owned();
    Failure { code: None, what: refused.to_string(), then }
}
