//! The cases of the control plane that the reference lists (its §8): B1–B20 of sessions and runs, C1–C14 of delivery,
//! D1–D15 of bindings, E1–E6 of commands. Which of them the adapter of Discord leaves out, and which are on their way.

use super::table::{Asked, Case, List};

/// Number n is entry n - 1, in each of these.
const SESSIONS: [&str; 20] = [
    "a key without a row is an error, never another route",
    "turns of one session in order, sessions side by side, a waiter let go at once",
    "cancel while queued, initialising, running; twice",
    "close in a running turn is prompt",
    "steer reaches the turn or says that it cannot",
    "spawn, binding and first run at every crash point; a failed spawn leaves nothing",
    "the same key after a restart has the same answer",
    "what could not be stored is not left running",
    "caps under parallel spawns; dead sessions do not count; after a restart",
    "an idle agent is ended by time alone; a turn protects; it comes back",
    "a hung turn is stopped, later ones go on",
    "a crash in a turn: it ends or goes on in bounded time",
    "no new conversation unless a person asks; not found is not any failure",
    "limits of options, what an agent cannot do, relative directories, applied again",
    "a superseded actor writes nothing and closes nothing",
    "backend missing, unhealthy, off; agent not allowed: codes and hints",
    "another backend only before any output",
    "a one-shot session opens one conversation",
    "closed stays closed after a restart",
    "what is counted is what happened",
];

const DELIVERY: [&str; 14] = [
    "coalescing within its bounds, no cut in a phrase, long parts split",
    "final only: what there is comes with an error too",
    "a tool call is not said twice; the switch for it",
    "the notice of truncation, once",
    "separators where tools are hidden, four kinds",
    "what is shown by tag, and overrides",
    "editing in place, and what stands in for it",
    "slow channel, turn over first: nothing lost",
    "crash between send and checkpoint: nothing twice",
    "webhook with a lost reply: no second message by the bot",
    "rate limits and errors: on from the checkpoint",
    "only the bound conversation; ambiguous is refused",
    "own messages are not taken for prompts, after an unbind and a restart too",
    "a message's id counts once; a failed claim is let go",
];

const BINDINGS: [&str; 15] = [
    "the intro names windows, directory and ids",
    "idle and oldest age, in the right words; activity keeps",
    "archived, deleted, forbidden, a passing failure of the probe",
    "windows set, off, shown by session; by the owner only",
    "binding again keeps windows and webhook",
    "the same id in two accounts",
    "a rotated token is used",
    "a touch is durable, at a stop too",
    "older records are imported, wrong versions refused, twice is once",
    "at a start: missing goes, unreadable stays, few at a time",
    "a running turn keeps its binding",
    "the thread is not archived before the window ends",
    "ids with a prefix; a spawn in a thread makes its sibling",
    "a webhook's token is in no log and no plain export",
    "bindings of the configuration: one key, mended, reset, which one wins",
];

const COMMANDS: [&str; 6] = [
    "every command with its usage errors, flags, dashes and clashes",
    "gates of owner and admin; a sandboxed requester",
    "an unknown /acp goes to no agent",
    "how a target is found, in order; not found",
    "/acpfoo is not ours; quoted words",
    "sessions, status, doctor, install: stable, without secrets",
];

/// Cases that only a channel like Discord has and that the adapter of Discord leaves out, and why; see
/// `docs/design/requirements.md`.
pub(crate) const DISCORD: [(List, u32, &str); 2] = [
    (List::Bindings, 9, "records of other programs are not imported"),
    (List::Bindings, 13, "ids are chosen from suggestions, and a spawn inside a thread binds that thread"),
];

/// Cases whose tests are on their way. One that has a test must leave this list, so that it can only shrink.
pub(crate) const NOT_YET: &[(List, u32)] = &[];

/// Every case of the control plane, in order.
pub(crate) fn cases() -> Vec<Case> {
    let lists: [(List, &[&'static str]); 4] = [
        (List::Sessions, &SESSIONS),
        (List::Delivery, &DELIVERY),
        (List::Bindings, &BINDINGS),
        (List::Commands, &COMMANDS),
    ];
    let of = |(list, titles): (List, &[&'static str])| {
        let numbered = (1..).zip(titles.to_vec());
        numbered
            .map(move |(number, title)| Case { list, number, title, asked: Asked::Any })
            .collect::<Vec<_>>()
    };
    lists.into_iter().flat_map(of).collect()
}
