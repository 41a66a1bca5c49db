//! Certainty of an agent's questions after the opening of its session, and the mode set in place of a refused one.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::open_tests::{begun, reply};
use super::tests::{ensure, sent};
use super::*;
use crate::backend::AskGuarantee;
use serde_json::{Value, json};

/// The mode that was wanted, the asking mode, what the agent has and refuses, and how sure its questions are then.
#[test]
fn a_refused_mode_is_dropped_and_the_asking_mode_set_in_its_place() {
    let modes = |current: &str| {
        let known: Vec<Value> = ["ask", "plan", "yolo"].iter().map(|id| json!({ "id": id })).collect();
        json!({ "sessionId": "s", "modes": { "currentModeId": current, "availableModes": known } })
    };
    let bare = json!({ "sessionId": "s" });
    let set = |mode: &str| format!("session/set_mode \"{mode}\"null");
    let mode = |mode: &str| OptionChange::Mode(mode.to_owned());
    for (result, wanted, asks, refuses, want_sent, want_refused, want) in [
        (modes("yolo"), "ask", false, false, vec![set("ask")], vec![], AskGuarantee::Ensured),
        (modes("ask"), "ask", false, false, vec![], vec![], AskGuarantee::Ensured),
        (modes("yolo"), "plan", false, false, vec![set("plan")], vec![], AskGuarantee::Unknown),
        (modes("yolo"), "gone", false, false, vec![set("ask")], vec![mode("gone")], AskGuarantee::Ensured),
        (
            modes("plan"),
            "gone",
            false,
            true,
            vec![set("ask")],
            vec![mode("gone"), mode("ask")],
            AskGuarantee::Unknown,
        ),
        (
            modes("yolo"),
            "plan",
            true,
            true,
            vec![set("plan"), set("ask")],
            vec![mode("plan"), mode("ask")],
            AskGuarantee::Never,
        ),
        (bare.clone(), "ask", false, false, vec![], vec![mode("ask")], AskGuarantee::Unknown),
        (bare, "ask", true, false, vec![], vec![mode("ask")], AskGuarantee::Ensured),
    ] {
        let (mode, asking_mode) = (Some(wanted.to_owned()), Some("ask".to_owned()));
        let input = StartSessionParams { mode, asking_mode, asks, ..ensure() };
        let (mut link, _) = begun(&input, json!({}));
        let mut steps = reply(&mut link, "new", &input, &json!({ "result": result }));
        let (mut methods, mut refused, mut asking) = (Vec::new(), Vec::new(), None);
        while !steps.is_empty() {
            for step in &steps {
                match step {
                    BackendStep::OptionAnswered { option, is_own: false, is_taken: false, .. } => {
                        refused.push(option.clone());
                    }
                    BackendStep::AskGuarantee(now) => asking = Some(*now),
                    _ => {}
                }
            }
            let requests = sent(&steps);
            steps.clear();
            for (request, _) in requests {
                methods.push(format!(
                    "{} {}{}",
                    request["method"].as_str().unwrap(),
                    request["params"]["modeId"],
                    request["params"]["value"]
                ));
                let body = if refuses { "error" } else { "result" };
                let line =
                    json!({ "id": request["id"], body: { "code": -32602, "message": "no" } }).to_string();
                steps.extend(link.stream(0, line.as_bytes()));
            }
        }
        assert_eq!(
            (methods, refused, asking),
            (want_sent, want_refused, Some(want)),
            "{wanted} {asks} {refuses}"
        );
    }
}
