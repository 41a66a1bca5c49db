//! Discord's rate limits, in real time.

use crate::server::{CARD, FINAL, Reply, Server, kind, new_message};
use acp_discord::core::errors::RejectionKind;
use acp_discord::core::headers::RateLimitScope;
use acp_discord::core::ids::Snowflake;
use acp_discord::core::message::MessageBody;
use acp_discord::core::request_scheduler::Priority;
use acp_discord::rest::{QueueOptions, RestError};
use std::time::{Duration, Instant};

const CHANNEL: Snowflake = Snowflake(1);

#[tokio::test]
async fn rate_limit_headers_delay_requests() {
    let server = Server::start(|number, _| {
        let remaining = if number == 1 { 0 } else { 1 };
        Reply::message(10).bucket("b", 2, remaining, 0.5)
    })
    .await;
    let rest = server.rest();
    for n in 0..3 {
        let sent = rest.create_message(CHANNEL, &new_message(&format!("n{n}"), "x"), FINAL).await;
        assert!(sent.is_ok(), "{sent:?}");
    }
    let requests = server.requests();
    let gap = requests[2].at - requests[1].at;
    assert!(gap >= Duration::from_millis(480), "{gap:?}");
    assert!(rest.counts().limited.is_empty());
    assert!(
        rest.counts().waits.get(&Priority::Final).is_some_and(|w| w.longest >= Duration::from_millis(400))
    );
}

#[tokio::test]
async fn rate_limited_request_is_retried_after_delay() {
    let server = Server::list(vec![Reply::limited(0.3, false), Reply::message(10)]).await;
    let rest = server.rest();
    let begin = Instant::now();
    assert!(rest.create_message(CHANNEL, &new_message("n", "x"), FINAL).await.is_ok());
    assert!(begin.elapsed() >= Duration::from_millis(300));
    let bodies: Vec<_> = server.requests().iter().map(|request| request.json()["nonce"].clone()).collect();
    assert_eq!(bodies, ["n", "n"]);
    let counts = rest.counts();
    assert_eq!(
        (counts.limited.get(&RateLimitScope::User), counts.retries.get("create_message")),
        (Some(&1), Some(&1))
    );
    assert_eq!(counts.requests.get(&("create_message", "done")), Some(&1));
}

#[tokio::test]
async fn limited_error_has_retry_after() {
    let server = Server::list(vec![Reply::limited(30.0, false)]).await;
    let rest = server.rest();
    let hasty = QueueOptions::new(Priority::Card, Duration::from_secs(2));
    let begin = Instant::now();
    let limited = rest.create_message(CHANNEL, &new_message("n", "x"), hasty).await;
    let Err(RestError::Limited { retry_after }) = limited else { panic!("{limited:?}") };
    assert!(
        retry_after > Duration::from_secs(25) && retry_after <= Duration::from_secs(30),
        "{retry_after:?}"
    );
    assert!(begin.elapsed() < Duration::from_secs(20));
    // The next request is limited without being sent.
    let limited = rest.create_message(CHANNEL, &new_message("n", "x"), hasty).await;
    assert!(matches!(limited, Err(RestError::Limited { .. })), "{limited:?}");
    assert_eq!(server.lines().len(), 1);
}

#[tokio::test]
async fn global_limit_blocks_all_but_interaction_callbacks() {
    let server = Server::start(|number, request| match number {
        0 => Reply::limited(0.4, true),
        _ if request.path.contains("interactions") => Reply::text(204, ""),
        _ => Reply::message(10),
    })
    .await;
    let rest = server.rest();
    let first = new_message("a", "x");
    let second = new_message("b", "x");
    let callback = async {
        server.wait_for_requests(1).await;
        let token = acp_shared::redact::Secret::new("open".to_owned());
        rest.callback(Snowflake(9), &token, &acp_discord::core::message::Callback::DeferredUpdate).await
    };
    let other = async {
        server.wait_for_requests(2).await;
        rest.create_message(Snowflake(2), &second, FINAL).await
    };
    let begin = Instant::now();
    let (one, answered, two) = tokio::join!(rest.create_message(CHANNEL, &first, FINAL), callback, other);
    assert!(one.is_ok() && two.is_ok() && answered == Ok(()), "{one:?} {two:?} {answered:?}");
    let requests = server.requests();
    let early: Vec<_> = requests.iter().filter(|a| a.at - begin < Duration::from_millis(380)).collect();
    assert!(early.iter().skip(1).all(|a| a.path.contains("interactions")), "{early:?}");
    assert_eq!(requests.len(), 4);
}

#[tokio::test]
async fn old_message_edits_have_a_separate_limit() {
    let old = Snowflake(1 << 30);
    let young = Snowflake::from_ms(u64::MAX >> 22);
    let limit =
        serde_json::json!({"message": "max edits", "retry_after": 60.0, "global": false, "code": 30046});
    let server = Server::start(move |_, request| {
        if request.path.ends_with(&format!("/{old}")) {
            Reply::json(429, limit.clone()).with("x-ratelimit-scope", "user")
        } else {
            Reply::message(10)
        }
    })
    .await;
    let rest = server.rest();
    let card = QueueOptions::new(Priority::Card, Duration::from_secs(5));
    for _ in 0..2 {
        let edited = rest.edit_message(CHANNEL, old, &MessageBody::text("x"), card).await;
        assert!(
            matches!(edited, Err(RestError::Limited { retry_after }) if retry_after > card.max_wait),
            "{edited:?}"
        );
        assert_eq!(rest.edit_message(CHANNEL, young, &MessageBody::text("x"), card).await, Ok(()));
    }
    let of_old = server.lines().iter().filter(|line| line.ends_with(&format!("/{old}"))).count();
    assert_eq!(of_old, 1, "{:?}", server.lines());
}

#[tokio::test]
async fn per_second_limit_holds() {
    let server = Server::start(|_, _| Reply::message(10)).await;
    let rest = server.rest_with(|settings| settings.per_second = 10);
    let sends = (0..30_u64).map(|n| {
        let rest = rest.clone();
        tokio::spawn(
            async move { rest.create_message(Snowflake(n), &new_message("n", "x"), FINAL).await.is_ok() },
        )
    });
    for send in sends.collect::<Vec<_>>() {
        assert_eq!(send.await.ok(), Some(true));
    }
    let mut times: Vec<Instant> = server.requests().iter().map(|request| request.at).collect();
    times.sort_unstable();
    for pair in times.windows(11) {
        assert!(pair[10] - pair[0] >= Duration::from_secs(1), "{:?}", pair[10] - pair[0]);
    }
}

#[tokio::test]
async fn rejected_token_blocks_requests_until_replaced() {
    let server = Server::start(|_, request| match request.header("authorization") {
        Some("Bot other-token") => Reply::message(10),
        _ => Reply::json(401, serde_json::json!({"message": "401: Unauthorized", "code": 0})),
    })
    .await;
    let rest = server.rest();
    for _ in 0..3 {
        let sent = rest.create_message(CHANNEL, &new_message("n", "x"), FINAL).await;
        assert_eq!(kind(sent), Some(RejectionKind::Unauthorized));
    }
    assert_eq!(server.lines().len(), 1);
    assert!(rest.counts().unauthorized);
    let other = acp_shared::redact::Secret::new("other-token".to_owned());
    assert_eq!(rest.set_token(&other), Ok(()));
    assert!(rest.create_message(CHANNEL, &new_message("n", "x"), FINAL).await.is_ok());
    assert!(!rest.counts().unauthorized);
}

#[tokio::test]
async fn invalid_request_limit_blocks_further_requests() {
    let server = Server::start(|_, _| Reply::error(403, 50013)).await;
    let rest = server.rest_with(|settings| settings.max_invalid_requests = 3);
    for n in 0..3 {
        let edited = rest.edit_message(Snowflake(n), Snowflake(5), &MessageBody::text("x"), CARD).await;
        assert_eq!(kind(edited), Some(RejectionKind::Forbidden));
    }
    let limited = rest.edit_message(CHANNEL, Snowflake(5), &MessageBody::text("x"), CARD).await;
    assert!(
        matches!(limited, Err(RestError::Limited { retry_after }) if retry_after > Duration::from_secs(500)),
        "{limited:?}"
    );
    assert_eq!(server.lines().len(), 3);
}
