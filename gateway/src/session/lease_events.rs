//! Converts responses and notices of the supervisor to the actor's input.

use crate::supervisor::CallError;
use acp_core::actor::LeaseEvent;
use acp_shared::protocol::{Notice, RefusalCode, Reply};
use std::collections::VecDeque;

/// Merges consecutive pieces of output, to commit all in one transaction.
pub(crate) fn merge(items: VecDeque<Notice>) -> Vec<LeaseEvent> {
    let mut merged: Vec<LeaseEvent> = Vec::new();
    for item in items {
        match item {
            Notice::Output { offset, bytes, .. } => match merged.last_mut() {
                Some(LeaseEvent::Output { offset: from, bytes: before })
                    if *from + before.len() as u64 == offset =>
                {
                    before.extend_from_slice(&bytes);
                }
                _ => merged.push(LeaseEvent::Output { offset, bytes }),
            },
            Notice::Exited { status, end_offset, stdin_written, .. } => {
                merged.push(LeaseEvent::Exited { status, end_offset, stdin_written });
            }
            Notice::LeaseChanged { state, .. } if state.is_ended() => merged.push(LeaseEvent::Changed),
            Notice::LeaseChanged { .. } => {}
        }
    }
    merged
}

/// Converts the response to a spawn.
pub(crate) fn spawned(answer: Result<Reply, CallError>) -> Option<LeaseEvent> {
    match answer {
        Ok(_) => Some(LeaseEvent::Spawned),
        Err(CallError::Refused(refusal)) => Some(LeaseEvent::SpawnRefused {
            code: refusal.code,
            message: refusal.message,
            retry_after_ms: refusal.retry_after_ms,
        }),
        Err(CallError::Disconnected) => None,
    }
}

/// Converts the response to an attach.
pub(crate) fn attached(answer: Result<Reply, CallError>) -> Option<LeaseEvent> {
    match answer {
        Ok(Reply::Attached(attached)) => Some(LeaseEvent::Attached(attached)),
        Err(CallError::Refused(refusal)) => match refusal.code {
            RefusalCode::LeaseUnknown | RefusalCode::LeaseEnded => Some(LeaseEvent::Unknown),
            RefusalCode::OffsetUnavailable => Some(LeaseEvent::OffsetGone),
            _ => Some(LeaseEvent::StreamsBusy),
        },
        Ok(_) | Err(CallError::Disconnected) => None,
    }
}

/// Converts the response to an acknowledgement. If it was refused, the agent would stay blocked: the next
/// attach repeats it.
pub(crate) fn acked(answer: Result<Reply, CallError>) -> Option<LeaseEvent> {
    match answer {
        Err(CallError::Refused(refusal)) if refusal.code == RefusalCode::Busy => {
            Some(LeaseEvent::StreamsBusy)
        }
        Ok(_) | Err(_) => None,
    }
}

/// Converts the response to a write to the agent's standard input.
pub(crate) fn written(seq: u64, answer: Result<Reply, CallError>) -> Option<LeaseEvent> {
    match answer {
        Ok(_) => Some(LeaseEvent::Written { seq }),
        Err(CallError::Refused(refusal)) => Some(LeaseEvent::InputRefused { seq, code: refusal.code }),
        Err(CallError::Disconnected) => None,
    }
}

/// Converts the response to a request to close a lease.
pub(crate) fn closing(answer: Result<Reply, CallError>) -> Option<LeaseEvent> {
    match answer {
        Err(CallError::Refused(refusal)) if refusal.code == RefusalCode::LeaseUnknown => {
            Some(LeaseEvent::Unknown)
        }
        Ok(Reply::Closing { state }) if state.is_ended() => Some(LeaseEvent::Changed),
        Ok(_) | Err(_) => None,
    }
}
