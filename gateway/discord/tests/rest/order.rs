//! Order of requests, over real sockets.

use crate::server::{CARD, FINAL, PATIENT, Reply, Server, kind, new_message};
use acp_discord::core::errors::RejectionKind;
use acp_discord::core::ids::Snowflake;
use acp_discord::core::message::MessageBody;
use acp_discord::core::request_scheduler::Priority;
use acp_discord::rest::{QueueOptions, RestClient, RestError, Webhook};
use acp_shared::redact::Secret;
use std::time::Duration;

const HERE: Snowflake = Snowflake(1);

fn edit(rest: &RestClient, text: &'static str) -> tokio::task::JoinHandle<Result<(), RestError>> {
    let rest = rest.clone();
    tokio::spawn(async move { rest.edit_message(HERE, Snowflake(5), &MessageBody::text(text), CARD).await })
}

/// Waits until this many requests are in the queue.
async fn waiting(rest: &RestClient, count: usize) {
    let wait = async {
        while rest.counts().waiting != count {
            tokio::task::yield_now().await;
        }
    };
    assert!(tokio::time::timeout(PATIENT, wait).await.is_ok(), "{:?}", rest.counts());
}

#[tokio::test]
async fn an_edit_that_waits_gives_way_and_a_final_waits_for_no_card() {
    let server = Server::start(|_, asked| match asked.method.as_str() {
        "PATCH" => Reply::Gated(Box::new(Reply::message(5))),
        _ => Reply::message(6),
    })
    .await;
    let rest = server.rest();
    let first = edit(&rest, "1");
    server.reached(1).await;
    let second = edit(&rest, "2");
    waiting(&rest, 1).await;
    let third = edit(&rest, "3");
    assert_eq!(second.await.ok(), Some(Err(RestError::Superseded)));
    // The card has no response yet, and the final is sent all the same.
    assert!(rest.create_message(HERE, &new_message("n", "final"), FINAL).await.is_ok());
    server.open();
    assert_eq!(first.await.ok(), Some(Ok(())));
    server.reached(3).await;
    server.open();
    assert_eq!(third.await.ok(), Some(Ok(())));
    let bodies: Vec<_> = server.asked().iter().map(|asked| asked.json()["content"].clone()).collect();
    assert_eq!(bodies, ["1", "final", "3"]);
}

#[tokio::test]
async fn what_is_owed_to_a_channel_goes_one_by_one() {
    let server = Server::start(|_, _| Reply::Gated(Box::new(Reply::message(6)))).await;
    let rest = server.rest();
    let send = |nonce: &'static str, priority| {
        let rest = rest.clone();
        tokio::spawn(async move {
            rest.create_message(HERE, &new_message(nonce, nonce), QueueOptions::new(priority, PATIENT))
                .await
                .is_ok()
        })
    };
    let mut sends = vec![send("first", Priority::Notice)];
    server.reached(1).await;
    for (count, (nonce, priority)) in
        [("notice", Priority::Notice), ("final", Priority::Final), ("ask", Priority::Permission)]
            .into_iter()
            .enumerate()
    {
        sends.push(send(nonce, priority));
        waiting(&rest, count + 1).await;
    }
    for count in 1..=4 {
        server.reached(count).await;
        assert_eq!(server.lines().len(), count);
        server.open();
    }
    for send in sends {
        assert_eq!(send.await.ok(), Some(true));
    }
    let nonces: Vec<_> = server.asked().iter().map(|asked| asked.json()["nonce"].clone()).collect();
    assert_eq!(nonces, ["first", "ask", "final", "notice"]);
}

#[tokio::test]
async fn other_channels_do_not_wait() {
    let server = Server::start(|number, _| match number {
        0 => Reply::Never,
        _ => Reply::message(6),
    })
    .await;
    let rest = server.rest();
    let stuck = edit(&rest, "1");
    server.reached(1).await;
    assert!(rest.create_message(Snowflake(2), &new_message("n", "x"), FINAL).await.is_ok());
    stuck.abort();
}

#[tokio::test]
async fn a_full_queue_says_so() {
    let server = Server::list(vec![Reply::Never]).await;
    let rest = server.rest_with(|settings| settings.queue = 1);
    let stuck = [edit(&rest, "1")];
    server.reached(1).await;
    let waits = {
        let rest = rest.clone();
        tokio::spawn(async move { rest.typing(HERE).await })
    };
    waiting(&rest, 1).await;
    let limited = rest.create_message(HERE, &new_message("n", "x"), FINAL).await;
    assert_eq!(limited, Err(RestError::Limited { retry_after: Duration::from_secs(1) }));
    // A dropped request frees its place.
    waits.abort();
    waiting(&rest, 0).await;
    stuck.into_iter().for_each(|stuck| stuck.abort());
}

/// A queued message fails unsent when its thread is archived; other threads are not affected.
#[tokio::test]
async fn what_waits_for_a_thread_that_is_put_away_is_given_back() {
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
    let waits = send(HERE);
    server.reached(1).await;
    waiting(&rest, 1).await;
    rest.set_archived(HERE, true);
    // A webhook message would unarchive the thread as well.
    let hook = Webhook { id: Snowflake(8), token: Secret::new("t".to_owned()) };
    let body = MessageBody::text("n");
    let through = rest.execute_webhook(&hook, Some(HERE), Snowflake(3), &body, None, FINAL).await;
    assert_eq!(kind(through), Some(RejectionKind::Archived));
    for send in [waits, send(HERE)] {
        assert_eq!(send.await.ok().and_then(kind), Some(RejectionKind::Archived));
    }
    assert!(matches!(send(Snowflake(2)).await, Ok(Ok(_))));
    rest.set_archived(HERE, false);
    assert!(matches!(send(HERE).await, Ok(Ok(_))));
    assert_eq!(server.lines().len(), 3);
}
