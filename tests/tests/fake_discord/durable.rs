//! The fake is killed and restarted at the same address with all accepted data.

use super::ground::{Ground, id};
use super::wire::{Got, Wire};
use acp_tests::fake_discord::core::faults::{RestFate, When};
use acp_tests::fake_discord::core::settings::Rule;
use serde_json::{Value, json};

#[test]
fn killed_fake_restores_everything_accepted() {
    let mut ground = Ground::new();
    ground.register();
    let thread = ground.thread();
    let path = format!("/channels/{thread}/messages");
    let body = json!({"content": "once", "nonce": "n", "enforce_nonce": true});
    let first = id(&ground.done("POST", &path, &body));
    let file = ground.upload("POST", &path, &json!({}), &[("a.txt", b"abc".as_slice())]).json();
    let hook =
        ground.done("POST", &format!("/channels/{}/webhooks", ground.channel), &json!({"name": "persona"}));
    let used = ground.ping();
    assert_eq!(ground.respond(&used, &json!({"type": 5})), (204, 0));
    ground.fake.deny(ground.bot.user, ground.channel, &["MANAGE_WEBHOOKS"]);
    ground.fake.archive(thread, true);
    ground.fake.advance(60_000);
    let wire = Wire::ready(&ground);
    let (before, address) = (ground.fake.whole_transcript(), ground.fake.address().to_owned());
    let now = ground.fake.now();

    ground.fake.kill();
    assert!(ground.fake.rest("TOKEN", "GET", "/users/@me", None).is_err(), "nobody answers");
    ground.fake.restart();

    assert_eq!(ground.fake.address(), address);
    let (json_before, json_after) = (json!(before), json!(ground.fake.whole_transcript()));
    assert_eq!(json_after, json_before);
    assert!(ground.fake.now() >= now, "the clock is still ahead");
    assert!(ground.fake.settings().rules_off.contains(&Rule::RouteBuckets));
    assert!(ground.fake.channel(thread).thread.is_some_and(|thread| thread.archived));
    assert_eq!(id(&ground.done("POST", &path, &body)), first, "the nonce is still known");
    let kept = file["attachments"][0]["id"].as_str().and_then(|id| id.parse().ok()).unwrap_or(0);
    assert_eq!(ground.fake.file(kept), b"abc");
    let hook = format!("/webhooks/{}/{}?wait=true", id(&hook), hook["token"].as_str().unwrap_or_default());
    ground.done("POST", &hook, &json!({"content": "still a persona"}));
    let original = format!("/webhooks/{}/{}/messages/@original", ground.bot.application, used.token);
    assert_eq!(ground.done("PATCH", &original, &json!({"content": "done"}))["content"], "done");
    assert_eq!(ground.respond(&used, &json!({"type": 5})), (400, 40060), "it was answered before");
    let made = ground.code("POST", &format!("/channels/{}/webhooks", ground.channel), &json!({"name": "x"}));
    assert_eq!(made, (403, 50013), "permissions stay taken");
    let newest = ground.say(ground.channel, "new");
    assert!(before.iter().all(|message| message.id < newest), "ids go on upwards");

    let (session, seq) = wire.drop_it();
    let mut wire = Wire::resumed(&ground, &session, seq);
    match wire.next() {
        Got::Payload(payload) => assert_eq!((&payload["op"], &payload["d"]), (&json!(9), &json!(false))),
        other => panic!("{other:?}"),
    }
}

#[test]
fn accepted_message_is_kept_when_response_is_lost() {
    let mut ground = Ground::new();
    let path = ground.posts();
    for n in 0..5 {
        let body = json!({"content": n.to_string(), "nonce": n.to_string(), "enforce_nonce": true});
        ground.fake.rest_fault("POST /channels/{}/messages", When::Next(1), RestFate::LostAfter);
        assert!(ground.fake.rest("TOKEN", "POST", &path, Some(&body)).is_err());
        ground.fake.restart();
        ground.done("POST", &path, &body);
    }
    let said: Vec<String> =
        ground.fake.transcript(ground.channel).into_iter().map(|message| message.content).collect();
    assert_eq!(said, ["0", "1", "2", "3", "4"]);
    assert_eq!(ground.fake.tally().deduplicated, 1, "counts are of this life");
    let listed: Value = ground.get(&path).json();
    assert_eq!(listed.as_array().map(Vec::len), Some(5));
}
