//! Thousands of messages, hundreds of threads.

use super::ground::Ground;
use super::wire::Wire;
use acp_tests::fake_discord::core::settings::Rule;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const THREADS: usize = 200;
const MESSAGES: usize = 2000;

#[test]
fn heavy_two_thousand_messages_arrive_once_in_order() {
    let ground = Ground::new().without(&[Rule::RouteBuckets, Rule::GlobalLimit]);
    let thread = |n| ground.fake.make_thread(ground.user, ground.channel, &format!("t{n}"), None);
    let threads: Vec<_> = (0..THREADS).map(thread).collect();
    let mut wire = Wire::ready(&ground);
    let begun = Instant::now();
    for n in 0..MESSAGES {
        let channel = threads[n % THREADS];
        let body = json!({"content": format!("m{n}"), "nonce": n.to_string(), "enforce_nonce": true});
        ground.done("POST", &format!("/channels/{channel}/messages"), &body);
    }
    let took = begun.elapsed();
    eprintln!("{MESSAGES} messages in {took:?}");
    let told: Vec<Value> = (0..MESSAGES).map(|_| wire.until("MESSAGE_CREATE")["content"].clone()).collect();
    assert!(told.iter().enumerate().all(|(n, content)| *content == format!("m{n}")), "each once, in order");
    assert_eq!(ground.fake.whole_transcript().len(), MESSAGES + THREADS, "with a notice for each thread");
    assert!(took < Duration::from_secs(200), "so slow that tests wait for it: {took:?}");
}
