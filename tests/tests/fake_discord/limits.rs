//! Rate limits: headers, 429s, scopes, the ban.

use super::ground::Ground;
use acp_tests::fake_discord::core::faults::{RestFate, Scope, When};
use acp_tests::fake_discord::core::settings::Rule;
use serde_json::{Value, json};

const POST: &str = "POST /channels/{}/messages";

#[test]
fn bucket_headers_count_down_to_429() {
    let ground = Ground::strict();
    let other = ground.fake.add_channel(ground.guild, "other");
    let post =
        |channel: u64| ground.api("POST", &format!("/channels/{channel}/messages"), &json!({"content": "x"}));
    let answers: Vec<_> = (0..5).map(|_| post(ground.channel)).collect();
    let remaining: Vec<_> =
        answers.iter().filter_map(|answer| answer.header("x-ratelimit-remaining")).collect();
    assert_eq!(remaining, ["4", "3", "2", "1", "0"]);
    let number = |name: &str| answers[0].header(name).and_then(|text| text.parse::<f64>().ok());
    assert_eq!(number("x-ratelimit-limit"), Some(5.0));
    assert!(number("x-ratelimit-reset-after").is_some_and(|after| after > 0.0 && after <= 5.0));
    assert!(number("x-ratelimit-reset").is_some_and(|reset| reset > 1.7e9));
    let refused = post(ground.channel);
    let body = refused.json();
    assert_eq!((refused.status, &body["global"], body.get("code")), (429, &json!(false), None));
    assert!(body["retry_after"].as_f64().is_some_and(|after| after > 0.0 && after <= 5.0), "{body}");
    assert_eq!(refused.header("x-ratelimit-scope"), Some("user"));
    assert!(refused.header("retry-after").is_some_and(|after| after.parse::<u64>().is_ok()));
    let elsewhere = post(other);
    assert_eq!(elsewhere.status, 200, "another channel is another bucket");
    let [one, other] = [&refused, &elsewhere].map(|answer| answer.header("x-ratelimit-bucket"));
    assert_eq!(other, one, "of the same name");
    assert_eq!(ground.get(&format!("/channels/{}", ground.channel)).status, 200, "another route too");
    ground.fake.advance(5000);
    assert_eq!(post(ground.channel).status, 200);
    assert_eq!(ground.fake.tally().rate_limited, 1);
}

#[test]
fn global_limit_exempts_interactions() {
    let ground = Ground::new();
    ground.register();
    let used = ground.ping();
    ground.fake.configure(json!({"global_per_second": 1}));
    let refused = (0..50).map(|_| ground.get("/users/@me")).find(|answer| answer.status == 429);
    let refused = refused.unwrap_or_else(|| panic!("no limit"));
    assert_eq!(refused.header("x-ratelimit-global"), Some("true"));
    assert_eq!(refused.header("x-ratelimit-scope"), Some("global"));
    assert_eq!(refused.json()["global"], true);
    assert_eq!(ground.respond(&used, &json!({"type": 4, "data": {"content": "pong"}})), (204, 0));
}

#[test]
fn shared_429_does_not_count_as_invalid_request() {
    let ground = Ground::new();
    ground.fake.configure(json!({"invalid": {"limit": 1, "window_ms": 600_000}}));
    let limited = |scope| RestFate::RateLimited { retry_after_ms: 1500, scope };
    ground.fake.rest_fault(POST, When::Next(5), limited(Scope::Shared));
    let path = ground.posts();
    for _ in 0..5 {
        let answer = ground.api("POST", &path, &json!({"content": "x"}));
        assert_eq!((answer.status, answer.json()["retry_after"].as_f64()), (429, Some(1.5)));
        assert_eq!(answer.header("x-ratelimit-scope"), Some("shared"));
    }
    ground.say(ground.channel, "fine");
    assert_eq!(ground.fake.tally().invalid, 0);
    ground.fake.rest_fault(POST, When::Next(2), limited(Scope::User));
    for _ in 0..2 {
        ground.api("POST", &path, &json!({"content": "x"}));
    }
    let banned = ground.api("POST", &path, &json!({"content": "x"}));
    assert_eq!((banned.status, banned.header("content-type")), (429, Some("text/html")));
    ground.fake.advance(3_600_000);
    ground.say(ground.channel, "forgiven");
}

#[test]
fn edits_of_old_messages_have_their_own_limit() {
    let ground = Ground::new();
    let (old, path) = (ground.say(ground.channel, "old"), ground.posts());
    ground.fake.advance(3_600_001);
    let fresh = ground.say(ground.channel, "fresh");
    let edit = |id: u64| ground.api("PATCH", &format!("{path}/{id}"), &json!({"content": "x"}));
    assert!((0..3).all(|_| edit(old).status == 200));
    let refused = edit(old);
    assert_eq!((refused.status, &refused.json()["code"]), (429, &json!(30046)));
    assert!(refused.json()["retry_after"].as_f64().is_some_and(|after| after > 0.0 && after <= 20.0));
    assert_eq!(edit(fresh).status, 200);
    ground.fake.advance(20_000);
    assert_eq!(edit(old).status, 200);
}

#[test]
fn budgets_can_be_set_by_route() {
    let ground = Ground::strict().without(&[Rule::GlobalLimit]);
    ground.fake.configure(json!({"buckets": {"GET /channels/{}": {"limit": 1, "window_ms": 60_000}}}));
    let path = format!("/channels/{}", ground.channel);
    assert_eq!((ground.get(&path).status, ground.get(&path).status), (200, 429));
    let refused = ground.fake.try_order(&acp_tests::fake_discord::core::stage::Order::Configure {
        settings: json!({"no_such_setting": 1}),
    });
    assert!(refused.is_err_and(|error: Value| error["code"] == 50035));
}
