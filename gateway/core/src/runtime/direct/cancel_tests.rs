//! Turns that end as cancelled.

use super::tests::{running, turn_result};
use super::*;
use crate::permission;
use acp_shared::codes::Code;
use serde_json::json;

/// A cancelled stop reason without a cancel of ours or a refused permission is a failure.
#[test]
fn turn_cancelled_by_the_agent_alone_fails() {
    let ended = |machine: &mut DirectMachine, run_id: RunId, as_error: bool| {
        let error =
            json!({ "id": format!("prompt:{run_id}"), "error": { "code": -32800, "message": "gone" } });
        let body = if as_error { error } else { turn_result(run_id, "cancelled") };
        match machine.receive(&body).last() {
            Some(BackendStep::TurnDone { stop_reason, .. }) => stop_reason.clone(),
            Some(BackendStep::TurnFailed { failure, .. }) => {
                assert_eq!((failure.code, failure.origin.as_deref()), (Code::TurnFailed, Some("agent")));
                assert!(failure.acp.is_some(), "the agent's error is kept: {failure:?}");
                failure.detail_code.clone().unwrap()
            }
            other => panic!("{other:?}"),
        }
    };
    let request_permission = |machine: &mut DirectMachine, is_rejection: bool| {
        let option = json!([{ "optionId": "y", "name": "y", "kind": "allow_once" }]);
        let request =
            json!({ "id": 7, "method": "session/request_permission", "params": { "options": option } });
        machine.stream(20, request.to_string().as_bytes());
        machine.answer(&RequestReply { at: 20, outcome: Ok(permission::cancelled_result()), is_rejection });
    };
    for as_error in [false, true] {
        let (mut machine, run_id) = running();
        assert_eq!(ended(&mut machine, run_id, as_error), "AGENT_CANCELLED");
        let (mut machine, run_id) = running();
        request_permission(&mut machine, false);
        let end = ended(&mut machine, run_id, as_error);
        assert_eq!(end, "AGENT_CANCELLED", "an allowed permission does not count");
        let (mut machine, run_id) = running();
        request_permission(&mut machine, true);
        let mut saved = DirectMachine::open(Some(&machine.save())).unwrap();
        assert_eq!(ended(&mut saved, run_id, as_error), "cancelled", "also after a restart");
        // The next turn has refused nothing.
        let next = RunId::mint();
        machine.receive(&turn_result(run_id, "end_turn"));
        machine.submit_text(next, "hi");
        assert_eq!(ended(&mut machine, next, as_error), "AGENT_CANCELLED");
        let (mut machine, run_id) = running();
        machine.cancel(run_id);
        assert_eq!(ended(&mut machine, run_id, as_error), "cancelled");
    }
}
