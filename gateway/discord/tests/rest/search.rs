//! Search for messages with an unknown outcome.

use crate::server::{ReceivedRequest, Reply, Server, message};
use acp_discord::core::ids::Snowflake;
use acp_discord::core::message_match::SentMessageQuery;
use acp_discord::rest::{SentMessageLookup, SentMessageSearch};
use serde_json::{Value, json};
use std::collections::HashSet;

const CHANNEL: Snowflake = Snowflake(1);
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
    SentMessageSearch { channel: CHANNEL, first_attempt_ms: SENT_MS, skew_ms: 10_000, query }
}

/// Returns the id of the n-th message since the first attempt.
fn id(n: u64) -> u64 {
    Snowflake::from_ms(SENT_MS).0 + n
}

/// Serves the history of a channel with these messages.
fn channel(messages: Vec<Value>, readable: bool) -> impl FnMut(usize, &ReceivedRequest) -> Reply + Send {
    move |_, request| {
        if !request.path.contains("/messages") {
            let last = messages.last().map(|message| message["id"].clone());
            return Reply::json(200, json!({"id": "1", "type": 0, "last_message_id": last}));
        }
        if !readable {
            return Reply::json(200, json!([]));
        }
        let number = |name: &str| -> Option<u64> {
            let at = request.path.find(&format!("{name}="))? + name.len() + 1;
            request.path.get(at..)?.split('&').next()?.parse().ok()
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
async fn sent_message_is_found_in_channel_history() {
    let talk = |count: u64| (0..count).map(|n| message(id(n), 9, "talk")).collect::<Vec<_>>();
    let mut long = talk(250);
    long.push(message(id(250), 7, "the answer"));
    let own = |n| message(id(n), 7, "the answer");
    let early = message(Snowflake::from_ms(SENT_MS - 60_000).0, 7, "the answer");
    let found = |n| SentMessageLookup::Found(Snowflake(id(n)));
    for (row, messages, known, expected, requests) in [
        ("first page", vec![own(3)], vec![], found(3), 1),
        ("third page", long, vec![], found(250), 3),
        ("known message", vec![own(3)], vec![id(3)], SentMessageLookup::Absent, 1),
        ("two matches", vec![own(3), own(4)], vec![], found(3), 1),
        ("second match", vec![own(3), own(4)], vec![id(3)], found(4), 1),
        ("older message", vec![early], vec![], SentMessageLookup::Absent, 2),
        ("other authors", talk(100), vec![], SentMessageLookup::Absent, 3),
        ("empty channel", vec![], vec![], SentMessageLookup::Absent, 3),
    ] {
        let server = Server::start(channel(messages, true)).await;
        assert_eq!(server.rest().lookup(&search(&known)).await, expected, "{row}");
        let requests = if row == "other authors" { 2 } else { requests };
        assert_eq!(server.lines().len(), requests, "{row}: {:?}", server.lines());
    }
}

#[tokio::test]
async fn missing_read_permission_leaves_outcome_unknown() {
    let server = Server::start(channel(vec![message(id(3), 9, "talk")], false)).await;
    let result = server.rest().lookup(&search(&[])).await;
    assert!(
        matches!(&result, SentMessageLookup::Unknown { why } if why.contains("Read Message History")),
        "{result:?}"
    );
    // No message since the first attempt: known even without the permission.
    let early = message(Snowflake::from_ms(SENT_MS - 60_000).0, 9, "talk");
    let server = Server::start(channel(vec![early], false)).await;
    assert_eq!(server.rest().lookup(&search(&[])).await, SentMessageLookup::Absent);
    let server = Server::list(vec![Reply::error(403, 50001)]).await;
    let result = server.rest().lookup(&search(&[])).await;
    assert!(matches!(&result, SentMessageLookup::Unknown { why } if why.contains("50001")), "{result:?}");
}

#[tokio::test]
async fn recorded_nonce_skips_the_search() {
    let server = Server::list(vec![Reply::Never]).await;
    let rest = server.rest();
    rest.record_sent_nonce("n1", Snowflake(77));
    assert_eq!(rest.lookup(&search(&[])).await, SentMessageLookup::Found(Snowflake(77)));
    assert!(server.lines().is_empty());
}
