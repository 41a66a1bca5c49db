//! What agents say under their own names: such a message has no nonce, so that it is looked for until it cannot arrive.

use super::*;
use acp_store::backup::backup;
use acp_store::restore::restore;
use acp_store::{Durability, codec};

/// How what is sent under a name goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Said,
    /// The answer is lost.
    LostAfter,
    /// Nobody knows, and it is not there; it may come later.
    LostBefore,
    /// The gateway dies before the request, or after it and before the answer.
    HangBefore,
    HangAfter,
}

/// Who said what: a name, or nobody but the channel.
type Said = (Option<String>, String);

/// A channel that shows who says it, and keeps what it took; a nonce names nothing of what is said under a name.
struct Named {
    fates: Mutex<VecDeque<Fate>>,
    taken: Mutex<Vec<(Said, String)>>,
    looks: Mutex<usize>,
    hanging: tokio::sync::Notify,
}

impl Named {
    fn new(fates: &[Fate]) -> Arc<Self> {
        Arc::new(Self {
            fates: Mutex::new(fates.iter().copied().collect()),
            taken: Mutex::default(),
            looks: Mutex::default(),
            hanging: tokio::sync::Notify::new(),
        })
    }

    fn said(&self) -> Vec<Said> {
        self.taken.lock().unwrap().iter().map(|(said, _)| said.clone()).collect()
    }

    fn take(&self, message: &Outgoing) -> String {
        let mut taken = self.taken.lock().unwrap();
        let is_known = |(said, nonce): &(Said, String)| said.0.is_none() && *nonce == message.nonce;
        if let Some(at) = taken.iter().position(is_known).filter(|_| message.persona.is_none()) {
            return at.to_string();
        }
        taken.push(((message.persona.clone(), message.tagged()), message.nonce.clone()));
        (taken.len() - 1).to_string()
    }

    fn looks(&self) -> usize {
        *self.looks.lock().unwrap()
    }
}

impl ChannelAdapter for Named {
    fn id(&self) -> &'static str {
        "console"
    }

    fn properties(&self) -> ChannelProperties {
        ChannelProperties::new(MessageLimit::new(Unit::Bytes, 4_096), UnboundDestination::Hint)
    }

    fn has_personas(&self, _at: &ConversationRef) -> bool {
        true
    }

    fn send<'a>(&'a self, _to: &'a ConversationRef, message: &'a Outgoing) -> BoxFuture<'a, SendOutcome> {
        Box::pin(async move {
            let next = || self.fates.lock().unwrap().pop_front();
            let fate = message.persona.as_ref().and_then(|_| next()).unwrap_or(Fate::Said);
            if fate == Fate::HangBefore {
                self.hanging.notify_one();
                std::future::pending::<()>().await;
            }
            let lost = || SendOutcome::Uncertain { why: "lost".to_owned() };
            if fate == Fate::LostBefore {
                return lost();
            }
            let message_id = self.take(message);
            match fate {
                Fate::LostAfter => return lost(),
                Fate::HangAfter => {
                    self.hanging.notify_one();
                    std::future::pending::<()>().await;
                }
                _ => {}
            }
            SendOutcome::Sent { message_id }
        })
    }

    fn lookup<'a>(&'a self, _to: &'a ConversationRef, message: &'a Outgoing) -> BoxFuture<'a, LookupOutcome> {
        let taken = self.taken.lock().unwrap();
        let is_it = |((name, text), _): &(Said, String)| {
            *text == message.tagged() && (name.is_none() || message.persona.is_some())
        };
        let found = taken.iter().position(is_it);
        let found =
            found.map_or(LookupOutcome::Absent, |at| LookupOutcome::Found { message_id: at.to_string() });
        *self.looks.lock().unwrap() += 1;
        Box::pin(std::future::ready(found))
    }
}

fn by(name: &str, text: &str) -> Said {
    (Some(name.to_owned()), text.to_owned())
}

/// A session, of this label, that answered "x".
async fn answered_as(label: Option<&str>) -> (tempfile::TempDir, Store, Scribe) {
    let (dir, store) = open();
    let session = acp_core::rows::SessionRow { label: label.map(str::to_owned), ..session_row(&key()) };
    spawn(&store, session, Some(binding_row(&key(), &conversation("c")))).await;
    let mut scribe = Scribe::claim(&store, &key()).await;
    scribe.turn("x").await;
    (dir, store, scribe)
}

fn start(store: &Store, channel: &Arc<Named>) -> Driver {
    driven(store, Arc::clone(channel) as Arc<dyn ChannelAdapter>, &configured(""))
}

/// As if so much time had gone by since the parts were given to the channel.
async fn later(store: &Store, ms: i64) {
    let sql = "UPDATE acp_delivery_part SET persona_at = persona_at - ?1";
    store.write("later", move |tx| codec::run(tx, sql, [ms]).map(drop)).await.unwrap();
}

/// The text of an answer is the agent's; what the gateway has to say is not. A label goes before the agent's name.
#[tokio::test]
async fn answer_is_sent_under_agent_name() {
    for (label, name) in [(None, "demo"), (Some("my own"), "my own")] {
        let (_dir, store, mut scribe) = answered_as(label).await;
        scribe.close().await;
        let channel = Named::new(&[]);
        start(&store, &channel).settle(&store, 2).await;
        let farewell = (None, "The session is closed (enough). Start a new one with /acp spawn.".to_owned());
        assert_eq!(channel.said(), [by(name, "x"), farewell]);
    }
}

#[tokio::test]
async fn persona_message_with_lost_response_is_found_and_not_resent() {
    let (_dir, store, _scribe) = answered_as(None).await;
    let channel = Named::new(&[Fate::LostAfter]);
    start(&store, &channel).settle(&store, 1).await;
    assert_eq!((channel.said(), channel.looks()), (vec![by("demo", "x")], 1));
}

/// While it may still arrive nothing says it again; then the channel says it, with its nonce.
#[tokio::test]
async fn bot_sends_persona_message_only_after_it_cannot_arrive() {
    for (fate, arrives) in [(Fate::LostBefore, true), (Fate::LostBefore, false), (Fate::HangBefore, false)] {
        let (_dir, store, _scribe) = answered_as(None).await;
        let channel = Named::new(&[fate]);
        let driver = start(&store, &channel);
        if fate == Fate::HangBefore {
            channel.hanging.notified().await;
        } else {
            eventually("a lookup", || async { (channel.looks() > 0).then_some(()) }).await;
        }
        driver.kill().await;
        // Another process, of the same moment.
        let looks = channel.looks();
        let driver = start(&store, &channel);
        eventually("a lookup", || async { (channel.looks() > looks).then_some(()) }).await;
        assert_eq!(channel.said(), [], "{fate:?}");
        if arrives {
            let row = store.read("row", |db| {
                codec::first(db, "SELECT nonce FROM acp_delivery_part", [], |row| {
                    Ok(row.get::<_, String>("nonce")?)
                })
            });
            let nonce = row.await.unwrap().unwrap();
            channel.taken.lock().unwrap().push((by("demo", "x"), nonce));
        }
        driver.stop().await;
        if !arrives {
            later(&store, 61_000).await;
        }
        start(&store, &channel).settle(&store, 1).await;
        let want = if arrives { by("demo", "x") } else { (None, "x".to_owned()) };
        assert_eq!(channel.said(), [want], "{fate:?} {arrives}");
    }
}

/// A kill after the request and before the answer.
#[tokio::test]
async fn persona_message_sent_before_kill_is_found() {
    let (_dir, store, _scribe) = answered_as(None).await;
    let channel = Named::new(&[Fate::HangAfter]);
    let driver = start(&store, &channel);
    channel.hanging.notified().await;
    driver.kill().await;
    start(&store, &channel).settle(&store, 1).await;
    assert_eq!(channel.said(), [by("demo", "x")]);
}

/// A backup from before it was said, or from when the bot was about to say it: what went under a name since is found.
#[tokio::test]
async fn restored_gateway_does_not_resend_later_persona_message() {
    for state in ["planned", "sending"] {
        let (dir, store, scribe) = answered_as(None).await;
        let channel = Named::new(&[Fate::HangBefore]);
        let driver = start(&store, &channel);
        channel.hanging.notified().await;
        driver.kill().await;
        // As it is while the part waits for the channel, and while the bot is about to say it.
        let sql = "UPDATE acp_delivery_part SET state = ?1, persona_at = NULL";
        store.write("waits", move |tx| codec::run(tx, sql, [state]).map(drop)).await.unwrap();
        let file = dir.path().join("backup");
        backup(dir.path(), &file, false, &mut |_, _| {}).unwrap();
        let planned = "UPDATE acp_delivery_part SET state = 'planned'";
        store.write("goes", move |tx| codec::run(tx, planned, []).map(drop)).await.unwrap();
        start(&store, &channel).settle(&store, 1).await;
        drop(scribe);
        store.close().await;
        restore(dir.path(), &file, &mut |_, _| {}).unwrap();
        let store = Store::open(dir.path(), Durability::Full).unwrap();
        start(&store, &channel).settle(&store, 1).await;
        assert_eq!(channel.said(), [by("demo", "x")], "{state}");
    }
}
