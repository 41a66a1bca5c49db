//! Output follows from the journal and the recorded styles, not from the current configuration.

use super::*;
use acp_core::render::MessagePart;
use acp_core::rows::Verbosity;
use acp_shared::ids::BindingId;
use acp_store::render_settings;

pub(super) async fn outbox(store: &Store) -> Vec<(String, String)> {
    store
        .read("outbox", |db| {
            const SQL: &str = "SELECT nonce, text FROM acp_delivery_part ORDER BY session_seq, part_no";
            db.all(SQL, &[], |row| Ok((row.get("nonce")?, row.get("text")?)))
        })
        .await
        .unwrap()
}

pub(super) async fn rendered_parts(store: &Store, binding_id: BindingId) -> Vec<(String, String)> {
    let parts = store.read("worked_out", move |db| {
        let styles = render_settings::of(db, binding_id)?;
        let Some(due) = rows::due_of_binding(db, binding_id)? else { return Ok(Vec::new()) };
        let (mut cursor, mut parts) = (0, Vec::<MessagePart>::new());
        while cursor < due.end {
            let batch = rows::batch(db, &due.binding, &styles, cursor, due.end)?;
            parts.extend(worker::parts_of(&due.binding, &styles, &batch, u64::MAX));
            cursor = batch.through;
        }
        Ok(parts)
    });
    parts.await.unwrap().into_iter().map(|part| (part.nonce, part.text)).collect()
}

#[tokio::test]
async fn reload_changes_style_of_later_rows_only() {
    let (_dir, store, binding, mut journal) = bound().await;
    let id = binding.binding_id;
    let live = configured("[acp.stream]\nmax_output_chars = 10\n");
    let driver = Driver::start(
        &store,
        Channels::new([Arc::new(Console::new(store.clone())) as _]),
        &live,
        &Metrics::default(),
    );
    let text = "0123456789 and more";
    journal.turn(text).await;
    let texts = caught_up(&store, "c", 1).await;
    assert!(texts[0].starts_with("0123456789\n\n(Output truncated"), "{texts:?}");
    // After a reload, later rows use the new style.
    live.replace(loaded("[acp.stream]\nmax_chunk_chars = 50\n")).unwrap();
    // A running scan keeps the old style; the next one uses the new style.
    let is_new = |styles: acp_core::render::StyleHistory| {
        styles.last().is_some_and(|style| style.output_chars_max != 10)
    };
    let mut messages = 1;
    while !is_new(store.read("styles", move |db| render_settings::of(db, id)).await.unwrap()) {
        journal.turn("in between").await;
        messages += 1;
        caught_up(&store, "c", messages).await;
    }
    journal.turn(&"word ".repeat(20)).await;
    let texts = caught_up(&store, "c", messages + 2).await;
    assert_eq!(texts[messages..].concat(), "word ".repeat(20).trim_end());
    driver.stop().await;
    // Rows journaled without a driver use the style recorded then, even under other settings.
    journal.turn(&"more ".repeat(20)).await;
    let hidden = "[acp.stream]\ntag_visibility = { agent_message_chunk = false }\n";
    let driver = on_console(&store, hidden);
    let texts = caught_up(&store, "c", messages + 4).await;
    assert_eq!(texts[messages + 2..].concat(), "more ".repeat(20).trim_end());
    journal.turn("unseen").await;
    let texts = caught_up(&store, "c", messages + 5).await;
    assert_eq!(texts[messages + 4], "(Text is not shown here; `acp-gateway sessions history` shows it.)");
    driver.stop().await;
    assert_eq!(outbox(&store).await, rendered_parts(&store, id).await);
    let styles = store.read("styles", move |db| render_settings::of(db, id)).await.unwrap();
    assert_eq!(
        styles.last().unwrap().limit,
        Console::new(store.clone()).properties().limit.within_chars(1_800)
    );
}

/// A verbosity chosen while a message waits for its channel applies to rows journaled from then on.
#[tokio::test]
async fn chosen_verbosity_applies_at_once_while_delivery_is_busy() {
    let (_dir, store, binding, mut journal) = bound().await;
    let id = binding.binding_id;
    let call = || json!({"toolCallId": "1", "title": "Looks", "kind": "read", "status": "completed"});
    let channel = faulty_channel(&[Fault::HangBefore]);
    let driver = drive(&store, &channel, "");
    journal.event(EventKind::ToolCall, call()).await;
    journal.turn("Before").await;
    channel.hang_started.notified().await;
    let to = Some(Verbosity::Full);
    store.write("choose", move |tx| bindings::set_verbosity(tx, &binding, to)).await.unwrap();
    journal.start().await;
    journal.event(EventKind::ToolCall, call()).await;
    journal.append_text("After").await;
    journal.complete().await;
    channel.release_hang.notify_one();
    let parts = eventually("both", || async {
        let parts = outbox(&store).await;
        (parts.len() == 2).then_some(parts)
    })
    .await;
    driver.stop().await;
    assert!(parts[0].1.starts_with("Before") && !parts[0].1.contains("Looks"), "{parts:?}");
    assert!(parts[1].1.contains("Looks"), "{parts:?}");
    assert_eq!(parts, rendered_parts(&store, id).await);
}

/// Rows between two changes of the verbosity are shown as chosen then, although the task that delivers them knows the
/// verbosity of before and after.
#[tokio::test]
async fn verbosity_changed_back_while_delivery_is_busy_applies_to_rows_between() {
    let (_dir, store, binding, mut journal) = bound().await;
    let channel = faulty_channel(&[Fault::HangBefore]);
    let driver = drive(&store, &channel, "");
    journal.turn("Before").await;
    channel.hang_started.notified().await;
    let choose = async |to| {
        let binding = binding.clone();
        store.write("choose", move |tx| bindings::set_verbosity(tx, &binding, to)).await.unwrap();
    };
    choose(Some(Verbosity::None)).await;
    let notice = json!({"status": "new_conversation", "text": "The next prompt starts a new conversation."});
    journal.event(EventKind::Status, notice).await;
    choose(None).await;
    journal.turn("After").await;
    channel.release_hang.notify_one();
    let parts = eventually("both", || async {
        let parts = outbox(&store).await;
        parts.iter().any(|part| part.1.starts_with("After")).then_some(parts)
    })
    .await;
    driver.stop().await;
    assert_eq!(parts.len(), 2, "{parts:?}");
    assert_eq!(parts, rendered_parts(&store, binding.binding_id).await);
}

#[tokio::test]
async fn style_changes_without_rows_between_leave_one_record() {
    let (_dir, store, binding, mut journal) = bound().await;
    let id = binding.binding_id;
    let channel = Console::new(store.clone());
    let style = |text: &str| {
        let stream = configured(text).stream(&acp_core::policy::PolicyScope::default());
        acp_core::render::Style::new(channel.properties().limit, &stream)
    };
    let of = |n: u64| style(&format!("[acp.stream]\nmax_output_chars = {n}\n"));
    let record = async |style: acp_core::render::Style| {
        store.write("record", move |tx| render_settings::record(tx, id, &key(), &style)).await.unwrap()
    };
    record(of(1)).await;
    record(of(2)).await;
    let styles = record(of(3)).await;
    assert_eq!((styles.at(0), styles.at(1), styles.at(9)), (Some(&of(1)), Some(&of(3)), Some(&of(3))));
    assert_eq!(record(of(3)).await, styles);
    journal.turn("x").await;
    let styles = record(of(4)).await;
    assert_eq!((styles.at(3), styles.at(4)), (Some(&of(3)), Some(&of(4))));
}

/// Effects for the agent within a turn are part of its answer, those between turns messages of their own.
#[tokio::test]
async fn effects_between_turns_are_delivered() {
    let (_dir, store, binding, mut journal) = bound().await;
    let effect =
        |path: &str| json!({"effect": "write", "path": path, "outcome": "allowed", "reason": "mode"});
    journal.event(EventKind::HostRequest, effect("/w/early")).await;
    journal.start().await;
    journal.event(EventKind::HostRequest, effect("/w/during")).await;
    journal.append_text("Done.").await;
    journal.complete().await;
    journal.event(EventKind::HostRequest, effect("/w/late")).await;
    let driver = on_console(&store, "");
    let shown = caught_up(&store, "c", 3).await;
    driver.settle(&store, 3).await;
    let want = [
        "[host] write /w/early: allowed",
        "[host] write /w/during: allowed\n\nDone.",
        "[host] write /w/late: allowed",
    ];
    assert_eq!(shown, want);
    assert_eq!(outbox(&store).await, rendered_parts(&store, binding.binding_id).await);
}
