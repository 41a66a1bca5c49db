#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
use super::*;
use crate::channel::console::Console;
use crate::channel::{BoxFuture, ChannelAdapter, ChannelProperties, LookupOutcome, Outgoing, SendOutcome};
use crate::tests::{JournalWriter, binding_row, conversation, eventually, loaded, open, session_row, spawn};
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

mod files;
mod live;
mod personas;
mod scans;
mod side_effects;
mod styles;

/// Configuration with long message parts.
const LONG: &str = "[acp.stream]\nmax_chunk_chars = 4000\n";
/// Parts of [`two_turns`] without edits: question, answer, six of the long turn, one of the short one.
const PARTS: usize = 9;

fn configured(text: &str) -> LiveConfig {
    LiveConfig::new(loaded(text))
}

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

    /// Kills the driver between any two steps, like a process kill.
    async fn kill(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }

    async fn settle(self, store: &Store, count: usize) {
        eventually("every part settled", || async {
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

async fn bound() -> (tempfile::TempDir, Store, BindingRow, JournalWriter) {
    let (dir, store) = open();
    let binding = binding_row(&key(), &conversation("c"));
    spawn(&store, session_row(&key()), Some(binding.clone())).await;
    let journal = JournalWriter::claim(&store, &key()).await;
    (dir, store, binding, journal)
}

async fn answered(answer: &str) -> (tempfile::TempDir, Store, DueBinding) {
    let (dir, store, binding, mut journal) = bound().await;
    journal.turn(answer).await;
    (dir, store, DueBinding { binding, end: 3 })
}

async fn no_pending_parts(store: &Store) {
    eventually("no pending parts", || async {
        store.read("pending", rows::ended_with_pending).await.unwrap().is_empty().then_some(())
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

/// Appends a turn with a long answer and a permission request, and a short turn.
async fn two_turns(journal: &mut JournalWriter) {
    journal.start().await;
    journal.append_text("Hello ").await;
    let permission = json!({"permission_id": "p", "params": {"toolCall": {"title": "Write"}, "options": []}});
    journal.event(EventKind::Permission, permission).await;
    journal
        .event(EventKind::PermissionSettled, json!({"permission_id": "p", "option_id": "y", "by": "ann"}))
        .await;
    journal.event(EventKind::Replay, json!({"content": {"type": "text", "text": "old"}})).await;
    journal.append_text(&"long line\n".repeat(2_000)).await;
    journal.complete().await;
    journal.turn("Again").await;
}

#[tokio::test]
async fn bound_conversation_gets_everything_once_and_in_order() {
    let (_dir, store, _, mut journal) = bound().await;
    let driver = on_console(&store, LONG);
    two_turns(&mut journal).await;
    let is_not_question = |text: &String| !text.starts_with("The agent asks for a permission: Write");
    let texts = caught_up(&store, "c", PARTS - 1).await;
    let texts: Vec<_> = texts.into_iter().filter(is_not_question).collect();
    assert_eq!(texts[..6].concat(), format!("Hello {}", "long line\n".repeat(2_000)).trim_end());
    assert_eq!(texts[6], "Again");
    journal.close().await;
    let farewell = caught_up(&store, "c", PARTS).await.pop();
    assert_eq!(farewell.unwrap(), "The session is closed (enough). Start a new one with /acp spawn.");
    no_pending_parts(&store).await;
    driver.stop().await;
    // A later run sends nothing more; these two turns show that its scans are complete.
    let other = SessionKey::parse("agent:demo:acp:2").unwrap();
    spawn(&store, session_row(&other), Some(binding_row(&other, &conversation("other")))).await;
    let driver = on_console(&store, LONG);
    let mut journal = JournalWriter::claim(&store, &other).await;
    for count in 1..=2 {
        journal.turn("x").await;
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
    let mut journal = JournalWriter::claim(&store, &key()).await;
    journal.turn("before").await;
    let binding = binding_row(&key(), &conversation("c"));
    let id = binding.binding_id;
    store.write("bind", move |tx| bindings::bind(tx, &binding)).await.unwrap();
    journal.turn("between").await;
    store.write("end", move |tx| bindings::end(tx, id, "unbound")).await.unwrap();
    journal.turn("after").await;
    // The binding ended before any scan; its pending rows are still delivered.
    let driver = on_console(&store, LONG);
    no_pending_parts(&store).await;
    driver.stop().await;
    assert_eq!(shown(&store, "c").await, vec!["between".to_owned()]);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Panic,
    None,
    /// Rejects the message for now.
    Reject,
    /// Limits the rate for a moment.
    Limit,
    /// Rejects the message for good.
    Refuse,
    /// Rejects the files, for now or for good.
    RefuseFiles {
        again: bool,
    },
    /// Loses the request.
    LostBefore,
    /// Loses the response.
    LostAfter,
    /// Hangs before or after the request takes effect.
    HangBefore,
    HangAfter,
}

#[derive(Default)]
struct FaultyChannel {
    received: Mutex<Vec<Outgoing>>,
    faults: Mutex<VecDeque<Fault>>,
    lookup_fails: bool,
    /// Supports personas; a message with a persona has no nonce.
    is_persona_channel: bool,
    carries_files: bool,
    /// Rejects files from now on.
    refuses_files: AtomicBool,
    lookups: AtomicUsize,
    hang_started: tokio::sync::Notify,
    release_hang: tokio::sync::Notify,
    account: &'static str,
}

impl FaultyChannel {
    fn received(&self) -> Vec<Outgoing> {
        self.received.lock().unwrap().clone()
    }

    fn texts(&self) -> Vec<String> {
        self.received().into_iter().map(|message| message.text).collect()
    }

    async fn hang(&self) {
        self.hang_started.notify_one();
        self.release_hang.notified().await;
    }
}

impl ChannelAdapter for FaultyChannel {
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
        self.is_persona_channel
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
                Fault::Panic => panic!("scripted panic"),
                Fault::None | Fault::LostAfter | Fault::HangAfter => {}
            }
            if self.refuses_files.load(Ordering::SeqCst) && !message.files.is_empty() {
                return no_files(false);
            }
            let message_id = {
                let mut received = self.received.lock().unwrap();
                received.push(message.clone());
                received.len().to_string()
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
            if self.lookup_fails {
                return LookupOutcome::Unknown { why: "no permission to read".to_owned() };
            }
            self.lookups.fetch_add(1, Ordering::SeqCst);
            let sizes = |it: &Outgoing| it.files.iter().map(|file| file.bytes.len()).collect::<Vec<_>>();
            let is_named = |known: &Outgoing| match self.is_persona_channel {
                true => {
                    known.tagged() == message.tagged()
                        && (known.persona.is_none() || message.persona.is_some())
                }
                false => known.nonce == message.nonce,
            };
            let is_it = |known: &Outgoing| is_named(known) && sizes(known) == sizes(message);
            match self.received.lock().unwrap().iter().position(is_it) {
                Some(at) => LookupOutcome::Found { message_id: (at + 1).to_string() },
                None => LookupOutcome::Absent,
            }
        })
    }
}

async fn undelivered_turns() -> (tempfile::TempDir, Store) {
    let (dir, store, _, mut journal) = bound().await;
    two_turns(&mut journal).await;
    (dir, store)
}

fn faulty_channel(faults: &[Fault]) -> Arc<FaultyChannel> {
    faulty_channel_with(faults, FaultyChannel::default())
}

fn faulty_channel_with(faults: &[Fault], channel: FaultyChannel) -> Arc<FaultyChannel> {
    Arc::new(FaultyChannel { faults: Mutex::new(faults.iter().copied().collect()), ..channel })
}

async fn fault_free_texts() -> Vec<String> {
    let (_dir, store) = undelivered_turns().await;
    let channel = Arc::new(FaultyChannel::default());
    drive(&store, &channel, LONG).settle(&store, PARTS).await;
    channel.texts()
}

#[tokio::test]
async fn crash_in_any_channel_call_loses_and_repeats_nothing() {
    let want = fault_free_texts().await;
    assert_eq!(want.len(), PARTS);
    for fault in [Fault::HangBefore, Fault::HangAfter] {
        for at in 0..want.len() {
            let (_dir, store) = undelivered_turns().await;
            let channel = faulty_channel(&[vec![Fault::None; at], vec![fault]].concat());
            let driver = drive(&store, &channel, LONG);
            channel.hang_started.notified().await;
            driver.kill().await;
            drive(&store, &channel, LONG).settle(&store, want.len()).await;
            assert_eq!(channel.texts(), want, "{fault:?} in call {at}");
        }
    }
}

#[tokio::test]
async fn crash_after_any_commit_loses_and_repeats_nothing() {
    let want = fault_free_texts().await;
    // One commit for the style, one for the plan, and two for each part.
    for commits in 1..=20 {
        let (_dir, store) = undelivered_turns().await;
        let channel = Arc::new(FaultyChannel::default());
        let before = store.counts().groups;
        let driver = drive(&store, &channel, LONG);
        eventually("the commits", || async { (store.counts().groups >= before + commits).then_some(()) })
            .await;
        driver.kill().await;
        drive(&store, &channel, LONG).settle(&store, want.len()).await;
        assert_eq!(channel.texts(), want, "after {commits} commits");
    }
}

#[tokio::test]
async fn channel_faults_lose_and_repeat_nothing() {
    let want = fault_free_texts().await;
    for fault in [Fault::Reject, Fault::Limit, Fault::LostBefore, Fault::LostAfter, Fault::Panic] {
        let (_dir, store) = undelivered_turns().await;
        let more = if fault == Fault::Panic { Fault::None } else { fault };
        let channel = faulty_channel(&[fault, Fault::None, fault, more]);
        drive(&store, &channel, LONG).settle(&store, want.len()).await;
        assert_eq!(channel.texts(), want, "{fault:?}");
        assert!(states(&store).await.iter().all(|state| state == "sent"));
    }
}

#[tokio::test]
async fn rejected_part_is_skipped_with_notice() {
    let want = fault_free_texts().await;
    let (_dir, store) = undelivered_turns().await;
    let channel = faulty_channel(&[Fault::Refuse]);
    drive(&store, &channel, LONG).settle(&store, want.len() + 1).await;
    assert!(channel.texts()[0].contains("rejected it: a permission request (part 1)."));
    assert_eq!((&channel.texts()[1..], &*states(&store).await[0]), (&want[1..], "rejected"));
}

/// Delivers a short answer through a channel without lookups and with these faults.
async fn deliver_without_lookup(faults: &[Fault]) -> (Vec<String>, Vec<String>) {
    let (_dir, store, due) = answered("x").await;
    let id = due.binding.binding_id;
    let channel =
        faulty_channel_with(faults, FaultyChannel { lookup_fails: true, ..FaultyChannel::default() });
    let pass = worker(&store, &channel);
    assert_eq!(pass.run(due.clone(), None).await, WorkerExit::At(3));
    // A second pass finds nothing to send.
    assert_eq!(pass.run(due, None).await, WorkerExit::At(3));
    let saved = store.read("saved", move |db| acp_store::checkpoints::checkpoint(db, id)).await.unwrap();
    assert_eq!(saved, 3);
    (channel.texts(), states(&store).await)
}

/// H12: the part stays uncertain, is not resent, and a notice reports that.
#[tokio::test]
async fn part_without_lookup_stays_uncertain_with_notice() {
    for (fault, shown) in [(Fault::LostAfter, &["x"][..]), (Fault::LostBefore, &[])] {
        let (texts, states) = deliver_without_lookup(&[fault]).await;
        assert_eq!(states, ["uncertain", "sent"]);
        let (notice, before) = texts.split_last().unwrap();
        assert_eq!(before, shown);
        assert!(
            notice.starts_with("It is unknown whether a message arrived here: the agent's answer (part 1)")
        );
    }
}

/// A timed-out request may still arrive: after a refused retry and a restart, the message is found by lookup.
#[tokio::test]
async fn part_that_may_arrive_late_is_looked_up_after_restart() {
    let (_dir, store, due) = answered("x").await;
    let id = due.binding.binding_id;
    let channel = faulty_channel(&[Fault::LostBefore, Fault::Reject]);
    // Stopped in the pause after the refusal.
    let first = DeliveryWorker { retry_first_ms: 500, ..worker(&store, &channel) };
    let (stop, first_due) = (first.stop.clone(), due.clone());
    let first = tokio::spawn(async move { first.run(first_due, None).await });
    eventually("refusal", || async { channel.faults.lock().unwrap().is_empty().then_some(()) }).await;
    stop.cancel();
    assert_eq!(first.await.unwrap(), WorkerExit::Unknown);
    let part = store.read("part", move |db| rows::pending_parts(db, id)).await.unwrap().remove(0).part;
    channel.received.lock().unwrap().push(Outgoing {
        nonce: part.nonce,
        text: part.text,
        ..Outgoing::default()
    });
    assert_eq!(worker(&store, &channel).run(due, None).await, WorkerExit::At(3));
    assert_eq!(channel.texts(), ["x"]);
    assert_eq!(states(&store).await, ["sent"]);
}

#[tokio::test]
async fn rate_limits_do_not_use_up_lookups() {
    let (_dir, store, due) = answered("x").await;
    let channel = faulty_channel(&[&[Fault::Limit; 9][..], &[Fault::LostAfter]].concat());
    assert_eq!(worker(&store, &channel).run(due, None).await, WorkerExit::At(3));
    assert_eq!(channel.texts(), ["x"]);
    assert_eq!(states(&store).await, ["sent"]);
}

#[tokio::test]
async fn uncertain_notice_causes_no_further_notice() {
    let (texts, states) = deliver_without_lookup(&[Fault::LostBefore, Fault::LostBefore]).await;
    assert_eq!(states, ["uncertain", "uncertain"]);
    assert_eq!(texts, [] as [String; 0]);
}

#[tokio::test]
async fn attempts_retries_and_rate_limits_are_counted() {
    let (_dir, store, due) = answered("x").await;
    let channel = faulty_channel(&[Fault::Limit, Fault::Reject, Fault::LostBefore, Fault::None]);
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

/// A turn is shown only where its session is bound, not in the parent or the prompt's conversation.
#[tokio::test]
async fn answers_go_only_to_bound_conversation() {
    let (_dir, store) = open();
    let parent = SessionKey::parse("agent:demo:acp:parent").unwrap();
    spawn(&store, session_row(&parent), Some(binding_row(&parent, &conversation("c")))).await;
    let thread = ConversationRef { parent_conversation_id: Some("c".to_owned()), ..conversation("c/thread") };
    let child = acp_core::rows::SessionRow {
        owner_session_key: Some(parent.clone()),
        spawned_by: Some(parent.clone()),
        parent_session_key: Some(parent),
        ..session_row(&key())
    };
    spawn(&store, child, Some(binding_row(&key(), &thread))).await;
    let driver = on_console(&store, LONG);
    let mut journal = JournalWriter::claim(&store, &key()).await;
    for text in ["prompt from the thread", "prompt from the command line"] {
        journal.turn(text).await;
    }
    let want = ["prompt from the thread", "prompt from the command line"];
    assert_eq!(caught_up(&store, "c/thread", 2).await, want);
    driver.settle(&store, 2).await;
    assert_eq!(shown(&store, "c/thread").await, want);
    assert_eq!(shown(&store, "c").await, [] as [&str; 0]);
}

#[tokio::test]
async fn delivery_waits_for_adapter() {
    let (_dir, store) = undelivered_turns().await;
    let (channels, metrics) = (Channels::default(), Metrics::default());
    let driver = Driver::start(&store, channels.clone(), &configured(LONG), &metrics);
    let waits =
        "acp_routes_total{direction=\"outbound\",outcome=\"refused\",reason=\"adapter-unavailable\"} 1";
    eventually("waiting delivery", || async { metrics.render().contains(waits).then_some(()) }).await;
    let second = Arc::new(FaultyChannel { account: "second", ..FaultyChannel::default() });
    channels.register(Arc::clone(&second) as Arc<dyn ChannelAdapter>).unwrap();
    let channel = Arc::new(FaultyChannel::default());
    channels.register(Arc::clone(&channel) as Arc<dyn ChannelAdapter>).unwrap();
    driver.settle(&store, PARTS).await;
    assert_eq!(channel.texts(), fault_free_texts().await);
    assert_eq!(second.texts(), [] as [&str; 0], "the adapter of another account gets nothing");
    // Sent messages are recorded as the gateway's own (C13).
    let at = conversation("c");
    let own =
        store.read("own", move |db| acp_store::sent_messages::is_own_message(db, &at, "9")).await.unwrap();
    assert!(own);
}

#[test]
fn slow_scan_lengthens_scan_interval() {
    for (took, want) in [(0, 20), (1, 20), (5, 20), (10, 40), (50, 200), (125, 500), (10_000, 500)] {
        let ms = Duration::from_millis;
        assert_eq!(scan_interval(ms(took)), ms(want), "after {took} ms");
    }
}
