//! Names of steps, in traces and in the coverage lists.

use crate::sim::supervisor::SupervisorMessage;
use acp_shared::protocol::{Notice, Request};

/// Returns the name of a request to the supervisor.
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

/// Returns the name of a message from the supervisor.
pub(super) fn of_news(word: &SupervisorMessage) -> String {
    let name = match word {
        SupervisorMessage::Reply(..) => "answer",
        SupervisorMessage::Notice(Notice::Output { .. }) => "output",
        SupervisorMessage::Notice(Notice::Exited { .. }) => "exited",
        SupervisorMessage::Notice(Notice::LeaseChanged { .. }) => "changed",
    };
    format!("news:{name}")
}
