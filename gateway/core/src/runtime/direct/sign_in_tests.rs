//! `authenticate` before a session is opened.

use super::open_tests::{failure, initialized, reply};
use super::tests::{defaults, sent};
use super::*;
use acp_shared::codes::Code;
use serde_json::{Value, json};

fn input(method: &str) -> StartSessionParams {
    StartSessionParams { auth_method: Some(method.to_owned()), ..defaults() }
}

fn offer(ids: &[&str]) -> Value {
    let methods: Vec<Value> = ids.iter().map(|id| json!({ "id": id, "name": "N" })).collect();
    json!({ "protocolVersion": 1, "authMethods": methods })
}

#[test]
fn agent_signs_in_before_its_session_is_opened() {
    let input = input("key");
    let (machine, steps) = initialized(&input, offer(&["login", "key"]));
    let (asked, _) = sent(&steps).remove(0);
    assert_eq!((&asked["method"], &asked["params"]), (&json!("authenticate"), &json!({ "methodId": "key" })));
    // The wait is part of the saved state.
    let mut machine =
        DirectMachine::open(Some(&machine.save())).unwrap_or_else(|_| panic!("{}", machine.save()));
    let (new, _) = sent(&reply(&mut machine, "authenticate", &input, &json!({ "result": {} }))).remove(0);
    assert_eq!(new["method"], "session/new");
}

#[test]
fn failed_sign_in_names_methods() {
    let refused = json!({ "error": { "code": -32602, "message": "key expired" } });
    for (method, offered, answer, detail, words) in [
        ("key", offer(&["key"]), Some(&refused), "AUTH_REQUIRED", "key expired"),
        ("keys", offer(&["login", "key"]), None, "UNKNOWN_METHOD", "login, key"),
        ("key", offer(&[]), None, "UNKNOWN_METHOD", "none"),
        ("key", json!({ "protocolVersion": 1 }), None, "UNKNOWN_METHOD", "none"),
    ] {
        let input = input(method);
        let (mut machine, mut steps) = initialized(&input, offered);
        if let Some(answer) = answer {
            steps = reply(&mut machine, "authenticate", &input, answer);
        }
        let failure = failure(&steps);
        assert_eq!((failure.code, failure.detail_code.as_deref()), (Code::AuthRequired, Some(detail)));
        assert!(failure.message.contains(words), "{}", failure.message);
    }
}
