//! Streams of all sessions, pages of sessions; spawns, files, exports and changes of one session.

use super::*;
use acp_core::api::PageCursor;

/// Body of a response.
fn body(answer: &str) -> String {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer}"));
    if !head.contains("transfer-encoding: chunked") {
        return body.to_owned();
    }
    let (mut rest, mut out) = (body, String::new());
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        out.push_str(&after[..size]);
        rest = after[size..].trim_start_matches("\r\n");
        if size == 0 {
            break;
        }
    }
    out
}

async fn read(dir: &Path, path: &str, headers: &str) -> String {
    let answer = exchange(dir, &get(path, headers)).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{path}: {answer}");
    body(&answer)
}

fn ids(stream: &str) -> Vec<u64> {
    stream.lines().filter_map(|line| line.strip_prefix("id: ")?.parse().ok()).collect()
}

#[tokio::test]
async fn stream_of_all_sessions_continues_after_last_event_id() {
    let (dir, fake, server) = start_server(LIMITS);
    fake.append_message("one");
    fake.append(EventKind::Replay, "{}");
    fake.append(EventKind::Done, "{\"stop_reason\":\"end_turn\"}");
    fake.append(EventKind::Closed, "{\"reason\":\"x\"}");
    fake.append_message("two");
    let stream = |query: &str| format!("/v1/stream?follow=false{query}");
    for (query, headers, want) in [
        // The first id is the position at which the stream begins.
        ("", "", vec![105]),
        ("&after=0", "", vec![0, 101, 103, 104, 105]),
        ("&after=0&replay=true", "", vec![0, 101, 102, 103, 104, 105]),
        ("&after=0&kind=done,text_delta", "", vec![0, 101, 103, 105]),
        ("&after=0&kind=agent_message", "", vec![0, 101, 105]),
        ("&after=0", "last-event-id: 103\r\n", vec![103, 104, 105]),
        ("&after=0&session=agent:demo:acp:a%2Fb&kind=closed", "", vec![0, 104]),
    ] {
        let text = read(dir.path(), &stream(query), headers).await;
        assert_eq!(ids(&text), want, "{query} {headers:?}");
        assert!(text.contains("event: start\n") && text.contains("event: end\n"), "{text}");
    }
    for (query, status, code) in
        [("&kind=none", "400", "USAGE"), ("&session=none", "404", "NO_SESSION"), ("&aftr=1", "400", "USAGE")]
    {
        assert_response(dir.path(), (get(&stream(query), ""), status, code)).await;
    }
    server.end().await;
}

#[tokio::test]
async fn stream_of_all_sessions_loses_and_repeats_nothing_across_restart() {
    let (dir, fake, mut server) = start_server(LIMITS);
    let mut last = FIRST_EVENT_ID;
    let mut seen = Vec::new();
    for round in 0..4 {
        let request = format!("GET /v1/stream HTTP/1.1\r\nhost: x\r\nlast-event-id: {last}\r\n\r\n");
        let mut stream = send_request(dir.path(), request.as_bytes()).await;
        (0..5).for_each(|n| fake.append_message(&format!("{round} {n}")));
        let mut text = String::new();
        while ids(&text).last() != Some(&(FIRST_EVENT_ID + (round + 1) * 5)) {
            let mut piece = [0; 4_096];
            let read = tokio::time::timeout(DEADLINE, stream.read(&mut piece)).await.unwrap().unwrap();
            assert!(read > 0, "{text}");
            text.push_str(&String::from_utf8_lossy(&piece[..read]));
        }
        let mut fresh: Vec<u64> = ids(&text).into_iter().filter(|id| *id > last).collect();
        // A keep-alive repeats the id of the last event.
        fresh.dedup();
        last = *fresh.last().unwrap();
        seen.extend(fresh);
        server.end().await;
        server = Server::start(dir.path(), &fake, LIMITS);
    }
    assert_eq!(seen, (FIRST_EVENT_ID + 1..=FIRST_EVENT_ID + 20).collect::<Vec<_>>());
    server.end().await;
}

#[tokio::test]
async fn pages_of_sessions_follow_the_cursor() {
    let (dir, _fake, server) = start_server(LIMITS);
    let mut cursor = Some(String::new());
    let mut counts = Vec::new();
    while let Some(at) = cursor {
        let answer = exchange(dir.path(), &get(&format!("/v1/sessions?limit=2&cursor={at}"), "")).await;
        let views: Vec<SessionView> = serde_json::from_str(&body(&answer)).unwrap();
        counts.push(views.len());
        cursor = answer.lines().find_map(|line| line.strip_prefix("next-cursor: ")).map(str::to_owned);
    }
    assert_eq!(counts, [2, 1]);
    let whole = exchange(dir.path(), &get("/v1/sessions?limit=2", "")).await;
    assert!(!whole.contains("next-cursor"), "the order of the last activity has no pages: {whole}");
    for query in ["cursor=x", "state=awake", "agent=", "limit=-1"] {
        assert_response(dir.path(), (get(&format!("/v1/sessions?{query}"), ""), "400", "USAGE")).await;
    }
    server.end().await;
}

#[test]
fn page_cursor_has_one_spelling() {
    for number in [0, 1, 99, i64::MAX.unsigned_abs()] {
        assert_eq!(PageCursor::decode(&PageCursor(number).encode()), Some(PageCursor(number)));
    }
    for text in ["x", "czE6LTE", "czE6OTk5OTk5OTk5OTk5OTk5OTk5OTk", "czI6MQ", "!"] {
        assert_eq!(PageCursor::decode(text), None, "{text}");
    }
}

#[tokio::test]
async fn files_outside_of_roots_answer_like_missing_ones() {
    let (dir, _fake, server) = start_server(LIMITS);
    let path = |rest: &str| format!("{SESSION}/files{rest}");
    let text = exchange(dir.path(), &get(&path("/content?path=a"), "")).await;
    assert!(text.contains("content-type: text/plain; charset=utf-8\r\n"), "{text}");
    assert!(text.contains("x-content-type-options: nosniff\r\n"), "{text}");
    assert_eq!(body(&text), "<b>text</b>");
    let missing = exchange(dir.path(), &get(&path("/content?path=none"), "")).await;
    let outside = exchange(dir.path(), &get(&path("/content?path=/etc/passwd"), "")).await;
    assert_eq!(body(&missing), body(&outside));
    for (rest, status, code) in [
        ("", "200", ""),
        ("/content?path=none", "404", "USAGE"),
        ("/content?path=/etc/passwd", "404", "USAGE"),
        ("?path=none", "404", "USAGE"),
        ("?path=/etc", "404", "USAGE"),
        ("/content?path=big", "413", "ACP_LIMIT_REACHED"),
        ("/content?path=", "400", "USAGE"),
        ("/content?path=a%00b", "400", "USAGE"),
        ("/content", "400", "USAGE"),
    ] {
        assert_response(dir.path(), (get(&path(rest), ""), status, code)).await;
    }
    server.end().await;
}

#[tokio::test]
async fn export_has_the_whole_journal() {
    let (dir, fake, server) = start_server(LIMITS);
    fake.append(EventKind::Prompt, "{\"text\":\"hi\",\"mode\":\"prompt\",\"author\":\"ann\"}");
    fake.append(EventKind::Replay, "{}");
    let big = "x".repeat(1_000);
    (0..2_000).for_each(|_| fake.append_message(&big));
    let lines = read(dir.path(), &format!("{SESSION}/export?format=jsonl"), "").await;
    let seqs: Vec<u64> = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["session_seq"].as_u64().unwrap())
        .collect();
    assert_eq!(seqs, (1..=2_002).collect::<Vec<_>>());
    let text = read(dir.path(), &format!("{SESSION}/export?format=md"), "").await;
    assert_eq!(text, format!("## ann\n\nhi\n\n## Agent\n\n{}", big.repeat(2_000)));
    assert_response(dir.path(), (get(&format!("{SESSION}/export?format=pdf"), ""), "400", "USAGE")).await;
    server.end().await;
}

/// A page reads the floor with its rows. A stream names the floor first, and breaks if it has risen when the rows are read.
#[tokio::test]
async fn rows_pruned_while_a_reader_begins_are_not_missed_unnoticed() {
    let (dir, fake, server) = start_server(LIMITS);
    ["one", "two", "three"].into_iter().for_each(|text| fake.append_message(text));
    fake.pruned_by_read.store(2, Ordering::Relaxed);
    let page = read(dir.path(), &format!("{SESSION}/events"), "").await;
    let page: EventsPage = serde_json::from_str(&page).unwrap();
    assert_eq!((page.pruned_seq, page.events.len(), page.next_after), (2, 1, 3));
    let diff: Value = serde_json::from_str(&read(dir.path(), &format!("{SESSION}/diff"), "").await).unwrap();
    assert_eq!(diff["pruned_seq"], 2, "{diff}");
    for (path, headers) in [
        (format!("{SESSION}/events?follow=false"), STREAM),
        ("/v1/stream?follow=false&after=0".to_owned(), ""),
        (format!("{SESSION}/export?format=jsonl"), ""),
        (format!("{SESSION}/export?format=md"), ""),
    ] {
        let answer = exchange(dir.path(), &get(&path, headers)).await;
        assert!(!answer.contains("three") && !answer.ends_with("\r\n0\r\n\r\n"), "{path}: {answer}");
    }
    server.end().await;
}

#[tokio::test]
async fn diff_comes_from_completed_tool_calls_of_the_run() {
    let (dir, fake, server) = start_server(LIMITS);
    let edit = json!({"toolCallId": "1", "status": "completed", "content": [
        {"type": "diff", "path": "/a", "oldText": "x\n", "newText": "y\n"}]});
    fake.append(EventKind::ToolCall, &edit.to_string());
    let refused = json!({"toolCallId": "2", "status": "failed", "content": [
        {"type": "diff", "path": "/b", "oldText": null, "newText": "z\n"}]});
    fake.append(EventKind::ToolCall, &refused.to_string());
    for query in [String::new(), format!("?run={}", fake.run)] {
        let view: Value =
            serde_json::from_str(&read(dir.path(), &format!("{SESSION}/diff{query}"), "").await).unwrap();
        assert_eq!(view["diff"], "--- a/a\n+++ b/a\n@@ -1 +1 @@\n-x\n+y\n");
        assert_eq!(view["source"], "tool_calls");
    }
    let other = format!("{SESSION}/diff?run={}", RunId::mint());
    assert_response(dir.path(), (get(&other, ""), "404", "NO_SESSION")).await;
    server.end().await;
}

#[tokio::test]
async fn label_and_release_reach_the_service() {
    let (dir, fake, server) = start_server(LIMITS);
    let patch = |body: &str| {
        let text = String::from_utf8(post(SESSION, "idempotency-key: k\r\n", body)).unwrap();
        text.replacen("POST", "PATCH", 1).into_bytes()
    };
    for (body, status, code) in [
        ("{\"label\":\"a\"}", "200", ""),
        ("{\"label\":null}", "200", ""),
        ("{}", "400", "USAGE"),
        ("{\"label\":1}", "400", "USAGE"),
        ("{\"label\":\"a\",\"cwd\":\"/\"}", "400", "USAGE"),
    ] {
        assert_response(dir.path(), (patch(body), status, code)).await;
    }
    let release = post(&format!("{SESSION}/release"), "idempotency-key: k\r\n", "");
    assert_response(dir.path(), (release, "200", "")).await;
    let calls = fake.calls.lock().unwrap().clone();
    assert_eq!(calls, ["label Some(\"a\") k", "label None k", "release false k"]);
    server.end().await;
}

#[tokio::test]
async fn capabilities_show_the_limits_in_force() {
    let (dir, _fake, server) = start_server(LIMITS);
    let capabilities: Value = serde_json::from_str(&read(dir.path(), "/v1/capabilities", "").await).unwrap();
    assert_eq!(capabilities["openapi"], "/v1/openapi.json");
    let limits = &capabilities["limits"];
    assert_eq!(limits["body_bytes_max"], LIMITS.body_bytes_max);
    assert_eq!(limits["connections_max"], LIMITS.connections_max);
    server.end().await;
}

#[tokio::test]
async fn liveness_tells_nothing_else() {
    let (dir, _fake, server) = start_server(LIMITS);
    assert_eq!(read(dir.path(), "/health", "").await, "{\"ok\":true}");
    assert_eq!(read(dir.path(), "/v1/permissions", "").await, "[]");
    server.end().await;
}

/// A session that was closed before its agent had opened it never opened.
#[tokio::test]
async fn session_closed_during_start_is_reported_failed() {
    let (dir, fake, server) = start_server(LIMITS);
    let client = GatewayClient::new(dir.path());
    for (state, want) in [
        (SessionState::Idle, json!(["open", null])),
        (SessionState::Running, json!(["open", null])),
        (SessionState::Error, json!(["failed", null])),
        (SessionState::Creating, json!(["pending", null])),
        (SessionState::Closed, json!(["failed", "ACP_SESSION_CLOSED"])),
    ] {
        fake.state.lock().unwrap().0 = state;
        let spawn = json!({ "wait_s": u8::from(state != SessionState::Creating) });
        let view: Value = client.post("/v1/sessions", &spawn, &IdempotencyKey::mint()).await.unwrap();
        assert_eq!(json!([view["opening"], view["error"]["code"]]), want, "{state}");
    }
    server.end().await;
}
