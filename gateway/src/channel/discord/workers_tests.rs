//! Conversation workers while Discord is slow, refuses requests or returns outdated data, and while the
//! allow-list changes.

use super::*;
use acp_core::shards::ShardRange;
use acp_discord::core::event::MessageEdit;
use tokio::time::{advance, pause, resume};

const EVE: Snowflake = Snowflake(6);
/// Role on the allow-list: all of its members may send messages.
const CREW: u64 = 70;

fn edited(who: Option<Snowflake>, channel: u64, id: u64, text: &str) -> Event {
    Event::MessageEdited(MessageEdit {
        id: Snowflake(id),
        channel: Snowflake(channel),
        author: who.map(user),
        webhook: None,
        text: Some(text.to_owned()),
        attachments: None,
        by_author: true,
    })
}

fn queued(id: u64, text: &str) -> QueuedMessage {
    QueuedMessage { message_id: id.to_string(), text: Some(text.to_owned()) }
}

fn gap() -> Event {
    Event::Gap { why: GapCause::Overflow, lost: 1 }
}

fn shown_thread(archived: bool) -> Thread {
    Thread {
        id: Snowflake(7),
        guild: Some(Snowflake(9)),
        parent: Some(Snowflake(3)),
        archived,
        auto_archive_minutes: 60,
        archived_at: None,
    }
}

fn set_allow_list(inner: &Inner, users: &[Snowflake], roles: &[u64]) {
    let before = inner.settings();
    let people = Principals {
        users: users.iter().copied().collect(),
        roles: roles.iter().copied().map(Snowflake).collect(),
    };
    let access = AccessRules { allowed: people, ..AccessRules::default() };
    inner.settings.send_replace(Arc::new(AccountSettings { access, ..AccountSettings::clone(&before) }));
}

/// Makes channel 7 a project, as by a reload.
fn add_project(inner: &Inner) {
    let before = inner.settings();
    let projects = [(Snowflake(7), false)].into();
    inner.settings.send_replace(Arc::new(AccountSettings { projects, ..AccountSettings::clone(&before) }));
}

impl FakeControlPlane {
    fn all(&self, prefix: &str) -> Vec<String> {
        let all = self.calls.lock().unwrap().clone();
        all.iter().filter_map(|it| it.strip_prefix(prefix)).map(str::to_owned).collect()
    }
}

async fn advance_clock(by: Duration) {
    pause();
    advance(by).await;
    resume();
}

/// Waits for a condition while the clock of the workers runs faster.
async fn until_with_fast_clock(description: &str, condition: impl Fn() -> bool) {
    for _ in 0..1_500 {
        if condition() {
            return;
        }
        advance_clock(Duration::from_secs(1)).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("timed out: {description}");
}

/// Starts with these messages in a bound channel, after the first backfill.
async fn start_bound(
    ids: std::ops::Range<u64>,
) -> (
    Arc<FakeControlPlane>,
    EventSender,
    tokio::task::JoinHandle<()>,
    Arc<Inner>,
    Arc<Behaviour>,
    watch::Sender<Option<Json>>,
) {
    let (responder, channel_response) = watch::channel(Some(channel()));
    let fake = FakeDiscord { message_ids: ids, ..FakeDiscord::without_messages(channel_response) };
    let behaviour = Arc::clone(&fake.behaviour);
    let (control_plane, inbound, event_loop, inner) = start_with(false, fake, &[]).await;
    control_plane.bind("7");
    until("checked", || control_plane.count("queued 7") > 0 && inner.cache.has_archive_state(Snowflake(7)))
        .await;
    (control_plane, inbound, event_loop, inner, behaviour, responder)
}

/// Edits by people no longer on the allow-list, by user or by role, do not change a queued prompt; edits by
/// bots never do.
#[tokio::test]
async fn edit_by_unauthorized_user_is_ignored() {
    let (control_plane, inbound, _task, inner, behaviour, _) = start_bound(0..0).await;
    inbound.put(edited(Some(EVE), 7, 1_001, "by eve"));
    inbound.put(edited(Some(BOT), 7, 1_001, "by the bot"));
    // Nothing is left of this one without the mention.
    inbound.put(edited(Some(ANN), 7, 1_001, &format!("<@{BOT}> ")));
    inbound.put(edited(Some(ANN), 7, 1_001, "by ann"));
    until("edit recorded", || control_plane.count("edited") > 0).await;
    assert_eq!(control_plane.all("edited 7 "), ["1001 by ann"]);
    // From here on the allow-list contains only a role.
    set_allow_list(&inner, &[], &[CREW]);
    behaviour.roles.lock().unwrap().insert(EVE.0, vec![CREW]);
    inbound.put(edited(Some(ANN), 7, 1_001, "by ann, who has left"));
    inbound.put(edited(Some(EVE), 7, 1_001, "by one of the crew"));
    until("change recorded", || control_plane.count("edited") > 1).await;
    behaviour.roles.lock().unwrap().insert(EVE.0, vec![]);
    behaviour.roles.lock().unwrap().insert(ANN.0, vec![CREW]);
    inbound.put(edited(Some(EVE), 7, 1_001, "by eve again"));
    inbound.put(edited(Some(ANN), 7, 1_001, "by ann again"));
    until("change recorded", || control_plane.count("edited") > 2).await;
    assert_eq!(
        control_plane.all("edited 7 "),
        ["1001 by ann", "1001 by one of the crew", "1001 by ann again"]
    );
    // Anyone may delete their own message.
    inbound.put(Event::MessagesDeleted { channel: Snowflake(7), ids: vec![Snowflake(1_001)] });
    until("change recorded", || control_plane.count("deleted 7 1001") > 0).await;
}

/// The same for edits found by a check; deletions are found all the same.
#[tokio::test]
async fn backfilled_edit_by_unauthorized_user_is_ignored() {
    let (control_plane, inbound, _task, inner, behaviour, _) = start_bound(1_001..1_003).await;
    // The deleted message is the last one compared.
    let checks = |times: usize| control_plane.count("deleted 7 1003") >= times;
    *control_plane.waiting.lock().unwrap() =
        vec![queued(1_001, "one"), queued(1_002, "7: 1002"), queued(1_003, "gone")];
    set_allow_list(&inner, &[EVE], &[CREW]);
    inbound.put(gap());
    until("checked", || checks(1)).await;
    inbound.put(gap());
    until("conversation checked twice", || checks(2)).await;
    assert_eq!(control_plane.all("edited "), [""; 0]);
    behaviour.roles.lock().unwrap().insert(ANN.0, vec![CREW]);
    inbound.put(gap());
    until("change recorded", || control_plane.all("edited 7 ").contains(&"1001 7: 1001".to_owned())).await;
}

#[tokio::test]
async fn edit_without_author_is_applied_after_author_lookup() {
    let (control_plane, inbound, _task, _inner, _, _) = start_bound(1_001..1_003).await;
    inbound.put(edited(None, 7, 1_001, "author unknown"));
    inbound.put(edited(Some(ANN), 7, 1_002, "and then"));
    until("both edits recorded", || control_plane.count("edited") > 1).await;
    assert_eq!(control_plane.all("edited 7 "), ["1001 author unknown", "1002 and then"]);
}

/// A REST response may be older than an event: an edit from an event is not undone by it.
#[tokio::test]
async fn stale_response_does_not_undo_newer_event() {
    let (control_plane, inbound, _task, _inner, _, _) = start_bound(1_001..1_002).await;
    inbound.put(edited(Some(ANN), 7, 1_001, "two"));
    until("change recorded", || control_plane.count("edited") > 0).await;
    *control_plane.waiting.lock().unwrap() = vec![queued(1_001, "two"), queued(900, "gone")];
    inbound.put(gap());
    until("checked", || control_plane.count("deleted 7 900") > 0).await;
    assert_eq!(control_plane.all("edited 7 "), ["1001 two"]);
}

/// A page may lack a message that was just written.
#[tokio::test]
async fn recent_message_missing_from_page_is_not_deleted() {
    let (control_plane, inbound, _task, _inner, _, _) = start_bound(0..0).await;
    let made_ms = clock().wall_ms() - 8_000;
    let young = Snowflake::from_ms(made_ms);
    *control_plane.waiting.lock().unwrap() = vec![queued(900, "gone"), queued(young.0, "young")];
    inbound.put(gap());
    let is_gone = |id: u64| control_plane.count(&format!("deleted 7 {id}")) > 0;
    until("checked", || is_gone(900)).await;
    let seen = is_gone(young.0);
    assert!(!seen || clock().wall_ms() >= made_ms + 10_000, "a recent message was treated as deleted");
    until("message deleted", || is_gone(young.0)).await;
    assert!(clock().wall_ms() >= made_ms + 10_000);
}

/// A message rejected by the allow-list stays rejected, even if received again after a change of the list.
#[tokio::test]
async fn refused_message_stays_refused_when_repeated() {
    for is_read_first in [true, false] {
        let fake = FakeDiscord { message_ids: 1_001..1_002, ..FakeDiscord::with_channel(Some(channel())) };
        let behaviour = Arc::clone(&fake.behaviour);
        *behaviour.page_refusal.lock().unwrap() = (!is_read_first).then_some((0, 403));
        let (control_plane, inbound, _task, inner) = start_with(false, fake, &[]).await;
        set_allow_list(&inner, &[EVE], &[]);
        control_plane.bind("7");
        if is_read_first {
            until("conversation read", || control_plane.count("read 7 1001") > 0).await;
        } else {
            until("read refused", || inner.cache.is_inaccessible(Snowflake(7))).await;
            inbound.put(message_event(1_001, 7, "7: 1001"));
        }
        inbound.put(message_event_by(EVE, 1_002, 7, "eve's"));
        until("message of eve offered", || control_plane.offered() == ["eve's"]).await;
        set_allow_list(&inner, &[ANN, EVE], &[]);
        *behaviour.page_refusal.lock().unwrap() = None;
        if is_read_first {
            inbound.put(message_event(1_001, 7, "7: 1001"));
        }
        inbound.put(gap());
        inbound.put(message_event(1_003, 7, "ann's"));
        until("later message offered", || control_plane.offered().contains(&"ann's".to_owned())).await;
        let read = control_plane.count("read 7 1001");
        inbound.put(gap());
        until("conversation read again", || control_plane.count("read 7 1001") > read).await;
        inbound.put(message_event(1_004, 7, "the last"));
        until("last message offered", || control_plane.offered().contains(&"the last".to_owned())).await;
        assert!(
            !control_plane.offered().contains(&"7: 1001".to_owned()),
            "{is_read_first}: {:?}",
            control_plane.offered()
        );
    }
}

#[tokio::test]
async fn event_before_gap_does_not_replace_check_after_it() {
    let (control_plane, inbound, _task, inner, _, responder) = start_bound(0..0).await;
    control_plane.set_unavailable(true);
    let places = control_plane.count("lookup 7");
    inbound.put(gap());
    until("backfill requested", || control_plane.count("lookup 7") > places).await;
    // The event waits behind the backfill.
    inbound.put(Event::ThreadChanged(shown_thread(false)));
    inbound.put(autocomplete_event());
    until("all events received", || control_plane.count("suggest") > 0).await;
    responder.send_replace(Some(thread(true)));
    control_plane.set_unavailable(false);
    until("checked", || control_plane.count("changed 7 Archived { by_person: true }") > 0).await;
    assert_eq!(control_plane.all("changed 7 "), ["Unarchived", "Archived { by_person: true }"]);
    until("archive state cached", || inner.cache.has_archive_state(Snowflake(7))).await;
}

/// While Discord refuses a check of the archive state, messages from the thread are processed in order and
/// none is sent there; the next message to the thread asks again.
#[tokio::test]
async fn messages_are_handled_while_archive_check_fails() {
    let (channel_response, receiver) = watch::channel(Some(thread(false)));
    let (control_plane, inbound, _task, inner) =
        start_with(false, FakeDiscord::without_messages(receiver), &[]).await;
    control_plane.bind("7");
    let conversation = Snowflake(7);
    until("checked", || inner.cache.has_archive_state(conversation)).await;
    channel_response.send_replace(None);
    inbound.put(Event::ThreadChanged(shown_thread(true)));
    until("archive state dropped", || !inner.cache.has_archive_state(conversation)).await;
    let texts = ["one", "two", "three"];
    for (id, text) in (1_001..).zip(texts) {
        inbound.put(message_event(id, 7, text));
    }
    until("message offered", || control_plane.offered().len() == texts.len()).await;
    assert_eq!(control_plane.offered(), texts);
    assert!(
        !inner.cache.has_archive_state(conversation) && control_plane.count("changed 7 Archived") == 0,
        "the state is unknown"
    );
    assert!(inner.ensure_archive_state(conversation).await.is_err(), "no message is sent");
    channel_response.send_replace(Some(thread(true)));
    assert!(inner.ensure_archive_state(conversation).await.is_ok());
    until("parked", || control_plane.count("changed 7 Archived { by_person: true }") > 0).await;
}

/// The parent of a thread is requested until known, to decide on static bindings; messages wait meanwhile.
#[tokio::test]
async fn parent_of_thread_is_requested_until_known() {
    let (responder, channel_response) = watch::channel(None);
    let fake = FakeDiscord::without_messages(channel_response);
    let behaviour = Arc::clone(&fake.behaviour);
    let (control_plane, inbound, _task, _inner) = start_with(false, fake, &[3]).await;
    inbound.put(message_event(1_001, 7, "one"));
    // Two requests are one attempt.
    for _ in 0..24 {
        let before = behaviour.channel_requests.load(Ordering::Relaxed);
        advance_clock(Duration::from_secs(40)).await;
        until_with_fast_clock("requested again", || {
            behaviour.channel_requests.load(Ordering::Relaxed) > before
        })
        .await;
    }
    responder.send_replace(Some(thread(false)));
    until_with_fast_clock("message offered", || control_plane.offered() == ["one"]).await;
}

/// Messages that did not fit into the queue are backfilled once the bot has access.
#[tokio::test]
async fn overflowed_messages_are_read_after_access_returns() {
    let ids = 1_001..1_301_u64;
    let fake = FakeDiscord { message_ids: ids.clone(), ..FakeDiscord::with_channel(Some(channel())) };
    let behaviour = Arc::clone(&fake.behaviour);
    *behaviour.page_refusal.lock().unwrap() = Some((0, 403));
    let (control_plane, inbound, _task, inner) = start_with(true, fake, &[7]).await;
    for id in ids.clone() {
        inbound.put(message_event(id, 7, &format!("7: {id}")));
    }
    inbound.put(autocomplete_event());
    until("all events received", || control_plane.count("suggest") > 0).await;
    control_plane.set_unavailable(false);
    until("queued messages offered", || control_plane.offered().len() >= 256).await;
    until("read refused", || inner.cache.is_inaccessible(Snowflake(7))).await;
    assert!(!control_plane.offered().contains(&"7: 1300".to_owned()));
    *behaviour.page_refusal.lock().unwrap() = None;
    until_with_fast_clock("backfilled", || control_plane.offered().contains(&"7: 1300".to_owned())).await;
    let offered: BTreeSet<String> = control_plane.offered().into_iter().collect();
    assert_eq!(offered, ids.map(|id| format!("7: {id}")).collect());
}

/// A project's channel is read from its mark on, at most 15 minutes back; without a mark from its newest message on.
#[tokio::test]
async fn project_is_read_from_mark_within_limit() {
    for (age_min, mark, want) in
        [(14, Some(0), 3), (14, Some(1), 2), (14, None, 0), (16, Some(0), 0), (24 * 60, Some(0), 0)]
    {
        let before = Snowflake::from_ms(clock().wall_ms() - age_min * 60_000).0;
        let ids = before + 1..before + 4;
        let fake = FakeDiscord { message_ids: ids, ..FakeDiscord::with_channel(Some(channel())) };
        let (control_plane, _inbound, _task, inner) = start_with(false, fake, &[]).await;
        *control_plane.project_mark.lock().unwrap() = mark.map(|after| before + after);
        add_project(&inner);
        until("channel read", || control_plane.count("queued 7") > 0).await;
        assert_eq!(control_plane.offered().len(), want, "{age_min} {mark:?}");
        // The newest message is Discord's, whatever the local clock shows.
        let begun = control_plane.project_mark.lock().unwrap().map(|mark| mark - before);
        assert_eq!(begun, mark.or(Some(3)), "{age_min} {mark:?}");
    }
}

/// The 15 minutes are counted back from the first attempt, however long the channel cannot be read.
#[tokio::test]
async fn limit_of_project_does_not_move_with_retries() {
    let before = Snowflake::from_ms(clock().wall_ms() - 14 * 60_000).0;
    let fake =
        FakeDiscord { message_ids: before + 1..before + 4, ..FakeDiscord::with_channel(Some(channel())) };
    let behaviour = Arc::clone(&fake.behaviour);
    *behaviour.page_refusal.lock().unwrap() = Some((0, 503));
    let (control_plane, _inbound, _task, inner) = start_with(false, fake, &[]).await;
    *control_plane.project_mark.lock().unwrap() = Some(before);
    add_project(&inner);
    until("first attempt", || control_plane.count("lookup 7") > 0).await;
    let two_minutes_later = inner.clock.wall_ms() + 120_000;
    until_with_fast_clock("two minutes", || inner.clock.wall_ms() > two_minutes_later).await;
    let attempts = control_plane.count("lookup 7");
    until_with_fast_clock("late attempt", || control_plane.count("lookup 7") > attempts).await;
    *behaviour.page_refusal.lock().unwrap() = None;
    until_with_fast_clock("channel read", || control_plane.offered().len() == 3).await;
}

/// A project without a mark begins before the first message that waits, so that a restart finds this message.
#[tokio::test]
async fn first_mark_of_project_is_before_waiting_messages() {
    let first = Snowflake::from_ms(clock().wall_ms() - 60_000).0;
    let (responder, channel_response) = watch::channel(None);
    let fake =
        FakeDiscord { message_ids: first..first + 3, ..FakeDiscord::without_messages(channel_response) };
    let behaviour = Arc::clone(&fake.behaviour);
    let (control_plane, inbound, _task, inner) = start_with(false, fake, &[]).await;
    add_project(&inner);
    until("newest message requested", || behaviour.channel_requests.load(Ordering::Relaxed) > 0).await;
    inbound.put(message_event(first + 1, 7, &format!("7: {}", first + 1)));
    inbound.put(autocomplete_event());
    until("all events received", || control_plane.count("suggest") > 0).await;
    responder.send_replace(Some(channel()));
    let last = format!("7: {}", first + 2);
    until_with_fast_clock("backfilled", || control_plane.offered().contains(&last)).await;
    assert_eq!(control_plane.project_mark.lock().unwrap().map(|mark| mark - first), Some(0));
    assert_eq!(control_plane.offered(), [format!("7: {}", first + 1), last]);
}

/// A full queue does not hide messages between a project's mark and the first rejected one.
#[tokio::test]
async fn project_is_read_from_mark_after_overflow() {
    let first = Snowflake::from_ms(clock().wall_ms() - 1_000).0;
    let ids = first..first + 301;
    let fake = FakeDiscord { message_ids: ids.clone(), ..FakeDiscord::with_channel(Some(channel())) };
    let behaviour = Arc::clone(&fake.behaviour);
    *behaviour.page_refusal.lock().unwrap() = Some((0, 403));
    let (control_plane, inbound, _task, inner) = start_with(true, fake, &[]).await;
    *control_plane.project_mark.lock().unwrap() = Some(first - 1);
    add_project(&inner);
    // The first message has no event.
    for id in ids.clone().skip(1) {
        inbound.put(message_event(id, 7, &format!("7: {id}")));
    }
    inbound.put(autocomplete_event());
    until("all events received", || control_plane.count("suggest") > 0).await;
    control_plane.set_unavailable(false);
    until("read refused", || inner.cache.is_inaccessible(Snowflake(7))).await;
    *behaviour.page_refusal.lock().unwrap() = None;
    let last = format!("7: {}", ids.end - 1);
    until_with_fast_clock("backfilled", || control_plane.offered().contains(&last)).await;
    let offered: BTreeSet<String> = control_plane.offered().into_iter().collect();
    assert_eq!(offered, ids.map(|id| format!("7: {id}")).collect());
}

/// While the bindings are unknown, a limited number of edits waits; a backfill finds those beyond.
#[tokio::test]
async fn edits_before_bindings_are_known_are_bounded() {
    let fake = FakeDiscord { message_ids: 2_001..2_002, ..FakeDiscord::with_channel(Some(channel())) };
    let (control_plane, inbound, _task, _) = start_with(true, fake, &[]).await;
    control_plane.bind("7");
    control_plane.bind("8");
    for (number, conversation) in (1..).zip([7, 8, 7, 8]) {
        for id in 0..1_500 {
            inbound.put(edited(Some(ANN), conversation, id, "changed"));
        }
        inbound.put(autocomplete_event());
        until("all events received", || control_plane.count("suggest") == number).await;
    }
    *control_plane.waiting.lock().unwrap() = vec![queued(2_001, "as it was")];
    control_plane.set_unavailable(false);
    until("checked", || control_plane.count("edited 7 2001") > 0 && control_plane.count("queued 8") > 0)
        .await;
    let recorded = || control_plane.all("edited").iter().filter(|edited| edited.ends_with("changed")).count();
    until("queued edits recorded", || recorded() >= UNCLASSIFIED_MAX).await;
    assert_eq!(recorded(), UNCLASSIFIED_MAX);
}

/// A gateway with other shards takes no events of a server, reads no history there and sends nothing, whatever is bound.
#[tokio::test]
async fn conversations_of_other_shards_are_left_alone() {
    // Server 9 belongs to shard 0.
    for (from, want) in [(0, &["one", "7: 1001", "7: 1002"][..]), (1, &[])] {
        let fake = FakeDiscord { message_ids: 1_001..1_003, ..FakeDiscord::with_channel(Some(channel())) };
        let message_requests = Arc::clone(&fake.message_requests);
        let base = serve(fake).await;
        let plain = settings("token", &base);
        let shards = Some(ShardRange { from, to: from + 1, of: 2 });
        let access = AccessRules { shards, ..plain.access.clone() };
        let (control_plane, inbound, _task, inner) = start_as(false, AccountSettings { access, ..plain });
        inbound.put(message_event(900, 99, "/acp status"));
        inbound.put(message_event(901, 7, "one"));
        control_plane.bind("7");
        inbound.put(Event::Gap { why: GapCause::Overflow, lost: 1 });
        // Shard 1 has server 9 << 22 | 1 << 22, whose command shows that the events were handled.
        let Event::Message(mut elsewhere) = message_event(902, 98, "/acp help") else { panic!() };
        elsewhere.guild = Some(Snowflake((8 + u64::from(from)) << 22));
        inbound.put(Event::Message(elsewhere));
        until("own command offered", || control_plane.offered().contains(&"/acp help".to_owned())).await;
        until("binding looked at", || {
            want.iter().all(|text| control_plane.offered().contains(&(*text).to_owned()))
        })
        .await;
        let to = conversation("7");
        let message =
            crate::channel::Outgoing { text: "t".to_owned(), nonce: "n".to_owned(), ..Default::default() };
        let sent = inner.send(&to, &message).await;
        let is_refused = |why: &str| why.contains("shard 0,") && why.contains("shard 1 of 2");
        match sent {
            crate::channel::SendOutcome::Rejected { why, again: true } => {
                assert!(from == 1 && is_refused(&why), "{why}")
            }
            other => assert_eq!(from, 0, "{other:?}"),
        }
        let unavailable = inner.unavailable_reason(Snowflake(7));
        assert_eq!(unavailable.is_some_and(|why| is_refused(&why)), from == 1);
        let offered = control_plane.offered();
        assert_eq!(offered.contains(&"/acp status".to_owned()), from == 0, "{offered:?}");
        assert_eq!(
            offered.iter().filter(|text| text.starts_with("7: ")).count(),
            want.len().saturating_sub(1)
        );
        assert_eq!(message_requests.load(Ordering::Relaxed), 0);
    }
}
