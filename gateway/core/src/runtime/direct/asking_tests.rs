//! Guarantee that an agent asks, after its session opens, and the fallback for a refused mode.

use super::open_tests::{Settled, initialized, reply, settle};
use super::tests::defaults;
use super::*;
use crate::backend::AskGuarantee;
use serde_json::{Value, json};

/// Wanted mode, asking mode, modes of the agent, its refusals, and the resulting guarantee.
#[test]
fn refused_mode_falls_back_to_the_asking_mode() {
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
        let input = StartSessionParams { mode, asking_mode, asks, ..defaults() };
        let (mut machine, _) = initialized(&input, json!({}));
        let steps = reply(&mut machine, "new", &input, &json!({ "result": result }));
        let refuse: &[&str] = if refuses { &["session/set_mode"] } else { &[] };
        let Settled { methods, refused, asking, .. } = settle(&mut machine, steps, refuse);
        let want = (want_sent, want_refused, Some(want));
        assert_eq!((methods, refused, asking), want, "{wanted} {asks} {refuses}");
    }
}
