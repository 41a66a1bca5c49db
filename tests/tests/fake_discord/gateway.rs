//! The gateway: greeting, heartbeats, IDENTIFY, RESUME, closes, intents.

use super::ground::Ground;
use super::wire::{Got, INTENTS, Wire};
use acp_tests::fake_discord::core::stage::SocketAct;
use acp_tests::wait::{SOON, until};
use serde_json::{Value, json};
use std::time::Duration;

#[test]
fn identify_returns_ready_guilds_and_events() {
    let ground = Ground::new();
    let thread = ground.thread();
    let mut wire = Wire::connect(ground.fake.address());
    assert_eq!(wire.interval_ms, 41_250);
    wire.send(&json!({"op": 1, "d": null}));
    assert_eq!(wire.payload()["op"], 11);
    wire.identify("TOKEN", INTENTS);
    let ready = wire.event("READY");
    assert_eq!((&ready["v"], &ready["user"]["id"]), (&json!(10), &json!(ground.bot.user.to_string())));
    assert_eq!(ready["guilds"], json!([{"id": ground.guild.to_string(), "unavailable": true}]));
    assert_eq!(wire.seq, 1);
    let guild = wire.event("GUILD_CREATE");
    assert_eq!(guild["threads"][0]["id"], json!(thread.to_string()));
    assert_eq!(guild["channels"][0]["id"], json!(ground.channel.to_string()));
    assert!(ground.fake.is_connected(ground.bot.user));
    assert_eq!(ground.get("/gateway/bot").json()["session_start_limit"]["remaining"], 999);
    let post = json!({"content": "mine", "nonce": "n"});
    ground.done("POST", &ground.posts(), &post);
    assert_eq!(wire.event("MESSAGE_CREATE")["nonce"], "n", "own messages come back, with their nonce");
    assert_eq!(wire.seq, 3);
    wire.close(1000);
    until(SOON, "bot disconnected", || !ground.fake.is_connected(ground.bot.user));
}

#[test]
fn resume_replays_missed_events_in_order() {
    let ground = Ground::new();
    let wire = Wire::ready(&ground);
    let (session, seq) = wire.drop_it();
    let sent: Vec<String> = (0..5).map(|n| format!("missed {n}")).collect();
    for text in &sent {
        ground.fake.post(ground.user, ground.channel, text);
    }
    let mut wire = Wire::resumed(&ground, &session, seq);
    let missed: Vec<Value> = (0..5).map(|_| wire.event("MESSAGE_CREATE")["content"].clone()).collect();
    assert_eq!(json!(missed), json!(sent));
    wire.event("RESUMED");
    assert_eq!(wire.seq, seq + 6);
    // A resume from an earlier sequence number replays everything after it.
    wire.drop_it();
    let mut wire = Wire::resumed(&ground, &session, seq + 3);
    assert_eq!(wire.names(3), ["MESSAGE_CREATE", "MESSAGE_CREATE", "RESUMED"]);
    assert_eq!(ground.fake.tally().resumes, 2);
}

#[test]
fn invalid_resumes_are_refused() {
    let ground = Ground::new();
    let refused = |session: &str, seq: u64| {
        let mut wire = Wire::resumed(&ground, session, seq);
        match wire.next() {
            Got::Payload(payload) => payload["op"] == 9 && payload["d"] == false,
            _ => false,
        }
    };
    assert!(refused("unknown", 1));
    let wire = Wire::ready(&ground);
    let (session, seq) = (wire.session.clone(), wire.seq);
    wire.close(1000);
    assert!(refused(&session, seq), "closed with 1000");
    let wire = Wire::ready(&ground);
    let (session, seq) = (wire.session.clone(), wire.seq);
    wire.close(4000);
    ground.fake.advance(180_001);
    assert!(refused(&session, seq), "too late");
    let (session, seq) = Wire::ready(&ground).drop_it();
    let mut wire = Wire::resumed(&ground, &session, seq + 10);
    assert_eq!(wire.end(), Some(4007), "a number that was never sent");
}

#[test]
fn client_mistakes_close_with_documented_code() {
    let ground = Ground::new();
    let identify = |token: &str, intents: Value, shard: Value| {
        let properties = json!({"os": "o", "browser": "b", "device": "d"});
        json!({"op": 2, "d": {"token": token, "intents": intents, "properties": properties, "shard": shard}})
    };
    for (payload, code) in [
        (json!({"op": 99, "d": null}), 4001),
        (json!({"no": "op"}), 4002),
        (json!({"op": 2, "d": {"token": "TOKEN", "intents": 1}}), 4002),
        (json!({"op": 3, "d": {}}), 4003),
        (identify("WRONG", json!(1), Value::Null), 4004),
        (identify("TOKEN", json!(1), json!([1, 1])), 4010),
        (identify("TOKEN", Value::Null, Value::Null), 4013),
        (identify("TOKEN", json!(1_u64 << 40), Value::Null), 4013),
        (identify("TOKEN", json!(1 | 1 << 1), Value::Null), 4014),
        (json!({"op": 6, "d": {"token": "WRONG", "session_id": "x", "seq": 1}}), 4004),
    ] {
        let mut wire = Wire::connect(ground.fake.address());
        wire.send(&payload);
        assert_eq!(wire.end(), Some(code), "{payload}");
    }
    let mut wire = Wire::ready(&ground);
    wire.identify("TOKEN", INTENTS);
    assert_eq!(wire.end(), Some(4005));
    assert_eq!(Wire::open(ground.fake.address(), "/?v=9").end(), Some(4012));
}

#[test]
fn missing_heartbeat_closes_connection() {
    let ground = Ground::new();
    ground.fake.configure(json!({"heartbeat_interval_ms": 400}));
    let mut wire = Wire::ready(&ground);
    for _ in 0..4 {
        assert_eq!(wire.next_within(Duration::from_millis(200)), Got::Nothing);
        wire.send(&json!({"op": 1, "d": wire.seq}));
        assert_eq!(wire.payload()["op"], 11);
    }
    ground.fake.withhold_acks(true);
    wire.send(&json!({"op": 1, "d": wire.seq}));
    assert_eq!(wire.end(), Some(4009), "unanswered, then silent");
    assert_eq!(ground.fake.tally().silent_clients, 1);
}

#[test]
fn intents_filter_events_and_content() {
    let ground = Ground::new();
    let connect = |intents: u64| {
        let mut wire = Wire::identified(&ground, intents);
        wire.event("READY");
        wire
    };
    let mut only_messages = connect(1 << 9);
    let mut only_guilds = connect(1);
    only_guilds.event("GUILD_CREATE");
    let mention = format!("<@{}> hello", ground.bot.user);
    for text in ["hidden", mention.as_str()] {
        ground.fake.post(ground.user, ground.channel, text);
    }
    assert_eq!(only_messages.event("MESSAGE_CREATE")["content"], "");
    assert_eq!(only_messages.event("MESSAGE_CREATE")["content"], json!(mention), "who is mentioned may read");
    ground.say(ground.channel, "own");
    assert_eq!(only_messages.event("MESSAGE_CREATE")["content"], "own");
    only_guilds.quiet();
    let _ = ground.fake.add_channel(ground.guild, "other");
    assert_eq!(only_guilds.event("CHANNEL_CREATE")["name"], "other");
    only_messages.quiet();
}

#[test]
fn each_guild_belongs_to_one_shard() {
    let ground = Ground::new();
    let of = (ground.guild >> 22) % 2;
    for shard in 0..2 {
        let mut wire = Wire::connect(ground.fake.address());
        let properties = json!({"os": "o", "browser": "b", "device": "d"});
        let data =
            json!({"token": "TOKEN", "intents": INTENTS, "properties": properties, "shard": [shard, 2]});
        wire.send(&json!({"op": 2, "d": data}));
        let ready = wire.event("READY");
        assert_eq!(ready["guilds"].as_array().map(Vec::len), Some(usize::from(shard == of)));
        if shard != of {
            ground.fake.post(ground.user, ground.channel, "not here");
            wire.quiet();
        }
    }
}

/// IDENTIFY of a shard; returns READY, or `None` for an invalid session.
fn identify_shard(ground: &Ground, shard: u64, of: u64) -> (Wire, Option<Value>) {
    let mut wire = Wire::connect(ground.fake.address());
    let properties = json!({"os": "o", "browser": "b", "device": "d"});
    let data = json!({"token": "TOKEN", "intents": INTENTS, "properties": properties, "shard": [shard, of]});
    wire.send(&json!({"op": 2, "d": data}));
    let payload = wire.payload();
    if payload["op"] == 9 {
        assert_eq!(payload["d"], false, "{payload}");
        return (wire, None);
    }
    let ready = payload["d"].clone();
    (wire, Some(ready))
}

/// Reads until nothing arrives for a moment.
fn drain(wire: &mut Wire) {
    while let Got::Payload(_) = wire.next_within(Duration::from_millis(400)) {}
}

/// "Session Start Limit": one IDENTIFY of each `shard % max_concurrency` in five seconds; an earlier one gets an invalid session.
#[test]
fn early_identify_of_a_bucket_gets_an_invalid_session() {
    let ground = Ground::new();
    ground.fake.configure(json!({"identify_spacing_ms": 5_000, "max_concurrency": 2, "shards": 4}));
    let limit = ground.get("/gateway/bot").json();
    assert_eq!((&limit["session_start_limit"]["max_concurrency"], &limit["shards"]), (&json!(2), &json!(4)));
    for (shard, advance, is_ready) in [
        (0, 0, true),
        (1, 0, true),
        (2, 0, false),
        (3, 4_000, false),
        (2, 1_100, true),
        (0, 0, false),
        (3, 0, true),
    ] {
        ground.fake.advance(advance);
        let (_wire, ready) = identify_shard(&ground, shard, 4);
        assert_eq!(ready.map(|ready| ready["shard"].clone()), is_ready.then(|| json!([shard, 4])), "{shard}");
    }
    let tally = ground.fake.tally();
    let begun: Vec<u64> = tally.identified.iter().map(|session| session.0).collect();
    assert_eq!((begun, tally.early_identifies), (vec![0, 1, 2, 3], 3));
    assert_eq!(ground.get("/gateway/bot").json()["session_start_limit"]["remaining"], 993, "all are counted");
}

/// Direct messages and interactions there go to shard 0, messages only with their intent.
#[test]
fn direct_messages_belong_to_shard_zero() {
    const DIRECT: u64 = 1 << 12;
    let ground = Ground::new();
    let direct = ground.fake.add_direct(ground.user, ground.bot.user);
    let mut wires: Vec<Wire> = (0..2).map(|shard| identify_shard(&ground, shard, 2).0).collect();
    wires.iter_mut().for_each(drain);
    ground.fake.post(ground.user, direct, "without the intent");
    ground.done(
        "PUT",
        &format!("/applications/{}/commands", ground.bot.application),
        &json!([{"name": "acp", "description": "d"}]),
    );
    let used = ground.fake.command(ground.user, direct, &ground.bot, "acp", &[]).unwrap();
    let [zero, one] = &mut wires[..] else { panic!() };
    let event = zero.event("INTERACTION_CREATE");
    assert_eq!(
        (&event["id"], &event["context"], &event["channel"]["type"]),
        (&json!(used.id.to_string()), &json!(1), &json!(1))
    );
    assert_eq!(event["user"]["id"], json!(ground.user.to_string()));
    assert!(event.get("guild_id").is_none() && event.get("member").is_none(), "{event}");
    one.quiet();
    let mut wire = Wire::identified(&ground, INTENTS | DIRECT);
    wire.event("READY");
    drain(&mut wire);
    ground.fake.post(ground.user, direct, "with it");
    let message = wire.event("MESSAGE_CREATE");
    assert_eq!((&message["content"], message.get("guild_id")), (&json!("with it"), None));
}

#[test]
fn service_can_reconnect_invalidate_close_and_reset() {
    let ground = Ground::new();
    let mut wire = Wire::ready(&ground);
    assert_eq!(ground.fake.sockets(Some(ground.bot.user), SocketAct::Reconnect), 1);
    assert_eq!(wire.payload()["op"], 7);
    ground.fake.sockets(None, SocketAct::InvalidSession { resumable: true });
    assert_eq!(wire.payload(), json!({"op": 9, "d": true, "s": null, "t": null}));
    ground.fake.sockets(None, SocketAct::Close(4000));
    assert_eq!(wire.end(), Some(4000));
    let mut wire = Wire::ready(&ground);
    ground.fake.sockets(None, SocketAct::Reset);
    assert_eq!(wire.end(), None, "a reset is no close");
    let mut wire = Wire::ready(&ground);
    ground.fake.sockets(None, SocketAct::Cut);
    assert_eq!(wire.end(), None, "the end inside of a message is none either");
    ground.fake.withhold_hellos(1);
    Wire::open(ground.fake.address(), "/?v=10&encoding=json").quiet();
    Wire::connect(ground.fake.address());
}
