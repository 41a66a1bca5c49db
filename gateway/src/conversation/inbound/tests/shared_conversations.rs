//! Several accounts in one conversation, and replies next to delivered parts.
use super::*;
use acp_core::render::{MessagePart, PartKind};
use acp_core::rows::BindingRow;
use acp_store::command_replies;
use acp_store::delivery::{self, PartState};
use std::sync::atomic::{AtomicBool, Ordering};

/// Account of a channel whose accounts share conversation ids.
pub(super) struct SharedChannel {
    account: &'static str,
    is_disconnected: AtomicBool,
    sent: StdMutex<Vec<Outgoing>>,
}

impl SharedChannel {
    pub(super) fn new(account: &'static str) -> Arc<Self> {
        Arc::new(Self { account, is_disconnected: AtomicBool::new(false), sent: StdMutex::default() })
    }

    pub(super) fn texts(&self) -> Vec<String> {
        self.sent.lock().unwrap().iter().map(|message| message.text.clone()).collect()
    }
}

impl ChannelAdapter for SharedChannel {
    fn id(&self) -> &'static str {
        "square"
    }

    fn account_id(&self) -> &str {
        self.account
    }

    fn unavailable_reason(&self, _: &ConversationRef) -> Option<String> {
        self.is_disconnected.load(Ordering::SeqCst).then(|| "it is not connected".to_owned())
    }

    fn properties(&self) -> ChannelProperties {
        ChannelProperties {
            receives_own_messages: false,
            shares_conversations: true,
            ..ChannelProperties::new(MessageLimit::new(Unit::Bytes, 4_000), UnboundDestination::Ignore)
        }
    }

    fn send<'a>(&'a self, _: &'a ConversationRef, message: &'a Outgoing) -> BoxFuture<'a, SendOutcome> {
        let mut sent = self.sent.lock().unwrap();
        sent.push(message.clone());
        let message_id = format!("{}-{}", self.account, sent.len());
        Box::pin(std::future::ready(SendOutcome::Sent { message_id }))
    }

    fn lookup<'a>(&'a self, _: &'a ConversationRef, _: &'a Outgoing) -> BoxFuture<'a, LookupOutcome> {
        Box::pin(std::future::ready(LookupOutcome::Absent))
    }
}

pub(super) fn at(account: &str) -> ConversationRef {
    ConversationRef { channel: "square".to_owned(), account_id: account.to_owned(), ..conversation("c") }
}

fn inbound_at(account: &str, id: &str, text: &str) -> Inbound {
    Inbound { conversation: at(account), ..message(id, text) }
}

async fn shared_channel() -> (tempfile::TempDir, Store, [Arc<SharedChannel>; 2], InboundService, BindingRow) {
    let (dir, store) = open();
    let binding = binding_row(&key(), &at("b"));
    spawn(&store, session_row(&key()), Some(binding.clone())).await;
    let both = [SharedChannel::new("a"), SharedChannel::new("b")];
    let service = service_with(&store, &FakeService::new(&store), both.clone().map(|account| account as _));
    (dir, store, both, service, binding)
}

/// Only the bound bot executes a command. If it is disconnected, another one refuses the command for good.
#[tokio::test]
async fn command_for_unreachable_bot_is_refused_by_other_bot() {
    let (_dir, store, [a, b], service, _) = shared_channel().await;
    let ignored = Outcome::Ignored { reason: "another-account".to_owned() };
    assert_eq!(service.accept(inbound_at("a", "1", "/acp help")).await.unwrap(), ignored);
    let Outcome::Command { .. } = service.accept(inbound_at("b", "1", "/acp help")).await.unwrap() else {
        panic!()
    };
    assert_eq!((a.texts().len(), b.texts().len()), (0, 1));
    // Account b is not connected.
    b.is_disconnected.store(true, Ordering::SeqCst);
    let refused = service.accept(inbound_at("a", "2", "/acp help")).await.unwrap();
    let Outcome::Refused { failure, .. } = &refused else { panic!("{refused:?}") };
    let code = (failure.code, failure.detail_code.as_deref());
    assert_eq!(code, (Code::ChannelUnavailable, Some("ACCOUNT_DEAF")));
    for part in ["\"b\"", "it is not connected", "Nothing was done", "Next: ", "doctor"] {
        assert!(a.texts()[0].contains(part), "{part}: {:?}", a.texts());
    }
    assert_eq!(service.accept(inbound_at("a", "2", "/acp help")).await.unwrap(), refused);
    // A message committed before a crash ends the same way, although account b is back.
    service.inner.commit(&inbound_at("a", "3", "/acp help")).await.unwrap();
    b.is_disconnected.store(false, Ordering::SeqCst);
    assert_eq!(service.resume().await.unwrap(), 1);
    assert_eq!((a.texts().len(), b.texts().len()), (2, 1));
    for id in ["2", "3"] {
        assert_eq!(service.accept(inbound_at("b", id, "/acp help")).await.unwrap(), ignored, "{id}");
    }
    // Other text is left to the bound bot, which reads it later.
    b.is_disconnected.store(true, Ordering::SeqCst);
    service.accept(inbound_at("a", "4", "hello")).await.unwrap();
    assert_eq!((a.texts().len(), b.texts().len()), (2, 1));
    let unsettled = store.read("unsettled", |db| inbox::unsettled_messages(db, 9)).await.unwrap();
    assert_eq!(unsettled, []);
}

fn part(binding: &BindingRow, seq: u64, text: &str) -> MessagePart {
    MessagePart {
        session_seq: seq,
        part_no: 0,
        run_id: None,
        kind: PartKind::Notice,
        text: text.to_owned(),
        nonce: acp_core::render::nonce(binding.binding_id, seq, 0),
        asks: None,
        files: Vec::new(),
    }
}

/// Replies and parts with equal texts are distinguished by tags and known ids.
#[tokio::test]
async fn replies_and_delivered_parts_are_distinct() {
    const BUSY: &str = "The agent is busy: queued behind 1.";
    let (_dir, store, [_, b], service, binding) = shared_channel().await;
    let plan = |seq: u64| {
        let binding = binding.clone();
        let write = move |tx: &acp_store::Tx<'_>| {
            delivery::plan(tx, &binding, &[part(&binding, seq, BUSY)])?;
            let planned = delivery::pending_parts(tx, binding.binding_id)?;
            Ok(planned.into_iter().find(|row| row.part.session_seq == seq).and_then(|row| row.tag))
        };
        store.write("plan", write)
    };
    let settle = |seq: u64, id: &'static str| {
        let binding = binding.clone();
        let write = move |tx: &acp_store::Tx<'_>| {
            delivery::settle(tx, &binding, &part(&binding, seq, BUSY), PartState::Sent, Some(id))
        };
        store.write("settle", write)
    };
    let others = || store.read("others", |db| command_replies::ids_of_sent_messages(db, &at("b"), 0));
    service.accept(inbound_at("b", "1", "hello")).await.unwrap();
    // The outcome of the part is unknown: a reply with the same text gets a tag.
    assert_eq!(plan(1).await.unwrap(), None);
    service.accept(inbound_at("b", "2", "more")).await.unwrap();
    let shown = b.sent.lock().unwrap().clone();
    assert_eq!(shown[0].text, BUSY);
    assert!(shown[0].tag.is_some(), "{shown:?}");
    assert_eq!(others().await.unwrap(), ["b-1"], "a part is not searched among the replies");
    // The part has arrived: the next reply excludes its id and that of the other reply.
    settle(1, "p-1").await.unwrap();
    service.accept(inbound_at("b", "3", "and more")).await.unwrap();
    let shown = b.sent.lock().unwrap().clone();
    assert_eq!(shown.len(), 2);
    let mut known = shown[1].others.clone();
    known.sort();
    assert_eq!(known, ["b-1", "p-1"]);
    // The outcome of a reply is unknown: a part with the same text gets a tag.
    let begin = |nonce: &'static str, text: &'static str| {
        store.write("begin", move |tx| command_replies::begin(tx, &at("b"), nonce, text, 0))
    };
    let first = begin("abcdefghijklmnopqrstuvwx", "Alone.").await.unwrap();
    let again = begin("abcdefghijklmnopqrstuvwx", "Alone.").await.unwrap();
    assert_eq!(again, first, "the chosen account remains");
    let account = binding.clone();
    let alone = move |tx: &acp_store::Tx<'_>| {
        delivery::plan(tx, &account, &[part(&account, 9, "Alone.")])?;
        Ok(delivery::pending_parts(tx, account.binding_id)?.into_iter().find_map(|row| row.tag))
    };
    assert!(store.write("alone", alone).await.unwrap().is_some());
}
