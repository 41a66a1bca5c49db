//! What was done about a message and cannot be told: it waits by itself, and holds up nothing that people say or take back.

use super::*;
use crate::channel::{InboundPort, IntakeOutcome, MessageChangeOutcome};
use std::time::Duration;

const BUSY: [&str; 2] = ["The agent is busy: queued behind 1.", "The agent is busy: queued behind 2."];
const IDLE: &str = "agent:demo:acp:1 has no running turn and no queued message.";

/// What a channel does with what is said in the conversation `c`; everything else is said at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    Takes,
    Refuses,
    Stalls,
    /// It takes what it is sent, and does not say so; and it cannot be asked.
    Loses,
}

/// A channel with a mood, which shows what it has.
struct Moody {
    mood: watch::Sender<Mood>,
    said: StdMutex<Vec<(String, Outgoing)>>,
    /// From when on it was looked for something.
    looks: StdMutex<Vec<Option<u64>>>,
}

impl Moody {
    fn new(mood: Mood) -> Arc<Self> {
        let (said, looks) = (StdMutex::default(), StdMutex::default());
        Arc::new(Self { mood: watch::Sender::new(mood), said, looks })
    }

    fn looks(&self) -> Vec<Option<u64>> {
        self.looks.lock().unwrap().clone()
    }

    fn said_in(&self, at: &str) -> Vec<String> {
        let said = self.said.lock().unwrap();
        said.iter().filter(|(there, _)| there == at).map(|(_, message)| message.text.clone()).collect()
    }
}

impl ChannelAdapter for Moody {
    fn id(&self) -> &'static str {
        "console"
    }

    fn properties(&self) -> ChannelProperties {
        ChannelProperties::new(MessageLimit::new(Unit::Bytes, 4_000), UnboundDestination::Hint)
    }

    fn send<'a>(&'a self, at: &'a ConversationRef, message: &'a Outgoing) -> BoxFuture<'a, SendOutcome> {
        Box::pin(async move {
            let mut mood = self.mood.subscribe();
            let is_free = at.conversation_id != "c";
            let now = *mood.wait_for(|mood| is_free || *mood != Mood::Stalls).await.unwrap();
            if now == Mood::Refuses && !is_free {
                return SendOutcome::Rejected { why: "status 503".to_owned(), again: true };
            }
            let mut said = self.said.lock().unwrap();
            said.push((at.conversation_id.clone(), message.clone()));
            if now == Mood::Loses {
                return SendOutcome::Uncertain { why: "the answer was lost".to_owned() };
            }
            SendOutcome::Sent { message_id: said.len().to_string() }
        })
    }

    fn lookup<'a>(&'a self, at: &'a ConversationRef, message: &'a Outgoing) -> BoxFuture<'a, LookupOutcome> {
        self.looks.lock().unwrap().push(message.not_before_ms);
        let is_it = |(there, known): &(String, Outgoing)| {
            *there == at.conversation_id && known.nonce == message.nonce
        };
        let number = self.said.lock().unwrap().iter().position(is_it);
        let found = match (*self.mood.borrow(), number) {
            (Mood::Loses, _) => LookupOutcome::Unknown { why: "the history cannot be read".to_owned() },
            (_, Some(number)) => LookupOutcome::Found { message_id: (number + 1).to_string() },
            (_, None) => LookupOutcome::Absent,
        };
        Box::pin(std::future::ready(found))
    }
}

async fn ground(mood: Mood) -> (tempfile::TempDir, Store, Arc<Fake>, Arc<Moody>, InboundService) {
    let (dir, store, fake, _) = bound_ground().await;
    let channel = Moody::new(mood);
    let inlet = inlet_of(&store, &fake, [Arc::clone(&channel) as _]);
    (dir, store, fake, channel, inlet)
}

async fn soon<T>(what: &str, it: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(Duration::from_secs(60), it).await;
    done.unwrap_or_else(|_| panic!("{what} is delayed"))
}

/// Whatever is done with a reply: messages, commands and what is taken back go on, and later each reply comes once, in
/// the order of the messages.
#[tokio::test]
async fn blocked_reply_delays_nothing_else() {
    for mood in [Mood::Stalls, Mood::Refuses] {
        let (_dir, store, fake, channel, inlet) = ground(mood).await;
        let taken = IntakeOutcome::Accepted(crate::channel::CallerReply::default());
        for (id, text) in [("m1", "hello"), ("m2", "more"), ("m3", "less"), ("m4", "/acp cancel")] {
            let offered = soon(text, inlet.offer(message(id, text))).await;
            assert_eq!(offered, taken, "{mood:?} {text}");
        }
        assert_eq!((fake.said().len(), fake.cancels.lock().unwrap().len()), (3, 1), "{mood:?}");
        let deleted = soon("a deletion", inlet.on_message_deleted(conversation("c"), "m2".to_owned())).await;
        assert_eq!(deleted, MessageChangeOutcome::Done, "{mood:?}");
        assert_eq!(soon("it again", inlet.offer(message("m2", "more"))).await, taken, "{mood:?}");
        assert_eq!(channel.said_in("c"), Vec::<String>::new(), "{mood:?}");
        let stop = CancellationToken::new();
        let keeping = tokio::spawn(inlet.clone().run_retries(stop.clone()));
        channel.mood.send_replace(Mood::Takes);
        nothing_is_left(&store).await;
        assert_eq!(channel.said_in("c"), [BUSY[0], BUSY[1], IDLE], "{mood:?}");
        stop.cancel();
        keeping.await.unwrap();
    }
}

/// What cannot be told in one conversation keeps no other one from being told what was left there.
#[tokio::test]
async fn blocked_conversation_delays_no_other() {
    let (_dir, store, _fake, channel, inlet) = ground(Mood::Stalls).await;
    for (id, at) in [("m1", "c"), ("m2", "d"), ("m3", "c"), ("m4", "e")] {
        let said = Inbound { conversation: conversation(at), ..message(id, "/acp cancel") };
        inlet.inner.commit(&said).await.unwrap();
        let outcome =
            Outcome::Command { session_key: None, run_id: None, text: format!("told {id}"), is_shown: false };
        store.write("record", move |tx| inbox::record(tx, &said, &outcome, false)).await.unwrap();
    }
    let resumed = inlet.clone();
    let resuming = tokio::spawn(async move { resumed.resume().await.unwrap() });
    eventually("the other replies are sent", || async {
        let told = [channel.said_in("d"), channel.said_in("e")];
        (told == [["told m2"], ["told m4"]]).then_some(())
    })
    .await;
    assert_eq!(channel.said_in("c"), Vec::<String>::new());
    channel.mood.send_replace(Mood::Takes);
    assert_eq!(soon("the rest", resuming).await.unwrap(), 4);
    assert_eq!(channel.said_in("c"), ["told m1", "told m3"]);
    assert_eq!(channel.looks().len(), 4, "an earlier process may have sent each reply");
    nothing_is_left(&store).await;
}

/// Whoever is at telling finds what was done meanwhile; that it is new is known, and it is not looked for.
#[tokio::test]
async fn reply_flush_includes_replies_added_meanwhile() {
    let (_dir, store, _fake, channel, inlet) = ground(Mood::Stalls).await;
    for (id, text) in [("m1", "hello"), ("m2", "more"), ("m3", "/acp cancel")] {
        soon(text, inlet.offer(message(id, text))).await;
    }
    // Nobody keeps what is left: whoever tells the first one is all there is.
    channel.mood.send_replace(Mood::Takes);
    nothing_is_left(&store).await;
    assert_eq!(channel.said_in("c"), [BUSY[0], IDLE]);
    assert_eq!(channel.looks().len(), 0);
}

#[tokio::test]
async fn uncertain_reply_is_looked_up_before_resend() {
    let (_dir, store, _fake, channel, inlet) = ground(Mood::Loses).await;
    inlet.accept(message("m1", "/acp cancel")).await.unwrap();
    assert_eq!(channel.said_in("c"), [IDLE]);
    // Also by the next process, which does not know what this one sent.
    assert_eq!(inlet.resume().await.unwrap(), 0);
    channel.mood.send_replace(Mood::Takes);
    assert_eq!(inlet.resume().await.unwrap(), 1);
    assert_eq!(channel.said_in("c"), [IDLE], "once");
    // H12: from the message on that it replies to, and no further back.
    let received = store.read("received", |db| inbox::get(db, &conversation("c"), "m1")).await.unwrap();
    let received = received.unwrap().received_at_ms;
    assert!(received > 0);
    let since = channel.looks();
    assert!(!since.is_empty() && since.iter().all(|since| *since == Some(received)), "{since:?} {received}");
}

/// The gateway ends in order while a message is on its way: nothing was done, and that is no answer. The next one does it.
#[tokio::test]
async fn message_interrupted_by_shutdown_runs_after_restart() {
    let (_dir, store, fake, before) = bound_ground().await;
    let ending = Failure::of(Code::BackendUnavailable).detail(crate::session::manager::ENDING).retryable();
    *fake.fails.lock().unwrap() = Some(ending.clone());
    assert_eq!(before.accept(message("m1", "hello")).await.unwrap_err(), ending);
    drop(before);
    assert_eq!(inlet(&store, &fake).resume().await.unwrap(), 1);
    assert_eq!((fake.said(), shown(&store).await), (vec!["hello".to_owned()], vec![line("person", "hello")]));
}

/// An adapter is taken away while something is to be done and told there: both wait for it, and it is done and told once.
#[tokio::test]
async fn command_without_adapter_replies_once_adapter_returns() {
    let (_dir, store, fake, _) = bound_ground().await;
    let channel = Moody::new(Mood::Refuses);
    let adapter = Arc::clone(&channel) as Arc<dyn ChannelAdapter>;
    let channels = Channels::new([Arc::clone(&adapter)]);
    let service = Arc::clone(&fake) as Arc<dyn Service>;
    let inlet = InboundService::new(store.clone(), channels.clone(), service, Metrics::default());
    let keeping = CancellationToken::new();
    let kept = tokio::spawn(inlet.clone().run_retries(keeping.clone()));
    assert!(matches!(inlet.offer(message("m1", "/acp cancel")).await, IntakeOutcome::Accepted(_)));
    assert!(channels.unregister(&adapter));
    assert!(matches!(inlet.offer(message("m2", "hello")).await, IntakeOutcome::Later { .. }));
    assert_eq!(inlet.resume().await.unwrap(), 0);
    assert_eq!((channel.said_in("c"), fake.said()), (vec![], vec![]));

    // Only now: somebody may be telling it there still.
    channel.mood.send_replace(Mood::Takes);
    channels.register(adapter).unwrap();
    eventually("the reply is sent", || async { (channel.said_in("c") == [IDLE]).then_some(()) }).await;
    eventually("the command is executed", || async { (fake.said() == ["hello"]).then_some(()) }).await;
    keeping.cancel();
    kept.await.unwrap();
}
