//! Conversation workers while Discord is slow, refuses requests or returns outdated data, and while the
//! allow-list changes.

use super::*;
use acp_discord::core::event::MessageEdit;
use tokio::time::{advance, pause, resume};

const EVE: Snowflake = Snowflake(6);
/// Role of which all members may speak.
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

fn waits(id: u64, text: &str) -> QueuedMessage {
    QueuedMessage { message_id: id.to_string(), text: Some(text.to_owned()) }
}

fn gap() -> Event {
    Event::Gap { why: GapCause::Overflow, lost: 1 }
}

/// Replaces the allow-list.
fn admits(inner: &Inner, users: &[Snowflake], roles: &[u64]) {
    let before = inner.settings();
    let people = Principals {
        users: users.iter().copied().collect(),
        roles: roles.iter().copied().map(Snowflake).collect(),
    };
    let access = AccessRules { allowed: people, ..AccessRules::default() };
    inner.settings.send_replace(Arc::new(AccountSettings { access, ..AccountSettings::clone(&before) }));
}

impl Plane {
    /// Returns the logged requests with this prefix, without the prefix.
    fn all(&self, what: &str) -> Vec<String> {
        let all = self.asked.lock().unwrap().clone();
        all.iter().filter_map(|it| it.strip_prefix(what)).map(str::to_owned).collect()
    }
}

/// Advances the clock at a moment without other activity.
async fn later(by: Duration) {
    pause();
    advance(by).await;
    resume();
}

/// Waits for a condition while the clock of the workers runs faster.
async fn in_the_end(what: &str, is: impl Fn() -> bool) {
    for _ in 0..1_500 {
        if is() {
            return;
        }
        later(Duration::from_secs(1)).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("timed out: {what}");
}

/// Starts with these messages in a bound channel, after the first backfill.
async fn bound(
    said: std::ops::Range<u64>,
) -> (Arc<Plane>, EventSender, tokio::task::JoinHandle<()>, Arc<Inner>, Arc<Ways>, watch::Sender<Option<Json>>)
{
    let (tells, says) = watch::channel(Some(channel()));
    let town = Town { said, ..Town::quiet(says) };
    let ways = Arc::clone(&town.ways);
    let (plane, sink, ear, inner) = ground_of(false, town, &[]).await;
    plane.bind("7");
    until("it is looked at", || plane.asked("waiting 7") > 0 && inner.cache.has_archive_state(Snowflake(7)))
        .await;
    (plane, sink, ear, inner, ways, tells)
}

/// Edits by people no longer on the allow-list, by user or by role, do not change a queued prompt; edits by
/// bots never do.
#[tokio::test]
async fn edit_by_unauthorized_user_is_ignored() {
    let (plane, sink, _ear, inner, ways, _tells) = bound(0..0).await;
    sink.put(edited(Some(EVE), 7, 1_001, "by eve"));
    sink.put(edited(Some(BOT), 7, 1_001, "by the bot"));
    sink.put(edited(Some(ANN), 7, 1_001, "by ann"));
    until("ann's is taken", || plane.asked("edited") > 0).await;
    assert_eq!(plane.all("edited 7 "), ["1001 by ann"]);
    // From here on the allow-list contains only a role.
    admits(&inner, &[], &[CREW]);
    ways.roles.lock().unwrap().insert(EVE.0, vec![CREW]);
    sink.put(edited(Some(ANN), 7, 1_001, "by ann, who has left"));
    sink.put(edited(Some(EVE), 7, 1_001, "by one of the crew"));
    until("it is taken", || plane.asked("edited") > 1).await;
    ways.roles.lock().unwrap().insert(EVE.0, vec![]);
    ways.roles.lock().unwrap().insert(ANN.0, vec![CREW]);
    sink.put(edited(Some(EVE), 7, 1_001, "by eve again"));
    sink.put(edited(Some(ANN), 7, 1_001, "by ann again"));
    until("it is taken", || plane.asked("edited") > 2).await;
    assert_eq!(plane.all("edited 7 "), ["1001 by ann", "1001 by one of the crew", "1001 by ann again"]);
    // Anyone may delete their own message.
    sink.put(Event::MessagesDeleted { channel: Snowflake(7), ids: vec![Snowflake(1_001)] });
    until("it is taken", || plane.asked("deleted 7 1001") > 0).await;
}

/// The same for edits found by a check; deletions are found all the same.
#[tokio::test]
async fn backfilled_edit_by_unauthorized_user_is_ignored() {
    let (plane, sink, _ear, inner, ways, _tells) = bound(1_001..1_003).await;
    // The deleted message is the last one compared.
    let looked = |times: usize| plane.asked("deleted 7 1003") >= times;
    *plane.waiting.lock().unwrap() = vec![waits(1_001, "one"), waits(1_002, "7: 1002"), waits(1_003, "gone")];
    admits(&inner, &[EVE], &[CREW]);
    sink.put(gap());
    until("it is looked at", || looked(1)).await;
    sink.put(gap());
    until("and again", || looked(2)).await;
    assert_eq!(plane.all("edited "), [""; 0]);
    ways.roles.lock().unwrap().insert(ANN.0, vec![CREW]);
    sink.put(gap());
    until("it is taken", || plane.all("edited 7 ").contains(&"1001 7: 1001".to_owned())).await;
}

/// The author of an edit that lacks it is requested.
#[tokio::test]
async fn an_edit_without_an_author_is_applied_once_the_author_is_known() {
    let (plane, sink, _ear, _inner, _ways, _tells) = bound(1_001..1_003).await;
    sink.put(edited(None, 7, 1_001, "whoever says this"));
    sink.put(edited(Some(ANN), 7, 1_002, "and then"));
    until("both are taken", || plane.asked("edited") > 1).await;
    assert_eq!(plane.all("edited 7 "), ["1001 whoever says this", "1002 and then"]);
}

/// A REST response may be older than an event: an edit from an event is not undone by it.
#[tokio::test]
async fn stale_response_does_not_undo_newer_event() {
    let (plane, sink, _ear, _inner, _ways, _tells) = bound(1_001..1_002).await;
    sink.put(edited(Some(ANN), 7, 1_001, "two"));
    until("it is taken", || plane.asked("edited") > 0).await;
    *plane.waiting.lock().unwrap() = vec![waits(1_001, "two"), waits(900, "gone")];
    sink.put(gap());
    until("it is looked at", || plane.asked("deleted 7 900") > 0).await;
    assert_eq!(plane.all("edited 7 "), ["1001 two"]);
}

/// A page may lack a message that was just written.
#[tokio::test]
async fn recent_message_missing_from_page_is_not_deleted() {
    let (plane, sink, _ear, _inner, _ways, _tells) = bound(0..0).await;
    let made_ms = clock().wall_ms() - 8_000;
    let young = Snowflake::from_ms(made_ms);
    *plane.waiting.lock().unwrap() = vec![waits(900, "gone"), waits(young.0, "young")];
    sink.put(gap());
    let is_gone = |id: u64| plane.asked(&format!("deleted 7 {id}")) > 0;
    until("it is looked at", || is_gone(900)).await;
    let seen = is_gone(young.0);
    assert!(!seen || clock().wall_ms() >= made_ms + 10_000, "it was treated as deleted at once");
    until("it is gone", || is_gone(young.0)).await;
    assert!(clock().wall_ms() >= made_ms + 10_000);
}

/// A message rejected by the allow-list stays rejected, even if received again after a change of the list.
#[tokio::test]
async fn refused_message_stays_refused_when_repeated() {
    for is_read_first in [true, false] {
        let town = Town { said: 1_001..1_002, ..Town::saying(Some(channel())) };
        let ways = Arc::clone(&town.ways);
        *ways.refuses.lock().unwrap() = (!is_read_first).then_some((0, 403));
        let (plane, sink, _ear, inner) = ground_of(false, town, &[]).await;
        admits(&inner, &[EVE], &[]);
        plane.bind("7");
        if is_read_first {
            until("it is read", || plane.asked("read 7 1001") > 0).await;
        } else {
            until("it is refused", || inner.cache.is_inaccessible(Snowflake(7))).await;
            sink.put(said(1_001, 7, "7: 1001"));
        }
        sink.put(said_by(EVE, 1_002, 7, "eve's"));
        until("eve is heard", || plane.offered() == ["eve's"]).await;
        admits(&inner, &[ANN, EVE], &[]);
        *ways.refuses.lock().unwrap() = None;
        if is_read_first {
            sink.put(said(1_001, 7, "7: 1001"));
        }
        sink.put(gap());
        sink.put(said(1_003, 7, "ann's"));
        until("what comes then is heard", || plane.offered().contains(&"ann's".to_owned())).await;
        let read = plane.asked("read 7 1001");
        sink.put(gap());
        until("it is read once more", || plane.asked("read 7 1001") > read).await;
        sink.put(said(1_004, 7, "the last"));
        until("the last is heard", || plane.offered().contains(&"the last".to_owned())).await;
        assert!(!plane.offered().contains(&"7: 1001".to_owned()), "{is_read_first}: {:?}", plane.offered());
    }
}

/// An event from before a gap does not replace the check that the gap requires.
#[tokio::test]
async fn event_before_gap_does_not_replace_check_after_it() {
    let (plane, sink, _ear, inner, _ways, tells) = bound(0..0).await;
    plane.away(true);
    let places = plane.asked("place 7");
    sink.put(gap());
    until("it is to be read", || plane.asked("place 7") > places).await;
    // The event waits behind the backfill.
    sink.put(Event::ThreadChanged(shown_thread(false)));
    sink.put(typing());
    until("all of it came", || plane.asked("suggest") > 0).await;
    tells.send_replace(Some(thread(true)));
    plane.away(false);
    until("it is looked at", || plane.asked("changed 7 Archived { by_person: true }") > 0).await;
    assert_eq!(plane.all("changed 7 "), ["Unarchived", "Archived { by_person: true }"]);
    until("and followed", || inner.cache.has_archive_state(Snowflake(7))).await;
}

/// The parent of a thread is requested until known, to decide on static bindings; messages wait meanwhile.
#[tokio::test]
async fn parent_of_thread_is_requested_until_known() {
    let (tells, says) = watch::channel(None);
    let town = Town::quiet(says);
    let ways = Arc::clone(&town.ways);
    let (plane, sink, _ear, _inner) = ground_of(false, town, &[3]).await;
    sink.put(said(1_001, 7, "one"));
    // Two requests are one attempt.
    for _ in 0..24 {
        let asked = ways.looks.load(Ordering::Relaxed);
        later(Duration::from_secs(40)).await;
        in_the_end("it is asked for again", || ways.looks.load(Ordering::Relaxed) > asked).await;
    }
    tells.send_replace(Some(thread(false)));
    in_the_end("it is heard", || plane.offered() == ["one"]).await;
}

/// Messages that did not fit into the queue are backfilled once the bot has access.
#[tokio::test]
async fn overflowed_messages_are_read_after_access_returns() {
    let ids = 1_001..1_301_u64;
    let town = Town { said: ids.clone(), ..Town::saying(Some(channel())) };
    let ways = Arc::clone(&town.ways);
    *ways.refuses.lock().unwrap() = Some((0, 403));
    let (plane, sink, _ear, inner) = ground_of(true, town, &[7]).await;
    for id in ids.clone() {
        sink.put(said(id, 7, &format!("7: {id}")));
    }
    sink.put(typing());
    until("all of it came", || plane.asked("suggest") > 0).await;
    plane.away(false);
    until("what there was room for is heard", || plane.offered().len() >= 256).await;
    until("it is refused", || inner.cache.is_inaccessible(Snowflake(7))).await;
    assert!(!plane.offered().contains(&"7: 1300".to_owned()));
    *ways.refuses.lock().unwrap() = None;
    in_the_end("the rest is heard", || plane.offered().contains(&"7: 1300".to_owned())).await;
    let heard: BTreeSet<String> = plane.offered().into_iter().collect();
    assert_eq!(heard, ids.map(|id| format!("7: {id}")).collect());
}

/// While the bindings are unknown, a limited number of edits waits; a backfill finds those beyond.
#[tokio::test]
async fn edits_before_bindings_are_known_are_bounded() {
    let town = Town { said: 2_001..2_002, ..Town::saying(Some(channel())) };
    let (plane, sink, _ear, _) = ground_of(true, town, &[]).await;
    plane.bind("7");
    plane.bind("8");
    for (number, at) in (1..).zip([7, 8, 7, 8]) {
        for id in 0..1_500 {
            sink.put(edited(Some(ANN), at, id, "changed"));
        }
        sink.put(typing());
        until("all of it came", || plane.asked("suggest") == number).await;
    }
    *plane.waiting.lock().unwrap() = vec![waits(2_001, "as it was")];
    plane.away(false);
    until("it is looked at", || plane.asked("edited 7 2001") > 0 && plane.asked("waiting 8") > 0).await;
    let told = || plane.all("edited").iter().filter(|edited| edited.ends_with("changed")).count();
    until("what waited is taken", || told() >= UNCLASSIFIED_MAX).await;
    assert_eq!(told(), UNCLASSIFIED_MAX);
}
