//! Webhooks: they need no bot token and ignore nonces.

use super::ground::{Ground, id};
use acp_tests::fake_discord::http::{HttpAnswer, http};
use serde_json::{Value, json};

/// Sends a request without a bot token.
fn open(ground: &Ground, method: &str, path: &str, body: &Value) -> HttpAnswer {
    let headers = [("content-type", "application/json"), ("user-agent", "DiscordBot (x, 0)")];
    let body = body.to_string();
    let answer = http(ground.fake.address(), method, &format!("/api/v10{path}"), &headers, body.as_bytes());
    answer.unwrap_or_else(|e| panic!("{method} {path}: {e}"))
}

#[test]
fn webhook_can_post_edit_and_be_deleted() {
    let ground = Ground::new();
    let thread = ground.thread();
    let made =
        ground.done("POST", &format!("/channels/{}/webhooks", ground.channel), &json!({"name": "persona"}));
    let hook = format!("/webhooks/{}/{}", id(&made), made["token"].as_str().unwrap_or_default());
    let body = json!({"content": "hi @everyone", "username": "Qwen", "nonce": "n", "enforce_nonce": true});
    assert_eq!(open(&ground, "POST", &hook, &body).status, 204, "without `wait` nothing is told");
    let first = open(&ground, "POST", &format!("{hook}?wait=true"), &body).json();
    let second = open(&ground, "POST", &format!("{hook}?wait=true"), &body).json();
    assert_ne!(id(&first), id(&second), "a nonce means nothing here");
    assert_eq!(first["author"]["username"], "Qwen");
    assert_eq!((&first["webhook_id"], &first["mention_everyone"]), (&made["id"], &json!(false)));
    ground.fake.archive(thread, true);
    let inside = open(&ground, "POST", &format!("{hook}?wait=true&thread_id={thread}"), &body).json();
    assert_eq!(inside["channel_id"], json!(thread.to_string()));
    assert!(ground.fake.channel(thread).thread.is_some_and(|thread| !thread.archived), "it wakes the thread");
    let message = format!("{hook}/messages/{}", id(&inside));
    let refused = open(&ground, "PATCH", &message, &json!({"content": "x"}));
    assert_eq!(refused.status, 404, "the thread must be named");
    let edited =
        open(&ground, "PATCH", &format!("{message}?thread_id={thread}"), &json!({"content": "edited"}));
    assert_eq!(edited.json()["content"], "edited");
    let foreign = ground.fake.add_channel(ground.guild, "foreign");
    assert_eq!(open(&ground, "POST", &format!("{hook}?thread_id={foreign}"), &body).status, 400);
    assert_eq!(open(&ground, "POST", &format!("/webhooks/{}/wrong", id(&made)), &body).status, 401);
    let listed = ground.get(&format!("/channels/{}/webhooks", ground.channel)).json();
    assert_eq!(listed[0]["token"], made["token"], "the application's own");
    assert_eq!(ground.code("DELETE", &format!("/webhooks/{}", id(&made)), &Value::Null), (204, 0));
    let gone = open(&ground, "POST", &hook, &body);
    assert_eq!((gone.status, &gone.json()["code"]), (404, &json!(10015)));
}

#[test]
fn webhook_creation_requires_permission_and_valid_name() {
    let ground = Ground::new();
    let path = format!("/channels/{}/webhooks", ground.channel);
    for name in ["", "Discord helper", "x".repeat(81).as_str()] {
        assert_eq!(ground.code("POST", &path, &json!({"name": name})), (400, 50035), "{name}");
    }
    ground.fake.deny(ground.bot.user, ground.channel, &["MANAGE_WEBHOOKS"]);
    assert_eq!(ground.code("POST", &path, &json!({"name": "persona"})), (403, 50013));
    assert!(ground.fake.webhooks().is_empty());
}
