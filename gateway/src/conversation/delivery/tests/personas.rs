//! Messages with personas have no nonce: a lost one is looked up until it cannot arrive any longer.

use super::*;
use acp_store::backup::backup;
use acp_store::restore::restore;
use acp_store::{Durability, params};

type PersonaMessage = (Option<String>, String);

fn persona_channel(faults: &[Fault]) -> Arc<FaultyChannel> {
    faulty_channel_with(faults, FaultyChannel { is_persona_channel: true, ..FaultyChannel::default() })
}

fn sent(channel: &FaultyChannel) -> Vec<PersonaMessage> {
    channel.received().into_iter().map(|message| (message.persona.clone(), message.tagged())).collect()
}

fn lookup_count(channel: &FaultyChannel) -> usize {
    channel.lookups.load(Ordering::SeqCst)
}

fn from_persona(name: &str, text: &str) -> PersonaMessage {
    (Some(name.to_owned()), text.to_owned())
}

async fn answered_as(label: Option<&str>) -> (tempfile::TempDir, Store, JournalWriter) {
    let (dir, store) = open();
    let session = acp_core::rows::SessionRow { label: label.map(str::to_owned), ..session_row(&key()) };
    spawn(&store, session, Some(binding_row(&key(), &conversation("c")))).await;
    let mut journal = JournalWriter::claim(&store, &key()).await;
    journal.turn("x").await;
    (dir, store, journal)
}

async fn age_parts(store: &Store, ms: u64) {
    let sql = "UPDATE acp_delivery_part SET persona_at = persona_at - ?1";
    store.write("later", move |tx| tx.run(sql, params![ms]).map(drop)).await.unwrap();
}

/// Answers have the agent's persona, notices have none. A label takes precedence over the agent's name.
#[tokio::test]
async fn answer_is_sent_under_agent_name() {
    for (label, name) in [(None, "demo"), (Some("my own"), "my own")] {
        let (_dir, store, mut journal) = answered_as(label).await;
        journal.close().await;
        let channel = persona_channel(&[]);
        drive(&store, &channel, "").settle(&store, 2).await;
        let farewell = (None, "The session is closed (enough). Start a new one with /acp spawn.".to_owned());
        assert_eq!(sent(&channel), [from_persona(name, "x"), farewell]);
    }
}

/// Also after a kill between request and response.
#[tokio::test]
async fn persona_message_with_lost_response_is_found_and_not_resent() {
    for fault in [Fault::LostAfter, Fault::HangAfter] {
        let (_dir, store, _journal) = answered_as(None).await;
        let channel = persona_channel(&[fault]);
        let mut driver = drive(&store, &channel, "");
        if fault == Fault::HangAfter {
            channel.hang_started.notified().await;
            driver.kill().await;
            driver = drive(&store, &channel, "");
        }
        driver.settle(&store, 1).await;
        assert_eq!(
            (sent(&channel), lookup_count(&channel)),
            (vec![from_persona("demo", "x")], 1),
            "{fault:?}"
        );
    }
}

/// Nothing is resent while the message may arrive; afterwards the bot sends the text with a nonce.
#[tokio::test]
async fn bot_sends_persona_message_only_after_it_cannot_arrive() {
    for (fault, arrives) in
        [(Fault::LostBefore, true), (Fault::LostBefore, false), (Fault::HangBefore, false)]
    {
        let (_dir, store, _journal) = answered_as(None).await;
        let channel = persona_channel(&[fault]);
        let driver = drive(&store, &channel, "");
        if fault == Fault::HangBefore {
            channel.hang_started.notified().await;
        } else {
            eventually("a lookup", || async { (lookup_count(&channel) > 0).then_some(()) }).await;
        }
        driver.kill().await;
        // Another process at the same time.
        let before = lookup_count(&channel);
        let driver = drive(&store, &channel, "");
        eventually("a lookup", || async { (lookup_count(&channel) > before).then_some(()) }).await;
        assert_eq!(sent(&channel), [], "{fault:?}");
        if arrives {
            let (persona, text) = (Some("demo".to_owned()), "x".to_owned());
            channel.received.lock().unwrap().push(Outgoing { persona, text, ..Outgoing::default() });
        }
        driver.stop().await;
        if !arrives {
            age_parts(&store, 61_000).await;
        }
        drive(&store, &channel, "").settle(&store, 1).await;
        let want = if arrives { from_persona("demo", "x") } else { (None, "x".to_owned()) };
        assert_eq!(sent(&channel), [want], "{fault:?} {arrives}");
    }
}

/// Backup from before the send, or from its beginning: the message sent later is found.
#[tokio::test]
async fn restored_gateway_does_not_resend_later_persona_message() {
    for state in ["planned", "sending"] {
        let (dir, store, journal) = answered_as(None).await;
        let channel = persona_channel(&[Fault::HangBefore]);
        let driver = drive(&store, &channel, "");
        channel.hang_started.notified().await;
        driver.kill().await;
        // State while the part waits for the channel, or while the bot is about to send.
        let sql = "UPDATE acp_delivery_part SET state = ?1, persona_at = NULL";
        store.write("waits", move |tx| tx.run(sql, params![state]).map(drop)).await.unwrap();
        let file = dir.path().join("backup");
        backup(dir.path(), &file, false, &mut |_| {}).unwrap();
        let planned = "UPDATE acp_delivery_part SET state = 'planned'";
        store.write("goes", move |tx| tx.run(planned, &[]).map(drop)).await.unwrap();
        drive(&store, &channel, "").settle(&store, 1).await;
        drop(journal);
        store.close().await;
        restore(dir.path(), &file, 1, &mut |_| {}).unwrap();
        let store = Store::open(dir.path(), Durability::Full).unwrap();
        drive(&store, &channel, "").settle(&store, 1).await;
        assert_eq!(sent(&channel), [from_persona("demo", "x")], "{state}");
    }
}
