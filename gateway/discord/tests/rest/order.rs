//! Order of requests, over real sockets.

use crate::server::{CARD, FINAL, Reply, STEP_TIMEOUT, Server, kind, new_message};
use acp_discord::core::errors::RejectionKind;
use acp_discord::core::ids::Snowflake;
use acp_discord::core::message::MessageBody;
use acp_discord::core::request_scheduler::Priority;
use acp_discord::rest::{QueueOptions, RestClient, RestError, Webhook};
use acp_shared::redact::Secret;
use std::time::Duration;

const CHANNEL: Snowflake = Snowflake(1);

fn edit(rest: &RestClient, text: &'static str) -> tokio::task::JoinHandle<Result<(), RestError>> {
    let rest = rest.clone();
    tokio::spawn(
        async move { rest.edit_message(CHANNEL, Snowflake(5), &MessageBody::text(text), CARD).await },
    )
}

async fn wait_for_queue(rest: &RestClient, count: usize) {
    let wait = async {
        while rest.counts().waiting != count {
            tokio::task::yield_now().await;
        }
    };
    assert!(tokio::time::timeout(STEP_TIMEOUT, wait).await.is_ok(), "{:?}", rest.counts());
}

#[tokio::test]
async fn queued_edit_is_superseded_and_final_does_not_wait_for_card() {
    let server = Server::start(|_, request| match request.method.as_str() {
        "PATCH" => Reply::Gated(Box::new(Reply::message(5))),
        _ => Reply::message(6),
    })
    .await;
    let rest = server.rest();
    let first = edit(&rest, "1");
    server.wait_for_requests(1).await;
    let second = edit(&rest, "2");
    wait_for_queue(&rest, 1).await;
    let third = edit(&rest, "3");
    assert_eq!(second.await.ok(), Some(Err(RestError::Superseded)));
    // The card has no response yet, and the final is sent all the same.
    assert!(rest.create_message(CHANNEL, &new_message("n", "final"), FINAL).await.is_ok());
    server.release_gated();
    assert_eq!(first.await.ok(), Some(Ok(())));
    server.wait_for_requests(3).await;
    server.release_gated();
    assert_eq!(third.await.ok(), Some(Ok(())));
    let bodies: Vec<_> = server.requests().iter().map(|request| request.json()["content"].clone()).collect();
    assert_eq!(bodies, ["1", "final", "3"]);
}

#[tokio::test]
async fn durable_requests_of_a_channel_are_serialized() {
    let server = Server::start(|_, _| Reply::Gated(Box::new(Reply::message(6)))).await;
    let rest = server.rest();
    let send = |nonce: &'static str, priority| {
        let rest = rest.clone();
        tokio::spawn(async move {
            rest.create_message(
                CHANNEL,
                &new_message(nonce, nonce),
                QueueOptions::new(priority, STEP_TIMEOUT),
            )
            .await
            .is_ok()
        })
    };
    let mut sends = vec![send("first", Priority::Notice)];
    server.wait_for_requests(1).await;
    for (count, (nonce, priority)) in
        [("notice", Priority::Notice), ("final", Priority::Final), ("ask", Priority::Permission)]
            .into_iter()
            .enumerate()
    {
        sends.push(send(nonce, priority));
        wait_for_queue(&rest, count + 1).await;
    }
    for count in 1..=4 {
        server.wait_for_requests(count).await;
        assert_eq!(server.lines().len(), count);
        server.release_gated();
    }
    for send in sends {
        assert_eq!(send.await.ok(), Some(true));
    }
    let nonces: Vec<_> = server.requests().iter().map(|request| request.json()["nonce"].clone()).collect();
    assert_eq!(nonces, ["first", "ask", "final", "notice"]);
}

#[tokio::test]
async fn requests_of_other_channels_do_not_wait() {
    let server = Server::start(|number, _| match number {
        0 => Reply::Never,
        _ => Reply::message(6),
    })
    .await;
    let rest = server.rest();
    let stuck = edit(&rest, "1");
    server.wait_for_requests(1).await;
    assert!(rest.create_message(Snowflake(2), &new_message("n", "x"), FINAL).await.is_ok());
    stuck.abort();
}

#[tokio::test]
async fn full_queue_rejects_requests() {
    let server = Server::list(vec![Reply::Never]).await;
    let rest = server.rest_with(|settings| settings.queue = 1);
    let stuck = [edit(&rest, "1")];
    server.wait_for_requests(1).await;
    let queued = {
        let rest = rest.clone();
        tokio::spawn(async move { rest.typing(CHANNEL).await })
    };
    wait_for_queue(&rest, 1).await;
    let limited = rest.create_message(CHANNEL, &new_message("n", "x"), FINAL).await;
    assert_eq!(limited, Err(RestError::Limited { retry_after: Duration::from_secs(1) }));
    // A dropped request frees its slot.
    queued.abort();
    wait_for_queue(&rest, 0).await;
    stuck.into_iter().for_each(|stuck| stuck.abort());
}

#[tokio::test]
async fn queued_requests_of_archived_thread_are_rejected() {
    let server = Server::start(|number, _| match number {
        0 => Reply::limited(0.5, false),
        _ => Reply::message(6),
    })
    .await;
    let rest = server.rest();
    let send = |channel| {
        let rest = rest.clone();
        tokio::spawn(async move { rest.create_message(channel, &new_message("n", "n"), FINAL).await })
    };
    let queued = send(CHANNEL);
    server.wait_for_requests(1).await;
    wait_for_queue(&rest, 1).await;
    rest.set_archived(CHANNEL, true);
    // A webhook message would unarchive the thread as well.
    let hook = Webhook { id: Snowflake(8), token: Secret::new("t".to_owned()) };
    let body = MessageBody::text("n");
    let by_webhook = rest.execute_webhook(&hook, Some(CHANNEL), Snowflake(3), &body, None, FINAL).await;
    assert_eq!(kind(by_webhook), Some(RejectionKind::Archived));
    for send in [queued, send(CHANNEL)] {
        assert_eq!(send.await.ok().and_then(kind), Some(RejectionKind::Archived));
    }
    assert!(matches!(send(Snowflake(2)).await, Ok(Ok(_))));
    rest.set_archived(CHANNEL, false);
    assert!(matches!(send(CHANNEL).await, Ok(Ok(_))));
    assert_eq!(server.lines().len(), 3);
}
