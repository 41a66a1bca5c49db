//! What the seeds must reach together: every transition of every machine, and a crash just before and just after each
//! kind of effect.

use crate::core::run::{RunEvent, RunState};
use crate::core::session::{SessionEvent, SessionState};
use std::collections::BTreeSet;

const SESSION_EVENTS: [SessionEvent; 7] = [
    SessionEvent::Opened,
    SessionEvent::TurnStarted,
    SessionEvent::TurnEnded,
    SessionEvent::CancelAsked,
    SessionEvent::Faulted,
    SessionEvent::Retried,
    SessionEvent::Closed,
];
const RUN_EVENTS: [RunEvent; 5] =
    [RunEvent::Started, RunEvent::Requeued, RunEvent::Completed, RunEvent::Failed, RunEvent::Cancelled];

/// The machines that have no table of their own in `core`.
const MOVES: [&str; 20] = [
    "binding > active",
    "binding active > ended",
    "part > planned",
    "part planned > sending",
    "part sending > planned",
    "part sending > sent",
    "part sending > uncertain",
    "part sending > rejected",
    "lease > intended",
    "lease intended > open",
    "lease intended > closing",
    "lease intended > ended",
    "lease open > ready",
    "lease open > closing",
    "lease open > ended",
    "lease ready > closing",
    "lease ready > ended",
    "lease closing > ended",
    "permission pending > answered",
    "permission pending > expired",
];

/// Everything that crosses a border of the gateway.
const EFFECTS: [&str; 28] = [
    "commit:binding_touch",
    "commit:claim",
    "commit:commit",
    "commit:delivery_advance",
    "commit:delivery_begin",
    "commit:delivery_plan",
    "commit:delivery_settle",
    "commit:focus",
    "commit:inbox_insert",
    "commit:inbox_record",
    "commit:inbox_settle",
    "commit:remembered",
    "commit:spawn_session",
    "commit:unfocus",
    "supervisor:ack",
    "supervisor:attach",
    "supervisor:close",
    "supervisor:input",
    "supervisor:list",
    "supervisor:release",
    "supervisor:spawn",
    "supervisor:tail",
    "news:answer",
    "news:changed",
    "news:exited",
    "news:output",
    "channel:send",
    "channel:lookup",
];

/// What was not reached.
pub(super) fn missing(reached: &BTreeSet<String>) -> Vec<String> {
    let mut wanted: Vec<String> = MOVES.iter().map(|name| (*name).to_owned()).collect();
    for from in SessionState::ALL {
        let moves = SESSION_EVENTS.iter().filter_map(|event| Some((event, from.on(*event).ok()?)));
        wanted.extend(moves.map(|(event, to)| format!("session {from} {} {to}", event.as_str())));
    }
    for from in RunState::ALL {
        let moves = RUN_EVENTS.iter().filter_map(|event| Some((event, from.on(*event).ok()?)));
        wanted.extend(moves.map(|(event, to)| format!("run {from} {} {to}", event.as_str())));
    }
    for effect in EFFECTS.iter().chain(&["reply"]) {
        wanted.extend(["before", "after"].map(|when| format!("crash {when} {effect}")));
    }
    wanted.retain(|name| !reached.contains(name));
    wanted
}
