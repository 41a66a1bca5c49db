//! What is told follows from the journal and from the styles that are recorded, not from today's configuration.

use super::*;
use acp_core::render::MessagePart;
use acp_core::rows::Verbosity;
use acp_shared::ids::BindingId;
use acp_store::render_settings;

/// Nonce and text of everything that is in the outbox.
pub(super) async fn outbox(store: &Store) -> Vec<(String, String)> {
    store
        .read("outbox", |db| {
            const SQL: &str = "SELECT nonce, text FROM acp_delivery_part ORDER BY session_seq, part_no";
            acp_store::codec::all(db, SQL, [], |row| Ok((row.get("nonce")?, row.get("text")?)))
        })
        .await
        .unwrap()
}

/// The same, worked out from the journal by somebody else.
pub(super) async fn worked_out(store: &Store, binding_id: BindingId) -> Vec<(String, String)> {
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
    let (_dir, store, binding, mut scribe) = bound().await;
    let id = binding.binding_id;
    let live = configured("[acp.stream]\nmax_output_chars = 10\n");
    let driver = Driver::start(
        &store,
        Channels::new([Arc::new(Console::new(store.clone())) as _]),
        &live,
        &Metrics::default(),
    );
    let text = "0123456789 and more";
    scribe.turn(text).await;
    let told = caught_up(&store, "c", 1).await;
    assert!(told[0].starts_with("0123456789\n\n(Output truncated"), "{told:?}");
    // Read anew while it runs: what comes from now on is told in the other way.
    live.replace(loaded("[acp.stream]\nmax_chunk_chars = 50\n")).unwrap();
    // A look that was under way goes on as it began; the next one takes the change on.
    let is_new = |styles: acp_core::render::StyleHistory| {
        styles.last().is_some_and(|style| style.output_chars_max != 10)
    };
    let mut messages = 1;
    while !is_new(store.read("styles", move |db| render_settings::of(db, id)).await.unwrap()) {
        scribe.turn("in between").await;
        messages += 1;
        caught_up(&store, "c", messages).await;
    }
    scribe.turn(&"word ".repeat(20)).await;
    let told = caught_up(&store, "c", messages + 2).await;
    assert_eq!(told[messages..].concat(), "word ".repeat(20).trim_end());
    driver.stop().await;
    // Journaled while nobody delivers, and delivered by a gateway that was started with other settings: it is told
    // in the way that held when it was journaled, as far as anybody had said.
    scribe.turn(&"more ".repeat(20)).await;
    let hidden = "[acp.stream]\ntag_visibility = { agent_message_chunk = false }\n";
    let driver = on_console(&store, hidden);
    let told = caught_up(&store, "c", messages + 4).await;
    assert_eq!(told[messages + 2..].concat(), "more ".repeat(20).trim_end());
    scribe.turn("unseen").await;
    let told = caught_up(&store, "c", messages + 5).await;
    assert_eq!(told[messages + 4], "(Text is not shown here; `acp-gateway sessions history` shows it.)");
    driver.stop().await;
    assert_eq!(outbox(&store).await, worked_out(&store, id).await);
    let styles = store.read("styles", move |db| render_settings::of(db, id)).await.unwrap();
    assert_eq!(
        styles.last().unwrap().limit,
        Console::new(store.clone()).properties().limit.within_chars(1_800)
    );
}

/// Somebody chooses how much is told while a message waits for its channel: what is journaled from then on is told so.
#[tokio::test]
async fn chosen_verbosity_applies_at_once_while_delivery_is_busy() {
    let (_dir, store, binding, mut scribe) = bound().await;
    let id = binding.binding_id;
    let call = || json!({"toolCallId": "1", "title": "Looks", "kind": "read", "status": "completed"});
    let channel = faulty(&[Fault::HangBefore]);
    let driver = drive(&store, &channel, "");
    scribe.event(EventKind::ToolCall, call()).await;
    scribe.turn("Before").await;
    channel.hanging.notified().await;
    let to = Some(Verbosity::Full);
    store.write("choose", move |tx| bindings::set_verbosity(tx, &binding, to)).await.unwrap();
    scribe.start().await;
    scribe.event(EventKind::ToolCall, call()).await;
    scribe.say("After").await;
    scribe.done().await;
    channel.freed.notify_one();
    let parts = eventually("both", || async {
        let parts = outbox(&store).await;
        (parts.len() == 2).then_some(parts)
    })
    .await;
    driver.stop().await;
    assert!(parts[0].1.starts_with("Before") && !parts[0].1.contains("Looks"), "{parts:?}");
    assert!(parts[1].1.contains("Looks"), "{parts:?}");
    assert_eq!(parts, worked_out(&store, id).await);
}

#[tokio::test]
async fn style_changes_without_rows_between_leave_one_record() {
    let (_dir, store, binding, mut scribe) = bound().await;
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
    scribe.turn("x").await;
    let styles = record(of(4)).await;
    assert_eq!((styles.at(3), styles.at(4)), (Some(&of(3)), Some(&of(4))));
}

/// Effects for the agent within a turn are part of its answer, those between turns messages of their own.
#[tokio::test]
async fn effects_between_turns_are_delivered() {
    let (_dir, store, binding, mut scribe) = bound().await;
    let effect =
        |path: &str| json!({"effect": "write", "path": path, "outcome": "allowed", "reason": "mode"});
    scribe.event(EventKind::HostRequest, effect("/w/early")).await;
    scribe.start().await;
    scribe.event(EventKind::HostRequest, effect("/w/during")).await;
    scribe.say("Done.").await;
    scribe.done().await;
    scribe.event(EventKind::HostRequest, effect("/w/late")).await;
    let driver = on_console(&store, "");
    let told = caught_up(&store, "c", 3).await;
    driver.settle(&store, 3).await;
    let want = [
        "[host] write /w/early: allowed",
        "[host] write /w/during: allowed\n\nDone.",
        "[host] write /w/late: allowed",
    ];
    assert_eq!(told, want);
    assert_eq!(outbox(&store).await, worked_out(&store, binding.binding_id).await);
}
