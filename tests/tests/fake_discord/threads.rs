//! Threads: creation, archiving, locks, deletion, and their events.

use super::ground::{Ground, id};
use super::wire::Wire;
use acp_tests::fake_discord::core::model::message_kind;
use acp_tests::fake_discord::core::stage::Order;
use serde_json::{Value, json};

#[test]
fn a_thread_has_the_id_of_its_message() {
    let ground = Ground::new();
    let mut wire = Wire::ready(&ground);
    let message = ground.say(ground.channel, "start");
    wire.event("MESSAGE_CREATE");
    let path = format!("/channels/{}/messages/{message}/threads", ground.channel);
    let made = ground.api("POST", &path, &json!({"name": " plan ", "auto_archive_duration": 60}));
    assert_eq!(made.status, 201);
    let made = made.json();
    assert_eq!((id(&made), &made["name"], &made["type"]), (message, &json!("plan"), &json!(11)));
    assert_eq!(made["thread_metadata"]["auto_archive_duration"], 60);
    let created = wire.event("THREAD_CREATE");
    assert_eq!((id(&created), &created["newly_created"]), (message, &json!(true)));
    let bot = json!(ground.bot.user.to_string());
    assert_eq!(wire.event("THREAD_MEMBERS_UPDATE")["added_members"][0]["user_id"], bot);
    let marked = wire.event("MESSAGE_UPDATE");
    assert_eq!((id(&marked), &marked["flags"]), (message, &json!(32)), "the message has a thread");
    let starter = wire.event("MESSAGE_CREATE");
    assert_eq!(starter["type"], json!(message_kind::THREAD_STARTER));
    assert_eq!(starter["message_reference"]["message_id"], json!(message.to_string()));
    let count = ground.get(&format!("/channels/{message}")).json()["message_count"].clone();
    assert_eq!(count, 0, "the first one does not count");
    ground.fake.delete(message);
    assert_eq!(ground.get(&format!("/channels/{message}")).status, 200, "the thread outlives its message");
}

#[test]
fn unarchiving_sends_events_in_order() {
    let ground = Ground::new();
    let thread = ground.thread();
    let mut wire = Wire::ready(&ground);
    ground.fake.archive(thread, true);
    assert_eq!(wire.event("THREAD_UPDATE")["thread_metadata"]["archived"], true);
    ground.say(thread, "hello");
    assert_eq!(wire.event("THREAD_UPDATE")["thread_metadata"]["archived"], false);
    let member = wire.event("THREAD_MEMBER_UPDATE");
    assert_eq!(member["guild_id"], json!(ground.guild.to_string()));
    assert_eq!(member["user_id"], json!(ground.bot.user.to_string()));
    wire.event("MESSAGE_CREATE");
    ground.fake.rename(thread, "renamed");
    assert_eq!(wire.event("THREAD_UPDATE")["name"], "renamed");
    assert_eq!(wire.event("MESSAGE_CREATE")["type"], json!(message_kind::CHANNEL_NAME_CHANGE));
    ground.fake.delete_channel(thread);
    assert_eq!(id(&wire.event("THREAD_DELETE")), thread);
    assert_eq!(ground.code("GET", &format!("/channels/{thread}"), &Value::Null), (404, 10003));
}

#[test]
fn archived_thread_refuses_everything_but_deletes() {
    let ground = Ground::new();
    ground.register();
    let thread = ground.thread();
    let message = ground.button(thread, "stop");
    ground.fake.archive(thread, true);
    let path = format!("/channels/{thread}/messages/{message}");
    assert_eq!(ground.code("PATCH", &path, &json!({"content": "x"})), (400, 50083));
    assert_eq!(ground.code("PUT", &format!("{path}/reactions/%F0%9F%91%80/@me"), &Value::Null), (400, 50083));
    assert_eq!(ground.code("PATCH", &format!("/channels/{thread}"), &json!({"name": "x"})), (400, 50083));
    let used = ground.fake.command(ground.user, thread, &ground.bot, "ping", &[]);
    assert_eq!(used.map_err(|error| error["code"].clone()).err(), Some(json!(50083)));
    assert_eq!(ground.api("DELETE", &path, &Value::Null).status, 204, "deleting is allowed");
    let archived = || ground.fake.channel(thread).thread.is_some_and(|thread| thread.archived);
    assert!(archived());
    ground.done("PATCH", &format!("/channels/{thread}"), &json!({"archived": false}));
    assert!(!archived());
}

#[test]
fn thread_changes_require_ownership_or_permission() {
    let ground = Ground::new();
    let theirs = ground.fake.make_thread(ground.user, ground.channel, "theirs", None);
    let own = ground.thread();
    ground.fake.deny(ground.bot.user, ground.channel, &["MANAGE_THREADS"]);
    let change = |thread: u64, form: Value| ground.code("PATCH", &format!("/channels/{thread}"), &form);
    let refused = (403, 50013);
    assert_eq!(change(own, json!({"name": "mine", "auto_archive_duration": 10080})).0, 200);
    assert_eq!(change(theirs, json!({"name": "mine"})), refused);
    assert_eq!(change(own, json!({"locked": true})), refused, "locking is for moderators");
    ground.fake.archive(theirs, true);
    assert_eq!(change(theirs, json!({"archived": false})), refused, "who is not in it does not wake it");
    ground.say(theirs, "joins by posting");
    ground.fake.archive(theirs, true);
    assert_eq!(change(theirs, json!({"archived": false})).0, 200);
    ground.fake.lock(theirs, true);
    assert_eq!(change(theirs, json!({"archived": false})), refused);
    ground.fake.change(theirs, json!({"archived": false}));
    let post = ground.code("POST", &format!("/channels/{theirs}/messages"), &json!({"content": "x"}));
    assert_eq!(post, (400, 160_005), "locked and awake");
    ground.fake.allow(ground.bot.user, ground.channel, &["MANAGE_THREADS"]);
    ground.say(theirs, "moderators write");
    ground.fake.deny(ground.bot.user, ground.guild, &["SEND_MESSAGES_IN_THREADS"]);
    assert_eq!(ground.code("POST", &format!("/channels/{own}/messages"), &json!({"content": "x"})), refused);
    assert_eq!(ground.code("POST", &ground.posts(), &json!({"content": "x"})).0, 200);
}

#[test]
fn restored_access_sends_thread_list_but_lost_access_sends_no_delete() {
    let ground = Ground::new();
    let thread = ground.thread();
    let mut wire = Wire::ready(&ground);
    ground.fake.deny(ground.bot.user, ground.channel, &["VIEW_CHANNEL"]);
    wire.event("CHANNEL_UPDATE");
    ground.fake.post(ground.user, thread, "unseen");
    assert_eq!(ground.code("GET", &format!("/channels/{thread}"), &Value::Null), (403, 50001));
    ground.fake.allow(ground.bot.user, ground.channel, &["VIEW_CHANNEL"]);
    wire.event("CHANNEL_UPDATE");
    let sync = wire.event("THREAD_LIST_SYNC");
    assert_eq!((id(&sync["threads"][0]), sync["members"].as_array().map(Vec::len)), (thread, Some(1)));
}

#[test]
fn channel_delete_removes_threads_and_guild_outage_ends() {
    let ground = Ground::new();
    let thread = ground.thread();
    let mut wire = Wire::ready(&ground);
    ground.fake.delete_channel(ground.channel);
    wire.event("CHANNEL_DELETE");
    assert_eq!(ground.code("GET", &format!("/channels/{thread}"), &Value::Null), (404, 10003));
    let outage = |begins| {
        let _: Value = ground.fake.order(&Order::GuildOutage { guild: ground.guild, begins });
    };
    outage(true);
    assert_eq!(wire.event("GUILD_DELETE")["unavailable"], true);
    outage(false);
    assert_eq!(id(&wire.event("GUILD_CREATE")), ground.guild);
    ground.fake.remove_member(ground.guild, ground.bot.user);
    assert!(wire.event("GUILD_DELETE").get("unavailable").is_none());
}
