//! Pending replies: a blocked reply delays neither messages nor changes.

use super::*;
use crate::channel::{InboundPort, IntakeOutcome, MessageChangeOutcome};
use std::time::Duration;

const BUSY: [&str; 2] = ["The agent is busy: queued behind 1.", "The agent is busy: queued behind 2."];
const IDLE: &str = "agent:demo:acp:1 has no running turn and no queued message.";

/// Behaviour of the channel in the conversation `c`; other conversations work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChannelMode {
    Accepts,
    Rejects,
    Stalls,
    /// Accepts messages without a response, and cannot be searched.
    Loses,
}

struct SwitchableChannel {
    mode: watch::Sender<ChannelMode>,
    sent: StdMutex<Vec<(String, Outgoing)>>,
    lookups: StdMutex<Vec<Option<u64>>>,
}

impl SwitchableChannel {
    fn new(mode: ChannelMode) -> Arc<Self> {
        let (sent, lookups) = (StdMutex::default(), StdMutex::default());
        Arc::new(Self { mode: watch::Sender::new(mode), sent, lookups })
    }

    fn lookups(&self) -> Vec<Option<u64>> {
        self.lookups.lock().unwrap().clone()
    }

    fn sent_to(&self, at: &str) -> Vec<String> {
        let sent = self.sent.lock().unwrap();
        sent.iter().filter(|(there, _)| there == at).map(|(_, message)| message.text.clone()).collect()
    }
}

impl ChannelAdapter for SwitchableChannel {
    fn id(&self) -> &'static str {
        "console"
    }

    fn properties(&self) -> ChannelProperties {
        ChannelProperties::new(MessageLimit::new(Unit::Bytes, 4_000), UnboundDestination::Hint)
    }

    fn send<'a>(&'a self, at: &'a ConversationRef, message: &'a Outgoing) -> BoxFuture<'a, SendOutcome> {
        Box::pin(async move {
            let mut mode = self.mode.subscribe();
            let is_free = at.conversation_id != "c";
            let now = *mode.wait_for(|mode| is_free || *mode != ChannelMode::Stalls).await.unwrap();
            if now == ChannelMode::Rejects && !is_free {
                return SendOutcome::Rejected { why: "status 503".to_owned(), again: true };
            }
            let mut sent = self.sent.lock().unwrap();
            sent.push((at.conversation_id.clone(), message.clone()));
            if now == ChannelMode::Loses {
                return SendOutcome::Uncertain { why: "the answer was lost".to_owned() };
            }
            SendOutcome::Sent { message_id: sent.len().to_string() }
        })
    }

    fn lookup<'a>(&'a self, at: &'a ConversationRef, message: &'a Outgoing) -> BoxFuture<'a, LookupOutcome> {
        self.lookups.lock().unwrap().push(message.not_before_ms);
        let is_it = |(there, known): &(String, Outgoing)| {
            *there == at.conversation_id && known.nonce == message.nonce
        };
        let number = self.sent.lock().unwrap().iter().position(is_it);
        let found = match (*self.mode.borrow(), number) {
            (ChannelMode::Loses, _) => {
                LookupOutcome::Unknown { why: "the history cannot be read".to_owned() }
            }
            (_, Some(number)) => LookupOutcome::Found { message_id: (number + 1).to_string() },
            (_, None) => LookupOutcome::Absent,
        };
        Box::pin(std::future::ready(found))
    }
}

async fn service_in_mode(
    mode: ChannelMode,
) -> (tempfile::TempDir, Store, Arc<FakeService>, Arc<SwitchableChannel>, InboundService) {
    let (dir, store, fake, _) = bound_service().await;
    let channel = SwitchableChannel::new(mode);
    let service = service_with(&store, &fake, [Arc::clone(&channel) as _]);
    (dir, store, fake, channel, service)
}

async fn within<T>(description: &str, future: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(Duration::from_secs(60), future).await;
    done.unwrap_or_else(|_| panic!("{description} is delayed"))
}

/// Blocked replies delay no messages, commands or deletions; later each reply is sent once, in order.
#[tokio::test]
async fn blocked_reply_delays_nothing_else() {
    for mode in [ChannelMode::Stalls, ChannelMode::Rejects] {
        let (_dir, store, fake, channel, service) = service_in_mode(mode).await;
        let accepted = IntakeOutcome::Accepted(crate::channel::CallerReply::default());
        for (id, text) in [("m1", "hello"), ("m2", "more"), ("m3", "less"), ("m4", "/acp cancel")] {
            let offered = within(text, service.offer(message(id, text))).await;
            assert_eq!(offered, accepted, "{mode:?} {text}");
        }
        assert_eq!((fake.prompt_texts().len(), fake.cancels.lock().unwrap().len()), (3, 1), "{mode:?}");
        let deleted =
            within("a deletion", service.on_message_deleted(conversation("c"), "m2".to_owned())).await;
        assert_eq!(deleted, MessageChangeOutcome::Done, "{mode:?}");
        assert_eq!(within("it again", service.offer(message("m2", "more"))).await, accepted, "{mode:?}");
        assert_eq!(channel.sent_to("c"), Vec::<String>::new(), "{mode:?}");
        let stop = CancellationToken::new();
        let retries = tokio::spawn(service.clone().run_retries(stop.clone()));
        channel.mode.send_replace(ChannelMode::Accepts);
        wait_all_settled(&store).await;
        assert_eq!(channel.sent_to("c"), [BUSY[0], BUSY[1], IDLE], "{mode:?}");
        stop.cancel();
        retries.await.unwrap();
    }
}

#[tokio::test]
async fn blocked_conversation_delays_no_other() {
    let (_dir, store, _fake, channel, service) = service_in_mode(ChannelMode::Stalls).await;
    for (id, at) in [("m1", "c"), ("m2", "d"), ("m3", "c"), ("m4", "e")] {
        let sent = Inbound { conversation: conversation(at), ..message(id, "/acp cancel") };
        service.inner.commit(&sent).await.unwrap();
        let outcome = Outcome::Command {
            session_key: None,
            run_id: None,
            text: format!("reply {id}"),
            is_shown: false,
        };
        store.write("record", move |tx| inbox::record(tx, &sent, &outcome, false)).await.unwrap();
    }
    let resumed = service.clone();
    let resuming = tokio::spawn(async move { resumed.resume().await.unwrap() });
    eventually("the other replies are sent", || async {
        let replies = [channel.sent_to("d"), channel.sent_to("e")];
        (replies == [["reply m2"], ["reply m4"]]).then_some(())
    })
    .await;
    assert_eq!(channel.sent_to("c"), Vec::<String>::new());
    channel.mode.send_replace(ChannelMode::Accepts);
    assert_eq!(within("the rest", resuming).await.unwrap(), 4);
    assert_eq!(channel.sent_to("c"), ["reply m1", "reply m3"]);
    assert_eq!(channel.lookups().len(), 4, "an earlier process may have sent each reply");
    wait_all_settled(&store).await;
}

/// The reply worker takes replies queued while it runs, without looking them up.
#[tokio::test]
async fn reply_flush_includes_replies_added_meanwhile() {
    let (_dir, store, _fake, channel, service) = service_in_mode(ChannelMode::Stalls).await;
    for (id, text) in [("m1", "hello"), ("m2", "more"), ("m3", "/acp cancel")] {
        within(text, service.offer(message(id, text))).await;
    }
    // No retry worker runs: the worker of the first reply sends all of them.
    channel.mode.send_replace(ChannelMode::Accepts);
    wait_all_settled(&store).await;
    assert_eq!(channel.sent_to("c"), [BUSY[0], IDLE]);
    assert_eq!(channel.lookups().len(), 0);
}

#[tokio::test]
async fn uncertain_reply_is_looked_up_before_resend() {
    let (_dir, store, _fake, channel, service) = service_in_mode(ChannelMode::Loses).await;
    service.accept(message("m1", "/acp cancel")).await.unwrap();
    assert_eq!(channel.sent_to("c"), [IDLE]);
    // Also in the next process, which does not know this send.
    assert_eq!(service.resume().await.unwrap(), 0);
    channel.mode.send_replace(ChannelMode::Accepts);
    assert_eq!(service.resume().await.unwrap(), 1);
    assert_eq!(channel.sent_to("c"), [IDLE], "once");
    // H12: the search starts at the message that is answered.
    let received = store.read("received", |db| inbox::get(db, &conversation("c"), "m1")).await.unwrap();
    let received = received.unwrap().received_at_ms;
    assert!(received > 0);
    let since = channel.lookups();
    assert!(!since.is_empty() && since.iter().all(|since| *since == Some(received)), "{since:?} {received}");
}

#[tokio::test]
async fn message_interrupted_by_shutdown_runs_after_restart() {
    let (_dir, store, fake, before) = bound_service().await;
    let failure = Failure::of(Code::BackendUnavailable).detail(crate::session::manager::ENDING).retryable();
    *fake.fails.lock().unwrap() = Some(failure.clone());
    assert_eq!(before.accept(message("m1", "hello")).await.unwrap_err(), failure);
    drop(before);
    assert_eq!(service(&store, &fake).resume().await.unwrap(), 1);
    assert_eq!(
        (fake.prompt_texts(), shown(&store).await),
        (vec!["hello".to_owned()], vec![line("person", "hello")])
    );
}

/// An adapter is removed with a command and its reply pending: both wait, and happen once.
#[tokio::test]
async fn command_without_adapter_replies_once_adapter_returns() {
    let (_dir, store, fake, _) = bound_service().await;
    let channel = SwitchableChannel::new(ChannelMode::Rejects);
    let adapter = Arc::clone(&channel) as Arc<dyn ChannelAdapter>;
    let channels = Channels::new([Arc::clone(&adapter)]);
    let backend = Arc::clone(&fake) as Arc<dyn Service>;
    let service = InboundService::new(store.clone(), channels.clone(), backend, Metrics::default());
    let stop = CancellationToken::new();
    let kept = tokio::spawn(service.clone().run_retries(stop.clone()));
    assert!(matches!(service.offer(message("m1", "/acp cancel")).await, IntakeOutcome::Accepted(_)));
    assert!(channels.unregister(&adapter));
    assert!(matches!(service.offer(message("m2", "hello")).await, IntakeOutcome::Later { .. }));
    assert_eq!(service.resume().await.unwrap(), 0);
    assert_eq!((channel.sent_to("c"), fake.prompt_texts()), (vec![], vec![]));

    // Only now, since a worker may still be sending.
    channel.mode.send_replace(ChannelMode::Accepts);
    channels.register(adapter).unwrap();
    eventually("the reply is sent", || async { (channel.sent_to("c") == [IDLE]).then_some(()) }).await;
    eventually("the command is executed", || async { (fake.prompt_texts() == ["hello"]).then_some(()) })
        .await;
    stop.cancel();
    kept.await.unwrap();
}
