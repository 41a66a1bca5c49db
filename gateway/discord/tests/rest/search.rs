//! Search for messages with an unknown outcome.

use crate::server::{ReceivedRequest, Reply, Server, message};
use acp_discord::core::ids::Snowflake;
use acp_discord::core::message_match::SentMessageQuery;
use acp_discord::rest::{SentMessageLookup, SentMessageSearch};
use serde_json::{Value, json};
use std::collections::HashSet;

const HERE: Snowflake = Snowflake(1);
/// A time in 2026, in milliseconds since the Unix epoch.
const SENT_MS: u64 = 1_790_000_000_000;

fn search(known: &[u64]) -> SentMessageSearch {
    let query = SentMessageQuery {
        me: Snowflake(7),
        nonce: "n1".to_owned(),
        content: "the answer\n".to_owned(),
        attachments: Vec::new(),
        button: None,
        known: known.iter().copied().map(Snowflake).collect::<HashSet<_>>(),
        application: None,
    };
    SentMessageSearch { channel: HERE, first_attempt_ms: SENT_MS, skew_ms: 10_000, query }
}

/// Returns the id of the n-th message since the first attempt.
fn id(n: u64) -> u64 {
    Snowflake::from_ms(SENT_MS).0 + n
}

/// Serves the history of a channel with these messages.
fn channel(messages: Vec<Value>, readable: bool) -> impl FnMut(usize, &ReceivedRequest) -> Reply + Send {
    move |_, asked| {
        if !asked.path.contains("/messages") {
            let last = messages.last().map(|message| message["id"].clone());
            return Reply::json(200, json!({"id": "1", "type": 0, "last_message_id": last}));
        }
        if !readable {
            return Reply::json(200, json!([]));
        }
        let number = |name: &str| -> Option<u64> {
            let at = asked.path.find(&format!("{name}="))? + name.len() + 1;
            asked.path.get(at..)?.split('&').next()?.parse().ok()
        };
        let limit = usize::try_from(number("limit").unwrap_or(50)).unwrap_or(50);
        let after = number("after");
        let id = |message: &Value| message["id"].as_str().and_then(|id| id.parse::<u64>().ok()).unwrap_or(0);
        let shown = messages.iter().filter(|message| after.is_none_or(|after| id(message) > after));
        let mut page: Vec<Value> = shown.cloned().collect();
        match after {
            Some(_) => page.truncate(limit),
            None => drop(page.drain(..page.len().saturating_sub(limit))),
        }
        // Newest message first.
        page.reverse();
        Reply::json(200, Value::Array(page))
    }
}

#[tokio::test]
async fn a_message_is_found_in_what_the_channel_shows() {
    let said = |count: u64| (0..count).map(|n| message(id(n), 9, "talk")).collect::<Vec<_>>();
    let mut long = said(250);
    long.push(message(id(250), 7, "the answer"));
    let mine = |n| message(id(n), 7, "the answer");
    let early = message(Snowflake::from_ms(SENT_MS - 60_000).0, 7, "the answer");
    let found = |n| SentMessageLookup::Found(Snowflake(id(n)));
    for (row, messages, known, expected, requests) in [
        ("there", vec![mine(3)], vec![], found(3), 1),
        ("on the third page", long, vec![], found(250), 3),
        ("another part of ours", vec![mine(3)], vec![id(3)], SentMessageLookup::Absent, 1),
        ("two of them", vec![mine(3), mine(4)], vec![], found(3), 1),
        ("the second of them", vec![mine(3), mine(4)], vec![id(3)], found(4), 1),
        ("said before", vec![early], vec![], SentMessageLookup::Absent, 2),
        ("others talk", said(100), vec![], SentMessageLookup::Absent, 3),
        ("nothing at all", vec![], vec![], SentMessageLookup::Absent, 3),
    ] {
        let server = Server::start(channel(messages, true)).await;
        assert_eq!(server.rest().lookup(&search(&known)).await, expected, "{row}");
        let requests = if row == "others talk" { 2 } else { requests };
        assert_eq!(server.lines().len(), requests, "{row}: {:?}", server.lines());
    }
}

#[tokio::test]
async fn who_may_not_read_knows_nothing() {
    let server = Server::start(channel(vec![message(id(3), 9, "talk")], false)).await;
    let looked = server.rest().lookup(&search(&[])).await;
    assert!(
        matches!(&looked, SentMessageLookup::Unknown { why } if why.contains("Read Message History")),
        "{looked:?}"
    );
    // No message since the first attempt: known even without the permission.
    let early = message(Snowflake::from_ms(SENT_MS - 60_000).0, 9, "talk");
    let server = Server::start(channel(vec![early], false)).await;
    assert_eq!(server.rest().lookup(&search(&[])).await, SentMessageLookup::Absent);
    let server = Server::list(vec![Reply::error(403, 50001)]).await;
    let looked = server.rest().lookup(&search(&[])).await;
    assert!(matches!(&looked, SentMessageLookup::Unknown { why } if why.contains("50001")), "{looked:?}");
}

#[tokio::test]
async fn an_echo_spares_the_search() {
    let server = Server::list(vec![Reply::Never]).await;
    let rest = server.rest();
    rest.record_sent_nonce("n1", Snowflake(77));
    assert_eq!(rest.lookup(&search(&[])).await, SentMessageLookup::Found(Snowflake(77)));
    assert!(server.lines().is_empty());
}
