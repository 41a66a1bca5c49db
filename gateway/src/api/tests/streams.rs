//! Journal pages and streams: bounded, complete and in order, also across a restart.

use super::*;

fn selection(fake: &Fake, run: bool, follow: bool) -> EventSelection {
    let (session, run) = (fake.key.clone(), run.then_some(fake.run));
    EventSelection { session, after: 0, run, replay: false, follow }
}

fn seq(line: &str) -> u64 {
    serde_json::from_str::<Value>(line).unwrap()["session_seq"].as_u64().unwrap()
}

#[tokio::test]
async fn event_pages_are_bounded_and_continue() {
    let (dir, fake, server) = start_server(LIMITS);
    for n in 0..10 {
        if n == 4 {
            fake.append(EventKind::Replay, "{}");
        } else {
            fake.append_message(&n.to_string());
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
async fn stream_follows_run_across_restart() {
    let (dir, fake, server) = start_server(LIMITS);
    let client = GatewayClient::new(dir.path()).until(Some(Instant::now() + DEADLINE));
    let mut events = client.events(selection(&fake, true, true));
    fake.append_message("one");
    assert_eq!(seq(&events.next().await.unwrap().unwrap()), 1);
    fake.append_message("two");
    assert_eq!(seq(&events.next().await.unwrap().unwrap()), 2);
    server.end().await;
    fake.append_message("three");
    // The next gateway starts after the client's first failed attempt to connect.
    let late = async {
        tokio::task::yield_now().await;
        Server::start(dir.path(), &fake, LIMITS)
    };
    let (line, server) = tokio::join!(events.next(), late);
    assert_eq!(seq(&line.unwrap().unwrap()), 3);
    fake.append(EventKind::Done, "{\"stop_reason\":\"end_turn\"}");
    fake.append_message("of a later turn");
    assert_eq!(seq(&events.next().await.unwrap().unwrap()), 4);
    assert_eq!(events.next().await.unwrap(), None);
    assert_eq!(events.next().await.unwrap(), None);
    server.end().await;
}

#[tokio::test]
async fn stream_ends_after_last_event() {
    let (dir, fake, server) = start_server(LIMITS);
    let client = GatewayClient::new(dir.path()).until(Some(Instant::now() + DEADLINE));
    fake.append_message("one");
    // Without `follow`, only existing rows.
    let mut events = client.events(selection(&fake, false, false));
    assert_eq!(seq(&events.next().await.unwrap().unwrap()), 1);
    assert_eq!(events.next().await.unwrap(), None);
    // The run ended before its events were requested.
    *fake.state.lock().unwrap() = (SessionState::Idle, RunState::Completed);
    let mut events = client.events(EventSelection { after: 1, ..selection(&fake, true, true) });
    assert_eq!(events.next().await.unwrap(), None);
    // A closed session.
    *fake.state.lock().unwrap() = (SessionState::Closed, RunState::Completed);
    fake.append(EventKind::Closed, "{\"reason\":\"x\"}");
    let mut events = client.events(selection(&fake, false, true));
    assert_eq!(seq(&events.next().await.unwrap().unwrap()), 1);
    assert_eq!(seq(&events.next().await.unwrap().unwrap()), 2);
    assert_eq!(events.next().await.unwrap(), None);
    let mut events = client.events(EventSelection { after: 2, ..selection(&fake, false, true) });
    assert_eq!(events.next().await.unwrap(), None);
    server.end().await;
}

#[tokio::test]
async fn long_journal_is_streamed_in_order() {
    let (dir, fake, server) = start_server(LIMITS);
    let big = "x".repeat(20_000);
    for n in 0..2_000_u32 {
        fake.append_message(if n % 10 == 0 { &big } else { "small" });
    }
    fake.append(EventKind::Error, "{\"code\":\"ACP_TURN_FAILED\",\"message\":\"m\",\"retryable\":false}");
    let client = GatewayClient::new(dir.path()).until(Some(Instant::now() + DEADLINE));
    let mut events = client.events(selection(&fake, true, true));
    let mut next = 1;
    while let Some(line) = events.next().await.unwrap() {
        assert_eq!(seq(&line), next);
        next += 1;
    }
    assert_eq!(next, 2_002);
    server.end().await;
}

#[tokio::test]
async fn idle_stream_has_keep_alives_and_client_times_out() {
    let (dir, fake, server) = start_server(LIMITS);
    let request = format!("GET {SESSION}/events HTTP/1.1\r\nhost: x\r\n{STREAM}\r\n");
    let mut stream = send_request(dir.path(), request.as_bytes()).await;
    let mut seen = String::new();
    while seen.matches(":\n\n").count() < 2 {
        let mut piece = [0; 1_024];
        let read = tokio::time::timeout(DEADLINE, stream.read(&mut piece)).await.unwrap().unwrap();
        assert!(read > 0, "{seen}");
        seen.push_str(&String::from_utf8_lossy(&piece[..read]));
    }
    let client = GatewayClient::new(dir.path()).until(Some(Instant::now() + Duration::from_millis(100)));
    let late = client.events(selection(&fake, true, true)).next().await.unwrap_err();
    assert_eq!(late.code, Code::Timeout);
    server.end().await;
}
