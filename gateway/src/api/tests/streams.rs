//! Journals in pages and as streams: bounded, whole, in order, across a restart.

use super::*;

fn wanted(fake: &Fake, run: bool, follow: bool) -> EventSelection {
    let (session, run) = (fake.key.clone(), run.then_some(fake.run));
    EventSelection { session, after: 0, run, replay: false, follow }
}

fn seq(line: &str) -> u64 {
    serde_json::from_str::<Value>(line).unwrap()["session_seq"].as_u64().unwrap()
}

#[tokio::test]
async fn pages_are_bounded_and_go_on() {
    let (dir, fake, server) = served(LIMITS);
    for n in 0..10 {
        if n == 4 {
            fake.append(EventKind::Replay, "{}");
        } else {
            fake.say(&n.to_string());
        }
    }
    let client = GatewayClient::new(dir.path());
    let mut seen = Vec::new();
    let mut after = 0;
    loop {
        let path = format!("{SESSION}/events?limit=4&after={after}");
        let page: EventsPage = client.get(&path).await.unwrap();
        assert!(page.events.len() <= 4);
        seen.extend(page.events.iter().map(|line| seq(line.get())));
        after = page.next_after;
        if !page.more {
            break;
        }
    }
    assert_eq!(seen, [1, 2, 3, 4, 6, 7, 8, 9, 10]);
    server.end().await;
}

#[tokio::test]
async fn streams_follow_the_run_to_its_end_across_a_restart() {
    let (dir, fake, server) = served(LIMITS);
    let client = GatewayClient::new(dir.path()).until(Some(Instant::now() + DEADLINE));
    let mut events = client.events(wanted(&fake, true, true));
    fake.say("one");
    assert_eq!(seq(&events.next().await.unwrap().unwrap()), 1);
    fake.say("two");
    assert_eq!(seq(&events.next().await.unwrap().unwrap()), 2);
    server.end().await;
    fake.say("three");
    // The next gateway starts after the client's first failed attempt to connect.
    let late = async {
        tokio::task::yield_now().await;
        Server::start(dir.path(), &fake, LIMITS)
    };
    let (line, server) = tokio::join!(events.next(), late);
    assert_eq!(seq(&line.unwrap().unwrap()), 3);
    fake.append(EventKind::Done, "{\"stop_reason\":\"end_turn\"}");
    fake.say("of a later turn");
    assert_eq!(seq(&events.next().await.unwrap().unwrap()), 4);
    assert_eq!(events.next().await.unwrap(), None);
    assert_eq!(events.next().await.unwrap(), None);
    server.end().await;
}

#[tokio::test]
async fn streams_end_where_nothing_follows() {
    let (dir, fake, server) = served(LIMITS);
    let client = GatewayClient::new(dir.path()).until(Some(Instant::now() + DEADLINE));
    fake.say("one");
    // Without `follow`, only existing rows.
    let mut events = client.events(wanted(&fake, false, false));
    assert_eq!(seq(&events.next().await.unwrap().unwrap()), 1);
    assert_eq!(events.next().await.unwrap(), None);
    // The run ended before its events were requested.
    *fake.state.lock().unwrap() = (SessionState::Idle, RunState::Completed);
    let mut events = client.events(EventSelection { after: 1, ..wanted(&fake, true, true) });
    assert_eq!(events.next().await.unwrap(), None);
    // A closed session.
    *fake.state.lock().unwrap() = (SessionState::Closed, RunState::Completed);
    fake.append(EventKind::Closed, "{\"reason\":\"x\"}");
    let mut events = client.events(wanted(&fake, false, true));
    assert_eq!(seq(&events.next().await.unwrap().unwrap()), 1);
    assert_eq!(seq(&events.next().await.unwrap().unwrap()), 2);
    assert_eq!(events.next().await.unwrap(), None);
    let mut events = client.events(EventSelection { after: 2, ..wanted(&fake, false, true) });
    assert_eq!(events.next().await.unwrap(), None);
    server.end().await;
}

#[tokio::test]
async fn a_long_journal_is_streamed_whole_and_in_order() {
    let (dir, fake, server) = served(LIMITS);
    let big = "x".repeat(20_000);
    for n in 0..2_000_u32 {
        fake.say(if n % 10 == 0 { &big } else { "small" });
    }
    fake.append(EventKind::Error, "{\"code\":\"ACP_TURN_FAILED\",\"message\":\"m\",\"retryable\":false}");
    let client = GatewayClient::new(dir.path()).until(Some(Instant::now() + DEADLINE));
    let mut events = client.events(wanted(&fake, true, true));
    let mut next = 1;
    while let Some(line) = events.next().await.unwrap() {
        assert_eq!(seq(&line), next);
        next += 1;
    }
    assert_eq!(next, 2_002);
    server.end().await;
}

#[tokio::test]
async fn silence_is_filled_with_comments_and_timeouts_are_said() {
    let (dir, fake, server) = served(LIMITS);
    let request = format!("GET {SESSION}/events HTTP/1.1\r\nhost: x\r\n{STREAM}\r\n");
    let mut stream = sent(dir.path(), request.as_bytes()).await;
    let mut seen = String::new();
    while seen.matches(":\n\n").count() < 2 {
        let mut piece = [0; 1_024];
        let read = tokio::time::timeout(DEADLINE, stream.read(&mut piece)).await.unwrap().unwrap();
        assert!(read > 0, "{seen}");
        seen.push_str(&String::from_utf8_lossy(&piece[..read]));
    }
    let client = GatewayClient::new(dir.path()).until(Some(Instant::now() + Duration::from_millis(100)));
    let late = client.events(wanted(&fake, true, true)).next().await.unwrap_err();
    assert_eq!(late.code, Code::Timeout);
    server.end().await;
}
