//! What steps are called, in traces and in what must be reached.

use super::host::Word;
use acp_shared::protocol::{Notice, Request};

/// What is asked of the supervisor.
pub(super) fn of_request(request: &Request) -> String {
    let name = match request {
        Request::Spawn(_) => "spawn",
        Request::Attach { .. } => "attach",
        Request::Input { .. } => "input",
        Request::AckSynced { .. } => "ack",
        Request::CloseLease { .. } => "close",
        Request::Release { .. } => "release",
        Request::Tail { .. } => "tail",
        Request::ListLeases { .. } => "list",
        Request::Files(_) => "files",
        _ => "other",
    };
    format!("supervisor:{name}")
}

/// What the supervisor says.
pub(super) fn of_news(word: &Word) -> String {
    let name = match word {
        Word::Reply(..) => "answer",
        Word::Notice(Notice::Output { .. }) => "output",
        Word::Notice(Notice::Exited { .. }) => "exited",
        Word::Notice(Notice::LeaseChanged { .. }) => "changed",
    };
    format!("news:{name}")
}
