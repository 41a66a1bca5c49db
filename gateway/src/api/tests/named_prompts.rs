//! Prompts for sessions with names: the response to the request is the turn.

use super::network::{LOOPBACK, Network, bearer, request, status};
use super::*;
use acp_core::acpx_contract::AcpxNaming;
use acp_core::api::{NamedPromptBody, NamedPromptView, PromptBody};
use acp_core::principal::Scope;
use acp_shared::ids::AgentName;

fn body(text: &str) -> NamedPromptBody {
    let acpx = AcpxNaming { cwd: "/w".to_owned(), ..AcpxNaming::default() };
    let agent = Some(AgentName::parse("demo").unwrap());
    NamedPromptBody { agent, acpx, prompt: PromptBody::of_text(text.to_owned()) }
}

fn text_of(line: &str) -> String {
    let line: Value = serde_json::from_str(line).unwrap();
    line["payload"]["content"]["text"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn prompt_for_a_name_is_answered_by_its_turn() {
    let (dir, fake, server) = start_server(LIMITS);
    let client = GatewayClient::new(dir.path()).until(Some(Instant::now() + DEADLINE));
    let key = IdempotencyKey::mint();
    let (view, mut events) = client.prompt_named(&body("hi"), &key).await.unwrap();
    assert_eq!((view.accepted.run_id, &view.session.session.session_key), (fake.run, &fake.key));
    assert_eq!(fake.calls().len(), 1, "{:?}", fake.calls());
    fake.append_message("one");
    assert_eq!(text_of(&events.next().await.unwrap().unwrap()), "one");
    // The stream continues after a restart of the gateway.
    server.end().await;
    fake.append_message("two");
    let late = async {
        tokio::task::yield_now().await;
        Server::start(dir.path(), &fake, LIMITS)
    };
    let (line, server) = tokio::join!(events.next(), late);
    assert_eq!(text_of(&line.unwrap().unwrap()), "two");
    fake.append(EventKind::Done, "{\"stop_reason\":\"end_turn\"}");
    assert!(events.next().await.unwrap().is_some());
    assert_eq!(events.next().await.unwrap(), None);
    // A client that accepts no stream gets the acceptance alone.
    let accepted: NamedPromptView =
        client.post("/v1/acpx/prompt", &body("again"), &IdempotencyKey::mint()).await.unwrap();
    assert_eq!(accepted.accepted.run_id, fake.run);
    server.end().await;
}

/// A prompt that was accepted is not answered with an error because there is no place for a stream.
#[tokio::test]
async fn prompt_without_a_place_for_its_stream_is_accepted() {
    let limits = ApiLimits { connections_max: 4, ..LIMITS };
    let (dir, fake, server) = start_server(limits);
    let client = GatewayClient::new(dir.path()).until(Some(Instant::now() + DEADLINE));
    let mut held = Vec::new();
    for number in 0..3 {
        let (_, mut events) =
            client.prompt_named(&body(&number.to_string()), &IdempotencyKey::mint()).await.unwrap();
        fake.append_message("held");
        assert!(events.next().await.unwrap().is_some());
        held.push(events);
    }
    let (view, mut events) = client.prompt_named(&body("last"), &IdempotencyKey::mint()).await.unwrap();
    assert_eq!(view.accepted.run_id, fake.run);
    assert!(fake.calls().last().is_some_and(|call| call.starts_with("prompt last")), "{:?}", fake.calls());
    assert_eq!(events.next().await.unwrap_err().code, Code::LimitReached);
    held.clear();
    server.end().await;
}

#[tokio::test]
async fn hidden_session_is_not_prompted_by_its_name() {
    let network = Network::start(LOOPBACK, LIMITS).await;
    let own = network.token("own", Scope::Prompt, &["demo"], None).await;
    let other = network.token("other", Scope::Admin, &["qwen*"], None).await;
    let reader = network.token("reader", Scope::Read, &[], None).await;
    let body = serde_json::to_string(&body("hi")).unwrap();
    for (token, want) in [(&other, 404), (&reader, 403), (&own, 200)] {
        let prompt = request("POST", "/v1/acpx/prompt", &bearer(token), &body);
        let answer = network.exchange(&prompt).await;
        assert_eq!(status(&answer), want, "{answer}");
    }
    assert_eq!(network.fake.calls().len(), 1, "{:?}", network.fake.calls());
    network.end().await;
}
