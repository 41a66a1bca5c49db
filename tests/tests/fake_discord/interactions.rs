//! Commands, buttons, autocompletion and modals, from the act to the answers.

use super::ground::{Ground, code, id};
use super::wire::Wire;
use acp_tests::fake_discord::core::stage::Order;
use serde_json::{Value, json};

#[test]
fn command_carries_options_and_accepts_responses() {
    let ground = Ground::new();
    ground.register();
    let mut wire = Wire::ready(&ground);
    let options = [("agent", json!("qwen"))];
    let used = ground.fake.command(ground.user, ground.channel, &ground.bot, "acp spawn", &options);
    let used = used.unwrap_or_else(|e| panic!("{e}"));
    let event = wire.event("INTERACTION_CREATE");
    assert_eq!((id(&event), &event["type"], &event["token"]), (used.id, &json!(2), &json!(used.token)));
    assert_eq!(
        event["data"]["options"][0]["options"][0],
        json!({"name": "agent", "type": 3, "value": "qwen"})
    );
    for member in ["locale", "entitlements", "member", "channel", "attachment_size_limit", "version"] {
        assert!(event.get(member).is_some(), "{member}: {event}");
    }
    let hooks = format!("/webhooks/{}/{}", ground.bot.application, used.token);
    assert_eq!(
        ground.code("POST", &hooks, &json!({"content": "early"})),
        (404, 10015),
        "not before the first response"
    );
    assert_eq!(ground.respond(&used, &json!({"type": 5})), (204, 0));
    let thinking = wire.event("MESSAGE_CREATE");
    assert_eq!(
        (&thinking["flags"], &thinking["interaction_metadata"]["name"]),
        (&json!(128), &json!("acp spawn"))
    );
    let first = ground.done("POST", &hooks, &json!({"content": "done"}));
    assert_eq!(id(&first), id(&thinking), "the first follow-up takes the place of the thinking");
    wire.event("MESSAGE_UPDATE");
    let second = ground.done("POST", &hooks, &json!({"content": "more @everyone", "flags": 64}));
    assert_eq!((&second["flags"], &second["mention_everyone"]), (&json!(64), &json!(false)));
    wire.quiet();
    let original = format!("{hooks}/messages/@original");
    assert_eq!(ground.done("PATCH", &original, &json!({"content": "edited"}))["content"], "edited");
    wire.event("MESSAGE_UPDATE");
    assert_eq!(ground.api("DELETE", &original, &Value::Null).status, 204);
    assert_eq!(code(&ground.get(&original)), (404, 10008));
    let secret = format!("/channels/{}/messages/{}", ground.channel, id(&second));
    assert_eq!(code(&ground.get(&secret)), (404, 10008), "ephemeral messages are not in the channel");
    assert_eq!(ground.fake.interaction(used.id).answered.map(|answered| answered.kind), Some(5));
}

#[test]
fn unregistered_commands_are_refused() {
    let ground = Ground::new();
    ground.register();
    let refused = |command: &str, options: &[(&str, Value)]| {
        ground.fake.command(ground.user, ground.channel, &ground.bot, command, options).is_err()
    };
    assert!(refused("nothing", &[]));
    assert!(refused("acp", &[]), "a sub-command must be named");
    assert!(refused("acp spawn", &[]), "a required option");
    assert!(refused("acp spawn", &[("agent", json!("q")), ("other", json!(1))]));
    let typed =
        ground.fake.autocomplete(ground.user, ground.channel, &ground.bot, "acp spawn", ("agent", "qw"));
    let typed = typed.unwrap_or_else(|e| panic!("{e}"));
    let choices = |count: usize| {
        let choices: Vec<Value> = (0..count).map(|n| json!({"name": n.to_string(), "value": "v"})).collect();
        json!({"type": 8, "data": {"choices": choices}})
    };
    assert_eq!(ground.respond(&typed, &json!({"type": 4, "data": {"content": "x"}})), (400, 50035));
    assert_eq!(ground.respond(&typed, &choices(26)), (400, 50035));
    assert_eq!(ground.respond(&typed, &choices(25)), (204, 0));
    let guild_path = format!("/applications/{}/guilds/{}/commands", ground.bot.application, ground.guild);
    ground.done("PUT", &guild_path, &json!([{"name": "here", "description": "d"}]));
    assert!(!refused("here", &[]));
    let before = ground.get(&guild_path).json();
    ground.done("PUT", &guild_path, &json!([{"name": "here", "description": "other"}]));
    let after = ground.get(&guild_path).json();
    assert_eq!(id(&before[0]), id(&after[0]), "the same command");
    assert_ne!(before[0]["version"], after[0]["version"]);
}

#[test]
fn button_press_can_update_its_message() {
    let ground = Ground::new();
    let mut wire = Wire::ready(&ground);
    let message = ground.button(ground.channel, "perm:1:0");
    wire.event("MESSAGE_CREATE");
    let press = || ground.fake.click(ground.user, message, "perm:1:0").unwrap_or_else(|e| panic!("{e}"));
    let pressed = press();
    let event = wire.event("INTERACTION_CREATE");
    assert_eq!((&event["type"], &event["data"]["custom_id"]), (&json!(3), &json!("perm:1:0")));
    assert_eq!((&event["data"]["component_type"], id(&event["message"])), (&json!(2), message));
    assert_eq!(ground.respond(&pressed, &json!({"type": 8})), (400, 50035));
    let update = json!({"type": 7, "data": {"content": "answered", "components": []}});
    let path = format!("/interactions/{}/{}/callback?with_response=true", pressed.id, pressed.token);
    let answer = ground.done("POST", &path, &update);
    assert_eq!(id(&answer["resource"]["message"]), message);
    wire.event("MESSAGE_UPDATE");
    assert!(ground.fake.click(ground.user, message, "perm:1:0").is_err(), "it is gone");
    let again = ground.button(ground.channel, "b");
    wire.event("MESSAGE_CREATE");
    let order = Order::Click {
        user: ground.user,
        message: again,
        custom_id: "b".into(),
        values: Vec::new(),
        without_channel: true,
    };
    let _: Value = ground.fake.order(&order);
    let event = wire.event("INTERACTION_CREATE");
    assert!(event.get("channel").is_none() && event["channel_id"].is_string());
    let disabled = json!({"type": 2, "style": 1, "label": "go", "custom_id": "b", "disabled": true});
    let form = json!({"components": [{"type": 1, "components": [disabled]}]});
    ground.done("PATCH", &format!("/channels/{}/messages/{again}", ground.channel), &form);
    assert!(ground.fake.click(ground.user, again, "b").is_err(), "it is disabled");
}

#[test]
fn modal_submission_returns_values() {
    let ground = Ground::new();
    ground.register();
    let used = ground.ping();
    let input = json!({"type": 4, "custom_id": "why", "label": "why", "style": 2});
    let modal = json!({"custom_id": "m", "title": "t", "components": [{"type": 1, "components": [input]}]});
    assert_eq!(ground.respond(&used, &json!({"type": 9, "data": {"custom_id": "m"}})), (400, 50035));
    assert_eq!(ground.respond(&used, &json!({"type": 9, "data": modal})), (204, 0));
    let mut wire = Wire::ready(&ground);
    let sent = ground.fake.submit(used.id, &[("why", "because")]).unwrap_or_else(|e| panic!("{e}"));
    let event = wire.event("INTERACTION_CREATE");
    assert_eq!((&event["type"], &event["data"]["custom_id"]), (&json!(5), &json!("m")));
    assert_eq!(event["data"]["components"][0]["components"][0]["value"], "because");
    assert_eq!(
        ground.respond(&sent, &json!({"type": 9, "data": modal})),
        (400, 50035),
        "no modal after a modal"
    );
    assert_eq!(ground.respond(&sent, &json!({"type": 4, "data": {"content": "thanks"}})), (204, 0));
}
