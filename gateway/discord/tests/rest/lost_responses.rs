//! Lost responses, and the outcome that is reported.

use crate::server::{CARD, FINAL, Reply, STEP_TIMEOUT, Server, message, new_message};
use acp_discord::core::base_url::BaseUrl;
use acp_discord::core::errors::RejectionKind;
use acp_discord::core::ids::Snowflake;
use acp_discord::core::message::{Callback, MessageBody};
use acp_discord::rest::{Proof, RestError, SentMessage};
use acp_shared::redact::Secret;
use std::time::{Duration, Instant};

const CHANNEL: Snowflake = Snowflake(1);

fn uncertain<T: std::fmt::Debug>(result: Result<T, RestError>) -> String {
    match result {
        Err(RestError::Uncertain { why }) => why,
        other => panic!("not uncertain: {other:?}"),
    }
}

#[tokio::test]
async fn lost_response_is_uncertain_and_not_retried() {
    for (row, reply) in [
        ("no response", Reply::Never),
        ("connection closed", Reply::Cut),
        ("5xx", Reply::text(502, "<html>bad gateway")),
        ("no JSON", Reply::text(200, "<html>")),
        ("no id", Reply::text(200, "{}")),
        ("truncated body", Reply::message(5).with("content-length", 100_000)),
    ] {
        let server = Server::list(vec![reply]).await;
        let rest = server.rest_with(|settings| settings.request_timeout = Duration::from_millis(400));
        uncertain(rest.create_message(CHANNEL, &new_message("n1", "hello"), FINAL).await);
        assert_eq!(server.lines(), ["POST /api/v10/channels/1/messages"], "{row}");
    }
}

#[tokio::test]
async fn gateway_event_proves_delivery() {
    let server = Server::list(vec![Reply::Gated(Box::new(Reply::Cut))]).await;
    let rest = server.rest();
    let sending = {
        let rest = rest.clone();
        tokio::spawn(async move { rest.create_message(CHANNEL, &new_message("n1", "hello"), FINAL).await })
    };
    server.wait_for_requests(1).await;
    rest.record_sent_nonce("n1", Snowflake(77));
    server.release_gated();
    let posted = SentMessage { id: Snowflake(77), proof: Proof::GatewayEvent };
    assert_eq!(sending.await.ok(), Some(Ok(posted)));
}

#[tokio::test]
async fn refused_connection_is_not_sent() {
    // A port without a listener.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap_or_else(|e| panic!("{e}"));
    let port = listener.local_addr().map(|a| a.port()).unwrap_or_default();
    drop(listener);
    let server = Server::list(Vec::new()).await;
    let rest = server.rest_with(|settings| {
        settings.base = BaseUrl::parse(&format!("http://127.0.0.1:{port}")).unwrap_or_else(|e| panic!("{e}"))
    });
    match rest.create_message(CHANNEL, &new_message("n1", "hello"), FINAL).await {
        Err(RestError::Rejected(rejection)) => {
            assert_eq!((rejection.kind, rejection.status), (RejectionKind::NotSent, None));
            assert!(rejection.is_retryable(), "{rejection}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn idempotent_requests_are_retried_once() {
    for lost in [Reply::Cut, Reply::text(500, ""), Reply::text(503, "{}")] {
        let server = Server::list(vec![lost.clone(), Reply::message(5)]).await;
        let rest = server.rest();
        assert_eq!(rest.edit_message(CHANNEL, Snowflake(5), &MessageBody::text("x"), CARD).await, Ok(()));
        assert_eq!(server.lines().len(), 2);
        let server = Server::list(vec![lost.clone(), Reply::message(5)]).await;
        assert!(server.rest().message(CHANNEL, Snowflake(5)).await.is_ok());
        let server = Server::list(vec![lost.clone()]).await;
        let rest = server.rest();
        uncertain(rest.edit_message(CHANNEL, Snowflake(5), &MessageBody::text("x"), CARD).await);
        assert_eq!(server.lines().len(), 2);
        assert_eq!(rest.counts().retries.get("edit_message"), Some(&1));
        // The outcome of a read is never uncertain.
        let read = rest.message(CHANNEL, Snowflake(5)).await;
        assert!(matches!(read, Err(RestError::Rejected(ref r)) if r.is_retryable()), "{read:?}");
    }
}

#[tokio::test]
async fn interaction_callback_times_out_without_retry() {
    let server = Server::list(vec![Reply::Never]).await;
    let rest = server.rest_with(|settings| settings.callback_timeout = Duration::from_millis(300));
    let begin = Instant::now();
    let token = Secret::new("open".to_owned());
    uncertain(rest.callback(Snowflake(9), &token, &Callback::DeferredUpdate).await);
    assert!(begin.elapsed() < STEP_TIMEOUT, "{:?}", begin.elapsed());
    assert_eq!(server.lines(), ["POST /api/v10/interactions/9/open/callback"]);
}

#[tokio::test]
async fn dropped_request_frees_its_slot() {
    let server = Server::start(|number, _| match number {
        0 => Reply::Never,
        _ => Reply::message(6),
    })
    .await;
    let rest = server.rest();
    let message = new_message("n1", "one");
    tokio::select! {
        result = rest.create_message(CHANNEL, &message, FINAL) => panic!("{result:?}"),
        () = server.wait_for_requests(1) => {}
    }
    // The next request becomes the writer of the channel.
    let sent = rest.create_message(CHANNEL, &new_message("n2", "two"), FINAL).await;
    assert_eq!(sent, Ok(SentMessage { id: Snowflake(6), proof: Proof::Response }));
    let counts = rest.counts();
    assert_eq!((counts.waiting, counts.in_flight), (0, 0));
}

#[tokio::test]
async fn oversized_response_is_rejected() {
    let page = serde_json::Value::Array(vec![message(5, 7, "hello"); 50]);
    let server = Server::list(vec![Reply::json(200, page)]).await;
    let rest = server.rest_with(|settings| settings.max_response_bytes = 1000);
    let page = acp_discord::core::endpoint::Page::Newest;
    let error = rest.messages(CHANNEL, page, 100).await.err();
    assert!(error.is_some_and(|error| error.to_string().contains("1000 bytes")));
}
