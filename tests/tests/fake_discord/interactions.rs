//! Commands, buttons and autocompletion, from the act to the answers.

use super::ground::{Ground, code, id};
use super::wire::Wire;
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
    let option = json!({"name": "agent", "type": 3, "value": "qwen"});
    assert_eq!(event["data"]["options"][0]["options"][0], option);
    for member in ["locale", "entitlements", "member", "channel", "attachment_size_limit", "version"] {
        assert!(event.get(member).is_some(), "{member}: {event}");
    }
    let hooks = format!("/webhooks/{}/{}", ground.bot.application, used.token);
    let early = ground.code("POST", &hooks, &json!({"content": "early"}));
    assert_eq!(early, (404, 10015), "not before the first response");
    assert_eq!(ground.respond(&used, &json!({"type": 5})), (204, 0));
    let thinking = wire.event("MESSAGE_CREATE");
    assert_eq!(thinking["flags"], 128);
    assert_eq!(thinking["interaction_metadata"]["name"], "acp spawn");
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
    assert_eq!(ground.code("PATCH", &original, &json!({"content": "x"})), (404, 10008));
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
    let put = |description: &str| {
        ground.done("PUT", &guild_path, &json!([{"name": "here", "description": description}]))
    };
    let before = put("d");
    assert!(!refused("here", &[]));
    let after = put("other");
    assert_eq!(id(&before[0]), id(&after[0]), "the same command");
    assert_ne!(before[0]["version"], after[0]["version"]);
}

#[test]
fn button_press_is_answered_until_button_is_gone() {
    let ground = Ground::new();
    let mut wire = Wire::ready(&ground);
    let message = ground.button(ground.channel, "perm:1:0");
    wire.event("MESSAGE_CREATE");
    let press = || ground.fake.click(ground.user, message, "perm:1:0");
    let pressed = press().unwrap_or_else(|e| panic!("{e}"));
    let event = wire.event("INTERACTION_CREATE");
    assert_eq!((&event["type"], &event["data"]["custom_id"]), (&json!(3), &json!("perm:1:0")));
    assert_eq!((&event["data"]["component_type"], id(&event["message"])), (&json!(2), message));
    for unfit in [7, 8, 9] {
        assert_eq!(ground.respond(&pressed, &json!({"type": unfit})), (400, 50035), "{unfit}");
    }
    assert_eq!(ground.respond(&pressed, &json!({"type": 6})), (204, 0));
    let original = format!("/webhooks/{}/{}/messages/@original", ground.bot.application, pressed.token);
    let disabled = json!({"type": 2, "style": 1, "label": "go", "custom_id": "perm:1:0", "disabled": true});
    ground.done("PATCH", &original, &json!({"components": [{"type": 1, "components": [disabled]}]}));
    assert_eq!(id(&wire.event("MESSAGE_UPDATE")), message);
    assert!(press().is_err(), "it is disabled");
    ground.done("PATCH", &original, &json!({"components": []}));
    assert!(press().is_err(), "it is gone");
}
