//! Files are generated from the journal, also after a kill. Refused files become messages.

use super::styles::{outbox, rendered_parts};
use super::*;
use crate::channel::OutgoingFile;
use std::collections::BTreeSet;

fn file_channel(faults: &[Fault]) -> Arc<FaultyChannel> {
    faulty_channel_with(faults, FaultyChannel { carries_files: true, ..FaultyChannel::default() })
}

fn sent(channel: &FaultyChannel) -> Vec<(String, Vec<OutgoingFile>)> {
    channel.received().into_iter().map(|message| (message.text, message.files)).collect()
}

const DIFF: &str = "--- /dev/null\n+++ b/a.txt\n@@ -0,0 +1 @@\n+one\n";

fn long_answer() -> String {
    "A line of a long answer.\n".repeat(2_000)
}

async fn undelivered_turn() -> (tempfile::TempDir, Store, acp_shared::ids::BindingId) {
    let (dir, store, binding, mut journal) = bound().await;
    journal.start().await;
    let diff = json!({"type": "diff", "path": "a.txt", "oldText": null, "newText": "one\n"});
    let call = json!({"toolCallId": "1", "title": "Write", "kind": "edit", "status": "completed", "content": [diff]});
    journal.event(EventKind::ToolCall, call).await;
    journal.append_text(&long_answer()).await;
    journal.complete().await;
    (dir, store, binding.binding_id)
}

#[tokio::test]
async fn file_is_delivered_once_and_whole_across_crashes() {
    for fault in [Fault::None, Fault::HangBefore, Fault::HangAfter] {
        let (_dir, store, id) = undelivered_turn().await;
        let channel = file_channel(&[fault]);
        if fault != Fault::None {
            let driver = drive(&store, &channel, "");
            channel.hang_started.notified().await;
            driver.kill().await;
        }
        drive(&store, &channel, "").settle(&store, 1).await;
        let shown = sent(&channel);
        let [(text, files)] = shown.as_slice() else { panic!("{shown:?}") };
        assert!(
            text.starts_with("A line of a long answer.\n") && text.contains("answer.md has the whole answer"),
            "{text}"
        );
        let content =
            |file: &OutgoingFile| (file.name.clone(), String::from_utf8(file.bytes.to_vec()).unwrap());
        let want = [
            ("answer.md".to_owned(), format!("{}\n\n[1 tool call (1 edit)]", long_answer().trim_end())),
            ("turn.diff".to_owned(), DIFF.to_owned()),
        ];
        assert_eq!(files.iter().map(content).collect::<Vec<_>>(), want);
        assert_eq!(outbox(&store).await, rendered_parts(&store, id).await);
    }
}

/// Refused files are delivered as messages: after error 40005 or with a missing permission.
#[tokio::test]
async fn refused_file_is_delivered_as_messages() {
    let (_dir, store, id) = undelivered_turn().await;
    let channel = file_channel(&[]);
    channel.refuses_files.store(true, Ordering::SeqCst);
    let driver = drive(&store, &channel, "");
    eventually("the whole answer", || async {
        let parts = states(&store).await;
        (parts.len() > 1 && parts[1..].iter().all(|state| state == "sent")).then_some(())
    })
    .await;
    // Later messages have files again.
    channel.refuses_files.store(false, Ordering::SeqCst);
    let count = sent(&channel).len();
    JournalWriter::claim(&store, &key()).await.turn(&long_answer()).await;
    eventually("the next answer", || async { (sent(&channel).len() > count).then_some(()) }).await;
    driver.stop().await;
    let shown = sent(&channel);
    let (last, before) = shown.split_last().unwrap();
    assert_eq!((last.1.len(), before.iter().filter(|(_, files)| !files.is_empty()).count()), (1, 0));
    let text: String = before.iter().map(|(text, _)| text.as_str()).collect();
    let start = long_answer();
    assert!(
        text.starts_with(&start[..23_000]),
        "the messages are within their size limit: {} bytes",
        text.len()
    );
    assert!(text.contains("Output truncated") && text.contains("The changes of this turn are not attached"));
    assert_eq!(states(&store).await[0], "rejected");
    assert_eq!(outbox(&store).await, rendered_parts(&store, id).await);
}

async fn run_pass(store: &Store, channel: &Arc<FaultyChannel>, id: acp_shared::ids::BindingId) {
    run_pass_with(store, channel, id, Metrics::default()).await;
}

async fn run_pass_with(
    store: &Store,
    channel: &Arc<FaultyChannel>,
    id: acp_shared::ids::BindingId,
    metrics: Metrics,
) {
    let due = store.read("due", move |db| rows::due_of_binding(db, id)).await.unwrap().unwrap();
    let pass = DeliveryWorker { metrics, retry_first_ms: 0, ..worker(store, channel) };
    // The pass ends.
    let exit = tokio::time::timeout(Duration::from_secs(30), pass.run(due, None)).await.unwrap();
    assert!(matches!(exit, WorkerExit::At(_)), "{exit:?}");
}

/// A temporary refusal loses no file; repeated refusals do not delay the answer forever.
#[tokio::test]
async fn temporarily_refused_file_is_retried_a_limited_time() {
    for (times, again, files) in [(0, true, 2), (7, true, 2), (8, true, 0), (1, false, 0)] {
        let (_dir, store, id) = undelivered_turn().await;
        let channel = file_channel(&vec![Fault::RefuseFiles { again }; times]);
        run_pass(&store, &channel, id).await;
        let shown = sent(&channel);
        assert_eq!(shown[0].1.len(), files, "{times} {again}");
        assert_eq!(shown.len() > 1, files == 0, "{times} {again}");
        assert_eq!(outbox(&store).await, rendered_parts(&store, id).await);
    }
}

#[tokio::test]
async fn file_refusal_without_files_rejects_the_message() {
    for (again, want) in [(true, vec!["sent"]), (false, vec!["rejected", "sent"])] {
        let (_dir, store, due) = answered("OK").await;
        let channel = file_channel(&[Fault::RefuseFiles { again }]);
        run_pass(&store, &channel, due.binding.binding_id).await;
        assert_eq!(states(&store).await, want, "{again}");
        let last = sent(&channel).pop().unwrap().0;
        assert_eq!(last.starts_with("A message is missing here"), !again, "{last}");
    }
}

#[tokio::test]
async fn part_with_unavailable_file_is_not_sent() {
    const OTHER: &str = "UPDATE acp_delivery_part SET files_json = json_set(files_json, '$[0].bytes', 7)";
    const NONE: &str = "UPDATE acp_binding_style SET style_json = json_set(style_json, '$.files', null)";
    for (case, damage, state, want) in [
        ("another size", OTHER, "planned", "A line of a long answer."),
        ("another size, possibly sent", OTHER, "sending", "It is unknown whether a message arrived here"),
        (
            "no files",
            NONE,
            "planned",
            "A message is missing here because its file can no longer be generated",
        ),
    ] {
        let (_dir, store, id) = undelivered_turn().await;
        let channel = file_channel(&[Fault::HangBefore]);
        let driver = drive(&store, &channel, "");
        channel.hang_started.notified().await;
        driver.kill().await;
        let corrupt = move |tx: &acp_store::Tx<'_>| {
            tx.sqlite().unwrap().execute_batch(damage)?;
            tx.sqlite().unwrap().execute("UPDATE acp_delivery_part SET state = ?1", [state])?;
            Ok(())
        };
        store.write("corrupt", corrupt).await.unwrap();
        run_pass(&store, &channel, id).await;
        let shown = sent(&channel);
        assert!(shown.iter().all(|(_, files)| files.is_empty()), "{case}");
        assert!(shown[0].0.starts_with(want), "{case}: {}", shown[0].0);
        assert!(shown.iter().all(|(text, _)| !text.contains("answer.md has the whole")), "{case}");
        let first = states(&store).await.remove(0);
        assert_eq!(first == "rejected", state == "planned", "{case}: {first}");
        let text: String = shown.into_iter().map(|(text, _)| text).collect();
        let is_whole = text.contains(&long_answer()[..20_000]);
        assert!(damage == NONE || is_whole == (state == "planned"), "{case}");
    }
}

#[tokio::test]
async fn conversation_with_unreadable_rows_is_blocked_and_reported() {
    let (_dir, store, id) = undelivered_turn().await;
    let channel = file_channel(&[]);
    let corrupt = |tx: &acp_store::Tx<'_>| {
        const SQL: &str = "INSERT INTO acp_binding_style (binding_key, from_session_seq, style_json, created_at) \
            SELECT binding_key, 0, '{}', 0 FROM acp_bindings";
        Ok(tx.sqlite().unwrap().execute_batch(SQL)?)
    };
    store.write("corrupt", corrupt).await.unwrap();
    let metrics = Metrics::default();
    let channels = Channels::new([Arc::clone(&channel) as Arc<dyn ChannelAdapter>]);
    let driver = Driver::start(&store, channels, &configured(""), &metrics);
    let named = eventually("conversation reported", || async {
        Some(metrics.blocked_items().listed()).filter(|listed| !listed.is_empty())
    });
    let named = named.await;
    assert!(
        named[0].starts_with("conversation console/default/c of agent:demo:acp:1: style_json"),
        "{named:?}"
    );
    driver.stop().await;
    let repair =
        |tx: &acp_store::Tx<'_>| Ok(tx.sqlite().unwrap().execute_batch("DELETE FROM acp_binding_style")?);
    store.write("repair", repair).await.unwrap();
    run_pass_with(&store, &channel, id, metrics.clone()).await;
    assert_eq!((sent(&channel).len(), metrics.blocked_items().listed()), (1, Vec::new()));
}

/// H12: equal texts in a conversation get tags, under any binding, and keep them.
#[tokio::test]
async fn equal_texts_in_conversation_are_tagged() {
    let (_dir, store, here, mut journal) = bound().await;
    let other = SessionKey::parse("agent:demo:acp:2").unwrap();
    spawn(&store, session_row(&other), Some(binding_row(&other, &conversation("d")))).await;
    for _ in 0..3 {
        journal.turn("OK").await;
    }
    JournalWriter::claim(&store, &other).await.turn("OK").await;
    let channel = file_channel(&[]);
    drive(&store, &channel, "").settle(&store, 4).await;
    let shown = channel.received();
    assert!(shown.iter().all(|message| message.text == "OK"));
    let tags: BTreeSet<String> = shown.iter().filter_map(|message| message.tag.clone()).collect();
    assert_eq!((tags.len(), shown.iter().filter(|message| message.tag.is_none()).count()), (2, 2));
    // Tags also distinguish messages of another binding of the conversation.
    let id = here.binding_id;
    let next = BindingRow { binding_id: acp_shared::ids::BindingId::mint(), ..here };
    let bind = move |tx: &acp_store::Tx<'_>| {
        bindings::end(tx, id, "unbound")?;
        bindings::bind(tx, &next)
    };
    store.write("rebind", bind).await.unwrap();
    JournalWriter::claim(&store, &key()).await.turn("OK").await;
    drive(&store, &channel, "").settle(&store, 5).await;
    let texts = channel.received().iter().map(Outgoing::tagged).collect::<BTreeSet<_>>();
    assert_eq!(texts.len(), 4, "one of the five messages is in another conversation: {texts:?}");
}
