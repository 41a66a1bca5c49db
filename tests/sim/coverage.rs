//! Coverage that all seeds together must reach: every transition of every machine, and a crash just before
//! and just after each kind of effect.

use acp_core::run::{RunEvent, RunState};
use acp_core::session::{SessionEvent, SessionState};
use std::collections::{BTreeMap, BTreeSet};

/// Covered items, with the number of seeds that reached each.
pub(super) type Coverage = BTreeMap<String, usize>;

/// Result of a seed.
#[derive(Debug, Default, Clone)]
pub(super) struct SeedResult {
    pub(super) effects: usize,
    pub(super) lives: usize,
    pub(super) sessions: usize,
    pub(super) reached: Coverage,
}

impl SeedResult {
    /// Adds the result of another seed. Its covered items count once each.
    pub(super) fn add(&mut self, other: Self) {
        self.effects += other.effects;
        self.lives += other.lives;
        self.sessions += other.sessions;
        for (what, count) in other.reached {
            *self.reached.entry(what).or_default() += count;
        }
    }
}

/// Transitions of machines without a table in `core`.
const MOVES: [(&str, &str); 4] = [
    ("binding", "> active, active > ended, active > parked, parked > active, parked > ended"),
    (
        "part",
        "> planned, planned > sending, sending > planned, sending > sent, sending > uncertain, \
         sending > rejected",
    ),
    (
        "lease",
        "> intended, intended > open, intended > closing, intended > ended, open > ready, open > closing, \
         open > ended, ready > closing, ready > ended, closing > ended",
    ),
    ("permission", "pending > answered, pending > expired"),
];

/// All effects at the gateway's interfaces.
const EFFECTS: [(&str, &str); 4] = [
    (
        "commit",
        "bind binding_gone binding_park binding_touch binding_window caught_up claim command_meant commit \
         delivery_advance delivery_begin delivery_buttons delivery_plan delivery_settle delivery_style \
         delivery_without_files expire_answers inbox_insert inbox_record inbox_settle prune_delete prune_mark remembered reply_begin \
         reply_rejected spawn_session unbind verbosity_set",
    ),
    ("supervisor", "ack attach close files input list release spawn"),
    ("news", "answer changed exited output"),
    ("channel", "send lookup"),
];

/// Effects that seeds rarely reach, with a higher crash probability: once in this many times.
const SELDOM: [(usize, &str); 4] = [
    (
        3,
        "commit:bind commit:binding_gone commit:delivery_advance commit:delivery_without_files \
         commit:reply_rejected",
    ),
    (6, "commit:caught_up"),
    (
        12,
        "commit:binding_park commit:binding_window commit:command_meant commit:delivery_begin \
         commit:delivery_buttons commit:delivery_plan commit:delivery_settle commit:delivery_style \
         commit:reply_begin commit:unbind commit:verbosity_set news:changed news:exited supervisor:ack \
         supervisor:close",
    ),
    (40, "commit:expire_answers supervisor:list"),
];

/// Returns the crash probability for these effects if one of them is rare.
pub(super) fn seldom(names: &str) -> Option<usize> {
    let has = |all: &str| names.split(' ').any(|name| all.split(' ').any(|seldom| seldom == name));
    SELDOM.iter().find(|(_, all)| has(all)).map(|(once_in, _)| *once_in)
}

/// True if one of these occurs only near the end of a seed: an answer with a file ends a turn.
pub(super) fn comes_last(names: &str) -> bool {
    names.split(' ').any(|name| name == "commit:delivery_without_files")
}

/// Transactions of the gateway that no seed reaches, with reasons.
const BEYOND: [(&str, &str); 24] = [
    ("binding_activate", "the room has no threads: a conversation is bound where it is"),
    ("binding_failed", "as before"),
    ("binding_stale", "no session is removed while a binding refers to it"),
    ("configured_decide", "the configuration has no static bindings"),
    ("project_decide", "the configuration has no projects"),
    ("project_mark", "the configuration has no projects"),
    ("console_child", "the console is another channel than the room"),
    ("console_edit", "as before"),
    ("console_send", "as before"),
    ("forget_said", "concerns rows older than thirty days"),
    ("take_completion", "no simulated session spawns another one"),
    ("drop_completion", "as before"),
    ("inbox_keep", "no simulated user sends a slash command or a click"),
    ("inbox_told", "as before"),
    ("inbox_withdraw", "as before"),
    ("begin_admissions", "the simulated supervisor refuses no database"),
    ("settle_admission", "the simulated supervisor refuses no database"),
    ("begin_host_reports", "the simulated supervisors report to no later gateway"),
    ("record_host_report", "as before"),
    ("clear_host_reports", "as before"),
    ("token_add", "the API over the network is not simulated"),
    ("token_revoke", "as before"),
    ("webhook_cursor", "the configuration has no webhooks"),
    ("advance_webhook", "as before"),
];

/// Transactions of the gateway that are too rare to require a crash around each, with reasons.
const RARE: [(&str, &str); 2] = [
    ("delivery_card", "the room cannot edit messages: only former cards are maintained"),
    ("delivery_fold", "as before"),
];

/// Transitions in the tables of `core` that no seed reaches: a turn ends before its session closes or faults,
/// so both happen to idle sessions.
const PASSED_BY: [&str; 4] = [
    "session running faulted error",
    "session running closed closed",
    "session cancelling faulted error",
    "session cancelling closed closed",
];

/// Returns the names of all effects.
fn effects() -> impl Iterator<Item = String> {
    EFFECTS.iter().flat_map(|(at, names)| names.split(' ').map(move |name| format!("{at}:{name}")))
}

fn wanted() -> BTreeSet<String> {
    let moves = |(of, all): &(&str, &str)| all.split(", ").map(|to| format!("{of} {to}")).collect::<Vec<_>>();
    let mut wanted: BTreeSet<String> = MOVES.iter().flat_map(moves).collect();
    for from in SessionState::ALL {
        let moves = SessionEvent::ALL.iter().filter_map(|event| Some((event, from.on(*event)?)));
        wanted.extend(moves.map(|(event, to)| format!("session {from} {} {to}", event.as_str())));
    }
    for from in RunState::ALL {
        let moves = RunEvent::ALL.iter().filter_map(|event| Some((event, from.on(*event)?)));
        wanted.extend(moves.map(|(event, to)| format!("run {from} {} {to}", event.as_str())));
    }
    for effect in effects().chain(["reply".to_owned()]) {
        wanted.extend(["before", "after"].map(|when| format!("crash {when} {effect}")));
    }
    for name in PASSED_BY {
        assert!(wanted.remove(name), "{name} is not a transition");
    }
    wanted
}

/// Returns the required items that were not reached.
pub(super) fn missing(reached: &Coverage) -> Vec<String> {
    wanted().into_iter().filter(|name| !reached.contains_key(name)).collect()
}

/// Returns reached items that are on no list, which means that a list is outdated.
pub(super) fn unknown(reached: &Coverage) -> Vec<String> {
    let beginnings = ["run  accepted queued", "session  spawned creating"];
    // A binding that ends between a plan and its first part, or while a part is being sent, in an archived conversation.
    let seldom = ["part planned > rejected", "part planned > uncertain", "part uncertain > sent"];
    let mut known = wanted();
    known.extend(beginnings.iter().chain(&seldom).map(|name| (*name).to_owned()));
    known.extend(
        RARE.iter()
            .flat_map(|(name, _)| ["before", "after"].map(|when| format!("crash {when} commit:{name}"))),
    );
    reached.keys().filter(|name| !known.contains(*name)).cloned().collect()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use std::path::Path;

    /// Collects the names of the transactions in the source of the gateway, tests excluded.
    fn transactions(dir: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.contains("tests") || name == "sim" {
                continue;
            }
            if path.is_dir() {
                transactions(&path, found);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.split("\nmod tests {").next().unwrap_or_default();
            for call in [".write(\"", ".write_sized(\"", ".queue(\""] {
                let names = code.split(call).skip(1).filter_map(|rest| rest.split('"').next());
                found.extend(names.map(str::to_owned));
            }
        }
    }

    #[test]
    fn every_transaction_is_on_a_list() {
        let all = EFFECTS[0].1.split(' ').chain(BEYOND.iter().chain(&RARE).map(|(name, _)| *name));
        let listed: BTreeSet<String> = all.map(str::to_owned).collect();
        let mut found = BTreeSet::new();
        for dir in ["src", "store/src"] {
            transactions(&Path::new(env!("CARGO_MANIFEST_DIR")).join(dir), &mut found);
        }
        assert_eq!(found, listed);
    }
}
