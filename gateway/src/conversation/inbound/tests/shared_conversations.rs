//! Several accounts that hear one conversation, and replies beside what is delivered there.
use super::*;
use acp_core::render::{MessagePart, PartKind};
use acp_core::rows::BindingRow;
use acp_store::command_replies;
use acp_store::delivery::{self, PartState};
use std::sync::atomic::{AtomicBool, Ordering};

/// One account of a channel where the same conversation is called the same in all of them.
pub(super) struct Square {
    account: &'static str,
    is_deaf: AtomicBool,
    sent: StdMutex<Vec<Outgoing>>,
}

impl Square {
    pub(super) fn new(account: &'static str) -> Arc<Self> {
        Arc::new(Self { account, is_deaf: AtomicBool::new(false), sent: StdMutex::default() })
    }

    pub(super) fn texts(&self) -> Vec<String> {
        self.sent.lock().unwrap().iter().map(|message| message.text.clone()).collect()
    }
}

impl ChannelAdapter for Square {
    fn id(&self) -> &'static str {
        "square"
    }

    fn account_id(&self) -> &str {
        self.account
    }

    fn unavailable_reason(&self, _: &ConversationRef) -> Option<String> {
        self.is_deaf.load(Ordering::SeqCst).then(|| "it is not connected".to_owned())
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

fn heard(account: &str, id: &str, text: &str) -> Inbound {
    Inbound { conversation: at(account), ..message(id, text) }
}

async fn square() -> (tempfile::TempDir, Store, [Arc<Square>; 2], InboundService, BindingRow) {
    let (dir, store) = open();
    let binding = binding_row(&key(), &at("b"));
    spawn(&store, session_row(&key()), Some(binding.clone())).await;
    let both = [Square::new("a"), Square::new("b")];
    let inlet = inlet_of(&store, &Fake::new(&store), both.clone().map(|one| one as _));
    (dir, store, both, inlet, binding)
}

/// A typed command is done by the bot that works there; where that one does not hear it, whoever hears it says so once,
/// and nobody does it, also when the other one reads it later.
#[tokio::test]
async fn command_for_unreachable_bot_is_refused_by_other_bot() {
    let (_dir, store, [a, b], inlet, _) = square().await;
    let ignored = Outcome::Ignored { reason: "another-account".to_owned() };
    assert_eq!(inlet.accept(heard("a", "1", "/acp help")).await.unwrap(), ignored);
    let Outcome::Command { .. } = inlet.accept(heard("b", "1", "/acp help")).await.unwrap() else { panic!() };
    assert_eq!((a.texts().len(), b.texts().len()), (0, 1));
    // It does not hear.
    b.is_deaf.store(true, Ordering::SeqCst);
    let refused = inlet.accept(heard("a", "2", "/acp help")).await.unwrap();
    let Outcome::Refused { failure, .. } = &refused else { panic!("{refused:?}") };
    let code = (failure.code, failure.detail_code.as_deref());
    assert_eq!(code, (Code::ChannelUnavailable, Some("ACCOUNT_DEAF")));
    for part in ["\"b\"", "it is not connected", "Nothing was done", "Next: ", "doctor"] {
        assert!(a.texts()[0].contains(part), "{part}: {:?}", a.texts());
    }
    assert_eq!(inlet.accept(heard("a", "2", "/acp help")).await.unwrap(), refused);
    // What a process before took of it, up to its crash, ends the same way, whoever hears it by then.
    inlet.inner.commit(&heard("a", "3", "/acp help")).await.unwrap();
    b.is_deaf.store(false, Ordering::SeqCst);
    assert_eq!(inlet.resume().await.unwrap(), 1);
    assert_eq!((a.texts().len(), b.texts().len()), (2, 1));
    for id in ["2", "3"] {
        assert_eq!(inlet.accept(heard("b", id, "/acp help")).await.unwrap(), ignored, "{id}");
    }
    // What is no command is the other one's alone: it reads it when it hears again.
    b.is_deaf.store(true, Ordering::SeqCst);
    inlet.accept(heard("a", "4", "hello")).await.unwrap();
    assert_eq!((a.texts().len(), b.texts().len()), (2, 1));
    let left = store.read("left", |db| inbox::unsettled_messages(db, 9)).await.unwrap();
    assert_eq!(left, []);
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

/// A reply is told apart from a part that says the same and may be there or not, and a part from a reply: by what they
/// show, and by the ids that are known.
#[tokio::test]
async fn replies_and_delivered_parts_are_told_apart() {
    const BUSY: &str = "The agent is busy: queued behind 1.";
    let (_dir, store, [_, b], inlet, binding) = square().await;
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
    inlet.accept(heard("b", "1", "hello")).await.unwrap();
    // Nobody knows yet whether this part is there: the reply that says the same has a tag.
    assert_eq!(plan(1).await.unwrap(), None);
    inlet.accept(heard("b", "2", "more")).await.unwrap();
    let shown = b.sent.lock().unwrap().clone();
    assert_eq!(shown[0].text, BUSY);
    assert!(shown[0].tag.is_some(), "{shown:?}");
    assert_eq!(others().await.unwrap(), ["b-1"], "a part is not searched among the replies");
    // It is there: the next reply knows it by its id, and the other reply.
    settle(1, "p-1").await.unwrap();
    inlet.accept(heard("b", "3", "and more")).await.unwrap();
    let shown = b.sent.lock().unwrap().clone();
    assert_eq!(shown.len(), 2);
    let mut known = shown[1].others.clone();
    known.sort();
    assert_eq!(known, ["b-1", "p-1"]);
    // A reply of which nobody knows whether it is there: the part that says the same has a tag.
    let begin = |nonce: &'static str, text: &'static str| {
        store.write("begin", move |tx| command_replies::begin(tx, &at("b"), (nonce, text), 0))
    };
    let first = begin("abcdefghijklmnopqrstuvwx", "Alone.").await.unwrap();
    let again = begin("abcdefghijklmnopqrstuvwx", "Alone.").await.unwrap();
    assert_eq!(again, first, "the chosen account remains");
    let one = binding.clone();
    let alone = move |tx: &acp_store::Tx<'_>| {
        delivery::plan(tx, &one, &[part(&one, 9, "Alone.")])?;
        Ok(delivery::pending_parts(tx, one.binding_id)?.into_iter().find_map(|row| row.tag))
    };
    assert!(store.write("alone", alone).await.unwrap().is_some());
}
