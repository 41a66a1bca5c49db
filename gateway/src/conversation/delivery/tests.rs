#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
use super::*;
use crate::channel::console::Console;
use crate::channel::{BoxFuture, ChannelAdapter, ChannelProperties, LookupOutcome, Outgoing, SendOutcome};
use crate::tests::{Scribe, binding_row, conversation, eventually, loaded, open, session_row, spawn};
use acp_core::event::EventKind;
use acp_core::message_split::{MessageLimit, Unit};
use acp_core::route::UnboundDestination;
use acp_core::rows::{BindingRow, ConversationRef};
use acp_shared::ids::SessionKey;
use acp_store::{bindings, console};
use serde_json::json;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::task::JoinHandle;

mod beside;
mod files;
mod live;
mod personas;
mod scans;
mod styles;

/// Parts of these tests' conversations are this long.
const LONG: &str = "[acp.stream]\nmax_chunk_chars = 4000\n";
/// The parts that [`two_turns`] come to where nothing can be changed: a question, its answer, six for a long turn, one for a short one.
const PARTS: usize = 9;

fn configured(text: &str) -> LiveConfig {
    LiveConfig::new(loaded(text))
}

/// The driver of all deliveries.
struct Driver {
    task: JoinHandle<()>,
    stop: CancellationToken,
}

impl Driver {
    fn start(store: &Store, channels: Channels, live: &LiveConfig, metrics: &Metrics) -> Self {
        let stop = CancellationToken::new();
        let work = run(store.clone(), channels, live.clone(), metrics.clone(), stop.clone());
        Self { task: tokio::spawn(work), stop }
    }

    async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }

    /// Ends it between any two steps, as a kill of the process does.
    async fn kill(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }

    /// Stops it when so many parts are settled.
    async fn settle(self, store: &Store, count: usize) {
        eventually("every part to be settled", || async {
            let states = states(store).await;
            let is_open = |state: &String| matches!(state.as_str(), "planned" | "sending");
            (states.len() == count && !states.iter().any(is_open)).then_some(())
        })
        .await;
        self.stop().await;
    }
}

fn drive(store: &Store, channel: &Arc<impl ChannelAdapter>, text: &str) -> Driver {
    let channels = Channels::new([Arc::clone(channel) as Arc<dyn ChannelAdapter>]);
    Driver::start(store, channels, &configured(text), &Metrics::default())
}

fn on_console(store: &Store, text: &str) -> Driver {
    drive(store, &Arc::new(Console::new(store.clone())), text)
}

/// A go at single bindings, with pauses that take next to no time.
fn worker(store: &Store, channel: &Arc<impl ChannelAdapter>) -> DeliveryWorker {
    DeliveryWorker {
        store: store.clone(),
        channels: Channels::new([Arc::clone(channel) as Arc<dyn ChannelAdapter>]),
        live: configured(""),
        metrics: Metrics::default(),
        stop: CancellationToken::new(),
        retry_first_ms: 1,
        button_attempts: ButtonAttempts::default(),
    }
}

/// A bound session.
async fn bound() -> (tempfile::TempDir, Store, BindingRow, Scribe) {
    let (dir, store) = open();
    let binding = binding_row(&key(), &conversation("c"));
    spawn(&store, session_row(&key()), Some(binding.clone())).await;
    let scribe = Scribe::claim(&store, &key()).await;
    (dir, store, binding, scribe)
}

/// A bound session that answered this, and its binding as it is due.
async fn answered(answer: &str) -> (tempfile::TempDir, Store, DueBinding) {
    let (dir, store, binding, mut scribe) = bound().await;
    scribe.turn(answer).await;
    (dir, store, DueBinding { binding, end: 3 })
}

/// Waits until the bindings that ended are owed nothing.
async fn nothing_is_owed(store: &Store) {
    eventually("nothing to be owed", || async {
        store.read("owing", rows::ended_with_pending).await.unwrap().is_empty().then_some(())
    })
    .await;
}

fn key() -> SessionKey {
    SessionKey::parse("agent:demo:acp:1").unwrap()
}

async fn shown(store: &Store, id: &str) -> Vec<String> {
    let id = id.to_owned();
    let rows = store.read("shown", move |db| console::after(db, &id, 0, 1_000)).await.unwrap();
    rows.into_iter().map(|row| row.text).collect()
}

/// What each part of the outbox came to.
async fn states(store: &Store) -> Vec<String> {
    const SQL: &str = "SELECT state FROM acp_delivery_part ORDER BY session_seq, part_no";
    store.read("states", |db| db.all(SQL, &[], |row| row.get("state"))).await.unwrap()
}

async fn caught_up(store: &Store, id: &str, count: usize) -> Vec<String> {
    eventually("delivery", || async {
        let texts = shown(store, id).await;
        (texts.len() >= count).then_some(texts)
    })
    .await
}

/// A turn with a long answer and a permission, and another turn.
async fn two_turns(scribe: &mut Scribe) {
    scribe.start().await;
    scribe.say("Hello ").await;
    let asked = json!({"permission_id": "p", "params": {"toolCall": {"title": "Write"}, "options": []}});
    scribe.event(EventKind::Permission, asked).await;
    scribe
        .event(EventKind::PermissionSettled, json!({"permission_id": "p", "option_id": "y", "by": "ann"}))
        .await;
    scribe.event(EventKind::Replay, json!({"content": {"type": "text", "text": "old"}})).await;
    scribe.say(&"long line\n".repeat(2_000)).await;
    scribe.done().await;
    scribe.turn("Again").await;
}

#[tokio::test]
async fn bound_conversation_gets_everything_once_and_in_order() {
    let (_dir, store, _, mut scribe) = bound().await;
    let driver = on_console(&store, LONG);
    two_turns(&mut scribe).await;
    let is_no_question = |text: &String| !text.starts_with("The agent asks for a permission: Write");
    let texts = caught_up(&store, "c", PARTS - 1).await;
    let texts: Vec<_> = texts.into_iter().filter(is_no_question).collect();
    assert_eq!(texts[..6].concat(), format!("Hello {}", "long line\n".repeat(2_000)).trim_end());
    assert_eq!(texts[6], "Again");
    scribe.close().await;
    let farewell = caught_up(&store, "c", PARTS).await.pop();
    assert_eq!(farewell.unwrap(), "The session is closed (enough). Start a new one with /acp spawn.");
    nothing_is_owed(&store).await;
    driver.stop().await;
    // Nothing more comes from another run of the driver, which has looked at everything once it has told this.
    let other = SessionKey::parse("agent:demo:acp:2").unwrap();
    spawn(&store, session_row(&other), Some(binding_row(&other, &conversation("other")))).await;
    let driver = on_console(&store, LONG);
    let mut scribe = Scribe::claim(&store, &other).await;
    for count in 1..=2 {
        scribe.turn("x").await;
        caught_up(&store, "other", count).await;
    }
    driver.stop().await;
    assert_eq!(shown(&store, "c").await.len(), PARTS);
    assert_eq!(states(&store).await.len(), PARTS + 2, "no part was planned again");
}

#[tokio::test]
async fn conversation_gets_only_rows_of_its_bound_period() {
    let (_dir, store) = open();
    spawn(&store, session_row(&key()), None).await;
    let mut scribe = Scribe::claim(&store, &key()).await;
    scribe.turn("before").await;
    let binding = binding_row(&key(), &conversation("c"));
    let id = binding.binding_id;
    store.write("bind", move |tx| bindings::bind(tx, &binding)).await.unwrap();
    scribe.turn("between").await;
    store.write("end", move |tx| bindings::end(tx, id, "unbound")).await.unwrap();
    scribe.turn("after").await;
    // The binding was over before anybody looked: it is still told what it is owed.
    let driver = on_console(&store, LONG);
    nothing_is_owed(&store).await;
    driver.stop().await;
    assert_eq!(shown(&store, "c").await, vec!["between".to_owned()]);
}

/// What goes wrong with one call of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The adapter has a bug.
    Panic,
    None,
    /// Not taken now.
    Reject,
    /// Not taken for a moment, because of a rate limit.
    Limit,
    /// Not taken ever.
    Refuse,
    /// Not taken with its files, for a moment or ever.
    RefuseFiles {
        again: bool,
    },
    /// The request is lost.
    LostBefore,
    /// The answer is lost.
    LostAfter,
    /// It hangs, or the gateway dies, before the request, or after it and before the answer.
    HangBefore,
    HangAfter,
}

/// A channel that keeps what it took, and fails as it is told.
#[derive(Default)]
struct Faulty {
    taken: Mutex<Vec<Outgoing>>,
    faults: Mutex<VecDeque<Fault>>,
    blind: bool,
    /// Shows who says it; a nonce names nothing of what is said under a name.
    has_names: bool,
    carries_files: bool,
    /// Takes no files from now on.
    refuses_files: AtomicBool,
    looks: AtomicUsize,
    hanging: tokio::sync::Notify,
    /// Lets go on what hangs.
    freed: tokio::sync::Notify,
    account: &'static str,
}

impl Faulty {
    fn taken(&self) -> Vec<Outgoing> {
        self.taken.lock().unwrap().clone()
    }

    fn texts(&self) -> Vec<String> {
        self.taken().into_iter().map(|message| message.text).collect()
    }

    async fn hang(&self) {
        self.hanging.notify_one();
        self.freed.notified().await;
    }
}

impl ChannelAdapter for Faulty {
    fn id(&self) -> &'static str {
        "console"
    }

    fn account_id(&self) -> &str {
        if self.account.is_empty() { "default" } else { self.account }
    }

    fn properties(&self) -> ChannelProperties {
        let bytes = if self.carries_files { 1_000 } else { 4_096 };
        ChannelProperties {
            file_bytes_max: self.carries_files.then_some(1 << 20),
            ..ChannelProperties::new(MessageLimit::new(Unit::Bytes, bytes), UnboundDestination::Hint)
        }
    }

    fn has_personas(&self, _at: &ConversationRef) -> bool {
        self.has_names
    }

    fn send<'a>(&'a self, _to: &'a ConversationRef, message: &'a Outgoing) -> BoxFuture<'a, SendOutcome> {
        Box::pin(async move {
            let fault = self.faults.lock().unwrap().pop_front().unwrap_or(Fault::None);
            let lost = || SendOutcome::Uncertain { why: "lost".to_owned() };
            let no_files = |again| SendOutcome::FilesRefused { why: "no".to_owned(), again };
            match fault {
                Fault::Reject => return SendOutcome::Rejected { why: "busy".to_owned(), again: true },
                Fault::Limit => return SendOutcome::Limited { retry_after_ms: 5 },
                Fault::Refuse => return SendOutcome::Rejected { why: "never".to_owned(), again: false },
                Fault::RefuseFiles { again } => return no_files(again),
                Fault::LostBefore => return lost(),
                Fault::HangBefore => self.hang().await,
                Fault::Panic => panic!("requested by the test"),
                Fault::None | Fault::LostAfter | Fault::HangAfter => {}
            }
            if self.refuses_files.load(Ordering::SeqCst) && !message.files.is_empty() {
                return no_files(false);
            }
            let message_id = {
                let mut taken = self.taken.lock().unwrap();
                taken.push(message.clone());
                taken.len().to_string()
            };
            match fault {
                Fault::LostAfter => return lost(),
                Fault::HangAfter => self.hang().await,
                _ => {}
            }
            SendOutcome::Sent { message_id }
        })
    }

    fn lookup<'a>(&'a self, _to: &'a ConversationRef, message: &'a Outgoing) -> BoxFuture<'a, LookupOutcome> {
        Box::pin(async move {
            if self.blind {
                return LookupOutcome::Unknown { why: "no permission to read".to_owned() };
            }
            self.looks.fetch_add(1, Ordering::SeqCst);
            let sizes = |it: &Outgoing| it.files.iter().map(|file| file.bytes.len()).collect::<Vec<_>>();
            let is_named = |known: &Outgoing| match self.has_names {
                true => {
                    known.tagged() == message.tagged()
                        && (known.persona.is_none() || message.persona.is_some())
                }
                false => known.nonce == message.nonce,
            };
            let is_it = |known: &Outgoing| is_named(known) && sizes(known) == sizes(message);
            match self.taken.lock().unwrap().iter().position(is_it) {
                Some(at) => LookupOutcome::Found { message_id: (at + 1).to_string() },
                None => LookupOutcome::Absent,
            }
        })
    }
}

/// A session with two turns whose delivery is still to be done.
async fn written() -> (tempfile::TempDir, Store) {
    let (dir, store, _, mut scribe) = bound().await;
    two_turns(&mut scribe).await;
    (dir, store)
}

fn faulty(faults: &[Fault]) -> Arc<Faulty> {
    faulty_as(faults, Faulty::default())
}

fn faulty_as(faults: &[Fault], channel: Faulty) -> Arc<Faulty> {
    Arc::new(Faulty { faults: Mutex::new(faults.iter().copied().collect()), ..channel })
}

async fn undisturbed() -> Vec<String> {
    let (_dir, store) = written().await;
    let channel = Arc::new(Faulty::default());
    drive(&store, &channel, LONG).settle(&store, PARTS).await;
    channel.texts()
}

#[tokio::test]
async fn crash_in_any_channel_call_loses_and_repeats_nothing() {
    let want = undisturbed().await;
    assert_eq!(want.len(), PARTS);
    for fault in [Fault::HangBefore, Fault::HangAfter] {
        for at in 0..want.len() {
            let (_dir, store) = written().await;
            let channel = faulty(&[vec![Fault::None; at], vec![fault]].concat());
            let driver = drive(&store, &channel, LONG);
            channel.hanging.notified().await;
            driver.kill().await;
            drive(&store, &channel, LONG).settle(&store, want.len()).await;
            assert_eq!(channel.texts(), want, "{fault:?} in call {at}");
        }
    }
}

#[tokio::test]
async fn crash_after_any_commit_loses_and_repeats_nothing() {
    let want = undisturbed().await;
    // The style, the plan, and two for each part.
    for commits in 1..=20 {
        let (_dir, store) = written().await;
        let channel = Arc::new(Faulty::default());
        let before = store.counts().groups;
        let driver = drive(&store, &channel, LONG);
        eventually("the commits", || async { (store.counts().groups >= before + commits).then_some(()) })
            .await;
        driver.kill().await;
        drive(&store, &channel, LONG).settle(&store, want.len()).await;
        assert_eq!(channel.texts(), want, "after {commits} commits");
    }
}

/// A panic in the task of a binding too leaves nothing undelivered: it is started again.
#[tokio::test]
async fn channel_faults_lose_and_repeat_nothing() {
    let want = undisturbed().await;
    for fault in [Fault::Reject, Fault::Limit, Fault::LostBefore, Fault::LostAfter, Fault::Panic] {
        let (_dir, store) = written().await;
        let more = if fault == Fault::Panic { Fault::None } else { fault };
        let channel = faulty(&[fault, Fault::None, fault, more]);
        drive(&store, &channel, LONG).settle(&store, want.len()).await;
        assert_eq!(channel.texts(), want, "{fault:?}");
        assert!(states(&store).await.iter().all(|state| state == "sent"));
    }
}

#[tokio::test]
async fn rejected_part_is_skipped_with_notice() {
    let want = undisturbed().await;
    let (_dir, store) = written().await;
    let channel = faulty(&[Fault::Refuse]);
    drive(&store, &channel, LONG).settle(&store, want.len() + 1).await;
    assert!(channel.texts()[0].contains("rejected it: a permission request (part 1)."));
    assert_eq!((&channel.texts()[1..], &*states(&store).await[0]), (&want[1..], "rejected"));
}

/// A turn with a short answer, delivered by a channel that cannot be asked and has these faults.
async fn blindly(faults: &[Fault]) -> (Vec<String>, Vec<String>) {
    let (_dir, store, due) = answered("x").await;
    let id = due.binding.binding_id;
    let channel = faulty_as(faults, Faulty { blind: true, ..Faulty::default() });
    let pass = worker(&store, &channel);
    assert_eq!(pass.run(due.clone(), None).await, WorkerExit::At(3));
    // Whoever looks again finds nothing more to send.
    assert_eq!(pass.run(due, None).await, WorkerExit::At(3));
    let saved = store.read("saved", move |db| acp_store::checkpoints::checkpoint(db, id)).await.unwrap();
    assert_eq!(saved, 3);
    (channel.texts(), states(&store).await)
}

/// H12: it stays uncertain, is not sent again, and that is said.
#[tokio::test]
async fn part_without_lookup_stays_uncertain_with_notice() {
    for (fault, shown) in [(Fault::LostAfter, &["x"][..]), (Fault::LostBefore, &[])] {
        let (texts, states) = blindly(&[fault]).await;
        assert_eq!(states, ["uncertain", "sent"]);
        let (notice, before) = texts.split_last().unwrap();
        assert_eq!(before, shown);
        assert!(
            notice.starts_with("It is unknown whether a message arrived here: the agent's answer (part 1)")
        );
    }
}

/// A request is under way though nobody waits for it any more, the next one is refused, and the gateway dies: what
/// arrives in the meantime is found by the next process.
#[tokio::test]
async fn part_that_may_arrive_late_is_looked_up_after_restart() {
    let (_dir, store, due) = answered("x").await;
    let id = due.binding.binding_id;
    let channel = faulty(&[Fault::LostBefore, Fault::Reject]);
    // It is stopped in the pause after the refusal.
    let first = DeliveryWorker { retry_first_ms: 500, ..worker(&store, &channel) };
    let (stop, again) = (first.stop.clone(), due.clone());
    let first = tokio::spawn(async move { first.run(again, None).await });
    eventually("the refusal", || async { channel.faults.lock().unwrap().is_empty().then_some(()) }).await;
    stop.cancel();
    assert_eq!(first.await.unwrap(), WorkerExit::Unknown);
    let part = store.read("part", move |db| rows::pending_parts(db, id)).await.unwrap().remove(0).part;
    channel.taken.lock().unwrap().push(Outgoing {
        nonce: part.nonce,
        text: part.text,
        ..Outgoing::default()
    });
    assert_eq!(worker(&store, &channel).run(due, None).await, WorkerExit::At(3));
    assert_eq!(channel.texts(), ["x"]);
    assert_eq!(states(&store).await, ["sent"]);
}

/// A part that had to wait long for the channel is not given up at the first answer that is lost.
#[tokio::test]
async fn rate_limits_do_not_use_up_lookups() {
    let (_dir, store, due) = answered("x").await;
    let channel = faulty(&[&[Fault::Limit; 9][..], &[Fault::LostAfter]].concat());
    assert_eq!(worker(&store, &channel).run(due, None).await, WorkerExit::At(3));
    assert_eq!(channel.texts(), ["x"]);
    assert_eq!(states(&store).await, ["sent"]);
}

/// A notice that is lost as well is not followed by notices about notices.
#[tokio::test]
async fn uncertain_notice_causes_no_further_notice() {
    let (texts, states) = blindly(&[Fault::LostBefore, Fault::LostBefore]).await;
    assert_eq!(states, ["uncertain", "uncertain"]);
    assert_eq!(texts, [] as [String; 0]);
}

#[tokio::test]
async fn attempts_retries_and_rate_limits_are_counted() {
    let (_dir, store, due) = answered("x").await;
    let channel = faulty(&[Fault::Limit, Fault::Reject, Fault::LostBefore, Fault::None]);
    let pass = worker(&store, &channel);
    assert_eq!(pass.run(due, None).await, WorkerExit::At(3));
    assert_eq!(channel.texts(), ["x"]);
    let text = pass.metrics.render();
    for series in [
        "acp_delivery_attempts_total{channel=\"console\",outcome=\"limited\"} 1",
        "acp_delivery_attempts_total{channel=\"console\",outcome=\"again\"} 1",
        "acp_delivery_attempts_total{channel=\"console\",outcome=\"uncertain\"} 1",
        "acp_delivery_attempts_total{channel=\"console\",outcome=\"sent\"} 1",
        "acp_delivery_retries_total{channel=\"console\"} 3",
        "acp_delivery_rate_limits_total{channel=\"console\"} 1",
        "acp_delivery_projection_seconds_count{channel=\"console\"} 1",
    ] {
        assert!(text.contains(series), "{series}: {text}");
    }
}

/// A turn of a session is shown where the session is bound and nowhere else: not above that conversation, where its
/// owner is bound, and not where it was asked for. A prompt from the command line makes no difference.
#[tokio::test]
async fn answers_go_only_to_bound_conversation() {
    let (_dir, store) = open();
    let parent = SessionKey::parse("agent:demo:acp:parent").unwrap();
    spawn(&store, session_row(&parent), Some(binding_row(&parent, &conversation("c")))).await;
    let thread = ConversationRef { parent_conversation_id: Some("c".to_owned()), ..conversation("c/thread") };
    let child = acp_core::rows::SessionRow {
        owner_session_key: parent.clone(),
        spawned_by: Some(parent.clone()),
        parent_session_key: Some(parent),
        ..session_row(&key())
    };
    spawn(&store, child, Some(binding_row(&key(), &thread))).await;
    let driver = on_console(&store, LONG);
    let mut scribe = Scribe::claim(&store, &key()).await;
    for text in ["asked for in the thread", "asked for at the command line"] {
        scribe.turn(text).await;
    }
    let want = ["asked for in the thread", "asked for at the command line"];
    assert_eq!(caught_up(&store, "c/thread", 2).await, want);
    driver.settle(&store, 2).await;
    assert_eq!(shown(&store, "c/thread").await, want);
    assert_eq!(shown(&store, "c").await, [] as [&str; 0]);
}

/// Without an adapter nothing is lost and nothing goes elsewhere: it waits until the account is served.
#[tokio::test]
async fn delivery_waits_for_adapter() {
    let (_dir, store) = written().await;
    let (channels, metrics) = (Channels::default(), Metrics::default());
    let driver = Driver::start(&store, channels.clone(), &configured(LONG), &metrics);
    let waits =
        "acp_routes_total{direction=\"outbound\",outcome=\"refused\",reason=\"adapter-unavailable\"} 1";
    eventually("delivery to wait", || async { metrics.render().contains(waits).then_some(()) }).await;
    let second = Arc::new(Faulty { account: "second", ..Faulty::default() });
    channels.register(Arc::clone(&second) as Arc<dyn ChannelAdapter>).unwrap();
    let channel = Arc::new(Faulty::default());
    channels.register(Arc::clone(&channel) as Arc<dyn ChannelAdapter>).unwrap();
    driver.settle(&store, PARTS).await;
    assert_eq!(channel.texts(), undisturbed().await);
    assert_eq!(second.texts(), [] as [&str; 0], "another account's adapter is not asked");
    // What was sent is known as the gateway's own from then on (C13).
    let at = conversation("c");
    let own =
        store.read("said", move |db| acp_store::sent_messages::is_own_message(db, &at, "9")).await.unwrap();
    assert!(own);
}

#[test]
fn slow_scan_lengthens_scan_interval() {
    for (took, want) in [(0, 20), (1, 20), (5, 20), (10, 40), (50, 200), (125, 500), (10_000, 500)] {
        let ms = Duration::from_millis;
        assert_eq!(scan_interval(ms(took)), ms(want), "after {took} ms");
    }
}
