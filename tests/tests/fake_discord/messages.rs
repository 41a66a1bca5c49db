//! Messages over REST: pages, nonces, mentions, files, edits, reactions.

use super::ground::{Ground, id};
use super::wire::Wire;
use acp_tests::fake_discord::core::model::Id;
use acp_tests::fake_discord::http::http;
use serde_json::{Value, json};

fn ids(list: &Value) -> Vec<Id> {
    list.as_array().unwrap_or_else(|| panic!("no list: {list}")).iter().map(id).collect()
}

#[test]
fn message_pages_are_newest_first_for_every_cursor() {
    let ground = Ground::new();
    let sent: Vec<Id> =
        (0..10).map(|n| ground.fake.post(ground.user, ground.channel, &n.to_string())).collect();
    ground.fake.delete(sent[4]);
    let page =
        |query: &str| ids(&ground.get(&format!("/channels/{}/messages{query}", ground.channel)).json());
    let picked = |of: &[usize]| of.iter().map(|n| sent[*n]).collect::<Vec<_>>();
    assert_eq!(page(""), picked(&[9, 8, 7, 6, 5, 3, 2, 1, 0]));
    assert_eq!(page(&format!("?after={}&limit=3", sent[1])), picked(&[5, 3, 2]));
    assert_eq!(page("?after=0&limit=1"), picked(&[0]));
    for query in ["limit=0", "limit=101", "limit=x", "before=1", "around=1"] {
        let path = format!("/channels/{}/messages?{query}", ground.channel);
        assert_eq!(ground.code("GET", &path, &Value::Null), (400, 50035), "{query}");
    }
}

#[test]
fn messages_are_hidden_without_read_permissions() {
    let ground = Ground::new();
    let message = ground.say(ground.channel, "x");
    let (list, one) = (ground.posts(), format!("{}/{message}", ground.posts()));
    ground.fake.deny(ground.bot.user, ground.channel, &["READ_MESSAGE_HISTORY"]);
    assert_eq!(ground.get(&list).json(), json!([]), "an empty page, and no error");
    assert_eq!(ground.code("GET", &one, &Value::Null), (403, 50013));
    ground.fake.deny(ground.bot.user, ground.guild, &["VIEW_CHANNEL"]);
    assert_eq!(ground.code("GET", &list, &Value::Null), (403, 50001));
    ground.fake.allow(ground.bot.user, ground.guild, &["VIEW_CHANNEL"]);
    ground.fake.allow(ground.bot.user, ground.channel, &["READ_MESSAGE_HISTORY"]);
    assert_eq!(ground.get(&one).json()["content"], "x");
}

#[test]
fn enforced_nonce_is_scoped_to_author_and_time() {
    let ground = Ground::new();
    let other_channel = ground.fake.add_channel(ground.guild, "other");
    let other_bot = ground.fake.add_bot(ground.guild, "other", "OTHER");
    let post = |token: &str, channel: Id, content: &str, enforce: bool| {
        let body = json!({"content": content, "nonce": "n1", "enforce_nonce": enforce});
        let answer = ground.fake.rest(token, "POST", &format!("/channels/{channel}/messages"), Some(&body));
        answer.unwrap_or_else(|e| panic!("{e}")).json()
    };
    let first = post("TOKEN", ground.channel, "one", true);
    assert_eq!(first["nonce"], "n1");
    let again = post("TOKEN", ground.channel, "two", true);
    assert_eq!((id(&again), &again["content"]), (id(&first), &json!("one")), "the first message comes back");
    let elsewhere = post("TOKEN", other_channel, "three", true);
    assert_eq!(id(&elsewhere), id(&first), "in another channel too");
    let other = post("OTHER", ground.channel, "four", true);
    assert_ne!(id(&other), id(&first), "{other_bot:?} is another author");
    assert_ne!(id(&post("TOKEN", ground.channel, "five", false)), id(&first), "nothing is enforced");
    ground.fake.advance(180_000);
    assert_ne!(id(&post("TOKEN", ground.channel, "six", true)), id(&first), "it is forgotten");
    assert_eq!(ground.fake.tally().deduplicated, 2);
    let listed = ground.get(&ground.posts()).json();
    let has_none = |all: &Vec<Value>| all.iter().all(|one| one.get("nonce").is_none());
    assert!(listed.as_array().is_some_and(has_none), "{listed}");
}

#[test]
fn content_is_counted_in_utf16_and_trimmed() {
    let ground = Ground::new();
    let path = ground.posts();
    let wide = "🦀".repeat(1000);
    assert_eq!(ground.done("POST", &path, &json!({"content": wide}))["content"], wide);
    assert_eq!(ground.code("POST", &path, &json!({"content": format!("{wide}x")})), (400, 50035));
    let error = ground.api("POST", &path, &json!({"content": "x".repeat(2001)})).json();
    let expected = json!({
        "message": "Invalid Form Body", "code": 50035,
        "errors": {"content": {"_errors": [
            {"code": "BASE_TYPE_MAX_LENGTH", "message": "Must be 2000 or fewer in length."}
        ]}},
    });
    assert_eq!(error, expected);
    assert_eq!(ground.done("POST", &path, &json!({"content": " \n a \n b\n"}))["content"], "a \n b");
}

#[test]
fn pings_follow_allowed_mentions_and_permissions() {
    let ground = Ground::new();
    let role = ground.fake.add_role(ground.guild, "team", false, &[ground.user]);
    let text = format!("@everyone <@{}> <@&{role}>", ground.user);
    let path = ground.posts();
    let silent = json!({"parse": [], "replied_user": false});
    let post = |body: Value| id(&ground.done("POST", &path, &body));
    let of = |id: Id| {
        let all = ground.fake.transcript(ground.channel);
        all.into_iter().find(|message| message.id == id).unwrap_or_else(|| panic!("{id}"))
    };
    let loud = of(post(json!({"content": text})));
    assert!(
        loud.pinged.everyone && loud.pinged.users.contains(&ground.user) && loud.pinged.roles.contains(&role)
    );
    let quiet = post(json!({"content": text, "allowed_mentions": silent}));
    assert!(of(quiet).pinged.is_empty());
    ground.done("PATCH", &format!("{path}/{quiet}"), &json!({"content": text, "allowed_mentions": silent}));
    assert!(of(quiet).pinged.is_empty());
    // An edit without `allowed_mentions` is read with the default, whatever the create had.
    ground.done("PATCH", &format!("{path}/{quiet}"), &json!({"content": text}));
    assert!(of(quiet).pinged.everyone);
    ground.fake.deny(ground.bot.user, ground.channel, &["MENTION_EVERYONE"]);
    let meek = of(post(json!({"content": text})));
    assert!(!meek.pinged.everyone && meek.pinged.roles.is_empty() && !meek.pinged.users.is_empty());
    assert_eq!(ground.fake.tally().pings, 3);
}

#[test]
fn attachments_can_be_sent_edited_and_refused() {
    let ground = Ground::new();
    let path = ground.posts();
    let form =
        json!({"content": "two", "attachments": [{"id": 1, "filename": "renamed.diff", "description": "d"}]});
    let files = [("a.txt", b"first".as_slice()), ("b.txt", b"second".as_slice())];
    let sent = ground.upload("POST", &path, &form, &files).json();
    let names: Vec<&Value> =
        sent["attachments"].as_array().into_iter().flatten().map(|file| &file["filename"]).collect();
    assert_eq!(names, ["a.txt", "renamed.diff"]);
    let kept = ground.fake.transcript(ground.channel).remove(0);
    assert_eq!(ground.fake.file(kept.attachments[1].id), b"second");
    // The attachment list of an edit names the files that stay.
    let stays = json!({"attachments": [{"id": kept.attachments[1].id.to_string()}]});
    let edited =
        ground.upload("PATCH", &format!("{path}/{}", kept.id), &stays, &[("c.txt", b"third".as_slice())]);
    assert_eq!(edited.status, 200, "{}", edited.json());
    let edited = ground.fake.transcript(ground.channel).remove(0);
    let names: Vec<&str> = edited.attachments.iter().map(|file| file.filename.as_str()).collect();
    assert_eq!(names, ["renamed.diff", "c.txt"]);
    // A URL with a changed expiry is invalid.
    let url = sent["attachments"][0]["url"].as_str().unwrap_or_default();
    let path = url.strip_prefix(&ground.fake.url()).unwrap_or_else(|| panic!("{sent}"));
    let fetch =
        |path: &str| http(ground.fake.address(), "GET", path, &[], &[]).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(fetch(path).body, b"first");
    assert_eq!(fetch(&path.replace("ex=", "ex=f")).status, 404);
    ground.fake.deny(ground.bot.user, ground.guild, &["ATTACH_FILES"]);
    let refused = ground.upload("POST", &ground.posts(), &json!({}), &files);
    assert_eq!((refused.status, &refused.json()["code"]), (403, &json!(50013)));
}

#[test]
fn edits_and_deletes_send_events_and_reactions_are_kept() {
    let ground = Ground::new();
    let mut wire = Wire::ready(&ground);
    let message = ground.say(ground.channel, "one");
    let created = wire.event("MESSAGE_CREATE");
    assert_eq!((id(&created), &created["guild_id"]), (message, &json!(ground.guild.to_string())));
    let path = format!("/channels/{}/messages/{message}", ground.channel);
    ground.done("PATCH", &path, &json!({"content": "two"}));
    let updated = wire.event("MESSAGE_UPDATE");
    assert_eq!(updated["content"], "two");
    assert!(updated["edited_timestamp"].is_string() && updated["author"]["id"].is_string());
    assert_eq!(ground.code("PATCH", &path, &json!({"content": ""})), (400, 50006), "nothing would be left");
    for emoji in ["%F0%9F%91%80", "team:123"] {
        assert_eq!(ground.api("PUT", &format!("{path}/reactions/{emoji}/@me"), &Value::Null).status, 204);
    }
    assert_eq!(ground.api("PUT", &format!("{path}/reactions/team:123/@me"), &Value::Null).status, 204);
    assert_eq!(ground.code("PUT", &format!("{path}/reactions/eyes/@me"), &Value::Null), (400, 10014));
    assert_eq!(ground.get(&path).json()["reactions"][1]["count"], 1);
    assert_eq!(ground.api("DELETE", &format!("{path}/reactions/team:123/@me"), &Value::Null).status, 204);
    assert_eq!(ground.api("POST", &format!("/channels/{}/typing", ground.channel), &Value::Null).status, 204);
    assert_eq!(ground.fake.tally().typing, [(ground.channel.to_string(), 1)].into());
    assert_eq!(ground.api("DELETE", &path, &Value::Null).status, 204);
    wire.event("MESSAGE_DELETE");
    assert_eq!(ground.code("DELETE", &path, &Value::Null), (404, 10008));
    let theirs = ground.fake.post(ground.user, ground.channel, "theirs");
    ground.fake.deny(ground.bot.user, ground.channel, &["MANAGE_MESSAGES"]);
    let path = format!("/channels/{}/messages/{theirs}", ground.channel);
    assert_eq!(ground.code("DELETE", &path, &Value::Null), (403, 50013));
    let kept = ground.fake.transcript(ground.channel);
    let state = (kept[0].edits, kept[0].deleted_ms.is_some());
    assert_eq!(state, (1, true), "what was deleted stays in the transcript");
}
