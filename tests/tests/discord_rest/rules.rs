//! Rules of Discord that need more requests than a conversation makes: the package keeps them. The table is in
//! docs/design/requirements.md.

use crate::{CREATE, FINAL, PATIENT, Stage, meaning, sent, stage};
use acp_discord::core::endpoint::{PAGE_MAX, Page};
use acp_discord::core::errors::{RejectionKind, ResourceKind};
use acp_discord::core::ids::Snowflake;
use acp_discord::core::message::{Callback, MessageBody};
use acp_discord::rest::RestError;
use acp_shared::redact::Secret;
use acp_tests::fake_discord::core::settings::Rule;
use serde_json::json;

/// Reads `count` other channels concurrently.
fn read_channels(stage: &Stage, count: usize) -> Vec<Result<(), RestError>> {
    let guild = stage.fake.channel(stage.channel).guild_id;
    let channels: Vec<_> =
        (0..count).map(|n| Snowflake(stage.fake.add_channel(guild, &format!("c{n}")))).collect();
    let rest = &stage.rest;
    let reads = channels.into_iter().map(|channel| async move { rest.channel(channel).await.map(drop) });
    stage.run(futures_util::future::join_all(reads))
}

/// Discord permits 50 requests a second for the whole bot; the client makes 40.
#[test]
fn global_rate_limit_is_kept_without_429() {
    let stage = stage(|_| ());
    let read = read_channels(&stage, 150);
    assert!(read.iter().all(Result::is_ok), "{read:?}");
    let tally = stage.fake.tally();
    let counts = (tally.rate_limited, tally.requests.get("GET /channels/{} 200"));
    assert_eq!(counts, (0, Some(&150)), "{tally:?}");
}

/// Too many refusals ban the address: all requests stop before that, valid ones too.
#[test]
fn requests_stop_before_invalid_request_ban() {
    let stage = stage(|settings| settings.max_invalid_requests = 8);
    stage.fake.configure(json!({"invalid": {"limit": 10, "window_ms": 600_000}}));
    stage.fake.deny(stage.bot.user, stage.channel, &["SEND_MESSAGES"]);
    for n in 0..8 {
        assert_eq!(meaning(stage.create(&format!("n{n}"), "x")), Some(RejectionKind::Forbidden), "{n}");
    }
    for n in 8..20 {
        let stopped = stage.create(&format!("n{n}"), "x");
        assert!(matches!(stopped, Err(RestError::Limited { .. })), "{stopped:?}");
    }
    assert_eq!(stage.fake.tally().invalid, 8);
    let other = stage.fake.rest(crate::TOKEN, "GET", "/users/@me", None);
    assert_eq!(other.map(|answer| answer.status).ok(), Some(200), "the address is not banned");
}

/// A nonce identifies one message of an author for a while; the same text with another nonce is another message.
#[test]
fn nonce_identifies_one_message_until_it_expires() {
    let stage = stage(|_| ());
    let ids = ["n1", "n2"].map(|nonce| sent(stage.create(nonce, "the same")));
    assert_ne!(ids[0], ids[1]);
    assert_eq!(sent(stage.create("n1", "the same")), ids[0]);
    // After the nonce window the same request is a second message: late retries must search first.
    stage.fake.advance(stage.fake.settings().nonce_window_ms + 1);
    assert_ne!(sent(stage.create("n1", "the same")), ids[0]);
    assert_eq!(stage.texts().len(), 3);
}

#[test]
fn sixteenth_webhook_of_channel_is_refused() {
    let stage = stage(|_| ());
    let make = || stage.run(stage.rest.create_webhook(stage.here(), "Agent", FINAL));
    for _ in 0..15 {
        assert!(make().is_ok());
    }
    assert_eq!(meaning(make()), Some(RejectionKind::Full));
}

#[test]
fn thread_above_server_limit_is_refused() {
    let stage = stage(|_| ());
    stage.fake.configure(json!({"active_threads_max": 1}));
    let first = stage.thread("n1");
    assert!(first.is_ok(), "{first:?}");
    assert_eq!(meaning(stage.thread("n2")), Some(RejectionKind::Full));
    assert!(RejectionKind::Full.is_retryable());
}

#[test]
fn locked_thread_refuses_messages_until_unlocked() {
    let stage = stage(|_| ());
    let thread = stage.thread("n1").unwrap_or_else(|fault| panic!("{fault}"));
    let say = || stage.say(thread, "n2", "x");
    stage.fake.deny(stage.bot.user, stage.channel, &["MANAGE_THREADS"]);
    stage.fake.lock(thread.0, true);
    assert_eq!(meaning(say()), Some(RejectionKind::Locked));
    stage.fake.lock(thread.0, false);
    sent(say());
}

/// Edits of other authors' messages are refused.
#[test]
fn edit_of_foreign_message_is_refused() {
    let stage = stage(|_| ());
    let theirs = Snowflake(stage.fake.post(stage.ann, stage.channel, "mine"));
    assert_eq!(meaning(stage.edit(theirs, "yours")), Some(RejectionKind::Forbidden));
}

/// The first response must be in time, unique and of a fitting kind; fifteen minutes later edits are refused.
#[test]
fn interaction_response_is_accepted_once_and_in_time() {
    let stage = stage(|_| ());
    let application = Snowflake(stage.bot.application);
    let commands = [json!({"name": "ping", "description": "says so", "type": 1})];
    let put = stage.run(stage.rest.put_commands(application, None, &commands));
    assert_eq!(put, Ok(()));
    let used = || {
        let used = stage.fake.command(stage.ann, stage.channel, &stage.bot, "ping", &[]);
        let used = used.unwrap_or_else(|e| panic!("{e}"));
        (Snowflake(used.id), Secret::new(used.token))
    };
    let answer = |(id, token): &(Snowflake, Secret), callback: &Callback| {
        stage.run(stage.rest.callback(*id, token, callback))
    };
    let later = Callback::Deferred { flags: 0 };
    let first = used();
    let unfit = meaning(answer(&first, &Callback::DeferredUpdate));
    assert_eq!(unfit, Some(RejectionKind::Invalid), "deferred updates are for buttons");
    assert_eq!(answer(&first, &later), Ok(()));
    assert_eq!(meaning(answer(&first, &later)), Some(RejectionKind::AlreadyAnswered));
    let edit = |text: &str| {
        let body = MessageBody::text(text);
        let edited = stage.rest.edit_original(application, &first.1, &body);
        stage.run(edited).map(drop)
    };
    assert_eq!(edit("done"), Ok(()));
    let late = used();
    stage.fake.advance(3_001);
    assert_eq!(meaning(answer(&late, &later)), Some(RejectionKind::TooLate));
    stage.fake.advance(900_000);
    assert_eq!(meaning(edit("too late")), Some(RejectionKind::TooLate));
    // Refused responses to interactions do not mark the token as invalid.
    assert!(!stage.rest.counts().unauthorized);
}

/// Pages are read upward from a message, newest first in each, until one is not full.
#[test]
fn history_is_read_until_a_page_is_not_full() {
    let stage = stage(|_| ());
    let start = Snowflake(stage.fake.post(stage.ann, stage.channel, "start"));
    let said: Vec<_> =
        (0..205).map(|n| Snowflake(stage.fake.post(stage.ann, stage.channel, &n.to_string()))).collect();
    let (mut after, mut read, mut sizes) = (start, Vec::new(), Vec::new());
    loop {
        let page = stage.run(stage.rest.messages(stage.here(), Page::After(after), PAGE_MAX));
        let mut page: Vec<_> =
            page.unwrap_or_else(|fault| panic!("{fault}")).iter().map(|message| message.id).collect();
        assert!(page.is_sorted_by(|a, b| a > b), "the newest first");
        sizes.push(page.len());
        page.reverse();
        after = page.last().copied().unwrap_or(after);
        read.extend(page);
        if sizes.last() != Some(&usize::from(PAGE_MAX)) {
            break;
        }
    }
    assert_eq!((read, sizes), (said, vec![100, 100, 5]));
}

/// Without the Message Content intent other users' texts are empty; a missing message is reported as gone.
#[test]
fn content_is_empty_without_intent_and_missing_message_is_gone() {
    let stage = stage(|_| ());
    stage.fake.post(stage.ann, stage.channel, "secret");
    let texts = || {
        let page = stage.run(stage.rest.messages(stage.here(), Page::Newest, 10));
        let page = page.unwrap_or_else(|fault| panic!("{fault}"));
        page.into_iter().map(|message| message.text).collect::<Vec<_>>()
    };
    assert_eq!(texts(), ["secret"]);
    stage.fake.set_privileged_intents(stage.bot.user, 0);
    assert_eq!(texts(), [""]);
    stage.fake.disable_rules(&[Rule::MessageContentIntent]);
    assert_eq!(texts(), ["secret"]);
    let hook = stage.run(stage.rest.add_reaction(stage.here(), Snowflake(1), "👀", PATIENT));
    assert_eq!(meaning(hook), Some(RejectionKind::Gone(ResourceKind::Message)));
    assert_eq!(stage.fake.tally().requests_to(CREATE), 0);
}

/// Discord archives an inactive thread; the next message unarchives it.
#[test]
fn auto_archived_thread_is_unarchived_by_next_message() {
    let stage = stage(|_| ());
    let thread = stage.thread("n1").unwrap_or_else(|fault| panic!("{fault}"));
    let is_away = || {
        let channel = stage.run(stage.rest.channel(thread));
        channel.ok().and_then(|channel| channel.thread_metadata).is_some_and(|state| state.archived)
    };
    stage.fake.advance(10_079 * 60_000);
    assert!(!is_away());
    stage.fake.advance(2 * 60_000);
    assert!(is_away());
    sent(stage.say(thread, "n2", "x"));
    assert!(!is_away());
}
