//! What is heard when a connection is exchanged for another one.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
use super::*;
use crate::channel::discord::{Discord, Settings, door};
use crate::channel::{
    Amended, Change, Changed, ConversationRef, Inbound, Offered, Reply, Said, Suggest, Suggestion,
};
use acp_discord::core::base::Base;
use acp_discord::core::closes;
use acp_discord::core::event::{Member, User};
use acp_discord::session::pipe;
use acp_shared::redact::Secret;
use std::sync::Mutex;

const ANN: Snowflake = Snowflake(7);

/// Takes everything down.
#[derive(Default)]
struct Desk(Mutex<Vec<String>>);

impl Desk {
    fn note(&self, what: String) {
        self.0.lock().unwrap().push(what);
    }

    fn notes(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

async fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let done = tokio::time::timeout(Duration::from_secs(40), waiting).await;
    assert!(done.is_ok(), "{what} did not happen in time");
}

fn ready<'a, T: Send + 'a>(value: T) -> Reply<'a, T> {
    Box::pin(std::future::ready(value))
}

impl Inbox for Desk {
    fn offer(&self, message: Inbound) -> Reply<'_, Offered> {
        self.note(message.text);
        ready(Offered::Taken(Said::default()))
    }

    fn edited(&self, _: ConversationRef, _: String, text: String) -> Reply<'_, Amended> {
        self.note(text);
        ready(Amended::Done)
    }

    fn deleted(&self, _: ConversationRef, _: String) -> Reply<'_, Amended> {
        ready(Amended::Done)
    }

    fn changed(&self, _: ConversationRef, _: Change) -> Reply<'_, Changed> {
        ready(Changed::Nothing)
    }

    fn bound(&self, _: String, _: String) -> Reply<'_, Option<Vec<Place>>> {
        ready(Some(Vec::new()))
    }

    fn caught_up(&self, _: ConversationRef, _: String) -> Reply<'_, bool> {
        ready(true)
    }

    fn suggest(&self, _: Suggest, _: ConversationRef, _: String, _: String) -> Reply<'_, Vec<Suggestion>> {
        ready(Vec::new())
    }
}

fn settings(token: &str) -> Settings {
    let allowed = door::People { users: [ANN].into(), ..door::People::default() };
    Settings {
        token: Secret::new(token.to_owned()),
        // Nobody is there.
        base: Base::parse("http://127.0.0.1:1").unwrap(),
        door: door::Door { allowed, ..door::Door::default() },
        configured: BTreeSet::new(),
    }
}

fn said(id: u64, text: &str) -> Event {
    let user = User { id: ANN, name: "ann".to_owned(), shown: None, bot: false };
    Event::Message(Box::new(Message {
        id: Snowflake(id),
        channel: Snowflake(3),
        guild: Some(Snowflake(5)),
        author: Member { user, roles: Vec::new(), permissions: None },
        webhook: None,
        application: None,
        kind: 0,
        text: text.to_owned(),
        attachments: Vec::new(),
        mentions: Vec::new(),
        mention_roles: Vec::new(),
        reference: None,
        nonce: None,
        flags: 0,
    }))
}

/// What waits in the queue of a connection is told by nobody again, where the conversation is bound to nothing: it is
/// taken before another connection takes its place, in its order.
#[tokio::test]
async fn d07_what_an_old_connection_brought_is_taken_before_the_next_one_begins() {
    for has_failed in [false, true] {
        let discord = Discord::new("main".to_owned(), settings("old")).unwrap();
        let inner = Arc::clone(&discord.inner);
        inner.known.is_me(Snowflake(1), Snowflake(2));
        inner.known.is_at(Snowflake(3), None, Some(Snowflake(5)));
        let (sink, events) = pipe(8);
        let line = Line::of(Secret::new("old".to_owned()), events);
        let texts = ["/acp status", "/acp help", "/agents"];
        for (id, text) in (10..).zip(texts) {
            sink.put(said(id, text));
        }
        if has_failed {
            sink.put(Event::Failed(closes::failure(4004).unwrap()));
        }
        drop(sink);
        discord.renew(settings("new")).unwrap();
        let desk = Arc::new(Desk::default());
        let ear = Ear::new(Arc::clone(&inner), Arc::clone(&desk) as Arc<dyn Inbox>);
        let hearing = tokio::spawn(ear.hear(line));
        eventually("everything is taken", || desk.notes().len() >= texts.len()).await;
        assert_eq!(desk.notes(), texts, "{has_failed}");
        eventually("the next one begins", || !inner.pulse.has_failed()).await;
        hearing.abort();
    }
}
