//! Certainty of an agent's questions after the opening of its session, and the mode set in place of a refused one.

use super::open_tests::{Settled, begun, reply, settle};
use super::tests::ensure;
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
    use AskGuarantee::{Ensured, Never, Unknown};
    for (result, wanted, asks, refuses, want_sent, want_refused, want) in [
        (modes("yolo"), "ask", false, false, vec!["ask"], vec![], Ensured),
        (modes("ask"), "ask", false, false, vec![], vec![], Ensured),
        (modes("yolo"), "plan", false, false, vec!["plan"], vec![], Unknown),
        (modes("yolo"), "gone", false, false, vec!["ask"], vec!["gone"], Ensured),
        (modes("plan"), "gone", false, true, vec!["ask"], vec!["gone", "ask"], Unknown),
        (modes("yolo"), "plan", true, true, vec!["plan", "ask"], vec!["plan", "ask"], Never),
        (bare.clone(), "ask", false, false, vec![], vec!["ask"], Unknown),
        (bare, "ask", true, false, vec![], vec!["ask"], Ensured),
    ] {
        let want_sent: Vec<String> =
            want_sent.iter().map(|mode| format!("session/set_mode \"{mode}\"null")).collect();
        let want_refused: Vec<OptionChange> =
            want_refused.iter().map(|&mode| OptionChange::Mode(mode.to_owned())).collect();
        let (mode, asking_mode) = (Some(wanted.to_owned()), Some("ask".to_owned()));
        let input = StartSessionParams { mode, asking_mode, asks, ..ensure() };
        let (mut link, _) = begun(&input, json!({}));
        let steps = reply(&mut link, "new", &input, &json!({ "result": result }));
        let refuse: &[&str] = if refuses { &["session/set_mode"] } else { &[] };
        let Settled { methods, refused, asking, .. } = settle(&mut link, steps, refuse);
        let want = (want_sent, want_refused, Some(want));
        assert_eq!((methods, refused, asking), want, "{wanted} {asks} {refuses}");
    }
}
