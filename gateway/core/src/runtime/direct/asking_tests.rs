//! Guarantee that an agent asks, after its session opens, and the fallback for a refused mode.

use super::open_tests::{Settled, initialized, reply, settle, statuses_of};
use super::tests::{defaults, sent};
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

/// Session of Cline whose list of options has `auto_approve` with this value; `None` without that option.
fn cline(auto_approve: Option<&str>) -> Value {
    let option = auto_approve.map(|value| {
        let choices = json!([{ "value": "true", "name": "on" }, { "value": "false", "name": "off" }]);
        json!({ "id": "auto_approve", "name": "Auto-approve", "type": "select", "currentValue": value,
            "options": choices })
    });
    json!({ "sessionId": "s", "configOptions": option.into_iter().collect::<Vec<_>>() })
}

fn guarantees(steps: &[BackendStep]) -> Vec<AskGuarantee> {
    let of = |step: &BackendStep| match step {
        BackendStep::AskGuarantee(asking) => Some(*asking),
        _ => None,
    };
    steps.iter().filter_map(of).collect()
}

#[test]
fn self_approving_option_changes_the_guarantee() {
    use AskGuarantee::{Ensured, Never};
    let input = StartSessionParams { asks: true, ..defaults() };
    let set = |value: &str| OptionChange::Config { id: "auto_approve".to_owned(), value: value.to_owned() };
    for (at_start, at_opening) in [(Some("false"), Ensured), (Some("true"), Never), (None, Ensured)] {
        let (mut machine, _) = initialized(&input, json!({}));
        let steps = reply(&mut machine, "new", &input, &json!({ "result": cline(at_start) }));
        let Settled { asking, .. } = settle(&mut machine, steps, &[]);
        assert_eq!(asking, Some(at_opening), "{at_start:?}");
    }
    // Set by a person, with a list in the answer and without one; then reported by the agent itself.
    for with_list in [true, false] {
        let (mut machine, _) = initialized(&input, json!({}));
        reply(&mut machine, "new", &input, &json!({ "result": cline(Some("false")) }));
        for (value, want) in [("true", Never), ("false", Ensured)] {
            let (request, _) = sent(&machine.set_option(&set(value))).remove(0);
            let result = if with_list { cline(Some(value)) } else { json!({}) };
            let steps = machine.receive(&json!({ "id": request["id"], "result": result }));
            assert_eq!(guarantees(&steps), [want], "{value} {with_list}");
            // The machine is the same after a restart of the gateway.
            machine = DirectMachine::open(Some(&machine.save())).unwrap();
        }
        let update = |value: &str| {
            let options = cline(Some(value))["configOptions"].clone();
            let update = json!({ "sessionUpdate": "config_option_update", "configOptions": options });
            json!({ "method": "session/update", "params": { "sessionId": "s", "update": update } })
        };
        for (value, want) in [("true", vec![Never]), ("true", vec![]), ("false", vec![Ensured])] {
            let steps = machine.receive(&update(value));
            assert_eq!(guarantees(&steps), want, "{value}");
            let is_reported = statuses_of(&steps).contains(&"approves_by_itself".to_owned());
            assert_eq!(is_reported, want == [Never], "{value} {steps:?}");
        }
    }
}

/// An option of the preset or of the configuration is set before the session is open.
#[test]
fn self_approving_option_set_at_start_counts() {
    let options = vec![("auto_approve".to_owned(), "true".to_owned())];
    let input = StartSessionParams { asks: true, options, ..defaults() };
    let (mut machine, _) = initialized(&input, json!({}));
    let steps = reply(&mut machine, "new", &input, &json!({ "result": cline(Some("false")) }));
    let Settled { asking, .. } = settle(&mut machine, steps, &[]);
    assert_eq!(asking, Some(AskGuarantee::Never));
}
