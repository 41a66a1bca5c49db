//! Turns that end as cancelled.

use super::tests::{running, turn_result};
use super::*;
use crate::permission;
use acp_shared::codes::Code;
use serde_json::json;

/// A cancelled stop reason without a cancel of ours or a refused permission is a failure.
#[test]
fn a_turn_that_only_the_agent_cancelled_failed() {
    let ended = |link: &mut DirectMachine, run_id: RunId, as_error: bool| {
        let error =
            json!({ "id": format!("prompt:{run_id}"), "error": { "code": -32800, "message": "gone" } });
        let body = if as_error { error } else { turn_result(run_id, "cancelled") };
        match link.hear(&body).last() {
            Some(BackendStep::TurnDone { stop_reason, .. }) => stop_reason.clone(),
            Some(BackendStep::TurnFailed { failure, .. }) => {
                assert_eq!((failure.code, failure.origin.as_deref()), (Code::TurnFailed, Some("agent")));
                assert!(failure.acp.is_some(), "the agent's error is kept: {failure:?}");
                failure.detail_code.clone().unwrap()
            }
            other => panic!("{other:?}"),
        }
    };
    let ask = |link: &mut DirectMachine, is_rejection: bool| {
        let option = json!([{ "optionId": "y", "name": "y", "kind": "allow_once" }]);
        let request =
            json!({ "id": 7, "method": "session/request_permission", "params": { "options": option } });
        link.stream(20, request.to_string().as_bytes());
        link.answer(&RequestReply { at: 20, outcome: Ok(permission::cancelled_result()), is_rejection });
    };
    for as_error in [false, true] {
        let (mut link, run_id) = running();
        assert_eq!(ended(&mut link, run_id, as_error), "AGENT_CANCELLED");
        let (mut link, run_id) = running();
        ask(&mut link, false);
        let end = ended(&mut link, run_id, as_error);
        assert_eq!(end, "AGENT_CANCELLED", "an allowed permission does not count");
        let (mut link, run_id) = running();
        ask(&mut link, true);
        let mut saved = DirectMachine::open(Some(&link.save())).unwrap();
        assert_eq!(ended(&mut saved, run_id, as_error), "cancelled", "also after a restart");
        // The next turn has refused nothing.
        let next = RunId::mint();
        link.hear(&turn_result(run_id, "end_turn"));
        link.submit_text(next, "hi");
        assert_eq!(ended(&mut link, next, as_error), "AGENT_CANCELLED");
        let (mut link, run_id) = running();
        link.cancel(run_id);
        assert_eq!(ended(&mut link, run_id, as_error), "cancelled");
    }
}
