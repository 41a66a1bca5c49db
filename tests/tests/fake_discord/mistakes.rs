//! Missing objects and invalid requests: the exact error code of each.

use super::ground::{Ground, code};
use acp_tests::fake_discord::http::http;
use serde_json::{Value, json};

#[test]
fn invalid_requests_return_documented_codes() {
    let ground = Ground::new();
    let (channel, guild, app) = (ground.channel, ground.guild, ground.bot.application);
    let message = ground.say(channel, "x");
    let text = json!({"content": "x"});
    let posts = format!("/channels/{channel}/messages");
    let mut cases: Vec<(&str, String, Value, (u16, u64))> = vec![
        ("GET", "/nothing".into(), Value::Null, (404, 0)),
        ("PUT", posts.clone(), text.clone(), (405, 0)),
        ("GET", "/channels/1".into(), Value::Null, (404, 10003)),
        ("GET", "/channels/abc".into(), Value::Null, (400, 50035)),
        ("POST", "/channels/1/messages".into(), text.clone(), (404, 10003)),
        ("GET", format!("/channels/{channel}/messages/1"), Value::Null, (404, 10008)),
        ("PATCH", format!("/channels/{channel}/messages/1"), text.clone(), (404, 10008)),
        ("POST", format!("/channels/{channel}/messages/{message}/threads"), json!({}), (400, 50035)),
        ("POST", format!("/channels/{channel}/messages/1/threads"), json!({"name": "x"}), (404, 10008)),
        ("GET", "/guilds/1/members/1".into(), Value::Null, (404, 10004)),
        ("GET", format!("/guilds/{guild}/members/1"), Value::Null, (404, 10007)),
        ("POST", "/webhooks/1/token".into(), text.clone(), (404, 10015)),
        ("POST", format!("/webhooks/{app}/token"), text, (404, 10015)),
        ("POST", "/interactions/1/token/callback".into(), json!({"type": 4}), (404, 10062)),
        ("PUT", "/applications/1/commands".into(), json!([]), (403, 50001)),
        ("PUT", format!("/applications/{app}/commands"), json!({}), (400, 50035)),
    ];
    for body in [
        json!([]),
        json!({"content": []}),
        json!({"content": "x", "components": {}}),
        json!({"content": "x", "embeds": [{"title": "x"}]}),
        json!({"content": "x", "flags": 1}),
        json!({"content": "x", "message_reference": {"message_id": "1"}}),
        json!({"content": "x", "allowed_mentions": {"parse": ["users"], "users": ["1"]}}),
    ] {
        cases.push(("POST", posts.clone(), body, (400, 50035)));
    }
    for (method, path, body, expected) in cases {
        assert_eq!(ground.code(method, &path, &body), expected, "{method} {path} {body}");
    }
}

#[test]
fn malformed_json_body_returns_50109() {
    let ground = Ground::new();
    let headers = [
        ("authorization", "Bot TOKEN"),
        ("content-type", "application/json"),
        ("user-agent", "DiscordBot (x, 0)"),
    ];
    let path = format!("/api/v10/channels/{}/messages", ground.channel);
    let answer = http(ground.fake.address(), "POST", &path, &headers, b"{\"content\":");
    assert_eq!(code(&answer.unwrap_or_else(|e| panic!("{e}"))), (400, 50109));
}

#[test]
fn bot_can_read_itself_its_gateway_and_its_guild() {
    let ground = Ground::new();
    assert_eq!(ground.get("/users/@me").json()["id"], json!(ground.bot.user.to_string()));
    assert_eq!(ground.get("/applications/@me").json()["id"], json!(ground.bot.application.to_string()));
    let limit = &ground.get("/gateway/bot").json()["session_start_limit"];
    assert_eq!((&limit["remaining"], &limit["max_concurrency"]), (&json!(1000), &json!(1)));
    let member = ground.get(&format!("/guilds/{}/members/{}", ground.guild, ground.user)).json();
    assert_eq!(member["user"]["username"], "ann");
}
