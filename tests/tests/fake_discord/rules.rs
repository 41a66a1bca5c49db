//! Every rule: requests refused under the rule are accepted when it is disabled.

use super::ground::{Ground, code, id};
use super::wire::{Got, INTENTS, Wire};
use acp_tests::fake_discord::core::settings::Rule;
use acp_tests::fake_discord::http::http;
use acp_tests::wait::until;
use serde_json::{Value, json};

const DAY_MS: u64 = 86_400_000;
const HOUR_MS: u64 = 3_600_000;
const TINY_FILE: usize = 10;

/// Checks of the rules; each returns `None` for a rule that it does not know.
const CHECKS: [fn(Rule, &Ground) -> Option<bool>; 5] =
    [of_messages, of_requests, of_threads, of_gateway, of_interactions];

/// True if a rule is enforced.
fn felt(rule: Rule, ground: &Ground) -> bool {
    let found = CHECKS.iter().find_map(|check| check(rule, ground));
    found.unwrap_or_else(|| panic!("{rule:?} has no check"))
}

fn of_messages(rule: Rule, ground: &Ground) -> Option<bool> {
    let path = ground.posts();
    let refused = |body: &Value, expected: (u16, u64)| ground.code("POST", &path, body) == expected;
    let form = (400, 50035);
    let felt = match rule {
        Rule::ContentLength => refused(&json!({"content": "x".repeat(2001)}), form),
        Rule::NotEmpty => refused(&json!({"content": " \n"}), (400, 50006)),
        Rule::FileSize => {
            ground.fake.configure(json!({"file_max": TINY_FILE}));
            let bytes = [b'x'; TINY_FILE + 1];
            code(&ground.upload("POST", &path, &json!({}), &[("a.txt", &bytes)])) == (413, 40005)
        }
        Rule::FileCount => {
            code(&ground.upload("POST", &path, &json!({}), &[("a.txt", b"x".as_slice()); 11])) == form
        }
        Rule::ComponentLimits => {
            let row =
                json!({"type": 1, "components": [{"type": 2, "style": 1, "label": "a", "custom_id": ""}]});
            refused(&json!({"content": "x", "components": [row]}), form)
        }
        Rule::NonceLength => refused(&json!({"content": "x", "nonce": "n".repeat(26)}), form),
        Rule::NonceDedupe => {
            let body = json!({"content": "x", "nonce": "n", "enforce_nonce": true});
            id(&ground.done("POST", &path, &body)) == id(&ground.done("POST", &path, &body))
        }
        Rule::NonceOfDeleted => {
            let body = json!({"content": "x", "nonce": "n", "enforce_nonce": true});
            ground.fake.delete(id(&ground.done("POST", &path, &body)));
            refused(&body, (404, 10008))
        }
        Rule::OnlyAuthorEdits => {
            let theirs = ground.fake.post(ground.user, ground.channel, "mine");
            ground.code("PATCH", &format!("{path}/{theirs}"), &json!({"content": "yours"})) == (403, 50005)
        }
        Rule::DefaultMentions => {
            let message = ground.say(ground.channel, "@everyone");
            let kept = ground.fake.transcript(ground.channel);
            kept.iter().any(|kept| kept.id == message && kept.pinged.everyone)
        }
        _ => return None,
    };
    Some(felt)
}

fn of_requests(rule: Rule, ground: &Ground) -> Option<bool> {
    let me =
        |token: &str| ground.fake.rest(token, "GET", "/users/@me", None).unwrap_or_else(|e| panic!("{e}"));
    let felt = match rule {
        Rule::Authorization => me("WRONG").status == 401,
        Rule::UserAgent => {
            let bare = http(ground.fake.address(), "GET", "/api/v10/users/@me", &[], &[]);
            code(&bare.unwrap_or_else(|e| panic!("{e}"))) == (403, 40333)
        }
        Rule::RouteBuckets => {
            (0..6).any(|_| ground.api("POST", &ground.posts(), &json!({"content": "x"})).status == 429)
        }
        Rule::GlobalLimit => {
            ground.fake.configure(json!({"global_per_second": 2}));
            (0..20).any(|_| me("TOKEN").status == 429)
        }
        Rule::InvalidRequestBan => {
            ground.fake.configure(json!({"invalid": {"limit": 2, "window_ms": 600_000}}));
            for _ in 0..3 {
                me("WRONG");
            }
            let after = me("TOKEN");
            after.status == 429 && after.json().is_null() && after.header("x-ratelimit-limit").is_none()
        }
        Rule::OldEdits => {
            let message = ground.say(ground.channel, "old");
            ground.fake.advance(HOUR_MS + 1);
            let path = format!("{}/{message}", ground.posts());
            let mut edits = (0..4).map(|n| ground.code("PATCH", &path, &json!({"content": n.to_string()})));
            edits.any(|edit| edit == (429, 30046))
        }
        Rule::Permissions => {
            ground.fake.deny(ground.bot.user, ground.channel, &["SEND_MESSAGES"]);
            ground.code("POST", &ground.posts(), &json!({"content": "x"})) == (403, 50013)
        }
        Rule::CdnExpiry => {
            let sent =
                ground.upload("POST", &ground.posts(), &json!({}), &[("a.txt", b"abc".as_slice())]).json();
            let url = sent["attachments"][0]["url"].as_str().unwrap_or_default().to_owned();
            let path = url.strip_prefix(&ground.fake.url()).unwrap_or_else(|| panic!("{sent}")).to_owned();
            let fetch =
                || http(ground.fake.address(), "GET", &path, &[], &[]).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(fetch().body, b"abc");
            ground.fake.advance(DAY_MS + 1000);
            fetch().status == 404
        }
        _ => return None,
    };
    Some(felt)
}

fn of_threads(rule: Rule, ground: &Ground) -> Option<bool> {
    let start = |form: &Value| {
        let message = ground.say(ground.channel, "start");
        ground.code("POST", &format!("{}/{message}/threads", ground.posts()), form)
    };
    let form = (400, 50035);
    let felt = match rule {
        Rule::ThreadName => start(&json!({"name": "x".repeat(101)})) == form,
        Rule::AutoArchive => start(&json!({"name": "x", "auto_archive_duration": 61})) == form,
        Rule::ArchivedThread => {
            let thread = ground.thread();
            let message = ground.say(thread, "x");
            ground.fake.archive(thread, true);
            let path = format!("/channels/{thread}/messages/{message}");
            ground.code("PATCH", &path, &json!({"content": "y"})) == (400, 50083)
        }
        Rule::PostUnarchives => {
            let thread = ground.thread();
            ground.fake.archive(thread, true);
            ground.code("POST", &format!("/channels/{thread}/messages"), &json!({"content": "x"})).0 == 200
        }
        Rule::LockedThread => {
            let thread = ground.thread();
            ground.fake.lock(thread, true);
            let body = json!({"content": "x"});
            ground.code("POST", &format!("/channels/{thread}/messages"), &body) == (400, 160_005)
        }
        Rule::OneThreadPerMessage => {
            let thread = ground.thread();
            let path = format!("{}/{thread}/threads", ground.posts());
            ground.code("POST", &path, &json!({"name": "again"})) == (400, 160_004)
        }
        Rule::ActiveThreads => {
            ground.fake.configure(json!({"active_threads_max": 1}));
            ground.thread();
            start(&json!({"name": "x"})) == (400, 160_006)
        }
        Rule::AutoArchiving => {
            let thread = ground.thread();
            ground.fake.advance(DAY_MS);
            ground.fake.channel(thread).thread.is_some_and(|thread| thread.archived)
        }
        _ => return None,
    };
    Some(felt)
}

fn of_interactions(rule: Rule, ground: &Ground) -> Option<bool> {
    ground.register();
    let pong = json!({"type": 4, "data": {"content": "pong"}});
    let felt = match rule {
        Rule::InteractionDeadline => {
            let used = ground.ping();
            ground.fake.advance(3001);
            ground.respond(&used, &pong) == (404, 10062)
        }
        Rule::InteractionOnce => {
            let used = ground.ping();
            assert_eq!(ground.respond(&used, &pong), (204, 0));
            ground.respond(&used, &pong) == (400, 40060)
        }
        Rule::InteractionTokenEnds => {
            let used = ground.ping();
            assert_eq!(ground.respond(&used, &pong), (204, 0));
            ground.fake.advance(900_000);
            let path = format!("/webhooks/{}/{}", ground.bot.application, used.token);
            ground.code("POST", &path, &json!({"content": "late"})) == (401, 50027)
        }
        Rule::ResponseTypes => ground.respond(&ground.ping(), &json!({"type": 6})) == (400, 50035),
        Rule::CommandLimits => {
            let path = format!("/applications/{}/commands", ground.bot.application);
            ground.code("PUT", &path, &json!([{"name": "No", "description": "d"}])) == (400, 50035)
        }
        Rule::WebhookCount => {
            ground.fake.configure(json!({"webhooks_max": 1}));
            let path = format!("/channels/{}/webhooks", ground.channel);
            ground.done("POST", &path, &json!({"name": "one"}));
            ground.code("POST", &path, &json!({"name": "two"})) == (400, 30007)
        }
        _ => return None,
    };
    Some(felt)
}

fn of_gateway(rule: Rule, ground: &Ground) -> Option<bool> {
    let connect = || Wire::connect(ground.fake.address());
    let felt = match rule {
        Rule::MessageContentIntent => {
            let mut wire = connect();
            wire.identify("TOKEN", INTENTS & !(1 << 15));
            wire.until("GUILD_CREATE");
            ground.fake.post(ground.user, ground.channel, "secret");
            wire.event("MESSAGE_CREATE")["content"] == ""
        }
        Rule::DisallowedIntents => {
            ground.fake.set_privileged_intents(ground.bot.user, 0);
            let mut wire = connect();
            wire.identify("TOKEN", INTENTS);
            wire.next() == Got::Closed(4014)
        }
        Rule::HelloFirst => {
            ground.fake.configure(json!({"hello_after_ms": 1000}));
            let mut wire = Wire::open(ground.fake.address(), "/?v=10&encoding=json");
            wire.identify("TOKEN", INTENTS);
            wire.next() == Got::Closed(4003)
        }
        Rule::Heartbeats => {
            ground.fake.configure(json!({"heartbeat_interval_ms": 100}));
            let mut wire = connect();
            wire.next_within(std::time::Duration::from_secs(1)) == Got::Closed(4009)
        }
        Rule::ClientEvents => {
            let mut wire = connect();
            for _ in 0..121 {
                wire.send(&json!({"op": 1, "d": null}));
            }
            (0..121).any(|_| wire.next() == Got::Closed(4008))
        }
        Rule::ClientPayload => {
            let mut wire = connect();
            wire.send(&json!({"op": 1, "d": null, "padding": "x".repeat(4096)}));
            wire.next() == Got::Closed(4002)
        }
        Rule::IdentifyBudget => {
            ground.fake.configure(json!({"identify_total": 1}));
            Wire::ready(ground).close(4000);
            let mut wire = connect();
            wire.identify("TOKEN", INTENTS);
            wire.next() == Got::Closed(4004)
        }
        _ => return None,
    };
    Some(felt)
}

/// Checks a part of the rules, so that several tests share the work.
fn check(part: usize) {
    const PARTS: usize = 4;
    for rule in Rule::ALL.iter().skip(part).step_by(PARTS) {
        let (with, without) = (Ground::strict(), Ground::strict().without(&[*rule]));
        assert!(felt(*rule, &with), "{rule:?} does not hold");
        assert!(!felt(*rule, &without), "{rule:?} holds though it is switched off");
    }
}

#[test]
fn each_rule_holds_until_it_is_disabled_1() {
    check(0);
}

#[test]
fn each_rule_holds_until_it_is_disabled_2() {
    check(1);
}

#[test]
fn each_rule_holds_until_it_is_disabled_3() {
    check(2);
}

#[test]
fn each_rule_holds_until_it_is_disabled_4() {
    check(3);
}

#[test]
fn message_restarts_auto_archive_timer() {
    let ground = Ground::new();
    let thread = ground.thread();
    ground.fake.advance(DAY_MS - 1000);
    ground.say(thread, "still here");
    ground.fake.advance(DAY_MS - 1000);
    let archived = || ground.fake.channel(thread).thread.is_some_and(|thread| thread.archived);
    assert!(!archived());
    ground.fake.advance(2000);
    until(acp_tests::wait::SOON, "thread archived", archived);
}
