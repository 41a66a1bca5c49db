//! What agents say under their own names: such a message has no nonce, so that it is looked for until it cannot arrive.

use super::*;
use acp_store::backup::backup;
use acp_store::restore::restore;
use acp_store::{Durability, params};

/// Who said what: a name, or nobody but the channel.
type Said = (Option<String>, String);

fn named(faults: &[Fault]) -> Arc<Faulty> {
    faulty_as(faults, Faulty { has_names: true, ..Faulty::default() })
}

fn said(channel: &Faulty) -> Vec<Said> {
    channel.taken().into_iter().map(|message| (message.persona.clone(), message.tagged())).collect()
}

fn looks(channel: &Faulty) -> usize {
    channel.looks.load(Ordering::SeqCst)
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

/// As if so much time had gone by since the parts were given to the channel.
async fn later(store: &Store, ms: u64) {
    let sql = "UPDATE acp_delivery_part SET persona_at = persona_at - ?1";
    store.write("later", move |tx| tx.run(sql, params![ms]).map(drop)).await.unwrap();
}

/// The text of an answer is the agent's; what the gateway has to say is not. A label goes before the agent's name.
#[tokio::test]
async fn answer_is_sent_under_agent_name() {
    for (label, name) in [(None, "demo"), (Some("my own"), "my own")] {
        let (_dir, store, mut scribe) = answered_as(label).await;
        scribe.close().await;
        let channel = named(&[]);
        drive(&store, &channel, "").settle(&store, 2).await;
        let farewell = (None, "The session is closed (enough). Start a new one with /acp spawn.".to_owned());
        assert_eq!(said(&channel), [by(name, "x"), farewell]);
    }
}

/// Also after a kill between the request and the answer.
#[tokio::test]
async fn persona_message_with_lost_response_is_found_and_not_resent() {
    for fault in [Fault::LostAfter, Fault::HangAfter] {
        let (_dir, store, _scribe) = answered_as(None).await;
        let channel = named(&[fault]);
        let mut driver = drive(&store, &channel, "");
        if fault == Fault::HangAfter {
            channel.hanging.notified().await;
            driver.kill().await;
            driver = drive(&store, &channel, "");
        }
        driver.settle(&store, 1).await;
        assert_eq!((said(&channel), looks(&channel)), (vec![by("demo", "x")], 1), "{fault:?}");
    }
}

/// While it may still arrive nothing says it again; then the channel says it, with its nonce.
#[tokio::test]
async fn bot_sends_persona_message_only_after_it_cannot_arrive() {
    for (fault, arrives) in
        [(Fault::LostBefore, true), (Fault::LostBefore, false), (Fault::HangBefore, false)]
    {
        let (_dir, store, _scribe) = answered_as(None).await;
        let channel = named(&[fault]);
        let driver = drive(&store, &channel, "");
        if fault == Fault::HangBefore {
            channel.hanging.notified().await;
        } else {
            eventually("a lookup", || async { (looks(&channel) > 0).then_some(()) }).await;
        }
        driver.kill().await;
        // Another process, of the same moment.
        let before = looks(&channel);
        let driver = drive(&store, &channel, "");
        eventually("a lookup", || async { (looks(&channel) > before).then_some(()) }).await;
        assert_eq!(said(&channel), [], "{fault:?}");
        if arrives {
            let (persona, text) = (Some("demo".to_owned()), "x".to_owned());
            channel.taken.lock().unwrap().push(Outgoing { persona, text, ..Outgoing::default() });
        }
        driver.stop().await;
        if !arrives {
            later(&store, 61_000).await;
        }
        drive(&store, &channel, "").settle(&store, 1).await;
        let want = if arrives { by("demo", "x") } else { (None, "x".to_owned()) };
        assert_eq!(said(&channel), [want], "{fault:?} {arrives}");
    }
}

/// A backup from before it was said, or from when the bot was about to say it: what went under a name since is found.
#[tokio::test]
async fn restored_gateway_does_not_resend_later_persona_message() {
    for state in ["planned", "sending"] {
        let (dir, store, scribe) = answered_as(None).await;
        let channel = named(&[Fault::HangBefore]);
        let driver = drive(&store, &channel, "");
        channel.hanging.notified().await;
        driver.kill().await;
        // As it is while the part waits for the channel, and while the bot is about to say it.
        let sql = "UPDATE acp_delivery_part SET state = ?1, persona_at = NULL";
        store.write("waits", move |tx| tx.run(sql, params![state]).map(drop)).await.unwrap();
        let file = dir.path().join("backup");
        backup(dir.path(), &file, false, &mut |_, _| {}).unwrap();
        let planned = "UPDATE acp_delivery_part SET state = 'planned'";
        store.write("goes", move |tx| tx.run(planned, &[]).map(drop)).await.unwrap();
        drive(&store, &channel, "").settle(&store, 1).await;
        drop(scribe);
        store.close().await;
        restore(dir.path(), &file, 1, &mut |_, _| {}).unwrap();
        let store = Store::open(dir.path(), Durability::Full).unwrap();
        drive(&store, &channel, "").settle(&store, 1).await;
        assert_eq!(said(&channel), [by("demo", "x")], "{state}");
    }
}
