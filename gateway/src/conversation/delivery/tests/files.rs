//! Files go with their messages, made anew from the journal, also after a kill; where they are refused, all of it comes in
//! messages.

use super::styles::{outbox, worked_out};
use super::*;
use crate::channel::OutgoingFile;
use std::collections::BTreeSet;

fn shelf(faults: &[Fault]) -> Arc<Faulty> {
    faulty_as(faults, Faulty { carries_files: true, ..Faulty::default() })
}

fn messages(shelf: &Faulty) -> Vec<(String, Vec<OutgoingFile>)> {
    shelf.taken().into_iter().map(|message| (message.text, message.files)).collect()
}

const DIFF: &str = "--- /dev/null\n+++ b/a.txt\n@@ -0,0 +1 @@\n+one\n";

fn answer() -> String {
    "A line of a long answer.\n".repeat(2_000)
}

async fn written() -> (tempfile::TempDir, Store, acp_shared::ids::BindingId) {
    let (dir, store, binding, mut scribe) = bound().await;
    scribe.start().await;
    let diff = json!({"type": "diff", "path": "a.txt", "oldText": null, "newText": "one\n"});
    let call = json!({"toolCallId": "1", "title": "Write", "kind": "edit", "status": "completed", "content": [diff]});
    scribe.event(EventKind::ToolCall, call).await;
    scribe.say(&answer()).await;
    scribe.done().await;
    (dir, store, binding.binding_id)
}

#[tokio::test]
async fn file_is_delivered_once_and_whole_across_crashes() {
    for fault in [Fault::None, Fault::HangBefore, Fault::HangAfter] {
        let (_dir, store, id) = written().await;
        let shelf = shelf(&[fault]);
        if fault != Fault::None {
            let driver = drive(&store, &shelf, "");
            shelf.hanging.notified().await;
            driver.kill().await;
        }
        drive(&store, &shelf, "").settle(&store, 1).await;
        let shown = messages(&shelf);
        let [(text, files)] = shown.as_slice() else { panic!("{shown:?}") };
        assert!(
            text.starts_with("A line of a long answer.\n") && text.contains("answer.md has the whole answer"),
            "{text}"
        );
        let of = |file: &OutgoingFile| (file.name.clone(), String::from_utf8(file.bytes.to_vec()).unwrap());
        let want = [
            ("answer.md".to_owned(), format!("{}\n\n[1 tool call (1 edit)]", answer().trim_end())),
            ("turn.diff".to_owned(), DIFF.to_owned()),
        ];
        assert_eq!(files.iter().map(of).collect::<Vec<_>>(), want);
        assert_eq!(outbox(&store).await, worked_out(&store, id).await);
    }
}

/// Nothing is lost where files are not taken: 40005, or a permission that is missing.
#[tokio::test]
async fn refused_file_is_delivered_as_messages() {
    let (_dir, store, id) = written().await;
    let shelf = shelf(&[]);
    shelf.refuses_files.store(true, Ordering::SeqCst);
    let driver = drive(&store, &shelf, "");
    eventually("the whole answer", || async {
        let parts = states(&store).await;
        (parts.len() > 1 && parts[1..].iter().all(|state| state == "sent")).then_some(())
    })
    .await;
    // What comes later has files again, as far as anybody knows.
    shelf.refuses_files.store(false, Ordering::SeqCst);
    let count = messages(&shelf).len();
    Scribe::claim(&store, &key()).await.turn(&answer()).await;
    eventually("the next answer", || async { (messages(&shelf).len() > count).then_some(()) }).await;
    driver.stop().await;
    let shown = messages(&shelf);
    let (last, before) = shown.split_last().unwrap();
    assert_eq!((last.1.len(), before.iter().filter(|(_, files)| !files.is_empty()).count()), (1, 0));
    let told: String = before.iter().map(|(text, _)| text.as_str()).collect();
    let start = answer();
    assert!(
        told.starts_with(&start[..23_000]),
        "the messages are within their size limit: {} bytes",
        told.len()
    );
    assert!(told.contains("Output truncated") && told.contains("The changes of this turn are not attached"));
    assert_eq!(states(&store).await[0], "rejected");
    assert_eq!(outbox(&store).await, worked_out(&store, id).await);
}

/// A go at the binding of the only session there is, with pauses that take no time.
async fn go(store: &Store, shelf: &Arc<Faulty>, id: acp_shared::ids::BindingId) {
    go_with(store, shelf, id, Metrics::default()).await;
}

async fn go_with(store: &Store, shelf: &Arc<Faulty>, id: acp_shared::ids::BindingId, metrics: Metrics) {
    let due = store.read("due", move |db| rows::due_of_binding(db, id)).await.unwrap().unwrap();
    let pass = DeliveryWorker { metrics, retry_first_ms: 0, ..worker(store, shelf) };
    // It comes to an end.
    let left = tokio::time::timeout(Duration::from_secs(30), pass.run(due, None)).await.unwrap();
    assert!(matches!(left, WorkerExit::At(_)), "{left:?}");
}

/// A refusal for a moment costs no file; one that goes on and on does not hold the answer up for ever.
#[tokio::test]
async fn temporarily_refused_file_is_retried_a_limited_time() {
    for (times, again, files) in [(0, true, 2), (7, true, 2), (8, true, 0), (1, false, 0)] {
        let (_dir, store, id) = written().await;
        let shelf = shelf(&vec![Fault::RefuseFiles { again }; times]);
        go(&store, &shelf, id).await;
        let shown = messages(&shelf);
        assert_eq!(shown[0].1.len(), files, "{times} {again}");
        assert_eq!(shown.len() > 1, files == 0, "{times} {again}");
        assert_eq!(outbox(&store).await, worked_out(&store, id).await);
    }
}

/// Whatever a channel calls it: where there are no files, the message was refused.
#[tokio::test]
async fn file_refusal_without_files_rejects_the_message() {
    for (again, want) in [(true, vec!["sent"]), (false, vec!["rejected", "sent"])] {
        let (_dir, store, due) = answered("OK").await;
        let shelf = shelf(&[Fault::RefuseFiles { again }]);
        go(&store, &shelf, due.binding.binding_id).await;
        assert_eq!(states(&store).await, want, "{again}");
        let last = messages(&shelf).pop().unwrap().0;
        assert_eq!(last.starts_with("A message is missing here"), !again, "{last}");
    }
}

/// A message says what is in its file: without that one it is not sent.
#[tokio::test]
async fn part_with_unavailable_file_is_not_sent() {
    const OTHER: &str = "UPDATE acp_delivery_part SET files_json = json_set(files_json, '$[0].bytes', 7)";
    const NONE: &str = "UPDATE acp_binding_style SET style_json = json_set(style_json, '$.files', null)";
    for (what, damage, state, want) in [
        ("another size", OTHER, "planned", "A line of a long answer."),
        (
            "another size, and it may be there",
            OTHER,
            "sending",
            "It is unknown whether a message arrived here",
        ),
        (
            "none at all",
            NONE,
            "planned",
            "A message is missing here because its file can no longer be generated",
        ),
    ] {
        let (_dir, store, id) = written().await;
        let shelf = shelf(&[Fault::HangBefore]);
        let driver = drive(&store, &shelf, "");
        shelf.hanging.notified().await;
        driver.kill().await;
        let harm = move |tx: &acp_store::Tx<'_>| {
            tx.sqlite().execute_batch(damage)?;
            tx.sqlite().execute("UPDATE acp_delivery_part SET state = ?1", [state])?;
            Ok(())
        };
        store.write("harm", harm).await.unwrap();
        go(&store, &shelf, id).await;
        let shown = messages(&shelf);
        assert!(shown.iter().all(|(_, files)| files.is_empty()), "{what}");
        assert!(shown[0].0.starts_with(want), "{what}: {}", shown[0].0);
        assert!(shown.iter().all(|(text, _)| !text.contains("answer.md has the whole")), "{what}");
        let first = states(&store).await.remove(0);
        assert_eq!(first == "rejected", state == "planned", "{what}: {first}");
        let told: String = shown.into_iter().map(|(text, _)| text).collect();
        let is_whole = told.contains(&answer()[..20_000]);
        assert!(damage == NONE || is_whole == (state == "planned"), "{what}");
    }
}

/// What cannot be read does not get better by trying: the conversation is named, and rests.
#[tokio::test]
async fn conversation_with_unreadable_rows_is_blocked_and_reported() {
    let (_dir, store, id) = written().await;
    let shelf = shelf(&[]);
    let harm = |tx: &acp_store::Tx<'_>| {
        const SQL: &str = "INSERT INTO acp_binding_style (binding_key, from_session_seq, style_json, created_at) \
            SELECT binding_key, 0, '{}', 0 FROM acp_bindings";
        Ok(tx.sqlite().execute_batch(SQL)?)
    };
    store.write("harm", harm).await.unwrap();
    let metrics = Metrics::default();
    let channels = Channels::new([Arc::clone(&shelf) as Arc<dyn ChannelAdapter>]);
    let driver = Driver::start(&store, channels, &configured(""), &metrics);
    let named = eventually("it to be named", || async {
        Some(metrics.blocked_items().listed()).filter(|listed| !listed.is_empty())
    });
    let named = named.await;
    assert!(
        named[0].starts_with("conversation console/default/c of agent:demo:acp:1: style_json"),
        "{named:?}"
    );
    driver.stop().await;
    let mend = |tx: &acp_store::Tx<'_>| Ok(tx.sqlite().execute_batch("DELETE FROM acp_binding_style")?);
    store.write("mend", mend).await.unwrap();
    go_with(&store, &shelf, id, metrics.clone()).await;
    assert_eq!((messages(&shelf).len(), metrics.blocked_items().listed()), (1, Vec::new()));
}

/// H12: what another part of the conversation says is said with a tag, under whichever binding; and what was chosen stays.
#[tokio::test]
async fn equal_texts_in_conversation_are_tagged() {
    let (_dir, store, here, mut scribe) = bound().await;
    let other = SessionKey::parse("agent:demo:acp:2").unwrap();
    spawn(&store, session_row(&other), Some(binding_row(&other, &conversation("d")))).await;
    for _ in 0..3 {
        scribe.turn("OK").await;
    }
    Scribe::claim(&store, &other).await.turn("OK").await;
    let shelf = shelf(&[]);
    drive(&store, &shelf, "").settle(&store, 4).await;
    let shown = shelf.taken();
    assert!(shown.iter().all(|message| message.text == "OK"));
    let tags: BTreeSet<String> = shown.iter().filter_map(|message| message.tag.clone()).collect();
    assert_eq!((tags.len(), shown.iter().filter(|message| message.tag.is_none()).count()), (2, 2));
    // Under another binding of the same conversation it is told apart too.
    let id = here.binding_id;
    let next = BindingRow { binding_id: acp_shared::ids::BindingId::mint(), ..here };
    let bind = move |tx: &acp_store::Tx<'_>| {
        bindings::end(tx, id, "unbound")?;
        bindings::bind(tx, &next)
    };
    store.write("rebind", bind).await.unwrap();
    Scribe::claim(&store, &key()).await.turn("OK").await;
    drive(&store, &shelf, "").settle(&store, 5).await;
    let texts = shelf.taken().iter().map(Outgoing::tagged).collect::<BTreeSet<_>>();
    assert_eq!(texts.len(), 4, "one of the five is of another conversation: {texts:?}");
}
