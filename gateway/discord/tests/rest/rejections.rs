//! Refusals by Discord, and their meaning.

use crate::server::{CARD, FINAL, Reply, STEP_TIMEOUT, Server, kind, new_message};
use acp_discord::core::endpoint::Page;
use acp_discord::core::errors::{RejectionKind, ResourceKind};
use acp_discord::core::ids::Snowflake;
use acp_discord::core::message::{Callback, FileUpload, MessageBody};
use acp_discord::rest::Webhook;
use acp_shared::redact::Secret;
use bytes::Bytes;
use serde_json::json;

const CHANNEL: Snowflake = Snowflake(1);
const MESSAGE: Snowflake = Snowflake(5);

#[tokio::test]
async fn error_codes_map_to_rejection_kinds() {
    for (status, code, create, edit) in [
        (404, 10003, RejectionKind::Gone(ResourceKind::Channel), RejectionKind::Gone(ResourceKind::Channel)),
        (404, 10008, RejectionKind::SentAndDeleted, RejectionKind::Gone(ResourceKind::Message)),
        (403, 50001, RejectionKind::LostAccess, RejectionKind::LostAccess),
        (403, 50013, RejectionKind::Forbidden, RejectionKind::Forbidden),
        (400, 50083, RejectionKind::Archived, RejectionKind::Archived),
        (400, 160_005, RejectionKind::Locked, RejectionKind::Locked),
        (400, 50035, RejectionKind::Invalid, RejectionKind::Invalid),
        (403, 0, RejectionKind::Forbidden, RejectionKind::Forbidden),
    ] {
        let server = Server::list(vec![Reply::error(status, code)]).await;
        let rest = server.rest();
        let created = rest.create_message(CHANNEL, &new_message("n", "x"), FINAL).await;
        assert_eq!(kind(created), Some(create), "{code}");
        assert_eq!(
            kind(rest.edit_message(CHANNEL, MESSAGE, &MessageBody::text("x"), CARD).await),
            Some(edit),
            "{code}"
        );
    }
}

#[tokio::test]
async fn removing_a_missing_target_succeeds() {
    for (code, done) in [(10008, true), (10003, false), (50013, false)] {
        let server = Server::list(vec![Reply::error(404, code)]).await;
        let rest = server.rest();
        let token = Secret::new("open".to_owned());
        assert_eq!(rest.delete_original(MESSAGE, &token).await.is_ok(), done, "{code}");
        assert_eq!(rest.remove_reaction(CHANNEL, MESSAGE, "👀", STEP_TIMEOUT).await.is_ok(), done, "{code}");
    }
}

#[tokio::test]
async fn existing_thread_counts_as_started() {
    let thread = json!({"id": "5", "type": 11, "name": "t", "guild_id": "2", "parent_id": "1",
        "thread_metadata": {"archived": false, "auto_archive_duration": 1440, "locked": false}});
    let server = Server::list(vec![Reply::json(201, thread), Reply::error(400, 160_004)]).await;
    let rest = server.rest();
    let first = rest.thread_from_message(CHANNEL, MESSAGE, "t", 1440, FINAL).await;
    assert!(
        first.as_ref().is_ok_and(|started| started.id == MESSAGE && started.guild == Some(Snowflake(2))),
        "{first:?}"
    );
    let second = rest.thread_from_message(CHANNEL, MESSAGE, "t", 1440, FINAL).await;
    assert!(second.is_ok_and(|started| started.id == MESSAGE && started.guild.is_none()));
    let body = server.requests().first().map(|request| request.json());
    assert_eq!(body, Some(json!({"name": "t", "auto_archive_duration": 1440})));
    assert_eq!(
        kind(rest.thread_from_message(CHANNEL, MESSAGE, "", 60, FINAL).await),
        Some(RejectionKind::Invalid)
    );
    assert_eq!(server.lines().len(), 2);
}

#[tokio::test]
async fn dead_webhook_is_not_called_again() {
    let hook = |id, token: &str| Webhook { id: Snowflake(id), token: Secret::new(token.to_owned()) };
    let server = Server::start(|_, request| {
        if request.path.contains("/webhooks/8/") {
            Reply::error(404, 10015)
        } else if request.path.contains("/old") {
            Reply::error(401, 50027)
        } else {
            Reply::message(10)
        }
    })
    .await;
    let rest = server.rest();
    let body = MessageBody::text("x");
    let gone = Some(RejectionKind::Gone(ResourceKind::Webhook));
    for _ in 0..2 {
        let sent = rest.execute_webhook(&hook(8, "t"), Some(MESSAGE), CHANNEL, &body, None, FINAL).await;
        assert_eq!(kind(sent), gone);
        let sent = rest.execute_webhook(&hook(9, "old"), None, CHANNEL, &body, None, FINAL).await;
        assert_eq!(kind(sent), gone);
    }
    assert_eq!(server.lines().len(), 2, "{:?}", server.lines());
    // The same webhook with another token is usable, and the bot's own token was not refused.
    let sent = rest.execute_webhook(&hook(9, "new"), None, CHANNEL, &body, None, FINAL).await;
    assert!(sent.is_ok(), "{sent:?}");
    // A webhook with a refused token is tried once more after `mark_webhook_alive`; one that does not exist
    // is not.
    for (hook, requests) in [(hook(9, "old"), 4), (hook(8, "t"), 4)] {
        rest.mark_webhook_alive(&hook);
        for _ in 0..2 {
            let sent = rest.execute_webhook(&hook, None, CHANNEL, &body, None, FINAL).await;
            assert_eq!(kind(sent), gone);
        }
        assert_eq!(server.lines().len(), requests, "{:?}", server.lines());
    }
    assert!(!rest.counts().unauthorized);
    let requests = server.requests();
    assert!(requests.iter().all(|request| request.header("authorization").is_none()));
    assert_eq!(
        requests.first().map(|a| a.path.clone()),
        Some("/api/v10/webhooks/8/t?wait=true&thread_id=5".to_owned())
    );
}

#[tokio::test]
async fn invalid_payloads_are_not_sent() {
    let server = Server::list(vec![Reply::message(10)]).await;
    let rest = server.rest();
    let long = MessageBody::text("x".repeat(2001));
    for body in [&long, &MessageBody::default()] {
        assert_eq!(kind(rest.edit_message(CHANNEL, MESSAGE, body, CARD).await), Some(RejectionKind::Invalid));
        let callback = Callback::Message(body.clone());
        let token = Secret::new("open".to_owned());
        assert_eq!(kind(rest.callback(MESSAGE, &token, &callback).await), Some(RejectionKind::Invalid));
    }
    let message = new_message(&"n".repeat(26), "x");
    assert_eq!(kind(rest.create_message(CHANNEL, &message, FINAL).await), Some(RejectionKind::Invalid));
    assert!(server.lines().is_empty());
}

#[tokio::test]
async fn requests_disable_mentions() {
    let server = Server::start(|_, _| Reply::message(10)).await;
    let rest = server.rest();
    let (body, token) = (MessageBody::text("@everyone"), Secret::new("open".to_owned()));
    let hook = Webhook { id: Snowflake(8), token: token.clone() };
    let results = [
        rest.create_message(CHANNEL, &new_message("n", "@everyone"), FINAL).await.map(|_| ()),
        rest.edit_message(CHANNEL, MESSAGE, &body, CARD).await,
        rest.execute_webhook(&hook, None, CHANNEL, &body, Some("Codex"), FINAL).await.map(|_| ()),
        rest.callback(MESSAGE, &token, &Callback::Message(body.clone())).await,
        rest.edit_original(MESSAGE, &token, &body).await.map(|_| ()),
        rest.followup(MESSAGE, &token, &body).await.map(|_| ()),
    ];
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    for request in server.requests() {
        let body = request.json();
        let message = body.get("data").unwrap_or(&body);
        let expected = json!({"parse": [], "replied_user": false});
        assert_eq!(message["allowed_mentions"], expected, "{}", request.line());
    }
}

#[tokio::test]
async fn files_are_sent_as_multipart() {
    let server = Server::list(vec![Reply::limited(0.01, false), Reply::message(10)]).await;
    let file = FileUpload {
        name: "turn.diff".to_owned(),
        content_type: "text/x-diff".to_owned(),
        description: String::new(),
        bytes: Bytes::from_static(b"-a\n+b\n"),
    };
    let mut message = new_message("n", "see");
    message.body.files.push(file);
    let rest = server.rest();
    assert!(rest.create_message(CHANNEL, &message, FINAL).await.is_ok());
    // The retry has the same content as the first attempt.
    let requests = server.requests();
    assert_eq!(requests.len(), 2);
    for request in requests {
        let text = String::from_utf8_lossy(&request.body).into_owned();
        let form = request.header("content-type").unwrap_or_default();
        assert!(form.starts_with("multipart/form-data"), "{form}");
        for part in [
            "name=\"payload_json\"",
            "\"enforce_nonce\":true",
            "\"attachments\":[{\"filename\":\"turn.diff\",\"id\":\"0\"}]",
            "name=\"files[0]\"; filename=\"turn.diff\"",
            "text/x-diff",
            "-a\n+b\n",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }
}

#[tokio::test]
async fn responses_are_decoded() {
    let server = Server::start(|_, request| {
        let path = request.path.trim_start_matches("/api/v10");
        let thread = json!({"id": "5", "type": 11, "name": "t", "guild_id": "2", "parent_id": "1",
            "last_message_id": null, "thread_metadata": {"archived": true, "locked": false}});
        match path {
            "/users/@me" => Reply::json(200, json!({"id": "7", "username": "bot", "bot": true})),
            "/applications/@me" => Reply::json(200, json!({"id": "3", "name": "Bot"})),
            "/channels/5" => Reply::json(200, thread),
            "/guilds/2/members/7" => Reply::json(200, json!({"roles": ["2"], "nick": null})),
            "/channels/1/webhooks" => Reply::json(200, json!([{"id": "8", "token": "hook", "type": 1}])),
            "/channels/1/messages?limit=2&after=5" => {
                Reply::json(200, json!([crate::server::message(6, 7, "a")]))
            }
            "/applications/3/commands" => Reply::json(200, json!([])),
            _ => Reply::error(404, 0),
        }
    })
    .await;
    let rest = server.rest();
    assert_eq!((rest.me().await, rest.application().await), (Ok(Snowflake(7)), Ok(Snowflake(3))));
    let channel = rest.channel(MESSAGE).await;
    assert!(channel.as_ref().is_ok_and(|c| c.is_thread() && c.last_message_id.is_none()), "{channel:?}");
    assert!(rest.member(Snowflake(2), Snowflake(7)).await.is_ok_and(|member| member.roles == [Snowflake(2)]));
    let hooks = rest.webhooks(CHANNEL).await;
    assert!(hooks.is_ok_and(|hooks| hooks.iter().all(|hook| hook.token.is_some())));
    let page = rest.messages(CHANNEL, Page::After(MESSAGE), 2).await;
    assert!(page.is_ok_and(|page| page.iter().map(|m| m.id).eq([Snowflake(6)])));
    let command = json!({"name": "acp", "description": "d", "type": 1});
    assert_eq!(rest.put_commands(Snowflake(3), None, std::slice::from_ref(&command)).await, Ok(()));
    let requests = server.requests();
    assert_eq!(requests.last().map(|request| request.json()), Some(json!([command])));
}

/// Messages of a history that cannot be parsed are left out and counted.
#[tokio::test]
async fn unreadable_history_messages_are_skipped() {
    let server = Server::start(|_, _| {
        let message = json!({"id": "8", "channel_id": "1", "author": {"id": "9", "username": "ann"}, "type": 0,
            "content": "hello", "attachments": [], "mentions": []});
        Reply::json(200, json!([{"id": "7", "author": 1}, message]))
    })
    .await;
    let rest = server.rest();
    let read = rest.history(CHANNEL, Snowflake(6), FINAL).await;
    assert!(read.is_ok_and(|history| history.messages.len() == 1
        && history.newest_id == Snowflake(8)
        && !history.has_more));
    assert_eq!(rest.counts().unreadable, 1);
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let elsewhere = Reply::text(302, "").with("location", "https://discord.com/api/v10/users/@me");
    let server = Server::list(vec![elsewhere]).await;
    assert_eq!(kind(server.rest().me().await), Some(RejectionKind::Invalid));
    assert_eq!(server.lines().len(), 1);
}
