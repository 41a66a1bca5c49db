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
const MOVES: [&str; 23] = [
    "binding > active",
    "binding active > ended",
    "binding active > parked",
    "binding parked > active",
    "binding parked > ended",
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

/// All effects at the gateway's interfaces.
const EFFECTS: [&str; 40] = [
    "commit:bind",
    "commit:binding_gone",
    "commit:binding_park",
    "commit:binding_touch",
    "commit:binding_window",
    "commit:caught_up",
    "commit:claim",
    "commit:command_meant",
    "commit:commit",
    "commit:delivery_advance",
    "commit:delivery_begin",
    "commit:delivery_buttons",
    "commit:delivery_plan",
    "commit:delivery_settle",
    "commit:delivery_style",
    "commit:delivery_without_files",
    "commit:expire_answers",
    "commit:inbox_insert",
    "commit:inbox_record",
    "commit:inbox_settle",
    "commit:remembered",
    "commit:reply_begin",
    "commit:reply_rejected",
    "commit:spawn_session",
    "commit:unbind",
    "commit:verbosity_set",
    "supervisor:ack",
    "supervisor:attach",
    "supervisor:close",
    "supervisor:files",
    "supervisor:input",
    "supervisor:list",
    "supervisor:release",
    "supervisor:spawn",
    "news:answer",
    "news:changed",
    "news:exited",
    "news:output",
    "channel:send",
    "channel:lookup",
];

/// Effects that seeds rarely reach, with a higher crash probability: once in this many times.
const SELDOM: [(&str, usize); 23] = [
    ("commit:bind", 3),
    ("commit:binding_gone", 3),
    ("commit:binding_park", 12),
    ("commit:binding_window", 12),
    ("commit:caught_up", 6),
    ("commit:command_meant", 12),
    ("commit:delivery_advance", 3),
    ("commit:delivery_begin", 12),
    ("commit:delivery_buttons", 12),
    ("commit:delivery_plan", 12),
    ("commit:delivery_settle", 12),
    ("commit:delivery_style", 12),
    ("commit:delivery_without_files", 3),
    ("commit:expire_answers", 40),
    ("commit:reply_begin", 12),
    ("commit:reply_rejected", 3),
    ("commit:unbind", 12),
    ("commit:verbosity_set", 12),
    ("news:changed", 12),
    ("news:exited", 12),
    ("supervisor:ack", 12),
    ("supervisor:close", 12),
    ("supervisor:list", 40),
];

/// Returns the crash probability for these effects if one of them is rare.
pub(super) fn seldom(names: &str) -> Option<usize> {
    let of = |name: &str| SELDOM.iter().find(|(seldom, _)| *seldom == name).map(|(_, once_in)| *once_in);
    names.split(' ').filter_map(of).min()
}

/// True if one of these occurs only near the end of a seed: an answer with a file ends a turn.
pub(super) fn comes_last(names: &str) -> bool {
    names.split(' ').any(|name| name == "commit:delivery_without_files")
}

/// Transactions of the gateway that no seed reaches, with reasons.
const BEYOND: [(&str, &str); 12] = [
    ("binding_activate", "the room has no threads: a conversation is bound where it is"),
    ("binding_failed", "as before"),
    ("binding_stale", "no session is removed while a binding refers to it"),
    ("configured_decide", "the configuration has no static bindings"),
    ("console_child", "the console is another channel than the room"),
    ("console_edit", "as before"),
    ("console_send", "as before"),
    ("forget_said", "concerns rows older than thirty days"),
    ("inbox_keep", "no simulated user sends a slash command or a click"),
    ("inbox_told", "as before"),
    ("inbox_withdraw", "as before"),
    ("settle_loss", "the simulated supervisor refuses no database"),
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

fn wanted() -> BTreeSet<String> {
    let mut wanted: BTreeSet<String> = MOVES.iter().map(|name| (*name).to_owned()).collect();
    for from in SessionState::ALL {
        let moves = SessionEvent::ALL.iter().filter_map(|event| Some((event, from.on(*event).ok()?)));
        wanted.extend(moves.map(|(event, to)| format!("session {from} {} {to}", event.as_str())));
    }
    for from in RunState::ALL {
        let moves = RunEvent::ALL.iter().filter_map(|event| Some((event, from.on(*event).ok()?)));
        wanted.extend(moves.map(|(event, to)| format!("run {from} {} {to}", event.as_str())));
    }
    for effect in EFFECTS.iter().chain(&["reply"]) {
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
    // A binding that ends between a plan and its first part, in an archived conversation.
    let seldom = ["part planned > rejected", "part planned > uncertain"];
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
            for call in [".write(\"", ".write_sized(\""] {
                let names = code.split(call).skip(1).filter_map(|rest| rest.split('"').next());
                found.extend(names.map(str::to_owned));
            }
        }
    }

    #[test]
    fn every_transaction_is_on_a_list() {
        let all = EFFECTS.into_iter().filter_map(|name| name.strip_prefix("commit:"));
        let listed: BTreeSet<String> =
            all.chain(BEYOND.iter().chain(&RARE).map(|(name, _)| *name)).map(str::to_owned).collect();
        let mut found = BTreeSet::new();
        for dir in ["src", "store/src"] {
            transactions(&Path::new(env!("CARGO_MANIFEST_DIR")).join(dir), &mut found);
        }
        assert_eq!(found, listed);
    }
}
